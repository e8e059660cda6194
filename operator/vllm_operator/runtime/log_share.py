"""The share of the event loop in which the text of all logs is parsed, and whose turn it is.

Pods write the logs, so their size is up to their users. The event loop also renews the Lease and answers probes. So all logs together get
a share of its time (a token bucket), in steps of some milliseconds, and the loop does everything else between two steps. If several logs
wait, the namespace that used the least time lately is served first, and within it the log that did: a Pod that logs without end delays
first itself, then the Pods of its namespace, and the log of a start that writes a hundred lines is read at once.

A log that grows faster than it is read is continued at its present end: `Pace` tells when.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

SHARE = 1 / 3
"""Part of the time of the event loop for all logs together."""
BURST_SECONDS = 0.5
"""Time that is saved up while no log is parsed: a few MiB can be read without a pause."""
HALF_LIFE_SECONDS = 60.0
"""Time after which half of what a log or a namespace has used is forgotten."""
FORGOTTEN_SECONDS = 0.001
STEP_BYTES = 8 * 1024
"""Bytes that are parsed in one step. It takes 4 ms for distinct errors, and some tens of milliseconds for the worst lines known."""

BEHIND_SECONDS = 15.0
BEHIND_BYTES = 128 * 1024
"""A log is behind if its present end was not reached within so many seconds and bytes. A start writes less than half of it."""
IDLE_PART = 0.1
"""A log whose reader has waited for text during this part of the time is not behind."""


class _Use:
    """Seconds that were used lately."""

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds = self._at = 0.0

    def at(self, now: float) -> float:
        return self._seconds * math.pow(0.5, (now - self._at) / HALF_LIFE_SECONDS)

    def add(self, seconds: float, now: float) -> None:
        self._seconds, self._at = self.at(now) + seconds, now


@dataclass(slots=True, eq=False)
class LogAccount:
    """What one log has used. `namespace` is that of its Pod."""

    namespace: str
    used: _Use = field(default_factory=_Use)


@dataclass(slots=True, eq=False)
class _Turn:
    account: LogAccount
    step: Callable[[], None]
    done: asyncio.Future[None]


class LogShare:
    """Runs the steps of all logs, one after another."""

    def __init__(
        self,
        *,
        share: float = SHARE,
        parsed: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`share` is a part of the time, up to 1. `parsed` is called with the seconds that a step took. `clock` returns seconds."""
        self._share, self._parsed, self._clock, self._sleep = share, parsed, clock, sleep
        self._saved, self._saved_at = BURST_SECONDS, clock()
        self._namespaces: dict[str, _Use] = {}
        self._waiting: list[_Turn] = []
        self._server: asyncio.Task[None] | None = None

    async def run(self, account: LogAccount, step: Callable[[], None]) -> None:
        """Run a step of a log when it has its turn. Raises what the step raises."""
        turn = _Turn(account, step, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        if self._server is None or self._server.done():
            self._server = asyncio.create_task(self._serve(), name="share of logs")
        await turn.done

    async def _serve(self) -> None:
        while True:
            await self._sleep(self._pause_seconds())  # if only 0, so that the loop does everything else between two steps
            self._waiting = [turn for turn in self._waiting if not turn.done.done()]  # the reader may have been cancelled
            if not self._waiting:
                self._server = None
                return
            self._serve_one()

    def _pause_seconds(self) -> float:
        now = self._clock()
        self._saved, self._saved_at = min(BURST_SECONDS, self._saved + (now - self._saved_at) * self._share), now
        return max(0.0, -self._saved / self._share)

    def _serve_one(self) -> None:
        began = self._clock()
        turn = self._next(began)
        self._waiting.remove(turn)
        try:
            turn.step()
        except Exception as error:
            turn.done.set_exception(error)
        else:
            turn.done.set_result(None)
        now = self._clock()
        took = now - began
        self._saved -= took
        turn.account.used.add(took, now)
        self._namespaces.setdefault(turn.account.namespace, _Use()).add(took, now)
        self._parsed(took)

    def _next(self, now: float) -> _Turn:
        """The turn of the log that has used the least, in the namespace that has used the least. Of equal ones, the first that came."""
        self._namespaces = {name: use for name, use in self._namespaces.items() if use.at(now) > FORGOTTEN_SECONDS}
        used = {name: use.at(now) for name, use in self._namespaces.items()}
        first = min((turn.account.namespace for turn in self._waiting), key=lambda name: used.get(name, 0.0))
        return min((turn for turn in self._waiting if turn.account.namespace == first), key=lambda turn: turn.account.used.at(now))


class Pace:
    """Tells whether a log grows faster than it is read."""

    def __init__(self, now: float) -> None:
        """Begin when the log is opened. All times are in seconds of one clock."""
        self._began = self._asked = now
        self._idle = 0.0
        self._size = self._lines = 0

    def note_arrival(self, now: float) -> None:
        """Note that text has arrived after the reader has waited for it."""
        self._idle += now - self._asked

    def note_step(self, size: int, lines: int, now: float) -> int | None:
        """Note that so many bytes with so many lines were read.

        Return None if the log is not behind, else the number of its last lines to read next: as many as are read quickly.
        """
        self._asked = now
        self._size, self._lines = self._size + size, self._lines + lines
        if now - self._began < BEHIND_SECONDS or self._size < BEHIND_BYTES:
            return None
        is_behind, tail = self._idle < IDLE_PART * (now - self._began), BEHIND_BYTES // 4 * self._lines // self._size
        self._began, self._idle, self._size, self._lines = now, 0.0, 0, 0
        return max(1, tail) if is_behind else None


class LogOutgrownError(Exception):
    """A log grows faster than it is read, so its last `tail_lines` lines should be read next."""

    def __init__(self, tail_lines: int) -> None:
        super().__init__(f"the log grows faster than it is read; continue with its last {tail_lines} lines")
        self.tail_lines = tail_lines


class LogReader:
    """Reads one log with its part of the share."""

    def __init__(self, share: LogShare, namespace: str, *, clock: Callable[[], float]) -> None:
        """`namespace` is that of the Pod. `clock` returns seconds."""
        self._share, self._account, self._clock = share, LogAccount(namespace), clock
        self._pace = Pace(clock())

    def reopen(self) -> None:
        """Note that the log is opened again."""
        self._pace = Pace(self._clock())

    async def read(self, piece: bytes, parse: Callable[[bytes], None]) -> None:
        """Parse what has arrived, in steps. Raises LogOutgrownError, and what `parse` raises."""
        self._pace.note_arrival(self._clock())
        for begin in range(0, len(piece), STEP_BYTES):
            step = piece[begin : begin + STEP_BYTES]
            await self._share.run(self._account, partial(parse, step))
            tail_lines = self._pace.note_step(len(step), step.count(b"\n"), self._clock())
            if tail_lines is not None:
                raise LogOutgrownError(tail_lines)
