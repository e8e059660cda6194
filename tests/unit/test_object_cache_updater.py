"""What becomes of what the watches tell, and how what they do not tell is found."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from support.fake_cluster import FakeCluster
from support.operators import llama
from vllm_operator.api import labels
from vllm_operator.controller.object_cache import ObjectCache, ObjectCacheUpdater
from vllm_operator.controller.queue import Priority
from vllm_operator.kube.client import DEPLOYMENT, PRESET, VLLM_DEPLOYMENT, ClusterError, Unavailable

KEY = ("default", "llama")
KINDS = (VLLM_DEPLOYMENT, DEPLOYMENT, PRESET)


class World:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.put(llama())
        self.keys: list[tuple[str, str]] = []
        self.edited: list[tuple[str, str]] = []
        self.resynced: list[tuple[str, str]] = []
        self.cache = ObjectCache(self.cluster)
        self.updater = ObjectCacheUpdater(
            cache=self.cache,
            add=self._add,
            settle_seconds=0.01,
        )

    def _add(self, key: tuple[str, str], priority: Priority) -> None:
        if priority is Priority.RESYNC:
            self.resynced.append(key)
            return
        self.keys.append(key)
        if priority is Priority.CHANGE:
            self.edited.append(key)

    def begin_watches(self) -> None:
        for kind in KINDS:
            self.updater.recheck(kind)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    running = asyncio.create_task(made.updater.run(KINDS))
    made.begin_watches()
    await made.updater.loaded.wait()
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def deployment() -> dict[str, object]:
    marks = {labels.MANAGED_BY_LABEL: labels.MANAGED_BY, labels.INSTANCE_LABEL: "llama"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llama", "namespace": "default", "labels": marks}}


async def test_all_there_is_is_looked_at_first(world: World) -> None:
    assert world.resynced == [KEY]


async def test_a_change_of_a_child_is_a_reason_to_look_at_its_owner(world: World) -> None:
    world.keys.clear()
    made = world.cluster.put(deployment())
    world.updater.notice(DEPLOYMENT, made, deleted=False)
    world.updater.notice(DEPLOYMENT, made, deleted=False)
    assert (world.keys, world.edited) == ([KEY], [])


async def test_what_belongs_to_nobody_is_passed_over(world: World) -> None:
    world.keys.clear()
    stranger = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "namespace": "default", "resourceVersion": "7"}}
    world.updater.notice(DEPLOYMENT, stranger, deleted=False)
    assert world.keys == []


async def test_watches_that_begin_again_may_have_missed_a_deletion(world: World) -> None:
    made = world.cluster.put(deployment())
    world.updater.notice(DEPLOYMENT, made, deleted=False)
    world.cluster.remove(DEPLOYMENT, "default", "llama")
    world.keys.clear()
    world.updater.recheck(DEPLOYMENT)
    await world.until(lambda: world.keys)
    assert world.keys == [KEY]


async def test_only_the_kind_whose_watch_has_lost_its_place_is_listed_anew(world: World) -> None:
    world.cluster.put(deployment())
    world.cluster.calls.clear()
    world.keys.clear()
    world.updater.recheck(DEPLOYMENT)
    await world.until(lambda: world.keys)
    assert world.cluster.calls["find"] == 1


@pytest.mark.parametrize("error", [Unavailable("away"), Unavailable("the provided continue parameter is too old")])
async def test_listing_anew_is_tried_again_after_an_outage_and_when_a_list_takes_too_long(world: World, error: ClusterError) -> None:
    world.cluster.fail("find", DEPLOYMENT, error, times=3)
    world.cluster.put(llama("other"))
    world.keys.clear()
    world.updater.recheck(VLLM_DEPLOYMENT)
    world.updater.recheck(DEPLOYMENT)
    made = world.cluster.put(deployment())
    await world.until(lambda: KEY in world.keys)
    assert ("default", "other") in world.keys
    assert not world.cache.note(DEPLOYMENT, made)


async def test_nothing_is_reconciled_before_all_kinds_have_been_listed() -> None:
    world = World()
    running = asyncio.create_task(world.updater.run(KINDS))
    world.updater.recheck(VLLM_DEPLOYMENT)
    await world.until(lambda: world.cache.is_complete(VLLM_DEPLOYMENT))
    assert (world.resynced, world.updater.loaded.is_set()) == ([], False)
    world.begin_watches()
    await world.updater.loaded.wait()
    assert (world.keys, world.resynced) == ([], [KEY])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_change_of_a_preset_is_a_reason_to_look_at_the_objects_that_name_it(world: World) -> None:
    world.updater.notice(VLLM_DEPLOYMENT, world.cluster.put(llama("user", presetRef={"name": "fast"})), deleted=False)
    for noted in (world.keys, world.edited):
        noted.clear()
    for name in ("fast", "unused"):
        preset = {"apiVersion": PRESET.api_version, "kind": PRESET.kind, "metadata": {"name": name, "namespace": "default"}, "spec": {}}
        world.updater.notice(PRESET, world.cluster.put(preset), deleted=False)
    assert world.keys == world.edited == [("default", "user")]
