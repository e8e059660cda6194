"""Which logs are followed: of starting Pods, and of runs that have just crashed.

The state of a run (UID of the Pod, restarts before the run) is kept as long as the Pod exists. After a restart of the operator, logs are
read again from their beginning.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from vllm_operator.api.labels import CONTAINER, FETCH_WEIGHTS_CONTAINER
from vllm_operator.api.reading import RunKey
from vllm_operator.api.resource import Role
from vllm_operator.caches.jobs import has_role
from vllm_operator.controller.log_follower import Follower, LogParts, Run, ended_run, runs_to_follow
from vllm_operator.kube.client import Key, Manifest
from vllm_operator.logs.state import Stage, StartupState, UnreadLog
from vllm_operator.pods.view import is_ready, place_of

CATCH_UP_SECONDS = 3.0
"""Maximum time that a report waits for a log to be read. A log that takes longer waits for a slot, or its kubelet does not answer."""


@dataclass(eq=False)
class Followers(LogParts):
    """The followers of all VLLMDeployments."""

    _runs: dict[Key, dict[RunKey, Follower]] = field(default_factory=dict)

    def sync(
        self, key: Key, pods: Iterable[Manifest], starting: Collection[str] = (), *, container: str = CONTAINER, tail: int | None = None
    ) -> None:
        """Follow the logs of these Pods as needed, and forget Pods that no longer exist.

        `starting` names Pods whose start was not reported as complete. If such a Pod is ready and its log was not followed, because the
        operator did not run or the start was quick, its log and the log of a previous crashed run are read once. `container` is the
        engine's. With `tail`, a log is read from so many lines before its end.
        """
        followers = self._runs.setdefault(key, {})
        by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
        serving = {place_of(pod) for pod in by_uid.values() if is_ready(pod)}
        for run_key in [run_key for run_key in followers if run_key[0] not in by_uid]:
            followers.pop(run_key).stop()
        for uid, pod in by_uid.items():
            fetches = has_role(pod, Role.FETCHING)
            runs = runs_to_follow(pod, FETCH_WEIGHTS_CONTAINER if fetches else container)
            self._read_missed(key, uid, pod)
            place = place_of(pod)  # a Pod of a group that is not the leader is always Ready, and serves if the leader does
            serves = is_ready(pod) and not fetches and (place is None or (place[0], 0) in serving)
            if not serves or pod["metadata"]["name"] in starting:
                for run in runs:
                    self._start(key, run, tail=tail)
            if serves and runs and (current := followers.get(runs[-1].key)) is not None:
                current.finish_soon()  # the log of a previous crashed run is still read to its end
        if not followers:
            del self._runs[key]

    def read_again(self) -> None:
        """Read the logs again from their beginning, except for successful starts. Call this when the signatures have changed."""
        for key, followers in self._runs.items():
            for run_key, follower in list(followers.items()):
                state = follower.state
                if state is None or state.crash is not None or state.stage is not Stage.READY:
                    followers.pop(run_key).stop()
                    self._start(key, follower.run)

    def states(self, key: Key) -> Mapping[RunKey, StartupState]:
        """Return the states of a VLLMDeployment's runs, from their logs."""
        return {run_key: state for run_key, follower in self._runs.get(key, {}).items() if (state := follower.state) is not None}

    def unread(self, key: Key) -> Mapping[RunKey, UnreadLog]:
        """Return why logs of a VLLMDeployment could not be read, by run."""
        without_state = ((run_key, it.unread) for run_key, it in self._runs.get(key, {}).items() if it.state is None)
        return {run_key: unread for run_key, unread in without_state if unread is not None}

    def caught_up(self, key: Key) -> bool:
        """Return whether all existing lines have been read. An earlier report would show an outdated state of the start."""
        late = self.clock() - CATCH_UP_SECONDS
        return all(follower.caught_up or follower.begun_at <= late for follower in self._runs.get(key, {}).values())

    def forget(self, key: Key) -> None:
        """Stop following the logs of a deleted VLLMDeployment."""
        for follower in self._runs.pop(key, {}).values():
            follower.stop()

    def streams(self) -> tuple[int, int]:
        """Return the number of open log streams, and the number of logs that wait for a slot."""
        return self.slots.taken, self.slots.waiting

    async def close(self) -> None:
        """Stop all followers."""
        all_followers = [follower for followers in self._runs.values() for follower in followers.values()]
        self._runs.clear()
        for follower in all_followers:
            follower.stop()
        await asyncio.gather(*(follower.task for follower in all_followers), return_exceptions=True)

    def _read_missed(self, key: Key, uid: str, pod: Manifest) -> None:
        """Read the log of an ended run again if its end was not read, or if its follower may have read the log of another run."""
        followers = self._runs[key]
        for run_key in [run_key for run_key in followers if run_key[0] == uid]:
            follower = followers[run_key]
            run = ended_run(pod, follower.run.container, run_key[1])
            if run is not None and follower.note_end(run):
                followers.pop(run_key).stop()
                self._start(key, run, former=follower if follower.is_credible() else None)

    def _start(self, key: Key, run: Run, *, former: Follower | None = None, tail: int | None = None) -> None:
        followers = self._runs[key]
        if run.key in followers:
            return
        followers[run.key] = Follower(run, key, self, former=former, tail_lines=tail)
        followers[run.key].start()
        for old in sorted(run_key for run_key in followers if run_key[0] == run.uid)[:-2]:  # two runs are enough
            followers.pop(old).stop()
