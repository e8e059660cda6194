"""The observation of one VLLMDeployment: the input of a report, and what follows from it about Pods, stalled starts and the rollout.

A report depends on nothing else. Nothing is kept in memory: state that must survive a restart of the operator, such as created events, is
read from the previous status.

A start is stalled if it shows no sign of progress for too long. A log line, a new stage and a new run are signs of progress. The limit is
`spec.startup.stallTimeoutSeconds`, or the time for which the current stage is known to be silent if that is longer, because FlashInfer
compiles for minutes without a log line. CPU use proves nothing: processes that wait for each other (NCCL, shared memory) use CPU too.

The number of requests of a draining Pod is in its log: vLLM 0.11.0 to 0.33.0 writes the running and waiting ones every 10 s while it is not
idle (vllm/v1/metrics/loggers.py). Its HTTP server cannot be asked: from 0.18 to 0.26 it accepts no connections while it drains
(vllm/entrypoints/launcher.py), and a NetworkPolicy may exclude the operator.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import COMPONENT_LABEL, CONTAINER, GROUP_REVISION_LABEL
from vllm_operator.api.plan import Plan
from vllm_operator.api.reading import Manifest, RunKey
from vllm_operator.api.resource import Role, VLLMDeployment, is_observed, is_rolling_out
from vllm_operator.api.status import VLLMDeploymentStatus
from vllm_operator.caches.address import cache_key_of
from vllm_operator.caches.claims import ClaimHolder
from vllm_operator.caches.context import NO_ACTIVITY, CacheActivity
from vllm_operator.inventory.pools import Inventory, Room, Taint
from vllm_operator.logs.progress import allowed_silence_seconds, infer_silence
from vllm_operator.logs.ranks import DEFAULT_TIMEOUT_SECONDS, LOST, GroupDiagnosis, GroupState, Rank, diagnose_ranks
from vllm_operator.logs.state import CacheEvidence, Crash, Stage, StartupState, UnreadLog
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.placement.groups import ENGINES_FLAG, TIMEOUT_FLAG
from vllm_operator.pods.view import EventLog, Phase, PodView, killed_by_probe, place_of, refine, told_to_stop_at
from vllm_operator.rendering.image_reading import ImageReading
from vllm_operator.status.knowledge import Knowledge, Messages
from vllm_operator.status.terminations import SAYS_NOTHING, explain_end

DEFAULT_STALL_SECONDS = 600
_NOT_STARTING = (Phase.CRASHED, Phase.FAILED, Phase.NODE_LOST, Phase.HUNG, Phase.NOT_RESPONDING, Phase.TERMINATING, Phase.READY)


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
    """The exposure of an engine in addition to its Service."""

    problems: tuple[ObjectProblem, ...] = ()
    url: str | None = None  # of an accepted HTTPRoute
    awaits_gateway: bool = False  # there is an HTTPRoute that no Gateway has accepted yet


@dataclass(frozen=True, slots=True)
class StallCheck:
    """Whether a start is stalled."""

    since: datetime  # last sign of progress
    limit: int  # seconds of silence that are allowed after it
    deadline: datetime
    stalled: bool  # the deadline has passed


def last_sign(view: PodView, state: StartupState | None, now: datetime) -> datetime | None:
    """Return the time of the last sign of progress; None if no sign has a time."""
    signs = [view.started_at or view.created_at]
    if state is not None:
        signs += [state.last_line_at, state.stage_since, state.started_at]
    # A log line from the future, because of a wrong clock, must not extend the limit forever.
    return max((sign for sign in signs if sign is not None and sign <= now), default=None)


_PHASE_ORDER = {phase: number for number, phase in enumerate(Phase)}
_STAGE_ORDER = {stage: number for number, stage in enumerate(Stage)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts(PodView):
    """A Pod with everything that is known about it."""

    state: StartupState | None  # from the log of the current run; None if unknown
    stage: Stage  # only meaningful while the Pod does not serve
    stall_check: StallCheck | None  # None if the engine does not run or already serves
    cache_key: str  # the cache directory, on any kind of volume; empty without one
    is_current: bool  # it has the current Pod template, according to the Deployment
    group: "GroupFacts | None" = None  # of a Pod that represents a replica on several nodes

    @property
    def is_stalled(self) -> bool:
        """Whether the start shows no sign of progress."""
        return self.stall_check is not None and self.stall_check.stalled

    @property
    def severity(self) -> tuple[int, int, float, str]:
        """The sort key: phase (a stall is among the worse ones), earlier stage, less progress, name."""
        progress = self.state.progress if self.state is not None else None
        done = progress.completed / progress.total if progress and progress.total > 0 else 0.0
        return (_PHASE_ORDER[Phase.CONTAINER_FAILED if self.is_stalled else self.phase], _STAGE_ORDER[self.stage], done, self.name)

    @property
    def start_name(self) -> str:
        """The name of this start: that of the Pod, with its UID in a group, whose next Pods have the same names."""
        return self.name if self.group is None else f"{self.name} ({self.uid})"

    def has_caches_of(self, plan: Plan) -> bool:
        """Return whether the Pod uses the cache directory of a plan. A Pod without a directory counts."""
        return self.cache_key in ("", plan.cache_key)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The Pods of a replica on several nodes."""

    members: tuple[PodFacts, ...]  # those that exist, by rank
    size: int
    rank: int  # of the Pod that has this
    diagnosis: GroupDiagnosis
    different: tuple[str, ...] = ()  # what must be the same on all nodes and is not

    @property
    def root_cause_elsewhere(self) -> Crash | None:
        """The root cause, if another Pod has it or it is not an error in this Pod's log; None otherwise."""
        found = self.diagnosis
        is_own = found.crash is None or (found.rank == self.rank and found.crash.signature != LOST)
        return None if is_own or found.state is not GroupState.CRASHED else found.crash


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rollout, according to the Deployment."""

    updated: int  # number of Pods that run the current spec
    is_complete: bool  # all Pods do
    paused: str  # name of the Deployment if it is paused; else empty
    failure: str | None  # why it cannot create Pods, for example because of a quota or an admission policy; None if it can
    template: str | None  # hash of the current Pod template; None if any Pod counts as current


def _read_rollout(deployment: Manifest | None, pods: tuple[PodView, ...], wanted: int) -> Rollout:
    """Read the Deployment. It counts the Pods with the current template: those of the ReplicaSet that created the newest Pod."""
    updated = reading.integer(deployment, "status", "updatedReplicas") or 0
    is_complete, template = True, None
    if reading.integer(deployment, "status", "observedGeneration") is not None:
        is_complete = updated >= wanted and not is_rolling_out(deployment)
        newest = max(pods, key=lambda pod: reading.text(pod.manifest, "metadata", "creationTimestamp"), default=None)
        template = _template(newest) if is_observed(deployment) and updated else "none"  # no Pod is current
    failure = reading.named(deployment, "ReplicaFailure", "status", "conditions")
    return Rollout(
        updated=updated,
        is_complete=is_complete,
        paused=reading.text(deployment, "metadata", "name") if reading.flag(deployment, "spec", "paused") else "",
        failure=(reading.text(failure, "message") or "no reason given") if failure.get("status") == "True" else None,
        template=template,
    )


def _template(pod: PodView | None) -> str:
    labels = reading.mapping(pod.manifest if pod is not None else None, "metadata", "labels")
    return reading.text(labels, "pod-template-hash") or reading.text(labels, GROUP_REVISION_LABEL)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What is known about one VLLMDeployment, and what follows. Pods without a name are omitted, because no message could name them."""

    resource: VLLMDeployment  # as read, with its last written status
    outcome: Outcome  # of planning its current generation
    now: datetime  # UTC
    knowledge: Knowledge
    revision: str | None = None  # name of the revision of the plan; None without a plan, or if it cannot be created
    revisions: tuple[dict[str, Any], ...] = ()  # the ControllerRevisions with its plans, possibly without their data
    deployment: Manifest | None = None
    service: Manifest | None = None
    claim: Manifest | None = None  # the live PVC of the caches; None if it does not exist
    claim_name: str | None = None  # None if the caches are on no PVC
    weights_claim: Manifest | None = None  # the live PVC of the weights, if it is another one
    weights_claim_name: str | None = None
    missing_claims: Mapping[str, str] = field(default_factory=dict)  # PVCs that do not exist, with the field of the spec that names each
    claim_holders: Mapping[str, tuple[ClaimHolder, ...]] = field(default_factory=dict)  # Pods that keep a PVC from being deleted, by PVC
    pods: tuple[PodView, ...] = ()  # of the Deployment, including failed Pods and Pods that are being deleted
    followers: tuple[PodView, ...] = ()  # the other Pods of replicas on several nodes; `pods` has their leaders
    primers: tuple[PodView, ...] = ()  # Pods of primers, which never serve
    jobs: tuple[Manifest, ...] = ()  # those that have no Pod, or no Pod that is bound to a node
    pod_events: tuple[Manifest, ...] = ()  # about Pods, PVCs and Jobs; without them, some messages are less precise
    startups: Mapping[RunKey, StartupState] = field(default_factory=dict)  # from the logs of current and crashed runs
    unread_logs: Mapping[RunKey, UnreadLog] = field(default_factory=dict)
    gpus: Mapping[str, str] = field(default_factory=dict)  # GPU and driver by node, in words, of replicas on several nodes
    taints: Mapping[str, tuple[Taint, ...]] = field(default_factory=dict)  # by node with the planned GPUs, if a Pod waits for a node
    inventory: Inventory | None = None  # None if the GPUs are unknown
    room: Room | None = None  # GPUs for its Pods, if it avoids bad nodes; None if unknown, or if an autoscaler would add nodes
    activity: CacheActivity = NO_ACTIVITY
    serving_plan: Plan | None = None  # of the live Deployment, if another plan is measured against it
    build: ImageReading | None = None  # the build of vLLM in the image; None if the catalog knows it
    not_kept: tuple[str, ...] = ()  # applied fields of the Pod template that the API server or a webhook dropped or changed
    lacks_kind: bool = False  # whether LeaderWorkerSet is not installed, which the plan needs
    apply_error: str | None = None  # why the API server refused a child at the last attempt
    exposure: Exposure = Exposure()
    scaling: tuple[ObjectProblem, ...] = ()  # why the PodDisruptionBudget or the autoscaler has no effect
    draining: tuple[DrainingPod, ...] = ()

    @property
    def previous(self) -> VLLMDeploymentStatus:
        """The last written status."""
        return self.resource.status

    @property
    def plan(self) -> Plan | None:
        """The plan of the outcome; without one, the current plan while its Deployment exists, because it still runs."""
        return self.outcome.plan or (self.resource.pinned if self.deployment is not None else None)

    @property
    def wanted(self) -> int:
        """The desired number of replicas."""
        return self.resource.spec.replicas

    @property
    def messages(self) -> Messages:
        """The templates of conditions and events."""
        return self.knowledge.messages

    @cached_property
    def event_log(self) -> EventLog:
        """The events about Pods, PVCs and Jobs."""
        return EventLog(self.pod_events)

    @cached_property
    def rollout(self) -> Rollout:
        """The state of the Deployment."""
        return _read_rollout(self.deployment, self.pods, self.wanted)

    @cached_property
    def pod_facts(self) -> tuple[PodFacts, ...]:
        """All replicas, worst first. A replica on several nodes is represented by the Pod that decides about its state."""
        return tuple(sorted((_represent(self, pod) for pod in self.pods if pod.name), key=lambda pod: pod.severity))

    @cached_property
    def primer_facts(self) -> tuple[PodFacts, ...]:
        """The Pods of primers, worst first."""
        return tuple(sorted((_read_pod(self, pod) for pod in self.primers if pod.name), key=lambda pod: pod.severity))

    @cached_property
    def starting(self) -> tuple[PodFacts, ...]:
        """Pods that do not serve yet, worst first, then primers."""
        return tuple(pod for pod in (*self.pod_facts, *self.primer_facts) if pod.phase not in _NOT_STARTING)

    @cached_property
    def unhealthy(self) -> tuple[PodFacts, ...]:
        """Pods that should serve but do not, worst first. Failed Pods count only until they are replaced."""
        ignored = (Phase.READY, Phase.TERMINATING, *([] if self.replicas < self.wanted else [Phase.FAILED]))
        return tuple(pod for pod in self.pod_facts if pod.phase not in ignored)

    @cached_property
    def serving(self) -> int:
        """Number of Pods that serve."""
        return sum(pod.phase is Phase.READY for pod in self.pod_facts)

    @cached_property
    def replicas(self) -> int:
        """Number of Pods, without terminating and failed ones. The Deployment's count follows a moment later."""
        return sum(pod.phase not in (Phase.TERMINATING, Phase.FAILED) for pod in self.pod_facts)


