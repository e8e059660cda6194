"""GPUs that a plan needs for Pods that do not exist yet or have no node. Without these promises, plans in a row get the same free GPU."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_operator.inventory.devices import Owner, UsedDevices
from vllm_operator.inventory.pools import Inventory, Pool
from vllm_operator.planning.placement.targets import DEFAULT_TOLERATIONS, GPUIdentity, identity_of


@dataclass(frozen=True, slots=True)
class Promise:
    """What a plan needs for all its `replicas`, `count` devices each. `with_usage` subtracts what its Pods hold already.

    `pods` are the uids of the Pods that exist. Any value is valid in `tolerations`. `nodes` are the only ones where the Pods may run; empty
    if there is no such limit.
    """

    gpu: GPUIdentity
    resource: str
    count: int
    replicas: int
    pods: Collection[str] = ()
    tolerations: tuple[Any, ...] = ()
    nodes: Collection[str] = ()


def with_usage(
    inventory: Inventory, in_use: UsedDevices, owner: Owner, pods: Collection[str], promises: Mapping[Owner, Promise | None]
) -> Inventory:
    """Return the inventory with the devices in use or promised, except those of `owner`, whose `pods` have these uids.

    `owner` is the object to plan. The devices of a promise to another one are taken on nodes where Kubernetes could place its Pods now;
    devices that Pods hold, also those of `owner`, are not taken twice. A Pod for which there is no place takes none.
    """
    taken = _Taken(inventory, in_use, dict(in_use.all), set(in_use.claimed_by_others() or ()))
    missing: dict[tuple[Any, ...], tuple[Promise, int]] = {}  # promises that are alike are placed together: there may be hundreds
    for name, promise in promises.items():
        if promise is not None and name != owner and (count := taken.missing(promise, name)) > 0:
            alike = (promise.gpu, promise.resource, promise.count, str(promise.tolerations), tuple(promise.nodes))
            missing[alike] = promise, count + missing.get(alike, (promise, 0))[1]
    for promise, count in missing.values():
        taken.add(promise, count)
    own, claimed = in_use.own.get(owner, {}), in_use.claimed
    used = {place: amount - own.get(place, 0) for place, amount in taken.used.items()}
    allocated = None if claimed is None else frozenset(taken.claimed.difference(*(claimed.get(pod, ()) for pod in pods)))
    return replace(inventory, used=used, own=own, allocated=allocated)


@dataclass(frozen=True, slots=True)
class _Taken:
    inventory: Inventory
    in_use: UsedDevices
    used: dict[tuple[str, str], int]
    claimed: set[str]
    pools: dict[tuple[GPUIdentity, str], dict[str, Pool]] = field(default_factory=dict)  # by node; there may be many promises of one GPU

    def missing(self, promise: Promise, promised_to: Owner) -> int:
        own, pools = self.in_use.own.get(promised_to, {}).items(), self._pools_of(promise.gpu, promise.resource)
        placed = sum(amount for (node, resource), amount in own if resource == promise.resource and node in pools)
        placed += sum(len((self.in_use.claimed or {}).get(uid, ())) for uid in promise.pods)
        return promise.replicas - placed // max(promise.count, 1)

    def add(self, promise: Promise, missing: int) -> None:
        pools, count = self._pools_of(promise.gpu, promise.resource), max(promise.count, 1)
        tolerated = [*DEFAULT_TOLERATIONS, *promise.tolerations]
        allowed, taints = pools.keys() & set(promise.nodes or pools), self.inventory.taints
        nodes = [node for node in allowed if all(it.is_tolerated(tolerated) for it in taints.get(node, ()))]
        for free, node in sorted((self._free(node, pools[node]), node) for node in nodes):  # leave whole nodes to those who need them
            pods = max(min(missing, free // count), 0)
            missing -= pods
            if pools[node].claims:
                self.claimed.update(self._devices(node, pools[node])[: pods * count])
            elif pods:
                self.used[node, promise.resource] = self.used.get((node, promise.resource), 0) + pods * count

    def _pools_of(self, gpu: GPUIdentity, resource: str) -> Mapping[str, Pool]:
        if (gpu, resource) not in self.pools:
            alike = (pool for pool in self.inventory.pools if (identity_of(pool), pool.resource) == (gpu, resource))
            usable = (pool for pool in alike if pool.provider is None and not pool.problems)
            self.pools[gpu, resource] = {node: pool for pool in usable for node in pool.nodes}
        return self.pools[gpu, resource]

    def _free(self, node: str, pool: Pool) -> int:
        return len(self._devices(node, pool)) if pool.claims else pool.count - self.used.get((node, pool.resource), 0)

    def _devices(self, node: str, pool: Pool) -> list[str]:
        return [device for place, device in pool.devices if place == node and device not in self.claimed]
