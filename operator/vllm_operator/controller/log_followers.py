"""Which logs are followed: of starting Pods, and of runs that have just crashed.

The state of a run (UID of the Pod, restarts before the run) is kept as long as the Pod exists. After a restart of the operator, logs are
read again from their beginning.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from vllm_operator.api.labels import CONTAINER, FETCH_CONTAINER
from vllm_operator.caches.prefetching import is_fetching
from vllm_operator.controller.log_follower import Follower, FollowerSettings, Parser, Run, ended_run, runs_to_follow
from vllm_operator.controller.log_share import LogShare, Slots
from vllm_operator.kube.client import ClusterClient, Key, Manifest
from vllm_operator.logs.state import Stage, StartupState, UnreadLog
from vllm_operator.pods.view import is_ready

log = logging.getLogger(__name__)

RunKey = tuple[str, int]


CATCH_UP_SECONDS = 3.0
"""Maximum time that a report waits for a log to be read. A log that takes longer waits for a slot, or its kubelet does not answer."""
RESTART_SECONDS = (1.0, 5.0, 30.0, 300.0)
"""Pauses before a log is read again after its parser has failed: it may fail again on the same line."""


@dataclass(slots=True, eq=False)
class _Entry:
    follower: Follower
    since: float
    task: asyncio.Task[None] | None = None
    former: Follower | None = None
    """The replaced follower, whose state is used until the new follower has one."""

    @property
    def state(self) -> StartupState | None:
        state = self.follower.state
        return state if state is not None or self.former is None else self.former.state

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Followers:
    """The followers of all VLLMDeployments."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        make_parser: Callable[[], Parser],
        changed: Callable[[Key], None],
        streams: int = 200,
        settings: FollowerSettings | None = None,
        restarted: Callable[[], None] = lambda: None,
        share: LogShare | None = None,
        skipped: Callable[[str, float], None] = lambda namespace, seconds: None,
        clock: Callable[[], float] = time.monotonic,
        restart_seconds: tuple[float, ...] = RESTART_SECONDS,
    ) -> None:
        """Initialize without followers.

        Args:
            client: Client of the API server.
            make_parser: Creates the parser of one log.
            changed: Called with the key of a VLLMDeployment after a significant change in one of its logs.
            streams: Maximum number of open log streams.
            settings: Times of each follower.
            restarted: Called when a follower failed and is restarted.
            share: The share of the event loop's time for all logs.
            skipped: Called with a Pod's namespace and the seconds of its log that were skipped because it grows too fast.
            clock: Returns seconds.
            restart_seconds: Pauses before a restart; the last one repeats.
        """
        self._client = client
        self._make_parser = make_parser
        self._changed = changed
        self._settings = settings or FollowerSettings()
        self._restarted = restarted
        self._restart_seconds = restart_seconds
        self._runs: dict[Key, dict[RunKey, _Entry]] = {}
        self._slots = Slots(streams)
        self._share = share or LogShare()
        self._skipped = skipped
        self._clock = clock

    def sync(self, key: Key, pods: Iterable[Manifest], starting: Collection[str] = ()) -> None:
        """Follow the logs of these Pods as needed, and forget Pods that no longer exist.

        `starting` names Pods whose start was not reported as complete. If such a Pod is ready and its log was not followed, because the
        operator did not run or the start was quick, its log and the log of a previous crashed run are read once.
        """
        entries = self._runs.setdefault(key, {})
        by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
        for run_key in [run_key for run_key in entries if run_key[0] not in by_uid]:
            entries.pop(run_key).stop()
        for uid, pod in by_uid.items():
            fetches = is_fetching(pod)
            runs = runs_to_follow(pod, FETCH_CONTAINER if fetches else CONTAINER)
            self._read_missed(key, uid, pod)
            serves = is_ready(pod) and not fetches
            if not serves or pod["metadata"]["name"] in starting:
                for run in runs:
                    self._start(key, run)
            if serves and runs and (entry := entries.get(runs[-1].key)) is not None:
                entry.follower.finish_soon()  # the log of a previous crashed run is still read to its end
        if not entries:
            del self._runs[key]

    def read_again(self) -> None:
        """Read the logs again from their beginning, except for successful starts. Call this when the signatures have changed."""
        for key, entries in self._runs.items():
            for run_key, entry in list(entries.items()):
                state = entry.follower.state
                if state is None or state.crash is not None or state.stage is not Stage.READY:
                    entries.pop(run_key).stop()
                    self._start(key, entry.follower.run)

    def states(self, key: Key) -> Mapping[RunKey, StartupState]:
        """Return the states of a VLLMDeployment's runs, from their logs."""
        return {run_key: state for run_key, entry in self._runs.get(key, {}).items() if (state := entry.state) is not None}

    def unread(self, key: Key) -> Mapping[RunKey, UnreadLog]:
        """Return why logs of a VLLMDeployment could not be read, by run."""
        found = ((run_key, entry.follower.unread) for run_key, entry in self._runs.get(key, {}).items() if entry.state is None)
        return {run_key: unread for run_key, unread in found if unread is not None}

    def caught_up(self, key: Key) -> bool:
        """Return whether all existing lines have been read. An earlier report would show an outdated state of the start."""
        late = time.monotonic() - CATCH_UP_SECONDS
        return all(entry.follower.caught_up or entry.since <= late for entry in self._runs.get(key, {}).values())

    def forget(self, key: Key) -> None:
        """Stop following the logs of a deleted VLLMDeployment."""
        for entry in self._runs.pop(key, {}).values():
            entry.stop()

    def streams(self) -> tuple[int, int]:
        """Return the number of open log streams, and the number of logs that wait for a slot."""
        return self._slots.taken, self._slots.waiting

    async def close(self) -> None:
        """Stop all followers."""
        tasks = [entry.task for entries in self._runs.values() for entry in entries.values() if entry.task is not None]
        self._runs.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _read_missed(self, key: Key, uid: str, pod: Manifest) -> None:
        """Read a log again if its follower failed, or read the log of another run."""
        entries = self._runs[key]
        for run_key in [run_key for run_key in entries if run_key[0] == uid]:
            follower = entries[run_key].follower
            run = ended_run(pod, follower.run.container, run_key[1])
            if run is None:
                continue
            is_missed = follower.missed(run)
            follower.note_end(run)
            if is_missed:
                entries.pop(run_key).stop()
                self._start(key, run, former=follower if follower.is_credible(run) else None)

    def _start(self, key: Key, run: Run, *, former: Follower | None = None) -> None:
        entries = self._runs[key]
        if run.key in entries:
            return
        entries[run.key] = entry = _Entry(self._make(key, run), time.monotonic(), former=former)
        self._begin(key, entry)
        for old in sorted(k for k in entries if k[0] == run.uid)[:-2]:  # two runs are enough
            entries.pop(old).stop()

    def _make(self, key: Key, run: Run) -> Follower:
        return Follower(
            run,
            self._make_parser(),
            client=self._client,
            slots=self._slots,
            share=self._share,
            settings=self._settings,
            changed=lambda: self._changed(key),
            skipped=lambda seconds: self._skipped(run.namespace, seconds),
            clock=self._clock,
        )

    def _begin(self, key: Key, entry: _Entry) -> None:
        run = entry.follower.run
        entry.task = asyncio.create_task(self._follow(key, entry), name=f"log {run.namespace}/{run.pod} {run.restarts}")
        entry.task.add_done_callback(lambda task: self._ended(key, run.key, entry, task))

    def _ended(self, key: Key, run_key: RunKey, entry: _Entry, task: asyncio.Task[None]) -> None:
        """Restart a task that was cancelled by mistake."""
        if task.cancelled() and self._runs.get(key, {}).get(run_key) is entry:
            self._restarted()
            entry.follower = self._make(key, entry.follower.run)
            self._begin(key, entry)

    async def _follow(self, key: Key, entry: _Entry) -> None:
        """Follow a log to its end. If the parser fails, read the log again from its beginning: one log must not stop the others."""
        for failures in itertools.count():
            run = entry.follower.run
            try:
                await entry.follower.follow()
                return
            except Exception:
                log.exception("following the log of Pod %s/%s failed; it is read again", run.namespace, run.pod)
                if entry.task is not None and entry.task.cancelling():
                    return  # the end of a log that is no longer followed could not be read
            self._restarted()
            await asyncio.sleep(self._restart_seconds[min(failures, len(self._restart_seconds) - 1)])
            entry.follower = self._make(key, entry.follower.run)
