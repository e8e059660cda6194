"""The VLLMDeployment that a Pod belongs to, and its state, from its status and its events.

The status of a Pod consists of a phase, conditions, container states and last states. `read_pod` combines them into a `PodView`: one
phase, the reason and message of the kubelet or scheduler, and how the last run of the engine ended. Some facts are only in events: that
an image is being pulled, why a volume cannot be mounted, that a probe ended a container, why a PVC is not bound.

Behaviour of a real kubelet (v1.35.4):
- During the back-off of a crash loop, the state mostly stays `terminated`. `CrashLoopBackOff` is often visible only for a moment.
  `terminated` in the state or last state therefore means a crash.
- A container that a probe killed has exit code 137 or 143 and reason Error. Only an event names the probe.
- A child process killed because of memory gives reason OOMKilled with the exit code of its parent, for example 1.
- A command that cannot be run gives `RunContainerError`, later `CrashLoopBackOff` and a last state `StartError` with exit code 128 that
  started in 1970.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from vllm_operator.api import labels, reading
from vllm_operator.api.labels import COMPONENT_LABEL, GROUP_INDEX_LABEL, INSTANCE_LABEL, NAME, NAME_LABEL, WORKER_INDEX_LABEL
from vllm_operator.api.reading import Manifest, RunKey
from vllm_operator.api.resource import JOB_PURPOSES, Role, job_prefix, primer_name
from vllm_operator.catalog.versions import load_engine_facts
from vllm_operator.pods.tools import HANG_PREFIX


class Phase(StrEnum):
    """State of a Pod, worst first. The order decides which of several Pods is reported."""

    CRASHED = "Crashed"
    """The engine has ended and will be restarted."""
    FAILED = "Failed"
    """The Pod has failed and will not run again: evicted, or refused by the kubelet."""
    CONTAINER_FAILED = "ContainerFailed"
    """The container cannot be created, or its command cannot run."""
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    NODE_LOST = "NodeLost"
    WAITING_FOR_VOLUME = "WaitingForVolume"
    IMAGE_PULLING = "ImagePulling"
    SCHEDULING = "Scheduling"
    """The scheduler has not handled the Pod yet."""
    CREATING = "Creating"
    """The Pod is on a node, but its container does not exist yet: image pull or volume mount."""
    STARTING = "Starting"
    """The engine runs and is not ready yet."""
    HUNG = "Hung"
    """The Pod was ready, and its readiness probe says that the engine has work and makes no progress."""
    NOT_RESPONDING = "NotResponding"
    """The Pod was ready, and its readiness probe fails now."""
    TERMINATING = "Terminating"
    READY = "Ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """The end of a run of a container."""

    restarts: int
    """Number of restarts before this run."""
    exit_code: int | None
    """Of the main process, or 128 plus the number of the signal that ended it."""
    reason: str
    """OOMKilled, Error, Completed or StartError."""
    message: str
    """The end of the log, or the error of the container runtime: untrusted text of up to 4096 bytes."""
    signal: int | None = None
    finished_at: datetime | None
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """The state of one Pod. Reason and message are those of the kubelet or scheduler; the message is untrusted text."""

    name: str
    uid: str
    phase: Phase
    reason: str = ""
    message: str = ""
    container: str = ""
    """The container that causes the state, if it is not the engine."""
    image: str = ""
    """The image of that container."""
    node: str = ""
    restarts: int = 0
    """Restarts of that container."""
    since: datetime | None = None
    """Start time of this state, if known."""
    started_at: datetime | None = None
    """Start time of the current run."""
    ready_at: datetime | None = None
    created_at: datetime | None = None
    termination: Termination | None = None
    """End of the last run; None if no run has ended."""
    manifest: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The Pod as read."""

    @property
    def in_kubectl(self) -> str:
        """The Pod as words of a kubectl command."""
        return f"{self.name} -n {reading.text(self.manifest, 'metadata', 'namespace')[:63]}"

    @property
    def run_key(self) -> RunKey:
        """The current run of the engine container."""
        return (self.uid, self.restarts)


@dataclass(frozen=True, slots=True)
class _Found:
    phase: Phase
    reason: str = ""
    message: str = ""
    since: datetime | None = None


