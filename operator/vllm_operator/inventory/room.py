"""Room for Pods: the devices of nodes, by labels, taints and problems of the nodes. Other obstacles are known to the scheduler alone."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.plan import Plan
from vllm_operator.api.reading import mapping, objects, text
from vllm_operator.inventory.pools import Inventory, Pool
from vllm_operator.pods.owner import meets

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Room:
    """Devices for the Pods of a plan, by node. `free` leaves out the devices of other owners' Pods; None if unknown."""

    nodes: tuple[str, ...]  # all nodes with GPUs
    count: int  # devices of each Pod
    total: Mapping[str, int]
    free: Mapping[str, int] | None

    def pods(self, nodes: Collection[str] | None = None) -> int | None:
        """Return how many Pods fit, on these nodes or on all; None if unknown."""
        if self.free is None:
            return None
        return sum(free // self.count for node, free in self.free.items() if nodes is None or node in nodes)


def find_room(plan: Plan, pod_spec: Mapping[str, Any], inventory: Inventory) -> Room | None:
    """Return the room for the Pods of a plan; None if an autoscaler would add nodes for them, or if they request no devices."""
    total, free = Counter[str](), Counter[str]()
    is_counted, admits = False, _admission(pod_spec, inventory)
    for pool in inventory.pools:
        admitting = [node for node in pool.nodes if _is_meant(pool, plan) and admits(node)]
        if admitting and pool.provider is not None:
            return None
        is_counted = is_counted or (inventory.allocated if pool.claims else inventory.used) is not None
        taken = Counter(node for node, device in pool.devices if device in (inventory.allocated or ()))
        for node in () if pool.problems else admitting:
            in_use = taken[node] if pool.claims else (inventory.used or {}).get((node, pool.resource), 0)
            total[node] += pool.count
            free[node] += max(pool.count - in_use, 0)
    return Room(inventory.nodes, plan.count, total, free if is_counted else None) if plan.count else None


def _is_meant(pool: Pool, plan: Plan) -> bool:
    pairs = ((pool.architecture, plan.architecture), (pool.product, plan.product), (pool.mig_profile, plan.mig_profile))
    return pool.resource == plan.resource and all(None in pair or pair[0] == pair[1] for pair in pairs)


def _admission(pod_spec: Mapping[str, Any], inventory: Inventory) -> Callable[[str], bool]:
    """Return a function that says whether labels and taints of a node allow a Pod. Nodes with equal ones are checked once."""
    selector = mapping(pod_spec, "nodeSelector")
    terms = [
        list(objects(term, "matchExpressions")) for term in objects(pod_spec, "affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms")
    ]
    names = sorted({*selector, *(text(each, "key") for term in terms for each in term)})
    known: dict[tuple[object, ...], bool] = {}

    def admits(node: str) -> bool:
        labels, taints = inventory.labels.get(node, {}), inventory.taints.get(node, ())
        read = (*map(labels.get, names), taints)
        if read not in known:
            # a comparison of numbers counts as met
            is_meant = not terms or any(all(meets(labels, each) is not False for each in term) for term in terms)
            is_tolerated = all(taint.is_tolerated(pod_spec.get("tolerations")) for taint in taints)
            known[read] = selector.items() <= labels.items() and is_meant and is_tolerated
        return known[read]

    return admits
