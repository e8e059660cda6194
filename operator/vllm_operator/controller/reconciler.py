"""Reconcile one VLLMDeployment: make the cluster match its spec, and report its state.

The steps are always the same:

    observe -> logs -> plan -> caches -> persist the plan -> apply -> decide -> status

A log that is read for the first time soon changes the status. Until it has been read, an object whose status describes its spec is skipped.
If `apply` fails, the later steps still run: the status is written, then the error is raised.

Each reconciliation reads everything again and depends on no state of an earlier one in memory.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from pydantic import ValidationError

from vllm_operator.api import reading
from vllm_operator.api.conditions import VALID_SPEC, Reason, Verdict
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ConditionStatus, CrashStatus
from vllm_operator.catalog.loader import Catalog
from vllm_operator.controller.apply import Applied, Applier
from vllm_operator.controller.cache_reconciler import CacheOutcome, CacheReconciler
from vllm_operator.controller.created_objects import CreatedObjects
from vllm_operator.controller.exposure_reconciler import reconcile_exposure
from vllm_operator.controller.free_devices import FreeDevices
from vllm_operator.controller.inventory_reader import InventoryCache
from vllm_operator.controller.log_follower import runs_to_follow
from vllm_operator.controller.log_followers import CATCH_UP_SECONDS
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.model_configs import ModelConfigs
from vllm_operator.controller.observation_reader import LogStates, ObservationReader
from vllm_operator.controller.observe import Snapshot, observe
from vllm_operator.controller.optional_objects import OptionalObjects
from vllm_operator.controller.ownership import is_controlled_by
from vllm_operator.controller.plan_store import PlanStore
from vllm_operator.controller.presets import Presets
from vllm_operator.controller.scaling_reconciler import ScalingReconciler
from vllm_operator.controller.schema import PodSchemas
from vllm_operator.controller.status_writer import StatusWriter
from vllm_operator.controller.user_data import KnownCatalog, KnownCrashes
from vllm_operator.hub.client import HubAnswer
from vllm_operator.inventory.pools import Inventory
from vllm_operator.kube.client import (
    CLAIM_TEMPLATE,
    DEPLOYMENT,
    POD,
    ClusterClient,
    ClusterError,
    Conflict,
    Forbidden,
    Key,
    Manifest,
    NotFound,
    NotLeading,
    Unavailable,
)
from vllm_operator.planning.outcome import Outcome, not_accepted
from vllm_operator.planning.pinning import is_in_force, max_age_seconds, reopened
from vllm_operator.planning.planner import plan
from vllm_operator.planning.validation import ArtifactTrust, refuse_artifact
from vllm_operator.pods.tools import TOOLS_IMAGE
from vllm_operator.rendering.revision import with_plan_name
from vllm_operator.status.crashes import find_crashes
from vllm_operator.status.decision import Decision, decide, load_remediator
from vllm_operator.status.observation import Observation, ObservedState
from vllm_operator.status.report import Report, describe_invalid_spec, report

log = logging.getLogger(__name__)

ACT_SECONDS = 0.1
"""Delay until a remedy is carried out, or space is freed after a crash. The next reconciliation does it, because it reads the status."""
DELETION_SECONDS = 1.0
"""Delay until the next reconciliation while a child is being deleted. Usually a watch event comes earlier."""
ROLLOUT_SECONDS = 2.0
"""Maximum delay between a change of the Deployment and the status. Usually a watch event of its controller comes earlier."""
HUB_SECONDS = 30.0
"""Maximum time between two reconciliations of an object that waits for the hub. Usually the hub's answer comes earlier."""


class Logs(LogStates, Protocol):
    """Follows container logs."""

    def sync(self, key: Key, pods: Sequence[Manifest], starting: Collection[str] = ()) -> None:
        """Follow the logs of these Pods as needed. `starting` names the Pods whose start the status reports as unfinished."""

    def caught_up(self, key: Key) -> bool:
        """Return whether all existing log lines have been read."""

    def forget(self, key: Key) -> None:
        """Stop following the logs of a deleted VLLMDeployment."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a reconciliation.

    `name` is its label in the metrics. `requeue_seconds` is the delay until the next one; None to wait for watch events and resyncs.
    """

    name: str
    requeue_seconds: float | None = None


