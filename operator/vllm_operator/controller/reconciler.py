"""Reconcile one VLLMDeployment: make the cluster match its spec, and report its state.

    observe -> decide -> act -> report

`observe` reads, `decide` is a pure function, and `act` writes everything but the status and its events. `report` reads what explains the
state of the Pods by now, writes status and events, and deletes stalled Pods. A reconciliation may end after any write, with an error or
because the operator is killed; the next one completes it.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

from vllm_operator.api.conditions import Reason
from vllm_operator.caches.context import PRIMER_PATIENCE_SECONDS
from vllm_operator.controller.act import Actor
from vllm_operator.controller.apply import Applier
from vllm_operator.controller.decide import decide
from vllm_operator.controller.inventory_reader import FreeDevices, InventoryCache
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.model_configs import ModelConfigs
from vllm_operator.controller.observe import Logs, Observer, Pending
from vllm_operator.controller.optional_objects import CreatedObjects, OptionalObjects
from vllm_operator.controller.plan_store import PlanStore
from vllm_operator.controller.presets import Presets
from vllm_operator.controller.report import Reporter, Result
from vllm_operator.controller.schema import PodSchemas
from vllm_operator.controller.start_reader import StartReader
from vllm_operator.controller.user_data import KnownCatalog, KnownCrashes
from vllm_operator.inventory.pools import Inventory
from vllm_operator.kube.client import VLLM_DEPLOYMENT, ClusterClient, ClusterError, Key, NotFound
from vllm_operator.kube.events import EventRecorder
from vllm_operator.planning.validation import ArtifactTrust
from vllm_operator.pods.tools import TOOLS_IMAGE

log = logging.getLogger(__name__)


class Reconciler:
    """Reconciles VLLMDeployments. Different keys may be reconciled concurrently."""

    def __init__(
        self,
        client: ClusterClient,
        catalog: KnownCatalog,
        crashes: KnownCrashes,
        *,
        inventory: InventoryCache[Inventory],
        logs: Logs,
        metrics: Metrics,
        presets: Presets,
        configs: ModelConfigs | None = None,
        trust: ArtifactTrust | None = None,
        integrations: Collection[str] = (),
        namespaces: Sequence[str] = (),
        tools_image: str = TOOLS_IMAGE,
        primer_patience_seconds: int = PRIMER_PATIENCE_SECONDS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Set up a reconciler.

        Args:
            client: The client for the API server.
            catalog: The catalog for plans, with users' rules.
            crashes: The known crashes, with users' signatures.
            inventory: The GPUs of the cluster.
            logs: The followers of container logs.
            metrics: The operator's metrics.
            presets: The presets of the cluster.
            configs: The reader of model files; None if the operator uses no model hub.
            trust: Which artifacts are allowed; None allows all.
            integrations: Third-party APIs that the operator may use; see `optional_objects`.
            namespaces: The namespaces to serve; all if empty.
            tools_image: The operator's image, for new plans.
            primer_patience_seconds: Maximum time that a primer may wait for a GPU while replicas serve.
            now: The clock.
        """
        self._client = client
        self._catalog = catalog
        self._crashes = crashes
        self._logs = logs
        self._metrics = metrics
        self._presets = presets
        self._tools_image = tools_image
        self._primer_patience_seconds = primer_patience_seconds
        count, plans, created = metrics.wrote, PlanStore(client, count=metrics.wrote), CreatedObjects(client, namespaces=namespaces)
        self._observer = Observer(
            client=client,
            catalog=catalog,
            plans=plans,
            presets=presets,
            created=created,
            inventory=inventory,
            free_devices=FreeDevices(inventory),
            pod_schema=PodSchemas(client),
            logs=logs,
            configs=configs,
            trust=trust or ArtifactTrust(),
            now=now,
        )
        self._actor = Actor(
            client=client,
            crashes=crashes,
            plans=plans,
            created=created,
            optional=OptionalObjects(client, created, integrations=integrations, count=count, now=now),
            applier=Applier(client, count=count),
            count=count,
        )
        self._reporter = Reporter(
            client=client,
            crashes=crashes,
            logs=logs,
            starts=StartReader(client, now=now),
            recorder=EventRecorder(client),
            metrics=metrics,
            now=now,
        )

    async def reconcile(self, key: Key) -> Result:
        """Reconcile one VLLMDeployment and write its status.

        Raises:
            ClusterError: The API server failed or refused. The next reconciliation completes this one.
        """
        snapshot = await self._observer.observe(key)
        if snapshot is None:
            self._forget(key)
            return Result("gone")
        if isinstance(snapshot, Pending):
            return await self._end(snapshot)
        decision = decide(
            snapshot,
            self._catalog,
            self._crashes,
            primer_patience_seconds=self._primer_patience_seconds,
            tools_image=self._tools_image,
        )
        result = await self._actor.act(snapshot, decision)
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
            manifest = await self._client.get(VLLM_DEPLOYMENT, name, namespace)
        except NotFound:
            return
        message = f"The operator failed on this object and tries again ({type(error).__name__}: {error}). Running Pods keep running."
        await self._reporter.report_failure(manifest, Reason.OPERATOR_FAILED, message)

    async def _end(self, pending: Pending) -> Result:
        """End a reconciliation without a decision. PVCs are released in any case."""
        await self._actor.remove(pending.manifest, pending.removals)
        if pending.invalid is None:
            return Result("waiting", pending.wait_seconds)
        await self._reporter.report_failure(pending.manifest, Reason.INVALID_SPEC, pending.invalid)
        return Result("refused")

    def _forget(self, key: Key) -> None:
        """Remove the state of an object that is gone from memory."""
        self._logs.forget(key)
        self._presets.forget(key)
        self._metrics.forget(*key)
