"""One event for each thing that happens, counted where it happens again."""

from datetime import UTC, datetime, timedelta

import pytest

from support.fake_cluster import FakeCluster
from vllm_operator.api.conditions import EventDraft
from vllm_operator.kube.client import EVENT, Conflict, Forbidden, Unavailable
from vllm_operator.kube.events import record_event

NOW = datetime(2026, 11, 21, 14, 10, tzinfo=UTC)
RESOURCE = {"metadata": {"name": "llama", "namespace": "models", "uid": "uid-1"}}


def crash(run: int, *, series: str = "crash-pod-a-CudaOutOfMemory", message: str = "") -> EventDraft:
    return EventDraft("Warning", "CudaOutOfMemory", message or f"crashed {run + 1} times", f"crash-pod-a-{run}", series)


async def record(cluster: FakeCluster, *occurrences: EventDraft) -> list[str | None]:
    """Ten seconds apart."""
    return [
        await record_event(cluster, RESOURCE, occurrence, now=NOW + timedelta(seconds=10 * number))
        for number, occurrence in enumerate(occurrences)
    ]


async def test_a_crash_that_repeats_itself_is_one_event_whose_count_rises() -> None:
    cluster = FakeCluster()
    assert await record(cluster, crash(0), crash(1), crash(2)) == ["create", "patch", "patch"]
    [event] = cluster.all(EVENT)
    assert (event["count"], event["message"]) == (3, "crashed 3 times")
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2026-11-21T14:10:00Z", "2026-11-21T14:10:20Z")


async def test_an_operator_that_starts_again_counts_nothing_twice() -> None:
    cluster = FakeCluster()
    assert await record(cluster, crash(0), crash(0), crash(1), crash(1)) == ["create", None, "patch", None]
    assert cluster.all(EVENT)[0]["count"] == 2


async def test_another_pod_and_another_cause_have_events_of_their_own() -> None:
    cluster = FakeCluster()
    other_pod = crash(0, series="crash-pod-b-CudaOutOfMemory")
    other_cause = EventDraft("Warning", "NoKvCacheMemory", "text", "crash-pod-a-1", "crash-pod-a-NoKvCacheMemory")
    await record(cluster, crash(0), other_pod, other_cause)
    assert sorted(event["count"] for event in cluster.all(EVENT)) == [1, 1, 1]


async def test_what_happens_once_is_not_counted() -> None:
    cluster = FakeCluster()
    once = EventDraft("Normal", "Planned", "text", "planned-1")
    assert await record(cluster, once, once) == ["create", None]


async def test_an_event_that_somebody_else_changed_meanwhile_is_counted_all_the_same() -> None:
    cluster = FakeCluster()
    await record(cluster, crash(0))
    cluster.fail("patch", EVENT, Conflict("changed"))
    assert await record(cluster, crash(1)) == ["patch"]


async def test_without_the_permission_to_count_the_first_event_stays() -> None:
    cluster = FakeCluster()
    await record(cluster, crash(0))
    cluster.fail("patch", EVENT, Forbidden("no"))
    assert await record(cluster, crash(1)) == [None]
    assert cluster.all(EVENT)[0]["count"] == 1


async def test_an_outage_is_for_the_caller_to_try_again() -> None:
    cluster = FakeCluster()
    cluster.fail("create", EVENT, Unavailable("down"))
    with pytest.raises(Unavailable):
        await record(cluster, crash(0))


async def test_an_event_without_annotations_is_counted_all_the_same() -> None:
    """Somebody has removed them."""
    cluster = FakeCluster()
    await record(cluster, crash(0))
    [event] = cluster.all(EVENT)
    del event["metadata"]["annotations"]
    cluster.put(event)
    assert await record(cluster, crash(1), crash(1)) == ["patch", None]
    assert cluster.all(EVENT)[0]["count"] == 2
