"""Following logs: how streams end, what is read again, what is worth a look, and who waits for whom."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.followed_logs import FOREVER, KEY, World
from support.logs import BACKING_OFF, CREATING, RUNNING, TERMINATED, PlainParser, line, pod
from vllm_operator.api.labels import GROUP_INDEX_LABEL, WORKER_INDEX_LABEL
from vllm_operator.controller import log_follower
from vllm_operator.controller.log_follower import runs_to_follow
from vllm_operator.controller.log_followers import Followers
from vllm_operator.kube.client import POD, ClusterError, Forbidden, Invalid, NotFound, Unavailable
from vllm_operator.logs.state import Crash, Progress, Stage, StartupState, is_significant


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(monkeypatch)
    yield made
    await made.followers.close()


@pytest.mark.parametrize(
    ("manifest", "want"),
    [
        (pod(state=CREATING), []),
        (pod(state=RUNNING), [(0, False)]),
        (pod(state=TERMINATED), [(0, False)]),
        (pod(state=RUNNING, restarts=1, last=TERMINATED), [(0, True), (1, False)]),
        (pod(state=RUNNING, restarts=3, last=TERMINATED), [(2, True), (3, False)]),
        (pod(state=TERMINATED, restarts=1, last=TERMINATED), [(1, False)]),
        (pod(state=BACKING_OFF, restarts=2, last=TERMINATED), [(2, False)]),
        ({"metadata": {"name": "p", "namespace": "default", "uid": "u"}}, []),
    ],
)
def test_which_runs_are_worth_following(manifest: dict[str, Any], want: list[tuple[int, bool]]) -> None:
    assert [(run.restarts, run.previous) for run in runs_to_follow(manifest)] == want


async def test_what_the_log_shows_is_published(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "stage WeightLoad"), FOREVER])
    world.show(pod(state=RUNNING))
    assert not world.followers.caught_up(KEY)
    await world.until(lambda: world.followers.caught_up(KEY))
    state = world.state()
    assert state is not None
    assert (state.stage, state.lines) == (Stage.WEIGHT_LOAD, 1)
    assert world.changes == [KEY]


async def test_the_log_of_a_follower_is_followed_until_its_leader_serves(world: World) -> None:
    pods = [pod("engine-0", state=RUNNING), pod("engine-0-1", state=RUNNING, ready=True)]
    for rank, it in enumerate(pods):
        it["metadata"]["labels"] = {GROUP_INDEX_LABEL: "0", WORKER_INDEX_LABEL: str(rank)}
        world.cluster.script_log("default", it["metadata"]["name"], [line(1, "stage WeightLoad"), FOREVER])
    world.show(*pods)
    await world.until(lambda: len(world.followers.states(KEY)) == 2)
    assert world.followers.streams() == (2, 0)

    pods[0]["status"]["conditions"][0]["status"] = "True"
    world.show(*pods)
    await world.until(lambda: world.followers.streams() == (0, 0))
    assert {state.stage for state in world.followers.states(KEY).values()} == {Stage.WEIGHT_LOAD}


async def test_a_stream_that_ends_while_the_container_lives_is_resumed_without_loss_or_repetition(world: World) -> None:
    log = [line(number, f"line {number}") for number in range(1, 8)]
    world.cluster.script_log("default", "p", log[:3], log[2:3], [Unavailable("reset")], log[2:5], [*log[4:], FOREVER])
    world.show(pod(state=RUNNING))
    await world.until(lambda: len(world.texts()) == 7)
    assert world.texts() == [f"line {number}" for number in range(1, 8)]
    assert [request.since for request in world.cluster.log_requests] == [
        None,
        "2026-11-21T12:00:03Z",
        "2026-11-21T12:00:03Z",
        "2026-11-21T12:00:03Z",
        "2026-11-21T12:00:05Z",
    ]


async def test_the_log_of_a_dead_container_is_read_to_its_end_once_more(world: World) -> None:
    log = [line(1, "a"), line(2, "b"), line(3, "crash Boom")[:-1]]
    world.cluster.script_log("default", "p", log[:1], log)
    world.show(pod(state=RUNNING))
    world.cluster.put(pod(state=TERMINATED))
    await world.until(lambda: world.parsers and world.parsers[0].ended)
    assert world.texts() == ["a", "b", "crash Boom"]
    assert [request.follow for request in world.cluster.log_requests] == [True, False]
    state = world.state()
    assert state is not None
    assert state.crash is not None
    assert state.crash.signature == "Boom"


async def test_a_container_that_restarted_meanwhile_is_read_as_the_previous_one(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "a")], [line(1, "a"), line(2, "crash Boom")])
    world.show(pod(state=RUNNING))
    world.cluster.put(pod(state=RUNNING, restarts=1, last=TERMINATED))
    await world.until(lambda: world.parsers and world.parsers[0].ended)
    assert world.texts() == ["a", "crash Boom"]
    assert [request.previous for request in world.cluster.log_requests] == [False, True]


async def test_after_a_restart_of_the_operator_the_crashed_run_and_the_present_one_are_read(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "crash Boom")], [line(5, "stage TorchCompile"), FOREVER])
    world.show(pod(state=RUNNING, restarts=1, last=TERMINATED))
    await world.until(lambda: world.followers.caught_up(KEY))
    before, present = world.state(0), world.state(1)
    assert before is not None
    assert before.crash is not None
    assert present is not None
    assert present.stage is Stage.TORCH_COMPILE


@pytest.mark.parametrize("error", [Invalid("is waiting to start: ContainerCreating"), NotFound("( pods/log p)"), Unavailable("500")])
async def test_a_log_that_is_not_there_yet_is_tried_again(world: World, error: ClusterError) -> None:
    world.cluster.script_log("default", "p", [error], [error], [line(1, "at last"), FOREVER])
    world.cluster.fail("get", POD, NotFound("p"))  # the Pod is not read for each refused request: that would end the follower
    world.show(pod(state=RUNNING))
    await world.until(lambda: world.texts() == ["at last"])
    assert world.followers.caught_up(KEY)


async def test_an_apology_of_the_kubelet_is_not_taken_for_the_log(world: World) -> None:
    world.cluster.script_log("default", "p", *[[b"unable to retrieve container logs for containerd://4f6b"]] * 20)
    world.show(pod(state=RUNNING, restarts=1, last=TERMINATED), pod("q", state=TERMINATED))
    await world.until(lambda: world.followers.caught_up(KEY))
    assert world.state(0) is None
    assert world.texts() == []


async def test_a_missing_permission_stops_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.cluster.fail("stream_log", POD, Forbidden('cannot get resource "pods/log"'), times=1000)
    world.show(pod(state=RUNNING))
    await world.until(lambda: world.followers.caught_up(KEY))
    assert "pods/log" in caplog.text


async def test_a_pod_that_serves_is_not_followed_any_longer(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "stage ServerStart"), 0.05, line(2, "stage Ready"), FOREVER])
    world.show(pod(state=RUNNING))
    await world.until(lambda: world.texts())
    world.show(pod(state=RUNNING, ready=True))
    await world.until(lambda: world.followers.streams() == (0, 0))
    state = world.state()
    assert state is not None
    assert state.stage is Stage.READY
    assert len(world.cluster.log_requests) == 1


async def test_a_pod_that_became_ready_while_the_operator_was_away_is_read_once(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "stage TorchCompile"), line(2, "stage Ready"), FOREVER])
    serving = pod(state=RUNNING, ready=True)
    world.cluster.put(serving)
    world.followers.sync(KEY, (serving,))
    assert world.cluster.log_requests == []  # its start was reported: nothing to learn
    world.followers.sync(KEY, (serving,), starting={"p"})
    await world.until(lambda: world.followers.caught_up(KEY))
    world.followers.sync(KEY, (serving,), starting={"p"})
    await world.until(lambda: world.followers.streams() == (0, 0))
    state = world.state()
    assert state is not None
    assert (state.stage, len(world.cluster.log_requests)) == (Stage.READY, 1)


async def test_a_crash_before_a_pod_became_ready_while_the_operator_was_away_is_read_too(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "crash Boom")], [line(5, "stage Ready"), FOREVER])
    serving = pod(state=RUNNING, ready=True, restarts=1, last=TERMINATED)
    world.cluster.put(serving)
    world.followers.sync(KEY, (serving,), starting={"p"})
    await world.until(lambda: world.followers.caught_up(KEY))
    before, present = world.state(0), world.state(1)
    assert before is not None
    assert before.crash is not None
    assert present is not None
    assert present.stage is Stage.READY


async def test_a_crash_is_read_to_its_end_although_the_restart_serves_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_operator.controller.log_follower.LINGER_SECONDS", 0.05)
    world = World(monkeypatch, RETRY_SECONDS=(0.2,))
    world.cluster.script_log("default", "p", [line(1, "a")], [Unavailable("500")], [line(1, "a"), line(2, "crash Boom")])
    world.show(pod(state=RUNNING))
    await world.until(world.texts)
    world.show(pod(state=RUNNING, restarts=1, last=TERMINATED, ready=True))
    await world.until(lambda: (state := world.state(0)) and state.crash)
    assert world.texts() == ["a", "crash Boom"]
    await world.followers.close()


async def test_a_restart_that_served_at_once_is_read_once_too(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "crash Boom")], [line(5, "stage TorchCompile"), line(6, "stage Ready"), FOREVER])
    world.show(pod(state=TERMINATED))
    await world.until(lambda: world.followers.caught_up(KEY))
    serving = pod(state=RUNNING, restarts=1, last=TERMINATED, ready=True)
    world.cluster.put(serving)
    world.followers.sync(KEY, (serving,), starting={"p"})
    await world.until(lambda: (state := world.state(1)) and state.stage is Stage.READY)
    await world.until(lambda: world.followers.streams() == (0, 0))


async def test_the_log_of_a_crash_is_read_again_when_other_crashes_are_known(world: World) -> None:
    world.cluster.script_log("default", "p", *[[line(1, "a"), line(2, "crash Boom")]] * 4)
    world.show(pod(state=TERMINATED))
    await world.until(lambda: (state := world.state()) and state.crash)
    world.followers.read_again()
    assert world.followers.states(KEY) == {}
    await world.until(lambda: len(world.parsers) == 2 and (state := world.state()) and state.crash)
    assert world.texts(1) == ["a", "crash Boom"]


async def test_the_log_of_a_start_that_went_well_is_not_read_again(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "stage Ready"), FOREVER])
    world.show(pod(state=RUNNING))
    await world.until(lambda: world.followers.caught_up(KEY))
    world.followers.read_again()
    assert len(world.parsers) == 1


async def test_a_pod_that_is_gone_is_forgotten(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "a"), FOREVER])
    world.show(pod(state=RUNNING))
    await world.until(lambda: world.texts())
    world.followers.sync(KEY, ())
    await world.until(lambda: world.followers.streams() == (0, 0))
    assert world.followers.states(KEY) == {}


async def test_more_logs_than_places_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, streams=2, TURN_SECONDS=0.05)
    names = [f"p{number}" for number in range(6)]
    for name in names:
        first, second = line(1, name), line(1, f"later {name}")
        world.cluster.script_log("default", name, *[(first, FOREVER)] * 5, *[(first, second, FOREVER)] * 200)
    world.show(*(pod(name, state=RUNNING) for name in names))
    await world.until(lambda: sum(len(parser.texts) == 2 for parser in world.parsers) == 6)
    assert world.followers.streams()[0] <= 2
    assert all(len(set(parser.texts)) == 2 for parser in world.parsers), "nothing is read twice"
    before = world.cluster.calls["get"]
    await asyncio.sleep(0.1)
    assert world.cluster.calls["get"] == before, "no Pod is read for a turn"
    await world.followers.close()


async def test_logs_that_are_followed_give_way_when_there_are_more_than_places_and_are_followed_again_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, streams=2, TURN_SECONDS=0.05)
    names = ["p0", "p1", "p2"]
    for name in names:
        world.cluster.script_log("default", name, *[(line(1, name), FOREVER)] * 200)
    pods = [pod(name, state=RUNNING) for name in names]
    world.show(*pods[:2])
    await world.until(lambda: world.followers.streams() == (2, 0) and world.followers.caught_up(KEY))
    world.show(*pods)
    await world.until(lambda: len(world.texts(2)) == 1)
    assert [request.follow for request in world.cluster.log_requests[:2]] == [True, True]
    world.followers.sync(KEY, pods[:2])
    latest: dict[str, bool] = {}

    def are_followed() -> bool:
        latest.update((request.pod, request.follow) for request in world.cluster.log_requests)
        return latest["p0"] and latest["p1"]

    await world.until(lambda: world.followers.streams() == (2, 0) and are_followed())
    await world.followers.close()


async def test_a_pod_that_serves_while_places_are_scarce_is_read_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "LINGER_SECONDS", 0.05)
    world = World(monkeypatch, streams=1, TURN_SECONDS=0.05)
    world.cluster.script_log("default", "p0", (line(1, "a"), FOREVER), (line(1, "a"), line(2, "b"), FOREVER))
    world.cluster.script_log("default", "p1", *[(line(1, "x"), FOREVER)] * 9)
    pods = [pod(name, state=RUNNING) for name in ("p0", "p1")]
    world.show(*pods)
    await world.until(lambda: world.texts() == ["a"] and world.texts(1) == ["x"])
    world.show(pod("p0", state=RUNNING, ready=True), pods[1])
    await world.until(lambda: world.texts() == ["a", "b"])
    await world.until(lambda: world.followers.streams() in ((1, 0), (0, 1)))
    await world.followers.close()


async def test_a_pod_that_writes_without_end_does_not_delay_the_others(world: World) -> None:
    flood = b"".join(line(1, f"noise {number} {'x' * 80}") for number in range(500))
    world.cluster.script_log("default", "loud", [flood] * 2000)
    world.cluster.script_log("default", "quiet", [line(1, "stage WeightLoad"), 0.3, line(2, "stage TorchCompile"), FOREVER])
    started = time.monotonic()
    world.show(pod("loud", state=RUNNING), pod("quiet", state=RUNNING))
    await world.until(lambda: (state := world.state(name="quiet")) and state.stage is Stage.TORCH_COMPILE)
    assert time.monotonic() - started < 3
    assert len(world.cluster.log_requests) == 2


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        (StartupState(), StartupState(lines=5), False),
        (StartupState(), StartupState(stage=Stage.WEIGHT_LOAD), True),
        (StartupState(), StartupState(crash=Crash("A", "b", None, None, "c")), True),
        (StartupState(progress=Progress(10, 100, "x")), StartupState(progress=Progress(12, 100, "x")), False),
        (StartupState(progress=Progress(10, 100, "x")), StartupState(progress=Progress(15, 100, "x")), True),
        (StartupState(progress=Progress(10, 100, "x")), StartupState(progress=Progress(10, 200, "x")), True),
        (StartupState(), StartupState(progress=Progress(0, 100, "x")), True),
        (StartupState(progress=Progress(10, 0, "x")), StartupState(progress=Progress(11, 0, "x")), True),
    ],
)
def test_what_is_significant(old: StartupState, new: StartupState, want: bool) -> None:
    assert is_significant(old, new, 5) is want


async def test_small_steps_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, INTERVAL_SECONDS=60)
    steps: list[Any] = [line(1, "stage KernelWarmup"), 0.3]
    for number in range(100):
        steps += [line(2 + number // 10, f"progress {number + 1}/1000"), 0.0]
    world.cluster.script_log("default", "p", [*steps, FOREVER])
    world.show(pod(state=RUNNING))
    await world.until(lambda: len(world.texts()) == 101)
    # the stage, the beginning of the progress, 5 %
    assert len(world.changes) <= 4
    state = world.state()
    assert state is not None
    assert state.progress is not None
    assert state.progress.completed >= 50
    assert state.lines == 101
    await world.followers.close()


async def test_progress_that_is_too_small_is_reported_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, INTERVAL_SECONDS=0.2)
    world.cluster.script_log("default", "p", [line(1, "progress 1/1000"), 0.3, line(2, "progress 2/1000"), FOREVER])
    world.show(pod(state=RUNNING))
    await world.until(lambda: (state := world.state()) and state.progress and state.progress.completed == 2)
    await world.followers.close()


async def test_a_parser_that_fails_takes_only_its_own_log_with_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.cluster.script_log("default", "bad", [line(1, "progress not/numbers"), FOREVER])
    world.cluster.script_log("default", "good", [line(1, "stage WeightLoad"), FOREVER])
    world.show(pod("bad", state=RUNNING), pod("good", state=RUNNING))
    await world.until(lambda: world.followers.caught_up(KEY))
    assert world.state(name="good") is not None
    assert "following the log of Pod default/bad failed" in caplog.text


async def test_queued_logs_do_not_hold_up_the_report_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, streams=1, TURN_SECONDS=1000.0)
    world.cluster.script_log("default", "first", [line(1, "a"), FOREVER])
    world.show(pod("first", state=RUNNING), pod("second", state=RUNNING))
    await world.until(lambda: world.followers.caught_up(KEY))
    await world.followers.close()


class FailingOnce(PlainParser):
    """A parser with a bug that shows on one line, the first time."""

    failed = False

    def feed(self, data: Any, timestamp: Any = None) -> None:
        if b"Boom" in data and not FailingOnce.failed:
            FailingOnce.failed = True
            raise IndexError("a bug")
        super().feed(data, timestamp)


async def test_a_log_on_which_the_operator_fails_is_read_again_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "RESTART_SECONDS", (0.01,))
    cluster, restarts, parsers = FakeCluster(), [], []

    def make() -> PlainParser:
        parsers.append(FailingOnce())
        return parsers[-1]

    followers = Followers(cluster, make_parser=make, changed=lambda key: None, restarted=lambda: restarts.append(1))
    log = [line(1, "a"), line(2, "crash Boom")]
    cluster.script_log("default", "p", log, log, log)
    cluster.put(pod(state=TERMINATED))
    followers.sync(KEY, [pod(state=TERMINATED)])
    async with asyncio.timeout(5):
        while not (len(parsers) == 2 and parsers[1].ended):  # noqa: ASYNC110 - a parser tells nobody
            await asyncio.sleep(0.01)
    assert restarts == [1]
    state = followers.states(KEY)["uid-of-p", 0]
    assert state.crash is not None
    await followers.close()


async def test_a_log_whose_task_was_ended_is_followed_again(world: World) -> None:
    world.cluster.script_log("default", "p", [line(1, "a"), FOREVER], [line(1, "a"), line(2, "b"), FOREVER])
    world.show(pod(state=RUNNING))
    await world.until(lambda: world.texts() == ["a"])
    [task] = [task for task in asyncio.all_tasks() if task.get_name().startswith("log ")]
    task.cancel()
    await world.until(lambda: world.texts(1) == ["a", "b"])


class FailingAtItsEnd(PlainParser):
    """A parser with a bug that shows on the last line, which has no newline."""

    def feed(self, data: Any, timestamp: Any = None) -> None:
        if b"unfinished" in data:
            raise IndexError("a bug")
        super().feed(data, timestamp)


async def test_a_parser_that_fails_on_the_last_line_does_not_keep_a_stopped_log_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "RESTART_SECONDS", (60.0,))
    cluster = FakeCluster()
    followers = Followers(cluster, make_parser=FailingAtItsEnd, changed=lambda key: None)
    cluster.script_log("default", "p", [line(1, "a"), line(2, "unfinished").rstrip(b"\n"), FOREVER])
    cluster.put(pod(state=RUNNING))
    followers.sync(KEY, [pod(state=RUNNING)])
    async with asyncio.timeout(5):
        while not followers.caught_up(KEY):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)
        await followers.close()
