"""Follow the log of one run of an engine container until the run ends or the Pod serves.

The end of a stream does not mean that the run has ended: the kubelet may have restarted, or another log may have its turn. After each
stream, the follower reads the Pod, whose status decides. After the end of the run it reads the log once more to its end, because the
stream may have been interrupted before.

If more logs are wanted than may be open at the same time, none is followed: each is read as far as it goes, every few seconds. Such a
request ends by itself, so its connection serves the next log, which saves the TLS handshake.

The kubelet restarts a container before the API server shows it. A log that is opened at that moment is the log of the next run. Only the
times of its lines show this, so `Follower.missed` checks it once the end of the run is known.

A kubelet shows the API server that a container runs only after its log can be read. So a request that a kubelet refuses is repeated
rarely, and one that does not reach the kubelet stands for all logs on the node (`runtime/kubelets.py`).
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from vllm_operator.cluster.client import POD, ClusterClient, ClusterError, Forbidden, Invalid, LogRequest, NotFound, Unreachable
from vllm_operator.runtime.container_runs import Run, container_status, ended_run
from vllm_operator.runtime.kubelets import Kubelets
from vllm_operator.runtime.log_lines import LogUnavailableError
from vllm_operator.runtime.log_share import LogOutgrownError, LogReader, LogShare
from vllm_operator.runtime.log_slots import Slots, wait_for
from vllm_operator.runtime.log_stream import LogStream
from vllm_operator.runtime.run_log import Parser, RunLog
from vllm_operator.startup.state import LogProblem, StartupState, UnreadLog
from vllm_operator.startup.timeline import is_same, is_significant

log = logging.getLogger(__name__)

QUIET_SECONDS = 0.2
"""After this silence, all existing lines of a stream are considered read."""
SILENT_SECONDS = 60.0
"""How long to wait for the first line of a stream before it is requested again: the connection may be dead."""
SILENT_SLOT_SECONDS = 1.0
"""The same while slots are scarce."""
LINGER_SECONDS = 2.0
"""How long to wait for the last lines of a start after its Pod is Ready."""
SPREAD_SECONDS = 6.0
"""How much longer at most while slots are scarce: hundreds of Pods may become Ready at once, and each waits for its turn."""
FORBIDDEN_SECONDS = 60.0
UNAVAILABLE_LIMIT = 5
"""Reads of a running container that the kubelet may answer with an error text before the follower gives up."""
ENDED_TRIES = 8
"""Reads of the log of an ended run, within some forty seconds, that the kubelet may refuse or answer with nothing. Under load, the
kubelet lags behind the status of its Pod. Reads that do not reach the kubelet do not count."""
DETAIL_LIMIT = 500
"""Characters of an error that are kept."""


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """Limits of a follower. `Settings` describes them."""

    line_bytes: int = 64 * 1024
    replay_bytes: int = 64 * 1024 * 1024
    turn_seconds: float = 6.0
    interval_seconds: float = 10.0
    step_percent: int = 5
    retry_seconds: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0)
    refused_seconds: tuple[float, ...] = (2.0, 10.0, 30.0)
    """Pauses after requests for the log of a running container that a kubelet refuses. The last one repeats."""
    unreachable_seconds: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 30.0)
    """Pauses between requests to a kubelet that cannot be reached. The last one repeats."""


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
        kubelets: Kubelets,
        share: LogShare,
        settings: FollowerSettings,
        changed: Callable[[], None],
        skipped: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called after a significant change of `state`, `caught_up` or `unread`, `skipped` with seconds that are not read."""
        self.run = run
        self.caught_up = False
        self.finished = False
        self.unread: UnreadLog | None = UnreadLog(LogProblem.PENDING)
        self._client = client
        self._slots = slots
        self._kubelets = kubelets
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
        self._is_at_end = False
        self._was_silent = False
        self._refusals = 0  # in a row

    @property
    def state(self) -> StartupState | None:
        """What the log says, as of the last significant change; None if nothing could be read."""
        if self._published is None or ((self.finished or self._dead) and not self._log.latest.lines):
            return None
        # These two show whether the start is alive, so they are always current.
        return replace(self._published, last_line_at=self._log.latest.last_line_at, lines=self._log.latest.lines)

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
            with self._slots.want(self._wake):
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
        tries = unavailable = misses = 0
        is_last = False
        while self._dead or is_last or not self._is_due():
            before, dead = self._log.latest.lines, self._dead
            wait, began = 0.0, self._clock()
            has_missed = was_refused = is_unreachable = False
            try:
                async with self._slots.hold():
                    self._kubelets.check(self.run.node)
                    began = self._clock()
                    await self._read()
                has_missed = self._is_at_end and (self._log.is_unsure or not self._log.latest.lines)
                self._has_read_end = dead and self._is_at_end and not has_missed
                self.unread = self.unread if has_missed else None
            except LogOutgrownError as error:
                self.unread, self._tail_lines = None, error.tail_lines
            except LogUnavailableError as error:
                unavailable += 1
                has_missed = True
                wait = self._backoff(tries)
                self._note_problem(LogProblem.GONE, error)
            except (Invalid, NotFound) as error:
                has_missed = was_refused = True
                self._kubelets.note_answer(self.run.node)
                wait = self._backoff(tries) if dead else _pick(self._settings.refused_seconds, self._refusals)
                self._note_problem(LogProblem.GONE, error)
            except Forbidden as error:
                log.warning("the log of Pod %s/%s cannot be read: %s", self.run.namespace, self.run.pod, error)
                wait = FORBIDDEN_SECONDS
                self._note_problem(LogProblem.FORBIDDEN, error)
            except Unreachable as error:
                was_refused = is_unreachable = True
                self._kubelets.note_error(self.run.node, error)
                wait = self._kubelets.seconds_left(self.run.node) if self.run.node else self._backoff(tries)
                self._note_problem(LogProblem.UNREACHABLE, error)
            except ClusterError as error:
                was_refused = True
                wait = self._backoff(tries)
                self._note_problem(LogProblem.UNREACHABLE, error)
            tries = 0 if self._log.latest.lines > before else tries + 1
            self._refusals = self._refusals + 1 if was_refused else 0
            misses += dead and has_missed
            self._has_read_end = self._has_read_end or misses >= ENDED_TRIES
            is_polled = self._slots.are_scarce and not self._dead
            if (unavailable >= UNAVAILABLE_LIMIT and not self._dead) or self._has_read_end or (is_last and not self._dead):
                break
            # `note_end` says so, too, but a stream may end before the watch tells
            if not (is_polled or was_refused) and await self._is_over():
                break
            # The report must not wait for the next try. That a Pod serves is known without its log.
            is_silent = not (self._log.latest.lines or has_missed or was_refused)
            self._catch_up(tell=not (is_silent and self._stop_at is not None))
            if is_polled and not wait:
                self._publish()
                is_last = await self._has_turn_at_end(self._clock() - began)
            elif is_unreachable:
                with self._kubelets.waiting(self.run.node, self._wake):
                    await self._rest(wait, unless=lambda: not self._kubelets.seconds_left(self.run.node))
            elif not self._was_silent:
                await self._rest(wait or self._backoff(tries))

    async def _has_turn_at_end(self, took: float) -> bool:
        """Wait for the next turn while slots are scarce. Return whether it is the last: the Pod serves, and its last lines can be read.

        `took` are the seconds of the last read.
        """
        turn = self._clock() + self._slots.pause_seconds(self._settings.turn_seconds, took) * random.uniform(0.8, 1.2)
        while not self._dead and self._slots.are_scarce:
            until = turn if self._stop_at is None else max(self._stop_at, min(turn, self._stop_at + SPREAD_SECONDS))
            if (left := until - self._clock()) <= 0:
                break
            await wait_for(self._wake, left)
        return self._is_due()

    async def _rest(self, seconds: float, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait before the next request, but no longer if the run ends or its Pod serves, or `unless` this is so."""
        until, dead = self._clock() + seconds, self._dead
        while self._dead == dead and not unless():
            end = until if self._stop_at is None or self._dead else min(until, self._stop_at)
            if (left := end - self._clock()) <= 0:
                return
            await wait_for(self._wake, left)

    def _note_problem(self, problem: LogProblem, error: Exception) -> None:
        """Note why the log could not be read. The first error of a kind is kept, because its text may differ each time."""
        log.debug("log of Pod %s/%s: %s", self.run.namespace, self.run.pod, error)
        if self.unread is None or self.unread.problem is not problem:
            self.unread = UnreadLog(problem, str(error)[:DETAIL_LIMIT])
            if self.caught_up:
                self._changed()

    def missed(self, run: Run) -> bool:
        """Whether the log of this run must be read again from its beginning. `run` is the same run, as its Pod shows it now.

        This is so if the run has ended and its end was not read, because the Pod served before. It is also so if the lines that were
        read may belong to the next run, and the Pod now shows this run as the previous one, so that its log can be requested.
        """
        if run.ended_at is None:
            return False
        is_unread = self.finished and not (self._has_read_end and self._log.latest.lines)
        if run.previous and not self._began_as_previous:
            return is_unread or self._log.is_unsure or self._log.begins_after(run.ended_at)
        return self.finished and not self._has_read_end

    def is_credible(self, run: Run) -> bool:
        """Whether the lines that were read very likely belong to this run, even if some are missing."""
        return run.ended_at is None or not self._log.begins_after(run.ended_at + timedelta(seconds=1))

    def _backoff(self, tries: int) -> float:
        return _pick(self._settings.retry_seconds, tries)

    def _is_due(self) -> bool:
        """Whether it is time to close a stream that has not ended."""
        return self._stop_at is not None and self._clock() >= self._stop_at

    async def _read(self) -> None:
        """Read one stream to its end, to the end of the turn, or until the Pod serves."""
        self._log.reopen(previous=self.run.previous, skips=self._tail_lines is not None)
        self._reader.reopen()
        self._is_at_end = self._was_silent = False
        # a kubelet without an inotify instance left refuses to follow, and may not refuse to read
        is_doubtful = self._refusals > 0 or self._kubelets.has_failed(self.run.node)
        request = LogRequest(
            namespace=self.run.namespace,
            pod=self.run.pod,
            container=self.run.container,
            follow=not (self._dead or self._slots.are_scarce or is_doubtful),
            previous=self.run.previous,
            since=self._log.since,
            limit_bytes=self._settings.replay_bytes if self._dead else None,
            tail_lines=self._tail_lines,
        )
        self._tail_lines = None
        stream = LogStream(
            self._client.stream_log(request),
            lambda piece: self._reader.read(piece, self._take),
            opened=lambda: self._kubelets.note_answer(self.run.node),
            wake=self._wake,
            clock=self._clock,
        )
        try:
            while not (request.follow and self._is_due()):
                if stream.is_at_end():
                    self._log.check()
                    self._is_at_end = True
                    return
                if request.follow and self._slots.are_scarce and self.caught_up and stream.is_open:
                    return
                left = self._next_look(stream, request) - self._clock()
                if left > 0:
                    await wait_for(self._wake, left)
                elif stream.is_open:
                    self._note_silence()
                    stream.moved_at = self._clock()
                else:
                    self._was_silent = True
                    return
        finally:
            await stream.close()

    def _next_look(self, stream: LogStream, request: LogRequest) -> float:
        """Return when to look at a stream again on which nothing arrives."""
        if not stream.is_open and not request.follow:
            return math.inf  # the client limits the time
        if not stream.is_open:
            end = stream.moved_at + (SILENT_SLOT_SECONDS if self._slots.are_scarce else SILENT_SECONDS)
            return end if self._stop_at is None else min(end, self._stop_at)
        if stream.is_busy:
            return self._clock() + QUIET_SECONDS
        if not self.caught_up or self._stop_at is not None:
            return stream.moved_at + QUIET_SECONDS
        if self._published is not None and not is_same(self._published, self._log.latest):
            return self._published_at + self._settings.interval_seconds
        return math.inf

    def _note_silence(self) -> None:
        """Handle a stream that delivered nothing within `_wait_seconds`."""
        self._catch_up()
        self._publish()
        if self._stop_at is not None:
            self._stop_at = self._clock()

    def _take(self, step: bytes) -> None:
        self._log.feed(step, self.run.ended_at)
        if self._log.size > self._settings.replay_bytes:
            self._catch_up()  # no start writes this much, so do not wait for the last line
        if self.caught_up:
            self._publish()
            self._wake.set()

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
            self.unread = None  # it is empty
        self.caught_up = self.finished = True
        self._publish(force=self._published is None)
        if self._published is not None and not is_same(self._published, self._log.latest):
            self._published = self._log.latest
            self._changed()


def _pick(waits: tuple[float, ...], tries: int) -> float:
    """Return a pause, which varies so that not all logs are read at the same moment."""
    return waits[min(tries, len(waits) - 1)] * random.uniform(0.8, 1.2)