HASH_LABEL = "pod-template-hash"
"""Label of the Deployment controller. The name of a ReplicaSet consists of the name of the Deployment and this hash."""
_STEPS = {
    **dict.fromkeys(("FailedMount", "FailedAttachVolume", "FailedMapVolume"), Phase.WAITING_FOR_VOLUME),
    **dict.fromkeys(("FailedCreatePodSandBox", "FailedSync", "Pulled"), Phase.CREATING),
    "FailedPrepareDynamicResources": Phase.CONTAINER_FAILED,  # of the driver of a device; the kubelet retries without a limit
    "Pulling": Phase.IMAGE_PULLING,
}
"""The state of a Pod whose container is being created, by the reason of its latest event."""
_BEGINNING = datetime(1971, 1, 1, tzinfo=UTC)
_PROBE_KILL_WINDOW = timedelta(minutes=5)
"""Maximum time between the event of a kill by a probe and the end of the container: the grace period of the Pod."""
_PROBE_EVENT_WINDOW = timedelta(minutes=1)
"""Maximum time from the event of a failed probe to the condition of the Pod that follows from it."""
_PULL_FAILURES = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable"}
)
_CONTAINER_FAILURES = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"})
_NEVER_RAN = frozenset({"StartError", "ContainerCannotRun"})


def is_ready(pod: Manifest) -> bool:
    """Return whether a Pod is Ready and not being deleted."""
    ready = reading.named(pod, "Ready", "status", "conditions")
    return ready.get("status") == "True" and not reading.text(pod, "metadata", "deletionTimestamp")


def is_over(pod: Any) -> bool:
    """Return whether a Pod has finished."""
    return reading.text(pod, "status", "phase") in ("Succeeded", "Failed")


def has_run(pod: Manifest) -> bool:
    """Return whether the engine of a Pod has ever run. A container that could not be started does not count."""
    engine = reading.named(pod, labels.CONTAINER, "status", "containerStatuses", key="name")
    ended = (reading.mapping(engine, state, "terminated") for state in ("state", "lastState"))
    has_ended = any(end and reading.text(end, "reason") not in _NEVER_RAN for end in ended)
    return bool(reading.mapping(engine, "state", "running")) or has_ended


def instance_of(pod: Manifest) -> str | None:
    """Return the name of the VLLMDeployment that a Pod belongs to; None if it belongs to none. Accepts any object.

    A Pod is identified by the labels in the selector of its Deployment, and by its controller. A ReplicaSet releases a Pod that loses one
    of these labels, so every Pod of the operator has them, and `spec.podTemplate` cannot change them. All other labels, such as
    `app.kubernetes.io/managed-by`, may have any value. For a LeaderWorkerSet, a StatefulSet of its name controls the leaders, and for each
    group a StatefulSet with the name of the leader controls the followers.
    """
    pod_labels = reading.mapping(pod, "metadata", "labels")
    name = reading.read_text(pod_labels.get(INSTANCE_LABEL))
    if name is None or pod_labels.get(NAME_LABEL) != NAME:
        return None
    controller = reading.controller_of(pod)
    kind, owner = controller.get("kind"), controller.get("name")
    suffix = reading.read_text(pod_labels.get(HASH_LABEL))
    match pod_labels.get(COMPONENT_LABEL):
        case Role.ENGINE:
            is_owned = (kind, owner) in (("ReplicaSet", f"{name}-{suffix}"), ("StatefulSet", name))
        case Role.FOLLOWER:
            is_owned = kind == "StatefulSet" and owner == f"{name}-{reading.read_text(pod_labels.get(GROUP_INDEX_LABEL))}"
        case Role.PRIMER:
            is_owned = kind == "ReplicaSet" and owner == f"{primer_name(name)}-{suffix}"
        case role if role in JOB_PURPOSES:
            is_owned = kind == "Job" and isinstance(owner, str) and owner.startswith(job_prefix(name, Role(role)))
        case _:
            is_owned = False
    return name if is_owned else None


def place_of(pod: Manifest) -> tuple[int, int] | None:
    """Return the number of the group of a Pod and its number within the group; None if it belongs to no group."""
    group, worker = (reading.text(pod, "metadata", "labels", label) for label in (GROUP_INDEX_LABEL, WORKER_INDEX_LABEL))
    numbers = group.isascii() and group.isdigit() and worker.isascii() and worker.isdigit() and len(group + worker) < 10
    return (int(group), int(worker)) if numbers else None


