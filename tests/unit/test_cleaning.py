"""Making room on a full volume: the Job, what it may not touch, and what is said of it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.api import labels
from vllm_operator.cluster.client import CLAIM, JOB, POD, Forbidden
from vllm_operator.rendering.cleaning import cleaning_script
from vllm_operator.startup.state import Crash, Stage, StartupState

FULL = Crash(signature="DiskFull", cause="A volume is full.", remedy=None, reference=None, line="[Errno 28] No space left on device")
OLD, OLDER, USED, GENERATION = (
    "v0.16.0-sm90-h100-tp1-00000001",
    "v0.15.0-sm90-h100-tp1-00000002",
    "v0.20.1-sm90-h100-tp1-g1-00000003",
    "v0.20.1-sm90-h100-tp1-00000004",
)


async def full(fleet: Fleet, *, restarts: int = 0, **spec: Any) -> str:
    """A start that found the volume full."""
    await fleet.serve(**spec)
    pod = fleet.start()
    await fleet.settle()
    crash(fleet, pod, restarts)
    await fleet.settle()
    return pod


def crash(fleet: Fleet, pod: str, restarts: int) -> None:
    ended = {"exitCode": 1, "reason": "Error", "startedAt": fleet.time(), "finishedAt": fleet.time()}
    fleet.show(pod, {"type": "Ready", "status": "False"}, state={"terminated": ended}, restarts=restarts)
    fleet.bench.logs.told[(fleet.uid(pod), restarts)] = StartupState(stage=Stage.TORCH_COMPILE, crash=FULL, last_line_at=fleet.bench.now)


def jobs(bench: Bench) -> list[dict[str, Any]]:
    return bench.cluster.all(JOB)


def finish(fleet: Fleet, message: str, *, code: int = 0) -> None:
    """The Pod of the Job ends."""
    job = jobs(fleet.bench)[-1]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "controller": True}
    marks = {"labels": job["spec"]["template"]["metadata"]["labels"], "ownerReferences": [owner]}
    metadata = {"name": f"{job['metadata']['name']}-x", "namespace": "default", **marks}
    ended = {"exitCode": code, "finishedAt": fleet.time(), "message": message}
    status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"name": "clean", "state": {"terminated": ended}}]}
    fleet.bench.cluster.put({"apiVersion": "v1", "kind": POD.kind, "metadata": metadata, "spec": {}, "status": status})


async def test_a_job_makes_room_and_mounts_nothing_but_the_claim(bench: Bench, fleet: Fleet) -> None:
    await full(fleet)
    [job] = jobs(bench)
    pod = job["spec"]["template"]["spec"]
    assert [volume["persistentVolumeClaim"] for volume in pod["volumes"]] == [{"claimName": "llama-cache"}]
    assert pod["nodeName"] == "node-1"
    [container] = pod["containers"]
    assert container["image"] == fleet.bench.container()["image"]
    assert "limits" not in container["resources"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert fleet.key() in json.loads(variables["CLEAN_KEEP"])
    assert job["metadata"]["ownerReferences"][0]["kind"] == "VLLMDeployment"
    assert "are being removed" in bench.condition("CacheWarm").message


async def test_directories_of_others_are_kept(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve("other", engine={"version": "0.24.0"})
    other = fleet.key("other")
    await full(fleet)
    [job] = jobs(bench)
    variables = {variable["name"]: variable["value"] for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert set(json.loads(variables["CLEAN_KEEP"])) >= {other, fleet.key()}


async def test_what_was_removed_is_told_and_no_longer_counts_as_filled(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    bench.cluster.edit(
        CLAIM, "default", "llama-cache", {"metadata": {"annotations": {labels.PRIMED_ANNOTATION_PREFIX + OLD: "2026-11-01T00:00:00Z"}}}
    )
    pod = fleet.start()
    crash(fleet, pod, 0)
    await fleet.settle()
    await fleet.settle()
    finish(fleet, json.dumps({"removed": [OLD], "freedBytes": 3 * 2**30}))
    await fleet.settle()
    assert (
        "a directory that nobody used was removed (3.0 GiB), and the start is tried again by itself" in bench.condition("CacheWarm").message
    )
    assert labels.PRIMED_ANNOTATION_PREFIX + OLD not in fleet.annotations()
    assert len(jobs(bench)) == 1


async def test_where_nothing_can_go_the_command_to_enlarge_the_claim_is_given(bench: Bench, fleet: Fleet) -> None:
    await full(fleet)
    finish(fleet, json.dumps({"removed": [], "freedBytes": 0}))
    await fleet.settle()
    said = bench.condition("CacheWarm").message
    assert """kubectl patch vllm llama -n default --type merge -p '{"spec":{"cache":{"volume":{"size":"40Gi"}}}}'""" in said


@pytest.mark.parametrize(("size", "advised"), [("1.5Ti", "3Ti"), ("30G", "56Gi"), ("500Gi", "1000Gi")])
async def test_the_size_that_is_advised_is_twice_that_of_the_claim(bench: Bench, fleet: Fleet, size: str, advised: str) -> None:
    await full(fleet)
    bench.cluster.edit(CLAIM, "default", "llama-cache", {"spec": {"resources": {"requests": {"storage": size}}}})
    finish(fleet, json.dumps({"removed": [], "freedBytes": 0}))
    await fleet.settle()
    assert f'{{"size":"{advised}"}}' in bench.condition("CacheWarm").message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param({}, ("look at claim llama-weights", '{"spec":{"weights":{"volume":{"size":"60Gi"}}}}'), id="weights have a claim"),
        pytest.param({"cache": {"claimName": "llama-cache"}}, ("look at the node's disk, where /tmp",), id="weights are beside the caches"),
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
    said = bench.condition("CacheWarm").message
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


async def test_a_job_that_fails_is_told(bench: Bench, fleet: Fleet) -> None:
    await full(fleet)
    finish(fleet, "python3: not found", code=127)
    await fleet.settle()
    assert "should remove unused caches failed" in bench.condition("CacheWarm").message


async def test_a_job_that_may_not_be_created_is_not_called_running(bench: Bench, fleet: Fleet) -> None:
    error = Forbidden('jobs.batch is forbidden: User "operator" cannot create resource "jobs"', verb="create", resource="jobs")
    bench.cluster.fail("create", JOB, error, times=100)
    await full(fleet)
    said = bench.condition("CacheWarm").message
    assert "the Job that would remove unused caches could not be created: jobs.batch is forbidden" in said
    assert "Allow it, or enlarge the volume: kubectl patch vllm llama" in said
    assert "are being removed" not in said
    bench.cluster.heal()
    await fleet.settle()
    assert "are being removed" in bench.condition("CacheWarm").message


@pytest.mark.parametrize(
    ("mount", "blocks"),
    [
        pytest.param({}, True, id="the whole claim"),
        pytest.param({"subPathExpr": "$(NODE)"}, True, id="a folder that only the kubelet knows"),
        pytest.param({"subPath": "backups/today"}, False, id="a folder of its own"),
    ],
)
async def test_nothing_is_removed_while_somebody_elses_pod_may_use_anything(
    bench: Bench, fleet: Fleet, mount: dict[str, str], blocks: bool
) -> None:
    volume = {"name": "all", "persistentVolumeClaim": {"claimName": "llama-cache"}}
    spec = {"volumes": [volume], "containers": [{"name": "shell", "volumeMounts": [{"name": "all", "mountPath": "/all", **mount}]}]}
    metadata = {"name": "debugger", "namespace": "default"}
    bench.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    await full(fleet)
    assert (jobs(bench) == []) is blocks
    assert ("while Pod debugger mounts all of it" in bench.condition("CacheWarm").message) is blocks
    bench.cluster.remove(POD, "default", "debugger")
    await fleet.settle()
    assert len(jobs(bench)) == 1


async def test_a_claim_for_one_pod_cannot_be_cleaned(bench: Bench, fleet: Fleet) -> None:
    await full(fleet, cache={"volume": {"accessMode": "ReadWriteOncePod"}})
    assert jobs(bench) == []
    assert "no other Pod can mount it" in bench.condition("CacheWarm").message


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


def make(root: Path, name: str, *, days: float, size: int = 10) -> None:
    (root / name / "triton").mkdir(parents=True)
    (root / name / "triton" / "kernel.cubin").write_bytes(b"x" * size)
    when = time.time() - days * 86400
    for path in (root / name / "triton" / "kernel.cubin", root / name / "triton", root / name):
        os.utime(path, (when, when))


def clean(root: Path, *, keep: list[str], doomed: list[str] | None = None, share: int = 100) -> dict[str, Any]:
    """Run the program of the Job; a share of 100 is never reached, so all that may go goes."""
    variables = {
        "CLEAN_ROOT": str(root),
        "CLEAN_KEEP": json.dumps(keep),
        "CLEAN_DOOMED": json.dumps(doomed or []),
        "CLEAN_SHARE": str(share),
        "CLEAN_GRACE": "0",
    }
    report = root.parent / "report"
    done = subprocess.run(
        [sys.executable, "-c", cleaning_script()],
        env={**variables, "CLEAN_REPORT": str(report)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(report.read_text())
    assert json.loads(done.stdout) == found
    return found


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    root = tmp_path / "claim"
    root.mkdir()
    for name, days in ((OLD, 30), (OLDER, 10), (USED, 20), (GENERATION, 1)):
        make(root, name, days=days)
    for name in ("models", "models-u1000", "lost+found", "somebody-elses"):
        make(root, name, days=400)
    return root


def test_older_generations_go_first_then_the_longest_unused(volume: Path) -> None:
    assert clean(volume, keep=[USED])["removed"] == [GENERATION, OLD, OLDER]
    assert sorted(path.name for path in volume.iterdir()) == ["lost+found", "models", "models-u1000", "somebody-elses", USED]


def test_what_is_doomed_goes_although_there_is_room(volume: Path) -> None:
    assert clean(volume, keep=[USED], doomed=[OLDER, USED], share=0)["removed"] == [OLDER]
    assert (volume / USED).exists()


def test_what_was_used_a_moment_ago_stays(volume: Path) -> None:
    (volume / OLD / "triton" / "kernel.cubin").touch()
    assert OLD not in clean(volume, keep=[USED])["removed"]


def test_what_a_pod_starts_to_use_at_that_moment_is_put_back(volume: Path) -> None:
    keep = json.dumps([OLDER, USED, GENERATION])
    variables = {"CLEAN_ROOT": str(volume), "CLEAN_KEEP": keep, "CLEAN_SHARE": "100", "CLEAN_GRACE": "1"}
    with subprocess.Popen([sys.executable, "-c", cleaning_script()], env=variables, stdout=subprocess.PIPE, text=True) as running:
        # the Pod has the directory mounted, whatever it is called now
        leaving = volume / f".leaving-{OLD}" / "triton" / "kernel.cubin"
        while not leaving.exists():
            assert running.poll() is None
        leaving.touch()
        told = json.loads(running.communicate()[0])
    assert (told["removed"], told["failed"]) == ([], [OLD])
    assert (volume / OLD / "triton" / "kernel.cubin").exists()


def test_an_interrupted_removal_is_finished(volume: Path) -> None:
    (volume / OLD).rename(volume / f".leaving-{OLD}")
    clean(volume, keep=[USED, OLDER, GENERATION])
    assert not (volume / f".leaving-{OLD}").exists()


def test_a_link_is_not_followed(volume: Path) -> None:
    (volume / "v1-link-0000000a").symlink_to(volume / "models")
    clean(volume, keep=[])
    assert (volume / "models" / "triton" / "kernel.cubin").exists()
