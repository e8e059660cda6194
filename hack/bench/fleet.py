"""Measure how the cost of one event grows with the number of objects and nodes.

    python hack/bench/fleet.py 100 500 1000 2000 5000

For each number: so many VLLMDeployments with four Pods each, and four nodes for ten of them. Everything of the operator is real, except
that the cluster is in memory: no HTTP, no kopf, no API server. An event is a change of a Pod: it goes into the object cache, and the
VLLMDeployment is reconciled, which changes nothing. The times are CPU times, so other work of the machine disturbs them little.
"""

import argparse
import asyncio
import gc
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.imports import memory
from support.fake_cluster import FakeCluster
from support.gpus import real_node
from support.operators import Bench, controlled_by_deployment, llama
from vllm_operator.cluster.client import CLAIM, DEPLOYMENT, POD, REVISION, SERVICE, VLLM_DEPLOYMENT, Manifest
from vllm_operator.cluster.object_cache import ObjectCache

KINDS = (VLLM_DEPLOYMENT, DEPLOYMENT, REVISION, SERVICE, CLAIM, POD)
PODS, EVENTS = 4, 200


class Fleet(Bench):
    """An operator that reads from an object cache, and the objects that it serves."""

    def __init__(self, nodes: int, pods: int = PODS, *, ready: bool = True) -> None:
        """`pods` for each object, which are Ready or start."""
        self._pods, self._ready = pods, ready
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
        for claim in await self.object_cache.find(CLAIM, "default", labels={"app.kubernetes.io/instance": name, **_MANAGED}):
            self.object_cache.note(CLAIM, cluster.edit(CLAIM, "default", claim["metadata"]["name"], {"status": {"phase": "Bound"}}))
        await self.reconciler.reconcile(("default", name))
        template = (await self.object_cache.get(DEPLOYMENT, name, "default"))["spec"]["template"]
        for index in range(self._pods):
            self.object_cache.note(POD, cluster.put(self._pod(name, index, template)))
        counts = {"replicas": self._pods, "readyReplicas": self._pods if self._ready else 0, "updatedReplicas": self._pods}
        live = cluster.edit(DEPLOYMENT, "default", name, {"status": counts})
        self.object_cache.note(DEPLOYMENT, live)
        for _ in range(4):
            await self.reconciler.reconcile(("default", name))

    def _pod(self, name: str, index: int, template: Manifest) -> Manifest:
        metadata = {"name": f"{name}-{index}", "namespace": "default", **controlled_by_deployment(name, template["metadata"]["labels"])}
        running = {"name": "vllm", "ready": self._ready, "restartCount": 0, "state": {"running": {"startedAt": "2026-11-21T12:00:00Z"}}}
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(self._ready)}], "containerStatuses": [running]}
        spec = {**template["spec"], "nodeName": f"gpu-{index}"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}

    async def event(self, name: str, number: int) -> None:
        """Change a Pod, and handle the event."""
        pod = self.behind.edit(POD, "default", f"{name}-0", {"status": {"note": number}})
        began = time.process_time()
        [key] = self.object_cache.note(POD, pod)
        await self.reconciler.reconcile(key)
        self.spent += time.process_time() - began

    spent = 0.0


_MANAGED = {"app.kubernetes.io/managed-by": "vllm-operator"}


async def measure(objects: int) -> None:
    before = memory()["Rss"]
    fleet = Fleet(objects * 2 // 5)
    await fleet.object_cache.refresh(KINDS, changed=lambda key: None)
    names = [f"model-{index}" for index in range(objects)]
    for name in names:
        await fleet.add(name)
    gc.collect()
    writes = len(fleet.behind.writes)
    for number in range(EVENTS):
        await fleet.event(random.choice(names), number)
    events = fleet.spent / EVENTS * 1000
    began = time.process_time()
    await fleet.inventory.read(max_age=0)
    nodes = (time.process_time() - began) * 1000
    began = time.process_time()
    changed: list[Any] = []
    await ObjectCache(fleet.behind).refresh(KINDS, changed=changed.append)
    listed = time.process_time() - began
    print(
        f"{objects:>7} {objects * 2 // 5:>6} {objects * PODS:>6} {events:>12.2f} {nodes:>15.0f} {listed:>12.1f} "
        f"{len(fleet.behind.writes) - writes:>7} {memory()['Rss'] - before:>6.0f}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("objects", type=int, nargs="*", default=[100, 500, 1000, 2000])
    options = parser.parse_args(arguments)
    random.seed(1)
    print("objects  nodes   Pods  ms per event  ms to read nodes  s to list  writes    MiB")
    for objects in options.objects:
        asyncio.run(measure(objects))


if __name__ == "__main__":
    main()
