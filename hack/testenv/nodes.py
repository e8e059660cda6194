"""Node manifests as real GPU machines show them: the table in `data/nodes.yaml`, spelled out.

GPU feature discovery writes some forty labels on a Node. They follow from a handful of facts (product, memory, compute
capability, driver, CUDA, MIG layout), and only those are in the table.
"""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

_DATA = Path(__file__).parent / "data" / "nodes.yaml"
_DEPLOYED = (
    "container-toolkit",
    "dcgm",
    "dcgm-exporter",
    "device-plugin",
    "driver",
    "gpu-feature-discovery",
    "node-status-exporter",
    "operator-validator",
)


def node_kinds() -> list[str]:
    return list(_table()["kinds"])


def gpu_node(kind: str, name: str | None = None) -> dict[str, Any]:
    """Returns the Node manifest of a machine of this kind, named `gpu-KIND-0` unless told otherwise. Raises KeyError."""
    table = _table()
    machine: dict[str, Any] = table["defaults"] | table["kinds"][kind]
    name = name or f"gpu-{kind}-0"
    labels = _system_labels(machine, name) | (_discovered_labels(machine) if machine["discovery"] else {}) | machine.get("labels", {})
    resources = _resources(machine)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {key: value for key, value in sorted(labels.items()) if value is not None},
        },
        "spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}] if machine["tainted"] else []},
        "status": {
            "capacity": resources,
            "allocatable": dict(resources),
            "nodeInfo": {
                "architecture": machine["architecture"],
                "bootID": "",
                "containerRuntimeVersion": "containerd://2.1.4",
                "kernelVersion": "6.8.0",
                "kubeProxyVersion": "fake",
                "kubeletVersion": "fake",
                "machineID": "",
                "operatingSystem": "linux",
                "osImage": "Ubuntu 24.04",
                "systemUUID": "",
            },
        },
    }


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(_DATA.read_text())
    return table


def _system_labels(machine: dict[str, Any], name: str) -> dict[str, str]:
    return {"kubernetes.io/arch": machine["architecture"], "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"}


def _resources(machine: dict[str, Any]) -> dict[str, str]:
    resources: dict[str, str] = {"cpu": machine["cpu"], "memory": machine["memory"], "pods": "110", "ephemeral-storage": "1Ti"}
    slices = machine.get("slices", {})
    if machine["count"]:
        resources["nvidia.com/gpu"] = "0" if slices else str(machine["count"])
    resources |= {f"nvidia.com/mig-{profile}": str(part["count"]) for profile, part in slices.items()}
    resources |= machine.get("allocatable", {})
    return resources


def _discovered_labels(machine: dict[str, Any]) -> dict[str, str | None]:
    gpu = machine["gpu"]
    compute_major, _, compute_minor = gpu["compute"].partition(".")
    labels: dict[str, str | None] = {
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "nvidia.com/gfd.timestamp": "1787000000",
        "nvidia.com/gpu-driver-upgrade-state": "upgrade-done",
        "nvidia.com/gpu.compute.major": compute_major,
        "nvidia.com/gpu.compute.minor": compute_minor,
        "nvidia.com/gpu.count": str(machine["count"]),
        "nvidia.com/gpu.family": gpu["family"],
        "nvidia.com/gpu.machine": gpu["machine"],
        "nvidia.com/gpu.memory": gpu["memory"],
        "nvidia.com/gpu.mode": machine["mode"],
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": gpu["product"],
        "nvidia.com/gpu.replicas": "0" if "slices" in machine else "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/vgpu.present": "false",
    }
    labels |= {f"nvidia.com/gpu.deploy.{part}": "true" for part in _DEPLOYED}
    return labels | _driver_labels(machine["driver"], machine["cuda"]) | _mig_labels(machine)


def _driver_labels(driver: str, cuda: str) -> dict[str, str | None]:
    major, minor, revision = (*driver.split("."), "")[:3]
    cuda_major, _, cuda_minor = cuda.partition(".")
    return {
        "nvidia.com/cuda.driver-version.full": driver,
        "nvidia.com/cuda.driver-version.major": major,
        "nvidia.com/cuda.driver-version.minor": minor,
        "nvidia.com/cuda.driver-version.revision": revision,
        "nvidia.com/cuda.driver.major": major,
        "nvidia.com/cuda.driver.minor": minor,
        "nvidia.com/cuda.driver.rev": revision,
        "nvidia.com/cuda.runtime-version.full": cuda,
        "nvidia.com/cuda.runtime-version.major": cuda_major,
        "nvidia.com/cuda.runtime-version.minor": cuda_minor,
        "nvidia.com/cuda.runtime.major": cuda_major,
        "nvidia.com/cuda.runtime.minor": cuda_minor,
    }


def _mig_labels(machine: dict[str, Any]) -> dict[str, str | None]:
    # the strategy is written even for cards without MIG
    labels: dict[str, str | None] = {"nvidia.com/mig.strategy": "single", "nvidia.com/mig.capable": "false"}
    if machine["mig"] is None:
        return labels
    labels |= {
        "nvidia.com/gpu.deploy.mig-manager": "true",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.config": machine["mig"],
        "nvidia.com/mig.config.state": "success",
    }
    for profile, part in machine.get("slices", {}).items():
        labels["nvidia.com/mig.strategy"] = "mixed"
        facts = {
            "count": str(part["count"]),
            "product": f"{machine['gpu']['product']}-MIG-{profile}",
            "memory": part["memory"],
            "multiprocessors": part["multiprocessors"],
            "replicas": "1",
            "sharing-strategy": "none",
            "slices.gi": part["parts"],
            "slices.ci": part["parts"],
            "engines.copy": part["parts"],
            "engines.decoder": part["parts"],
            "engines.encoder": "0",
            "engines.jpeg": part["parts"],
            "engines.ofa": "0",
        }
        labels |= {f"nvidia.com/mig-{profile}.{key}": value for key, value in facts.items()}
    return labels
