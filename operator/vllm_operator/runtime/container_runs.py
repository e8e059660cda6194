"""Runs of a container: which there are, and how they have ended, as the status of a Pod shows it."""

from dataclasses import dataclass
from datetime import datetime

from vllm_operator.api import labels
from vllm_operator.cluster.client import Manifest
from vllm_operator.pods import reading


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an engine container. `previous`: the Pod shows it as the run before the present one."""

    namespace: str
    pod: str
    uid: str
    container: str
    restarts: int
    previous: bool = False
    ended_at: datetime | None = None

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from all others: the uid of its Pod, and the restarts before it."""
        return self.uid, self.restarts


def runs_to_follow(pod: Manifest, container: str = labels.CONTAINER) -> tuple[Run, ...]:
    """The runs of a Pod whose logs tell something: the present one if it has started, and a crashed one before it."""
    status = container_status(pod, container)
    if not status:
        return ()
    metadata = pod["metadata"]
    restarts = int(status.get("restartCount") or 0)
    if "running" in (status.get("state") or {}):
        present = Run(metadata["namespace"], metadata["name"], metadata["uid"], container, restarts)
        before = ended_run(pod, container, restarts - 1)
        return (present,) if before is None else (before, present)
    ended = ended_run(pod, container, restarts)  # where it waits for its restart, the log is that of the run that has ended
    return () if ended is None else (ended,)


def ended_run(pod: Manifest, container: str, restarts: int) -> Run | None:
    """A run of a Pod that has ended, as its status shows it; None if it does not show its end."""
    status = container_status(pod, container)
    now = int(status.get("restartCount") or 0)
    state, before = status.get("state") or {}, status.get("lastState") or {}
    has_begun = "running" in state or "terminated" in state  # otherwise it waits, and `lastState` is that of the run itself
    previous = now == restarts + 1 and has_begun
    ended = state if now == restarts and has_begun else before
    if (now != restarts and not previous) or "terminated" not in ended:
        return None
    metadata = pod["metadata"]
    ended_at = reading.moment(ended, "terminated", "finishedAt")
    return Run(metadata["namespace"], metadata["name"], metadata["uid"], container, restarts, previous, ended_at)


def container_status(pod: Manifest, container: str) -> Manifest:
    """The status of a container of a Pod; empty if there is none."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((status for status in statuses if status.get("name") == container), {})
