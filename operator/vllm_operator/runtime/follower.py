"""Follow the log of one run of an engine container until the run ends or the Pod serves.

A stream that ends says nothing by itself: containers exit, kubelets restart, turns are over. After every end
the Pod is read, and its status decides. Once the container is dead its log is read to the end once more,
because the stream may have broken off before it.

The kubelet knows of a restart before the API server does. A log that is opened then is that of the next run, and nothing but
the times of its lines shows it. `Follower.missed` finds that out once the end of the run is known.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from vllm_operator.cluster.client import POD, ClusterClient, ClusterError, Forbidden, Invalid, LogRequest, NotFound
from vllm_operator.runtime.container_runs import Run, container_status, ended_run
from vllm_operator.runtime.log_lines import LogLines, LogUnavailableError
from vllm_operator.startup.state import LogProblem, StartupState, UnreadLog


class Slots:
    """So many at a time; whoever holds a place can see that others wait, and give it up for a turn."""

    def __init__(self, number: int) -> None:
        self._semaphore = asyncio.Semaphore(number)
        self.waiting = 0
        self.taken = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place and hold it."""
        self.waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.waiting -= 1
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._semaphore.release()


log = logging.getLogger(__name__)

QUIET_SECONDS = 0.2
"""A stream that is silent for this long has shown all that was there."""
LINGER_SECONDS = 2.0
"""How long the last lines of a start are waited for once its Pod is Ready."""
REST_FACTOR = 2.0
"""A stream rests this many times as long as its lines took to read: a flood gets a third of the time at most."""
FORBIDDEN_SECONDS = 60.0
MAX_APOLOGIES = 5
ENDED_TRIES = 8
"""Reads of the log of a run that has ended, in some forty seconds, that the kubelet refuses or answers with nothing: under load it
lags behind its Pod's status. Reads that fail on the way to it do not count."""
DETAIL_LIMIT = 500
"""Characters of an error that are kept."""
LATE_SECONDS = 2
"""A line that was written so long after the end of a run is not its own. Ends are given in whole seconds."""


class Parser(Protocol):
    """What reads the lines: `vllm_operator.startup` provides it."""

    def feed(self, data: bytes, timestamp: datetime | None = None) -> None:
        """Take lines, which were written at this time."""

    def end(self) -> None:
        """The log is complete."""

    @property
    def state(self) -> StartupState:
        """What has been told so far."""

    @property
    def final_state(self) -> StartupState:
        """What has been told, once the process has ended."""


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """Bounds of a follower; see `Settings` for what they mean."""

    line_bytes: int = 64 * 1024
    replay_bytes: int = 64 * 1024 * 1024
    turn_seconds: float = 20.0
    interval_seconds: float = 10.0
    step_percent: int = 5
    retry_seconds: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0)


