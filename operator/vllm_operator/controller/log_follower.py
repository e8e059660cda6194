r"""Follow the log of one run of a container until the run ends or the Pod serves.

A log is read in attempts, each of which is one request. `ReadOutcome` is the result of an attempt, and decides the next step: pause, read
the Pod, or stop. The end of a stream does not mean that the run has ended: the kubelet may have restarted. So the follower then reads the
Pod, whose status decides. After the end of the run it reads the log once more to its end, because the stream may have been interrupted.

If more logs are needed than may be open at the same time, they take turns. While others wait, a log is read to its present end instead of
followed, so that its connection is free for the next log.

The kubelet restarts a container before the API server shows it. A log that is opened at that moment is the log of the next run. Only the
times of its lines show this, so `Follower.note_end` checks it once the end of the run is known.

The API server prefixes each line with an RFC 3339 time and a space. Observed behavior of a kubelet (v1.35.4):

* `sinceTime` is inclusive and cut to whole seconds, so a resumed stream begins with lines that were read before. They come first, in the
  order of the file, so counting them is enough. Their times are not, because two lines may have the same time, and stdout and stderr may
  be out of order by milliseconds.
* The last text of a container may have no newline. A stream may also end within a line because the kubelet restarts. The resumed stream
  then has the whole line. Call `LogLines.flush` only in the first case.
* A line of 300 KB arrives in pieces with one time. It is returned in bounded pieces.
"""

import asyncio
import itertools
import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial

from vllm_operator.api import labels, reading
from vllm_operator.controller.log_share import STEP_BYTES, LogAccount, LogShare, Pace, Slots
from vllm_operator.kube.client import POD, ClusterClient, ClusterError, Forbidden, Invalid, Key, LogRequest, Manifest, NotFound
from vllm_operator.logs.lines import read_time
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import LogProblem, StartupState, UnreadLog, is_same, is_significant

log = logging.getLogger(__name__)

LINE_BYTES = 64 * 1024
"""Length above which a line is parsed in pieces."""
REPLAY_BYTES = 64 * 1024 * 1024
"""Maximum number of bytes of an ended run's log that are read. No start writes this much."""
STEP_PERCENT = 5
"""Progress that is reported without waiting for `INTERVAL_SECONDS`."""
INTERVAL_SECONDS = 10.0
"""Minimum time between reports of smaller progress."""
TURN_SECONDS = 5.0
"""Minimum time that a log is followed while others wait, and pause after it was read."""
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses after attempts without output; the last one repeats."""
RESTART_SECONDS = (1.0, 5.0, 30.0, 300.0)
"""Pauses before a log is read again after its parser has failed: it may fail again on the same line."""
QUIET_SECONDS = 0.2
"""After this silence, all existing lines of a stream are assumed to be read."""
SILENT_SECONDS = 60.0
"""Maximum time to wait for the first line of a stream before it is requested again, because the connection may be dead."""
LINGER_SECONDS = 2.0
"""Maximum time to wait for the last lines of a start after its Pod is Ready."""
FORBIDDEN_SECONDS = 60.0
ENDED_TRIES = 8
"""Number of reads of an ended run's log, within about 40 s, that may be refused or return nothing. Under load, the
kubelet lags behind the status of its Pod. Requests that do not reach the kubelet are not counted."""
LATE_SECONDS = 2
"""A line that was written this long after the end of a run belongs to a later run. End times are whole seconds."""
_AMOUNTS = (1, 10, 60, 600, 3600, 6 * 3600, 24 * 3600)
"""Reported amounts of skipped log, in seconds. They are rounded down, so that the status does not change all the time."""
_UNAVAILABLE = b"unable to retrieve container logs"
"""The kubelet returns this with status 200 if the container no longer exists."""
_TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d) ?")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a container of an engine, or of a Job that fetches weights."""

    namespace: str
    pod: str
    uid: str
    container: str
    restarts: int
    previous: bool = False
    """Whether this is the run before the current one, whose log is requested with `previous`."""
    ended_at: datetime | None = None
    """When the run ended; None if it is running or the time is unknown."""

    @property
    def key(self) -> tuple[str, int]:
        """The UID of the Pod, and the number of restarts before the run."""
        return self.uid, self.restarts