def _read_pod(observed: Observation, pod: PodView) -> PodFacts:
    view = refine(pod, observed.event_log)
    if view.phase is Phase.UNSCHEDULABLE and "persistentvolumeclaim" in view.message.lower():
        view = replace(view, phase=Phase.WAITING_FOR_VOLUME)  # it fits a node, and a new PVC is bound shortly afterwards
    state, stage = None if view.container else observed.startups.get(view.run_key), Stage.IMAGE_PULL if view.node else Stage.SCHEDULING
    if view.phase is Phase.STARTING:
        state = infer_silence(state, observed.now, observed.knowledge.startup) if state is not None else None
        stage = state.stage if state is not None else Stage.PROCESS_START
    return PodFacts(
        **{field.name: getattr(view, field.name) for field in fields(PodView)},
        state=state,
        stage=stage,
        stall_check=_check_stall(observed, view, state, stage),
        cache_key=cache_key_of(pod.manifest.get("spec")) or "",
        is_current=observed.rollout.template in (None, _template(pod)),
    )


def _represent(observed: Observation, leader: PodView) -> PodFacts:
    """Return the Pod that decides about the state of a replica. On one node, there is no other."""
    place = place_of(leader.manifest)
    if place is None:
        return _read_pod(observed, leader)
    others = [pod for pod in observed.followers if pod.name and (place_of(pod.manifest) or (-1, 0))[0] == place[0]]
    serves = leader.phase in (Phase.READY, Phase.HUNG, Phase.NOT_RESPONDING)
    members = {
        (place_of(pod.manifest) or place)[1]: _read_pod(observed, _as_member(pod, leader, serves=serves)) for pod in (leader, *others)
    }
    args = {argument.name: argument.value for argument in observed.plan.args} if observed.plan is not None else {}
    timeout = reading.read_integer(args.get(TIMEOUT_FLAG)) or DEFAULT_TIMEOUT_SECONDS
    found = diagnose_ranks([_rank(observed, number, member) for number, member in members.items()], observed.knowledge.startup, timeout)
    chosen_rank = min(members, key=lambda number: members[number].severity)  # the Pod that is furthest behind
    if found.state is GroupState.CRASHED:  # the Pod with the root cause, else the one that ended first
        ended = [number for number, it in members.items() if it.termination or (it.state is not None and it.state.crash)]
        failed = [number for number in ended if members[number].phase is not Phase.TERMINATING]
        chosen_rank = found.rank if found.rank in failed else min(failed, key=lambda number: _ended(members[number]), default=chosen_rank)
    size = max((observed.plan.nodes if observed.plan is not None else None) or 2, *(number + 1 for number in members))
    by_rank = tuple(members[number] for number in sorted(members))
    chosen = members[chosen_rank]
    if chosen.state is not None and chosen_rank == 0:  # caches are warm if those of all nodes are
        caches = [it.state.cache for it in by_rank if it.state is not None]
        hits, misses, failures = (sum(map(attrgetter(name), caches)) for name in ("hits", "misses", "load_failures"))
        chosen = replace(chosen, state=replace(chosen.state, cache=CacheEvidence(hits, misses, failures, chosen.state.cache.failure)))
    return replace(chosen, group=GroupFacts(by_rank, size, chosen_rank, found, _differences(observed, by_rank)))


