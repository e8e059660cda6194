"""Nodes of a cluster with NVIDIA's DRA driver alone: no device plugin, no feature discovery, the GPUs only in ResourceSlices."""

import copy
import hashlib
from typing import Any

import yaml

from vllm_operator.inventory.node_labels import split_product

Manifest = dict[str, Any]
DRIVER = "gpu.nvidia.com"
KEPT_LABELS = ("kubernetes.io/", "type")
DEVICE_CLASSES: tuple[Manifest, ...] = tuple(
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": f"{kind}.nvidia.com"},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"}}]},
    }
    for kind in ("gpu", "mig")
)
"""The device classes of the driver's chart (deployments/helm/dra-driver-nvidia-gpu/templates of kubernetes-sigs/dra-driver-nvidia-gpu)."""


def uuid_of(name: str) -> str:
    """An invented UUID, the same for the same name."""
    digits = hashlib.sha256(name.encode()).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


def in_dra_mode(node: Manifest) -> tuple[Manifest, Manifest]:
    """The node without its plugin and what was discovered, and the ResourceSlice that the driver publishes for the same GPUs."""
    labels, name = node["metadata"]["labels"], node["metadata"]["name"]
    bare = copy.deepcopy(node)
    bare["metadata"]["labels"] = {key: value for key, value in labels.items() if key.startswith(KEPT_LABELS)}
    for amounts in (bare["status"]["capacity"], bare["status"]["allocatable"]):
        for resource in [each for each in amounts if each.startswith("nvidia.com/")]:
            del amounts[resource]
    product, profile, _ = split_product(labels["nvidia.com/gpu.product"])
    count = int(labels["nvidia.com/gpu.count"])
    parts = {profile: (count, labels.get("nvidia.com/gpu.memory"))}
    if labels.get("nvidia.com/mig.strategy") == "mixed":
        profiles = {key.removeprefix("nvidia.com/mig-").removesuffix(".count") for key in labels if key.startswith("nvidia.com/mig-")}
        named = sorted(each for each in profiles if f"nvidia.com/mig-{each}.count" in labels)
        parts = {each: (int(labels[f"nvidia.com/mig-{each}.count"]), labels[f"nvidia.com/mig-{each}.memory"]) for each in named}
    devices = [
        _device(name, number, product, each, memory, labels) for each, (number_of, memory) in parts.items() for number in range(number_of)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    slices = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    metadata = {"name": f"{name}-{DRIVER}"}
    return bare, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": slices}


def with_uuids(manifest: Manifest, slices: tuple[Manifest, ...]) -> Manifest:
    """The manifest with UUIDs of devices that there are, if it names some."""
    text = yaml.safe_dump(manifest)
    for kind, node in (("GPU", "gpu-h200-0"), ("MIG", "gpu-h100-mig-single-0")):
        named = [word for word in text.split() if word.startswith(f"{kind}-")]
        own = next(each["spec"]["devices"] for each in slices if each["spec"]["nodeName"] == node)
        for uuid, device in zip(named, reversed(own), strict=False):  # the scheduler gives the first ones to others
            text = text.replace(uuid, device["attributes"]["uuid"]["string"])
    changed: Manifest = yaml.safe_load(text)
    return changed


def _device(node: str, number: int, product: str, profile: str | None, memory: str | None, labels: dict[str, str]) -> Manifest:
    """A device as `GetDevice` in cmd/gpu-kubelet-plugin/deviceinfo.go describes it."""
    name = f"gpu-{number}-mig-{profile.replace('.', '')}-0-0" if profile else f"gpu-{number}"
    attributes = {
        "type": {"string": "mig" if profile else "gpu"},
        "uuid": {"string": f"{'MIG' if profile else 'GPU'}-{uuid_of(node + name)}"},
        "productName": {"string": product.replace("-", " ")},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": labels["nvidia.com/gpu.family"].title()},
        "cudaComputeCapability": {"version": f"{labels['nvidia.com/gpu.compute.major']}.{labels['nvidia.com/gpu.compute.minor']}.0"},
        "cudaDriverVersion": {"version": f"{labels['nvidia.com/cuda.runtime-version.full']}.0"},
        "driverVersion": {"version": ".".join(str(int(part)) for part in labels["nvidia.com/cuda.driver-version.full"].split("."))},
        **({"profile": {"string": profile}, "parentUUID": {"string": f"GPU-{uuid_of(node + str(number // 7))}"}} if profile else {}),
    }
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": f"{memory}Mi"}} if memory else {}}
