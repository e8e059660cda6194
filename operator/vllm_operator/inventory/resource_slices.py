"""Devices in ResourceSlices, which the NVIDIA DRA driver publishes for each node."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.reading import mapping, read_mebibytes, read_text, sequence, text
from vllm_operator.catalog.gpus import Version, architecture_of, read_version

DRIVER = "gpu.nvidia.com"
TEXT_LENGTH = 64
"""Maximum length of an attribute in Kubernetes."""
UNKNOWN_PROFILE = "unknown"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or MIG slice. `product` is spelled as in the label gpu.product. `identity` is its name in a ResourceClaim: POOL/NAME."""

    architecture: str | None
    product: str | None
    memory_mebibytes: int | None
    mig_profile: str | None
    driver: Version | None
    cuda: Version | None
    uuid: str | None
    parent_uuid: str | None
    identity: str | None = None


def read_slices(slices: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Device, ...]]:
    """Return the devices by node name.

    ResourceSlices of other drivers or without a single node are ignored. A whole GPU that is listed together with its MIG devices is
    ignored, because it cannot be allocated.
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
    cuda = read_version(_attribute(attributes, "cudaDriverVersion", "version"))
    product = read_text(_attribute(attributes, "productName", "string"))
    return Device(
        architecture=_architecture(read_version(_attribute(attributes, "cudaComputeCapability", "version"))),
        product="-".join(product.split())[:TEXT_LENGTH] if product else None,
        memory_mebibytes=read_mebibytes(mapping(body, "capacity", "memory").get("value")),
        mig_profile=(read_text(_attribute(attributes, "profile", "string")) or UNKNOWN_PROFILE)[:TEXT_LENGTH] if kind == "mig" else None,
        driver=read_version(_attribute(attributes, "driverVersion", "version")),
        cuda=cuda[:2] if cuda else None,
        uuid=read_text(_attribute(attributes, "uuid", "string")),
        parent_uuid=read_text(_attribute(attributes, "parentUUID", "string")),
        identity=device_identity(pool, text(raw, "name")),
    )


def _attribute(attributes: Mapping[str, Any], name: str, kind: str) -> Any:
    value = attributes.get(name, attributes.get(f"{DRIVER}/{name}"))
    return mapping(value).get(kind)


def _architecture(capability: Version | None) -> str | None:
    if capability is None or len(capability) < 2 or not 0 < capability[0] < 100 or capability[1] > 9:
        return None
    return architecture_of(capability[:2])


def _without_partitioned(devices: list[Device]) -> tuple[Device, ...]:
    partitioned = {device.parent_uuid for device in devices if device.mig_profile and device.uuid and device.parent_uuid}
    return tuple(device for device in devices if device.mig_profile or device.uuid not in partitioned)
