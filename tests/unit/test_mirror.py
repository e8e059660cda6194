"""What is answered from memory, and that it is never older than what has happened."""

import marshal
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, strategies

from support.fake_cluster import FakeCluster
from support.operators import controlled_by_deployment, llama
from vllm_operator.api import labels
from vllm_operator.cluster.client import CLAIM, DEPLOYMENT, POD, VLLM_DEPLOYMENT, Gone, Key, Kind, NotFound, Unavailable
from vllm_operator.cluster.mirror import Mirror

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
        self.mirror = Mirror(self.cluster)

    async def names(self, kind: Kind = DEPLOYMENT) -> list[str]:
        return [item["metadata"]["name"] for item in await self.mirror.find(kind, "default", labels=OF_LLAMA)]

    async def load(self, kinds: Sequence[Kind] = KINDS) -> set[tuple[str, str]]:
        changed: set[tuple[str, str]] = set()
        await self.mirror.load(kinds, changed=changed.add)
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
    assert (await world.mirror.get(VLLM_DEPLOYMENT, "llama", "default"))["spec"] == llama()["spec"]
    assert await world.names() == ["llama"]
    assert await world.names(CLAIM) == []
    assert world.calls() == 0


async def test_before_the_first_list_and_without_watches_everything_is_asked_for(world: World) -> None:
    world.mirror.drop()
    assert await world.names() == ["llama"]
    await world.mirror.get(VLLM_DEPLOYMENT, "llama", "default")
    assert world.calls() == 2


async def test_what_is_not_watched_or_not_ours_is_asked_for(world: World) -> None:
    world.cluster.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "theirs", "namespace": "default"}})
    assert await world.names(POD) == []
    assert (await world.mirror.get(CLAIM, "theirs", "default"))["metadata"]["name"] == "theirs"
    assert len(await world.mirror.find(DEPLOYMENT, "default")) == 1
    assert world.calls() == 3


async def test_that_an_object_is_gone_is_not_believed_unseen(world: World) -> None:
    last = await world.mirror.get(VLLM_DEPLOYMENT, "llama", "default")
    world.mirror.note(VLLM_DEPLOYMENT, {**last, "metadata": {**last["metadata"], "resourceVersion": "1000"}}, deleted=True)
    assert (await world.mirror.get(VLLM_DEPLOYMENT, "llama", "default"))["spec"] == last["spec"]
    world.cluster.remove(VLLM_DEPLOYMENT, "default", "llama")
    with pytest.raises(NotFound):
        await world.mirror.get(VLLM_DEPLOYMENT, "llama", "default")


async def test_who_reads_may_change_what_was_read(world: World) -> None:
    (await world.mirror.get(VLLM_DEPLOYMENT, "llama", "default"))["spec"].clear()
    assert (await world.mirror.get(VLLM_DEPLOYMENT, "llama", "default"))["spec"] == llama()["spec"]


def large(index: int) -> dict[str, Any]:
    spec = {"template": {str(number): f"value {number * 7919}" for number in range(300)}}
    return child(name=f"other-{index}", instance=f"other-{index}", spec=spec)


@pytest.mark.parametrize("limit", [0, 100_000])
async def test_objects_that_are_alike_take_a_tenth_of_their_size_except_the_last_ones(limit: int) -> None:
    cluster = FakeCluster()
    mirror = Mirror(cluster, uncompressed_bytes=limit)
    await mirror.load([DEPLOYMENT], changed=lambda key: None)
    written = [cluster.put(large(index)) for index in range(50)]
    for manifest in written:
        mirror.note(DEPLOYMENT, manifest)
    kept = list(mirror._kept[DEPLOYMENT].values())
    taken = [len(each.packed or b"") for each in kept]
    whole = [len(marshal.dumps(each.manifest())) for each in kept]
    assert sum(taken) < sum(whole) / 10 + limit
    assert sum(len(each.packed or b"") for each in kept if each.dictionary is None) <= limit
    assert (kept[-1].dictionary is None) == (limit > 0)
    assert [each.manifest() for each in kept] == written


