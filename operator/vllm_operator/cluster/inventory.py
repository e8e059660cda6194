"""A cache of the GPUs of the cluster.

Nodes are listed, not watched: they are large and change with every heartbeat, and a new GPU takes minutes to arrive. All
reconciliations share the result. The nodes are listed in pages, and only what matters of them is kept, serialized: 2,000 nodes would
take 100 MiB otherwise.
"""

import asyncio
import marshal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from vllm_operator.api import labels
from vllm_operator.cluster.client import NODE, NODE_POOL, POD, RESOURCE_SLICE, ClusterClient, Forbidden, Manifest, NotFound

GPU_RESOURCES = ("nvidia.com/", "amd.com/gpu", "gpu.intel.com/")
GPU_LABELS = (
    "nvidia.com/",
    "feature.node.kubernetes.io/pci-10de",
    "feature.node.kubernetes.io/pci-0302_10de",
    "feature.node.kubernetes.io/pci-0300_10de",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-gpu",
    "karpenter.k8s.aws/instance-gpu",
    "kubernetes.azure.com/accelerator",
    "gpu.nvidia.com/",
    labels.ARCHITECTURE_LABEL,
)
"""Prefixes of labels of nodes that may have a GPU. There is no label that all of them have."""

REST_FACTOR = 10.0
"""The inventory is read again after this many times as long as reading it took at the earliest. Where 2,000 nodes take 0.3 s, a new plan
uses an inventory that is at most 3 s old, and reading takes a tenth of the time at most."""
CONCURRENT_LISTS = 8
"""Nodes whose Pods are listed at the same time."""

NODE_POOLS_RETRY_SECONDS = 600.0
"""A cluster without Karpenter is not asked again for NodePools for so long."""

Content = TypeVar("Content")


class InventoryCache(Generic[Content]):
    """A cache of what `read` makes of the nodes with GPUs, of the ResourceSlices and of Karpenter's NodePools."""

    def __init__(
        self,
        client: ClusterClient,
        read: Callable[..., Content],
        *,
        seconds: float = 30.0,
        sees_all_pods: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` gets the nodes and the ResourceSlices, and the NodePools as `node_pools`; its result is cached for `seconds`.

        `sees_all_pods`: the operator may list the Pods of all namespaces.
        """
        self._client = client
        self._read = read
        self._seconds = seconds
        self._sees_all_pods = sees_all_pods
        self._clock = clock
        self._reading: asyncio.Task[None] | None = None
        self._read_at: float | None = None
        self._took = 0.0
        self._seen: tuple[Sequence[bytes], Sequence[Manifest], Sequence[Manifest]] | None = None
        self._node_pools_from = 0.0
        self._content: Content | None = None

    async def read(self, *, max_age: float | None = None) -> Content:
        """Return the inventory, at most `max_age` seconds old (default and maximum: the `seconds` of the cache).

        Concurrent callers share one read and its error. Otherwise each of them would wait for a timeout of its own.

        Raises:
            ClusterError: The nodes cannot be listed; Forbidden: the operator may not list them.
        """
        limit = self._seconds if max_age is None else min(max(max_age, REST_FACTOR * self._took), self._seconds)
        while self._content is None or self._read_at is None or self._clock() - self._read_at > limit:
            begins = self._reading is None
            if self._reading is None:
                self._reading = asyncio.create_task(self._refresh(), name="nodes")
                self._reading.add_done_callback(self._has_read)
            await asyncio.shield(self._reading)  # if one caller is cancelled, the others go on
            if begins:
                break  # it was read after this call
        assert self._content is not None
        return self._content

    async def pods_on(self, nodes: Iterable[str], *, insist: bool = True) -> list[Manifest] | None:
        """All Pods on these nodes; None if the operator may not list them. Only a new plan for free GPUs needs them.

        Without `insist`, an operator that serves only some namespaces does not ask.

        They are listed by node, because a cluster may have many Pods on other nodes.

        Raises:
            ClusterError: They cannot be listed.
        """
        if not (insist or self._sees_all_pods):
            return None
        slots = asyncio.Semaphore(CONCURRENT_LISTS)

        async def listed(node: str) -> Sequence[Manifest]:
            async with slots:
                return await self._client.find(POD, fields={"spec.nodeName": node}, cached=True)

        try:
            found = await asyncio.gather(*map(listed, nodes))
        except Forbidden:
            return None
        return [pod for pods in found for pod in pods]

    async def _refresh(self) -> None:
        asked_at = self._clock()
        nodes = [_packed(node) async for page in self._client.pages(NODE) for node in page.items if has_gpu_sign(node)]
        seen = nodes, await self._slices(), await self._node_pools()
        self._took = self._clock() - asked_at
        if seen != self._seen:  # `read` takes 40 µs for each node
            content = self._read([marshal.loads(node) for node in nodes], seen[1], node_pools=seen[2])
            self._seen = seen
            if content != self._content:  # otherwise keep the object: callers compare by identity
                self._content = content
        self._read_at = asked_at

    def _has_read(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # mark it as retrieved: there may be no caller left

    async def _slices(self) -> tuple[Manifest, ...]:
        try:
            return tuple(await self._client.find(RESOURCE_SLICE, cached=True))
        except (NotFound, Forbidden):
            return ()  # dynamic resource allocation is not available, or not allowed

    async def _node_pools(self) -> tuple[Manifest, ...]:
        if self._clock() < self._node_pools_from:
            return ()
        try:
            found = await self._client.find(NODE_POOL, cached=True)
        except (NotFound, Forbidden):
            self._node_pools_from = self._clock() + NODE_POOLS_RETRY_SECONDS
            return ()
        return tuple({"metadata": _named(each["metadata"]), "spec": each.get("spec") or {}} for each in found)


def has_gpu_sign(node: Manifest) -> bool:
    """Whether a node may have a GPU, by its labels and capacity. No label selector can express this."""
    if any(label.startswith(GPU_LABELS) for label in node["metadata"].get("labels") or {}):
        return True
    status: dict[str, Any] = node.get("status") or {}
    return any(str(name).startswith(GPU_RESOURCES) for name in status.get("capacity") or {})


def _named(metadata: Manifest) -> Manifest:
    return {key: metadata[key] for key in ("name", "deletionTimestamp") if key in metadata}


def _packed(node: Manifest) -> bytes:
    """The parts of a node that matter here, without those that change with every heartbeat, serialized: equal parts give equal bytes."""
    metadata, status = node["metadata"], node.get("status") or {}
    conditions = [{key: condition.get(key) for key in ("type", "status")} for condition in status.get("conditions") or ()]
    part = {
        "metadata": {key: metadata[key] for key in ("name", "labels", "annotations") if key in metadata},
        "spec": node.get("spec") or {},
        "status": {**{key: status[key] for key in ("capacity", "allocatable", "nodeInfo") if key in status}, "conditions": conditions},
    }
    return marshal.dumps(part, 2)  # later versions of the format depend on the number of references
