"""When events are asked for, and when not: each question costs the API server a walk through all of them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from vllm_operator.kube.client import EVENT, Forbidden, Unavailable
from vllm_operator.kube.events import MAX_CACHE_SECONDS, MIN_AGE_SECONDS, MIN_CACHE_SECONDS, EventReader, needs_explanation

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)


def pod(*containers: dict[str, Any], node: str = "n", age: float = 60.0, phase: str = "Pending") -> dict[str, Any]:
    created = (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = {"name": "p", "namespace": "default", "uid": "u", "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase, "containerStatuses": list(containers)}}


def waiting(reason: str) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason}}}


def ended(code: int, reason: str = "Error", *, ready: bool = False) -> dict[str, Any]:
    return {"ready": ready, "state": {"running": {}}, "lastState": {"terminated": {"exitCode": code, "reason": reason}}}


CREATING = pod(waiting("ContainerCreating"))


@pytest.mark.parametrize(
    ("manifest", "want"),
    [
        pytest.param(CREATING, True, id="image or volume"),
        pytest.param(pod(waiting("PodInitializing")), True, id="behind an init container"),
        pytest.param(pod(), True, id="on a node, nothing known yet"),
        pytest.param(pod(node=""), False, id="the scheduler says it in a condition"),
        pytest.param(pod({"state": {"running": {}}}, phase="Running"), False, id="running"),
        pytest.param(pod(waiting("ImagePullBackOff")), False, id="the kubelet says it itself"),
        pytest.param(pod(ended(137)), True, id="perhaps a probe"),
        pytest.param(pod(ended(143)), True, id="perhaps a probe, politely"),
        pytest.param(pod(ended(0, "Completed")), True, id="perhaps a probe, and it obeyed"),
        pytest.param(pod(ended(137, "OOMKilled")), False, id="out of memory"),
        pytest.param(pod(ended(1)), False, id="it ended by itself"),
        pytest.param(pod(ended(137, ready=True)), False, id="it serves again"),
        pytest.param({"metadata": {}}, False, id="no status at all"),
        pytest.param({"spec": {"nodeName": "n"}, "status": {"containerStatuses": [None, 5, {"state": []}]}}, False, id="of another shape"),
        pytest.param({"spec": [], "status": 5}, False, id="no Pod"),
    ],
)
def test_which_pods_puzzle(manifest: dict[str, Any], want: bool) -> None:
    assert needs_explanation(manifest) is want


def cluster_with_event() -> FakeCluster:
    cluster = FakeCluster()
    about = {"kind": "Pod", "name": "p", "uid": "u"}
    metadata = {"name": "e", "namespace": "default"}
    cluster.put({"apiVersion": "v1", "kind": EVENT.kind, "metadata": metadata, "reason": "Pulling", "involvedObject": about})
    return cluster


@pytest.mark.parametrize(
    ("age", "seconds"),
    [
        pytest.param(6, MIN_CACHE_SECONDS, id="of a young Pod"),
        pytest.param(100, 25, id="of one that takes longer"),
        pytest.param(3600, MAX_CACHE_SECONDS, id="of one that takes for ever"),
    ],
)
async def test_an_answer_is_good_for_some_seconds(age: float, seconds: float) -> None:
    cluster, clock = cluster_with_event(), Clock()
    reader = EventReader(cluster, clock=clock, now=lambda: NOW)
    creating = pod(waiting("ContainerCreating"), age=age)
    events, look_again = await reader.read([creating], ())
    assert ([event["reason"] for event in events], look_again) == (["Pulling"], seconds)
    assert (await reader.read([creating], ()))[0] == events
    assert cluster.calls["find"] == 1
    clock.seconds += seconds
    await reader.read([creating], ())
    assert cluster.calls["find"] == 2


async def test_what_is_young_is_not_asked_about_but_looked_at_again() -> None:
    cluster, clock = cluster_with_event(), Clock()
    reader = EventReader(cluster, clock=clock, now=clock.now)
    assert await reader.read([pod(waiting("ContainerCreating"), age=0.5)], ()) == ((), MIN_AGE_SECONDS)
    assert cluster.calls["find"] == 0


async def test_a_clock_that_differs_stops_nothing() -> None:
    cluster, clock = cluster_with_event(), Clock()
    reader = EventReader(cluster, clock=clock, now=clock.now)
    events, _ = await reader.read([pod(waiting("ContainerCreating"), age=-3600)], ())
    assert len(events) == 1


@pytest.mark.parametrize(("phase", "calls"), [("Pending", 1), ("Bound", 0)])
async def test_a_claim_is_asked_about_while_it_is_not_bound(phase: str, calls: int) -> None:
    cluster, clock = cluster_with_event(), Clock()
    reader = EventReader(cluster, clock=clock, now=clock.now)
    claim = {"metadata": {"name": "c", "namespace": "default", "uid": "c"}, "status": {"phase": phase}}
    await reader.read([], (claim,))
    assert cluster.calls["find"] == calls


async def test_without_the_permission_messages_say_less() -> None:
    cluster, clock = cluster_with_event(), Clock()
    cluster.fail("find", EVENT, Forbidden("no"))
    assert await EventReader(cluster, clock=clock, now=clock.now).read([CREATING], ()) == ((), None)


async def test_events_that_cannot_be_read_now_stop_nothing_and_what_was_read_stays() -> None:
    """Many clusters keep events in an etcd of their own."""
    cluster, clock = cluster_with_event(), Clock()
    reader = EventReader(cluster, clock=clock, now=clock.now)
    before, _ = await reader.read((CREATING,), ())
    clock.seconds += MAX_CACHE_SECONDS
    cluster.fail("find", EVENT, Unavailable("etcdserver: request timed out"))
    assert (await reader.read((CREATING,), ()))[0] == before
    unknown = EventReader(cluster, clock=clock, now=clock.now)
    cluster.fail("find", EVENT, Unavailable("etcdserver: request timed out"))
    events, again = await unknown.read((CREATING,), ())
    assert events == ()
    assert again is not None


@pytest.mark.parametrize("time", ["2026-11-21T12:00:00", "yesterday", None, 5])
async def test_an_object_without_a_time_that_can_be_read_is_asked_about(time: object) -> None:
    odd = {**CREATING, "metadata": {**CREATING["metadata"], "creationTimestamp": time}}
    assert len((await EventReader(cluster_with_event(), clock=Clock(), now=lambda: NOW).read((odd,), ()))[0]) == 1