async def test_an_object_that_changes_often_is_compressed_when_it_rests() -> None:
    mirror = Mirror(FakeCluster(), uncompressed_bytes=15_000)
    await mirror.load([DEPLOYMENT], changed=lambda key: None)
    for version in range(1, 10):
        for number in (0, version):
            manifest = large(number)
            manifest["metadata"]["resourceVersion"] = str(version)
            mirror.note(DEPLOYMENT, manifest)
    compressed = [place[1] for place, kept in mirror._kept[DEPLOYMENT].items() if kept.dictionary is not None]
    assert compressed == [f"other-{number}" for number in range(1, 9)]


async def test_a_list_finds_what_is_gone_also_if_it_was_compressed_during_the_list() -> None:
    cluster = FakeCluster(page=1)
    mirror = Mirror(cluster, uncompressed_bytes=50_000)
    for index in range(5):
        cluster.put(large(index))
    await mirror.load([DEPLOYMENT], changed=lambda key: None)
    cluster.remove(DEPLOYMENT, "default", "other-0")
    for index in range(10, 20):
        cluster.put(large(index))
    changed = set[Key]()
    await mirror.refresh([DEPLOYMENT], changed=changed.add)
    assert ("default", "other-0") in changed
    assert ("default", "other-0") not in mirror._kept[DEPLOYMENT]


@given(first=manifests, second=manifests)
def test_an_object_is_read_as_it_was_kept_whatever_came_before_it(first: Any, second: Any) -> None:
    mirror = Mirror(FakeCluster())
    mirror._kept = {DEPLOYMENT: {}}
    for index, content in enumerate((first, second)):
        written = child(name=str(index), content=content)
        written["metadata"]["resourceVersion"] = "1"
        mirror.note(DEPLOYMENT, written)
        kept = mirror._kept[DEPLOYMENT]["default", str(index)]
        assert kept.manifest() == written
        mirror._compress(DEPLOYMENT, kept)
        assert kept.manifest() == written


async def test_an_event_is_news_once(world: World) -> None:
    pushed = world.cluster.put(child(CLAIM, "cache"))
    assert world.mirror.note(CLAIM, pushed)
    assert await world.names(CLAIM) == ["cache"]
    assert not world.mirror.note(CLAIM, pushed)


async def test_an_event_that_was_overtaken_changes_nothing(world: World) -> None:
    old = world.cluster.put(child(spec={"replicas": 1}))
    new = world.cluster.put(child(spec={"replicas": 2}))
    assert world.mirror.note(DEPLOYMENT, new)
    assert not world.mirror.note(DEPLOYMENT, old)
    [found] = await world.mirror.find(DEPLOYMENT, "default", labels=OF_LLAMA)
    assert found["spec"] == {"replicas": 2}


async def test_a_deleted_object_does_not_come_back_with_an_old_event(world: World) -> None:
    old = world.cluster.put(child())
    last = world.cluster.put(child(spec={"replicas": 2}))
    assert world.mirror.note(DEPLOYMENT, last, deleted=True)
    assert not world.mirror.note(DEPLOYMENT, old)
    assert await world.names() == []
    assert world.mirror.note(DEPLOYMENT, world.cluster.put(child()))
    assert await world.names() == ["llama"]


async def test_what_was_written_is_read_at_once_and_its_event_says_that_there_is_more_to_do(world: World) -> None:
    made = await world.mirror.apply(child(CLAIM, "cache"), manager="us")
    assert await world.names(CLAIM) == ["cache"]
    assert world.mirror.note(CLAIM, made)
    assert not world.mirror.note(CLAIM, made)


