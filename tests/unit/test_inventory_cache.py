"""Reading the nodes once for all who want to know, also while the API server does not answer."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from vllm_operator.controller.inventory_reader import InventoryCache
from vllm_operator.inventory.pools import Inventory
from vllm_operator.kube.client import NODE, Forbidden, Kind, Manifest, NotFound, Unavailable

GPU_NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"nvidia.com/gpu.present": "true"}}}
ONE = Inventory(boots={"n": "1"})


class SlowCluster(FakeCluster):
    """Answers a list of nodes when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.asked = 0

    async def find(self, kind: Kind, namespace: str | None = None, **query: Any) -> Sequence[Manifest]:
        if kind == NODE:
            self.asked += 1
            await self.answers.wait()
        return await super().find(kind, namespace, **query)


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.cluster = SlowCluster()
        self.cluster.put(GPU_NODE)
        self.cache = InventoryCache(
            self.cluster, lambda nodes, slices, node_pools: Inventory(boots={"n": str(len(nodes))}), clock=lambda: self.now
        )

    async def waiting(self, number: int, max_age: float | None = None) -> list[asyncio.Task[Inventory]]:
        """Reads that have begun."""
        tasks = [asyncio.create_task(self.cache.read(max_age=max_age)) for _ in range(number)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return tasks


@pytest.fixture
async def world() -> World:
    return World()


async def test_all_who_wait_share_one_read(world: World) -> None:
    tasks = await world.waiting(24)
    world.cluster.answers.set()
    assert await asyncio.gather(*tasks) == [ONE] * 24
    assert world.cluster.asked == 1


@pytest.mark.parametrize("error", [Unavailable("timed out"), Forbidden("no")])
async def test_they_share_its_error_and_do_not_wait_for_one_time_out_each(world: World, error: Unavailable | Forbidden) -> None:
    tasks = await world.waiting(24)
    world.cluster.fail("find", NODE, error)
    world.cluster.answers.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in found} == {type(error)}
    assert world.cluster.asked == 1
    assert await world.cache.read() == ONE, "the next one asks again"


async def test_where_reading_takes_long_it_is_done_less_often(world: World) -> None:
    [first] = await world.waiting(1)
    world.now += 0.5
    world.cluster.answers.set()
    assert await first == ONE
    world.now += 4
    await world.cache.read(max_age=1.0)
    assert world.cluster.asked == 1
    world.now += 1
    await world.cache.read(max_age=1.0)
    assert world.cluster.asked == 2


@pytest.mark.parametrize(("limit", "asked"), [(0.0, 2), (1.0, 1)])
async def test_urgent_reads_take_a_third_of_the_time_except_where_the_content_is_known_to_be_old(
    world: World, limit: float, asked: int
) -> None:
    [first] = await world.waiting(1)
    world.now += 2
    world.cluster.answers.set()
    assert await first == ONE
    world.now += 3
    await world.cache.read(max_age=0.0, limit=limit)
    assert world.cluster.asked == asked
    world.now += 1
    await world.cache.read(max_age=0.0, limit=limit)
    assert world.cluster.asked == asked + 1


async def test_that_one_is_cancelled_does_not_concern_the_others(world: World) -> None:
    first, second = await world.waiting(2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    world.cluster.answers.set()
    assert await second == ONE


async def test_a_read_that_began_too_long_ago_is_followed_by_another(world: World) -> None:
    [first] = await world.waiting(1)
    world.now += 5
    [second] = await world.waiting(1, max_age=1.0)
    world.cluster.answers.set()
    assert (await first, await second) == (ONE, ONE)
    assert world.cluster.asked == 2


async def test_what_is_fresh_enough_is_not_read_again(world: World) -> None:
    world.cluster.answers.set()
    for _ in range(3):
        assert await world.cache.read() == ONE
    assert world.cluster.asked == 1
    world.cluster.absent.add(NODE)
    world.now += 31
    with pytest.raises(NotFound):
        await world.cache.read()


async def test_a_caller_that_has_just_read_does_not_wait_for_the_next_read(world: World) -> None:
    """It decides before others do, so that two plans are not promised the same GPU."""

    async def read_twice() -> int:
        for _ in range(2):
            await world.cache.read(max_age=1.0)
        return world.cluster.asked

    first = asyncio.create_task(read_twice())
    [other] = await world.waiting(1, max_age=0.0)
    world.cluster.answers.set()
    assert await first == 1
    assert await other == ONE
    assert world.cluster.asked == 2