def runs_to_follow(pod: Manifest, container: str = labels.CONTAINER) -> tuple[Run, ...]:
    """Return the current run of a Pod if it has started, and the run before it if that crashed."""
    status = _container_status(pod, container)
    restarts = int(status.get("restartCount") or 0)
    is_running = "running" in (status.get("state") or {})
    ended = ended_run(pod, container, restarts - is_running)  # until the restart, the current log belongs to the ended run
    current = _run(pod, container, restarts) if is_running else None
    return tuple(run for run in (ended, current) if run is not None)


def ended_run(pod: Manifest, container: str, restarts: int) -> Run | None:
    """Return an ended run of a Pod; None if the status of the Pod does not show that it ended."""
    status = _container_status(pod, container)
    now = int(status.get("restartCount") or 0)
    state, before = status.get("state") or {}, status.get("lastState") or {}
    has_begun = "running" in state or "terminated" in state  # otherwise the container waits, and `lastState` belongs to the run itself
    previous = now == restarts + 1 and has_begun
    ended = state if now == restarts and has_begun else before
    if (now != restarts and not previous) or "terminated" not in ended:
        return None
    return replace(_run(pod, container, restarts), previous=previous, ended_at=reading.moment(ended, "terminated", "finishedAt"))


def _run(pod: Manifest, container: str, restarts: int) -> Run:
    metadata = pod["metadata"]
    return Run(metadata["namespace"], metadata["name"], metadata["uid"], container, restarts)


def _container_status(pod: Manifest, container: str) -> Manifest:
    return dict(reading.named(pod, container, "status", "containerStatuses", key="name"))


class LogUnavailableError(Exception):
    """The kubelet returned an error text instead of the log."""


class LogLines:
    """Splits the bytes of a log into lines with their times, across reconnects, without losing or repeating lines."""

    def __init__(self, *, line_bytes: int = LINE_BYTES) -> None:
        """Initialize. Longer lines are returned in pieces of `line_bytes`."""
        self.continues = True
        """Whether the resumed stream began with the lines that were read last. If not, the log was rotated or is of another run."""
        self._line_bytes = line_bytes
        self._tail = b""
        self._inside = False  # within a long line, of which pieces were returned, and whose time is `_head`
        self._head: re.Match[bytes] | None = None
        self._first = True
        self._second, self._zone = b"", b"Z"  # the latest second, and the number of lines in it
        self._seen = 0
        self._latest = b""
        self._skip = 0

    @property
    def since(self) -> str | None:
        """The `sinceTime` for the resumed stream; None for all lines."""
        return (self._second + self._zone).decode("ascii") if self._second else None

    def reopen(self) -> None:
        """Prepare for a stream that is resumed with `since` and therefore repeats lines."""
        self._tail, self._inside, self._first = b"", False, True
        self._skip = self._seen
        self.continues = not self._seen

    def feed(self, data: bytes) -> Iterator[tuple[bytes, datetime | None]]:
        """Read bytes. Yield lines with their newlines and their time (None if it is invalid). Raises LogUnavailableError."""
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            if (found := self._line(line)) is not None:
                yield found
        if len(self._tail) > self._line_bytes:
            piece, self._tail = self._tail, b""
            if not self._inside:
                self._inside, self._head = True, _TIME.match(piece)
                piece = piece[self._head.end() :] if self._head else piece
            if not self._skip:
                yield piece, _moment(self._head)

    def check(self) -> None:
        """End the stream. Raises LogUnavailableError if it was only an error text without a newline."""
        if self._first and self._tail.startswith(_UNAVAILABLE):
            self.flush()

    def flush(self) -> tuple[bytes, datetime | None] | None:
        """Return the last line of an ended container, if it has no newline; else None."""
        rest, self._tail = self._tail, b""
        return self._line(rest) if rest else None

    def _line(self, line: bytes) -> tuple[bytes, datetime | None] | None:
        """Return a line with its time; None if it was read before the stream was resumed."""
        if self._first and line.startswith(_UNAVAILABLE):
            raise LogUnavailableError(line[:200].decode("utf-8", "replace"))
        head = self._head if self._inside else _TIME.match(line)
        text = line if self._inside or head is None else line[head.end() :]
        self._first = self._inside = False
        if head is None:
            return text + b"\n", None
        second, fraction, zone = head.groups()
        time = second + (fraction or b".").ljust(10, b"0")  # the kubelet removes trailing zeros
        if self._skip and time <= self._latest:
            self._skip -= 1
            self.continues = True
            return None
        self._skip = 0  # if lines to skip are left, the log was rotated, and they no longer exist
        self._latest = max(self._latest, time)
        if second > self._second:
            self._second, self._zone, self._seen = second, zone, 0
        self._seen += second == self._second
        return text + b"\n", _moment(head)


