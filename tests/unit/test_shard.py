"""Which namespaces an operator serves that is one of several, and what becomes of a namespace that moves to another one."""

import asyncio
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.operators import llama
from vllm_operator.cluster.client import NAMESPACE, VLLM_DEPLOYMENT, NotFound, Unavailable
from vllm_operator.cluster.mirror import Mirror
from vllm_operator.cluster.shard import ServedNamespaces, Shard
from vllm_operator.runtime.mirroring import Mirroring

KINDS = (VLLM_DEPLOYMENT,)


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        ("team=a", Shard("team", "a")),
        ("vllm-operator.dev/shard=b-1", Shard("vllm-operator.dev/shard", "b-1")),
        ("team=", Shard("team", "")),
        ("!team", Shard("team", None)),
    ],
)
def test_a_shard_is_a_value_of_a_label_or_its_absence(text: str, shard: Shard) -> None:
    assert Shard.parse(text) == shard


@pytest.mark.parametrize("text", ["", "team", "=a", "!", "!team=a", "team!=a", "team in (a)", "a=b,c=d", "a = b", "-a=b", "a=b\n"])
def test_any_other_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither label=value nor !label"):
        Shard.parse(text)


def test_shards_with_values_of_one_label_share_no_namespace() -> None:
    shards = [Shard("team", None), Shard("team", ""), Shard("team", "a"), Shard("team", "b")]
    for labels in ({}, {"team": ""}, {"team": "a"}, {"team": "b"}, {"other": "a"}):
        assert sum(shard.has(labels) for shard in shards) == 1
    assert not any(shard.has({"team": "c"}) for shard in shards)


def namespace(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


class World:
    """Two namespaces, `mine` and `theirs`, each with an object."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.keys: list[tuple[str, str]] = []
        for name, team in (("mine", "a"), ("theirs", "b")):
            self.cluster.put(namespace(name, team=team))
            self.cluster.put(self.of(name))
        shard = ServedNamespaces(Shard("team", "a"))
        self.mirror = Mirror(self.cluster, serves=shard.serves)
        self.mirroring = Mirroring(self.mirror, self.keys.append, shard=shard, settle_seconds=0.001)

    def of(self, name: str) -> dict[str, Any]:
        made = llama("model")
        return {**made, "metadata": {**made["metadata"], "namespace": name}}

    def label(self, name: str, **labels: str) -> dict[str, Any]:
        return self.cluster.put(namespace(name, **labels))

    async def until(self, key: tuple[str, str]) -> None:
        async with asyncio.timeout(5):
            while key not in self.keys:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)


@pytest.fixture
async def world() -> Any:
    made = World()
    await made.mirroring.load(KINDS)
    running = asyncio.create_task(made.mirroring.run(KINDS))
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_objects_of_other_namespaces_do_not_exist(world: World) -> None:
    assert world.keys == [("mine", "model")]
    changed = world.cluster.edit(VLLM_DEPLOYMENT, "theirs", "model", {"spec": {"replicas": 2}})
    world.mirroring.notice(VLLM_DEPLOYMENT, "MODIFIED", changed)
    assert world.keys == [("mine", "model")]
    assert await world.mirror.list_keys() == [("mine", "model")]
    with pytest.raises(NotFound):
        await world.mirror.get(VLLM_DEPLOYMENT, "model", "theirs")


async def test_a_namespace_that_joins_brings_its_objects_whatever_happened_to_them_before(world: World) -> None:
    world.mirroring.notice(NAMESPACE, "MODIFIED", world.label("theirs", team="a"))
    await world.until(("theirs", "model"))
    assert (await world.mirror.get(VLLM_DEPLOYMENT, "model", "theirs"))["metadata"]["namespace"] == "theirs"
    assert sorted(await world.mirror.list_keys()) == [("mine", "model"), ("theirs", "model")]


async def test_a_namespace_that_leaves_is_left_to_the_other_operator(world: World) -> None:
    world.keys.clear()
    world.mirroring.notice(NAMESPACE, "MODIFIED", world.label("mine", team="b"))
    await world.until(("mine", "model"))
    assert await world.mirror.list_keys() == []
    with pytest.raises(NotFound):
        await world.mirror.get(VLLM_DEPLOYMENT, "model", "mine")


async def test_a_watch_of_namespaces_that_lost_its_place_is_followed_by_a_list_that_is_tried_again(world: World) -> None:
    world.label("theirs", team="a")
    world.cluster.fail("find", NAMESPACE, Unavailable("away"), times=2)
    world.mirroring.recheck(NAMESPACE)
    await world.until(("theirs", "model"))


async def test_a_change_of_another_label_moves_nothing(world: World) -> None:
    world.cluster.calls.clear()
    world.mirroring.notice(NAMESPACE, "MODIFIED", world.label("mine", team="a", other="x"))
    world.mirroring.notice(NAMESPACE, "DELETED", world.label("theirs", team="b", other="x"))
    await asyncio.sleep(0.01)
    assert world.cluster.calls["find"] == 0


async def test_the_watch_of_namespaces_begins_where_their_list_ends(world: World) -> None:
    assert world.mirroring.versions()[NAMESPACE, None] == world.mirroring.versions()[VLLM_DEPLOYMENT, None]
