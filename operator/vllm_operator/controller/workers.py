"""The workers: take a key from the queue, reconcile it, and schedule the next reconciliation. No reconciliation error stops them."""

import asyncio
import logging
import random
import time
from typing import Protocol

from vllm_operator.controller.log_output import about, describe_end
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.queue import Priority, QueueClosed, WorkQueue
from vllm_operator.controller.reconciler import Result
from vllm_operator.kube.client import ClusterError, Conflict, Key, Unavailable

log = logging.getLogger(__name__)


OUTAGE_SECONDS = 3.0
"""Maximum delay between attempts while the API server is unavailable, and so maximum delay after it is back."""
REFUSED_SECONDS = 5.0
"""Minimum delay after an error that does not resolve itself: a missing permission, a bug."""


class WorkerEnded(Exception):  # noqa: N818 - an event, not an error
    """A worker ended although nothing stopped it."""


class Reconciles(Protocol):
    """The interface of the reconciler for workers."""

    async def reconcile(self, key: Key) -> Result:
        """Reconcile one object. Raises ClusterError."""

    async def report_bug(self, key: Key, error: Exception) -> None:
        """Report in the status that reconciling this object hit a bug in the operator. Raises ClusterError."""


class Workers:
    """Runs several workers on one queue."""

    def __init__(self, queue: WorkQueue[Key], reconciler: Reconciles, metrics: Metrics, *, number: int, resync_seconds: float) -> None:
        self._queue = queue
        self._reconciler = reconciler
        self._metrics = metrics
        self._number = number
        self._resync = resync_seconds

    async def run(self) -> None:
        """Work until cancelled. Reconciliations in progress are cancelled too; the next operator completes them.

        Raises:
            WorkerEnded: A worker ended, which no error of a reconciliation causes.
        """
        tasks = [asyncio.create_task(self._work(), name=f"worker {number}") for number in range(self._number)]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            first = next(iter(ended))
            raise WorkerEnded(f"{first.get_name()} {describe_end(first)}")
        finally:
            self._queue.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except QueueClosed:
                return
            with about("/".join(key)):
                try:
                    await self._reconcile(key)
                finally:
                    self._queue.done(key)
            await asyncio.sleep(0)  # let other tasks run: neither the queue nor a reconciliation without changes may ever wait

    async def _reconcile(self, key: Key) -> None:
        started = time.perf_counter()
        name = "bug"
        try:
            result = await self._reconciler.reconcile(key)
        except Conflict as error:
            name = "retry"
            log.debug("conflict: %s", error)
            self._queue.add_rate_limited(key)
        except Unavailable as error:
            name = "retry"
            log.log(logging.DEBUG if self._queue.failures(key) else logging.WARNING, "the API server is unavailable: %s", error)
            self._queue.add_rate_limited(key, at_least=error.retry_after or 0.0, at_most=OUTAGE_SECONDS)
        except ClusterError as error:
            name = "refused"
            log.warning("the API server refused a request: %s", error)
            self._queue.add_rate_limited(key, at_least=REFUSED_SECONDS)
        except Exception as error:
            log.exception("the operator failed on this object; please report this")
            self._queue.add_rate_limited(key, at_least=REFUSED_SECONDS)
            await self._report_bug(key, error)
        else:
            name = result.name
            self._queue.forget(key)
            self._requeue(key, result)
        self._metrics.reconciled(name, time.perf_counter() - started)

    def _requeue(self, key: Key, result: Result) -> None:
        if result.name == "gone":
            return
        resync = self._resync * random.uniform(0.9, 1.0)
        if result.requeue_seconds is None or result.requeue_seconds >= resync:
            self._queue.add_after(key, resync, Priority.RESYNC)
        else:
            self._queue.add_after(key, max(0.05, result.requeue_seconds))

    async def _report_bug(self, key: Key, error: Exception) -> None:
        try:
            await self._reconciler.report_bug(key, error)
        except ClusterError as second:
            log.warning("cannot write the failure to the status: %s", second)
        except Exception:
            log.exception("cannot write the failure to the status")