def _moment(head: re.Match[bytes] | None) -> datetime | None:
    return read_time(head[0].decode("ascii")) if head is not None else None


class RunLog:
    """The log of one run, read from one or more streams, and whether the lines that were read belong to it."""

    def __init__(self, parser: StartupParser, *, skipped: Callable[[float], None]) -> None:
        """Initialize. `skipped` is called with the seconds of skipped log."""
        self.latest, self.lines = parser.state, LogLines()
        self.size = 0  # number of bytes that were read, including repeated lines
        self._parser: StartupParser | None = parser
        self._was_reopened = self._skips = self._at_first_line = False
        self._begins_at: datetime | None = None  # time of the first line of a log that may belong to the next run
        self._last_at: datetime | None = None
        self._note_skipped, self._skipped_seconds = skipped, 0.0

    @property
    def is_unsure(self) -> bool:
        """Whether the log that was opened last may belong to another run."""
        return self._was_reopened and not self.lines.continues

    def begins_after(self, moment: datetime) -> bool:
        """Return whether the log may belong to the next run and its first line was written at `moment` or later."""
        return self._begins_at is not None and self._begins_at >= moment

    def reopen(self, *, previous: bool, skips: bool) -> None:
        """Prepare for another stream. `previous`: it can only belong to an ended run. `skips`: it begins near the end of the log."""
        self._was_reopened = not (previous or skips) and self.lines.since is not None
        self.lines.reopen()
        self._at_first_line, self._skips = not previous, skips

    def feed(self, piece: bytes, ended_at: datetime | None) -> None:
        """Parse bytes of a run that ended at `ended_at` (None: running). Raises LogUnavailableError if they are not log output."""
        assert self._parser is not None
        self.size += len(piece)
        for line, moment in self.lines.feed(piece):
            if moment is not None:
                self._check_run(moment, ended_at)
            self._parser.feed(line, moment)
        self._update(self._parser.state)

    def end(self, *, has_ended: bool) -> None:
        """End the log, and free the memory of its parser. `has_ended`: the run is over."""
        assert self._parser is not None
        if (rest := self.lines.flush()) is not None:
            self._parser.feed(*rest)
        if has_ended:
            self._parser.end()
        self._update(self._parser.final_state if has_ended else self._parser.state)
        self._parser = None

    def _update(self, state: StartupState) -> None:
        skipped = max((amount for amount in _AMOUNTS if amount <= self._skipped_seconds), default=_AMOUNTS[0])
        self.latest = replace(state, skipped_seconds=skipped) if self._skipped_seconds else state

    def _check_run(self, moment: datetime, ended_at: datetime | None) -> None:
        if self._skips and not self.lines.continues and self._last_at is not None and moment > self._last_at:
            seconds = (moment - self._last_at).total_seconds()
            self._skipped_seconds += seconds
            self._note_skipped(seconds)
        self._skips, self._last_at = False, moment
        if ended_at is not None and moment > ended_at + timedelta(seconds=LATE_SECONDS):
            raise LogUnavailableError("this is the log of a later run")
        if self._at_first_line:
            self._at_first_line = False
            if not self.lines.continues or not self.latest.lines:
                self._begins_at = moment


class ReadOutcome(Enum):
    """The result of an attempt to read a log without an error."""

    END = auto()
    """The log was read to its end. If it was followed, the stream was interrupted, or the run has ended."""
    DOUBTFUL = auto()
    """The same, but the log was empty, or may belong to another run."""
    CLOSED = auto()
    """The Pod serves, the run has ended, another log needs the slot, no line arrived, or the log grows too fast."""
    POLLED = auto()
    """The log was read to its present end, because other logs need the slot."""


@dataclass(eq=False)
class LogParts:
    """What all followers share."""

    client: ClusterClient
    _: KW_ONLY
    make_parser: Callable[[], StartupParser]
    changed: Callable[[Key], None]
    """Called with the key of the VLLMDeployment after a significant change."""
    slots: Slots = field(default_factory=lambda: Slots(200))
    """For the open log streams."""
    restarted: Callable[[], None] = lambda: None
    """Called when a log is read again, because the parser failed."""
    share: LogShare = field(default_factory=LogShare)
    skipped: Callable[[str, float], None] = lambda namespace, seconds: None
    """Called with a namespace and the seconds of skipped log of its Pod."""
    clock: Callable[[], float] = time.monotonic


