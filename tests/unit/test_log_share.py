"""The share of the event loop for logs: how much it is, whose turn it is, and when a log is too fast to be read whole."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.followed_logs import FOREVER, KEY, World
from support.logs import RUNNING, TERMINATED, line, pod
from vllm_operator.controller.log_share import BEHIND_BYTES, BEHIND_SECONDS, BURST_SECONDS, SHARE, STEP_BYTES, LogAccount, LogShare, Pace

COST = 0.004
"""Seconds of a step with hostile text."""


class Time:
    """A clock that only sleeps and steps move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0
        self.longest = 0.0
        self._without_sleep = 0.0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds
        self._without_sleep = 0.0
        await asyncio.sleep(0)

    def spend(self, seconds: float) -> None:
        self.now += seconds
        self._without_sleep += seconds
        self.longest = max(self.longest, self._without_sleep)


class Logs:
    """Readers of logs that have always something to parse, until a moment."""

    def __init__(self, moments: Time, share: LogShare, until: float) -> None:
        self.time, self.share, self.until = moments, share, until
        self.parsed: dict[str, float] = {}

    async def read(self, namespace: str, name: str, *, cost: float = COST, steps: int | None = None) -> float:
        """Read a log; return how long this took."""
        account, began = LogAccount(namespace), self.time.now
        while self.time.now < self.until and steps != 0:
            await self.share.run(account, lambda: self.time.spend(cost))
            self.parsed[name] = self.parsed.get(name, 0.0) + cost
            steps = None if steps is None else steps - 1
        return self.time.now - began


def make(seconds: float = 30.0) -> Logs:
    moments = Time()
    return Logs(moments, LogShare(clock=moments.clock, sleep=moments.sleep), moments.now + seconds)


async def test_two_hundred_endless_logs_leave_the_rest_of_the_loop_to_others() -> None:
    logs = make(10.0)
    await asyncio.gather(*(logs.read("tenant", f"p{number}") for number in range(200)))
    assert sum(logs.parsed.values()) <= 10.0 * SHARE + BURST_SECONDS + 200 * COST
    assert logs.time.longest == pytest.approx(COST)  # after each step, the loop does something else
    assert max(logs.parsed.values()) <= min(logs.parsed.values()) + 2 * COST


@pytest.mark.parametrize("namespace", ["tenant", "other"])
async def test_a_start_is_read_at_once_although_many_pods_log_without_end(namespace: str) -> None:
    logs = make(12.0)
    noisy = [asyncio.create_task(logs.read("tenant", f"p{number}")) for number in range(200)]
    while logs.time.now < 108.0:  # noqa: ASYNC110 - the clock is not that of the event loop
        await asyncio.sleep(0)
    took = await logs.read(namespace, "start", cost=COST / 10, steps=20)
    assert took <= 20 * COST / SHARE  # between two steps of it, at most one of another log is run
    await asyncio.gather(*noisy)


async def test_namespaces_get_equal_parts_however_many_pods_they_have() -> None:
    logs = make(10.0)
    await asyncio.gather(logs.read("small", "small"), *(logs.read("large", f"p{number}") for number in range(100)))
    small = logs.parsed.pop("small")
    assert small == pytest.approx(sum(logs.parsed.values()), abs=101 * COST)


async def test_what_a_namespace_has_used_is_forgotten_in_time() -> None:
    logs = make(3600.0)
    await logs.read("old", "before", steps=1000)
    logs.time.now += 1200.0
    first, second = logs.read("old", "old", steps=50), logs.read("new", "new", steps=50)
    took = await asyncio.gather(first, second)
    assert took[0] == pytest.approx(took[1], abs=4 * COST / SHARE)


async def test_an_error_of_a_step_is_that_of_its_reader_only() -> None:
    logs = make()

    def fail() -> None:
        raise ValueError("a bug of the parser")

    broken, other = logs.share.run(LogAccount("a"), fail), logs.read("a", "other", steps=3)
    results = await asyncio.gather(broken, other, return_exceptions=True)
    assert isinstance(results[0], ValueError)
    assert logs.parsed["other"] == pytest.approx(3 * COST)


async def test_the_step_of_a_reader_that_was_cancelled_is_not_run() -> None:
    logs, ran = make(), []
    reader = asyncio.create_task(logs.share.run(LogAccount("a"), lambda: ran.append("cancelled")))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await logs.share.run(LogAccount("a"), lambda: ran.append("next"))
    assert ran == ["next"]


