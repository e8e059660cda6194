"""The observation of one VLLMDeployment.

An `Observation` is the input: the object with its last written status, the outcome of planning, its children, and the states of starts from
the logs. A report depends on nothing else. Nothing is kept in memory: state that must survive a restart of the operator, such as created
events, is read from the previous status.

`ObservedState` is an observation with parsed Pods, worst first. Conditions are derived from it.

A start is stalled if it shows no sign of progress for too long. A log line, a new stage and a new run are signs of progress. The limit is
`spec.startup.stallTimeoutSeconds`, or the time for which the current stage is known to be silent if that is longer, because FlashInfer
compiles for minutes without a log line. CPU use is more precise, if the cluster measures it. A start without CPU use gets no extra time for
a silent stage. A start that uses CPU gets twice the limit, and not more, because processes that wait for each other (NCCL, shared memory)
use CPU too.

The number of requests of a draining Pod is in its log: vLLM writes a line with the running and waiting requests every 10 s while it is not
idle, in all versions from 0.11.0 to 0.33.0 (vllm/v1/metrics/loggers.py). The HTTP server cannot be asked: from 0.18 to 0.26 it accepts no
connections while it drains (vllm/entrypoints/launcher.py), a NetworkPolicy may exclude the operator, and the permission for requests
through the API server (`pods/proxy`) would allow requests to every Pod.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from vllm_operator.api import reading
from vllm_operator.api.labels import COMPONENT_LABEL, CONTAINER
from vllm_operator.api.reading import Manifest, RunKey
from vllm_operator.api.resource import Role, VLLMDeployment
from vllm_operator.api.status import VLLMDeploymentStatus
from vllm_operator.caches.activity import NO_ACTIVITY, CacheActivity
from vllm_operator.caches.address import cache_key_of
from vllm_operator.caches.claims import ClaimHolder
from vllm_operator.inventory.taints import Taint
from vllm_operator.logs.state import Stage, StartupState, UnreadLog
from vllm_operator.logs.timeline import allowed_silence_seconds, infer_silence
from vllm_operator.planning.outcome import Outcome
from vllm_operator.pods.view import EventLog, Phase, PodView, read_pod, refine
from vllm_operator.status.knowledge import Knowledge, Messages

DEFAULT_STALL_SECONDS = 600
IDLE_CORES = 0.05
"""CPU use of an idle process. Python threads that wait for each other use less."""
BUSY_FACTOR = 2
"""Factor of the allowed silence for a start that uses CPU."""
RECHECK_SECONDS = 60
"""Interval between reads of the CPU use of a silent start. Metrics can be a minute old."""
_NOT_SERVING_YET = frozenset(
    {
        Phase.UNSCHEDULABLE,
        Phase.IMAGE_PULL_FAILED,
        Phase.CONTAINER_FAILED,
        Phase.WAITING_FOR_VOLUME,
        Phase.IMAGE_PULLING,
        Phase.SCHEDULING,
        Phase.CREATING,
        Phase.STARTING,
    }
)


@dataclass(frozen=True, slots=True)
class DrainingPod:
    """A draining Pod. `until` is when it is killed at the latest; `requests` is the number of unfinished requests, None if unknown."""

    name: str
    until: datetime
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectProblem:
    """Why an object of this kind has no effect. `detail` is the name of the integration, or the message of the API server."""

    reason: str
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class Exposure:
    """The exposure of an engine in addition to its Service.

    `url` is the URL of an accepted HTTPRoute. `awaits_gateway`: there is an HTTPRoute that no Gateway has accepted yet.
    """

    problems: tuple[ObjectProblem, ...] = ()
    url: str | None = None
    awaits_gateway: bool = False


NO_EXPOSURE = Exposure()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A snapshot of one VLLMDeployment.

    Attributes:
        resource: The object as read, with its last written status.
        outcome: The outcome of planning its current generation.
        revision: The name of the plan of the outcome; None without a plan, or if it cannot be recorded.
        now: The current time, UTC.
        deployment: The live Deployment; None without one.
        service: The live Service; None without one.
        claim: The live PVC of the caches; None if it does not exist.
        claim_name: The name of the PVC of the caches; None if the caches are on no PVC.
        weights_claim: The live PVC of the weights, if it is another one; None if it does not exist.
        weights_claim_name: The name of the PVC of the weights, if it is another one.
        claim_holders: The Pods that keep a PVC from being deleted, by the name of the PVC. Includes Pods of other owners.
        pods: The Pods of the Deployment, including failed Pods and Pods that are being deleted.
        primers: The Pods that only fill a cache. They never serve.
        jobs: The live Jobs that have no Pod, or no Pod that is bound to a node.
        pod_events: Core events about these Pods, the PVCs and the Jobs. Without them, some messages are less precise.
        startups: The state from the log, by run of a container: the run that is followed and, after a crash, the crashed run. If an entry
            is missing, only the status of the Pod is used.
        unread_logs: Why nothing could be read of a log, by run.
        cores: CPUs in use by Pods whose start is silent, by UID. Empty if the cluster does not measure it.
        taints: Taints of the nodes that have the GPUs of the plan, by node. Empty while no Pod waits for a node, and if the nodes cannot
            be read.
        activity: The current cache activity.
        not_kept: Fields of the Pod template that were applied and that the API server or a webhook dropped or changed.
        exposure: The exposure of the engine in addition to its Service.
        draining: The Pods that finish their requests before they stop.
        scaling: Why the PodDisruptionBudget or the autoscaler has no effect.
        apply_error: Why the API server refused a child at the last attempt; None if it accepted all.
    """

    resource: VLLMDeployment
    outcome: Outcome
    now: datetime
    revision: str | None = None
    deployment: Manifest | None = None
    service: Manifest | None = None
    claim: Manifest | None = None
    claim_name: str | None = None
    weights_claim: Manifest | None = None
    weights_claim_name: str | None = None
    claim_holders: Mapping[str, tuple[ClaimHolder, ...]] = field(default_factory=dict)
    pods: tuple[Manifest, ...] = ()
    primers: tuple[Manifest, ...] = ()
    jobs: tuple[Manifest, ...] = ()
    pod_events: tuple[Manifest, ...] = ()
    startups: Mapping[RunKey, StartupState] = field(default_factory=dict)
    unread_logs: Mapping[RunKey, UnreadLog] = field(default_factory=dict)
    cores: Mapping[str, float] = field(default_factory=dict)
    taints: Mapping[str, tuple[Taint, ...]] = field(default_factory=dict)
    activity: CacheActivity = NO_ACTIVITY
    not_kept: tuple[str, ...] = ()
    apply_error: str | None = None
    exposure: Exposure = NO_EXPOSURE
    scaling: tuple[ObjectProblem, ...] = ()
    draining: tuple[DrainingPod, ...] = ()

    @property
    def previous(self) -> VLLMDeploymentStatus:
        """The last written status."""
        return self.resource.status

    @property
    def wanted(self) -> int:
        """The desired number of replicas."""
        return self.resource.spec.replicas


