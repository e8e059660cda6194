"""The Lease: when it may be taken, how it is kept, and that a process that has lost it writes nothing."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from vllm_operator.controller import leadership
from vllm_operator.controller.leadership import Leadership, LeadershipLost, lease_spec, read_lease
from vllm_operator.controller.preconditions import Readiness
from vllm_operator.kube.api_client import Fence
from vllm_operator.kube.client import LEASE, Forbidden, NotLeading, Unavailable

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    "spec",
    [None, [], "text", {"holderIdentity": None}, {"leaseDurationSeconds": "many", "leaseTransitions": -1}, {"leaseDurationSeconds": True}],
    ids=str,
)
def test_a_lease_may_hold_anything(spec: Any) -> None:
    record = read_lease({"metadata": {}, "spec": spec})
    assert record.holder == ""
    assert record.seconds > 0
    assert record.transitions >= 0


class World:
    """Operators that share a Lease in a cluster in memory, whose clock a test moves."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.cluster = FakeCluster()
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, identity: str) -> tuple[Leadership, Fence, Readiness, asyncio.Task[None]]:
        fence, readiness = Fence(self.clock), Readiness()
        made = Leadership(self.cluster, fence, readiness, lease="system/vllm-operator", identity=identity)
        task = asyncio.create_task(made.run())
        self.tasks.append(task)
        return made, fence, readiness, task

    def put(self, spec: dict[str, Any]) -> None:
        metadata = {"namespace": "system", "name": "vllm-operator"}
        self.cluster.put({"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec})

    def spec(self) -> dict[str, Any]:
        [lease] = self.cluster.all(LEASE)
        spec: dict[str, Any] = lease["spec"]
        return spec


@pytest.fixture
async def world(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(leadership, "RETRY_SECONDS", 0.01)
    made = World(clock)
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def until(task: asyncio.Task[None], leadership: Leadership) -> None:
    async with asyncio.timeout(5):
        await leadership.begun.wait()
    assert not task.done()


@pytest.mark.parametrize(
    ("holder", "lasts", "seen_for", "free"),
    [
        ("them", 15, 0.0, False),
        ("them", 15, 14.9, False),
        ("them", 15, 15.0, True),
        ("", 1, 0.0, True),
        ("them", 60, 59.0, False),
        ("us", 15, 0.0, True),
    ],
    ids=["just seen", "not yet expired", "expired", "released", "a longer one", "of an earlier container of this Pod"],
)
async def test_when_a_lease_may_be_taken(world: World, clock: Clock, holder: str, lasts: int, seen_for: float, free: bool) -> None:
    world.put(lease_spec(holder, NOW, seconds=lasts))
    made, _, _, _ = world.start("us")
    await asyncio.sleep(0.05)
    clock.now += seen_for
    await asyncio.sleep(0.05)
    assert made.begun.is_set() is free


async def test_the_first_leads_and_the_second_stands_by_until_the_lease_is_released(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first, fence, readiness, task = world.start("one")
    await until(task, first)
    assert caplog.messages == ["leading: this operator (one) holds the Lease system/vllm-operator"]
    assert fence.is_open()
    assert (world.spec()["holderIdentity"], world.spec()["leaseDurationSeconds"]) == ("one", 15)
    second, other, standing, waiting = world.start("two")
    await asyncio.sleep(0.05)
    assert (second.begun.is_set(), other.is_open()) == (False, False)
    assert standing.standby == "standing by: one holds the Lease system/vllm-operator"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await first.release()
    assert not fence.is_open()
    await until(waiting, second)
    assert (world.spec()["holderIdentity"], world.spec()["leaseTransitions"]) == ("two", 1)
    assert standing.standby == ""
    assert not readiness.missing
    assert caplog.messages[-1] == "leading: this operator (two) holds the Lease system/vllm-operator after one, which released it"
    assert 0 < first.since <= second.since


async def test_a_holder_that_is_gone_is_followed_when_its_lease_expires(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world.put(lease_spec("gone", NOW))
    made, fence, _, task = world.start("one")
    await asyncio.sleep(0.05)
    assert not made.begun.is_set()
    clock.now += 15
    world.cluster.edit(LEASE, "system", "vllm-operator", {"metadata": {"labels": {"any": "thing"}}})  # a look, and no renewal
    await until(task, made)
    async with asyncio.timeout(5):  # an attempt that began before the clock moved opens it with its next renewal only
        while not fence.is_open():  # noqa: ASYNC110 - a fence tells nobody
            await asyncio.sleep(0.01)
    assert world.spec()["leaseTransitions"] == 1
    assert caplog.messages[-1].endswith(" after gone, which did not renew it for 15 s")


async def test_a_process_that_stood_still_and_was_replaced_ends_without_a_write(world: World, clock: Clock) -> None:
    first, fence, _, task = world.start("one")
    await until(task, first)
    clock.now += 60  # nothing in it ran meanwhile
    assert not fence.is_open()
    world.cluster.edit(LEASE, "system", "vllm-operator", {"spec": lease_spec("two", NOW)})
    writes = len(world.cluster.writes)
    with pytest.raises(LeadershipLost, match="two has taken the Lease"):
        await asyncio.wait_for(task, 5)
    assert len(world.cluster.writes) == writes
    assert not fence.is_open()
    await first.release()
    assert len(world.cluster.writes) == writes


async def test_a_process_that_is_asked_to_stop_while_it_stands_still_does_not_touch_the_lease(world: World, clock: Clock) -> None:
    first, _, _, task = world.start("one")
    await until(task, first)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    clock.now += 60
    writes = len(world.cluster.writes)
    await first.release()
    assert len(world.cluster.writes) == writes


async def test_a_process_that_stood_still_and_was_not_replaced_goes_on(world: World, clock: Clock) -> None:
    first, fence, _, task = world.start("one")
    await until(task, first)
    clock.now += 60
    async with asyncio.timeout(5):
        while not fence.is_open():  # noqa: ASYNC110 - a fence tells nobody
            await asyncio.sleep(0.01)
    assert not task.done()


async def test_two_processes_of_one_identity_do_not_both_lead(world: World) -> None:
    first, fence, _, task = world.start("pod")
    await until(task, first)
    second, other, _, waiting = world.start("pod")
    await until(waiting, second)
    assert world.spec()["leaseTransitions"] == 0  # only another holder is counted
    with pytest.raises(LeadershipLost):
        await asyncio.wait_for(task, 5)
    assert (fence.is_open(), other.is_open()) == (False, True)


async def test_a_lease_that_somebody_labels_is_renewed_on(world: World) -> None:
    first, fence, _, task = world.start("one")
    await until(task, first)
    for number in range(5):
        world.cluster.edit(LEASE, "system", "vllm-operator", {"metadata": {"labels": {"n": str(number)}}})
        await asyncio.sleep(0.02)
    assert fence.is_open()
    assert not task.done()


async def test_a_lease_that_is_deleted_ends_its_holder(world: World) -> None:
    first, fence, _, task = world.start("one")
    await until(task, first)
    world.cluster.remove(LEASE, "system", "vllm-operator")
    with pytest.raises(LeadershipLost, match="was deleted"):
        await asyncio.wait_for(task, 5)
    assert not fence.is_open()


async def test_a_holder_that_cannot_renew_stops_writing_before_another_may_take_over(world: World, clock: Clock) -> None:
    first, fence, readiness, task = world.start("one")
    await until(task, first)
    world.cluster.fail("*", None, Unavailable("connection refused"), times=10_000)
    clock.now += 9
    await asyncio.sleep(0.05)
    assert fence.is_open()
    clock.now += 1
    assert not fence.is_open()  # five seconds before the Lease expires
    async with asyncio.timeout(5):
        while "lease" not in readiness.missing:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    assert "the operator writes nothing: connection refused" in readiness.missing["lease"]
    assert not task.done()
    world.cluster.heal()
    async with asyncio.timeout(5):
        while not fence.is_open():  # noqa: ASYNC110 - a fence tells nobody
            await asyncio.sleep(0.01)
    assert "lease" not in readiness.missing


async def test_a_missing_permission_is_named(world: World) -> None:
    world.cluster.fail("*", LEASE, Forbidden("leases is forbidden", verb="get", resource="leases"), times=10_000)
    made, fence, readiness, task = world.start("one")
    async with asyncio.timeout(5):
        while "lease" not in readiness.missing:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    assert "may not get the Lease system/vllm-operator" in readiness.missing["lease"]
    assert not fence.is_open()
    world.cluster.heal()
    await until(task, made)


def test_a_fence_says_for_how_long_it_is_open(clock: Clock) -> None:
    fence = Fence(clock)
    with pytest.raises(NotLeading):
        fence.seconds_left()
    fence.writes_until = clock.now + 5
    assert fence.seconds_left() == 5
    fence.close()
    with pytest.raises(NotLeading):
        fence.seconds_left()