class Follower:
    """Reads the log of a run and publishes what it tells, at most as often as is worth a look."""

    def __init__(
        self,
        run: Run,
        parser: Parser,
        *,
        client: ClusterClient,
        slots: Slots,
        settings: FollowerSettings,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called whenever `state` or `caught_up` has changed in a way that matters."""
        self.run = run
        self.caught_up = False
        self.finished = False
        self.unread: UnreadLog | None = UnreadLog(LogProblem.PENDING)
        self._client = client
        self._slots = slots
        self._settings = settings
        self._changed = changed
        self._clock = clock
        self._parser: Parser | None = parser
        self._lines = LogLines(line_bytes=settings.line_bytes)
        self._published: StartupState | None = None
        self._published_at = 0.0
        self._latest = parser.state
        self._read_bytes = 0
        self._stop_at: float | None = None
        self._wake = asyncio.Event()
        self._dead = run.previous or run.ended_at is not None
        self._began_as_previous = run.previous
        self._has_read_end = False
        self._is_at_end = False
        self._was_reopened = False
        self._begins_at: datetime | None = None  # the first line of a log that was opened without knowing of which run it is
        self._at_first_line = False

    @property
    def state(self) -> StartupState | None:
        """What the log has told, as of the last change that matters; None where nothing could be read."""
        if self._published is None or ((self.finished or self._dead) and not self._latest.lines):
            return None
        # whether it is still alive must not be rounded
        return replace(self._published, last_line_at=self._latest.last_line_at, lines=self._latest.lines)

    def finish_soon(self) -> None:
        """The Pod serves: take the lines that are on their way, then stop."""
        if self._stop_at is None:
            self._stop_at = self._clock() + LINGER_SECONDS
            self._wake.set()

    def note_end(self, run: Run) -> None:
        """The run has ended, as its Pod shows in `run`: read its log to the end, although the Pod served before."""
        if not self._dead:
            self._stop_at = self._clock() + LINGER_SECONDS  # the open stream may be that of the next run, and so have no end
            self._wake.set()
        self.run, self._dead = run, True

    async def follow(self) -> None:
        """Follow until the run is over or `finish_soon` has come true. Raises nothing but CancelledError."""
        tries = apologies = misses = 0
        try:
            while self._dead or not self._is_due():
                before, dead = self._latest.lines, self._dead
                wait = 0.0
                has_missed = False
                try:
                    async with self._slots.place():
                        await self._read()
                    has_missed = self._is_at_end and (self._is_unsure or not self._latest.lines)
                    self._has_read_end = dead and self._is_at_end and not has_missed
                    self.unread = self.unread if has_missed else None
                except LogUnavailableError as error:
                    apologies += 1
                    has_missed = True
                    wait = self._backoff(tries)
                    self._note_problem(LogProblem.GONE, error)
                except (Invalid, NotFound) as error:
                    log.debug("log of Pod %s/%s: %s", self.run.namespace, self.run.pod, error)
                    has_missed = True
                    self._note_problem(LogProblem.GONE, error)
                except Forbidden as error:
                    log.warning("the log of Pod %s/%s cannot be read: %s", self.run.namespace, self.run.pod, error)
                    wait = FORBIDDEN_SECONDS
                    self._note_problem(LogProblem.FORBIDDEN, error)
                except ClusterError as error:
                    log.debug("log of Pod %s/%s: %s", self.run.namespace, self.run.pod, error)
                    wait = self._backoff(tries)
                    self._note_problem(LogProblem.UNREACHABLE, error)
                tries = 0 if self._latest.lines > before else tries + 1
                misses += dead and has_missed
                self._has_read_end = self._has_read_end or misses >= ENDED_TRIES
                if (apologies >= MAX_APOLOGIES and not self._dead) or self._has_read_end or await self._over():
                    break
                self._catch_up()  # nothing to be had now: waiting for it would hold up the report
                await asyncio.sleep(wait or self._backoff(tries))
        finally:
            self._finish()

    def _note_problem(self, problem: LogProblem, error: Exception) -> None:
        """Keep why the log could not be read. The first error of a kind stays, because its words may differ each time."""
        if self.unread is None or self.unread.problem is not problem:
            self.unread = UnreadLog(problem, str(error)[:DETAIL_LIMIT])
            if self.caught_up:
                self._changed()

    @property
    def _is_unsure(self) -> bool:
        """Whether the last log that was opened is not known to be that of this run."""
        return self._was_reopened and not self._lines.continues

    def missed(self, run: Run) -> bool:
        """Whether the log of this run must be read anew, from its beginning. `run` is the same run, as its Pod shows it now.

        It must if the run has ended and its end was not read, because the Pod served before; and if, as the previous run, it can be
        told from the next one by now, and what was read may be that of the next one.
        """
        if run.ended_at is None:
            return False
        is_unread = self.finished and not (self._has_read_end and self._latest.lines)
        if run.previous and not self._began_as_previous:
            return is_unread or self._is_unsure or (self._begins_at is not None and self._begins_at >= run.ended_at)
        return self.finished and not self._has_read_end

    def is_credible(self, run: Run) -> bool:
        """Whether what was read is very likely the log of this run, although not all of it."""
        return run.ended_at is None or self._begins_at is None or self._begins_at < run.ended_at + timedelta(seconds=1)

    def _backoff(self, tries: int) -> float:
        waits = self._settings.retry_seconds
        return waits[min(tries, len(waits) - 1)] * random.uniform(0.8, 1.2)

    def _is_due(self) -> bool:
        """Whether it is time to end a stream that goes on."""
        return self._stop_at is not None and self._clock() >= self._stop_at

    async def _read(self) -> None:
        """Read one stream to its end, to the end of the turn, or until the Pod serves."""
        self._was_reopened = not self.run.previous and self._lines.since is not None
        self._lines.reopen()
        self._is_at_end = False
        self._at_first_line = not self.run.previous
        turn_until = self._clock() + self._settings.turn_seconds
        request = LogRequest(
            namespace=self.run.namespace,
            pod=self.run.pod,
            container=self.run.container,
            follow=not self._dead,
            previous=self.run.previous,
            since=self._lines.since,
            limit_bytes=self._settings.replay_bytes if self._dead else None,
        )
        async with self._client.stream_log(request) as stream:
            pieces = aiter(stream)
            pending: asyncio.Task[bytes] | None = None
            serves: asyncio.Task[object] = asyncio.create_task(self._wake.wait(), name="end of a start")
            try:
                while not (request.follow and self._is_due()):
                    pending = pending or asyncio.create_task(_next(pieces), name="piece of a log")
                    news: set[asyncio.Task[Any]] = {pending} if serves.done() else {pending, serves}
                    done, _ = await asyncio.wait(news, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED)
                    if pending in done:
                        piece, pending = pending.result(), None
                        if not piece:
                            self._lines.check()
                            self._is_at_end = True
                            return
                        await self._take(piece)
                    elif not done:
                        self._fall_silent()
                    if self._slots.waiting and self._clock() >= turn_until:
                        return
            finally:
                left = [task for task in (pending, serves) if task is not None]
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)

    def _patience(self) -> float:
        """For how long to wait for more, in seconds: there is nothing to do before."""
        if not self.caught_up or self._stop_at is not None:
            return QUIET_SECONDS
        if self._published is not None and not _same(self._published, self._latest):
            return max(0.05, self._published_at + self._settings.interval_seconds - self._clock())
        return self._settings.turn_seconds

    def _fall_silent(self) -> None:
        """Nothing more has come for as long as it was waited for."""
        self._catch_up()
        self._publish()
        if self._stop_at is not None:
            self._stop_at = self._clock()  # it serves, or has ended

    async def _take(self, piece: bytes) -> None:
        started = time.perf_counter()
        self._read_bytes += len(piece)
        for lines, moment in self._lines.feed(piece):
            self._check_run(moment)
            self._feed(lines, moment)
        self._latest = self._parser.state if self._parser else self._latest
        if self._read_bytes > self._settings.replay_bytes:
            self._catch_up()  # no start writes this much: do not wait for its end
        if self.caught_up:
            self._publish()
        await asyncio.sleep((time.perf_counter() - started) * REST_FACTOR)

    def _check_run(self, moment: datetime | None) -> None:
        """Raises LogUnavailableError if a line was written after the end of the run."""
        if moment is None:
            return
        if self.run.ended_at is not None and moment > self.run.ended_at + timedelta(seconds=LATE_SECONDS):
            raise LogUnavailableError("this is the log of a later run")
        if self._at_first_line:
            self._at_first_line = False
            if not self._lines.continues or not self._latest.lines:
                self._begins_at = moment

    def _feed(self, lines: bytes, moment: datetime | None) -> None:
        if self._parser is not None:
            self._parser.feed(lines, moment)

    async def _over(self) -> bool:
        """Look at the Pod: whether there is nothing more to read. Notes how the run has ended."""
        try:
            pod = await self._client.get(POD, self.run.pod, self.run.namespace)
        except NotFound:
            return True
        except ClusterError:
            return False  # no news: try again
        status = container_status(pod, self.run.container)
        restarts = int(status.get("restartCount") or 0)
        if pod["metadata"].get("uid") != self.run.uid or restarts > self.run.restarts + 1:
            return True
        ended = ended_run(pod, self.run.container, self.run.restarts)
        if ended is None and restarts > self.run.restarts:
            ended = replace(self.run, previous=True)
        if ended is not None:
            self.run = ended
        self._dead = self._dead or ended is not None or "running" not in (status.get("state") or {})
        return False

    def _catch_up(self) -> None:
        if not self.caught_up:
            self.caught_up = True
            self._publish(force=True)

    def _publish(self, *, force: bool = False) -> None:
        state = self._latest
        old = self._published
        if not force and old is not None:
            if _same(old, state):
                return
            due = self._clock() - self._published_at >= self._settings.interval_seconds
            if not due and not is_worth_a_look(old, state, self._settings.step_percent):
                return
        if old is not None and _same(old, state) and not force:
            return
        self._published, self._published_at = state, self._clock()
        self._changed()

    def _finish(self) -> None:
        rest = self._lines.flush()
        if rest is not None and self._parser is not None:
            self._feed(*rest)
        if self._parser is not None and self._dead:
            self._parser.end()
            self._latest = self._parser.final_state
        elif self._parser is not None:
            self._latest = self._parser.state
        self._parser = None  # its memory is needed no more
        if self.unread is not None and self.unread.problem is LogProblem.PENDING and self._has_read_end:
            self.unread = None  # it is empty
        self.caught_up = self.finished = True
        self._publish(force=self._published is None)
        if self._published is not None and not _same(self._published, self._latest):
            self._published = self._latest
            self._changed()


async def _next(pieces: AsyncIterator[bytes]) -> bytes:
    return await anext(pieces, b"")


def _same(old: StartupState, new: StartupState) -> bool:
    return replace(old, lines=0, last_line_at=None) == replace(new, lines=0, last_line_at=None)


def is_worth_a_look(old: StartupState, new: StartupState, step_percent: int) -> bool:
    """Whether something has changed that a person wants to know at once; progress counts from some percent on."""
    if old.progress is not None and new.progress is not None and new.progress.total:
        moved = abs(new.progress.completed - old.progress.completed) * 100
        same = replace(new, progress=old.progress)
        return not _same(old, same) or old.progress.total != new.progress.total or moved >= step_percent * new.progress.total
    return not _same(old, new)