def selects(selector: Mapping[str, Any] | None, object_labels: Mapping[str, str]) -> bool:
    """Return whether a LabelSelector selects an object with these labels. None and an invalid one select nothing, an empty one all."""
    if selector is None:
        return False
    if any(object_labels.get(name) != value for name, value in reading.mapping(selector, "matchLabels").items()):
        return False
    return all(meets(object_labels, requirement) is True for requirement in reading.objects(selector, "matchExpressions"))


def meets(object_labels: Mapping[str, str], requirement: Mapping[str, Any]) -> bool | None:
    """Return whether labels meet a requirement of a selector for objects or nodes; None for an operator that only nodes have."""
    name, values = reading.text(requirement, "key"), reading.sequence(requirement.get("values"))
    match requirement.get("operator"):
        case "In":
            return object_labels.get(name) in values
        case "NotIn":
            return object_labels.get(name) not in values
        case "Exists":
            return name in object_labels
        case "DoesNotExist":
            return name not in object_labels
        case _:
            return None


def find_engine(pod: Manifest) -> str | None:
    """Return the name of the container that runs vLLM; None if none is known to. Accepts any object."""
    known = load_engine_facts().containers
    for container in reading.objects(pod, "spec", "containers"):
        words = [*reading.sequence(container.get("command")), *reading.sequence(container.get("args"))]
        line = " ".join(str(word)[:2000] for word in words[:100])
        image = re.split("[:@]", reading.text(container, "image").rpartition("/")[2], maxsplit=1)[0]
        if any(it in line for it in known["commands"]) or (not container.get("command") and image in known["images"]):
            return reading.text(container, "name")
    return None


def as_own(pod: Manifest, engine: str) -> dict[str, Any]:
    """Return a Pod whose engine has the name that the operator gives it, so that what reads the operator's Pods reads this one."""
    own, names = dict(pod), {engine: labels.CONTAINER, labels.CONTAINER: engine}
    for part, listed in (("spec", "containers"), ("status", "containerStatuses")):
        renamed = [{**it, "name": names.get(reading.text(it, "name"), it.get("name"))} for it in reading.objects(pod, part, listed)]
        own[part] = {**reading.mapping(pod, part), listed: renamed}
    return own


def read_pod(pod: Manifest) -> PodView:
    """Read a Pod of any shape. Never raises."""
    status = reading.mapping(pod, "status")
    container = _focus(pod)
    found = _phase(pod, container)
    name = reading.text(container, "name")
    ready = reading.named(status, "Ready", "conditions")
    return PodView(
        name=reading.text(pod, "metadata", "name")[:253],
        uid=reading.text(pod, "metadata", "uid")[:64],
        phase=found.phase,
        reason=found.reason,
        message=found.message,
        container="" if name == labels.CONTAINER else name,
        image=reading.text(container, "image"),
        node=reading.text(pod, "spec", "nodeName"),
        restarts=max(0, reading.integer(container, "restartCount") or 0),
        since=found.since,
        started_at=reading.moment(container, "state", "running", "startedAt"),
        ready_at=reading.moment(ready, "lastTransitionTime") if found.phase is Phase.READY else None,
        created_at=reading.moment(pod, "metadata", "creationTimestamp"),
        termination=_termination(container, told_to_stop_at(pod)),
        manifest=dict(reading.mapping(pod)),
    )


def _focus(pod: Manifest) -> Manifest:
    """Return the container status that decides: the first unfinished init container, else the engine, else a sidecar that is not ready."""
    status = reading.mapping(pod, "status")
    for init in reading.objects(status, "initContainerStatuses"):
        done = reading.integer(init, "state", "terminated", "exitCode") == 0 or reading.flag(init, "started")
        if not done and not reading.flag(init, "ready"):
            return init
    engine = reading.named(status, labels.CONTAINER, "containerStatuses", key="name")
    if engine and not reading.flag(engine, "ready"):
        return engine
    containers = reading.objects(status, "containerStatuses")
    others = (c for c in containers if not reading.flag(c, "ready") and reading.text(c, "name") not in labels.HELPERS)
    return next(others, engine)


