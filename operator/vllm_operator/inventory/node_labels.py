"""Labels of a node about its GPUs.

The sources, in this order: labels of GPU Feature Discovery (GFD), labels and instance types of clouds, the label
`vllm-operator.dev/gpu-architecture`. A missing label means unknown, never no. Only the compute capability identifies an architecture.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from vllm_operator.api.labels import ARCHITECTURE_LABEL
from vllm_operator.api.reading import read_integer
from vllm_operator.catalog.gpus import GPUs, LabelTable, Version, architecture_of, read_version
from vllm_operator.inventory.pools import Pool, Source

PREFIX = "nvidia.com/"
PRODUCT = f"{PREFIX}gpu.product"
MAJOR = f"{PREFIX}gpu.compute.major"
MINOR = f"{PREFIX}gpu.compute.minor"
SLICES = f"{PREFIX}gpu.slices.gi"
CUDA_MAJOR = (f"{PREFIX}cuda.runtime-version.major", f"{PREFIX}cuda.runtime.major")
CUDA_MINOR = (f"{PREFIX}cuda.runtime-version.minor", f"{PREFIX}cuda.runtime.minor")
DRIVER = (f"{PREFIX}cuda.driver-version.full",)
INVALID = "-MIG-INVALID"
SHARED = "-SHARED"
MAX_PODS_PER_GPU = 1024
"""Maximum Pods per GPU. A node cannot have more Pods."""

Warn = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """The GPUs of one node according to its labels: the facts in `pool`, and the unchanged value of gpu.product.

    `count` is the number of GPUs, `replicas` the number of Pods on each; None if unknown.
    """

    pool: Pool
    product_label: str | None = None
    count: int | None = None
    replicas: int | None = None


def read_labels(labels: Mapping[str, str], gpus: GPUs, warn: Warn) -> NodeLabels:
    """Read labels from the first source that has them. An invalid value is passed to `warn` and treated as unknown."""
    discovered = _read_gfd(labels, warn)
    if discovered.pool.architecture is not None:
        return discovered
    for table in gpus.label_tables:
        product = table.product_name(labels)
        if product is not None:
            return _read_cloud(labels, table, product, discovered, gpus, warn)
    architecture = labels.get(ARCHITECTURE_LABEL)
    if architecture is None:
        return discovered
    if not re.fullmatch(r"sm_[0-9]{2,3}", architecture, re.ASCII):
        warn(f"the label {ARCHITECTURE_LABEL} is {architecture!r}, not an architecture such as sm_90")
        return discovered
    identity = ((ARCHITECTURE_LABEL, architecture),)
    return replace(discovered, pool=replace(discovered.pool, source=Source.USER, architecture=architecture, labels=identity))


def split_product(product: str) -> tuple[str, str | None, bool]:
    """Split a value of gpu.product into the product, the MIG profile, and whether Pods share the GPU."""
    shared = product.endswith(SHARED)
    base, _, profile = product.removesuffix(SHARED).partition("-MIG-")
    return base, profile or None, shared


def _read_gfd(labels: Mapping[str, str], warn: Warn) -> NodeLabels:
    product_label = labels.get(PRODUCT) or None
    product, profile, shared = split_product(product_label) if product_label else (None, None, False)
    replicas = _integer(labels, f"{PREFIX}gpu.replicas", warn)
    sharing = labels.get(f"{PREFIX}gpu.sharing-strategy", "none")
    capability = tuple(part for name in (MAJOR, MINOR) if (part := _integer(labels, name, warn)) is not None)
    architecture = valid_architecture(capability)
    if architecture is None and len(capability) > 1:
        warn(f"the compute capability {'.'.join(map(str, capability))} in its labels is impossible")
    # the product identifies the nodes, or the compute capability if the product is unknown
    identity = (PRODUCT,) if product_label else (MAJOR, MINOR)
    major, minor = _first(labels, CUDA_MAJOR, read_integer, warn), _first(labels, CUDA_MINOR, read_integer, warn)
    pool = Pool(
        source=Source.GFD if architecture else Source.UNKNOWN,
        architecture=architecture,
        product=product,
        memory_mebibytes=_integer(labels, f"{PREFIX}gpu.memory", warn) or None,
        mig_profile=None if profile == "INVALID" else profile,
        shared=shared or sharing in ("time-slicing", "mps") or (replicas or 0) > 1,
        time_slices=replicas if replicas is not None and 1 < replicas <= MAX_PODS_PER_GPU and sharing == "time-slicing" else None,
        driver=_first(labels, DRIVER, read_version, warn),
        cuda=None if major is None else (major, minor or 0),
        labels=tuple((name, labels[name]) for name in identity) if architecture else (),
        upgrade_label=next((name for name in CUDA_MAJOR if read_integer(labels.get(name)) is not None), None),
    )
    return NodeLabels(pool, product_label, _integer(labels, f"{PREFIX}gpu.count", warn), replicas)


def valid_architecture(capability: Version) -> str | None:
    """Return the architecture of a compute capability; None if no GPU can have it."""
    return architecture_of(capability[:2]) if len(capability) > 1 and 0 < capability[0] < 100 and 0 <= capability[1] < 10 else None


def _read_cloud(labels: Mapping[str, str], table: LabelTable, name: str, rest: NodeLabels, gpus: GPUs, warn: Warn) -> NodeLabels:
    product = gpus.product(name)
    if product is None:
        return rest
    memory = _integer(labels, table.memory_label or "", warn)
    profile, sharing = labels.get(table.mig_label or "") or None, labels.get(table.sharing_label or "") or None
    identity = [table.key, *([table.mig_label] if table.mig_label and profile else [])]
    pool = replace(
        rest.pool,
        source=Source.CLOUD,
        architecture=product.architecture,
        product=product.name,
        # the table has the memory of the whole GPU, not of a slice
        memory_mebibytes=None if profile else memory or product.memory_mebibytes,
        mig_profile=profile,
        shared=rest.pool.shared or sharing not in (None, "none"),
        host=product.host,
        labels=tuple((name, labels[name]) for name in identity),
    )
    return replace(rest, pool=pool, count=None if profile else _integer(labels, table.count_label or "", warn))


def _integer(labels: Mapping[str, str], name: str, warn: Warn) -> int | None:
    return _first(labels, (name,), read_integer, warn)


def _first(labels: Mapping[str, str], names: tuple[str, ...], read: Callable[[str], T | None], warn: Warn) -> T | None:
    for name in names:
        value = labels.get(name)
        if not value:
            continue
        parsed = read(value)
        if parsed is not None:
            return parsed
        warn(f"the label {name} has the invalid value {value[:63]!r}")
    return None
