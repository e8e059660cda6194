"""In which order an object's plan, its children and its status are written."""

from typing import Any

import pytest

from support.fleet import Fleet
from support.operators import KEY, Bench, llama
from vllm_operator.api import labels
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, REVISION, SERVICE, VLLM_DEPLOYMENT, Kind, Unavailable

ON_NODE: dict[str, Any] = {"cache": {"hostPath": "/var/cache/vllm"}}


def kinds(bench: Bench) -> list[str]:
    written = [write.kind for write in bench.cluster.writes]
    bench.cluster.writes.clear()
    return written


async def test_an_object_costs_four_writes(bench: Bench) -> None:
    bench.cluster.put(llama(**ON_NODE))
    await bench.settle()
    written = kinds(bench)
    assert (written[0], sorted(written)) == ("ControllerRevision", ["ControllerRevision", "Deployment", "Service", "VLLMDeployment"])
    await bench.settle()
    assert kinds(bench) == []


async def test_an_object_with_claims_costs_two_more_and_looks_for_each_claim_once(bench: Bench) -> None:
    bench.cluster.put(llama("before"))
    await bench.settle(("default", "before"))
    bench.cluster.writes.clear()
    bench.cluster.put(llama())
    read = bench.cluster.calls["get"]
    await bench.reconciler.reconcile(KEY)
    assert bench.cluster.calls["get"] - read == 1 + 2, "the object, and its claims, which may exist without labels"
    assert sorted(kinds(bench)) == ["ControllerRevision", "Deployment", *["PersistentVolumeClaim"] * 2]


async def test_the_record_that_is_applied_with_a_claim_stays_when_the_claim_is_applied_again(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    [record] = [name for name in fleet.annotations() if name.startswith(labels.USED_ANNOTATION_PREFIX)]
    since = fleet.annotations()[record]
    bench.pass_time(60)
    bench.restart()
    kinds(bench)
    await bench.settle()
    assert kinds(bench) == [], "a restart writes nothing"
    bench.cluster.edit(CLAIM, "default", "llama-cache", {"metadata": {"labels": {labels.COMPONENT_LABEL: "changed"}}})
    await bench.settle()
    assert "PersistentVolumeClaim" in kinds(bench)
    assert fleet.annotations()[record] == since
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"engine": {"version": "0.26.0"}}})
    await bench.settle()
    assert fleet.annotations()[record] == since, "the directory of the plan before"
    assert labels.USED_ANNOTATION_PREFIX + fleet.key() in fleet.annotations(), "the directory of this plan"


async def test_an_update_writes_the_plan_and_the_deployment_and_the_status_in_the_next_reconciliation(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(**ON_NODE)
    kinds(bench)
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"engine": {"version": "0.26.0"}}})
    await bench.reconciler.reconcile(KEY)
    assert kinds(bench) == ["ControllerRevision", "Deployment"]
    await bench.reconciler.reconcile(KEY)
    assert kinds(bench) == ["VLLMDeployment"]
    await bench.settle()
    assert kinds(bench) == []


@pytest.mark.parametrize("kind", [DEPLOYMENT, SERVICE])
async def test_what_failed_is_written_the_next_time(bench: Bench, kind: Kind) -> None:
    bench.cluster.put(llama(**ON_NODE))
    bench.cluster.fail("apply", kind, Unavailable("later"), times=1)
    with pytest.raises(Unavailable):
        await bench.settle()
    await bench.settle()
    assert sorted(kinds(bench)) == ["ControllerRevision", "Deployment", "Service", "VLLMDeployment"]
    assert bench.plan_verdict().reason == "Planned"


async def test_a_plan_that_could_not_be_stored_is_stored_before_anything_is_applied(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(**ON_NODE)
    kinds(bench)
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"engine": {"version": "0.26.0"}}})
    bench.cluster.fail("create", REVISION, Unavailable("later"), times=1)
    with pytest.raises(Unavailable):
        await bench.reconciler.reconcile(KEY)
    assert kinds(bench) == []
    await bench.settle()
    assert kinds(bench) == ["ControllerRevision", "Deployment", "VLLMDeployment"]