def _phase(pod: Manifest, container: Manifest) -> _Found:
    status = reading.mapping(pod, "status")
    if reading.text(status, "reason") == "NodeLost":
        return _Found(Phase.NODE_LOST, "NodeLost", reading.text(status, "message"))
    if reading.text(pod, "metadata", "deletionTimestamp"):
        return _Found(Phase.TERMINATING)
    if reading.text(status, "phase") == "Failed" and reading.text(status, "reason"):
        return _Found(Phase.FAILED, reading.text(status, "reason"), reading.text(status, "message"))
    if not container and reading.named(status, "Ready", "conditions").get("status") == "True":
        return _Found(Phase.READY)
    return _scheduling(status, pod) or _waiting(container) or _running(status, container)


def _scheduling(status: Manifest, pod: Manifest) -> _Found | None:
    """Return the state of a Pod without a node; None if it has one."""
    scheduled = reading.named(status, "PodScheduled", "conditions")
    if reading.text(pod, "spec", "nodeName") or scheduled.get("status") == "True" or reading.text(status, "phase") not in ("", "Pending"):
        return None
    since = reading.moment(scheduled, "lastTransitionTime")
    if scheduled.get("status") != "False":
        return _Found(Phase.SCHEDULING, since=since)
    return _Found(Phase.UNSCHEDULABLE, reading.text(scheduled, "reason") or "Unschedulable", reading.text(scheduled, "message"), since)


def _waiting(container: Manifest) -> _Found | None:
    """Return the state of a Pod whose container waits or has ended; None if it runs."""
    waiting = reading.mapping(container, "state", "waiting")
    reason = reading.text(waiting, "reason")
    ended = reading.mapping(container, "state", "terminated") or reading.mapping(container, "lastState", "terminated")
    message = reading.text(waiting, "message")
    if reason in _PULL_FAILURES:
        return _Found(Phase.IMAGE_PULL_FAILED, reason, message)
    if reason in _CONTAINER_FAILURES:
        return _Found(Phase.CONTAINER_FAILED, reason, message)
    if reading.mapping(container, "state", "terminated") or reason == "CrashLoopBackOff":
        word = reading.text(ended, "reason")
        found = Phase.CONTAINER_FAILED if word in _NEVER_RAN else Phase.CRASHED
        return _Found(found, word, reading.text(ended, "message"), reading.moment(ended, "finishedAt"))
    if reason or not reading.mapping(container, "state", "running"):
        return _Found(Phase.CREATING, reason, message)
    return None


def _running(status: Manifest, container: Manifest) -> _Found:
    ready = reading.named(status, "Ready", "conditions")
    since = reading.moment(ready, "lastTransitionTime")
    if ready.get("status") == "True":
        return _Found(Phase.READY, since=since)
    started_at = reading.moment(container, "state", "running", "startedAt")
    # Between the startup probe and the readiness probe, a container is also started and not ready. It was ready only if the condition Ready
    # changed after its start.
    has_served = reading.flag(container, "started") and since is not None and started_at is not None and since > started_at
    if not has_served:
        return _Found(Phase.STARTING, since=started_at)
    containers_ready = reading.named(status, "ContainersReady", "conditions").get("status") == "True"
    # When a node stops reporting, the node controller sets only Ready to False.
    if containers_ready and reading.text(ready, "reason") != "ReadinessGatesNotReady":
        return _Found(Phase.NODE_LOST, "NodeNotReady", "", since)
    return _Found(Phase.NOT_RESPONDING, reading.text(ready, "reason"), reading.text(ready, "message"), since)


def told_to_stop_at(pod: Manifest) -> datetime | None:
    """Return when the deletion of a Pod was requested; None if it was not, or is final, because that is a request of the kubelet."""
    deleted = reading.moment(pod, "metadata", "deletionTimestamp")
    grace = reading.integer(pod, "metadata", "deletionGracePeriodSeconds")
    return deleted - timedelta(seconds=grace) if deleted is not None and grace else None


