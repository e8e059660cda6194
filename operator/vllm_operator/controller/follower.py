"""Follow the log of one run of an engine container until the run ends or the Pod serves.

A log is read in attempts, each of which is one request. `Outcome` is the result of an attempt, and decides the next step: pause, read the
Pod, or stop. The end of a stream does not mean that the run has ended: the kubelet may have restarted. So the follower then reads the Pod,
whose status decides. After the end of the run it reads the log once more to its end, because the stream may have been interrupted.

If more logs are needed than may be open at the same time, they take turns. While others wait, a log is read to its present end instead of
followed. Such a request ends by itself and frees its connection for the next log.

The kubelet restarts a container before the API server shows it. A log that is opened at that moment is the log of the next run. Only the
times of its lines show this, so `Follower.missed` checks it once the end of the run is known.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, auto

from vllm_operator.controller.container_runs import Run, container_status, ended_run
from vllm_operator.controller.log_lines import LogUnavailableError
from vllm_operator.controller.log_share import LogOutgrownError, LogReader, LogShare
from vllm_operator.controller.log_slots import Slots
from vllm_operator.controller.log_stream import LogStream
from vllm_operator.controller.run_log import Parser, RunLog
from vllm_operator.kube.client import POD, ClusterClient, ClusterError, Forbidden, Invalid, LogRequest, NotFound
from vllm_operator.logs.state import LogProblem, StartupState, UnreadLog, is_same, is_significant

log = logging.getLogger(__name__)

QUIET_SECONDS = 0.2
"""After this silence, all existing lines of a stream are assumed to be read."""
SILENT_SECONDS = 60.0
"""Maximum time to wait for the first line of a stream before it is requested again, because the connection may be dead."""
LINGER_SECONDS = 2.0
"""Maximum time to wait for the last lines of a start after its Pod is Ready."""
FORBIDDEN_SECONDS = 60.0
UNAVAILABLE_LIMIT = 5
"""Number of reads of a running container that return an error text of the kubelet before the follower gives up."""
ENDED_TRIES = 8
"""Number of reads of an ended run's log, within about 40 s, that may be refused or return nothing. Under load, the
kubelet lags behind the status of its Pod. Requests that do not reach the kubelet are not counted."""
DETAIL_LIMIT = 500
"""Maximum number of characters of an error to keep."""


class Outcome(Enum):
    """The result of an attempt to read a log."""

    END = auto()
    """The log was read to its end. If it was followed, the stream was interrupted, or the run has ended."""
    DOUBTFUL = auto()
    """The same, but the log was empty, or may belong to another run."""
    STOPPED = auto()
    """The Pod serves, or the run ended while its log was followed."""
    GAVE_WAY = auto()
    """Another log needs the slot."""
    POLLED = auto()
    """The log was read to its present end, because other logs need the slot."""
    SILENT = auto()
    """No line arrived."""
    OUTGROWN = auto()
    """The log grows faster than it can be read."""
    GONE = auto()
    """The kubelet returned an error text instead of the log."""
    REFUSED = auto()
    """The kubelet or the API server refused the request."""
    FORBIDDEN = auto()
    """The operator lacks the permission."""
    FAILED = auto()
    """The request failed."""


_MISSES = frozenset((Outcome.DOUBTFUL, Outcome.GONE, Outcome.REFUSED))
"""Answers of a kubelet that does not have the log, either no longer or not yet."""
_ERRORS = frozenset((Outcome.REFUSED, Outcome.FAILED))
_SAYS_NOTHING_ABOUT_THE_POD = _ERRORS | {Outcome.STOPPED, Outcome.GAVE_WAY, Outcome.POLLED}
"""After these, the Pod is not read: the watch reports its end, and reading each Pod would cost one more request."""


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """Limits of a follower. `Settings` describes the limits that are also operator settings.

    `turn_seconds`: minimum time that a log is followed while others wait, and pause after it was read. `retry_seconds`: pauses after
    attempts without output; the last one repeats.
    """

    line_bytes: int = 64 * 1024
    replay_bytes: int = 64 * 1024 * 1024
    turn_seconds: float = 5.0
    interval_seconds: float = 10.0
    step_percent: int = 5
    retry_seconds: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0)


class Follower:
    """Reads the log of a run, and publishes significant changes of its state.

    Attributes:
        run: The run, according to the last known status of its Pod.
        caught_up: Whether the existing lines have been read, or cannot be read at present.
        finished: Whether the follower has stopped reading.
        unread: Why nothing could be read; None if something was read or the log is empty.
    """

    def __init__(
        self,
        run: Run,
        parser: Parser,
        *,
        client: ClusterClient,
        slots: Slots,
        share: LogShare,
        settings: FollowerSettings,
        changed: Callable[[], None],
        skipped: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Initialize. `changed` is called after a change of `state`, `caught_up` or `unread`; `skipped` with the seconds of log skipped."""
        self.run = run
        self.caught_up = False
        self.finished = False
        self.unread: UnreadLog | None = UnreadLog(LogProblem.PENDING)
        self._client = client
        self._slots = slots
        self._reader = LogReader(share, run.namespace, clock=clock)
        self._settings = settings
        self._changed = changed
        self._clock = clock
        self._tail_lines: int | None = None
        self._log = RunLog(parser, line_bytes=settings.line_bytes, skipped=skipped)
        self._published: StartupState | None = None
        self._published_at = 0.0
        self._stop_at: float | None = None
        self._wake = asyncio.Event()
        self._dead = run.previous or run.ended_at is not None
        self._began_as_previous = run.previous
        self._has_read_end = False
        self._outcome: Outcome | None = None

    @property
    def state(self) -> StartupState | None:
        """The state of the run at the last significant change; None if nothing could be read."""
        if self._published is None or ((self.finished or self._dead) and not self._log.latest.lines):
            return None
        # These two show whether the start is alive, so they are always current.
        return replace(self._published, last_line_at=self._log.latest.last_line_at, lines=self._log.latest.lines)

    def finish_soon(self) -> None:
        """Read the lines that are about to arrive, then stop. Call this when the Pod serves."""
        if self._stop_at is None:
            self._stop_at = self._clock() + LINGER_SECONDS
            self._wake.set()

    def note_end(self, run: Run) -> None:
        """Record that the run has ended, as `run` shows. Its log is then read to the end even if the Pod served before."""
        if not self._dead:
            self._stop_at = self._clock() + LINGER_SECONDS  # the open stream may belong to the next run and never end
            self._wake.set()
        self.run, self._dead = run, True

    async def follow(self) -> None:
        """Follow until the run is over or the Pod serves. Raises only errors of the parser."""
        try:
            await self._read_all()
            self._finish()
        except asyncio.CancelledError:
            try:
                self._finish()
            except Exception:  # must not replace the cancellation
                log.exception("the end of the log of Pod %s/%s could not be read", self.run.namespace, self.run.pod)
            raise
        finally:
            self.caught_up = self.finished = True

    async def _read_all(self) -> None:
        tries = misses = unavailable = 0
        while self._dead or not self._is_due() or self._outcome is Outcome.POLLED:
            was_dead, lines = self._dead, self._log.latest.lines
            outcome = self._outcome = await self._attempt()
            tries = 0 if self._log.latest.lines > lines else tries + 1
            misses += was_dead and outcome in _MISSES
            unavailable += outcome is Outcome.GONE
            self._has_read_end = was_dead and (outcome is Outcome.END or misses >= ENDED_TRIES)
            if self._has_read_end or (unavailable >= UNAVAILABLE_LIMIT and not self._dead):
                return
            if outcome not in _SAYS_NOTHING_ABOUT_THE_POD and await self._is_over():
                return
            # The report must not wait for the next attempt. A serving Pod needs no log.
            self._catch_up(tell=self._stop_at is None or self._log.latest.lines > 0 or self.unread is not None)
            self._publish()
            await self._rest(self._pause_seconds(outcome, tries))

    async def _attempt(self) -> Outcome:
        try:
            async with self._slots.hold(self.run.namespace):
                outcome = await self._read()
        except LogOutgrownError as error:
            self._tail_lines = error.tail_lines
            outcome = Outcome.OUTGROWN
        except LogUnavailableError as error:
            self._note_problem(LogProblem.GONE, error)
            return Outcome.GONE
        except (Invalid, NotFound) as error:
            self._note_problem(LogProblem.GONE, error)
            return Outcome.REFUSED
        except Forbidden as error:
            log.warning("the log of Pod %s/%s cannot be read: %s", self.run.namespace, self.run.pod, error)
            self._note_problem(LogProblem.FORBIDDEN, error)
            return Outcome.FORBIDDEN
        except ClusterError as error:
            self._note_problem(LogProblem.UNREACHABLE, error)
            return Outcome.FAILED
        if outcome is not Outcome.DOUBTFUL:
            self.unread = None
        return outcome

    def _pause_seconds(self, outcome: Outcome, tries: int) -> float:
        """Return the pause after an attempt in seconds. `tries` is the number of consecutive attempts without output."""
        match outcome:
            case Outcome.STOPPED | Outcome.GAVE_WAY | Outcome.SILENT:
                return 0.0
            case Outcome.POLLED:
                seconds = self._settings.turn_seconds
            case Outcome.FORBIDDEN:
                seconds = FORBIDDEN_SECONDS
            case _:
                seconds = self._settings.retry_seconds[min(max(0, tries - 1), len(self._settings.retry_seconds) - 1)]
        return seconds * random.uniform(0.8, 1.2)  # spread the requests

    async def _rest(self, seconds: float) -> None:
        """Wait before the next attempt, or until the run ends or its Pod serves."""
        until, dead = self._clock() + seconds, self._dead
        while self._dead == dead:
            end = until if self._stop_at is None or self._dead else min(until, self._stop_at)
            if (left := end - self._clock()) <= 0:
                return
            await self._sleep(left)

    async def _sleep(self, seconds: float) -> None:
        """Wait until the timeout or the next relevant event."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    def _note_problem(self, problem: LogProblem, error: Exception) -> None:
        """Record why the log could not be read. Keep the first error of a kind, because its text may differ each time."""
        log.debug("log of Pod %s/%s: %s", self.run.namespace, self.run.pod, error)
        if self.unread is None or self.unread.problem is not problem:
            self.unread = UnreadLog(problem, str(error)[:DETAIL_LIMIT])
            if self.caught_up:
                self._changed()

    def missed(self, run: Run) -> bool:
        """Return whether the log must be read again from its beginning. `run` is the current state of the same run.

        True if the run has ended and its end was not read, because the Pod served before. Also true if the lines that were read may belong
        to the next run, and the Pod now shows this run as the previous one, so that its log can be requested.
        """
        if run.ended_at is None:
            return False
        is_unread = self.finished and not (self._has_read_end and self._log.latest.lines)
        if run.previous and not self._began_as_previous:
            return is_unread or self._log.is_unsure or self._log.begins_after(run.ended_at)
        return self.finished and not self._has_read_end

    def is_credible(self, run: Run) -> bool:
        """Return whether the lines very likely belong to this run, even if some are missing."""
        return run.ended_at is None or not self._log.begins_after(run.ended_at + timedelta(seconds=1))

    def _is_due(self) -> bool:
        return self._stop_at is not None and self._clock() >= self._stop_at

    async def _read(self) -> Outcome:
        """Open the log, and read it until it ends or there is a reason to close it."""
        is_scarce, was_due, was_dead = self._slots.waiting > 0, self._is_due(), self._dead
        # a kubelet without an inotify instance left refuses to follow, and may not refuse to read
        follow = not (was_dead or was_due or is_scarce or self._outcome in _ERRORS)
        self._log.reopen(previous=self.run.previous, skips=self._tail_lines is not None)
        self._reader.reopen()
        request = LogRequest(
            namespace=self.run.namespace,
            pod=self.run.pod,
            container=self.run.container,
            follow=follow,
            previous=self.run.previous,
            since=self._log.since,
            limit_bytes=self._settings.replay_bytes if was_dead else None,
            tail_lines=self._tail_lines,
        )
        self._tail_lines = None
        opening, began = self._client.stream_log(request), self._clock()
        stream = LogStream(opening, lambda piece: self._reader.read(piece, self._take), wake=self._wake, clock=self._clock)
        try:
            while not stream.is_at_end():
                self._look(stream)
                if follow and (reason := self._reason_to_close(stream, began)) is not None:
                    return reason
                await self._sleep(self._seconds_to_next_look(stream))
            self._log.check()
        finally:
            await stream.close()
        if was_due and not was_dead:
            return Outcome.STOPPED
        if is_scarce and not was_dead:
            return Outcome.POLLED
        return Outcome.DOUBTFUL if self._log.is_unsure or not self._log.latest.lines else Outcome.END

    def _look(self, stream: LogStream) -> None:
        """Publish the state. After some silence, all existing lines are assumed to be read."""
        is_quiet = stream.is_open and not stream.is_busy and self._clock() - stream.moved_at >= QUIET_SECONDS
        if is_quiet:
            self._catch_up()
            if self._stop_at is not None:
                self._stop_at = min(self._stop_at, self._clock())
        if self.caught_up:
            self._publish()

    def _reason_to_close(self, stream: LogStream, began: float) -> Outcome | None:
        """Return why a followed stream that has not ended should be closed; None if it should stay open."""
        now = self._clock()
        if self._is_due():
            return Outcome.STOPPED
        if not stream.is_open and now - began >= SILENT_SECONDS:
            return Outcome.SILENT
        if now - began >= self._settings.turn_seconds and self._slots.should_leave():
            return Outcome.GAVE_WAY
        return None

    def _seconds_to_next_look(self, stream: LogStream) -> float:
        if self._stop_at is not None or (stream.is_open and not self.caught_up):
            return QUIET_SECONDS
        return min(self._settings.turn_seconds, self._settings.interval_seconds, SILENT_SECONDS)

    def _take(self, step: bytes) -> None:
        self._log.feed(step, self.run.ended_at)
        if self._log.size > self._settings.replay_bytes:
            self._catch_up()  # no start writes this much, so do not wait for the last line
        if self.caught_up:
            self._publish()
            self._wake.set()

    async def _is_over(self) -> bool:
        """Read the Pod, and record the end of the run. Return whether reading is complete."""
        try:
            pod = await self._client.get(POD, self.run.pod, self.run.namespace)
        except NotFound:
            return True
        except ClusterError:
            return False
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

    def _catch_up(self, *, tell: bool = True) -> None:
        if not self.caught_up:
            self.caught_up = True
            self._publish(force=True, tell=tell)

    def _publish(self, *, force: bool = False, tell: bool = True) -> None:
        state, old = self._log.latest, self._published
        if old is not None and not force:
            is_due = self._clock() - self._published_at >= self._settings.interval_seconds
            if is_same(old, state) or not (is_due or is_significant(old, state, self._settings.step_percent)):
                return
        self._published, self._published_at = state, self._clock()
        if tell:
            self._changed()

    def _finish(self) -> None:
        self._log.end(has_ended=self._dead)
        if self.unread is not None and self.unread.problem is LogProblem.PENDING and self._has_read_end:
            self.unread = None  # the log is empty
        self.caught_up = self.finished = True
        self._publish(force=self._published is None)
        if self._published is not None and not is_same(self._published, self._log.latest):
            self._published = self._log.latest
            self._changed()
