"""The workers: take a key from the queue, reconcile it, and schedule the next reconciliation. No reconciliation error stops them."""

import asyncio
import logging
import random
import time
from dataclasses import dataclass

from vllm_operator.controller.log_output import about
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.queue import Priority, WorkQueue
from vllm_operator.controller.reconciler import Reconciler
from vllm_operator.controller.report import Result
from vllm_operator.kube.client import ClusterError, Conflict, Key, Unavailable

log = logging.getLogger(__name__)

OUTAGE_SECONDS = 3.0
"""Maximum delay between attempts while the API server is unavailable, and so maximum delay after it is back."""
LASTING_ERROR_SECONDS = 5.0
"""Minimum delay after an error that does not resolve itself: a missing permission, a bug."""


@dataclass
class Workers:
    """Reconciles the keys of a queue, several at the same time."""

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
        name = "bug"
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
