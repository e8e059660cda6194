"""Workers: what else runs while many keys wait."""

import asyncio
from itertools import pairwise

from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.queue import WorkQueue
from vllm_operator.controller.reconciler import Reconciler, Workers
from vllm_operator.controller.report import Result
from vllm_operator.kube.client import Key


class Unchanged(Reconciler):
    """A reconciler whose objects need no request, so that it never waits."""

    def __init__(self) -> None:
        self.keys: list[Key | None] = []
        self.all_done = asyncio.Event()

    async def reconcile(self, key: Key) -> Result:
        self.keys.append(key)
        if len([each for each in self.keys if each]) == 100:
            self.all_done.set()
        return Result("success")

    async def report_bug(self, key: Key, error: Exception) -> None:
        raise AssertionError(error)


async def test_between_two_reconciliations_everything_else_has_its_turn() -> None:
    queue: WorkQueue[Key] = WorkQueue()
    reconciler = Unchanged()

    async def renew_the_lease() -> None:
        while True:
            reconciler.keys.append(None)
            await asyncio.sleep(0)

    for number in range(100):
        queue.add(("tenant", str(number)))
    workers = asyncio.create_task(Workers(queue, reconciler, Metrics(), number=1, resync_seconds=600).run())
    other = asyncio.create_task(renew_the_lease())
    await reconciler.all_done.wait()
    for task in (workers, other):
        task.cancel()
    await asyncio.gather(workers, other, return_exceptions=True)
    assert not [(one, another) for one, another in pairwise(reconciler.keys) if one and another]


class Cancelled(Unchanged):
    """A reconciler whose first reconciliation is cancelled by something other than the end of the operator."""

    async def reconcile(self, key: Key) -> Result:
        self.keys.append(key)
        if len(self.keys) == 1:
            raise asyncio.CancelledError
        self.all_done.set()
        return Result("success")


async def test_a_reconciliation_that_is_cancelled_alone_is_repeated() -> None:
    queue: WorkQueue[Key] = WorkQueue()
    reconciler = Cancelled()
    queue.add(("tenant", "a"))
    workers = asyncio.create_task(Workers(queue, reconciler, Metrics(), number=1, resync_seconds=600).run())
    async with asyncio.timeout(5):
        await reconciler.all_done.wait()
    assert not workers.done()
    workers.cancel()
    await asyncio.gather(workers, return_exceptions=True)
