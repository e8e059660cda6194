"""Runs of a container, according to the status of its Pod."""

from dataclasses import dataclass
from datetime import datetime

from vllm_operator.api import labels, reading
from vllm_operator.kube.client import Manifest


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an engine container.

    Attributes:
        previous: Whether this is the run before the current one, whose log is requested with `previous`.
        ended_at: When the run ended; None if it is running or the time is unknown.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    restarts: int
    previous: bool = False
    ended_at: datetime | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Return the identity: the UID of the Pod, and the number of restarts before the run."""
        return self.uid, self.restarts


def runs_to_follow(pod: Manifest, container: str = labels.CONTAINER) -> tuple[Run, ...]:
    """Return the current run of a Pod if it has started, and the run before it if that crashed."""
    status = container_status(pod, container)
    if not status:
        return ()
    restarts = int(status.get("restartCount") or 0)
    if "running" in (status.get("state") or {}):
        current = _run(pod, container, restarts)
        before = ended_run(pod, container, restarts - 1)
        return (current,) if before is None else (before, current)
    ended = ended_run(pod, container, restarts)  # until the restart, the current log belongs to the ended run
    return () if ended is None else (ended,)


def ended_run(pod: Manifest, container: str, restarts: int) -> Run | None:
    """Return an ended run of a Pod; None if the status of the Pod does not show that it ended."""
    status = container_status(pod, container)
    now = int(status.get("restartCount") or 0)
    state, before = status.get("state") or {}, status.get("lastState") or {}
    has_begun = "running" in state or "terminated" in state  # otherwise the container waits, and `lastState` belongs to the run itself
    previous = now == restarts + 1 and has_begun
    ended = state if now == restarts and has_begun else before
    if (now != restarts and not previous) or "terminated" not in ended:
        return None
    return _run(pod, container, restarts, previous=previous, ended_at=reading.moment(ended, "terminated", "finishedAt"))


def _run(pod: Manifest, container: str, restarts: int, *, previous: bool = False, ended_at: datetime | None = None) -> Run:
    metadata = pod["metadata"]
    return Run(metadata["namespace"], metadata["name"], metadata["uid"], container, restarts, previous, ended_at)


def container_status(pod: Manifest, container: str) -> Manifest:
    """Return the status of a container of a Pod; empty if there is none."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((status for status in statuses if status.get("name") == container), {})