@dataclass(frozen=True, slots=True)
class StallCheck:
    """Whether a start is stalled.

    Attributes:
        since: Time of the last sign of progress.
        limit: Seconds of silence that are allowed after it.
        deadline: The sum of both.
        stalled: Whether the deadline has passed.
        look_at: When CPU use may change the result.
        is_idle: Whether the start uses no CPU; None if unknown.
    """

    since: datetime
    limit: int
    deadline: datetime
    stalled: bool
    look_at: datetime
    is_idle: bool | None = None


def check_stall(
    view: PodView,
    state: StartupState | None,
    *,
    stall_timeout_seconds: int | None,
    silent_seconds: int | None,
    now: datetime,
    cores: float | None = None,
) -> StallCheck | None:
    """Check a Pod whose engine runs but does not serve yet; None if no sign of progress has a time.

    Args:
        view: The Pod.
        state: The state from the log of its current run.
        stall_timeout_seconds: `spec.startup.stallTimeoutSeconds`.
        silent_seconds: Seconds for which the current stage may be silent.
        now: The current time.
        cores: CPUs in use; None if unknown.
    """
    since = last_sign(view, state, now)
    if since is None:
        return None
    allowed = stall_timeout_seconds or DEFAULT_STALL_SECONDS
    known = max(allowed, silent_seconds or 0)
    is_idle = None if cores is None else cores < IDLE_CORES
    limit = known if is_idle is None else allowed if is_idle else BUSY_FACTOR * known
    deadline, first_look = since + timedelta(seconds=limit), since + timedelta(seconds=allowed)
    look_at = first_look if first_look > now or is_idle is None else now + timedelta(seconds=RECHECK_SECONDS)
    return StallCheck(since=since, limit=limit, deadline=deadline, stalled=deadline <= now, look_at=look_at, is_idle=is_idle)


def last_sign(view: PodView, state: StartupState | None, now: datetime) -> datetime | None:
    """Return the time of the last sign of progress; None if no sign has a time."""
    signs = [view.started_at or view.created_at]
    if state is not None:
        signs += [state.last_line_at, state.stage_since, state.started_at]
    # A log line from the future, because of a wrong clock, must not extend the limit forever.
    seen = [sign for sign in signs if sign is not None and sign <= now]
    return max(seen, default=None)


_RANKS = {phase: rank for rank, phase in enumerate(Phase)}
_STAGE_RANKS = {stage: rank for rank, stage in enumerate(Stage)}


