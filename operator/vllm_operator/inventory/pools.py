"""Pools: nodes with the same GPUs, driver, taints and requirements; and the room in them for the Pods of a plan.

A pool is one kind of device on one kind of node. A node with MIG slices of two profiles belongs to two pools. A node whose devices are
available both from the device plugin and for ResourceClaims also belongs to two pools.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum
from operator import attrgetter
from typing import Any

from vllm_operator.api.plan import Plan
from vllm_operator.api.reading import mapping, objects, read_text, sequence, text
from vllm_operator.catalog.gpus import Version
from vllm_operator.pods.view import meets

GPU_TAINT = "nvidia.com/gpu"
"""Key of the taint of GPU nodes. Pods of a plan tolerate it."""
_KEEPS_OFF = ("NoSchedule", "NoExecute")
_MOST_TAINTS = 16
_OF_KUBERNETES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A taint that keeps Pods off a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """`key=value:effect`, as in `kubectl describe node`."""
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"

    @property
    def is_passing(self) -> bool:
        """Whether Kubernetes sets the taint for a state of the node, and removes it again."""
        return self.key.startswith(_OF_KUBERNETES)

    @property
    def toleration(self) -> str:
        """The matching toleration, as YAML in one line."""
        match = f"operator: Equal, value: {self.value}" if self.value else "operator: Exists"
        return f"{{key: {self.key}, {match}, effect: {self.effect}}}"

    def is_tolerated(self, tolerations: Any) -> bool:
        """Return whether one of the tolerations of a Pod matches. Any value is valid input."""
        return any(self._matches(mapping(each)) for each in sequence(tolerations))

    def _matches(self, toleration: Mapping[str, Any]) -> bool:
        key, operator = toleration.get("key"), toleration.get("operator") or "Equal"
        if (toleration.get("effect") or self.effect) != self.effect:
            return False
        if not key:
            return bool(operator == "Exists")
        return bool(key == self.key and (operator != "Equal" or (toleration.get("value") or "") == self.value))


def read_taints(spec: Any) -> tuple[Taint, ...]:
    """Return the taints of a node that keep Pods off, sorted. Any value is valid input."""
    found = (
        Taint(key[:253], (read_text(entry.get("value")) or "")[:63], effect)
        for entry in map(mapping, sequence(mapping(spec).get("taints")))
        if (key := read_text(entry.get("key"))) is not None and (effect := read_text(entry.get("effect"))) in _KEEPS_OFF
    )
    return tuple(sorted(found)[:_MOST_TAINTS])


GPU_RESOURCE = "nvidia.com/gpu"
SHARED_GPU_RESOURCE = "nvidia.com/gpu.shared"
MIG_RESOURCE_PREFIX = "nvidia.com/mig-"
GPU_DEVICE_CLASS = "gpu.nvidia.com"
MIG_DEVICE_CLASS = "mig.nvidia.com"
DEVICE_CLASSES = (GPU_DEVICE_CLASS, MIG_DEVICE_CLASS)
Usage = Mapping[tuple[str, str], int]
"""Devices in use by node and extended resource."""


class Source(IntEnum):
    """Source of the facts about a GPU, the most trusted first."""

    RESOURCE_SLICE = 0
    GFD = 1
    CLOUD = 2
    USER = 3
    UNKNOWN = 4


@dataclass(frozen=True, slots=True)
class Pool:
    """One kind of device on a set of equal nodes. None: unknown.

    `architecture` is such as `sm_90`; `product` is as in nvidia.com/gpu.product, without the suffixes for MIG slices and sharing.
    `memory_mebibytes` is that of one GPU or MIG slice (always unknown on GB10), `count` the number of devices on each node. `resource` is
    an extended resource, or a device class if the devices are requested with a ResourceClaim (`claims`). `has_plugin`: a device plugin also
    offers the GPUs of these nodes, and knows nothing of ResourceClaims. `mig_profile`, such as `1g.10gb`, is None for whole GPUs. `shared`:
    several Pods share a device by time-slicing or MPS; `time_slices` is their number with time-slicing.
    `host` is as in kubernetes.io/arch, `cuda` the highest version that the driver supports, and `upgrade_label` the label with its major.
    `labels` are common to all nodes, and identify the GPU. `problems`: why the nodes are unavailable. `devices` are node and identity (see
    `Device`) of each device for ResourceClaims. `provider` is the source of nodes that do not exist yet, for example `NodePool gpu`.
    """

    architecture: str | None = None
    product: str | None = None
    memory_mebibytes: int | None = None
    count: int = 0
    resource: str = GPU_RESOURCE
    claims: bool = False
    has_plugin: bool = False
    mig_profile: str | None = None
    shared: bool = False
    host: str | None = None
    driver: Version | None = None
    cuda: Version | None = None
    source: Source = Source.UNKNOWN
    labels: tuple[tuple[str, str], ...] = ()
    upgrade_label: str | None = None
    problems: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    provider: str | None = None
    time_slices: int | None = None
    devices: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of a cluster.

    `notes` name invalid labels. `labels` and `taints` are by name of the nodes with GPUs. `used` are the devices in use, and in counts for
    a plan or a rollout also those promised to others; None if they were not read. `own` are those of the Pods of the VLLMDeployment to
    plan. `hidden`: they cannot be read. `allocated` are the identities of the devices that ResourceClaims hold; None if they were not read.
    `read_at` is when all were read. `boots` identify the last starts of the nodes, by name.
    """

    pools: tuple[Pool, ...] = ()
    notes: tuple[str, ...] = ()
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    taints: Mapping[str, tuple[Taint, ...]] = field(default_factory=dict)
    used: Usage | None = None
    own: Usage = field(default_factory=dict)
    hidden: bool = False
    allocated: frozenset[str] | None = None
    read_at: datetime | None = None
    boots: Mapping[str, str] = field(default_factory=dict)

    def with_templates(self, templates: Iterable[tuple[Pool, Mapping[str, str]]]) -> "Inventory":
        """Return the inventory with additional pools of nodes that do not exist, each with the labels that its nodes would have."""
        added = tuple(templates)
        labels = {pool.nodes[0]: labels for pool, labels in added}
        return replace(self, pools=(*self.pools, *(pool for pool, _ in added)), labels={**self.labels, **labels})

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes with GPUs, sorted."""
        return tuple(sorted({node for pool in self.pools if pool.provider is None for node in pool.nodes}))

    def with_own_in_use(self) -> "Inventory":
        """Return the inventory in which the devices of the VLLMDeployment's own Pods are in use, too."""
        places = {*(self.used or ()), *self.own}
        used = {place: (self.used or {}).get(place, 0) + self.own.get(place, 0) for place in places}
        return self if self.used is None else replace(self, used=used)

    def has_labels(self, node: str, selector: Mapping[str, str]) -> bool:
        """Return whether a node has all these labels."""
        return not selector or selector.items() <= self.labels.get(node, {}).items()

    def taints_of(self, resource: str | None, architecture: str | None) -> Mapping[str, tuple[Taint, ...]]:
        """Return the taints of the nodes with this GPU, by node name. None as the architecture matches all."""
        pools = (pool for pool in self.pools if pool.resource == resource and architecture in (None, pool.architecture))
        names = {name for pool in pools for name in pool.nodes}
        return {name: taints for name, taints in self.taints.items() if name in names}

    def nodes_of(self, resource: str, architecture: str | None, product: str | None) -> tuple[str, ...]:
        """Return the names of the existing nodes with this GPU that can run Pods, sorted. None matches all."""
        found = (pool for pool in self.pools if pool.resource == resource and pool.provider is None and not pool.problems)
        alike = (pool for pool in found if architecture in (None, pool.architecture) and product in (None, pool.product))
        return tuple(sorted({name for pool in alike for name in pool.nodes}))

    def most_per_node(self, like: Pool) -> int | None:
        """Return the largest number of these devices on a node; None if unknown."""
        kind = attrgetter("architecture", "product", "mig_profile", "resource")
        return max((pool.count for pool in self.pools if kind(pool) == kind(like)), default=0) or None


@dataclass(frozen=True, slots=True)
class Room:
    """Devices for the Pods of a plan, by node. `free` leaves out the devices of other owners' Pods; None if unknown.

    Labels, taints and problems of the nodes count. Other obstacles are known to the scheduler alone.
    """

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
