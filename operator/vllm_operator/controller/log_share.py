"""What all logs share: a limited number of open streams, and a limited part of the event loop's time for parsing.

Users control the size of logs. The event loop also renews the Lease and answers probes. So all logs together get a share of its time (a
token bucket), in steps of a few milliseconds, and other tasks run between two steps. If several logs wait, the namespace that used the
least time recently is served first, and within it the log that used the least: a Pod that logs without end delays first itself, then the
Pods of its namespace, and the log of a start that writes a hundred lines is read at once.

`Pace` detects a log that grows faster than it is read. Reading then continues near its end.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

SHARE = 1 / 3
"""Fraction of the event loop's time for all logs together."""
BURST_SECONDS = 0.5
"""Maximum time that is saved up while no log is parsed, enough for a few MiB without a pause."""
HALF_LIFE_SECONDS = 60.0
"""Half-life of the recorded use of a log or namespace."""
FORGOTTEN_SECONDS = 0.001
STEP_BYTES = 8 * 1024
"""Number of bytes per parsing step. A step takes 4 ms for distinct errors, and some tens of milliseconds for the worst known lines."""

BEHIND_SECONDS = 15.0
BEHIND_BYTES = 128 * 1024
"""A log is behind if its end was not reached within this many bytes and seconds. A start writes less than half of it."""
IDLE_PART = 0.1
"""A log is not behind if its reader waited for text for at least this fraction of the time."""


class Slots:
    """A semaphore whose next holder is in the namespace with the fewest slots."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._held: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._leaving = 0

    @property
    def taken(self) -> int:
        """Number of slots in use."""
        return self._held.total()

    @property
    def waiting(self) -> int:
        """Number of logs that wait for a slot."""
        return len(self._waiting)

    def should_leave(self) -> bool:
        """Return whether the caller should release its slot now for a waiting log. At most one holder per waiting log gets True."""
        if self._leaving >= len(self._waiting):
            return False
        self._leaving += 1
        return True

    @asynccontextmanager
    async def hold(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it, for the log of a Pod in this namespace."""
        if self.taken < self._number:
            self._held[namespace] += 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[turn] = namespace
            try:
                await turn
            except asyncio.CancelledError:
                if self._waiting.pop(turn, None) is None:
                    self._release(namespace)  # the slot was already assigned
                raise
        try:
            yield
        finally:
            self._release(namespace)

    def _release(self, namespace: str) -> None:
        self._held[namespace] -= 1
        self._leaving = max(0, self._leaving - 1)
        uncancelled = (turn for turn in self._waiting if not turn.done())
        turn = min(uncancelled, key=lambda each: self._held[self._waiting[each]], default=None)
        if turn is not None:
            self._held[self._waiting.pop(turn)] += 1
            turn.set_result(None)
        self._held += Counter()  # removes namespaces without slots


class LogAccount:
    """The recently used time of one log in seconds, or of all logs of its namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._seconds = self._at = 0.0

    def at(self, now: float) -> float:
        """Return the recent use at a time."""
        return self._seconds * math.pow(0.5, (now - self._at) / HALF_LIFE_SECONDS)

    def add(self, seconds: float, now: float) -> None:
        """Add a use that ends now."""
        self._seconds, self._at = self.at(now) + seconds, now


@dataclass(slots=True, eq=False)
class _Turn:
    account: LogAccount
    step: Callable[[], None]
    done: asyncio.Future[None]


@dataclass(eq=False, kw_only=True)
class LogShare:
    """Runs the steps of all logs, one after another. `parsed` is called with the seconds of each step; `clock` returns seconds."""

    parsed: Callable[[float], None] = lambda seconds: None
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    _namespaces: dict[str, LogAccount] = field(default_factory=dict)
    _waiting: list[_Turn] = field(default_factory=list)
    _server: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._saved, self._saved_at = BURST_SECONDS, self.clock()

    async def run(self, account: LogAccount, step: Callable[[], None]) -> None:
        """Run a step of a log when it has its turn. Raises errors of the step."""
        turn = _Turn(account, step, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        if self._server is None or self._server.done():
            self._server = asyncio.create_task(self._serve(), name="share of logs")
        await turn.done

    async def _serve(self) -> None:
        while True:
            await self.sleep(self._pause_seconds())  # even 0 s lets other tasks run between two steps
            self._waiting = [turn for turn in self._waiting if not turn.done.done()]  # the reader may have been cancelled
            if not self._waiting:
                self._server = None
                return
            self._serve_one()

    def _pause_seconds(self) -> float:
        now = self.clock()
        self._saved, self._saved_at = min(BURST_SECONDS, self._saved + (now - self._saved_at) * SHARE), now
        return max(0.0, -self._saved / SHARE)

    def _serve_one(self) -> None:
        began = self.clock()
        turn = self._next(began)
        self._waiting.remove(turn)
        try:
            turn.step()
        except Exception as error:
            turn.done.set_exception(error)
        else:
            turn.done.set_result(None)
        now = self.clock()
        took = now - began
        self._saved -= took
        turn.account.add(took, now)
        self._namespaces.setdefault(turn.account.namespace, LogAccount(turn.account.namespace)).add(took, now)
        self.parsed(took)

    def _next(self, now: float) -> _Turn:
        """Return the turn of the log that used the least time recently, by namespace and then by log; the first one of equals."""
        self._namespaces = {name: use for name, use in self._namespaces.items() if use.at(now) > FORGOTTEN_SECONDS}
        used = {name: use.at(now) for name, use in self._namespaces.items()}
        first = min((turn.account.namespace for turn in self._waiting), key=lambda name: used.get(name, 0.0))
        return min((turn for turn in self._waiting if turn.account.namespace == first), key=lambda turn: turn.account.at(now))


class Pace:
    """Detects whether a log grows faster than it is read."""

    def __init__(self, now: float) -> None:
        """Start when the log is opened. All times are seconds of the same clock."""
        self._began = self._asked = now
        self._idle = 0.0
        self._size = self._lines = 0

    def note_arrival(self, now: float) -> None:
        """Record that text arrived after the reader had waited for it."""
        self._idle += now - self._asked

    def note_step(self, size: int, lines: int, now: float) -> int | None:
        """Record a step of `size` bytes. Return None if the log is not behind, else the number of lines at its end to read next."""
        self._asked = now
        self._size, self._lines = self._size + size, self._lines + lines
        if now - self._began < BEHIND_SECONDS or self._size < BEHIND_BYTES:
            return None
        is_behind, tail = self._idle < IDLE_PART * (now - self._began), BEHIND_BYTES // 4 * self._lines // self._size
        self._began, self._idle, self._size, self._lines = now, 0.0, 0, 0
        return max(1, tail) if is_behind else None