class Reconciler:
    """Reconciles VLLMDeployments. Different keys may be reconciled concurrently."""

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
        trust: ArtifactTrust | None = None,
        presets: Presets | None = None,
        integrations: Collection[str] = (),
        namespaces: Sequence[str] = (),
        tools_image: str = TOOLS_IMAGE,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Set up a reconciler.

        Args:
            client: The client for the API server.
            catalog: The catalog for plans, with users' rules.
            crashes: The known crashes, with users' signatures.
            caches: The reconciler of caches.
            inventory: The GPUs of the cluster.
            logs: The followers of container logs.
            metrics: The operator's metrics.
            configs: The reader of model files; None if the operator uses no model hub.
            trust: Which artifacts are allowed; None allows all.
            presets: The presets of the cluster; None to read them with `client`.
            integrations: Third-party APIs that the operator may use; see `OptionalObjects`.
            namespaces: The namespaces to serve; all if empty.
            tools_image: The operator's image, for new plans.
            now: The clock.
        """
        self._client = client
        self._catalog = catalog
        self._crashes = crashes
        self._caches = caches
        self._inventory = inventory
        self._free_devices = FreeDevices(inventory)
        self._observations = ObservationReader(client, inventory=inventory, logs=logs, now=now)
        self._logs = logs
        self._metrics = metrics
        self._configs = configs
        self._trust = trust or ArtifactTrust()
        self._presets = presets or Presets(client)
        self._tools_image = tools_image
        self._now = now
        self._plans = PlanStore(client, count=metrics.wrote)
        self._remediator = load_remediator()
        self._applier = Applier(client, count=metrics.wrote)
        self._created = CreatedObjects(client, namespaces=namespaces)
        self._optional = OptionalObjects(client, self._created, integrations=integrations, count=metrics.wrote)
        self._scaling = ScalingReconciler(client, self._optional, now=now)
        self._status = StatusWriter(client, metrics, now=now)
        self._pod_schema = PodSchemas(client)

    async def reconcile(self, key: Key) -> Result:
        """Reconcile one VLLMDeployment and write its status.

        Raises:
            ClusterError: The API server failed or refused. The next reconciliation completes this one.
        """
        snapshot = await self._observe(key)
        if snapshot is None:
            return Result("gone")
        await self._caches.release_claims(snapshot)
        try:
            resource = VLLMDeployment.parse(snapshot.resource)
        except ValidationError as error:
            await self._status.write_failure(snapshot.resource, Reason.INVALID_SPEC, describe_invalid_spec(error))
            return Result("refused")
        self._follow_logs(key, resource, snapshot)
        if resource.status.observed_generation == resource.metadata.generation and not self._logs.caught_up(key):
            return Result("waiting", CATCH_UP_SECONDS)  # a follower that has caught up adds the key to the queue
        pinned = await self._plans.read(resource, snapshot)
        if not isinstance(pinned, Verdict):
            pinned = await self._presets.merge(pinned)
        if isinstance(pinned, Verdict):
            outcome, replan = _without_plan(pinned)
        else:
            resource, files = self._ask_hub(pinned, snapshot)
            if files is None:
                return Result("waiting", HUB_SECONDS)  # the hub's answer adds the key to the queue
            outcome, replan = await self._plan(resource, snapshot, files)
        cache_outcome = await self._caches.reconcile(resource, snapshot, outcome, replan)
        cache_outcome, revision = await self._persist_plan(resource, snapshot, cache_outcome)
        applied = await self._apply(snapshot, cache_outcome)
        if applied.failure is not None and not _is_reported(applied.failure, resource):
            raise applied.failure
        try:
            result = await self._report(key, resource, snapshot, cache_outcome, revision, applied)
        except ClusterError as error:
            if applied.failure is None:
                raise
            log.debug("cannot write the status after a failure: %s", error)
        if applied.failure is not None:
            raise applied.failure
        return result

    async def _report(
        self, key: Key, resource: VLLMDeployment, snapshot: Snapshot, cache_outcome: CacheOutcome, revision: str | None, applied: Applied
    ) -> Result:
        """Run the steps after `apply`, even if it failed."""
        if not self._logs.caught_up(key):
            return Result("waiting", CATCH_UP_SECONDS)
        exposure = await reconcile_exposure(self._optional, resource, snapshot.resource)
        observation, look_again = await self._observations.read(resource, snapshot, cache_outcome, applied, revision=revision)
        scaling = await self._scaling.reconcile(resource, snapshot.resource)
        observation = replace(observation, exposure=exposure, scaling=scaling)
        decision, reported = self._decide(observation)
        before, now = resource.status, reported.status
        must_act = (before.remediation, before.last_crash) != (now.remediation, now.last_crash)
        # Events, caches and why they were not filled before a rollout may only be known now.
        is_lasting = must_act or before.cache != now.cache or reported.events or cache_outcome.activity.skipped
        is_applied = applied.written and applied.failure is None
        if before.pinned_plan is not None and is_applied and not is_lasting and not _is_seen(observation.deployment):
            # Until the controller has seen the change, nobody knows whether it replaces Pods. The next reconciliation reports in any case.
            return Result("waiting", ROLLOUT_SECONDS)
        await self._status.write(resource, snapshot.resource, reported)
        if revision is not None:
            await self._plans.prune(resource, snapshot, revision)
        await self._restart_stalled(resource, decision)
        if must_act:
            return Result("waiting", ACT_SECONDS)
        return _result(reported, applied, look_again)

    async def report_bug(self, key: Key, error: Exception) -> None:
        """Report in the status that reconciling this object hit a bug in the operator. Raises ClusterError."""
        try:
            snapshot = await observe(self._client, *key)
        except NotFound:
            return
        if snapshot is not None:
            message = f"The operator failed on this object and tries again ({type(error).__name__}: {error}). Running Pods keep running."
            await self._status.write_failure(snapshot.resource, Reason.OPERATOR_FAILED, message)

    async def _observe(self, key: Key) -> Snapshot | None:
        """Read the object, its children and its Pods. If the object is gone, remove its state from memory and return None."""
        snapshot = await observe(self._client, *key, has_claim_templates=await self._created.may_exist(CLAIM_TEMPLATE, key))
        if snapshot is None:
            self._logs.forget(key)
            self._presets.forget(key)
            self._metrics.forget(*key)
        return snapshot

    def _ask_hub(self, resource: VLLMDeployment, snapshot: Snapshot) -> tuple[VLLMDeployment, HubAnswer | None]:
        """Ask the hub about the model, for a new plan or for a plan that was made without an answer and whose engine has not started.

        Return the object with the plan to keep, and the answer; None if there is none yet.
        """
        plan = resource.pinned
        if self._configs is None:
            return resource, HubAnswer()
        if plan is None or not is_in_force(plan, resource):
            return resource, self._configs.ask(resource)
        if plan.awaits_facts and not _has_served(resource, snapshot):
            without = resource.with_pinned(reopened(plan))
            answer = self._configs.ask(without)
            if answer is not None and answer.config is not None:
                return without, answer
        return resource, HubAnswer()

    async def _plan(self, resource: VLLMDeployment, snapshot: Snapshot, files: HubAnswer) -> tuple[Outcome, Callable[[int], Outcome]]:
        """Plan. Also return a function that plans with another generation of the caches."""
        refusal = refuse_artifact(resource, self._trust) or await self._pod_schema.refusal(resource.spec.pod_template)
        if refusal is not None:
            return not_accepted(refusal), lambda generation: not_accepted(refusal)
        catalog = self._catalog.current
        inventory = await self._read_inventory(resource, snapshot, catalog)

        def replan(generation: int) -> Outcome:
            return plan(
                resource,
                inventory,
                catalog,
                pinned=resource.pinned,
                cache_generation=generation,
                files=files,
                tools_image=self._tools_image,
            )

        cache = resource.status.cache
        return replan((cache.generation or 0) if cache else 0), replan

    async def _read_inventory(self, resource: VLLMDeployment, snapshot: Snapshot, catalog: Catalog) -> Inventory | Verdict:
        """Read the cluster's GPUs, or return a verdict why they are unknown. Only new plans need them."""
        try:
            inventory = await self._inventory.read(max_age=max_age_seconds(resource, snapshot.pods))
            return await self._free_devices.count(resource, inventory, snapshot.pods, listed_pools=len(catalog.instance_types))
        except Forbidden as error:
            message = f"The operator may not {error.verb} {error.resource}, so it cannot see the GPUs; allow it in its ClusterRole."
            return Verdict(ConditionStatus.UNKNOWN, Reason.PERMISSION_MISSING, message)
        except NotLeading:
            raise
        except ClusterError as error:
            message = f"The GPUs of the cluster cannot be read now; the operator tries again. {error}"
            return Verdict(ConditionStatus.UNKNOWN, Reason.NODES_UNREADABLE, message)

    async def _persist_plan(self, resource: VLLMDeployment, snapshot: Snapshot, outcome: CacheOutcome) -> tuple[CacheOutcome, str | None]:
        """Store the plan before it is applied, and return its revision name. A plan that cannot be stored is not applied."""
        if outcome.outcome.plan is None:
            return outcome, None
        revision = await self._plans.persist(resource, snapshot, outcome.outcome.plan)
        if isinstance(revision, Verdict):
            return await self._caches.reconcile(resource, snapshot, *_without_plan(revision)), None
        deployment = (DEPLOYMENT.kind, resource.metadata.name)
        named = [with_plan_name(it, revision) if (it["kind"], it["metadata"]["name"]) == deployment else it for it in outcome.manifests]
        return replace(outcome, manifests=named), revision

    async def _apply(self, snapshot: Snapshot, cache_outcome: CacheOutcome) -> Applied:
        """Apply the manifests. Of children that are kept, change at most the number of replicas."""
        applied = await self._apply_all(snapshot.resource, cache_outcome.manifests, cache_outcome.live)
        for child in cache_outcome.kept:
            # Labels alone prove nothing: users copy objects with all labels.
            is_own = child is snapshot.child(DEPLOYMENT) and is_controlled_by(child, snapshot.resource)
            held = cache_outcome.held_replicas is not None and is_own
            try:
                now = await self._applier.scale(child, cache_outcome.held_replicas or 0) if held else child
            except ClusterError as error:
                applied.failure, now = applied.failure or error, child
            applied.children.append(now)
        return applied

    async def _apply_all(self, owner: Manifest, manifests: Sequence[Manifest], live: Sequence[Manifest]) -> Applied:
        if any(manifest["kind"] == CLAIM_TEMPLATE.kind for manifest in manifests):
            self._created.note(CLAIM_TEMPLATE, (owner["metadata"]["namespace"], owner["metadata"]["name"]))
        return await self._applier.apply(owner, manifests, live)

    def _follow_logs(self, key: Key, resource: VLLMDeployment, snapshot: Snapshot) -> None:
        startup = resource.status.startup
        starting = {pod.name for pod in startup.pods or ()} if startup is not None else set[str]()
        # A Pod may have crashed, and be ready again, since the last reconciliation.
        starting |= {pod["metadata"]["name"] for pod in snapshot.pods if _has_new_crash(pod, resource.status.last_crash)}
        self._logs.sync(key, snapshot.pods, starting)

    def _decide(self, observation: Observation) -> tuple[Decision, Report]:
        observed = ObservedState.read(observation, self._crashes.reporting)
        crashes = find_crashes(observed)
        decision = decide(observed, crashes, self._remediator)
        return decision, report(observed, crashes, decision)

    async def _restart_stalled(self, resource: VLLMDeployment, decision: Decision) -> None:
        """Delete Pods whose start has stalled. The status already counts the restart, so that a killed operator does not count it twice."""
        for pod in decision.restart_pods:
            try:
                await self._client.delete(POD, pod.name, resource.metadata.namespace, uid=pod.uid)
            except Forbidden as error:
                log.warning("cannot delete the stalled Pod %s: %s", pod.name, error)
                continue
            self._metrics.wrote("delete", POD.kind)


