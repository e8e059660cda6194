"""The log of a run that has ended: read to its end, told from the log of the next run, given up only where there is none."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.followed_logs import FOREVER, KEY, World
from support.logs import RUNNING, line, pod
from vllm_operator.kube.client import ClusterError, Invalid, NotFound, Unavailable
from vllm_operator.logs.state import Stage


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(monkeypatch)
    yield made
    await made.followers.close()


ENDED: dict[str, Any] = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2026-11-21T12:00:10Z"}}
NEXT: list[Any] = [line(11, "stage WeightLoad"), FOREVER]
"""The log of the next run."""
WHOLE = [line(1, "a"), line(2, "crash Boom")]


def crashed_with(world: World, run: int = 0) -> str | None:
    state = world.state(run)
    return state.crash.signature if state is not None and state.crash is not None else None


async def test_the_log_of_the_next_run_is_not_taken_for_that_of_a_run_that_was_restarted_meanwhile(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "a")], NEXT, NEXT)
    world.cluster.script_log("default", "p", WHOLE, previous=True)
    world.show(pod(state=RUNNING))  # the kubelet has restarted it, which the API server does not know yet
    await world.until(lambda: world.texts() == ["a", "stage WeightLoad"])
    world.show(pod(state=RUNNING, restarts=1, last=ENDED))
    await world.until(lambda: crashed_with(world) == "Boom" and world.state(1))
    before, present = world.state(0), world.state(1)
    assert before is not None
    assert before.stage is not Stage.WEIGHT_LOAD
    assert present is not None
    assert present.stage is Stage.WEIGHT_LOAD


async def test_the_log_of_the_next_run_is_not_taken_for_that_of_a_run_that_was_over_at_once(world: World) -> None:
    world.cluster.script_log("default", "p", NEXT, NEXT)
    world.cluster.script_log("default", "p", WHOLE, previous=True)
    world.show(pod(state=RUNNING))
    await world.until(lambda: world.texts() == ["stage WeightLoad"])
    world.show(pod(state=RUNNING, restarts=1, last=ENDED))
    await world.until(lambda: crashed_with(world) == "Boom")


async def test_the_end_of_a_log_is_not_looked_for_in_that_of_the_next_run(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "a")], *[[]] * 8, NEXT)
    world.cluster.script_log("default", "p", WHOLE, previous=True)
    world.show(pod(state=RUNNING))
    world.cluster.put(pod(state=ENDED))
    await world.until(lambda: world.parsers and world.parsers[0].ended)
    world.show(pod(state=RUNNING, restarts=1, last=ENDED))
    await world.until(lambda: crashed_with(world) == "Boom")


async def test_the_previous_log_of_a_pod_that_restarted_twice_is_not_that_of_the_run_before(world: World) -> None:
    world.cluster.script_log("default", "p", NEXT)
    world.cluster.script_log("default", "p", *[[line(20, "crash Other")]] * 9, previous=True)
    world.show(pod(state=RUNNING, restarts=1, last=ENDED))
    await world.until(lambda: world.followers.caught_up(KEY))
    await world.until(lambda: world.state(1))
    assert world.state(0) is None


@pytest.mark.parametrize("errors", [[Unavailable("500")] * 8, [Invalid("not found")] * 7, [NotFound("( pods/log p)")]])
async def test_a_log_of_an_ended_run_that_cannot_be_read_at_first_is_tried_again(world: World, errors: list[ClusterError]) -> None:
    world.cluster.script_log("default", "p", *[[error] for error in errors], WHOLE)
    world.show(pod(state=ENDED))
    await world.until(lambda: crashed_with(world) == "Boom")


async def test_a_log_that_breaks_off_at_its_end_is_read_to_the_end(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "a")], [Unavailable("500")], [Unavailable("500")], WHOLE)
    world.show(pod(state=RUNNING))
    world.cluster.put(pod(state=ENDED))
    await world.until(lambda: crashed_with(world) == "Boom")


async def test_a_log_that_could_not_be_read_before_the_restart_is_read_afterwards(world: World) -> None:
    world.cluster.script_log("default", "p", *[[Invalid("not found")]] * 8, NEXT)
    world.cluster.script_log("default", "p", WHOLE, previous=True)
    world.show(pod(state=ENDED))
    await world.until(lambda: world.followers.caught_up(KEY) and world.followers.streams() == (0, 0) and world.parsers[0].ended)
    assert world.state() is None
    world.show(pod(state=RUNNING, restarts=1, last=ENDED))
    await world.until(lambda: crashed_with(world) == "Boom")


async def test_a_log_that_does_not_exist_is_given_up(world: World) -> None:
    world.cluster.script_log("default", "p", [FOREVER])
    world.cluster.script_log("default", "p", *[[Invalid("not found")]] * 99, previous=True)
    for _ in range(3):
        world.show(pod(state=RUNNING, restarts=1, last=ENDED))
        await world.until(lambda: any(parser.ended for parser in world.parsers))
    assert world.state(0) is None
    assert sum(request.previous for request in world.cluster.log_requests) == 8


async def test_a_crash_after_the_pod_has_served_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_operator.controller.log_follower.LINGER_SECONDS", 0.05)
    log: list[Any] = [line(1, "stage Ready"), line(2, "crash Boom")]
    world.cluster.script_log("default", "p", [*log[:1], FOREVER], log)
    world.show(pod(state=RUNNING))
    await world.until(world.texts)
    world.show(pod(state=RUNNING, ready=True))
    await world.until(lambda: world.followers.streams() == (0, 0))
    world.show(pod(state=ENDED))
    await world.until(lambda: crashed_with(world) == "Boom")
    for _ in range(3):
        world.show(pod(state=ENDED))
    assert len(world.cluster.log_requests) == 2


async def test_a_crash_just_after_the_pod_has_become_ready_is_read(world: World) -> None:
    log: list[Any] = [line(1, "stage Ready"), line(2, "crash Boom")]
    world.cluster.script_log("default", "p", [*log[:1], FOREVER], log)
    world.show(pod(state=RUNNING))
    await world.until(world.texts)
    world.show(pod(state=RUNNING, ready=True))
    world.show(pod(state=ENDED))
    await world.until(lambda: crashed_with(world) == "Boom")


async def test_what_was_read_of_a_run_of_less_than_a_second_counts_where_nothing_can_be_read_again(world: World) -> None:
    world.cluster.script_log("default", "p", [line(10, "crash Boom"), FOREVER], NEXT)
    world.cluster.script_log("default", "p", *[[Invalid("not found")]] * 99, previous=True)
    world.show(pod(state=RUNNING))
    await world.until(world.texts)
    world.show(pod(state=RUNNING, restarts=1, last=ENDED))
    await world.until(lambda: sum(request.previous for request in world.cluster.log_requests) == 8)
    assert crashed_with(world) == "Boom"
    assert world.parsers[0].ended


async def test_the_silent_log_of_the_next_run_does_not_hold_up_that_of_the_run_before(world: World) -> None:
    world.cluster.script_log("default", "p", [FOREVER], NEXT)
    world.cluster.script_log("default", "p", WHOLE, previous=True)
    world.show(pod(state=RUNNING))
    await world.until(lambda: world.cluster.log_requests)
    world.show(pod(state=RUNNING, restarts=1, last=ENDED))
    await world.until(lambda: crashed_with(world) == "Boom")
