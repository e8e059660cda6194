"""Nodes and ResourceSlices for tests of what a cluster offers."""

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

from testenv.nodes import gpu_node, node_kinds
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.inventory.pools import Inventory

KINDS = tuple(node_kinds())


MACHINES_OF_THE_EXAMPLES = (
    "h100-sxm",
    "h200",
    "b200",
    "gb200",
    "rtx-pro-6000",
    "h100-mig-single",
    "h100-time-sliced",
    "gb10",
    "thor",
    "l4",
    "t4",
)


def machines_of_the_examples() -> list[dict[str, Any]]:
    """One node of each kind that the examples ask for, and two of the one that a replica needs two of.

    All have a driver for the newest of their images.
    """
    nodes = [*(gpu_node(kind) for kind in MACHINES_OF_THE_EXAMPLES), gpu_node("h100-sxm", "h100-sxm-second")]
    driver = {key: value for key, value in gpu_node("b200")["metadata"]["labels"].items() if key.startswith("nvidia.com/cuda.")}
    for node in nodes:
        if "nvidia.com/gpu.product" in node["metadata"]["labels"]:
            node["metadata"]["labels"] |= driver
    return nodes


@cache
def known_gpus() -> GPUs:
    return load_catalog().gpus


@cache
def _node_of_kind(kind: str) -> dict[str, Any]:
    return gpu_node(kind)


def real_node(
    kind: str,
    name: str | None = None,
    *,
    labels: Mapping[str, str | None] | None = None,
    allocatable: Mapping[str, str] | None = None,
    conditions: list[dict[str, str]] | None = None,
    cordoned: bool = False,
) -> dict[str, Any]:
    """A node as real GPU machines show them, with labels changed, and removed where the value is None."""
    node = copy.deepcopy(_node_of_kind(kind))
    node["metadata"]["name"] = name or f"{kind}-0"
    changed = {**node["metadata"]["labels"], **(labels or {})}
    node["metadata"]["labels"] = {key: value for key, value in changed.items() if value is not None}
    node["status"]["allocatable"].update(allocatable or {})
    if conditions is not None:
        node["status"]["conditions"] = conditions
    if cordoned:
        node["spec"]["unschedulable"] = True
    return node


def bare_node(name: str = "bare", labels: Mapping[str, Any] | None = None, allocatable: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A node with these labels and resources and nothing else."""
    return {"kind": "Node", "metadata": {"name": name, "labels": dict(labels or {})}, "status": {"allocatable": dict(allocatable or {})}}


def device(
    product: str = "NVIDIA H100 80GB HBM3",
    *,
    capability: str = "9.0.0",
    memory: str | None = "81559Mi",
    profile: str | None = None,
    uuid: str | None = None,
    parent: str | None = None,
    cuda: str = "13.0.0",
) -> dict[str, Any]:
    """A device as NVIDIA's DRA driver publishes it."""
    attributes: dict[str, dict[str, Any]] = {
        "type": {"string": "mig" if profile else "gpu"},
        "productName": {"string": product},
        "cudaComputeCapability": {"version": capability},
        "cudaDriverVersion": {"version": cuda},
        "driverVersion": {"version": "580.105.8"},
        "profile": {"string": profile},
        "uuid": {"string": uuid},
        "parentUUID": {"string": parent},
    }
    return {
        "name": "gpu-0",
        "attributes": {name: value for name, value in attributes.items() if None not in value.values()},
        "capacity": {"memory": {"value": memory}} if memory else {},
    }


def resource_slice(node: str, *devices: dict[str, Any], driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    return {"kind": "ResourceSlice", "spec": {"driver": driver, "nodeName": node, "devices": list(devices)}}


def inventory_of(*nodes: dict[str, Any], slices: tuple[dict[str, Any], ...] = (), node_pools: tuple[dict[str, Any], ...] = ()) -> Inventory:
    return read_inventory(nodes, slices, known_gpus(), node_pools=node_pools)


def node_pool(
    name: str = "gpu", *, labels: Mapping[str, str] | None = None, limits: Mapping[str, str] | None = None, **allowed: Any
) -> Any:
    """A NodePool of Karpenter on EKS; `gpu_name=["l40s"]` becomes a requirement for `karpenter.k8s.aws/instance-gpu-name`."""
    keys = {"arch": "kubernetes.io/arch"}
    requirements = [
        {"key": keys.get(key, f"karpenter.k8s.aws/instance-{key.replace('_', '-')}"), "operator": "In", "values": values}
        for key, values in allowed.items()
    ]
    template = {"metadata": {"labels": dict(labels or {})}, "spec": {"requirements": requirements}}
    spec = {"template": template, "limits": dict(limits or {})}
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}