@dataclass(frozen=True)  # no slots, because cached_property does not support them
class ObservedState:
    """An observation with parsed Pods.

    `pods` are all replicas, worst first. `primers` are the Pods that only fill a cache. `cache_keys` are the cache directories of Pods by
    the UID of the Pod.
    """

    observation: Observation
    knowledge: Knowledge
    log: EventLog
    pods: tuple[PodView, ...]
    primers: tuple[PodView, ...] = ()
    cache_keys: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, observation: Observation, knowledge: Knowledge) -> "ObservedState":
        """Parse an observation. Pods without a name are omitted, because no message could name them."""
        log = EventLog(observation.pod_events)
        observed = cls(observation, knowledge, log, ())
        pods, primers = (
            tuple(sorted((v for pod in found if (v := _wait_for_claim(refine(read_pod(pod), log))).name), key=observed._severity))
            for found in (observation.pods, observation.primers)
        )
        return cls(observation, knowledge, log, pods, primers, _cache_keys((*observation.pods, *observation.primers)))

    @property
    def messages(self) -> Messages:
        """The messages."""
        return self.knowledge.messages

    @cached_property
    def serving(self) -> int:
        """The number of Pods that serve."""
        return sum(view.phase is Phase.READY for view in self.pods)

    @cached_property
    def starting(self) -> tuple[PodView, ...]:
        """Pods that do not serve yet, worst first, then primers."""
        return tuple(view for view in (*self.pods, *self.primers) if view.phase in _NOT_SERVING_YET)

    @cached_property
    def unhealthy(self) -> tuple[PodView, ...]:
        """Pods that should serve but do not, worst first. Failed Pods count only until they are replaced."""
        living = tuple(v for v in self.pods if v.phase not in (Phase.READY, Phase.TERMINATING, Phase.FAILED))
        is_missing = self.serving + len(living) < self.observation.wanted
        failed = tuple(v for v in self.pods if v.phase is Phase.FAILED) if is_missing else ()
        return tuple(sorted((*failed, *living), key=self._severity))

    def state(self, view: PodView) -> StartupState | None:
        """Return the state from the log of the current run; None if unknown."""
        state = None if view.container else self.observation.startups.get(view.run)
        if state is None or view.phase is not Phase.STARTING:
            return state
        return infer_silence(state, self.observation.now, self.knowledge.startup)

    def stage(self, view: PodView) -> Stage:
        """Return the stage of a Pod that does not serve yet."""
        if not view.node and view.phase is not Phase.STARTING:
            return Stage.SCHEDULING
        if view.phase is not Phase.STARTING:
            return Stage.IMAGE_PULL
        state = self.state(view)
        return state.stage if state is not None else Stage.PROCESS_START

    def stall_check(self, view: PodView) -> StallCheck | None:
        """Check whether a start is stalled; None if the Pod's engine does not run or already serves."""
        if view.phase is not Phase.STARTING or view.container:
            return None
        startup = self.observation.resource.spec.startup
        stall_timeout_seconds = startup.stall_timeout_seconds if startup else None
        silent_seconds = allowed_silence_seconds(self.stage(view), self.knowledge.startup)
        return check_stall(
            view,
            self.state(view),
            stall_timeout_seconds=stall_timeout_seconds,
            silent_seconds=silent_seconds,
            now=self.observation.now,
            cores=self.observation.cores.get(view.uid),
        )

    def stalled(self, view: PodView) -> bool:
        """Return whether a start shows no sign of progress."""
        stall_check = self.stall_check(view)
        return stall_check is not None and stall_check.stalled

    def _severity(self, view: PodView) -> tuple[int, int, float, str]:
        """Return the sort key: phase (a stall is among the worse ones), earlier stage, less progress, name."""
        rank = _RANKS[Phase.CONTAINER_FAILED if self.stalled(view) else view.phase]
        state = self.state(view)
        progress = state.progress if state is not None else None
        done = progress.completed / progress.total if progress and progress.total > 0 else 0.0
        return (rank, _STAGE_RANKS[self.stage(view)], done, view.name)


def _cache_keys(pods: Iterable[Manifest]) -> dict[str, str]:
    """Return the cache directories of Pods by UID, on any kind of volume."""
    return {reading.text(pod, "metadata", "uid"): key for pod in pods if (key := cache_key_of(pod.get("spec")))}


def _wait_for_claim(view: PodView) -> PodView:
    """Distinguish a Pod that waits for its PVCs from one that fits no node. A new PVC is bound shortly afterwards."""
    waits = view.phase is Phase.UNSCHEDULABLE and "persistentvolumeclaim" in view.message.lower()
    return replace(view, phase=Phase.WAITING_FOR_VOLUME) if waits else view


def replicas(observed: ObservedState) -> int:
    """Return the number of Pods, without terminating and failed ones. The Deployment's count follows a moment later."""
    return sum(view.phase not in (Phase.TERMINATING, Phase.FAILED) for view in observed.pods)