class Follower:
    """Reads the log of a run, and publishes significant changes of its state.

    `caught_up`: the existing lines have been read, or cannot be read at present. `unread`: why nothing could be read; None if something was
    read or the log is empty. `former` is the replaced follower of the same run, whose state is used until this one has a state. With
    `tail_lines`, the log is read from so many lines before its end.
    """

    def __init__(self, run: Run, key: Key, parts: LogParts, *, former: "Follower | None" = None, tail_lines: int | None = None) -> None:
        """Initialize for a run of the VLLMDeployment of a key."""
        self._key, self._parts, self._clock = key, parts, parts.clock
        self.begun_at, self.former, self._first_tail = self._clock(), former, tail_lines
        self._account = LogAccount(run.namespace)
        self._wake = asyncio.Event()
        self._is_stopped = False
        self._reset(run)

    def _reset(self, run: Run) -> None:
        self.run = run
        self.caught_up = self._finished = False
        self.unread: UnreadLog | None = UnreadLog(LogProblem.PENDING)
        self._log = RunLog(self._parts.make_parser(), skipped=partial(self._parts.skipped, run.namespace))
        self._published: StartupState | None = None
        self._published_at = 0.0
        self._stop_at: float | None = None
        self._run_ended = run.previous or run.ended_at is not None
        self._began_as_previous = run.previous
        self._has_read_end = False
        self._outcome: ReadOutcome | LogProblem | None = None
        self._tail_lines: int | None = None  # number of lines at the end of a log that grows too fast, to be read next
        self._is_open = False  # the response of the current attempt has begun
        self._quiet_since: float | None = None  # since when the open stream has nothing to parse

    @property
    def state(self) -> StartupState | None:
        """The state of the run at the last significant change; None if nothing could be read."""
        if self._published is None or ((self._finished or self._run_ended) and not self._log.latest.lines):
            return self.former.state if self.former is not None else None
        # These two show whether the start is alive, so they are always current.
        return replace(self._published, last_line_at=self._log.latest.last_line_at, lines=self._log.latest.lines)

    def start(self) -> None:
        """Follow until the run is over or the Pod serves."""
        self.task = asyncio.create_task(self._follow(), name=f"log {self.run.namespace}/{self.run.pod} {self.run.restarts}")
        self.task.add_done_callback(self._ended)

    def stop(self) -> None:
        """Stop following."""
        self._is_stopped = True
        self.task.cancel()

    def finish_soon(self) -> None:
        """Read the lines that are about to arrive, then stop. Call this when the Pod serves."""
        if self._stop_at is None:
            self._stop_at = self._clock() + LINGER_SECONDS
            self._wake.set()

    def note_end(self, run: Run) -> bool:
        """Record that the run has ended, as `run` shows. Return whether its log must be read again from its beginning.

        True if the end was not read, because the Pod served before. Also true if the lines that were read may belong to the next run, and
        the Pod now shows this run as the previous one, so that its log can be requested.
        """
        is_missed = self._finished and not self._has_read_end
        if run.previous and not self._began_as_previous and run.ended_at is not None:
            is_empty = self._finished and not self._log.latest.lines
            is_missed = is_missed or is_empty or self._log.is_unsure or self._log.begins_after(run.ended_at)
        if not self._run_ended:
            self._stop_at = self._clock() + LINGER_SECONDS  # the open stream may belong to the next run and never end
            self._wake.set()
        self.run, self._run_ended = run, True  # the log is read to its end even if the Pod served before
        return is_missed and run.ended_at is not None

    def is_credible(self) -> bool:
        """Return whether the lines of an ended run very likely belong to it, even if some are missing."""
        return self.run.ended_at is None or not self._log.begins_after(self.run.ended_at + timedelta(seconds=1))

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Restart a task that was cancelled by mistake."""
        if task.cancelled() and not self._is_stopped:
            self._parts.restarted()
            self._reset(self.run)
            self.start()

    async def _follow(self) -> None:
        """Follow to the end. If the parser fails, read the log again from its beginning."""
        for failures in itertools.count():
            try:
                await self._read_all()
                self._finish()
                return
            except asyncio.CancelledError:
                with suppress(Exception):  # the end of a log that is no longer followed
                    self._finish()
                raise
            except Exception:
                log.exception("following the log of Pod %s/%s failed; it is read again", self.run.namespace, self.run.pod)
            finally:
                self.caught_up = self._finished = True
            if self._is_stopped:
                return
            self._parts.restarted()
            await asyncio.sleep(RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)])
            self._reset(self.run)

    async def _read_all(self) -> None:
        """Read until the run is over or the Pod serves. Raises only errors of the parser."""
        tries = misses = 0
        while self._run_ended or not self._should_stop() or self._outcome is ReadOutcome.POLLED:
            had_ended, lines = self._run_ended, self._log.latest.lines
            outcome = self._outcome = await self._attempt()
            tries = 0 if self._log.latest.lines > lines else tries + 1
            misses += had_ended and outcome in (ReadOutcome.DOUBTFUL, LogProblem.GONE)  # the kubelet does not have the log, or not yet
            self._has_read_end = had_ended and (outcome is ReadOutcome.END or misses >= ENDED_TRIES)
            # Only the end of a stream needs a look at the Pod. Anything else says nothing about it, and the watch reports its end.
            if self._has_read_end or (outcome in (ReadOutcome.END, ReadOutcome.DOUBTFUL) and await self._is_over()):
                return
            self._mark_caught_up()  # the report must not wait for the next attempt
            self._publish()
            await self._wait_before_retry(self._pause_seconds(outcome, tries))

    async def _attempt(self) -> ReadOutcome | LogProblem:
        try:
            async with self._parts.slots.hold(self.run.namespace):
                outcome = await self._read()
        except (LogUnavailableError, Invalid, NotFound) as error:
            return self._failed(LogProblem.GONE, error)
        except Forbidden as error:
            log.warning("the log of Pod %s/%s cannot be read: %s", self.run.namespace, self.run.pod, error)
            return self._failed(LogProblem.FORBIDDEN, error)
        except ClusterError as error:
            return self._failed(LogProblem.UNREACHABLE, error)
        if outcome is not ReadOutcome.DOUBTFUL:
            self.unread = None
        return outcome

    def _failed(self, problem: LogProblem, error: Exception) -> LogProblem:
        """Record why the log could not be read. Keep the first error of a kind, because its text may differ each time."""
        log.debug("log of Pod %s/%s: %s", self.run.namespace, self.run.pod, error)
        if self.unread is None or self.unread.problem is not problem:
            self.unread = UnreadLog(problem, str(error)[:500])
            if self.caught_up:
                self._parts.changed(self._key)
        return problem

    async def _read(self) -> ReadOutcome:
        is_scarce, should_stop, had_ended = self._parts.slots.waiting > 0, self._should_stop(), self._run_ended
        # a kubelet without an inotify instance left refuses to follow, and may not refuse to read
        follow = not (had_ended or should_stop or is_scarce or isinstance(self._outcome, LogProblem))
        tail_lines = self._tail_lines or (self._first_tail if self._log.lines.since is None else None)
        self._log.reopen(previous=self.run.previous, skips=tail_lines is not None)
        request = LogRequest(
            namespace=self.run.namespace,
            pod=self.run.pod,
            container=self.run.container,
            follow=follow,
            previous=self.run.previous,
            since=self._log.lines.since,
            limit_bytes=REPLAY_BYTES if had_ended else None,
            tail_lines=tail_lines,
        )
        began = self._clock()
        self._is_open, self._quiet_since, self._tail_lines = False, None, None
        # Another task reads, so that the follower can act while nothing arrives.
        stream = asyncio.create_task(self._stream(request), name="stream of a log")
        stream.add_done_callback(lambda task: self._wake.set())
        try:
            while not stream.done():
                self._look()
                if follow and self._should_close(began):
                    return ReadOutcome.CLOSED
                await self._sleep(self._seconds_to_next_look())
            stream.result()
        finally:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
        if self._tail_lines is not None or (should_stop and not had_ended):
            return ReadOutcome.CLOSED
        if is_scarce and not had_ended:
            return ReadOutcome.POLLED
        return ReadOutcome.DOUBTFUL if self._log.is_unsure or not self._log.latest.lines else ReadOutcome.END

    async def _stream(self, request: LogRequest) -> None:
        pace = Pace(self._clock())
        async with self._parts.client.stream_log(request) as pieces:
            self._is_open, self._quiet_since = True, self._clock()
            self._wake.set()
            async for piece in pieces:
                self._quiet_since = None
                pace.note_arrival(self._clock())
                for begin in range(0, len(piece), STEP_BYTES):
                    step = piece[begin : begin + STEP_BYTES]
                    await self._parts.share.run(self._account, partial(self._parse_step, step))
                    self._tail_lines = pace.note_step(len(step), step.count(b"\n"), self._clock())
                    if self._tail_lines is not None:
                        return
                self._quiet_since = self._clock()
        self._log.lines.check()

    def _parse_step(self, step: bytes) -> None:
        self._log.feed(step, self.run.ended_at)
        if self._log.size > REPLAY_BYTES:
            self._mark_caught_up()  # do not wait for the last line
        if self.caught_up:
            self._publish()
            self._wake.set()

    def _look(self) -> None:
        """Publish the state. After some silence, all existing lines are assumed to be read."""
        if self._quiet_since is not None and self._clock() - self._quiet_since >= QUIET_SECONDS:
            self._mark_caught_up()
            if self._stop_at is not None:
                self._stop_at = min(self._stop_at, self._clock())
        if self.caught_up:
            self._publish()

    def _should_close(self, began: float) -> bool:
        """Return whether a followed stream should be closed: the Pod serves, no line arrives, or another log needs the slot."""
        open_seconds = self._clock() - began
        if self._should_stop() or (not self._is_open and open_seconds >= SILENT_SECONDS):
            return True
        return open_seconds >= TURN_SECONDS and self._parts.slots.should_leave()

    def _seconds_to_next_look(self) -> float:
        if self._stop_at is not None or (self._is_open and not self.caught_up):
            return QUIET_SECONDS
        return min(TURN_SECONDS, INTERVAL_SECONDS, SILENT_SECONDS)

    def _should_stop(self) -> bool:
        """Return whether the Pod serves and its last lines have had time to arrive. An ended run is read to its end all the same."""
        return self._stop_at is not None and self._clock() >= self._stop_at

    def _pause_seconds(self, outcome: ReadOutcome | LogProblem, tries: int) -> float:
        """Return the pause after an attempt in seconds. `tries` is the number of consecutive attempts without output."""
        pauses = {ReadOutcome.CLOSED: 0.0, ReadOutcome.POLLED: TURN_SECONDS, LogProblem.FORBIDDEN: FORBIDDEN_SECONDS}
        retry = RETRY_SECONDS[min(max(0, tries - 1), len(RETRY_SECONDS) - 1)]
        return pauses.get(outcome, retry) * random.uniform(0.8, 1.2)  # spread the requests

    async def _wait_before_retry(self, seconds: float) -> None:
        """Wait before the next attempt, or until the run ends or its Pod serves."""
        until, ended = self._clock() + seconds, self._run_ended
        while self._run_ended == ended:
            end = until if self._stop_at is None or self._run_ended else min(until, self._stop_at)
            if (left := end - self._clock()) <= 0:
                return
            await self._sleep(left)

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    async def _is_over(self) -> bool:
        """Read the Pod, and record the end of the run. Return whether reading is complete."""
        try:
            pod = await self._parts.client.get(POD, self.run.pod, self.run.namespace)
        except NotFound:
            return True
        except ClusterError:
            return False
        status = _container_status(pod, self.run.container)
        restarts = int(status.get("restartCount") or 0)
        if pod["metadata"].get("uid") != self.run.uid or restarts > self.run.restarts + 1:
            return True
        ended = ended_run(pod, self.run.container, self.run.restarts)
        if ended is None and restarts > self.run.restarts:
            ended = replace(self.run, previous=True)
        self.run = ended or self.run
        self._run_ended = self._run_ended or ended is not None or "running" not in (status.get("state") or {})
        return False

    def _mark_caught_up(self) -> None:
        if not self.caught_up:
            self.caught_up = True
            self._publish(force=True)

    def _publish(self, *, force: bool = False) -> None:
        state, old = self._log.latest, self._published
        if old is not None and not force:
            is_due = self._clock() - self._published_at >= INTERVAL_SECONDS
            if is_same(old, state) or not (is_due or is_significant(old, state, STEP_PERCENT)):
                return
        self._published, self._published_at = state, self._clock()
        self._parts.changed(self._key)

    def _finish(self) -> None:
        self._log.end(has_ended=self._run_ended)
        if self.unread is not None and self.unread.problem is LogProblem.PENDING and self._has_read_end:
            self.unread = None  # the log is empty
        if self._published is None or not is_same(self._published, self._log.latest):
            self._publish(force=True)
