"""What becomes of what the watches tell, and how what they do not tell is found."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.operators import llama
from vllm_operator.api import labels
from vllm_operator.cluster.client import CLAIM, DEPLOYMENT, POD, SERVICE, VLLM_DEPLOYMENT, Kind, Unavailable
from vllm_operator.cluster.mirror import Mirror
from vllm_operator.runtime.mirroring import Mirroring, Urgency, urgency_of

KEY = ("default", "llama")
KINDS = (VLLM_DEPLOYMENT, DEPLOYMENT)


class World:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.put(llama())
        self.keys: list[tuple[str, str]] = []
        self.mirror = Mirror(self.cluster)
        self.mirroring = Mirroring(self.mirror, self.keys.append, settle_seconds=0.01)

    async def start(self) -> asyncio.Task[None]:
        await self.mirroring.load(KINDS)
        return asyncio.create_task(self.mirroring.run(KINDS))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    running = await made.start()
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def deployment() -> dict[str, object]:
    marks = {labels.MANAGED_BY_LABEL: labels.MANAGED_BY, labels.INSTANCE_LABEL: "llama"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llama", "namespace": "default", "labels": marks}}


async def test_all_there_is_is_looked_at_first(world: World) -> None:
    assert world.keys == [KEY]


async def test_a_change_of_a_child_is_a_reason_to_look_at_its_owner(world: World) -> None:
    world.keys.clear()
    made = world.cluster.put(deployment())
    world.mirroring.notice(DEPLOYMENT, "ADDED", made)
    world.mirroring.notice(DEPLOYMENT, "MODIFIED", made)
    assert world.keys == [KEY]


async def test_what_belongs_to_nobody_is_passed_over(world: World) -> None:
    world.keys.clear()
    stranger = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "namespace": "default", "resourceVersion": "7"}}
    world.mirroring.notice(DEPLOYMENT, "ADDED", stranger)
    assert world.keys == []


async def test_watches_that_begin_again_may_have_missed_a_deletion(world: World) -> None:
    made = world.cluster.put(deployment())
    world.mirroring.notice(DEPLOYMENT, "ADDED", made)
    world.cluster.remove(DEPLOYMENT, "default", "llama")
    world.keys.clear()
    world.mirroring.recheck(DEPLOYMENT)
    await world.until(lambda: world.keys)
    assert world.keys == [KEY]


async def test_only_the_kind_whose_watch_has_lost_its_place_is_listed_anew(world: World) -> None:
    world.cluster.put(deployment())
    world.cluster.calls.clear()
    world.keys.clear()
    world.mirroring.recheck(DEPLOYMENT)
    await world.until(lambda: world.keys)
    assert world.cluster.calls["find"] == 1


async def test_listing_anew_is_tried_again_after_an_outage(world: World) -> None:
    world.cluster.fail("find", DEPLOYMENT, Unavailable("away"), times=3)
    world.cluster.put(llama("other"))
    world.keys.clear()
    world.mirroring.recheck(VLLM_DEPLOYMENT)
    world.mirroring.recheck(DEPLOYMENT)
    made = world.cluster.put(deployment())
    await world.until(lambda: KEY in world.keys)
    assert ("default", "other") in world.keys
    assert not world.mirror.note(DEPLOYMENT, made)


async def test_without_watches_nothing_is_answered_from_memory() -> None:
    world = World()
    running = await world.start()
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    before = world.cluster.calls["get"]
    await world.mirror.get(VLLM_DEPLOYMENT, "llama", "default")
    assert world.cluster.calls["get"] == before + 1


async def test_where_nothing_may_be_watched_all_is_looked_at_all_the_same() -> None:
    world = World()
    await world.mirroring.load(())
    assert world.keys == [KEY]


def pod(*, ready: bool = False, role: str = "engine", unschedulable: bool = False, **state: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}, {"type": "PodScheduled", "status": str(not unschedulable)}]
    metadata = {"labels": {labels.COMPONENT_LABEL: role}}
    return {"metadata": metadata, "status": {"conditions": conditions, "containerStatuses": [{"state": state}] if state else []}}


def rollout(generation: int, observed: int | None, *, replicas: int = 1, updated: int = 1, ready: int = 0) -> dict[str, Any]:
    status = {"observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated, "readyReplicas": ready}
    return {"metadata": {"generation": generation}, "spec": {"replicas": 1}, "status": status}


def known(resource: dict[str, Any] | None = None, deployment: dict[str, Any] | None = None) -> Callable[[Kind], dict[str, Any] | None]:
    return {VLLM_DEPLOYMENT: resource, DEPLOYMENT: deployment}.get


FIRST: dict[str, Any] = {"metadata": {"generation": 1}, "status": {"observedGeneration": 1}}
SERVED: dict[str, Any] = {"metadata": {"generation": 1}, "status": {"observedGeneration": 1, "url": "http://llama.default.svc:8000/v1"}}
TERMINATING = {"deletionTimestamp": "2026-11-23T05:00:00Z"}
NOW, SOON, LATER, LAST = Urgency.NOW, Urgency.SOON, Urgency.LATER, Urgency.LAST


@pytest.mark.parametrize(
    ("kind", "manifest", "of_first", "of_served"),
    [
        (POD, pod(), LATER, LAST),
        (POD, pod(waiting={"reason": "ContainerCreating"}), LATER, LAST),
        (POD, pod(unschedulable=True), LATER, LATER),
        (POD, pod(running={}), SOON, SOON),  # there is a log
        (POD, pod(running={}, ready=True), NOW, NOW),
        (POD, pod(terminated={"exitCode": 1}), NOW, NOW),
        (POD, pod(terminated={"exitCode": 0}), SOON, SOON),  # an init container, or a Job that is complete
        (POD, pod(waiting={"reason": "ImagePullBackOff"}), NOW, NOW),
        (POD, {**pod(ready=True), "metadata": TERMINATING}, LATER, LAST),  # makes room
        (DEPLOYMENT, rollout(2, 2, ready=1), NOW, NOW),  # complete
        (DEPLOYMENT, rollout(2, 2), LATER, LATER),  # a Pod tells when it is Ready, or has done so already
        (DEPLOYMENT, rollout(2, 2, updated=0, ready=1), LATER, LAST),
        (DEPLOYMENT, rollout(2, 2, replicas=2, ready=1), LATER, LAST),
        (DEPLOYMENT, {"metadata": {"generation": 1}}, LATER, LAST),  # a new one
        (DEPLOYMENT, rollout(3, 2), NOW, NOW),  # somebody has changed its spec
        (CLAIM, {"metadata": {}}, SOON, SOON),
        (CLAIM, {"metadata": TERMINATING}, NOW, NOW),
        (SERVICE, {"metadata": {}}, NOW, NOW),
        (VLLM_DEPLOYMENT, {"metadata": {}}, NOW, NOW),
        (POD, {"metadata": {}, "status": "hostile"}, LATER, LAST),
        (DEPLOYMENT, {"metadata": None, "spec": [], "status": "hostile"}, LATER, LAST),
    ],
)
def test_steps_of_a_rollout_can_be_handled_together(kind: Kind, manifest: dict[str, Any], of_first: Urgency, of_served: Urgency) -> None:
    complete = rollout(2, 2)
    assert urgency_of(kind, manifest, known(FIRST, complete)) is of_first
    assert urgency_of(kind, manifest, known(SERVED, complete)) is of_served


@pytest.mark.parametrize("counted", [None, rollout(2, 1), rollout(2, 2, replicas=2), rollout(2, 2, updated=0)])
def test_of_a_pod_that_is_ready_in_a_rollout_the_deployment_tells(counted: dict[str, Any] | None) -> None:
    """Until it has counted the Pod, the status would say that the rollout is incomplete."""
    assert urgency_of(POD, pod(running={}, ready=True), known(SERVED, counted)) is LAST
    assert urgency_of(POD, pod(running={}, ready=True, role="primer"), known(SERVED, counted)) is NOW


def test_a_pod_that_is_gone_makes_room_and_what_else_is_gone_is_put_right_at_once() -> None:
    assert urgency_of(POD, pod(ready=True), known(FIRST, rollout(2, 2)), deleted=True) is LATER
    assert urgency_of(DEPLOYMENT, rollout(2, 2), known(FIRST), deleted=True) is NOW


async def test_progress_and_unchanged_objects_take_their_time() -> None:
    cluster, now, later, last, unchanged = FakeCluster(), list[Any](), list[Any](), list[Any](), list[Any]()
    cluster.put(llama())
    mirroring = Mirroring(Mirror(cluster), now.append, add_later=later.append, add_last=last.append, add_unchanged=unchanged.append)
    await mirroring.load(KINDS)
    assert (now, later, last, unchanged) == ([KEY], [], [], [])  # no status is about it
    made = cluster.put(deployment())
    mirroring.notice(DEPLOYMENT, "MODIFIED", made)
    assert (now, later, last) == ([KEY], [KEY], [])
    made = cluster.put({**deployment(), "status": {"observedGeneration": made["metadata"]["generation"]}})
    made = made | {"status": rollout(1, made["metadata"]["generation"], ready=1)["status"], "spec": {"replicas": 1}}
    mirroring.notice(DEPLOYMENT, "MODIFIED", made)
    assert (now, later, last) == ([KEY, KEY], [KEY], [])
    mirroring.notice(DEPLOYMENT, "DELETED", made)
    assert (now, later, last) == ([KEY, KEY, KEY], [KEY], [])
    generation = cluster.put(llama())["metadata"]["generation"]
    cluster.set_status(VLLM_DEPLOYMENT, "default", "llama", {"observedGeneration": generation, "url": "http://llama.default.svc:8000/v1"})
    await mirroring.load(KINDS)
    assert unchanged == [KEY]
    mirroring.notice(DEPLOYMENT, "ADDED", cluster.put(deployment()))
    assert (now, later, last) == ([KEY, KEY, KEY], [KEY], [KEY])
