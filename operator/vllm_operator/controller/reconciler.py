"""Reconcile one VLLMDeployment: make the cluster match its spec, and report its state. Workers do this for each key of the queue.

    observe -> decide -> act -> report

`observe` reads, `decide` is a pure function, and `act` writes the objects. `report` reads what explains the present state of the Pods,
records on the ControllerRevision what became of its plan, writes events and status, and deletes stalled Pods. A reconciliation may end
after any write, with an error or because the operator is killed; the next one completes it.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from vllm_operator.api.conditions import Reason
from vllm_operator.controller.act import Actor
from vllm_operator.controller.apply import Applier
from vllm_operator.controller.build_reader import BuildReader
from vllm_operator.controller.decide import decide, promise_of
from vllm_operator.controller.inventory_reader import InventoryCache
from vllm_operator.controller.log_followers import Followers
from vllm_operator.controller.log_output import about
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.model_configs import ModelConfigs
from vllm_operator.controller.observe import Observer, Pending
from vllm_operator.controller.optional_objects import CreatedObjects, OptionalObjects
from vllm_operator.controller.plan_store import PlanStore
from vllm_operator.controller.queue import Priority, WorkQueue
from vllm_operator.controller.report import ExplanationReader, Reporter, Result, ResultName
from vllm_operator.controller.settings import Settings
from vllm_operator.controller.user_data import KnownCatalog, KnownStarts
from vllm_operator.kube.client import VLLM_DEPLOYMENT, ClusterClient, ClusterError, Conflict, Key, NotFound, Unavailable
from vllm_operator.planning.validation import ArtifactTrust

log = logging.getLogger(__name__)

OUTAGE_SECONDS = 3.0
"""Maximum delay between attempts while the API server is unavailable, and so maximum delay after it is back."""
LASTING_ERROR_SECONDS = 5.0
"""Minimum delay after an error that does not resolve itself: a missing permission, a bug."""


class Reconciler:
    """Reconciles VLLMDeployments. Different keys may be reconciled concurrently."""

    def __init__(
        self,
        client: ClusterClient,
        catalog: KnownCatalog,
        crashes: KnownStarts,
        *,
        inventory: InventoryCache,
        logs: Followers,
        metrics: Metrics,
        settings: Settings,
        configs: ModelConfigs | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`configs` is None if the operator uses no model hub."""
        self.client, self.catalog, self.crashes, self.inventory = client, catalog, crashes, inventory
        self.logs, self.metrics, self.settings, self.now = logs, metrics, settings, now
        count = metrics.wrote
        builds = BuildReader(client, settings.tools_image, count)
        plans, created = PlanStore(client, count=count), CreatedObjects(client, namespaces=settings.namespaces)
        self._observer = Observer(
            client=client,
            catalog=catalog,
            plans=plans,
            created=created,
            inventory=inventory,
            logs=logs,
            configs=configs,
            trust=ArtifactTrust(settings.artifact_repositories, settings.artifact_naming == "digest"),
            builds=builds,
            now=now,
        )
        applier = Applier(client, count=count)
        optional = OptionalObjects(applier, created, integrations=settings.integrations, now=now)
        self._actor = Actor(
            client=client, crashes=crashes, plans=plans, builds=builds, created=created, optional=optional, applier=applier, count=count
        )
        reader = ExplanationReader(client, now=now)
        self._reporter = Reporter(client=client, crashes=crashes, plans=plans, logs=logs, explanations=reader, metrics=metrics, now=now)

    async def reconcile(self, key: Key) -> Result:
        """Reconcile one VLLMDeployment and write its status. Raises ClusterError: the next reconciliation completes this one."""
        snapshot = await self._observer.observe(key)
        if snapshot is None:
            self.logs.forget(key)
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


@dataclass
class Workers:
    """Reconciles the keys of a queue, several at the same time, and schedules the next reconciliation of each. No error stops them."""

    queue: WorkQueue[Key]
    reconciler: Reconciler
    metrics: Metrics
    number: int
    resync_seconds: float

    async def run(self) -> None:
        """Work until cancelled. Reconciliations in progress are cancelled too; the next operator completes them."""
        places = asyncio.Semaphore(self.number)
        async with asyncio.TaskGroup() as group:
            while True:
                await places.acquire()
                key = await self.queue.get()
                group.create_task(self._work(key), name=f"reconcile {'/'.join(key)}").add_done_callback(lambda task: places.release())
                await asyncio.sleep(0)  # let other tasks run: neither the queue nor a reconciliation without changes may ever wait

    async def _work(self, key: Key) -> None:
        try:
            with about("/".join(key)):
                await self._reconcile(key)
        finally:
            self.queue.done(key)

    async def _reconcile(self, key: Key) -> None:
        started = time.perf_counter()
        name: ResultName = "bug"
        try:
            result = await self.reconciler.reconcile(key)
        except Conflict as error:
            name = "retry"
            log.debug("conflict: %s", error)
            self.queue.add_rate_limited(key)
        except Unavailable as error:
            name = "retry"
            log.log(logging.DEBUG if self.queue.failures(key) else logging.WARNING, "the API server is unavailable: %s", error)
            self.queue.add_rate_limited(key, at_least=error.retry_after or 0.0, at_most=OUTAGE_SECONDS)
        except ClusterError as error:
            name = "refused"
            log.warning("the API server refused a request: %s", error)
            self.queue.add_rate_limited(key, at_least=LASTING_ERROR_SECONDS)
        except asyncio.CancelledError:
            self.queue.add_rate_limited(key)  # if only this task was cancelled, nothing else would add the key
            raise
        except Exception as error:
            log.exception("the operator failed on this object; please report this")
            self.queue.add_rate_limited(key, at_least=LASTING_ERROR_SECONDS)
            await self._report_bug(key, error)
        else:
            name = result.name
            self.queue.forget(key)
            self._requeue(key, result)
        self.metrics.reconciled(name, time.perf_counter() - started)

    def _requeue(self, key: Key, result: Result) -> None:
        if result.name == "gone":
            return
        resync = self.resync_seconds * random.uniform(0.9, 1.0)
        if result.requeue_seconds is None or result.requeue_seconds >= resync:
            self.queue.add_after(key, resync, Priority.RESYNC)
        else:
            self.queue.add_after(key, max(0.05, result.requeue_seconds), Priority.EVENT)

    async def _report_bug(self, key: Key, error: Exception) -> None:
        try:
            await self.reconciler.report_bug(key, error)
        except Exception as second:
            log.warning("cannot write the failure to the status: %s", second, exc_info=not isinstance(second, ClusterError))