async def test_our_own_status_is_no_news(world: World) -> None:
    written = await world.mirror.apply_status({**llama(), "status": {"replicas": 1}}, manager="us")
    assert not world.mirror.note(VLLM_DEPLOYMENT, written)
    assert (await world.mirror.get(VLLM_DEPLOYMENT, "llama", "default"))["status"] == {"replicas": 1}


async def test_our_own_status_is_news_if_it_shows_a_change_that_was_not_seen_before(world: World) -> None:
    edited = world.cluster.put({**llama(), "spec": {**llama()["spec"], "replicas": 5}})
    written = await world.mirror.apply_status({**llama(), "status": {"replicas": 1}}, manager="us")
    assert not world.mirror.note(VLLM_DEPLOYMENT, edited)
    assert world.mirror.note(VLLM_DEPLOYMENT, written)
    assert (await world.mirror.get(VLLM_DEPLOYMENT, "llama", "default"))["spec"]["replicas"] == 5


async def test_listing_anew_finds_what_the_watches_have_missed(world: World) -> None:
    world.cluster.remove(DEPLOYMENT, "default", "llama")
    world.cluster.put(child(name="new", instance="other"))
    world.cluster.put(llama("third"))
    assert await world.load() == {("default", "llama"), ("default", "other"), ("default", "third")}
    assert await world.names() == []
    assert await world.load() == set()
    assert sorted(await world.mirror.list_keys()) == [("default", "llama"), ("default", "third")]


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


async def test_a_list_whose_version_is_forgotten_in_the_middle_is_begun_again() -> None:
    world = World()
    world.cluster.page = 2
    for name in "abcde":
        world.cluster.put(child(name=name))
    world.cluster.fail("page", DEPLOYMENT, Gone("the provided continue parameter is too old"), times=2)
    await world.load()
    assert await world.names() == ["a", "b", "c", "d", "e"]
    world.cluster.fail("page", DEPLOYMENT, Gone("the provided continue parameter is too old"), times=3)
    with pytest.raises(Gone):
        await world.load()


async def test_watches_are_told_where_the_lists_end(world: World) -> None:
    world.cluster.put(child(name="new"))
    version = max(int(item["metadata"]["resourceVersion"]) for item in world.cluster.all(DEPLOYMENT))
    await world.load((DEPLOYMENT,))
    assert world.mirror.versions() == {(DEPLOYMENT, None): str(version)}


async def test_a_list_that_fails_leaves_what_was_known(world: World) -> None:
    world.cluster.fail("find", DEPLOYMENT, Unavailable("away"))
    with pytest.raises(Unavailable):
        await world.load()
    assert await world.names() == ["llama"]


async def test_a_child_that_changes_hands_is_found_with_its_new_owner_only_and_both_are_looked_at(world: World) -> None:
    keys = world.mirror.note(DEPLOYMENT, world.cluster.put(child(instance="other")))
    assert keys == {("default", "llama"), ("default", "other")}
    assert await world.names() == []


async def test_a_child_that_loses_its_label_is_forgotten_and_its_former_owner_looked_at(world: World) -> None:
    bare = world.cluster.put({**child(), "metadata": {"name": "llama", "namespace": "default"}})
    assert world.mirror.note(DEPLOYMENT, bare) == {("default", "llama")}
    assert await world.names() == []


async def test_a_pod_that_its_replica_set_releases_is_forgotten(world: World) -> None:
    marks = {labels.NAME_LABEL: labels.NAME, labels.INSTANCE_LABEL: "llama", labels.COMPONENT_LABEL: "engine"}
    metadata = {"name": "a", "namespace": "default", **controlled_by_deployment("llama", marks)}
    world.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    theirs = {"name": "b", "namespace": "default", "labels": marks}
    world.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": theirs})
    await world.load((*KINDS, POD))
    by_label = {labels.NAME_LABEL: labels.NAME, labels.INSTANCE_LABEL: "llama"}
    assert [found["metadata"]["name"] for found in await world.mirror.find(POD, "default", labels=by_label)] == ["a"]
    released = world.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "ownerReferences": []}})
    assert world.mirror.note(POD, released) == {("default", "llama")}
    assert await world.mirror.find(POD, "default", labels=by_label) == []


