"""Free capacity: the number of replicas that fit on the free devices available to a Pod of the plan.

Pools whose nodes the node affinity of a plan cannot tell apart count together. Nodes with a taint that the Pod does not tolerate have no
free devices for it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.inventory.pools import Inventory, Pool
from vllm_operator.inventory.taints import GPU_TAINT

DEFAULT_TOLERATIONS: tuple[Mapping[str, Any], ...] = ({"key": GPU_TAINT, "operator": "Exists"},)
"""Tolerations of every Pod of a plan: clouds taint their GPU nodes with this key and different values."""
Alike = tuple[str, tuple[tuple[str, str], ...], str | None, bool]


@dataclass(frozen=True, slots=True)
class Capacity:
    """Free devices of each node, grouped by node affinity and requests of a Pod; empty if unknown."""

    known: bool = False
    known_claims: bool = False
    by_kind: Mapping[Alike, Mapping[str, int]] = field(default_factory=dict)

    def replicas(self, pool: Pool, count: int) -> int | None:
        """Return how many replicas with `count` devices fit on the free devices; None if unknown."""
        if pool.provider is not None:
            return 0
        if not (self.known_claims if pool.claims else self.known):
            return None
        return sum(free // max(count, 1) for free in self.by_kind.get(_kind(pool), {}).values())


UNKNOWN_CAPACITY = Capacity()


def find_capacity(inventory: Inventory, selector: Mapping[str, str], tolerations: Iterable[Any]) -> Capacity:
    """Return the free devices.

    Args:
        inventory: The GPUs of the cluster, and the devices in use.
        selector: Labels that the user requires on the nodes.
        tolerations: The tolerations of `spec.podTemplate`. Any value is valid input.
    """
    used, allocated = inventory.used, inventory.allocated
    if used is None and allocated is None:
        return UNKNOWN_CAPACITY
    tolerated = [*DEFAULT_TOLERATIONS, *tolerations]
    closed = {node for node, taints in inventory.taints.items() if not all(taint.is_tolerated(tolerated) for taint in taints)}
    found: dict[Alike, dict[str, int]] = {}
    for pool in inventory.pools:
        if pool.provider is not None or pool.problems:
            continue
        taken = Counter(node for node, device in pool.devices if device in allocated) if pool.claims and allocated else Counter[str]()
        free = found.setdefault(_kind(pool), {})
        for node in pool.nodes:
            if node not in closed and selector.items() <= inventory.labels.get(node, {}).items():
                in_use = taken[node] if pool.claims else (used or {}).get((node, pool.resource), 0)
                free[node] = max(pool.count - in_use, 0)
    return Capacity(used is not None, allocated is not None, found)


def _kind(pool: Pool) -> Alike:
    claimed = (("product", pool.product or ""), ("architecture", pool.architecture or "")) if pool.claims else ()
    return pool.resource, (*pool.labels, *claimed), pool.mig_profile, pool.shared
