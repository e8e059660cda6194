"""Requests for logs that are refused, fail, or are not answered: they are few, and wait for nobody."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from support.followed_logs import FOREVER, KEY, World
from support.logs import RUNNING, TERMINATED, line, pod
from vllm_operator.controller import log_follower
from vllm_operator.kube.client import Invalid, Unavailable
from vllm_operator.logs.state import LogProblem, UnreadLog

NOT_STARTED = Invalid('container "vllm" in pod "p" is waiting to start: ContainerCreating')
DOWN = Unavailable("dial tcp 10.0.0.7:10250: connect: connection refused")
NEVER = 1000.0


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(monkeypatch, RETRY_SECONDS=(0.01, NEVER))
    yield made
    await made.followers.close()


def asked_for(world: World) -> list[str]:
    return [request.pod for request in world.cluster.log_requests]


async def test_a_log_on_a_dead_node_is_requested_rarely_and_the_status_says_why(world: World) -> None:
    world.cluster.script_log("default", "p0", *[[DOWN]] * 9)
    world.cluster.script_log("default", "p1", [line(1, "b"), FOREVER])
    world.show(pod("p0", state=TERMINATED), pod("p1", state=RUNNING))
    await world.until(lambda: asked_for(world).count("p0") == 2 and world.followers.caught_up(KEY))
    await asyncio.sleep(0.1)
    assert sorted(asked_for(world)) == ["p0", "p0", "p1"]
    assert world.followers.unread(KEY) == {("uid-of-p0", 0): UnreadLog(LogProblem.UNREACHABLE, str(DOWN))}


async def test_a_log_is_read_when_its_kubelet_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.cluster.script_log("default", "p", [line(1, "a")], *[[DOWN]] * 5, [line(1, "a"), line(2, "b"), FOREVER])
    world.show(pod("p", state=RUNNING))
    await world.until(lambda: world.texts() == ["a", "b"])
    assert world.followers.unread(KEY) == {}
    await world.followers.close()


@pytest.mark.parametrize("streams", [10, 1], ids=["followed", "read in turn"])
async def test_a_log_that_a_kubelet_refuses_is_requested_rarely(streams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, streams=streams, RETRY_SECONDS=(0.01, NEVER), TURN_SECONDS=0.01)
    for name in ("p0", "p1"):
        world.cluster.script_log("default", name, *[[NOT_STARTED]] * 99)
    world.show(pod("p0", state=RUNNING), pod("p1", state=RUNNING))
    await world.until(lambda: len(world.cluster.log_requests) == 4)
    await asyncio.sleep(0.2)
    assert sorted(asked_for(world)) == ["p0", "p0", "p1", "p1"]
    await world.followers.close()


async def test_a_log_that_a_kubelet_does_not_follow_is_read_again_and_again(world: World) -> None:
    no_inotify_instance = Invalid("failed to create fsnotify watcher: too many open files")
    first, second = line(1, "a"), line(2, "b")
    world.cluster.script_log("default", "p", [no_inotify_instance], [first], [first, no_inotify_instance], [first, second])
    world.show(pod(state=RUNNING))
    await world.until(lambda: world.texts() == ["a", "b"])
    assert [request.follow for request in world.cluster.log_requests[:4]] == [True, False, True, False]


async def test_a_refused_log_is_read_at_once_when_its_run_has_ended(world: World) -> None:
    world.cluster.script_log("default", "p", [NOT_STARTED], [NOT_STARTED], [line(1, "crash Boom")])
    world.show(pod(state=RUNNING))
    await world.until(lambda: len(world.cluster.log_requests) >= 2)
    world.show(pod(state=TERMINATED))
    await world.until(lambda: (state := world.state()) and state.crash)


async def test_nobody_waits_for_a_refused_log_of_a_pod_that_serves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "LINGER_SECONDS", 0.05)
    world.cluster.script_log("default", "p", *[[NOT_STARTED]] * 9)
    world.show(pod(state=RUNNING))
    await world.until(lambda: len(world.cluster.log_requests) == 2)
    world.show(pod(state=RUNNING, ready=True))
    await world.until(lambda: world.followers.streams() == (0, 0))
    assert len(world.cluster.log_requests) == 2


async def test_the_log_of_an_engine_that_is_silent_at_first_is_read_with_its_first_line(world: World) -> None:
    world.cluster.script_log("default", "p", [0.3, line(1, "stage WeightLoad"), FOREVER])
    world.show(pod(state=RUNNING))
    await world.until(lambda: world.texts() == ["stage WeightLoad"])
    assert len(world.cluster.log_requests) == 1


async def test_a_silent_log_is_requested_again_without_a_pause(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "SILENT_SECONDS", 0.02)
    world.cluster.script_log("default", "p", [FOREVER], [FOREVER], [line(1, "a"), FOREVER])
    world.show(pod(state=RUNNING))
    await world.until(lambda: world.texts() == ["a"])
    assert not world.followers.unread(KEY)


async def test_silent_logs_give_way_when_there_are_more_than_places(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, streams=2, TURN_SECONDS=0.05)
    names = ["p0", "p1", "p2"]
    for name in names[:2]:
        world.cluster.script_log("default", name, *[[FOREVER]] * 99)
    world.cluster.script_log("default", "p2", *[(line(1, "a"), FOREVER)] * 99)
    world.show(*(pod(name, state=RUNNING) for name in names[:2]))
    await world.until(lambda: world.followers.streams() == (2, 0))
    world.show(*(pod(name, state=RUNNING) for name in names))
    await world.until(lambda: world.texts(2) == ["a"])
    await world.followers.close()


async def test_a_silent_log_is_read_to_its_end_when_its_run_has_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "LINGER_SECONDS", 0.05)
    world.cluster.script_log("default", "p", [FOREVER], [line(1, "crash Boom")])
    world.show(pod(state=RUNNING))
    await world.until(lambda: world.cluster.log_requests)
    world.show(pod(state=TERMINATED))
    await world.until(lambda: (state := world.state()) and state.crash)
