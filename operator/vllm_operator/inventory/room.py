"""Room for Pods: the devices of nodes, by labels, taints and problems of the nodes. Other obstacles are known to the scheduler alone."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.plan import Plan
from vllm_operator.api.reading import mapping, objects
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
    is_counted = False
    for pool in inventory.pools:
        admitting = [node for node in pool.nodes if _is_meant(pool, plan) and _admits(node, pod_spec, inventory)]
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


def _admits(node: str, pod_spec: Mapping[str, Any], inventory: Inventory) -> bool:
    """Return whether labels and taints of a node allow a Pod."""
    if not inventory.has_labels(node, mapping(pod_spec, "nodeSelector")):
        return False
    terms = list(objects(pod_spec, "affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms"))
    labels = inventory.labels.get(node, {})
    # a comparison of numbers counts as met
    if terms and not any(all(meets(labels, each) is not False for each in objects(term, "matchExpressions")) for term in terms):
        return False
    return all(taint.is_tolerated(pod_spec.get("tolerations")) for taint in inventory.taints.get(node, ()))
