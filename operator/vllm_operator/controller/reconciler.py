"""Reconcile one VLLMDeployment: make the cluster match its spec, and report its state.

    observe -> decide -> act -> report

`observe` reads, `decide` is a pure function, and `act` writes the objects. `report` reads what explains the present state of the Pods,
records on the ControllerRevision what became of its plan, writes events and status, and deletes stalled Pods. A reconciliation may end
after any write, with an error or because the operator is killed; the next one completes it.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime

from vllm_operator.api.conditions import Reason
from vllm_operator.controller.act import Actor
from vllm_operator.controller.apply import Applier
from vllm_operator.controller.decide import decide, promise_of
from vllm_operator.controller.explanation_reader import ExplanationReader
from vllm_operator.controller.inventory_reader import InventoryCache
from vllm_operator.controller.log_followers import Followers
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.model_configs import ModelConfigs
from vllm_operator.controller.observe import Observer, Pending
from vllm_operator.controller.optional_objects import CreatedObjects, OptionalObjects
from vllm_operator.controller.plan_store import PlanStore
from vllm_operator.controller.presets import Presets
from vllm_operator.controller.report import Reporter, Result
from vllm_operator.controller.settings import Settings
from vllm_operator.controller.user_data import KnownCatalog, KnownCrashes
from vllm_operator.kube.client import VLLM_DEPLOYMENT, ClusterClient, ClusterError, Key, NotFound
from vllm_operator.planning.validation import ArtifactTrust


@dataclass(slots=True)
class Reconciler:
    """Reconciles VLLMDeployments. Different keys may be reconciled concurrently."""

    client: ClusterClient
    catalog: KnownCatalog
    """The catalog for plans, with users' rules."""
    crashes: KnownCrashes
    """The known crashes, with users' signatures."""
    _: KW_ONLY
    inventory: InventoryCache
    logs: Followers
    metrics: Metrics
    presets: Presets
    configs: ModelConfigs | None = None
    """None if the operator uses no model hub."""
    settings: Settings = field(default_factory=Settings)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _observer: Observer = field(init=False)
    _actor: Actor = field(init=False)
    _reporter: Reporter = field(init=False)

    def __post_init__(self) -> None:
        client, crashes, count = self.client, self.crashes, self.metrics.wrote
        plans, created = PlanStore(client, count=count), CreatedObjects(client, namespaces=self.settings.namespaces)
        self._observer = Observer(
            client=client,
            catalog=self.catalog,
            plans=plans,
            presets=self.presets,
            created=created,
            inventory=self.inventory,
            logs=self.logs,
            configs=self.configs,
            trust=ArtifactTrust(self.settings.artifact_repositories, self.settings.artifact_naming == "digest"),
            now=self.now,
        )
        applier = Applier(client, count=count)
        optional = OptionalObjects(applier, created, integrations=self.settings.integrations, now=self.now)
        self._actor = Actor(client=client, crashes=crashes, plans=plans, created=created, optional=optional, applier=applier, count=count)
        self._reporter = Reporter(
            client=client,
            crashes=crashes,
            plans=plans,
            logs=self.logs,
            explanations=ExplanationReader(client, now=self.now),
            metrics=self.metrics,
            now=self.now,
        )

    async def reconcile(self, key: Key) -> Result:
        """Reconcile one VLLMDeployment and write its status. Raises ClusterError: the next reconciliation completes this one."""
        snapshot = await self._observer.observe(key)
        if snapshot is None:
            self.logs.forget(key)
            self.presets.forget(key)
            self.metrics.forget(*key)
            self.inventory.promises.pop(key, None)
            await self._actor.mark_unused(key, self.now())
            return Result("gone")
        if isinstance(snapshot, Pending):
            await self._actor.remove(snapshot.manifest, snapshot.removals)
            if snapshot.invalid is None:
                return Result("waiting", snapshot.wait_seconds)
            await self._reporter.report_failure(snapshot.manifest, Reason.INVALID_SPEC, snapshot.invalid)
            return Result("refused")
        decision = decide(snapshot, self.catalog, self.crashes, self.settings)
        self.inventory.promises[key] = promise_of(snapshot, decision)
        result = await self._actor.act(snapshot, decision)
        if result.may_end_here:
            return Result("waiting", 0.0)
        failure = result.applied.failure
        try:
            reported = await self._reporter.report(snapshot, result)
        except ClusterError as error:
            raise failure or error from error
        if failure is not None:
            raise failure
        return reported

    async def report_bug(self, key: Key, error: Exception) -> None:
        """Report in the status that reconciling this object hit a bug in the operator. Raises ClusterError."""
        namespace, name = key
        try:
            manifest = await self.client.get(VLLM_DEPLOYMENT, name, namespace)
        except NotFound:
            return
        message = f"The operator failed on this object and tries again ({type(error).__name__}: {error}). Running Pods keep running."
        await self._reporter.report_failure(manifest, Reason.OPERATOR_FAILED, message)
