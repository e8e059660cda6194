"""The GPUs of a cluster, as pools: nodes that cannot be told apart as far as the choice of a GPU goes.

A pool is one kind of device on one kind of node. A node with slices of two MIG profiles belongs to two pools, a
node whose devices are offered both by the device plugin and through resource claims to two as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from vllm_operator.catalog.gpus import Version
from vllm_operator.planning.inventory.taints import Taint

GPU_RESOURCE = "nvidia.com/gpu"
SHARED_GPU_RESOURCE = "nvidia.com/gpu.shared"
MIG_RESOURCE_PREFIX = "nvidia.com/mig-"
GPU_DEVICE_CLASS = "gpu.nvidia.com"
MIG_DEVICE_CLASS = "mig.nvidia.com"


class Source(IntEnum):
    """Who said what a GPU is, the most trusted first."""

    RESOURCE_SLICE = 0
    GFD = 1
    CLOUD = 2
    USER = 3
    UNKNOWN = 4


@dataclass(frozen=True, slots=True)
class Pool:
    """One kind of device on a set of equal nodes.

    Attributes:
        architecture: `sm_90`; None if nothing tells.
        product: As in nvidia.com/gpu.product, without the suffixes for slices and sharing; None if nothing tells.
        memory_mebibytes: Of one device, which may be a slice; None if nothing tells (GB10 never does).
        count: Devices on each node.
        resource: Extended resource, or device class where `claims` is set.
        claims: Devices are asked for with a ResourceClaim (dynamic resource allocation), not as a resource.
        mig_profile: `1g.10gb` if the devices are slices.
        mig_strategy: `single` or `mixed` as the nodes say.
        shared: A device is given to several Pods at once (time-slicing or MPS).
        host: CPU architecture of the nodes as in kubernetes.io/arch.
        driver: Version of the GPU driver.
        cuda: Highest CUDA version that the driver runs by itself.
        source: Who said what the GPU is.
        labels: Labels that all nodes of the pool have and that tell what the GPU is.
        upgrade_label: Label with the CUDA major of the driver, where the nodes have it.
        problems: Why the nodes cannot be used now; empty if they can.
        uuids: Of the devices, where ResourceSlices list them.
        nodes: Names, sorted.
    """

    architecture: str | None
    product: str | None
    memory_mebibytes: int | None
    count: int
    resource: str
    claims: bool
    mig_profile: str | None
    mig_strategy: str | None
    shared: bool
    host: str | None
    driver: Version | None
    cuda: Version | None
    source: Source
    labels: tuple[tuple[str, str], ...]
    upgrade_label: str | None
    problems: tuple[str, ...]
    uuids: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of a cluster.

    `node_count` counts all nodes, those without GPUs too. `notes` say which labels could not be read. `labels` and `taints`
    are those of the nodes with GPUs, by the name of the node.
    """

    pools: tuple[Pool, ...] = ()
    node_count: int = 0
    notes: tuple[str, ...] = ()
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    taints: Mapping[str, tuple[Taint, ...]] = field(default_factory=dict)

    def taints_of(self, resource: str | None, architecture: str | None) -> Mapping[str, tuple[Taint, ...]]:
        """The taints of the nodes that have such a GPU, by the name of the node; an unknown architecture is any."""
        pools = (pool for pool in self.pools if pool.resource == resource and architecture in (None, pool.architecture))
        names = {name for pool in pools for name in pool.nodes}
        return {name: taints for name, taints in self.taints.items() if name in names}