def _differences(observed: Observation, members: Sequence[PodFacts]) -> tuple[str, ...]:
    """Return in which images (as kubelets resolved them), GPUs, drivers and flags the nodes of a replica differ."""
    engines = [reading.named(it.manifest, CONTAINER, "status", "containerStatuses", key="name") for it in members]
    found = {"image": {reading.text(engine, "imageID") for engine in engines}, "GPU": {observed.gpus.get(it.node, "") for it in members}}
    for member in members:
        words = reading.sequence(reading.named(member.manifest, CONTAINER, "spec", "containers", key="name").get("args"))
        for flag, value in pairwise(map(str, words)):
            if flag.startswith("--") and not value.startswith("--") and flag != ENGINES_FLAG:
                found.setdefault(flag, set()).add(value)
    return tuple(f"{what}: {' and '.join(sorted(values - {''}))}" for what, values in found.items() if len(values - {""}) > 1)


def _as_member(pod: PodView, leader: PodView, *, serves: bool) -> PodView:
    """Return a Pod of a replica on several nodes: a follower is always Ready, and a group is deleted when a Pod has crashed."""
    ended, stopped_at = pod.termination.finished_at if pod.termination is not None else None, told_to_stop_at(pod.manifest)
    if ended is not None and leader.ready_at is not None and ended < leader.ready_at:
        pod = replace(pod, termination=None)  # the group has served since then
    if pod.phase is Phase.TERMINATING and pod.termination is not None:
        # times have whole seconds; no container is started again after the Pod was told to stop
        has_crashed = pod.restarts > 0 or (ended is not None and stopped_at is not None and ended < stopped_at)
        return replace(pod, phase=Phase.CRASHED) if has_crashed else replace(pod, termination=None)
    if leader.phase is Phase.TERMINATING and pod.termination is None:
        return replace(pod, phase=Phase.TERMINATING)  # the other Pods of a group are deleted after its leader
    return replace(pod, phase=Phase.STARTING) if pod.phase is Phase.READY and not serves else pod


