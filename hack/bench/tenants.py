"""Measure how long one tenant keeps the event loop busy, apart from logs (`streams.py --flood`).

    python hack/bench/tenants.py --objects 100

As in `fleet.py`, everything of the operator is real, except that the cluster is in memory. Printed is by how much a timer of 50 ms is late
while all objects change all the time, and what one event costs of objects that are as large as the API server allows.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.fleet import KINDS, Fleet
from support.observations import container, terminated, waiting
from vllm_operator.cluster.client import POD
from vllm_operator.runtime.metrics import Metrics
from vllm_operator.runtime.queue import WorkQueue
from vllm_operator.runtime.workers import Workers

SECONDS = 10.0
MESSAGE = "".join(f"RuntimeError: {number} CUDA out of memory Xid\n" for number in range(200))[:4096]
CRASHED = {"containerStatuses": [container(waiting("CrashLoopBackOff"), restarts=3, last=terminated(message=MESSAGE))], "conditions": []}


async def fleet_of(objects: int, pods: int) -> Fleet:
    fleet = Fleet(10, pods=pods)
    await fleet.object_cache.refresh(KINDS, changed=lambda key: None)
    for number in range(objects):
        await fleet.add(f"model-{number}")
    return fleet


async def change_all(fleet: Fleet, objects: int) -> None:
    """Add all keys again and again, and print how late a timer is."""
    queue: WorkQueue[tuple[str, str]] = WorkQueue(debounce_seconds=0.5)
    workers = asyncio.create_task(Workers(queue, fleet.reconciler, Metrics(), number=4, resync_seconds=600).run())
    late, end = [], time.monotonic() + SECONDS
    while time.monotonic() < end:
        for number in range(objects):
            queue.add(("default", f"model-{number}"))
        before = time.monotonic()
        await asyncio.sleep(0.05)
        late.append(time.monotonic() - before - 0.05)
    workers.cancel()
    await asyncio.gather(workers, return_exceptions=True)
    late.sort()
    print(
        f"{objects} objects that change all the time: a timer of 0.05 s is late by {late[len(late) // 2]:.3f} s, {late[-1]:.3f} s (worst)"
    )


async def change_pod(fleet: Fleet, what: str, change: dict[str, Any]) -> None:
    """Change each Pod of one object, then one of them again, and print what this event costs."""
    for pod in await fleet.behind.find(POD, "default"):
        if pod["metadata"]["name"].startswith("model-0-"):
            fleet.object_cache.note(POD, fleet.behind.edit(POD, "default", pod["metadata"]["name"], change))
    spent = []
    for number in range(4):
        pod = fleet.behind.edit(POD, "default", "model-0-0", {"status": {"note": number}})
        began = time.process_time()
        fleet.object_cache.note(POD, pod)
        await fleet.reconciler.reconcile(("default", "model-0"))
        spent.append(time.process_time() - began)
    print(f"{what}: {min(spent) * 1000:.0f} ms for an event", flush=True)


async def measure(objects: int) -> None:
    await change_all(await fleet_of(objects, 4), objects)
    few = await fleet_of(1, 4)
    await change_pod(few, "4 Pods", {})
    await change_pod(few, "4 Pods with 240 KiB of annotations", {"metadata": {"annotations": {f"k{n}": "v" * 10 for n in range(16000)}}})
    many = await fleet_of(1, 500)
    await change_pod(many, "500 Pods", {})
    await change_pod(many, "500 Pods with termination messages of 4 KiB", {"status": CRASHED})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=100)
    logging.disable(logging.WARNING)
    asyncio.run(measure(parser.parse_args(arguments).objects))


if __name__ == "__main__":
    main()
