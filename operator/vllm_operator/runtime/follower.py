"""Follow the log of one run of an engine container until the run ends or the Pod serves.

The end of a stream does not mean that the run has ended: the kubelet may have restarted, or another log may have its turn. After each
stream, the follower reads the Pod, whose status decides. After the end of the run it reads the log once more to its end, because the
stream may have been interrupted before.

If more logs are wanted than may be open at the same time, none is followed: each is read as far as it goes, every few seconds. Such a
request ends by itself, so its connection serves the next log, which saves the TLS handshake.

The kubelet restarts a container before the API server shows it. A log that is opened at that moment is the log of the next run. Only the
times of its lines show this, so `Follower.missed` checks it once the end of the run is known.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from vllm_operator.cluster.client import POD, ClusterClient, ClusterError, Forbidden, Invalid, LogRequest, NotFound
from vllm_operator.runtime.container_runs import Run, container_status, ended_run
from vllm_operator.runtime.log_lines import LogLines, LogUnavailableError, next_piece
from vllm_operator.runtime.log_slots import Slots, wait_for
from vllm_operator.startup.state import LogProblem, StartupState, UnreadLog
from vllm_operator.startup.timeline import is_same, is_significant

log = logging.getLogger(__name__)

QUIET_SECONDS = 0.2
"""After this silence, all existing lines of a stream are considered read."""
LINGER_SECONDS = 2.0
"""How long to wait for the last lines of a start after its Pod is Ready."""
REST_FACTOR = 2.0
"""A follower pauses this many times as long as it took to read the lines, so a log gets a third of the CPU time at most."""
FORBIDDEN_SECONDS = 60.0
UNAVAILABLE_LIMIT = 5
"""Reads of a running container that the kubelet may answer with an error text before the follower gives up."""
ENDED_TRIES = 8
"""Reads of the log of an ended run, within some forty seconds, that the kubelet may refuse or answer with nothing. Under load, the
kubelet lags behind the status of its Pod. Reads that do not reach the kubelet do not count."""
REFUSED_TRIES = 4
"""Refused requests for a log in a row after which each one is followed by a look at the Pod."""
DETAIL_LIMIT = 500
"""Characters of an error that are kept."""
LATE_SECONDS = 2
"""A line that was written this long after the end of a run belongs to a later run. Ends are given in whole seconds."""


class Parser(Protocol):
    """A parser of log lines, such as `vllm_operator.startup.parser.StartupParser`."""

    def feed(self, data: bytes, timestamp: datetime | None = None) -> None:
        """Read lines that were written at this time."""

    def end(self) -> None:
        """End the log."""

    @property
    def state(self) -> StartupState:
        """What the log says so far."""

    @property
    def final_state(self) -> StartupState:
        """What the log says if the process has ended."""


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """Limits of a follower. `Settings` describes them."""

    line_bytes: int = 64 * 1024
    replay_bytes: int = 64 * 1024 * 1024
    turn_seconds: float = 6.0
    idle_seconds: float = 20.0
    interval_seconds: float = 10.0
    step_percent: int = 5
    retry_seconds: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0)


class Follower:
    """Reads the log of a run, and publishes significant changes of its state.

    Attributes:
        run: The run, as its Pod showed it last.
        caught_up: Whether the existing lines have been read, or cannot be read now.
        finished: Whether nothing more is read.
        unread: Why nothing could be read; None once something was read, or the log is empty.
    """

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
        """`changed` is called after a significant change of `state`, `caught_up` or `unread`."""
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
        self._begins_at: datetime | None = None  # time of the first line of a log that may belong to the next run
        self._at_first_line = False

    @property
    def state(self) -> StartupState | None:
        """What the log says, as of the last significant change; None if nothing could be read."""
        if self._published is None or ((self.finished or self._dead) and not self._latest.lines):
            return None
        # These two show whether the start is alive, so they are always current.
        return replace(self._published, last_line_at=self._latest.last_line_at, lines=self._latest.lines)

    def finish_soon(self) -> None:
        """Read the lines that are about to arrive, then stop, because the Pod serves."""
        if self._stop_at is None:
            self._stop_at = self._clock() + LINGER_SECONDS
            self._wake.set()

    def note_end(self, run: Run) -> None:
        """Note that the run has ended, as its Pod shows in `run`, so that its log is read to the end even if the Pod served before."""
        if not self._dead:
            self._stop_at = self._clock() + LINGER_SECONDS  # the open stream may belong to the next run, and not end
            self._wake.set()
        self.run, self._dead = run, True

    async def follow(self) -> None:
        """Follow until the run is over or the Pod serves. Raises only errors of the parser."""
        try:
            await self._follow()
            self._finish()
        except asyncio.CancelledError:
            try:
                self._finish()
            except Exception:  # must not replace the cancellation
                log.exception("the end of the log of Pod %s/%s could not be read", self.run.namespace, self.run.pod)
            raise
        finally:
            self.caught_up = self.finished = True

    async def _follow(self) -> None:
        with self._slots.want(self._wake):
            await self._read_all()

    async def _read_all(self) -> None:
        tries = unavailable = misses = 0
        is_last = False
        while self._dead or is_last or not self._is_due():
            before, dead = self._latest.lines, self._dead
            wait = 0.0
            has_missed = was_refused = False
            try:
                async with self._slots.hold():
                    await self._read()
                has_missed = self._is_at_end and (self._is_unsure or not self._latest.lines)
                self._has_read_end = dead and self._is_at_end and not has_missed
                self.unread = self.unread if has_missed else None
            except LogUnavailableError as error:
                unavailable += 1
                has_missed = True
                wait = self._backoff(tries)
                self._note_problem(LogProblem.GONE, error)
            except (Invalid, NotFound) as error:
                has_missed = was_refused = True
                self._note_problem(LogProblem.GONE, error)
            except Forbidden as error:
                log.warning("the log of Pod %s/%s cannot be read: %s", self.run.namespace, self.run.pod, error)
                wait = FORBIDDEN_SECONDS
                self._note_problem(LogProblem.FORBIDDEN, error)
            except ClusterError as error:
                was_refused = True
                wait = self._backoff(tries)
                self._note_problem(LogProblem.UNREACHABLE, error)
            tries = 0 if self._latest.lines > before else tries + 1
            misses += dead and has_missed
            self._has_read_end = self._has_read_end or misses >= ENDED_TRIES
            is_polled = self._slots.are_scarce and not self._dead
            if (unavailable >= UNAVAILABLE_LIMIT and not self._dead) or self._has_read_end or (is_last and not self._dead):
                break
            # `note_end` says so, too, but a stream may end before the watch tells. A request for each refused one would double them.
            if not (is_polled or (was_refused and tries < REFUSED_TRIES)) and await self._is_over():
                break
            self._catch_up()  # the report must not wait for the next try
            if is_polled and not wait:
                self._publish()
                is_last = await self._has_turn_at_end()
            else:
                await asyncio.sleep(wait or self._backoff(tries))

    async def _has_turn_at_end(self) -> bool:
        """Wait for the next turn while slots are scarce. Return whether it is the last: the Pod serves, and its last lines can be read."""
        pause = self._slots.pause_seconds(self._settings.turn_seconds) * random.uniform(0.8, 1.2)
        turn = self._clock() + pause
        while not self._dead and self._slots.are_scarce:
            until = turn if self._stop_at is None else self._stop_at
            if (left := until - self._clock()) <= 0:
                break
            await wait_for(self._wake, left)
        return self._is_due()

    def _note_problem(self, problem: LogProblem, error: Exception) -> None:
        """Note why the log could not be read. The first error of a kind is kept, because its text may differ each time."""
        log.debug("log of Pod %s/%s: %s", self.run.namespace, self.run.pod, error)
        if self.unread is None or self.unread.problem is not problem:
            self.unread = UnreadLog(problem, str(error)[:DETAIL_LIMIT])
            if self.caught_up:
                self._changed()

    @property
    def _is_unsure(self) -> bool:
        """Whether the log that was opened last may belong to another run."""
        return self._was_reopened and not self._lines.continues

    def missed(self, run: Run) -> bool:
        """Whether the log of this run must be read again from its beginning. `run` is the same run, as its Pod shows it now.

        This is so if the run has ended and its end was not read, because the Pod served before. It is also so if the lines that were
        read may belong to the next run, and the Pod now shows this run as the previous one, so that its log can be requested.
        """
        if run.ended_at is None:
            return False
        is_unread = self.finished and not (self._has_read_end and self._latest.lines)
        if run.previous and not self._began_as_previous:
            return is_unread or self._is_unsure or (self._begins_at is not None and self._begins_at >= run.ended_at)
        return self.finished and not self._has_read_end

    def is_credible(self, run: Run) -> bool:
        """Whether the lines that were read very likely belong to this run, even if some are missing."""
        return run.ended_at is None or self._begins_at is None or self._begins_at < run.ended_at + timedelta(seconds=1)

    def _backoff(self, tries: int) -> float:
        waits = self._settings.retry_seconds
        return waits[min(tries, len(waits) - 1)] * random.uniform(0.8, 1.2)

    def _is_due(self) -> bool:
        """Whether it is time to close a stream that has not ended."""
        return self._stop_at is not None and self._clock() >= self._stop_at

    async def _read(self) -> None:
        """Read one stream to its end, to the end of the turn, or until the Pod serves."""
        self._was_reopened = not self.run.previous and self._lines.since is not None
        self._lines.reopen()
        self._is_at_end = False
        self._at_first_line = not self.run.previous
        request = LogRequest(
            namespace=self.run.namespace,
            pod=self.run.pod,
            container=self.run.container,
            follow=not self._dead and not self._slots.are_scarce,
            previous=self.run.previous,
            since=self._lines.since,
            limit_bytes=self._settings.replay_bytes if self._dead else None,
        )
        async with self._client.stream_log(request) as stream:
            pieces = aiter(stream)
            pending: asyncio.Task[bytes] | None = None
            woken: asyncio.Task[object] = asyncio.create_task(self._wake.wait(), name="end of a start")
            try:
                while not (request.follow and self._is_due()):
                    pending = pending or asyncio.create_task(next_piece(pieces), name="piece of a log")
                    waited: set[asyncio.Task[Any]] = {pending} if woken.done() else {pending, woken}
                    done, _ = await asyncio.wait(waited, timeout=self._wait_seconds(), return_when=asyncio.FIRST_COMPLETED)
                    if pending in done:
                        piece, pending = pending.result(), None
                        if not piece:
                            self._lines.check()
                            self._is_at_end = True
                            return
                        await self._take(piece)
                    elif not done:
                        self._note_silence()
                    if request.follow and self._slots.are_scarce and self.caught_up:
                        return
                    if woken.done() and self._stop_at is None and not self._dead:
                        self._wake.clear()
                        woken = asyncio.create_task(self._wake.wait(), name="end of a start")
            finally:
                left = [task for task in (pending, woken) if task is not None]
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)

    def _wait_seconds(self) -> float:
        """Return for how many seconds to wait for the next piece."""
        if not self.caught_up or self._stop_at is not None:
            return QUIET_SECONDS
        if self._published is not None and not is_same(self._published, self._latest):
            return max(0.05, self._published_at + self._settings.interval_seconds - self._clock())
        return self._settings.idle_seconds

    def _note_silence(self) -> None:
        """Handle a stream that delivered nothing within `_wait_seconds`."""
        self._catch_up()
        self._publish()
        if self._stop_at is not None:
            self._stop_at = self._clock()

    async def _take(self, piece: bytes) -> None:
        started = time.perf_counter()
        self._read_bytes += len(piece)
        for lines, moment in self._lines.feed(piece):
            self._check_run(moment)
            self._feed(lines, moment)
        self._latest = self._parser.state if self._parser else self._latest
        if self._read_bytes > self._settings.replay_bytes:
            self._catch_up()  # no start writes this much, so do not wait for the last line
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

    async def _is_over(self) -> bool:
        """Read the Pod, and note the end of the run. Return whether there is nothing more to read."""
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

    def _catch_up(self) -> None:
        if not self.caught_up:
            self.caught_up = True
            self._publish(force=True)

    def _publish(self, *, force: bool = False) -> None:
        state, old = self._latest, self._published
        if old is not None and not force:
            is_due = self._clock() - self._published_at >= self._settings.interval_seconds
            if is_same(old, state) or not (is_due or is_significant(old, state, self._settings.step_percent)):
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
        self._parser = None  # free its memory
        if self.unread is not None and self.unread.problem is LogProblem.PENDING and self._has_read_end:
            self.unread = None  # it is empty
        self.caught_up = self.finished = True
        self._publish(force=self._published is None)
        if self._published is not None and not is_same(self._published, self._latest):
            self._published = self._latest
            self._changed()
