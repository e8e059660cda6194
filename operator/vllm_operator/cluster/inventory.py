"""What GPUs the cluster has, as of a moment ago.

Nodes are read with a list that may be seconds old, not watched: they are large, change with every heartbeat,
and a new GPU takes minutes to arrive anyway. All reconciliations share one read.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from vllm_operator.api import labels
from vllm_operator.cluster.client import NODE, RESOURCE_SLICE, ClusterClient, Forbidden, Manifest, NotFound

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
"""A node with a label or a resource that begins like this may have a GPU. There is no one label that all have."""


Content = TypeVar("Content")


class InventoryCache(Generic[Content]):
    """A cache of what is read from the nodes with GPUs and from the ResourceSlices."""

    def __init__(
        self,
        client: ClusterClient,
        read: Callable[[Sequence[Manifest], Sequence[Manifest]], Content],
        *,
        seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` makes of nodes and slices what is kept."""
        self._client = client
        self._read = read
        self._seconds = seconds
        self._clock = clock
        self._reading: asyncio.Task[None] | None = None
        self._read_at: float | None = None
        self._seen: tuple[Sequence[Manifest], Sequence[Manifest]] | None = None
        self._content: Content | None = None

    async def read(self, *, max_age: float | None = None) -> Content:
        """What GPUs there are, at most `max_age` seconds old (the cache's own age if not given).

        All who wait share one read, and its error: one after the other they would wait for as many time-outs as there are workers.

        Raises:
            ClusterError: The nodes cannot be listed; Forbidden: the operator may not list them.
        """
        limit = self._seconds if max_age is None else min(max_age, self._seconds)
        while self._content is None or self._read_at is None or self._clock() - self._read_at > limit:
            begins = self._reading is None
            if self._reading is None:
                self._reading = asyncio.create_task(self._refresh(), name="nodes")
                self._reading.add_done_callback(self._has_read)
            await asyncio.shield(self._reading)  # that one of them is cancelled does not concern the others
            if begins:
                break  # as fresh as it can be
        assert self._content is not None
        return self._content

    async def _refresh(self) -> None:
        asked_at = self._clock()
        nodes = [_essence(node) for node in await self._client.find(NODE, cached=True) if has_gpu_sign(node)]
        seen = nodes, await self._slices()
        if seen != self._seen:  # reading takes milliseconds for each node
            content = self._read(*seen)
            self._seen = seen
            if content != self._content:  # else the same object stays, by which others know that nothing has changed
                self._content = content
        self._read_at = asked_at

    def _has_read(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # whoever waits is told of it; nobody may wait any more

    async def _slices(self) -> tuple[Manifest, ...]:
        try:
            return tuple(await self._client.find(RESOURCE_SLICE, cached=True))
        except (NotFound, Forbidden):
            return ()  # an API server without dynamic resource allocation, or none of our business


def has_gpu_sign(node: Manifest) -> bool:
    """Whether anything about a node hints at a GPU. Label selectors cannot ask this: there is no common label."""
    if any(label.startswith(GPU_LABELS) for label in node["metadata"].get("labels") or {}):
        return True
    status: dict[str, Any] = node.get("status") or {}
    return any(str(name).startswith(GPU_RESOURCES) for name in status.get("capacity") or {})


def _essence(node: Manifest) -> Manifest:
    """A node without what changes with every heartbeat, and without the lists of what runs on it."""
    metadata, status = node["metadata"], node.get("status") or {}
    conditions = [{key: condition.get(key) for key in ("type", "status")} for condition in status.get("conditions") or ()]
    return {
        "metadata": {key: metadata[key] for key in ("name", "labels", "annotations") if key in metadata},
        "spec": node.get("spec") or {},
        "status": {**{key: status[key] for key in ("capacity", "allocatable", "nodeInfo") if key in status}, "conditions": conditions},
    }