def _without_plan(verdict: Verdict) -> tuple[Outcome, Callable[[int], Outcome]]:
    """Return an outcome without a plan for any cache generation. Running engines stay unchanged."""
    outcome = Outcome(VALID_SPEC, verdict, None)
    return outcome, lambda generation: outcome


def _has_served(resource: VLLMDeployment, snapshot: Snapshot) -> bool:
    """Return whether a replica is ready, or all replicas of the current Pod template were ready, which the Deployment records."""
    progress = reading.named(snapshot.child(DEPLOYMENT), "Progressing", "status", "conditions")
    return bool(resource.status.ready_replicas) or progress.get("reason") == "NewReplicaSetAvailable"


def _has_new_crash(pod: Manifest, recorded: CrashStatus | None) -> bool:
    """Return whether the run before the current one crashed, and the status does not have that crash."""
    runs = runs_to_follow(pod)
    last = (recorded.pod, recorded.restarts) if recorded is not None else None
    return len(runs) > 1 and (runs[0].pod, runs[0].restarts) != last


def _is_seen(deployment: Mapping[str, Any] | None) -> bool:
    """Return whether the controller has seen the current spec of a Deployment."""
    seen, generation = reading.integer(deployment, "status", "observedGeneration"), reading.integer(deployment, "metadata", "generation")
    return deployment is None or (seen or 0) >= (generation or 0)


def _is_reported(failure: ClusterError, resource: VLLMDeployment) -> bool:
    """Return whether to write a status after this failure of `apply`.

    An unavailable API server accepts no status either. The next attempt usually resolves a conflict, so it does not justify a first status
    about children that do not exist yet.
    """
    return not isinstance(failure, Unavailable) and (resource.status.pinned_plan is not None or not isinstance(failure, Conflict))


def _result(reported: Report, applied: Applied, look_again: float | None) -> Result:
    if applied.waiting:
        return Result("waiting", DELETION_SECONDS)
    times = [seconds for seconds in (reported.requeue_after_seconds, look_again) if seconds is not None]
    return Result("refused" if applied.refusals else "success", min(times, default=None))