def updated_replicas(observed: ObservedState) -> int | None:
    """Return how many Pods run the current spec; None if the Deployment does not report it."""
    return reading.integer(observed.observation.deployment, "status", "updatedReplicas")


def is_rolled_out(observed: ObservedState) -> bool:
    """Return whether all Pods run the current spec, according to the Deployment."""
    deployment = observed.observation.deployment
    observed_generation = reading.integer(deployment, "status", "observedGeneration")
    if observed_generation is None:
        return True
    updated, counted = updated_replicas(observed) or 0, reading.integer(deployment, "status", "replicas") or 0
    current = observed_generation >= (reading.integer(deployment, "metadata", "generation") or 0)
    return current and updated >= observed.observation.wanted and counted <= updated


def paused(observed: ObservedState) -> str:
    """Return the name of the Deployment if it is paused, else an empty text."""
    deployment = observed.observation.deployment
    return reading.text(deployment, "metadata", "name") if reading.mapping(deployment, "spec").get("paused") is True else ""


def is_current(observed: ObservedState, view: PodView) -> bool:
    """Return whether a Pod has the current Pod template, according to the Deployment.

    The Deployment counts such Pods. They are the Pods of the ReplicaSet that created the newest Pod.
    """
    deployment = observed.observation.deployment
    observed_generation = reading.integer(deployment, "status", "observedGeneration")
    if observed_generation is None:
        return True
    if observed_generation < (reading.integer(deployment, "metadata", "generation") or 0) or not updated_replicas(observed):
        return False
    pods = {reading.text(pod, "metadata", "name"): pod for pod in observed.observation.pods}
    newest = max(pods.values(), key=lambda pod: reading.text(pod, "metadata", "creationTimestamp"), default=None)
    return _template(pods.get(view.name)) == _template(newest)


def _template(pod: Manifest | None) -> str:
    return reading.text(pod, "metadata", "labels", "pod-template-hash")


def creation_failure(observed: ObservedState) -> str | None:
    """Return why the Deployment cannot create Pods, for example because of a quota or an admission policy; None if it can."""
    failure = reading.named(observed.observation.deployment, "ReplicaFailure", "status", "conditions")
    return (reading.text(failure, "message") or "no reason given") if failure.get("status") == "True" else None


def selector(observed: ObservedState) -> str | None:
    """Return the label selector of the Pods, for the scale subresource."""
    chosen = reading.mapping(observed.observation.deployment, "spec", "selector", "matchLabels")
    pairs = sorted((key, value) for key, value in chosen.items() if isinstance(key, str) and isinstance(value, str))
    return ",".join(f"{key}={value}" for key, value in pairs)[:1024] or observed.observation.previous.selector


_LOGGED = re.compile(r"(?:(\d+) Engines Aggregated|Engine (\d+)): .{0,200}?\bRunning: (\d{1,9}) reqs, Waiting: (\d{1,9}) reqs")


def why_no_pod(observed: ObservedState, role: Role) -> str:
    """Return why a Job of the operator has no Pod: it has failed, or its Pod was refused. Empty if unknown."""
    jobs = (job for job in observed.observation.jobs if reading.text(job, "metadata", "labels", COMPONENT_LABEL) == role.value)
    for job in jobs:
        failed = reading.named(job, "Failed", "status", "conditions")
        if failed.get("status") == "True":
            return reading.text(failed, "message") or reading.text(failed, "reason")
        uid, name = reading.text(job, "metadata", "uid"), reading.text(job, "metadata", "name")
        refused = observed.log.latest(uid=uid, name=name, kind="Job", reasons={"FailedCreate"})
        if refused is not None:
            return refused.message
    return ""


def draining_until(pod: Manifest) -> datetime | None:
    """Return when a draining Pod is killed; None if the Pod is not draining.

    A Pod is draining if it is being deleted, its engine has served and still runs, and a preStop hook delays the end.
    """
    engine = reading.named(pod, CONTAINER, "status", "containerStatuses", key="name")
    serves = reading.flag(engine, "started") and "running" in reading.mapping(engine, "state")
    container = reading.named(pod, CONTAINER, "spec", "containers", key="name")
    if not serves or not reading.mapping(container, "lifecycle", "preStop"):
        return None
    return reading.moment(pod, "metadata", "deletionTimestamp")  # includes the grace period


def read_requests(lines: Iterable[str]) -> int | None:
    """Return the running and waiting requests of an engine, from the last log line with these numbers; None without one.

    With data parallelism there is a line for each rank, or one for all.
    """
    ranks: dict[str, int] = {}
    for line in lines:
        if found := _LOGGED.search(line):
            number = int(found[3]) + int(found[4])
            ranks = {"": number} if found[1] else {**{rank: n for rank, n in ranks.items() if rank}, found[2]: number}
    return sum(ranks.values()) if ranks else None
