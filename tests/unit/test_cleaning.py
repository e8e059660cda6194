"""Making room on a full volume: the Job, what it may not touch, and what is said of it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.fleet import Fleet
from support.full_volumes import crash, finish, full, jobs
from support.operators import KEY, Bench
from support.volumes import GENERATION, OLD, age, clean
from vllm_operator.api import labels
from vllm_operator.kube.client import CLAIM, JOB, POD, Forbidden


async def test_a_job_makes_room_and_mounts_nothing_but_the_claim(bench: Bench, fleet: Fleet) -> None:
    await full(fleet)
    [job] = jobs(bench)
    pod = job["spec"]["template"]["spec"]
    assert [volume.get("persistentVolumeClaim") for volume in pod["volumes"]] == [{"claimName": "llama-cache"}, None]
    assert pod["volumes"][1] == {"name": "operator-tools", "emptyDir": {}}
    assert pod["nodeName"] == "node-1"
    [container] = pod["containers"]
    assert container["image"] == fleet.bench.container()["image"]
    assert "limits" not in container["resources"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert fleet.key() in json.loads(variables["CLEAN_KEEP"])
    assert job["metadata"]["ownerReferences"][0]["kind"] == "VLLMDeployment"
    assert "is removing unused caches" in bench.cache_verdict().message


async def test_a_job_whose_pod_is_refused_says_so(bench: Bench, fleet: Fleet) -> None:
    await full(fleet)
    fleet.tell(jobs(bench)[0], "FailedCreate", 'pods "llama-clean-1" is forbidden: exceeded quota: small')
    bench.restart()
    await fleet.settle()
    assert 'The Job waits: pods "llama-clean-1" is forbidden: exceeded quota: small.' in bench.cache_verdict().message


async def test_a_full_volume_is_cleaned_although_nothing_else_happens(bench: Bench, fleet: Fleet) -> None:
    """The crash is read from the status: what was written there must bring the object back."""
    await fleet.serve()
    pod = fleet.start()
    await fleet.settle()
    crash(fleet, pod, 0)
    seconds: float | None = 0.0
    while seconds is not None and seconds <= 1 and not jobs(bench):
        seconds = (await bench.reconciler.reconcile(KEY)).requeue_seconds
    assert len(jobs(bench)) == 1


async def test_directories_of_others_are_kept(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve("other", engine={"version": "0.24.0"})
    other = fleet.key("other")
    await full(fleet)
    [job] = jobs(bench)
    variables = {variable["name"]: variable["value"] for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert set(json.loads(variables["CLEAN_KEEP"])) >= {other, fleet.key()}


async def test_what_was_removed_is_reported_and_no_longer_counts_as_filled(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    before = {labels.PRIMED_ANNOTATION_PREFIX + OLD: "2026-11-01T00:00:00Z", labels.IMAGE_ANNOTATION_PREFIX + OLD: "vllm@sha256:0"}
    fleet.annotate(before)
    pod = fleet.start()
    crash(fleet, pod, 0)
    await fleet.settle()
    await fleet.settle()
    finish(fleet, json.dumps({"removed": [OLD], "freedBytes": 3 * 2**30}))
    await fleet.settle()
    assert "The operator removed 1 unused directory (3.0 GiB) and starts the engine again" in bench.cache_verdict().message
    assert not before.keys() & fleet.annotations().keys()
    assert len(jobs(bench)) == 1
    # another VLLMDeployment that shares the claim fills it anew: the Job said nothing about that
    bench.pass_time(60)
    again = {labels.PRIMED_ANNOTATION_PREFIX + OLD: fleet.time(), labels.USED_ANNOTATION_PREFIX + OLD: fleet.time()}
    again[labels.IMAGE_ANNOTATION_PREFIX + OLD] = "vllm@sha256:1"
    bench.cluster.edit(CLAIM, "default", "llama-cache", {"metadata": {"annotations": again}})
    await fleet.settle()
    assert again.items() <= fleet.annotations().items()


async def test_where_nothing_can_go_the_command_to_enlarge_the_claim_is_given(bench: Bench, fleet: Fleet) -> None:
    await full(fleet)
    finish(fleet, json.dumps({"removed": [], "freedBytes": 0}))
    await fleet.settle()
    said = bench.cache_verdict().message
    assert """kubectl patch vllm llama -n default --type merge -p '{"spec":{"cache":{"volume":{"size":"40Gi"}}}}'""" in said


@pytest.mark.parametrize(("size", "advised"), [("1.5Ti", "3Ti"), ("30G", "56Gi"), ("500Gi", "1000Gi")])
async def test_the_size_that_is_advised_is_twice_that_of_the_claim(bench: Bench, fleet: Fleet, size: str, advised: str) -> None:
    await full(fleet)
    bench.cluster.edit(CLAIM, "default", "llama-cache", {"spec": {"resources": {"requests": {"storage": size}}}})
    finish(fleet, json.dumps({"removed": [], "freedBytes": 0}))
    await fleet.settle()
    assert f'{{"size":"{advised}"}}' in bench.cache_verdict().message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param({}, ("Check PVC llama-weights", '{"spec":{"weights":{"volume":{"size":"60Gi"}}}}'), id="weights have a claim"),
        pytest.param(
            {"cache": {"claimName": "llama-cache"}}, ("Check the disk of the node, which holds /tmp",), id="weights are beside the caches"
        ),
    ],
)
async def test_where_the_caches_have_room_something_else_is_full(
    bench: Bench, fleet: Fleet, spec: dict[str, Any], words: tuple[str, ...]
) -> None:
    if "cache" in spec:
        bench.cluster.put({"apiVersion": "v1", "kind": CLAIM.kind, "metadata": {"name": "llama-cache", "namespace": "default"}, "spec": {}})
    await full(fleet, **spec)
    finish(fleet, json.dumps({"removed": [], "freedBytes": 0, "freeBytes": 6 * 2**30, "totalBytes": 20 * 2**30}))
    await fleet.settle()
    said = bench.cache_verdict().message
    assert all(word in said for word in words), said


async def test_a_volume_that_is_full_again_at_once_is_not_cleaned_all_the_time(bench: Bench, fleet: Fleet) -> None:
    pod = await full(fleet)
    finish(fleet, json.dumps({"removed": [OLD], "freedBytes": 1}))
    await fleet.settle()
    crash(fleet, pod, 1)
    await fleet.settle()
    assert len(jobs(bench)) == 1
    bench.pass_time(601)
    await fleet.settle()
    assert len(jobs(bench)) == 2


async def test_a_job_that_fails_is_reported(bench: Bench, fleet: Fleet) -> None:
    await full(fleet)
    finish(fleet, "python3: not found", code=127)
    await fleet.settle()
    assert "removes unused caches failed" in bench.cache_verdict().message


async def test_a_job_that_may_not_be_created_is_not_called_running(bench: Bench, fleet: Fleet) -> None:
    error = Forbidden('jobs.batch is forbidden: User "operator" cannot create resource "jobs"', verb="create", resource="jobs")
    bench.cluster.fail("create", JOB, error, times=100)
    await full(fleet)
    said = bench.cache_verdict().message
    assert "the Job that removes unused caches cannot be created: jobs.batch is forbidden" in said
    assert "Allow it, or enlarge the volume: kubectl patch vllm llama" in said
    assert "is removing unused caches" not in said
    bench.cluster.heal()
    await fleet.settle()
    assert "is removing unused caches" in bench.cache_verdict().message


@pytest.mark.parametrize(
    ("mount", "blocks"),
    [
        pytest.param({}, True, id="the whole claim"),
        pytest.param({"subPathExpr": "$(NODE)"}, True, id="a folder that only the kubelet knows"),
        pytest.param({"subPath": "backups/today"}, False, id="a folder of its own"),
    ],
)
async def test_nothing_is_removed_while_another_owners_pod_may_use_anything(
    bench: Bench, fleet: Fleet, mount: dict[str, str], blocks: bool
) -> None:
    volume = {"name": "all", "persistentVolumeClaim": {"claimName": "llama-cache"}}
    spec = {"volumes": [volume], "containers": [{"name": "shell", "volumeMounts": [{"name": "all", "mountPath": "/all", **mount}]}]}
    metadata = {"name": "debugger", "namespace": "default"}
    bench.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    await full(fleet)
    assert (jobs(bench) == []) is blocks
    assert ("while Pod debugger mounts the whole volume" in bench.cache_verdict().message) is blocks
    bench.cluster.remove(POD, "default", "debugger")
    await fleet.settle()
    assert len(jobs(bench)) == 1


async def test_a_claim_for_one_pod_cannot_be_cleaned(bench: Bench, fleet: Fleet) -> None:
    await full(fleet, cache={"volume": {"accessMode": "ReadWriteOncePod"}})
    assert jobs(bench) == []
    assert "no other Pod can mount it" in bench.cache_verdict().message


async def test_a_damaged_directory_is_removed_after_a_week(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    fleet.ready(fleet.start())
    mark = labels.QUARANTINED_ANNOTATION_PREFIX + GENERATION
    since = fleet.time()
    bench.cluster.edit(CLAIM, "default", "llama-cache", {"metadata": {"annotations": {mark: since}}})
    await fleet.settle()
    assert jobs(bench) == []
    bench.pass_time(7 * 24 * 3600 + 1)
    await fleet.settle()
    [job] = jobs(bench)
    variables = {variable["name"]: variable["value"] for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert (json.loads(variables["CLEAN_DOOMED"]), variables["CLEAN_SHARE"]) == ([GENERATION], "0")
    finish(fleet, json.dumps({"removed": [GENERATION], "freedBytes": 1}))
    await fleet.settle()
    assert fleet.annotations()[mark] == f"{since} removed"


async def test_pods_mark_their_directory_and_the_claim_records_it(bench: Bench, fleet: Fleet, tmp_path: Path) -> None:
    await fleet.serve()
    assert labels.USED_ANNOTATION_PREFIX + fleet.key() in fleet.annotations()
    template = bench.deployment()["spec"]["template"]["spec"]
    [_, marker] = template["initContainers"]
    [mount] = marker["volumeMounts"]
    assert (mount["mountPath"], mount["subPath"]) == ("/cache", fleet.key())
    assert marker["securityContext"] == template["containers"][0]["securityContext"]
    assert "nvidia.com/gpu" not in json.dumps(marker.get("resources", {}))
    folder = tmp_path / fleet.key()
    folder.mkdir()
    run([part.replace("/cache/", f"{folder}/") for part in marker["command"]])
    age(folder, days=30)
    assert clean(tmp_path, keep=[], recorded=[fleet.key()])["removed"] == [fleet.key()]
    run([*marker["command"][:-1], str(tmp_path / "a" / "volume" / "that" / "cannot" / "be" / "written")])


def run(command: list[str]) -> None:
    """The container succeeds."""
    subprocess.run(command, check=True)


async def test_what_is_left_alone_is_reported(bench: Bench, fleet: Fleet) -> None:
    await full(fleet)
    told = {"removed": [], "others": 2, "otherBytes": 5 * 2**30}
    finish(fleet, json.dumps(told))
    await fleet.settle()
    said = bench.cache_verdict().message
    assert "The operator left 2 other files and directories on the volume alone (5.0 GiB)." in said


async def test_a_folder_that_no_annotation_can_name_is_not_recorded(bench: Bench, fleet: Fleet) -> None:
    """The whole volume, or a nested folder, by podTemplate: nothing on it is the operator's."""
    for folder in ({}, {"subPath": "a/b"}):
        mount = {"name": "cache", "mountPath": "/cache", **folder}
        await fleet.serve(podTemplate={"spec": {"containers": [{"name": "vllm", "volumeMounts": [mount]}]}})
        fleet.ready(fleet.start())
        await fleet.settle()
        assert [name for name in fleet.annotations() if name.partition("/")[2] in ("", "a/b")] == []
        assert [each["name"] for each in bench.deployment()["spec"]["template"]["spec"]["initContainers"]] == ["copy-tools"]