async def test_a_kind_that_may_not_be_watched_any_more_is_asked_for(world: World) -> None:
    await world.load((VLLM_DEPLOYMENT,))
    world.cluster.calls.clear()
    assert await world.names() == ["llama"]
    assert world.calls() == 1


@pytest.mark.parametrize("verb", ["apply_status", "patch"])
async def test_an_object_that_a_write_does_not_find_is_not_answered_from_memory(verb: str) -> None:
    """A watch that was interrupted says nothing about an object that was deleted meanwhile, if no other of its kind is left."""
    world = World()
    world.cluster.put(llama())
    await world.load()
    found = await world.mirror.get(VLLM_DEPLOYMENT, "llama", "default")
    world.cluster.remove(VLLM_DEPLOYMENT, "default", "llama")
    patch = partial(world.mirror.patch, VLLM_DEPLOYMENT, "llama", "default", [], manager="test")
    apply_status = partial(world.mirror.apply_status, {**found, "status": {}}, manager="test")
    with pytest.raises(NotFound):
        await (patch() if verb == "patch" else apply_status())
    with pytest.raises(NotFound):
        await world.mirror.get(VLLM_DEPLOYMENT, "llama", "default")


async def test_a_deployment_that_was_written_allows_no_next_step_before_its_controller_has_seen_it(world: World) -> None:
    written = await world.mirror.apply(child(spec={"replicas": 3}), manager="us")
    assert not world.mirror.note(DEPLOYMENT, written)
    seen = world.cluster.put({**child(spec={"replicas": 3}), "status": {"observedGeneration": 1}})
    assert world.mirror.note(DEPLOYMENT, seen) == {("default", "llama")}


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        ({"readyReplicas": 1, "availableReplicas": 1, "unavailableReplicas": None}, False),
        ({"conditions": [{"type": "Progressing", "status": "True", "lastUpdateTime": "2026-11-23T05:00:00Z"}]}, False),
        ({"observedGeneration": 2}, True),
        ({"updatedReplicas": 1}, True),
        ({"replicas": 2}, True),
        ({"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]}, True),
        ({"conditions": "hostile"}, False),
    ],
)
async def test_what_a_deployment_counts_of_its_pods_is_no_news_beside_the_pods(world: World, change: dict[str, Any], is_news: bool) -> None:
    world.mirror.note(DEPLOYMENT, world.cluster.set_status(DEPLOYMENT, "default", "llama", {"observedGeneration": 1, "replicas": 1}))
    counted = world.cluster.set_status(DEPLOYMENT, "default", "llama", {"observedGeneration": 1, "replicas": 1, **change})
    assert bool(world.mirror.note(DEPLOYMENT, counted)) is is_news
    assert (await world.mirror.get(DEPLOYMENT, "llama", "default"))["status"] == counted["status"]


async def test_an_edit_of_a_deployment_is_news(world: World) -> None:
    edited = world.cluster.edit(DEPLOYMENT, "default", "llama", {"spec": {"paused": True}})
    assert world.mirror.note(DEPLOYMENT, edited)


async def test_the_resource_and_its_deployment_can_be_looked_up_without_a_request(world: World) -> None:
    before = dict(world.cluster.calls)
    found = [world.mirror.kept(kind, ("default", "llama")) for kind in (VLLM_DEPLOYMENT, DEPLOYMENT)]
    assert [manifest and manifest["kind"] for manifest in found] == ["VLLMDeployment", "Deployment"]
    assert world.mirror.kept(VLLM_DEPLOYMENT, ("default", "unknown")) is None
    assert world.mirror.kept(CLAIM, ("default", "llama")) is None
    assert dict(world.cluster.calls) == before
