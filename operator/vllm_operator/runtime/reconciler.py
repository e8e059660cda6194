"""Make one VLLMDeployment what it should be, and say how it is.

Always in the same sequence:

    observe -> inventory -> plan -> render -> caches -> apply -> what the logs tell -> report -> events -> status

Everything is looked at each time; nothing that matters is remembered between two runs. Events are written
before the status that follows from the same report: an operator that dies in between reports the same once
more, and meets the events that it has written.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from pydantic import ValidationError

from vllm_operator.api import labels
from vllm_operator.api.conditions import PLANNED, READY, Reason, find_condition, set_condition
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ConditionStatus, Plan, VLLMDeploymentStatus
from vllm_operator.caches.activity import CacheActivity
from vllm_operator.caches.context import is_primer, is_replica
from vllm_operator.cluster.apply import Applied, Applier, Refusal
from vllm_operator.cluster.client import (
    CLAIM,
    DEPLOYMENT,
    POD,
    SERVICE,
    ClusterClient,
    Forbidden,
    Key,
    Kind,
    Manifest,
    NotFound,
    Unavailable,
)
from vllm_operator.cluster.events import EventRecorder, Occurrence, shorten
from vllm_operator.cluster.explanations import Explanations
from vllm_operator.cluster.hub import HubAnswer
from vllm_operator.cluster.inventory import InventoryCache
from vllm_operator.cluster.observe import Snapshot, is_of_earlier, observe
from vllm_operator.cluster.schema import PodSchemas
from vllm_operator.observation.crashes import find_crashes
from vllm_operator.observation.observation import Observation
from vllm_operator.observation.state import ObservedState
from vllm_operator.planning.inventory.pools import Inventory
from vllm_operator.planning.inventory.taints import Taint
from vllm_operator.planning.outcome import ACCEPTED, Outcome, Verdict, not_accepted
from vllm_operator.planning.planner import plan
from vllm_operator.planning.spec_digest import is_in_force
from vllm_operator.remediation.decision import Decision, decide
from vllm_operator.remediation.remediator import load_remediator
from vllm_operator.runtime.cache_reconciler import CacheOutcome, CacheReconciler
from vllm_operator.runtime.cpu_use import CpuUse
from vllm_operator.runtime.metrics import Metrics
from vllm_operator.runtime.model_configs import ModelConfigs
from vllm_operator.runtime.plan_cache import PlanCache
from vllm_operator.runtime.user_data import KnownCatalog, KnownCrashes
from vllm_operator.startup.state import StartupState
from vllm_operator.status.report import Report, report

log = logging.getLogger(__name__)

CATCH_UP_SECONDS = 0.5
"""Logs that have not shown yet what they hold are asked again after this."""
ACT_SECONDS = 0.1
"""What was decided about a crash is carried out after this, from the status that it was written to."""
LEAVING_SECONDS = 1.0
"""A child that is being deleted is looked at again after this; its end is also seen by a watch."""
HUB_SECONDS = 30.0
"""A key that waits for the hub comes back by itself after this at the latest; its answer brings it back before."""
ANEW_AGE_SECONDS = 1.0
"""A plan that is made anew stays: the picture of the nodes from which it is made may be this old at most."""
PENDING_AGE_SECONDS = 5.0
"""The same where no GPU was found, or a Pod waits for a node."""


class Logs(Protocol):
    """What the reconciler asks of the log followers."""

    def sync(self, key: Key, pods: Sequence[Manifest], starting: Collection[str] = ()) -> None:
        """Follow what is worth following; `starting` are Pods whose start has not been reported as done."""

    def states(self, key: Key) -> Mapping[tuple[str, int], StartupState]:
        """What the logs have told, by run."""

    def caught_up(self, key: Key) -> bool:
        """Whether the logs have shown what they hold already."""

    def forget(self, key: Key) -> None:
        """The VLLMDeployment is gone."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a reconciliation ended. `name` goes to the metrics; `requeue_seconds` is when to look again, None for never."""

    name: str
    requeue_seconds: float | None = None


