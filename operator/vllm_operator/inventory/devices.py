"""Devices of nodes: those that ResourceSlices list, and those that Pods and ResourceClaims hold."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.api.reading import mapping, objects, read_count, read_mebibytes, read_text, sequence, text
from vllm_operator.catalog.gpus import read_version
from vllm_operator.inventory.node_labels import PREFIX, valid_architecture
from vllm_operator.inventory.pools import GPU_DEVICE_CLASS, MIG_DEVICE_CLASS, Pool, Source, Usage
from vllm_operator.pods.view import instance_of, is_over

DRIVER = "gpu.nvidia.com"
TEXT_LENGTH = 64
"""Maximum length of an attribute in Kubernetes."""
UNKNOWN_PROFILE = "unknown"

Owner = tuple[str, str]
"""Namespace and name of a VLLMDeployment."""
Use = tuple[Owner | None, Usage]
"""The VLLMDeployment that a Pod belongs to, if it belongs to one, and the devices that the Pod uses."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or MIG slice, with its facts in `pool`. `identity` is its name in a ResourceClaim: POOL/NAME."""

    pool: Pool
    uuid: str | None
    parent_uuid: str | None
    identity: str | None = None


def read_slices(slices: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Device, ...]]:
    """Return the devices by node name, without ResourceSlices of other drivers or without a single node.

    A whole GPU that is listed together with its MIG devices is left out, because it cannot be allocated.
    """
    found: dict[str, list[Device]] = {}
    for entry in slices:
        spec = mapping(entry, "spec")
        node = read_text(spec.get("nodeName"))
        if spec.get("driver") != DRIVER or node is None:
            continue
        pool = text(spec, "pool", "name")
        found.setdefault(node, []).extend(device for raw in sequence(spec.get("devices")) if (device := _device(mapping(raw), pool)))
    return {node: _without_partitioned(devices) for node, devices in found.items()}


def device_identity(pool: str, name: str) -> str | None:
    """Return the unique identity of a device of a driver; None if a part is missing."""
    return f"{pool}/{name}" if pool and name else None


def _device(raw: Mapping[str, Any], pool: str) -> Device | None:
    body = mapping(raw.get("basic")) or raw  # resource.k8s.io/v1beta1 nests the device
    attributes = mapping(body.get("attributes"))
    kind = _attribute(attributes, "type", "string")
    if kind not in ("gpu", "mig"):
        return None
    architecture = valid_architecture(read_version(_attribute(attributes, "cudaComputeCapability", "version")) or ())
    cuda = read_version(_attribute(attributes, "cudaDriverVersion", "version"))
    product = read_text(_attribute(attributes, "productName", "string"))
    facts = Pool(
        architecture=architecture,
        product="-".join(product.split())[:TEXT_LENGTH] if product else None,  # as in the label gpu.product
        memory_mebibytes=read_mebibytes(mapping(body, "capacity", "memory").get("value")),
        resource=MIG_DEVICE_CLASS if kind == "mig" else GPU_DEVICE_CLASS,
        claims=True,
        mig_profile=(read_text(_attribute(attributes, "profile", "string")) or UNKNOWN_PROFILE)[:TEXT_LENGTH] if kind == "mig" else None,
        driver=read_version(_attribute(attributes, "driverVersion", "version")),
        cuda=cuda[:2] if cuda else None,
        source=Source.RESOURCE_SLICE if architecture else Source.UNKNOWN,
    )
    uuid, parent = (read_text(_attribute(attributes, name, "string")) for name in ("uuid", "parentUUID"))
    return Device(facts, uuid, parent, device_identity(pool, text(raw, "name")))


def _attribute(attributes: Mapping[str, Any], name: str, kind: str) -> Any:
    return mapping(attributes.get(name, attributes.get(f"{DRIVER}/{name}"))).get(kind)


def _without_partitioned(devices: list[Device]) -> tuple[Device, ...]:
    partitioned = {device.parent_uuid for device in devices if device.pool.mig_profile and device.uuid and device.parent_uuid}
    return tuple(device for device in devices if device.pool.mig_profile or device.uuid not in partitioned)


@dataclass(frozen=True, slots=True)
class UsedDevices:
    """The devices that Pods of the cluster use: of all Pods, and of the Pods of each VLLMDeployment.

    `claimed` are the devices that ResourceClaims hold (see `read_claims`); None if they were not read.
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
    """Return the devices of NVIDIA's driver that ResourceClaims hold, by the uid of the Pod that owns the claim. Any value is valid."""
    found: dict[str, frozenset[str]] = {}
    for claim in claims:
        results = (each for each in objects(claim, "status", "allocation", "devices", "results") if each.get("driver") == DRIVER)
        named = (device_identity(text(each, "pool"), text(each, "device")) for each in results)
        devices = frozenset(identity for identity in named if identity is not None)
        pod = next((text(owner, "uid") for owner in objects(claim, "metadata", "ownerReferences") if owner.get("kind") == "Pod"), "")
        if devices:
            found[pod] = found.get(pod, frozenset()) | devices
    return found


def read_used(pods: Iterable[Mapping[str, Any]], claims: Iterable[Mapping[str, Any]] | None = None) -> UsedDevices:
    """Add up the requests of Pods on nodes. Any value is valid input. `claims` is None if they were not read."""
    return add_up(filter(None, map(use_of, pods)), claims)


def use_of(pod: Mapping[str, Any]) -> Use | None:
    """Return the devices that a Pod uses; None if it has no node or requests none. Any value is valid input."""
    node = text(pod, "spec", "nodeName")
    devices = {(node, name): amount for name, amount in requested_devices(pod).items()} if node and not is_over(pod) else {}
    return (deployment_of(pod), devices) if devices else None


def add_up(uses: Iterable[Use], claims: Iterable[Mapping[str, Any]] | None) -> UsedDevices:
    """Add up what Pods use. `claims` is None if they were not read."""
    used: Counter[tuple[str, str]] = Counter()
    own: dict[Owner, Counter[tuple[str, str]]] = {}
    for owner, devices in uses:
        used.update(devices)
        if owner is not None:
            own.setdefault(owner, Counter()).update(devices)
    return UsedDevices(used, own, None if claims is None else read_claims(claims))


def requested_devices(pod: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the devices of a Pod by extended resource: the sum of all containers, or an init container if it needs more."""
    found = sum(map(_devices, objects(pod, "spec", "containers")), Counter[str]())
    for container in objects(pod, "spec", "initContainers"):
        found |= _devices(container)  # the larger of each amount
    return found


def _devices(container: Mapping[str, Any]) -> Counter[str]:
    asked = {**mapping(container, "resources", "limits"), **mapping(container, "resources", "requests")}
    return Counter({name: amount for name, value in asked.items() if str(name).startswith(PREFIX) and (amount := read_count(value))})


def deployment_of(pod: Mapping[str, Any]) -> Owner | None:
    """Return namespace and name of the VLLMDeployment that a Pod belongs to; None if there is none."""
    name = instance_of(pod)
    return (text(pod, "metadata", "namespace"), name) if name is not None else None
