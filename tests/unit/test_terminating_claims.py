"""A PersistentVolumeClaim that is being deleted: the operator's own Pods do not keep it, and the status names those that do."""

import json
from typing import Any

import pytest

from support.fleet import Fleet
from support.full_volumes import crash, finish, full, jobs, run_job
from support.operators import Bench
from vllm_operator.kube.client import CLAIM, JOB, POD, Forbidden

REMOVED_NOTHING = json.dumps({"removed": [], "freedBytes": 0})


def delete_claim(fleet: Fleet, name: str = "llama-cache") -> None:
    """A user deletes a claim; its finalizer keeps it."""
    fleet.bench.cluster.edit(CLAIM, "default", name, {"metadata": {"deletionTimestamp": fleet.time()}})


def add_pod(bench: Bench, name: str, *, claim: str = "llama-cache", phase: str = "Running", node: str | None = "node-1") -> None:
    """A Pod of somebody else that mounts a claim."""
    spec: dict[str, Any] = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}
    if node:
        spec["nodeName"] = node
    metadata = {"name": name, "namespace": "default"}
    bench.cluster.put({"apiVersion": "v1", "kind": POD.kind, "metadata": metadata, "spec": spec, "status": {"phase": phase}})


def said(bench: Bench, name: str = "llama") -> str:
    condition = bench.cache_verdict(name)
    assert condition.reason == "ClaimTerminating"
    return condition.message


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_finished_cleaning_job_goes_with_its_claim(bench: Bench, fleet: Fleet, restarted: bool) -> None:
    await full(fleet)
    finish(fleet, REMOVED_NOTHING)
    await fleet.settle()
    assert len(jobs(bench)) == 1, "its result is shown until then"
    delete_claim(fleet)
    if restarted:
        bench.restart()
    await fleet.settle()
    assert jobs(bench) == []


async def test_a_cleaning_job_that_still_runs_goes_too_and_no_other_is_created(bench: Bench, fleet: Fleet) -> None:
    pod = await full(fleet)
    run_job(fleet, phase="Running")
    delete_claim(fleet)
    await fleet.settle()
    assert jobs(bench) == []
    fleet.gone(next(name for name in fleet.pods() if name != pod))
    crash(fleet, pod, 1)
    await fleet.settle()
    assert jobs(bench) == []


async def test_a_cleaning_job_goes_with_its_claim_although_the_spec_is_invalid_by_now(bench: Bench, fleet: Fleet) -> None:
    await full(fleet)
    finish(fleet, REMOVED_NOTHING)
    delete_claim(fleet)
    await fleet.change(replicas="many")
    assert jobs(bench) == []


async def test_a_cleaning_job_of_a_claim_that_is_not_used_any_more_goes_with_it(bench: Bench, fleet: Fleet) -> None:
    await full(fleet)
    finish(fleet, REMOVED_NOTHING)
    await fleet.change(cache={"storage": "EmptyDir"})
    assert len(jobs(bench)) == 1
    delete_claim(fleet)
    await fleet.settle()
    assert jobs(bench) == []


async def test_a_failed_pod_of_the_replicas_goes_with_its_claim(bench: Bench, fleet: Fleet) -> None:
    """An evicted Pod stays until somebody deletes it, also with replicas at 0."""
    await fleet.serve()
    evicted, serving = fleet.start(), fleet.start()
    fleet.show(evicted, phase="Failed")
    fleet.ready(serving)
    await fleet.settle()
    assert evicted in fleet.pods()
    delete_claim(fleet)
    await fleet.settle()
    assert fleet.pods() == (serving,)


async def test_the_pods_of_others_are_never_deleted(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    add_pod(bench, "backup", phase="Succeeded")
    delete_claim(fleet)
    await fleet.settle()
    assert "backup" in fleet.pods()


async def test_an_orphaned_job_stays_and_the_status_says_how_to_delete_its_pod(bench: Bench, fleet: Fleet) -> None:
    await full(fleet)
    pod = finish(fleet, REMOVED_NOTHING)
    [job] = jobs(bench)
    bench.cluster.edit(JOB, "default", job["metadata"]["name"], {"metadata": {"ownerReferences": None}})
    delete_claim(fleet)
    await fleet.settle()
    assert len(jobs(bench)) == 1
    assert f"`kubectl delete pod -n default {pod}`" in said(bench)
    assert "The operator deletes" not in said(bench)


async def test_a_job_that_may_not_be_deleted_stops_nothing(bench: Bench, fleet: Fleet) -> None:
    await full(fleet)
    name = finish(fleet, REMOVED_NOTHING)
    delete_claim(fleet)
    bench.cluster.fail("delete", JOB, Forbidden("cannot delete jobs.batch"), times=100)
    await fleet.settle()
    assert name in said(bench)


async def test_without_replicas_no_primer_keeps_the_claim(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=0, cache={"priming": "Always"})
    assert fleet.deployment("llama.primer") is not None
    delete_claim(fleet)
    await fleet.settle()
    assert fleet.deployment("llama.primer") is None


async def test_pods_of_the_replicas_are_named_with_what_lets_them_go(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    pod = fleet.start()
    fleet.ready(pod)
    delete_claim(fleet)
    await fleet.settle()
    assert f"Pod {pod} uses it" in said(bench)
    assert "set spec.replicas to 0" in said(bench)


async def test_with_replicas_at_0_nobody_is_asked_to_set_them(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    pod = fleet.start()
    fleet.ready(pod)
    delete_claim(fleet)
    await fleet.change(replicas=0)
    assert pod in said(bench)
    assert "set spec.replicas" not in said(bench)


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
async def test_a_pod_of_another_owner_is_named_with_the_command_that_deletes_it(bench: Bench, fleet: Fleet, phase: str) -> None:
    await fleet.serve(replicas=0)
    add_pod(bench, "backup", phase=phase)
    delete_claim(fleet)
    await fleet.settle()
    assert "`kubectl delete pod -n default backup`" in said(bench)
    assert "set spec.replicas" not in said(bench)


async def test_a_pod_of_another_vllmdeployment_is_named_with_it(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    await fleet.serve("other", cache={"claimName": "llama-cache"})
    pod = fleet.start("other")
    fleet.ready(pod)
    delete_claim(fleet)
    await fleet.settle()
    assert f"Pod {pod} of VLLMDeployment other" in said(bench)
    assert "kubectl delete pod" not in said(bench)


@pytest.mark.parametrize("node", [None, "node-1"])
async def test_a_pod_that_no_node_runs_and_a_claim_of_another_name_are_not_named(bench: Bench, fleet: Fleet, node: str | None) -> None:
    await fleet.serve(replicas=0)
    add_pod(bench, "waiting", node=node, claim="llama-cache" if node is None else "another")
    delete_claim(fleet)
    await fleet.settle()
    assert "waiting" not in said(bench)
    assert "No Pod uses it" in said(bench)


async def test_many_pods_are_counted(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=0)
    for number in range(40):
        add_pod(bench, f"backup-of-a-very-long-name-that-goes-on-and-on-{number:02d}")
    delete_claim(fleet)
    await fleet.settle()
    assert "backup-of-a-very-long-name-that-goes-on-and-on-00" in said(bench)
    assert "38 others" in said(bench)
    assert len(said(bench)) <= 500


async def test_while_pods_of_others_keep_it_the_status_is_read_again(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=0)
    add_pod(bench, "backup")
    delete_claim(fleet)
    again = (await bench.settle()).requeue_seconds
    assert again is not None
    assert again <= 30
    bench.cluster.remove(POD, "default", "backup")
    await fleet.settle()
    assert "backup" not in said(bench)
