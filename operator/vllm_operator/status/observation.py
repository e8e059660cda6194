"""The observation of one VLLMDeployment.

An `Observation` is the input: the object with its last written status, the outcome of planning, its children, and the states of starts from
the logs. A report depends on nothing else. Nothing is kept in memory: state that must survive a restart of the operator, such as created
events, is read from the previous status.

`ObservedState` is an observation with parsed Pods and Deployment. Conditions are derived from it.

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
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import partial

from vllm_operator.api import reading
from vllm_operator.api.labels import COMPONENT_LABEL, CONTAINER
from vllm_operator.api.plan import Plan
from vllm_operator.api.reading import Manifest, RunKey
from vllm_operator.api.resource import Role, VLLMDeployment
from vllm_operator.api.status import VLLMDeploymentStatus
from vllm_operator.caches.activity import NO_ACTIVITY, CacheActivity
from vllm_operator.caches.address import cache_key_of
from vllm_operator.caches.claims import ClaimHolder
from vllm_operator.inventory.pools import Taint
from vllm_operator.logs.progress import allowed_silence_seconds, infer_silence
from vllm_operator.logs.state import Stage, StartupState, UnreadLog
from vllm_operator.planning.outcome import Outcome
from vllm_operator.pods.view import EventLog, Phase, PodView, refine
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
    pods: tuple[PodView, ...] = ()
    primers: tuple[PodView, ...] = ()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts(PodView):
    """A Pod with everything that is known about it.

    Attributes:
        state: The state from the log of the current run; None if unknown.
        stage: The stage, if the Pod does not serve yet.
        stall_check: Whether its start is stalled; None if the engine does not run or already serves.
        cache_key: The cache directory, on any kind of volume; empty without one.
        is_current: Whether it has the current Pod template, according to the Deployment.
    """

    state: StartupState | None
    stage: Stage
    stall_check: StallCheck | None
    cache_key: str
    is_current: bool

    @property
    def is_stalled(self) -> bool:
        """Whether the start shows no sign of progress."""
        return self.stall_check is not None and self.stall_check.stalled

    @property
    def severity(self) -> tuple[int, int, float, str]:
        """The sort key: phase (a stall is among the worse ones), earlier stage, less progress, name."""
        progress = self.state.progress if self.state is not None else None
        done = progress.completed / progress.total if progress and progress.total > 0 else 0.0
        return (_RANKS[Phase.CONTAINER_FAILED if self.is_stalled else self.phase], _STAGE_RANKS[self.stage], done, self.name)

    def has_caches_of(self, plan: Plan) -> bool:
        """Return whether the Pod uses the cache directory of a plan. A Pod without a directory counts."""
        return self.cache_key in ("", plan.cache_key)


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rollout, according to the Deployment.

    Attributes:
        updated: Number of Pods that run the current spec.
        is_complete: Whether all Pods do.
        paused: Name of the Deployment if it is paused; else empty.
        failure: Why it cannot create Pods, for example because of a quota or an admission policy; None if it can.
        template: Hash of the current Pod template; None if any Pod counts as current. The Deployment counts the Pods with this template.
            They are the Pods of the ReplicaSet that created the newest Pod.
    """

    updated: int
    is_complete: bool
    paused: str
    failure: str | None
    template: str | None

    @classmethod
    def read(cls, observation: Observation) -> "Rollout":
        """Read the Deployment and its Pods."""
        deployment = observation.deployment
        updated = reading.integer(deployment, "status", "updatedReplicas") or 0
        observed_generation = reading.integer(deployment, "status", "observedGeneration")
        is_complete, template = True, None
        if observed_generation is not None:
            is_observed = observed_generation >= (reading.integer(deployment, "metadata", "generation") or 0)
            counted = reading.integer(deployment, "status", "replicas") or 0
            is_complete = is_observed and updated >= observation.wanted and counted <= updated
            newest = max(observation.pods, key=lambda pod: reading.text(pod.manifest, "metadata", "creationTimestamp"), default=None)
            template = _template(newest) if is_observed and updated else _NO_TEMPLATE
        failure = reading.named(deployment, "ReplicaFailure", "status", "conditions")
        return cls(
            updated=updated,
            is_complete=is_complete,
            paused=reading.text(deployment, "metadata", "name") if reading.flag(deployment, "spec", "paused") else "",
            failure=(reading.text(failure, "message") or "no reason given") if failure.get("status") == "True" else None,
            template=template,
        )


_NO_TEMPLATE = "none"


