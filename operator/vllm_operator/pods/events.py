"""What events add to the status of a Pod or a claim.

Some things are told by events only: that an image is being pulled rather than a volume mounted, why a volume
cannot be mounted, that a probe and not a crash ended a container, why a claim is not bound.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from vllm_operator.pods import reading
from vllm_operator.pods.reading import Manifest
from vllm_operator.pods.view import Phase, PodView

_MOUNT_FAILURES = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_CREATION_FAILURES = frozenset({"FailedCreatePodSandBox", "FailedSync"})
_DEVICE_FAILURES = frozenset({"FailedPrepareDynamicResources"})
"""The driver of a device refuses it; the kubelet tries again for ever."""
_BEGINNING = datetime(1971, 1, 1, tzinfo=UTC)
_PULL_STEPS = frozenset({"Pulling", "Pulled"})
_PROBE_KILL_WINDOW = timedelta(minutes=5)
"""A kill by a probe and the end of the container are apart by the grace period of the Pod, at most."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An event about a Pod or a claim."""

    reason: str
    message: str
    time: datetime | None


@dataclass(frozen=True, slots=True)
class EventLog:
    """Core events, looked up by the object that they are about."""

    events: tuple[Manifest, ...]

    def latest(self, *, uid: str, name: str, kind: str, reasons: Iterable[str]) -> Occurrence | None:
        """The latest event about an object with one of these reasons. An event without a uid is matched by name."""
        found = [
            _occurrence(event)
            for event in self.events
            if reading.text(event, "reason") in reasons and _is_about(reading.mapping(event, "involvedObject"), uid, name, kind)
        ]
        return max(found, key=lambda o: (o.time is not None, o.time or _BEGINNING, o.message), default=None)


def refine(view: PodView, log: EventLog) -> PodView:
    """Tell apart what a Pod waits for whose container is being created."""
    if view.phase is not Phase.CREATING:
        return view
    latest = log.latest(
        uid=view.uid, name=view.name, kind="Pod", reasons=_MOUNT_FAILURES | _CREATION_FAILURES | _DEVICE_FAILURES | _PULL_STEPS
    )
    if latest is None:
        return view
    if latest.reason in _MOUNT_FAILURES:
        return replace(view, phase=Phase.WAITING_FOR_VOLUME, reason=latest.reason, message=latest.message)
    if latest.reason in _DEVICE_FAILURES:
        return replace(view, phase=Phase.CONTAINER_FAILED, reason=latest.reason, message=latest.message)
    if latest.reason == "Pulling":
        return replace(view, phase=Phase.IMAGE_PULLING, reason="Pulling", message="", since=latest.time)
    if latest.reason in _CREATION_FAILURES:
        return replace(view, reason=latest.reason, message=latest.message)
    return view


def killed_by_probe(view: PodView, log: EventLog) -> str | None:
    """The kubelet's sentence if a failed probe ended the last run, else None."""
    event = log.latest(uid=view.uid, name=view.name, kind="Pod", reasons={"Killing"})
    ended = view.termination.finished_at if view.termination else None
    if event is None or "probe" not in event.message:
        return None
    if event.time is not None and ended is not None and not -_PROBE_KILL_WINDOW <= event.time - ended <= _PROBE_KILL_WINDOW:
        return None
    return event.message


def _is_about(involved: Manifest, uid: str, name: str, kind: str) -> bool:
    theirs = reading.text(involved, "uid")
    if reading.text(involved, "kind") != kind:
        return False
    return theirs == uid if theirs and uid else reading.text(involved, "name") == name


def _occurrence(event: Manifest) -> Occurrence:
    time = (
        reading.moment(event, "series", "lastObservedTime")
        or reading.moment(event, "lastTimestamp")
        or reading.moment(event, "eventTime")
        or reading.moment(event, "firstTimestamp")
        or reading.moment(event, "metadata", "creationTimestamp")
    )
    return Occurrence(reading.text(event, "reason"), reading.text(event, "message"), time)