def _rank(observed: Observation, number: int, pod: PodFacts) -> Rank:
    ended = pod.termination if pod.phase is not Phase.TERMINATING else None
    state = observed.startups.get((pod.uid, ended.restarts)) if ended is not None else pod.state
    crash = state.crash if state is not None else None
    if ended is not None and ended.finished_at is not None:
        stage, probe = state.stage if state is not None else "", killed_by_probe(pod, observed.event_log) or ""
        end = explain_end(observed.knowledge, pod, ended, log_crash=crash, stage=stage, unread="", probe=probe)
        crash = end if end is not None and end.signature not in observed.knowledge.weak and SAYS_NOTHING not in end.cause else crash
    is_running = ended is not None or pod.phase in (Phase.STARTING, Phase.READY, Phase.HUNG, Phase.NOT_RESPONDING)
    return Rank(
        number=number,
        name=pod.name,
        state=state,
        crash=crash,
        is_blocked=not is_running,
        exit_code=ended.exit_code if ended is not None else None,
        ended_at=ended.finished_at if ended is not None else None,
    )


def _ended(pod: PodFacts) -> str:
    return (reading.stamp(pod.termination.finished_at) if pod.termination is not None else None) or "~"


def _check_stall(observed: Observation, view: PodView, state: StartupState | None, stage: Stage) -> StallCheck | None:
    since, now = last_sign(view, state, observed.now), observed.now
    if view.phase is not Phase.STARTING or view.container or since is None:
        return None
    startup = observed.resource.spec.startup
    allowed = (startup.stall_timeout_seconds if startup else None) or DEFAULT_STALL_SECONDS
    limit = max(allowed, allowed_silence_seconds(stage, observed.knowledge.startup) or 0)
    deadline = since + timedelta(seconds=limit)
    return StallCheck(since=since, limit=limit, deadline=deadline, stalled=deadline <= now)


