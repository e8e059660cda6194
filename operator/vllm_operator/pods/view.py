"""From the status of a Pod to the one thing that matters about it.

A Pod's status spreads its story over a phase, conditions, container states and last states. `read_pod`
folds them into a `PodView`: one phase of life, the reason and message in the kubelet's words, and how the
last run of the engine ended, if one did.

What a real kubelet (v1.35.4) shows, and what is therefore not relied on:
- During the back-off of a crash loop the state mostly stays `terminated`; `CrashLoopBackOff` is often seen
  only for its last instant. A crash is judged by `terminated` in state or last state.
- A container that a probe killed shows exit code 137 or 143 and reason Error; only an event names the probe.
- A child killed for memory shows reason OOMKilled with the exit code of its parent, for example 1.
- A command that cannot be run shows `RunContainerError`, later `CrashLoopBackOff` over a last state
  `StartError` with exit code 128, started in 1970.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from vllm_operator.api import labels
from vllm_operator.pods import reading
from vllm_operator.pods.reading import Manifest, RunKey


class Phase(StrEnum):
    """Where a Pod is in its life. Worst first: this order decides which of several Pods is reported."""

    CRASHED = "Crashed"
    """The engine has ended and will be started again."""
    FAILED = "Failed"
    """The Pod is over and will not start again: evicted, refused by the kubelet, its node lost."""
    CONTAINER_FAILED = "ContainerFailed"
    """The container cannot be created or its command cannot be run."""
    UNSCHEDULABLE = "Unschedulable"
    """No node takes it."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """The image cannot be pulled."""
    NODE_LOST = "NodeLost"
    """Its node does not report any more."""
    WAITING_FOR_VOLUME = "WaitingForVolume"
    """A volume cannot be mounted, so far."""
    IMAGE_PULLING = "ImagePulling"
    """The image is being pulled."""
    SCHEDULING = "Scheduling"
    """The scheduler has not judged it yet."""
    CREATING = "Creating"
    """On a node, container not there yet: image pull or volume mount."""
    STARTING = "Starting"
    """The engine runs and does not serve yet."""
    NOT_RESPONDING = "NotResponding"
    """It has served, and its readiness probe fails now."""
    TERMINATING = "Terminating"
    """It is being deleted."""
    READY = "Ready"
    """It serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """How a run of a container ended.

    `run` counts the restarts before this run. `message` is what the kubelet took from the termination log
    or, without one, from the end of the log: untrusted text of up to 4096 bytes.
    """

    run: int
    exit_code: int | None
    reason: str
    message: str
    signal: int | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """What matters about one Pod.

    Attributes:
        name: Its name.
        uid: Its uid.
        phase: Where it is in its life.
        reason: The kubelet's or scheduler's word for it; empty if there is none.
        message: The kubelet's or scheduler's sentence; empty if there is none. Untrusted text.
        container: The container that this is about, where it is not the engine.
        image: The image of that container.
        node: The node that it is on; empty if none.
        restarts: How often the engine container was restarted.
        since: Since when it is in this phase, as far as that is known.
        started_at: When the present run started.
        ready_at: When it began to serve.
        created_at: When it was created.
        termination: How the last run ended; None if none did.
    """

    name: str
    uid: str
    phase: Phase
    reason: str = ""
    message: str = ""
    container: str = ""
    image: str = ""
    node: str = ""
    restarts: int = 0
    since: datetime | None = None
    started_at: datetime | None = None
    ready_at: datetime | None = None
    created_at: datetime | None = None
    termination: Termination | None = None

    @property
    def run(self) -> RunKey:
        """The present run of the engine container."""
        return (self.uid, self.restarts)


@dataclass(frozen=True, slots=True)
class _Found:
    phase: Phase
    reason: str = ""
    message: str = ""
    since: datetime | None = None


_PULL_FAILURES = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable"}
)
_CONTAINER_FAILURES = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"})
_NEVER_RAN = frozenset({"StartError", "ContainerCannotRun"})


def waits_for_node(pod: Manifest) -> bool:
    """Whether a Pod has no node yet."""
    return not reading.text(pod, "spec", "nodeName")


def read_pod(pod: Manifest) -> PodView:
    """Read a Pod. Never raises, whatever its shape."""
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
        termination=_termination(container),
    )


def _focus(pod: Manifest) -> Manifest:
    """The container status to look at: the first init container that is not done, else the engine, else a sidecar that fails."""
    status = reading.mapping(pod, "status")
    for init in reading.objects(status, "initContainerStatuses"):
        done = reading.integer(init, "state", "terminated", "exitCode") == 0 or reading.flag(init, "started")
        if not done and not reading.flag(init, "ready"):
            return init
    engine = reading.named(status, labels.CONTAINER, "containerStatuses", key="name")
    if engine and not reading.flag(engine, "ready"):
        return engine
    others = (c for c in reading.objects(status, "containerStatuses") if not reading.flag(c, "ready"))
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
    """Judge a Pod that is not on a node yet."""
    scheduled = reading.named(status, "PodScheduled", "conditions")
    if reading.text(pod, "spec", "nodeName") or scheduled.get("status") == "True" or reading.text(status, "phase") not in ("", "Pending"):
        return None
    since = reading.moment(scheduled, "lastTransitionTime")
    if scheduled.get("status") != "False":
        return _Found(Phase.SCHEDULING, since=since)
    return _Found(Phase.UNSCHEDULABLE, reading.text(scheduled, "reason") or "Unschedulable", reading.text(scheduled, "message"), since)


def _waiting(container: Manifest) -> _Found | None:
    """Judge a container that waits or has ended."""
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
    """Judge a container that runs."""
    ready = reading.named(status, "Ready", "conditions")
    since = reading.moment(ready, "lastTransitionTime")
    if ready.get("status") == "True":
        return _Found(Phase.READY, since=since)
    started_at = reading.moment(container, "state", "running", "startedAt")
    # Between the startup probe and the readiness probe a container is started and not ready, too: it has served
    # only if Ready went away after it started.
    has_served = reading.flag(container, "started") and since is not None and started_at is not None and since > started_at
    if not has_served:
        return _Found(Phase.STARTING, since=started_at)
    containers_ready = reading.named(status, "ContainersReady", "conditions").get("status") == "True"
    # The node controller takes away Ready alone when a node stops reporting.
    if containers_ready and reading.text(ready, "reason") != "ReadinessGatesNotReady":
        return _Found(Phase.NODE_LOST, "NodeNotReady", "", since)
    return _Found(Phase.NOT_RESPONDING, reading.text(ready, "reason"), reading.text(ready, "message"), since)


def _termination(container: Manifest) -> Termination | None:
    """How the last run ended. While the container runs or is created anew, that is the run before the present one."""
    restarts = max(0, reading.integer(container, "restartCount") or 0)
    ended = reading.mapping(container, "state", "terminated")
    run = restarts
    if not ended:
        ended = reading.mapping(container, "lastState", "terminated")
        backing_off = bool(reading.mapping(container, "state", "waiting"))
        run = restarts if backing_off else max(0, restarts - 1)
    if not ended:
        return None
    return Termination(
        run=run,
        exit_code=reading.integer(ended, "exitCode"),
        reason=reading.text(ended, "reason"),
        message=reading.text(ended, "message"),
        signal=reading.integer(ended, "signal"),
        finished_at=reading.moment(ended, "finishedAt"),
    )
