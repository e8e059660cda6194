"""What is answered from memory, and that it is never older than what has happened."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies

from support.fake_cluster import FakeCluster
from support.operators import controlled_by_deployment, llama
from vllm_operator.api import labels
from vllm_operator.controller.object_cache import ObjectCache, name_of
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, POD, PRESET, VLLM_DEPLOYMENT, Kind, NotFound, Unavailable

KINDS = (VLLM_DEPLOYMENT, DEPLOYMENT, CLAIM)
OF_LLAMA = {labels.MANAGED_BY_LABEL: labels.MANAGED_BY, labels.INSTANCE_LABEL: "llama"}


def child(kind: Kind = DEPLOYMENT, name: str = "llama", instance: str = "llama", **content: Any) -> dict[str, Any]:
    marks = {**OF_LLAMA, labels.INSTANCE_LABEL: instance}
    metadata = {"name": name, "namespace": "default", "labels": marks}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **content}


manifests = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats(allow_nan=False) | strategies.text(),
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.text(), inner, max_size=3),
)


class World:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cache = ObjectCache(self.cluster)

    async def names(self, kind: Kind = DEPLOYMENT) -> list[str]:
        return [item["metadata"]["name"] for item in await self.cache.find(kind, "default", labels=OF_LLAMA)]

    async def load(self, kinds: Sequence[Kind] = KINDS) -> set[tuple[str, str]]:
        changed: set[tuple[str, str]] = set()
        for kind in kinds:
            changed |= await self.cache.refresh(kind)
        return changed

    def calls(self) -> int:
        return self.cluster.calls["get"] + self.cluster.calls["find"]


@pytest.fixture
async def world() -> World:
    made = World()
    made.cluster.put(llama())
    made.cluster.put(child())
    await made.load()
    made.cluster.calls.clear()
    return made


async def test_an_object_and_its_children_are_read_without_a_request(world: World) -> None:
    assert (await world.cache.get(VLLM_DEPLOYMENT, "llama", "default"))["spec"] == llama()["spec"]
    assert await world.names() == ["llama"]
    assert await world.names(CLAIM) == []
    assert world.calls() == 0


async def test_what_is_not_watched_or_not_ours_is_asked_for(world: World) -> None:
    world.cluster.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "theirs", "namespace": "default"}})
    assert await world.names(POD) == []
    assert (await world.cache.get(CLAIM, "theirs", "default"))["metadata"]["name"] == "theirs"
    assert len(await world.cache.find(DEPLOYMENT, "default")) == 1
    assert world.calls() == 3


async def test_that_an_object_is_gone_is_not_believed_unseen(world: World) -> None:
    last = await world.cache.get(VLLM_DEPLOYMENT, "llama", "default")
    world.cache.note(VLLM_DEPLOYMENT, {**last, "metadata": {**last["metadata"], "resourceVersion": "1000"}}, deleted=True)
    assert (await world.cache.get(VLLM_DEPLOYMENT, "llama", "default"))["spec"] == last["spec"]
    world.cluster.remove(VLLM_DEPLOYMENT, "default", "llama")
    with pytest.raises(NotFound):
        await world.cache.get(VLLM_DEPLOYMENT, "llama", "default")


async def test_get_returns_a_copy(world: World) -> None:
    (await world.cache.get(VLLM_DEPLOYMENT, "llama", "default"))["spec"].clear()
    assert (await world.cache.get(VLLM_DEPLOYMENT, "llama", "default"))["spec"] == llama()["spec"]


async def test_an_event_is_news_once(world: World) -> None:
    pushed = world.cluster.put(child(CLAIM, "cache"))
    assert world.cache.note(CLAIM, pushed)
    assert await world.names(CLAIM) == ["cache"]
    assert not world.cache.note(CLAIM, pushed)


async def test_an_event_that_was_overtaken_changes_nothing(world: World) -> None:
    old = world.cluster.put(child(spec={"replicas": 1}))
    new = world.cluster.put(child(spec={"replicas": 2}))
    assert world.cache.note(DEPLOYMENT, new)
    assert not world.cache.note(DEPLOYMENT, old)
    [found] = await world.cache.find(DEPLOYMENT, "default", labels=OF_LLAMA)
    assert found["spec"] == {"replicas": 2}


async def test_a_deleted_object_does_not_come_back_with_an_old_event(world: World) -> None:
    old = world.cluster.put(child())
    last = world.cluster.put(child(spec={"replicas": 2}))
    assert world.cache.note(DEPLOYMENT, last, deleted=True)
    assert not world.cache.note(DEPLOYMENT, old)
    assert await world.names() == []
    assert world.cache.note(DEPLOYMENT, world.cluster.put(child()))
    assert await world.names() == ["llama"]


async def test_what_was_written_is_read_at_once_and_its_event_says_that_there_is_more_to_do(world: World) -> None:
    made = await world.cache.apply(child(CLAIM, "cache"), manager="us")
    assert await world.names(CLAIM) == ["cache"]
    assert world.cache.note(CLAIM, made)
    assert not world.cache.note(CLAIM, made)


async def test_our_own_status_is_no_news(world: World) -> None:
    written = await world.cache.apply_status({**llama(), "status": {"replicas": 1}}, manager="us")
    assert not world.cache.note(VLLM_DEPLOYMENT, written)
    assert (await world.cache.get(VLLM_DEPLOYMENT, "llama", "default"))["status"] == {"replicas": 1}


async def test_our_own_status_is_news_if_it_shows_a_change_that_was_not_seen_before(world: World) -> None:
    edited = world.cluster.put({**llama(), "spec": {**llama()["spec"], "replicas": 5}})
    written = await world.cache.apply_status({**llama(), "status": {"replicas": 1}}, manager="us")
    assert not world.cache.note(VLLM_DEPLOYMENT, edited)
    assert world.cache.note(VLLM_DEPLOYMENT, written)
    assert (await world.cache.get(VLLM_DEPLOYMENT, "llama", "default"))["spec"]["replicas"] == 5


async def test_listing_anew_finds_what_the_watches_have_missed(world: World) -> None:
    world.cluster.remove(DEPLOYMENT, "default", "llama")
    world.cluster.put(child(name="new", instance="other"))
    world.cluster.put(llama("third"))
    assert await world.load() == {("default", "llama"), ("default", "other"), ("default", "third")}
    assert await world.names() == []
    assert await world.load() == set()
    assert sorted(map(name_of, await world.cache.find(VLLM_DEPLOYMENT))) == [("default", "llama"), ("default", "third")]


async def test_a_list_of_several_pages_is_kept_whole_and_read_from_memory_only_afterwards() -> None:
    world = World()
    world.cluster.page = 2
    world.cluster.put(llama())
    for name in "abcde":
        world.cluster.put(child(name=name))
    world.cluster.fail("page", DEPLOYMENT, Unavailable("away"))
    with pytest.raises(Unavailable):
        await world.load()
    assert len(await world.names()) == 5
    assert world.cluster.calls["find"] == 3, "after half of a list, reads go to the API server"
    world.cluster.remove(DEPLOYMENT, "default", "a")
    await world.load()
    world.cluster.calls.clear()
    assert await world.names() == ["b", "c", "d", "e"]
    assert world.calls() == 0


async def test_a_list_that_fails_leaves_what_was_known(world: World) -> None:
    world.cluster.fail("find", DEPLOYMENT, Unavailable("away"))
    with pytest.raises(Unavailable):
        await world.load()
    assert await world.names() == ["llama"]


async def test_a_child_that_changes_hands_is_found_with_its_new_owner_only_and_both_are_looked_at(world: World) -> None:
    keys = world.cache.note(DEPLOYMENT, world.cluster.put(child(instance="other")))
    assert keys == {("default", "llama"), ("default", "other")}
    assert await world.names() == []


async def test_a_child_that_loses_its_label_is_forgotten_and_its_former_owner_looked_at(world: World) -> None:
    bare = world.cluster.put({**child(), "metadata": {"name": "llama", "namespace": "default"}})
    assert world.cache.note(DEPLOYMENT, bare) == {("default", "llama")}
    assert await world.names() == []


async def test_a_pod_that_its_replica_set_releases_is_forgotten(world: World) -> None:
    marks = {labels.NAME_LABEL: labels.NAME, labels.INSTANCE_LABEL: "llama", labels.COMPONENT_LABEL: "engine"}
    metadata = {"name": "a", "namespace": "default", **controlled_by_deployment("llama", marks)}
    world.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    theirs = {"name": "b", "namespace": "default", "labels": marks}
    world.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": theirs})
    await world.load((*KINDS, POD))
    by_label = {labels.NAME_LABEL: labels.NAME, labels.INSTANCE_LABEL: "llama"}
    assert [found["metadata"]["name"] for found in await world.cache.find(POD, "default", labels=by_label)] == ["a"]
    released = world.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "ownerReferences": []}})
    assert world.cache.note(POD, released) == {("default", "llama")}
    assert await world.cache.find(POD, "default", labels=by_label) == []


async def test_an_edit_of_a_deployment_is_news(world: World) -> None:
    edited = world.cluster.edit(DEPLOYMENT, "default", "llama", {"spec": {"paused": True}})
    assert world.cache.note(DEPLOYMENT, edited)


async def test_before_the_first_list_everything_is_read_from_the_api_server() -> None:
    world = World()
    world.cluster.put(llama())
    world.cluster.put(child())
    assert await world.names() == ["llama"]
    await world.cache.get(VLLM_DEPLOYMENT, "llama", "default")
    assert world.calls() == 2


async def test_every_change_of_a_deployment_is_news(world: World) -> None:
    down = world.cluster.set_status(DEPLOYMENT, "default", "llama", {"observedGeneration": 1, "replicas": 1, "readyReplicas": 0})
    assert world.cache.note(DEPLOYMENT, down) == {("default", "llama")}
    assert (await world.cache.get(DEPLOYMENT, "llama", "default"))["status"] == down["status"]


@given(content=manifests)
async def test_an_object_is_read_as_it_was_noted(content: Any) -> None:
    cache = ObjectCache(FakeCluster())
    await cache.refresh(DEPLOYMENT)
    written = child(content=content)
    written["metadata"]["resourceVersion"] = "1"
    cache.note(DEPLOYMENT, written)
    assert await cache.get(DEPLOYMENT, "llama", "default") == written


async def test_a_preset_is_its_own_key_and_presets_are_listed_from_memory() -> None:
    cluster = FakeCluster()
    cache = ObjectCache(cluster)
    for namespace in ("a", "b"):
        cluster.put(
            {"apiVersion": PRESET.api_version, "kind": PRESET.kind, "metadata": {"name": "fast", "namespace": namespace}, "spec": {}}
        )
    assert await cache.refresh(PRESET) == {("a", "fast"), ("b", "fast")}
    cluster.calls.clear()
    assert [found["metadata"]["namespace"] for found in await cache.find(PRESET, "a")] == ["a"]
    assert len(await cache.find(PRESET)) == 2
    assert cluster.calls["find"] == 0


async def test_an_object_nested_deeper_than_python_serializes_loses_its_deep_levels_only(world: World) -> None:
    deep: Any = {}
    for _ in range(20_000):
        deep = {"a": deep}
    noted = world.cluster.put(child(spec={"replicas": 2}))
    world.cache.note(DEPLOYMENT, {**noted, "spec": {"replicas": 2, "template": deep}})
    assert (await world.cache.get(DEPLOYMENT, "llama", "default"))["spec"]["replicas"] == 2