@given(costs=st.lists(st.floats(0.0, 0.2), min_size=1, max_size=100))
async def test_whatever_steps_cost_they_take_no_more_than_the_share(costs: Sequence[float]) -> None:
    logs = make()
    began, account = logs.time.now, LogAccount("a")
    for cost in costs:
        before = logs.time.now
        await logs.share.run(account, lambda cost=cost: logs.time.spend(cost))  # type: ignore[misc]  # mypy does not infer lambdas with defaults
        assert sum(costs[: costs.index(cost)]) <= (before - began) * SHARE + BURST_SECONDS + max(costs)
    assert logs.time.longest <= max(costs)


@pytest.mark.parametrize(
    ("arrives_every", "takes", "want"),
    [
        (0.0, 1.0, True),  # never waits for text
        (1.0, 0.1, False),  # waits for text most of the time: everything there is has been read
        (0.05, 1.0, True),
        (0.0, 0.01, False),  # megabytes within seconds, as after a restart of the operator
    ],
)
def test_a_log_is_behind_if_its_reader_never_reaches_the_end(arrives_every: float, takes: float, want: bool) -> None:
    now, tails = 0.0, []
    pace = Pace(now)
    for _ in range(40):
        now += arrives_every
        pace.note_arrival(now)
        now += takes
        tails.append(pace.note_step(STEP_BYTES, 100, now))
    assert any(tail is not None for tail in tails) is want
    if want:
        assert tails.index(next(tail for tail in tails if tail)) == BEHIND_BYTES // STEP_BYTES - 1
        assert next(tail for tail in tails if tail) == BEHIND_BYTES // 4 * 100 // STEP_BYTES


SHORT = BEHIND_BYTES // STEP_BYTES


def test_a_short_log_is_read_whole_however_long_it_takes() -> None:
    pace = Pace(0.0)
    assert [pace.note_step(STEP_BYTES, 100, number * BEHIND_SECONDS) for number in range(1, SHORT)] == [None] * (SHORT - 1)


def noise(second: int, size: int = BEHIND_BYTES) -> list[bytes]:
    """Lines of that many bytes in all, within some seconds."""
    text = line(second, "x" * 1000)
    return [text] * (size // len(text) + 1)


class SlowShare(LogShare):
    """Each step seems to take a second."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0

    def now(self) -> float:
        return time.monotonic() + self._ahead

    async def run(self, account: LogAccount, step: Callable[[], None]) -> None:
        self._ahead += 1.0
        await super().run(account, step)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    share = SlowShare()
    made = World(monkeypatch, clock=share.now, share=share)
    yield made
    await made.followers.close()


async def test_a_log_that_grows_too_fast_is_continued_near_its_end_and_this_is_said(world: World) -> None:
    world.cluster.script_log("default", "p", [*noise(1), FOREVER], [line(101, "stage WeightLoad"), FOREVER])
    world.show(pod(state=RUNNING))
    await world.until(lambda: (state := world.state()) is not None and state.skipped_seconds)
    first, second = world.cluster.log_requests[:2]
    assert (first.tail_lines, second.since) == (None, "2026-11-21T12:00:01Z")
    assert second.tail_lines is not None
    assert second.tail_lines == BEHIND_BYTES // 4 // len(noise(1)[0])
    assert second.follow
    state = world.state()
    assert state is not None
    assert (state.stage.value, state.skipped_seconds) == ("WeightLoad", 60)  # of 100 s
    (skipped,) = world.skipped
    assert skipped == ("default", 100.0)
    assert world.followers.caught_up(KEY)


async def test_nothing_is_said_to_be_skipped_if_the_end_continues_what_was_read(world: World) -> None:
    lines = noise(1)
    world.cluster.script_log("default", "p", [*lines, FOREVER], [*lines[-50:], line(2, "stage WeightLoad"), FOREVER])
    world.show(pod(state=RUNNING))
    await world.until(lambda: "stage WeightLoad" in world.texts())
    state = world.state()
    assert state is not None
    assert (len(world.texts()), state.skipped_seconds, world.skipped) == (len(lines) + 1, 0, [])


async def test_the_end_of_a_crashed_run_is_read_although_its_log_is_too_long(world: World) -> None:
    world.cluster.script_log("default", "p", [*noise(1), *noise(2)], [line(59, "crash Boom")])
    world.show(pod(state=TERMINATED))
    await world.until(lambda: world.parsers and world.parsers[0].ended)
    state = world.state()
    assert state is not None
    assert state.crash is not None
    assert (state.crash.signature, state.skipped_seconds) == ("Boom", 10)
    assert [request.follow for request in world.cluster.log_requests] == [False, False]