def _template(pod: PodView | None) -> str:
    return reading.text(pod.manifest if pod is not None else None, "metadata", "labels", "pod-template-hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedState(Observation):
    """An observation with its parsed Pods and Deployment.

    Attributes:
        knowledge: The catalog data.
        log: The events about Pods, PVCs and Jobs.
        rollout: The state of the Deployment.
        pod_facts: All replicas, worst first.
        primer_facts: The Pods that only fill a cache.
        starting: Pods that do not serve yet, worst first, then primers.
        unhealthy: Pods that should serve but do not, worst first. Failed Pods count only until they are replaced.
        serving: Number of Pods that serve.
        replicas: Number of Pods, without terminating and failed ones. The Deployment's count follows a moment later.
    """

    knowledge: Knowledge
    log: EventLog
    rollout: Rollout
    pod_facts: tuple[PodFacts, ...]
    primer_facts: tuple[PodFacts, ...]
    starting: tuple[PodFacts, ...]
    unhealthy: tuple[PodFacts, ...]
    serving: int
    replicas: int

    @classmethod
    def read(cls, observation: Observation, knowledge: Knowledge) -> "ObservedState":
        """Combine what was observed. Pods without a name are omitted, because no message could name them."""
        log, rollout = EventLog(observation.pod_events), Rollout.read(observation)
        read = partial(_read_pod, observation=observation, knowledge=knowledge, log=log, rollout=rollout)
        pods, primers = (
            tuple(sorted(filter(lambda pod: pod.name, map(read, found)), key=lambda pod: pod.severity))
            for found in (observation.pods, observation.primers)
        )
        replicas = sum(pod.phase not in (Phase.TERMINATING, Phase.FAILED) for pod in pods)
        ignored = (Phase.READY, Phase.TERMINATING, *([] if replicas < observation.wanted else [Phase.FAILED]))
        return cls(
            **{field.name: getattr(observation, field.name) for field in fields(observation)},
            knowledge=knowledge,
            log=log,
            rollout=rollout,
            pod_facts=pods,
            primer_facts=primers,
            starting=tuple(pod for pod in (*pods, *primers) if pod.phase in _NOT_SERVING_YET),
            unhealthy=tuple(pod for pod in pods if pod.phase not in ignored),
            serving=sum(pod.phase is Phase.READY for pod in pods),
            replicas=replicas,
        )

    @property
    def messages(self) -> Messages:
        """The messages."""
        return self.knowledge.messages


def _read_pod(pod: PodView, *, observation: Observation, knowledge: Knowledge, log: EventLog, rollout: Rollout) -> PodFacts:
    view = refine(pod, log)
    if view.phase is Phase.UNSCHEDULABLE and "persistentvolumeclaim" in view.message.lower():
        view = replace(view, phase=Phase.WAITING_FOR_VOLUME)  # it fits a node, and a new PVC is bound shortly afterwards
    state, stage = None if view.container else observation.startups.get(view.run), Stage.IMAGE_PULL if view.node else Stage.SCHEDULING
    if view.phase is Phase.STARTING:
        state = infer_silence(state, observation.now, knowledge.startup) if state is not None else None
        stage = state.stage if state is not None else Stage.PROCESS_START
    return PodFacts(
        **{field.name: getattr(view, field.name) for field in fields(view)},
        state=state,
        stage=stage,
        stall_check=_check_stall(view, state, stage, observation, knowledge),
        cache_key=cache_key_of(pod.manifest.get("spec")) or "",
        is_current=rollout.template is None or rollout.template == _template(pod),
    )


def _check_stall(
    view: PodView, state: StartupState | None, stage: Stage, observation: Observation, knowledge: Knowledge
) -> StallCheck | None:
    """Check whether a start is stalled; None if the Pod's engine does not run or already serves, or if no sign of progress has a time."""
    since, now = last_sign(view, state, observation.now), observation.now
    if view.phase is not Phase.STARTING or view.container or since is None:
        return None
    startup, cores = observation.resource.spec.startup, observation.cores.get(view.uid)
    allowed = (startup.stall_timeout_seconds if startup else None) or DEFAULT_STALL_SECONDS
    known = max(allowed, allowed_silence_seconds(stage, knowledge.startup) or 0)
    is_idle = None if cores is None else cores < IDLE_CORES
    limit = known if is_idle is None else allowed if is_idle else BUSY_FACTOR * known
    deadline, first_look = since + timedelta(seconds=limit), since + timedelta(seconds=allowed)
    look_at = first_look if first_look > now or is_idle is None else now + timedelta(seconds=RECHECK_SECONDS)
    return StallCheck(since=since, limit=limit, deadline=deadline, stalled=deadline <= now, look_at=look_at, is_idle=is_idle)


_LOGGED = re.compile(r"(?:(\d+) Engines Aggregated|Engine (\d+)): .{0,200}?\bRunning: (\d{1,9}) reqs, Waiting: (\d{1,9}) reqs")


def why_no_pod(observed: ObservedState, role: Role) -> str:
    """Return why a Job of the operator has no Pod: it has failed, or its Pod was refused. Empty if unknown."""
    jobs = (job for job in observed.jobs if reading.text(job, "metadata", "labels", COMPONENT_LABEL) == role.value)
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