_LOGGED = re.compile(r"(?:(\d+) Engines Aggregated|Engine (\d+)): .{0,200}?\bRunning: (\d{1,9}) reqs, Waiting: (\d{1,9}) reqs")


def why_no_pod(observed: Observation, role: Role) -> str:
    """Return why a Job of the operator has no Pod: it has failed, or its Pod was refused. Empty if unknown."""
    jobs = (job for job in observed.jobs if reading.text(job, "metadata", "labels", COMPONENT_LABEL) == role.value)
    for job in jobs:
        failed = reading.named(job, "Failed", "status", "conditions")
        if failed.get("status") == "True":
            return reading.text(failed, "message") or reading.text(failed, "reason")
        uid, name = reading.text(job, "metadata", "uid"), reading.text(job, "metadata", "name")
        refused = observed.event_log.latest(uid=uid, name=name, kind="Job", reasons={"FailedCreate"})
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
    """Return the running and waiting requests of an engine, from the last log line with these numbers; None without one."""
    ranks: dict[str, int] = {}  # with data parallelism, there is a line for each rank, or one for all
    for line in lines:
        if found := _LOGGED.search(line):
            number = int(found[3]) + int(found[4])
            ranks = {"": number} if found[1] else {**{rank: n for rank, n in ranks.items() if rank}, found[2]: number}
    return sum(ranks.values()) if ranks else None
