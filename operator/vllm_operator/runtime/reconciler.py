"""Make one VLLMDeployment what it should be, and report how it is.

Always in the same sequence:

    observe -> plan -> caches -> apply -> logs -> decide -> status

The steps after `apply` also follow where that has failed: the status is written, then the error is raised. Everything is
read each time; nothing that matters is remembered between two runs. Events are written before the status that
follows from the same report: an operator that ends in between makes the same report again, and finds the events that it
has written.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from pydantic import ValidationError

from vllm_operator.api import labels
from vllm_operator.api.conditions import Reason
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ConditionStatus, VLLMDeploymentStatus
from vllm_operator.cluster.apply import Applied, Applier
from vllm_operator.cluster.client import (
    DEPLOYMENT,
    POD,
    ClusterClient,
    ClusterError,
    Conflict,
    Forbidden,
    Key,
    Manifest,
    NotFound,
    Unavailable,
)
from vllm_operator.cluster.events import EventRecorder, Occurrence, shorten
from vllm_operator.cluster.hub import HubAnswer
from vllm_operator.cluster.inventory import InventoryCache
from vllm_operator.cluster.observe import Snapshot, observe
from vllm_operator.cluster.schema import PodSchemas
from vllm_operator.observation.crashes import find_crashes
from vllm_operator.observation.observation import Observation
from vllm_operator.observation.state import ObservedState
from vllm_operator.planning.inventory.age import max_age_seconds
from vllm_operator.planning.inventory.pools import Inventory
from vllm_operator.planning.outcome import ACCEPTED, Outcome, Verdict, not_accepted
from vllm_operator.planning.planner import plan
from vllm_operator.remediation.decision import Decision, decide
from vllm_operator.remediation.remediator import load_remediator
from vllm_operator.runtime.cache_reconciler import CacheOutcome, CacheReconciler
from vllm_operator.runtime.metrics import Metrics
from vllm_operator.runtime.model_configs import ModelConfigs
from vllm_operator.runtime.observation_reader import ObservationReader
from vllm_operator.runtime.plan_cache import PlanCache
from vllm_operator.runtime.user_data import KnownCatalog, KnownCrashes
from vllm_operator.startup.state import StartupState
from vllm_operator.status.failures import describe_invalid_spec, status_with_failure
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
        self._observations = ObservationReader(client, inventory=inventory, logs=logs, now=now)
        self._logs = logs
        self._metrics = metrics
        self._configs = configs
        self._now = now
        self._plans = PlanCache()
        self._remediator = load_remediator()
        self._applier = Applier(client, count=metrics.wrote)
        self._recorder = EventRecorder(client)
        self._pod_schema = PodSchemas(client)

    async def reconcile(self, key: Key) -> Result:
        """Bring one VLLMDeployment and its status up to date.

        Raises:
            ClusterError: Try again; nothing is half done that the next run does not complete.
        """
        snapshot = await self._observe(key)
        if snapshot is None:
            return Result("gone")
        try:
            resource = VLLMDeployment.parse(snapshot.resource)
        except ValidationError as error:
            await self._write_failure(snapshot.resource, Reason.INVALID_SPEC, describe_invalid_spec(error))
            return Result("refused")
        files = self._configs.ask(resource) if self._configs is not None else HubAnswer()
        if files is None:
            return Result("waiting", HUB_SECONDS)  # the answer of the hub puts the key into the queue
        outcome, replan = await self._plan(resource, snapshot, files)
        cache_outcome = await self._caches.reconcile(resource, snapshot, outcome, replan)
        applied = await self._apply(snapshot, cache_outcome)
        if applied.failure is not None and not _is_reported(applied.failure, resource):
            raise applied.failure
        try:
            result = await self._report(key, resource, snapshot, cache_outcome, applied)
        except ClusterError as error:
            if applied.failure is None:
                raise
            log.debug("the status cannot be written after a failure: %s", error)
        if applied.failure is not None:
            raise applied.failure
        return result

    async def _report(
        self, key: Key, resource: VLLMDeployment, snapshot: Snapshot, cache_outcome: CacheOutcome, applied: Applied
    ) -> Result:
        """The steps after applying, which also follow where applying has failed."""
        if not self._follow_logs(key, resource, snapshot):
            return Result("waiting", CATCH_UP_SECONDS)
        observation, look_again = await self._observations.read(resource, snapshot, cache_outcome, applied)
        decision, reported = self._decide(observation)
        await self._write_events(resource, snapshot, reported)
        await self._write_status(resource, snapshot, reported)
        await self._restart_stalled(resource, decision)
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
            await self._write_failure(snapshot.resource, Reason.OPERATOR_FAILED, words)

    async def _observe(self, key: Key) -> Snapshot | None:
        """Read the object, its children and its Pods; forget an object that is gone."""
        snapshot = await observe(self._client, *key)
        if snapshot is None:
            self._logs.forget(key)
            self._metrics.forget(*key)
        return snapshot

    async def _plan(self, resource: VLLMDeployment, snapshot: Snapshot, files: HubAnswer) -> tuple[Outcome, Callable[[int], Outcome]]:
        """Plan; also return how to plan with another generation of the caches."""
        if (refusal := await self._pod_schema.refusal(resource.spec.pod_template)) is not None:
            return not_accepted(refusal), lambda generation: not_accepted(refusal)
        try:
            inventory = await self._inventory.read(max_age=max_age_seconds(resource, snapshot.pods))
        except Forbidden as error:
            message = (
                f"The operator may not {error.verb} {error.resource}, so it cannot see what GPUs there are; allow it in its ClusterRole."
            )
            blind = Outcome(ACCEPTED, Verdict(ConditionStatus.UNKNOWN, Reason.PERMISSION_MISSING, message), None)
            return blind, lambda generation: blind
        catalog = self._catalog.current

        def replan(generation: int) -> Outcome:
            return plan(resource, inventory, catalog, pinned=resource.status.plan, cache_generation=generation, files=files)

        return self._plans.plan(resource, inventory, catalog, files), replan

    async def _apply(self, snapshot: Snapshot, cache_outcome: CacheOutcome) -> Applied:
        """Make the children what is desired; those that are kept stay as they are, except for their number of replicas."""
        applied = await self._applier.apply(snapshot.resource, cache_outcome.manifests, cache_outcome.live)
        for child in cache_outcome.kept:
            held = cache_outcome.held_replicas is not None and child["kind"] == DEPLOYMENT.kind
            try:
                now = await self._applier.scale(child, cache_outcome.held_replicas or 0) if held else child
            except ClusterError as error:
                applied.failure, now = applied.failure or error, child
            applied.children.append(now)
        return applied

    def _follow_logs(self, key: Key, resource: VLLMDeployment, snapshot: Snapshot) -> bool:
        """Follow the logs of Pods that start; return whether the logs have shown what they hold already."""
        startup = resource.status.startup
        starting = frozenset(pod.name for pod in startup.pods or ()) if startup is not None else frozenset()
        self._logs.sync(key, snapshot.pods, starting)
        return self._logs.caught_up(key)

    def _decide(self, observation: Observation) -> tuple[Decision, Report]:
        """Decide what to do about what was observed, and how to report it."""
        observed = ObservedState.read(observation, self._crashes.reporting)
        crashes = find_crashes(observed)
        decision = decide(observed, crashes, self._remediator)
        return decision, report(observed, crashes, decision)

    async def _write_events(self, resource: VLLMDeployment, snapshot: Snapshot, reported: Report) -> None:
        """Write the events that do not exist yet."""
        for event in reported.events:
            occurrence = Occurrence(event.type, event.reason, event.message, event.key, event.series)
            verb = await self._recorder.record(snapshot.resource, occurrence, now=self._now())
            if verb:
                self._metrics.wrote(verb, "Event")
                log.info("%s: %s", event.reason, event.message, extra={"key": f"{resource.metadata.namespace}/{resource.metadata.name}"})

    async def _write_status(self, resource: VLLMDeployment, snapshot: Snapshot, reported: Report) -> None:
        """Write the status, where it differs from the last one."""
        self._metrics.reported(resource.metadata.namespace, resource.metadata.name, reported.status, reported.start)
        if reported.status != resource.status:
            await self._apply_status(snapshot.resource, reported.status)

    async def _restart_stalled(self, resource: VLLMDeployment, decision: Decision) -> None:
        """Delete Pods whose start has stalled. The status says so already: an operator that ends here continues from it."""
        for pod in decision.restart_pods:
            try:
                await self._client.delete(POD, pod.name, resource.metadata.namespace, uid=pod.uid)
            except Forbidden as error:
                log.warning("the stalled Pod %s cannot be deleted: %s", pod.name, error)
                continue
            self._metrics.wrote("delete", POD.kind)

    async def _write_failure(self, resource: Manifest, reason: str, message: str) -> None:
        """Say in the condition Ready what failed, where the status does not say so yet; the rest of the status stays."""
        try:
            status = VLLMDeploymentStatus.model_validate(resource.get("status") or {})
        except ValidationError:
            status = VLLMDeploymentStatus()
        metadata = resource["metadata"]
        changed = status_with_failure(
            status,
            reason=reason,
            message=shorten(message),
            generation=metadata.get("generation", 0),
            now=self._now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        self._metrics.reported(metadata["namespace"], metadata["name"], changed)
        if changed != status:
            await self._apply_status(resource, changed)

    async def _apply_status(self, resource: Manifest, status: VLLMDeploymentStatus) -> None:
        # For a status the API server ignores a uid that does not fit: only the version tells a new object of the same name.
        metadata = {name: resource["metadata"][name] for name in ("name", "namespace", "resourceVersion")}
        manifest = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "metadata": metadata, "status": status.to_json()}
        await self._client.apply_status(manifest, manager=labels.STATUS_FIELD_MANAGER)
        self._metrics.wrote("status", labels.KIND)


def _is_reported(failure: ClusterError, resource: VLLMDeployment) -> bool:
    """Whether the status is written although applying has failed.

    An API server that is away takes no status either. A conflict is over at the next try; the first status of an object
    waits for that, because it would speak of children that do not exist yet.
    """
    return not isinstance(failure, Unavailable) and (resource.status.plan is not None or not isinstance(failure, Conflict))


def _result(reported: Report, applied: Applied, look_again: float | None) -> Result:
    if applied.waiting:
        return Result("waiting", LEAVING_SECONDS)
    unavailable = any(isinstance(refusal.error, Unavailable) for refusal in applied.refusals)
    times = [seconds for seconds in (reported.requeue_after_seconds, look_again) if seconds is not None]
    return Result("retry" if unavailable else "refused" if applied.refusals else "success", min(times, default=None))