def _termination(container: Manifest, stopped_at: datetime | None) -> Termination | None:
    """Return the end of the last run that ended by itself, else of the last run. While the container runs, that is the previous run."""
    restarts = max(0, reading.integer(container, "restartCount") or 0)
    ended, before = reading.mapping(container, "state", "terminated"), restarts
    time, previous = reading.moment(ended, "finishedAt"), reading.mapping(container, "lastState", "terminated")
    was_stopped = stopped_at is not None and time is not None and time >= stopped_at
    if not ended or (was_stopped and previous):
        ended = previous
        is_backing_off = bool(reading.mapping(container, "state", "waiting"))
        before = restarts if is_backing_off else max(0, restarts - 1)
    if not ended:
        return None
    return Termination(
        restarts=before,
        exit_code=reading.integer(ended, "exitCode"),
        reason=reading.text(ended, "reason"),
        message=reading.text(ended, "message"),
        signal=reading.integer(ended, "signal"),
        finished_at=reading.moment(ended, "finishedAt"),
        started_at=reading.moment(ended, "startedAt"),
    )


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An event about a Pod or a PVC."""

    reason: str
    message: str
    time: datetime | None


@dataclass(frozen=True, slots=True)
class EventLog:
    """Core events."""

    events: tuple[Manifest, ...]

    def latest(self, *, uid: str, name: str, kind: str, reasons: Iterable[str], word: str = "") -> Occurrence | None:
        """Return the latest event about an object with one of these reasons and a word. An event without a UID is matched by name."""
        found = [
            _occurrence(event)
            for event in self.events
            if reading.text(event, "reason") in reasons
            and word in reading.text(event, "message")
            and _is_about(reading.mapping(event, "involvedObject"), uid, name, kind)
        ]
        return max(found, key=lambda o: (o.time is not None, o.time or _BEGINNING, o.message), default=None)


def refine(view: PodView, log: EventLog) -> PodView:
    """Refine the state of a Pod: which step a container that is being created waits for, and whether an engine hangs."""
    if view.phase is Phase.NOT_RESPONDING:
        return _hung(view, log) or view
    if view.phase is not Phase.CREATING:
        return view
    latest = log.latest(uid=view.uid, name=view.name, kind="Pod", reasons=_STEPS)
    if latest is None or latest.reason == "Pulled":
        return view
    if latest.reason == "Pulling":
        return replace(view, phase=Phase.IMAGE_PULLING, reason=latest.reason, message="", since=latest.time)
    return replace(view, phase=_STEPS[latest.reason], reason=latest.reason, message=latest.message)


def _hung(view: PodView, log: EventLog) -> PodView | None:
    """Return the state of a Pod whose readiness probe has failed because the engine hangs; None if it has failed for another reason."""
    event = log.latest(uid=view.uid, name=view.name, kind="Pod", reasons={"Unhealthy"}, word="Readiness probe")
    _, is_hang, what = event.message.partition(HANG_PREFIX) if event is not None else ("", "", "")
    if event is None or not is_hang or (event.time and view.since and event.time < view.since - _PROBE_EVENT_WINDOW):
        return None
    return replace(view, phase=Phase.HUNG, reason="EngineHung", message=what.strip())


def killed_by_probe(view: PodView, log: EventLog) -> str | None:
    """Return the kubelet's message if a failed probe ended the last run; None otherwise."""
    event = log.latest(uid=view.uid, name=view.name, kind="Pod", reasons={"Killing"}, word="probe")
    ended = view.termination.finished_at if view.termination else None
    if event is None:
        return None
    if event.time is not None and ended is not None and not -_PROBE_KILL_WINDOW <= event.time - ended <= _PROBE_KILL_WINDOW:
        return None
    return event.message


def _is_about(involved: Manifest, uid: str, name: str, kind: str) -> bool:
    involved_uid = reading.text(involved, "uid")
    if reading.text(involved, "kind") != kind:
        return False
    return involved_uid == uid if involved_uid and uid else reading.text(involved, "name") == name


def _occurrence(event: Manifest) -> Occurrence:
    paths = (("series", "lastObservedTime"), ("lastTimestamp",), ("eventTime",), ("firstTimestamp",), ("metadata", "creationTimestamp"))
    time = next(filter(None, (reading.moment(event, *path) for path in paths)), None)
    return Occurrence(reading.text(event, "reason"), reading.text(event, "message"), time)
