"""Devices in use: the requests of the Pods on each node. New plans and `kubectl vllm gpus` need it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.api.reading import mapping, objects, read_count, text
from vllm_operator.inventory.resource_slices import DRIVER, device_identity
from vllm_operator.pods.owner import instance_of

PREFIX = "nvidia.com/"
ENDED = ("Succeeded", "Failed")

Usage = Mapping[tuple[str, str], int]
"""Devices in use by node and extended resource."""
Owner = tuple[str, str]
"""Namespace and name of a VLLMDeployment."""


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """The devices that Pods of the cluster use: of all Pods, and of the Pods of each VLLMDeployment. No other data of Pods is kept.

    `claimed` are the identities of the devices that ResourceClaims hold, by the uid of the Pod that owns the claim; None if they were not
    read.
    """

    all: Usage = field(default_factory=dict)
    own: Mapping[Owner, Usage] = field(default_factory=dict)
    claimed: Mapping[str, frozenset[str]] | None = None

    def without(self, owner: Owner) -> Usage:
        """Return the usage of all other Pods. A new plan replaces the Pods of its VLLMDeployment, so they do not count."""
        own = self.own.get(owner)
        return self.all if own is None else {place: amount - own.get(place, 0) for place, amount in self.all.items()}

    def claimed_by_others(self, pods: Collection[str] = ()) -> frozenset[str] | None:
        """Return the devices of ResourceClaims of all Pods except these (by uid); None if claims were not read."""
        if self.claimed is None:
            return None
        return frozenset(device for pod, devices in self.claimed.items() if pod not in pods for device in devices)


def read_claims(claims: Iterable[Mapping[str, Any]]) -> Mapping[str, frozenset[str]]:
    """Return the devices of NVIDIA's driver that ResourceClaims hold, by the uid of the Pod that owns the claim.

    Any value is valid input.
    """
    found: dict[str, frozenset[str]] = {}
    for claim in claims:
        results = (each for each in objects(claim, "status", "allocation", "devices", "results") if each.get("driver") == DRIVER)
        named = {device_identity(text(each, "pool"), text(each, "device")) for each in results}
        devices = frozenset(identity for identity in named if identity is not None)
        pod = next((text(owner, "uid") for owner in objects(claim, "metadata", "ownerReferences") if owner.get("kind") == "Pod"), "")
        if devices:
            found[pod] = found.get(pod, frozenset()) | devices
    return found


def read_held(pods: Iterable[Mapping[str, Any]], claims: Iterable[Mapping[str, Any]] | None = None) -> HeldDevices:
    """Add up the requests of Pods on nodes. Pods that have ended hold no device. Any value is valid input.

    `claims` are the ResourceClaims of the cluster; None if they were not read.
    """
    used: dict[tuple[str, str], int] = {}
    own: dict[Owner, dict[tuple[str, str], int]] = {}
    for pod in pods:
        node = text(pod, "spec", "nodeName")
        devices = requested_devices(pod) if node and not has_ended(pod) else {}
        owner = deployment_of(pod) if devices else None
        for name, amount in devices.items():
            used[node, name] = used.get((node, name), 0) + amount
            if owner is not None:
                of_owner = own.setdefault(owner, {})
                of_owner[node, name] = of_owner.get((node, name), 0) + amount
    return HeldDevices(used, own, None if claims is None else read_claims(claims))


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Return whether a Pod has ended, and so uses no device."""
    return text(pod, "status", "phase") in ENDED


def requested_devices(pod: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the devices of a Pod by extended resource: the sum of all containers, or an init container if it needs more."""
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
    """Return namespace and name of the VLLMDeployment that a Pod belongs to; None if there is none."""
    name = instance_of(pod)
    return (text(pod, "metadata", "namespace"), name) if name is not None else None
