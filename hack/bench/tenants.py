"""Measure how long one tenant keeps the event loop busy, apart from logs (`streams.py --flood`).

    python hack/bench/tenants.py --objects 100

Everything of the operator is real, except that the cluster is in memory: no HTTP, no kopf, no API server. Printed is by how much a timer of
50 ms is late while all objects change all the time, and what one event costs of objects that are as large as the API server allows.
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

from support.fake_cluster import FakeCluster
from support.gpus import real_node
from support.observations import container, terminated, waiting
from support.operators import Bench, controlled_by_deployment, llama
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.object_cache import ObjectCache
from vllm_operator.controller.queue import WorkQueue
from vllm_operator.controller.workers import Workers
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, POD, REVISION, SERVICE, VLLM_DEPLOYMENT, Manifest, children_of

KINDS = (VLLM_DEPLOYMENT, DEPLOYMENT, REVISION, SERVICE, CLAIM, POD)
SECONDS = 10.0
MESSAGE = "".join(f"RuntimeError: {number} CUDA out of memory Xid\n" for number in range(200))[:4096]
CRASHED = {"containerStatuses": [container(waiting("CrashLoopBackOff"), restarts=3, last=terminated(message=MESSAGE))], "conditions": []}


class Fleet(Bench):
    """An operator that reads from an object cache, and the objects that it serves."""

    def __init__(self, nodes: int, pods: int) -> None:
        """`pods` for each object."""
        self._pods = pods
        like = real_node("h100-sxm")
        named = [{**like, "metadata": {**like["metadata"], "name": f"gpu-{index}"}} for index in range(nodes)]
        self.behind: Any = None
        super().__init__(*named)

    def make_reconciler(self, *_: Any) -> Any:
        if self.behind is None:
            self.behind = self.cluster
            self.object_cache = ObjectCache(self.cluster)
            cache: Any = self.object_cache  # it has the methods that the reconciler uses
            self.cluster = cache
        return super().make_reconciler()

    async def add(self, name: str) -> None:
        """Serve an object."""
        cluster: FakeCluster = self.behind
        self.object_cache.note(VLLM_DEPLOYMENT, cluster.put(llama(name, replicas=self._pods)))
        await self.reconciler.reconcile(("default", name))
        for claim in await self.object_cache.find(CLAIM, "default", labels=children_of(CLAIM, name)):
            self.object_cache.note(CLAIM, cluster.edit(CLAIM, "default", claim["metadata"]["name"], {"status": {"phase": "Bound"}}))
        await self.reconciler.reconcile(("default", name))
        template = (await self.object_cache.get(DEPLOYMENT, name, "default"))["spec"]["template"]
        for index in range(self._pods):
            self.object_cache.note(POD, cluster.put(self._pod(name, index, template)))
        counts = {"replicas": self._pods, "readyReplicas": self._pods, "updatedReplicas": self._pods}
        live = cluster.edit(DEPLOYMENT, "default", name, {"status": counts})
        self.object_cache.note(DEPLOYMENT, live)
        for _ in range(4):
            await self.reconciler.reconcile(("default", name))

    def _pod(self, name: str, index: int, template: Manifest) -> Manifest:
        metadata = {"name": f"{name}-{index}", "namespace": "default", **controlled_by_deployment(name, template["metadata"]["labels"])}
        running = {"name": "vllm", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": "2026-11-21T12:00:00Z"}}}
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [running]}
        spec = {**template["spec"], "nodeName": f"gpu-{index}"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


async def fleet_of(objects: int, pods: int) -> Fleet:
    fleet = Fleet(10, pods=pods)
    for kind in KINDS:
        await fleet.object_cache.refresh(kind)
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
