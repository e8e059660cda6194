"""A cache of the GPUs of the cluster.

Nodes are listed, not watched: they are large and change with every heartbeat, and a new GPU takes minutes to arrive. All reconciliations
share the result. The nodes are listed in pages, and only the required fields are kept: whole objects of 2,000 nodes would take 100 MiB.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from typing import Generic, TypeVar

from vllm_operator.api import labels, reading
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.gpus import load_gpus
from vllm_operator.inventory.devices import DRIVER, UsedDevices, add_up, read_used, use_of
from vllm_operator.inventory.pools import Inventory
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, ClusterError, Forbidden, Key, Kind, Manifest, NotFound, Unavailable
from vllm_operator.kube.recent import Recent
from vllm_operator.planning.pinning import NEEDS_ROOM, NEW_PLAN_SECONDS, Standing, digest_of_spec, needs_usage
from vllm_operator.planning.placement.promises import Promise, with_usage
from vllm_operator.pods.view import PodView

AGE_SECONDS = 30.0
"""Maximum age of what was read, in seconds."""
REST_FACTOR, URGENT_REST_FACTOR = 10.0, 3.0
"""Minimum interval between two reads, as a multiple of the duration of a read: of most callers, and of those with a small `limit`."""
ON_NODES = {"spec.nodeName!": "", "status.phase!": "Succeeded"}
"""Field selector of the Pods that may use devices."""
NODE_LISTS = 8
"""Maximum number of nodes whose Pods are listed per node, for which the API server has an index. With more, all are listed in pages."""
NODE_POOLS_RETRY_SECONDS = 600.0
"""Seconds until the next request for NodePools after a cluster had no Karpenter."""
MAX_COUNTED = 1024
"""Maximum number of objects whose count of free devices is remembered."""

Content = TypeVar("Content")


class SharedRead(Generic[Content]):
    """Cached content of the cluster. Callers that wait for a read share it and its error: otherwise each would wait for its own timeout."""

    def __init__(self, read: Callable[[], Awaitable[Content]], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._reading = asyncio.Lock()
        self._reads = 0  # number of completed reads, also of failed ones
        self._content_number, self._read_at, self._took = 0, -math.inf, 0.0  # number, start time and duration of the last successful read
        self._content: Content | None = None
        self._error: Exception | None = None

    async def get(self, max_age: float, *, limit: float = AGE_SECONDS, or_last: bool = False) -> Content:
        """Return content at most `max_age` seconds old, or up to `limit` seconds or three reads if reading takes long; new if `limit` is 0.

        `or_last`: return the last content, of any age, while the API server is unavailable. Raises ClusterError.
        """
        age, before = min(max(max_age, REST_FACTOR * self._took), limit and max(limit, URGENT_REST_FACTOR * self._took)), self._reads
        if self._content is not None and self._clock() - self._read_at < age:
            return self._content  # without waiting for a read: a caller that has just read decides before those that wait for the lock
        fresh = before + self._reading.locked() + 1  # number of the first read that begins from now on: a running one began earlier
        async with self._reading:
            if self._content_number < fresh and self._clock() - self._read_at >= age:
                if self._reads == before or self._error is None:
                    await self._try()
                if self._error is not None and not (or_last and isinstance(self._error, Unavailable) and self._content is not None):
                    raise self._error
        assert self._content is not None
        return self._content

    async def _try(self) -> None:
        began = self._clock()
        try:
            content = await self._read()
        except ClusterError as error:
            self._error = error
        else:
            self._content_number, self._read_at, self._took, self._error = self._reads + 1, began, self._clock() - began, None
            if content != self._content:  # otherwise keep the object: callers compare by identity
                self._content = content
        self._reads += 1


@dataclass(eq=False)
class InventoryCache:
    """A cache of the GPUs, from the nodes that may have one, the ResourceSlices and Karpenter's NodePools.

    Pods are listed, and only when a new plan depends on the free devices (`used_devices`): a watch would deliver every change of every Pod.
    `make` gets nodes, ResourceSlices and `node_pools`. `sees_all_pods`: the operator may list the Pods of all namespaces.
    """

    client: ClusterClient
    make: Callable[..., Inventory]
    _: KW_ONLY
    sees_all_pods: bool = True
    clock: Callable[[], float] = time.monotonic
    promises: dict[Key, Promise | None] = field(default_factory=dict)
    """Of each VLLMDeployment. They count as taken for the plans of others."""
    _seen: tuple[Sequence[Manifest], ...] = ((), (), ())  # the nodes, ResourceSlices and NodePools of the last read
    _node_pools_from: float = 0.0
    _made: Inventory | None = None
    # by uid of the VLLMDeployment: the input, and the result. A preset may change the spec without a new generation.
    _counted: Recent[tuple[tuple[str, str | None, Inventory], Inventory]] = field(default_factory=lambda: Recent(MAX_COUNTED))

    def __post_init__(self) -> None:
        self._inventory = SharedRead(self._read_inventory, self.clock)
        self._used_devices = SharedRead(self._read_used_devices, self.clock)

    async def read(self, *, max_age: float | None = None, limit: float = AGE_SECONDS) -> Inventory:
        """Return the inventory, at most `max_age` seconds old, or `limit` if reading takes long. Raises ClusterError.

        Without `max_age`, no new plan depends on the inventory, so the last one is returned while the API server is unavailable.
        """
        return await self._inventory.get(AGE_SECONDS if max_age is None else max_age, limit=limit, or_last=max_age is None)

    async def used_devices(self, *, insist: bool = True, max_age: float = 0.0, limit: float = AGE_SECONDS) -> UsedDevices | None:
        """Return the devices that Pods of the cluster use; None if the operator may not list Pods. Raises other ClusterErrors.

        Without `insist`, an operator that serves only some namespaces does not ask.
        """
        if not (insist or self.sees_all_pods):
            return None
        try:
            return await self._used_devices.get(max_age, limit=limit)
        except Forbidden:
            return None

    async def _read_used_devices(self) -> UsedDevices:
        """List the Pods on the nodes with GPUs, and ResourceClaims. The number of requests does not grow with the number of nodes."""
        nodes, slices, _ = self._seen
        claims = await self._find(kube.RESOURCE_CLAIM) if slices else None
        if len(nodes) > NODE_LISTS:
            pages = self.client.pages(kube.POD, fields=ON_NODES)
            return add_up([use async for page in pages for pod in page if (use := use_of(pod)) is not None], claims)
        lists = [self.client.find(kube.POD, fields={"spec.nodeName": node["metadata"]["name"]}, cached=True) for node in nodes]
        return read_used([pod for found in await asyncio.gather(*lists) for pod in found], claims)

    async def _read_inventory(self) -> Inventory:
        slices = await self._find(kube.RESOURCE_SLICE) or ()
        with_devices = {reading.text(entry, "spec", "nodeName") for entry in slices if reading.text(entry, "spec", "driver") == DRIVER}
        nodes = [
            _node_part(node)
            async for page in self.client.pages(kube.NODE)
            for node in page
            if has_gpu_sign(node) or node["metadata"]["name"] in with_devices
        ]
        seen = nodes, slices, await self._node_pools()
        if self._made is None or seen != self._seen:  # `read` takes 40 µs for each node
            self._made = self.make(nodes, slices, node_pools=seen[2])
            self._seen = seen
        return self._made

    async def _find(self, kind: Kind) -> Sequence[Manifest] | None:
        """List all objects of a kind; return None if the API server does not serve it, or the operator may not list it."""
        try:
            return await self.client.find(kind, cached=True)
        except (NotFound, Forbidden):
            return None

    async def _node_pools(self) -> Sequence[Manifest]:
        if self.clock() < self._node_pools_from:
            return ()
        try:
            found = await self._find(kube.NODE_POOL)
        except Unavailable:
            return self._seen[2]  # the webhook of this CRD may be down, which does not concern nodes
        if found is None:
            self._node_pools_from = self.clock() + NODE_POOLS_RETRY_SECONDS
            return ()
        return [{"metadata": _picked(each["metadata"], "name", "deletionTimestamp"), "spec": each.get("spec") or {}} for each in found]

    async def count_free(
        self,
        resource: VLLMDeployment,
        inventory: Inventory,
        pods: Iterable[PodView],
        standing: Standing,
        *,
        now: datetime,
        listed: int = 0,
        fresh: bool = False,
    ) -> Inventory:
        """Return the inventory with the devices in use or promised, or the unchanged inventory if the plan does not depend on them.

        `pods` are those of the VLLMDeployment to plan; `listed` is the number of node pools in the administrator's ConfigMap. `fresh`: the
        devices in use now are needed, also for `count_used`. For a new plan, the result is remembered until the plan is pinned: planning
        again must give the same plan although other Pods come and go. Nothing is awaited after the Pods are listed, so a caller that
        decides at once is first. Raises ClusterError if that fails.
        """
        metadata = resource.metadata
        if standing is not Standing.NEW:
            self._counted.pop(metadata.uid, None)
        if not needs_usage(resource, inventory, standing, listed_pools=listed):
            return inventory
        question = digest_of_spec(resource.spec), metadata.annotations.get(labels.REPLAN_ANNOTATION), inventory
        remembered = self._counted.get(metadata.uid)
        if remembered is not None and remembered[0] == question:
            return remembered[1]
        age, limit = NEW_PLAN_SECONDS if standing in NEEDS_ROOM and not fresh else 0.0, NEW_PLAN_SECONDS if fresh else AGE_SECONDS
        in_use = await self.used_devices(insist=_insists(resource), max_age=age, limit=limit)
        if in_use is None:
            counted = replace(inventory, hidden=True)
        else:
            owner = metadata.namespace, metadata.name
            counted = with_usage(replace(inventory, read_at=now), in_use, owner, {pod.uid for pod in pods}, self.promises)
        if standing is Standing.NEW:
            self._counted.put(metadata.uid, (question, counted))
        return counted

    async def count_used(
        self, resource: VLLMDeployment, inventory: Inventory, pods: Iterable[PodView], *, now: datetime, with_promised: bool
    ) -> Inventory:
        """Return the inventory with the devices that Pods use now, without the `pods` of the VLLMDeployment. Raises ClusterError.

        `with_promised`: promised devices count as used. An `inventory` counted `now` needs no second list of the Pods.
        """
        if inventory.hidden:
            return inventory
        age, limit = (NEW_PLAN_SECONDS, AGE_SECONDS) if inventory.read_at == now else (0.0, NEW_PLAN_SECONDS)
        in_use = await self.used_devices(insist=_insists(resource), max_age=age, limit=limit)
        if in_use is None:
            return replace(inventory, hidden=True)
        owner = resource.metadata.namespace, resource.metadata.name
        return with_usage(inventory, in_use, owner, {pod.uid for pod in pods}, self.promises if with_promised else {})


def _insists(resource: VLLMDeployment) -> bool:
    return resource.spec.accelerator is not None and resource.spec.accelerator.policy == "MostFree"


def has_gpu_sign(node: Manifest) -> bool:
    """Return whether a node may have a GPU, by its labels and capacity. No label selector can express this."""
    signs, names = load_gpus().presence, reading.mapping(node, "metadata", "labels")
    resources = reading.mapping(node, "status", "capacity")
    return any(it.startswith(signs.label_prefixes) for it in names) or any(it.startswith(signs.resource_prefixes) for it in resources)


def _node_part(node: Manifest) -> Manifest:
    """Return the parts of a node that matter here, without the fields that change with every heartbeat."""
    status = node.get("status") or {}
    conditions = [{key: condition.get(key) for key in ("type", "status")} for condition in status.get("conditions") or ()]
    return {
        "metadata": _picked(node["metadata"], "name", "labels", "annotations"),
        "spec": node.get("spec") or {},
        "status": {**_picked(status, "capacity", "allocatable", "nodeInfo"), "conditions": conditions},
    }


def _picked(value: Manifest, *keys: str) -> Manifest:
    return {key: value[key] for key in keys if key in value}