class Reconciler:
    """Reconciles one key at a time; several may run at once, for different keys."""

    def __init__(
        self,
        client: ClusterClient,
        catalog: KnownCatalog,
        crashes: KnownCrashes,
        *,
        caches: CacheReconciler,
        inventory: InventoryCache[Inventory],
        logs: Logs,
        metrics: Metrics,
        configs: ModelConfigs | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Prepare to reconcile.

        Args:
            client: The way to the API server.
            catalog: What plans are made from.
            crashes: The crashes that are known.
            caches: Reconciles the caches.
            inventory: The GPUs of the cluster.
            logs: The log followers.
            metrics: Where the numbers go.
            configs: The files of models on the hub; None where no hub is to be asked.
            now: The clock.
        """
        self._client = client
        self._catalog = catalog
        self._crashes = crashes
        self._caches = caches
        self._inventory = inventory
        self._logs = logs
        self._metrics = metrics
        self._configs = configs
        self._now = now
        self._plans = PlanCache()
        self._remediator = load_remediator()
        self._applier = Applier(client, count=metrics.wrote)
        self._recorder = EventRecorder(client)
        self._explanations = Explanations(client, now=now)
        self._cpu_use = CpuUse(client)
        self._pod_schema = PodSchemas(client)

    async def reconcile(self, key: Key) -> Result:
        """Bring one VLLMDeployment and its status up to date.

        Raises:
            ClusterError: Try again; nothing is half done that the next run does not complete.
        """
        snapshot = await observe(self._client, *key)
        if snapshot is None:
            self._logs.forget(key)
            self._metrics.forget(*key)
            return Result("gone")
        try:
            resource = VLLMDeployment.parse(snapshot.resource)
        except ValidationError as error:
            return await self._fail(snapshot.resource, Reason.INVALID_SPEC, _first_words(error))
        answer = self._configs.ask(resource) if self._configs is not None else HubAnswer()
        if answer is None:
            return Result("waiting", HUB_SECONDS)  # it is looked at again as soon as the hub has answered
        outcome, replan = await self._plan(resource, snapshot.pods, answer)
        cache_outcome = await self._caches.reconcile(resource, snapshot, outcome, replan)
        applied = await self._applier.apply(snapshot.resource, cache_outcome.manifests, cache_outcome.live)
        for child in cache_outcome.kept:
            held = cache_outcome.held_replicas is not None and child["kind"] == DEPLOYMENT.kind
            applied.children.append(await self._applier.scale(child, cache_outcome.held_replicas or 0) if held else child)
        self._logs.sync(key, snapshot.pods, _starting(resource))
        if not self._logs.caught_up(key):
            return Result("waiting", CATCH_UP_SECONDS)
        observation, look_again = await self._observation(resource, snapshot, applied, cache_outcome)
        observed = ObservedState.read(observation, self._crashes.reporting)
        crashes = find_crashes(observed)
        decision = decide(observed, crashes, self._remediator)
        reported = report(observed, crashes, decision)
        await self._tell(resource, snapshot, reported)
        await self._restart(resource, decision)
        if reported.status.remediation != resource.status.remediation:
            return Result("waiting", ACT_SECONDS)
        return _result(reported, applied, look_again)

    async def report_bug(self, key: Key, error: Exception) -> None:
        """Say in the status that the operator itself has failed. Raises ClusterError."""
        try:
            snapshot = await observe(self._client, *key)
        except NotFound:
            return
        if snapshot is not None:
            words = f"The operator failed on this object ({type(error).__name__}: {error}). It tries again; what runs keeps running."
            await self._fail(snapshot.resource, Reason.OPERATOR_FAILED, words)

    async def _plan(
        self, resource: VLLMDeployment, pods: Sequence[Manifest], answer: HubAnswer
    ) -> tuple[Outcome, Callable[[int], Outcome]]:
        """Plan; also return how to plan with another generation of the caches."""
        if (refusal := await self._pod_schema.refusal(resource.spec.pod_template)) is not None:
            return not_accepted(refusal), lambda generation: not_accepted(refusal)
        try:
            inventory = await self._inventory.read(max_age=_age_of_picture(resource, pods))
        except Forbidden as error:
            message = (
                f"The operator may not {error.verb} {error.resource}, so it cannot see what GPUs there are; allow it in its ClusterRole."
            )
            blind = Outcome(ACCEPTED, Verdict(ConditionStatus.UNKNOWN, Reason.PERMISSION_MISSING, message), None)
            return blind, lambda generation: blind

        catalog = self._catalog.current

        def replan(generation: int) -> Outcome:
            return plan(resource, inventory, catalog, pinned=resource.status.plan, cache_generation=generation, files=answer)

        return self._plans.plan(resource, inventory, catalog, answer), replan

    async def _observation(
        self, resource: VLLMDeployment, snapshot: Snapshot, applied: Applied, cache_outcome: CacheOutcome
    ) -> tuple[Observation, float | None]:
        """All that the report is made from, and in how many seconds there may be more to know."""
        claims = {child["metadata"]["name"]: child for child in applied.children if child["kind"] == CLAIM.kind}
        claim = claims.get(cache_outcome.claim_name or "", cache_outcome.claim)
        weights = claims.get(cache_outcome.weights_claim_name or "", cache_outcome.weights_claim)
        events, look_again = await self._explanations.read(snapshot.pods, (claim, weights))
        states = self._logs.states((resource.metadata.namespace, resource.metadata.name))
        now = self._now()
        deployment = snapshot.child(DEPLOYMENT)
        of_earlier = deployment is not None and is_of_earlier(deployment, snapshot.resource)
        observation = Observation(
            resource=resource,
            outcome=cache_outcome.outcome,
            now=now,
            deployment=_child(applied, DEPLOYMENT, resource) or (None if of_earlier else deployment),
            service=_child(applied, SERVICE, resource) or snapshot.child(SERVICE),
            claim=claim,
            claim_name=cache_outcome.claim_name,
            weights_claim=weights,
            weights_claim_name=cache_outcome.weights_claim_name,
            pods=() if of_earlier else tuple(pod for pod in snapshot.pods if is_replica(pod)),
            primers=tuple(pod for pod in snapshot.pods if is_primer(pod)),
            pod_events=events,
            startups=states,
            cores=await self._cpu_use.read(resource, snapshot.pods, states, now),
            taints=await self._taints(cache_outcome.outcome.plan, snapshot.pods),
            activity=_with_refused_claims(cache_outcome.activity, applied, (claim, weights)),
            not_kept=tuple(applied.not_kept),
            apply_error="; ".join(str(refusal) for refusal in applied.refusals if not _is_only_size(refusal, (claim, weights))) or None,
        )
        return observation, look_again

    async def _taints(self, plan: Plan | None, pods: Sequence[Manifest]) -> Mapping[str, tuple[Taint, ...]]:
        """What keeps Pods off the nodes with the GPUs of the plan, where a Pod waits for a node."""
        if plan is None or not _waits_for_node(pods):
            return {}
        try:
            inventory = await self._inventory.read()
        except Forbidden:
            return {}  # which is said elsewhere
        return inventory.taints_of(plan.resource, plan.architecture)

    async def _tell(self, resource: VLLMDeployment, snapshot: Snapshot, report: Report) -> None:
        """Write the events and the status, where there is something new."""
        for event in report.events:
            occurrence = Occurrence(event.type, event.reason, event.message, event.key, event.series)
            verb = await self._recorder.record(snapshot.resource, occurrence, now=self._now())
            if verb:
                self._metrics.wrote(verb, "Event")
                log.info("%s: %s", event.reason, event.message, extra={"key": f"{resource.metadata.namespace}/{resource.metadata.name}"})
        self._metrics.reported(resource.metadata.namespace, resource.metadata.name, report.status, report.start)
        if report.status != resource.status:
            await self._write_status(snapshot.resource, report.status)

    async def _restart(self, resource: VLLMDeployment, decision: Decision) -> None:
        """Delete Pods whose start has stalled. It was noted in the status: an operator that ends here goes on with it."""
        for pod in decision.restart_pods:
            try:
                await self._client.delete(POD, pod.name, resource.metadata.namespace, uid=pod.uid)
            except Forbidden as error:
                log.warning("the stalled Pod %s cannot be deleted: %s", pod.name, error)
                continue
            self._metrics.wrote("delete", POD.kind)

    async def _write_status(self, resource: Manifest, status: VLLMDeploymentStatus) -> None:
        # For a status the API server ignores a uid that does not fit: only the version tells a new object of the same name.
        metadata = {name: resource["metadata"][name] for name in ("name", "namespace", "resourceVersion")}
        manifest = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "metadata": metadata, "status": status.to_json()}
        await self._client.apply_status(manifest, manager=labels.STATUS_FIELD_MANAGER)
        self._metrics.wrote("status", labels.KIND)

    async def _fail(self, resource: Manifest, reason: str, message: str) -> Result:
        """Say in the Ready condition what stands in the way; everything else in the status stays as it is."""
        try:
            status = VLLMDeploymentStatus.model_validate(resource.get("status") or {})
        except ValidationError:
            status = VLLMDeploymentStatus()
        conditions = set_condition(
            status.conditions,
            type=READY,
            status=ConditionStatus.FALSE,
            reason=reason,
            message=shorten(message),
            generation=resource["metadata"].get("generation", 0),
            now=self._now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        changed = status.model_copy(update={"conditions": list(conditions)})
        self._metrics.reported(resource["metadata"]["namespace"], resource["metadata"]["name"], changed)
        if changed != status:
            await self._write_status(resource, changed)
        return Result("refused")


def _child(applied: Applied, kind: Kind, resource: VLLMDeployment) -> Manifest | None:
    name = resource.metadata.name
    return next((child for child in applied.children if (child["kind"], child["metadata"]["name"]) == (kind.kind, name)), None)


def _starting(resource: VLLMDeployment) -> frozenset[str]:
    """The Pods that the status still shows on their way."""
    startup = resource.status.startup
    return frozenset(pod.name for pod in startup.pods or ()) if startup is not None else frozenset()


def _is_only_size(refusal: Refusal, claims: Sequence[Manifest | None]) -> bool:
    """Whether a refusal is about a claim that exists: everything works but with its former size."""
    return any(claim is not None and (refusal.kind, refusal.name) == (CLAIM.kind, claim["metadata"]["name"]) for claim in claims)


def _with_refused_claims(activity: CacheActivity, applied: Applied, claims: Sequence[Manifest | None]) -> CacheActivity:
    notes = [_about_refused_claim(refusal) for refusal in applied.refusals if _is_only_size(refusal, claims)]
    return replace(activity, claim_note=" ".join(notes)) if notes else activity


def _about_refused_claim(refusal: Refusal) -> str:
    if isinstance(refusal.error, Forbidden) and "ownerRef" in str(refusal.error):
        return (
            f"{refusal.kind} {refusal.name} stays when this object is deleted: the API server lets only those give it an owner who may "
            f"delete it, and the operator may not. Delete it yourself."
        )
    return f"{refusal.kind} {refusal.name} keeps its size: {shorten(str(refusal.error))}"


def _age_of_picture(resource: VLLMDeployment, pods: Sequence[Manifest]) -> float | None:
    """How old the picture of the nodes may be, in seconds; None: as old as it is kept."""
    planned = find_condition(resource.status.conditions, PLANNED)
    done = planned is not None and planned.status is ConditionStatus.TRUE
    if resource.status.plan is not None and is_in_force(resource.status.plan, resource):
        return PENDING_AGE_SECONDS if not done or _waits_for_node(pods) else None
    tried = planned is not None and not done and planned.observed_generation == resource.metadata.generation
    return PENDING_AGE_SECONDS if tried else ANEW_AGE_SECONDS


def _waits_for_node(pods: Sequence[Manifest]) -> bool:
    return not all((pod.get("spec") or {}).get("nodeName") for pod in pods)


def _result(report: Report, applied: Applied, look_again: float | None) -> Result:
    if applied.waiting:
        return Result("waiting", LEAVING_SECONDS)
    unavailable = any(isinstance(refusal.error, Unavailable) for refusal in applied.refusals)
    times = [seconds for seconds in (report.requeue_after_seconds, look_again) if seconds is not None]
    return Result("retry" if unavailable else "refused" if applied.refusals else "success", min(times, default=None))


def _first_words(error: ValidationError) -> str:
    """The first complaint of the schema, in words for the user."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return (
        f"{place}: {first['msg']}. The CRD in the cluster and the operator do not fit together: apply the CRD of this operator's version."
    )
