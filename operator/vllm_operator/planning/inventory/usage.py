"""Devices in use: what the Pods on each node request. New plans and `kubectl vllm gpus` need it."""

from collections.abc import Iterable, Mapping
from typing import Any

from vllm_operator.api.labels import INSTANCE_LABEL, MANAGED_BY, MANAGED_BY_LABEL
from vllm_operator.pods.reading import mapping, objects, read_count, text

PREFIX = "nvidia.com/"
ENDED = ("Succeeded", "Failed")

Usage = Mapping[tuple[str, str], int]
"""Devices in use by node and extended resource."""


def read_usage(pods: Iterable[Mapping[str, Any]], *, except_for: tuple[str, str] | None = None) -> Usage:
    """Add up what Pods on nodes request. Pods that have ended hold no device.

    Args:
        pods: All Pods. Any value is valid input.
        except_for: Namespace and name of a VLLMDeployment whose Pods do not count: a new plan replaces them.
    """
    used: dict[tuple[str, str], int] = {}
    for pod in pods:
        node = text(pod, "spec", "nodeName")
        if not node or has_ended(pod) or (except_for is not None and deployment_of(pod) == except_for):
            continue
        for name, amount in requested_devices(pod).items():
            used[node, name] = used.get((node, name), 0) + amount
    return used


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Whether a Pod has ended, and so holds no device."""
    return text(pod, "status", "phase") in ENDED


def requested_devices(pod: Mapping[str, Any]) -> Mapping[str, int]:
    """Devices of a Pod by extended resource: those of all containers, or of one init container if that needs more."""
    found: dict[str, int] = {}
    for container in objects(pod, "spec", "containers"):
        for name, amount in _devices(container).items():
            found[name] = found.get(name, 0) + amount
    for container in objects(pod, "spec", "initContainers"):
        for name, amount in _devices(container).items():
            found[name] = max(found.get(name, 0), amount)
    return found


def _devices(container: Mapping[str, Any]) -> Mapping[str, int]:
    asked = {**mapping(container, "resources", "limits"), **mapping(container, "resources", "requests")}
    return {name: amount for name, value in asked.items() if str(name).startswith(PREFIX) and (amount := read_count(value))}


def deployment_of(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """Namespace and name of the VLLMDeployment that a Pod belongs to by its labels; None if it is of somebody else."""
    labels = mapping(pod, "metadata", "labels")
    if labels.get(MANAGED_BY_LABEL) != MANAGED_BY:
        return None
    return text(pod, "metadata", "namespace"), str(labels.get(INSTANCE_LABEL))
