"""A volume that has become read-only is mounted anew: on a cluster in memory, with the real planner and reporter."""

from dataclasses import replace
from typing import Any

import pytest

from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.api import labels
from vllm_operator.cluster.client import CLAIM, Forbidden
from vllm_operator.startup.state import Crash, Stage, StartupState

TOLD = "OSError: [Errno 30] Read-only file system: '/cache/vllm'"
READ_ONLY = Crash(signature="CacheDirNotWritable", cause="It is read-only.", remedy=None, reference=None, line=TOLD, excerpt=TOLD)


def crash(fleet: Fleet, pod: str, *, restarts: int = 0, why: Crash = READ_ONLY) -> None:
    """The engine of a Pod dies because it cannot write."""
    ended = {"exitCode": 1, "reason": "Error", "startedAt": fleet.time(), "finishedAt": fleet.time()}
    fleet.show(pod, {"type": "Ready", "status": "False"}, state={"terminated": ended}, restarts=restarts)
    told = StartupState(stage=Stage.TORCH_COMPILE, crash=why, last_line_at=fleet.bench.now)
    fleet.bench.logs.told[(fleet.uid(pod), restarts)] = told


async def crashed(fleet: Fleet) -> str:
    """A Pod starts, and finds the volume read-only."""
    pod = fleet.start(created=fleet.bench.now)
    fleet.bench.pass_time(30)
    crash(fleet, pod)
    await fleet.settle()
    return pod


async def test_the_pods_are_taken_away_and_started_again(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    pod = await crashed(fleet)
    assert fleet.replicas() == 0
    assert "has become read-only. The operator deletes the Pods" in bench.message("CacheWarm")
    bench.restart()
    bench.pass_time(30)
    await fleet.settle()
    assert fleet.replicas() == 0, "not before the volume is free, also after a restart of the operator"
    fleet.gone(pod)
    await fleet.settle()
    assert fleet.replicas() == 1
    fleet.ready(fleet.start(created=bench.now))
    await fleet.settle()
    assert bench.condition("Ready").status == "True"
    assert "read-only" not in bench.message("CacheWarm")


async def test_what_does_not_help_is_not_done_for_ever(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    for _ in range(2):
        pod = await crashed(fleet)
        assert fleet.replicas() == 0
        fleet.gone(pod)
        await fleet.settle()
    await crashed(fleet)
    assert fleet.replicas() == 1
    assert "read-only again after two remounts" in bench.message("CacheWarm")
    assert len(fleet.annotations()[labels.REMOUNTED_ANNOTATION].split()) == 2


async def test_replicas_that_serve_are_left_alone(fleet: Fleet) -> None:
    await fleet.serve(replicas=2, cache={"priming": "Never"})
    fleet.ready(fleet.start(created=fleet.bench.now))
    await crashed(fleet)
    assert fleet.replicas() == 2
    assert labels.REMOUNTED_ANNOTATION not in fleet.annotations()


async def test_another_folder_that_is_read_only_is_not_mounted_anew(fleet: Fleet) -> None:
    await fleet.serve()
    pod = fleet.start(created=fleet.bench.now)
    fleet.bench.pass_time(30)
    crash(fleet, pod, why=replace(READ_ONLY, excerpt="OSError: [Errno 30] Read-only file system: '/home/vllm/.cache'"))
    await fleet.settle()
    assert fleet.replicas() == 1
    assert labels.REMOUNTED_ANNOTATION not in fleet.annotations()


async def test_what_the_pod_template_says_is_not_tried_but_reported(bench: Bench, fleet: Fleet) -> None:
    claim = {"claimName": "llama-cache", "readOnly": True}
    await fleet.serve(podTemplate={"spec": {"volumes": [{"name": "cache", "persistentVolumeClaim": claim}]}})
    await crashed(fleet)
    assert fleet.replicas() == 1
    assert "spec.podTemplate mounts the caches or the weights read-only" in bench.message("CacheWarm")


@pytest.mark.parametrize("field", ["cache", "weights"])
async def test_a_claim_that_can_only_be_read_is_reported_before_a_pod_starts(bench: Bench, fleet: Fleet, field: str) -> None:
    spec: dict[str, Any] = {"accessModes": ["ReadOnlyMany"]}
    metadata = {"name": "golden", "namespace": "default"}
    bench.cluster.put({"apiVersion": "v1", "kind": CLAIM.kind, "metadata": metadata, "spec": spec, "status": {"phase": "Bound"}})
    named: dict[str, Any] = {field: {"claimName": "golden"}}
    await fleet.serve(**named)
    warm = bench.condition("CacheWarm")
    assert (warm.status, warm.reason) == ("False", "ClaimReadOnly")
    assert f"spec.{field}.claimName" in warm.message
    assert bench.condition("Ready").reason == "ClaimReadOnly"


async def test_a_recorded_time_in_the_future_takes_no_pod_away(fleet: Fleet) -> None:
    await fleet.serve()
    fleet.annotate({labels.REMOUNTED_ANNOTATION: "2099-01-01T00:00:00Z"})
    fleet.start(created=fleet.bench.now)
    await fleet.settle()
    assert fleet.replicas() == 1


async def test_recorded_times_in_the_future_do_not_count_as_attempts(fleet: Fleet) -> None:
    await fleet.serve()
    fleet.annotate({labels.REMOUNTED_ANNOTATION: "2099-01-01T00:00:00Z 2099-01-02T00:00:00Z"})
    await crashed(fleet)
    assert fleet.replicas() == 0


async def test_what_cannot_be_recorded_is_not_done(bench: Bench, fleet: Fleet) -> None:
    """Without its record, nothing would limit the number of remounts."""
    await fleet.serve()
    bench.cluster.fail("patch", CLAIM, Forbidden("a policy forbids it"), times=1000)
    await crashed(fleet)
    assert fleet.replicas() == 1
    assert "read-only" not in bench.message("CacheWarm")
