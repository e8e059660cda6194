"""NVIDIA GPUs: architectures, products, and the node labels of clouds. The images that the vLLM project publishes for them.

An architecture is a compute capability: `sm_90` is (9, 0). Versions and capabilities are compared as tuples of integers, because as text
"10.0" is less than "9.0".
"""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, PlainValidator, StrictBool, StrictInt

from vllm_operator.api.plan import gpu_name
from vllm_operator.catalog.entry import Entry, Expression, Sourced, Specifiers, keyed_by, loader, read_text

NAME_LIMIT = 512
"""Maximum characters of the name of an image for a pattern."""
Version = tuple[int, ...]
"""A version or compute capability as a tuple of integers."""


def read_version(value: object) -> Version | None:
    """Return a version made of numbers as a tuple, else None."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", value, re.ASCII):
        return None
    return tuple(int(part) for part in value.split("."))


def _read_numeric(value: object) -> Version:
    version = read_version(read_text(value, "12.9"))
    if version is None:
        raise ValueError(f"{value!r} is not a version")
    return version


NumericVersion = Annotated[
    Version, PlainValidator(_read_numeric), PlainSerializer(lambda version: ".".join(map(str, version)), when_used="json-unless-none")
]
"""A numeric version in an entry, written as text."""


class Architecture(Entry):
    """A GPU architecture and its features.

    `cuda` is the first CUDA toolkit that supports it, and `cuda_before` the first one that no longer does.
    """

    name: str
    family: str
    fp8: StrictBool
    fp4: StrictBool
    mig: StrictBool
    unified_memory: StrictBool = False
    cuda: NumericVersion
    cuda_before: NumericVersion | None = None


class Product(Entry):
    """A GPU product. `name` is the value of the label nvidia.com/gpu.product, and `title` the display name.

    `memory_mebibytes` is None if the driver does not report it. `host` is the CPU architecture of machines with this GPU; None if there are
    several. `mig` overrides the value of the architecture. `links`: whether links join the GPUs of a machine; None if unknown.
    `per_node`: GPUs of a machine.
    """

    name: str
    title: str
    architecture: str
    memory_mebibytes: StrictInt | None = Field(None, alias="memory")
    data_center: StrictBool = False
    host: str | None = None
    mig: StrictBool | None = None
    links: Literal["NVLink", "PCIe"] | None = None
    per_node: StrictInt = 8


class LabelTable(Sourced):
    """A node label of a cloud, and the product for each of its values, which are patterns in lower case. The first match counts."""

    key: str
    name: str
    values: Mapping[str, str]
    requires: str | None = None
    count_label: str | None = None
    memory_label: str | None = None
    mig_label: str | None = None
    sharing_label: str | None = None

    def product_name(self, labels: Mapping[str, str]) -> str | None:
        """Return the product according to these node labels; None if the table does not apply."""
        value = labels.get(self.key)
        if not isinstance(value, str) or (self.requires is not None and self.requires not in labels):
            return None
        return next((product for known, product in self.values.items() if fnmatch.fnmatchcase(value.lower(), known)), None)


class Presence(Sourced):
    """Labels whose value "true" shows that a node has any NVIDIA GPU, and prefixes of labels and resources of nodes that may have a GPU."""

    labels: tuple[str, ...]
    label_prefixes: tuple[str, ...]
    resource_prefixes: tuple[str, ...]


class GPUs(Entry):
    """Facts about GPUs: the content of `gpus.yaml`.

    Architectures are in the order of preference, for specs that name none. `cards` are names of GPUs in logs and user input. For a cluster
    only products count.
    """

    architectures: Annotated[Mapping[str, Architecture], keyed_by("name")]
    sources: Mapping[str, str]
    products_by_name: Annotated[Mapping[str, Product], keyed_by("name")] = Field(alias="products")
    cards: tuple[Product, ...]
    label_tables: tuple[LabelTable, ...] = Field(alias="labels")
    presence: Presence

    @cached_property
    def products(self) -> Mapping[str, Product]:
        """Products by `product_key`."""
        return {product_key(name): product for name, product in self.products_by_name.items()}

    def product(self, name: str | None) -> Product | None:
        """Return the entry of a product by its label value, in any spelling; None if unknown."""
        return self.products.get(product_key(name)) if name is not None else None

    def supports_mig(self, product: str | None, architecture: str | None) -> bool | None:
        """Return whether a GPU can be partitioned with MIG; None if unknown."""
        known, family = self.product(product), self.architectures.get(architecture or "")
        if known is not None and known.mig is not None:
            return known.mig
        return family.mig if family is not None else None

    def rank(self, architecture: str | None) -> int:
        """Return the position of an architecture in the order of preference; unknown ones come last."""
        return next((rank for rank, name in enumerate(self.architectures) if name == architecture), len(self.architectures))

    def title(self, product: str | None, architecture: str | None, profile: str | None = None) -> str:
        """Return a GPU's display name: "NVIDIA H200 141GB (sm_90)", with a profile that of its MIG slices."""
        known = self.product(product)
        name = f"NVIDIA {known.title}" if known is not None else re.sub("[-_]", " ", product or "GPU")
        return gpu_name(f"{name} ({architecture})" if architecture else f"{name} of unknown architecture", profile)


load_gpus = loader(GPUs, "gpus.yaml")
"""Reads the facts that ship with the operator."""


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A node pool of the administrator: `count` GPUs of a product as in nvidia.com/gpu.product, and labels that select its nodes."""

    name: str
    product: str
    count: int
    labels: tuple[tuple[str, str], ...]


def capability_of(architecture: str) -> Version:
    """Return the compute capability of `sm_90`: the last digit is the minor.

    Raises ValueError if the text is not the name of an architecture.
    """
    match = re.fullmatch(r"sm_([0-9]{1,2})([0-9])", architecture)
    if match is None:
        raise ValueError(f"{architecture!r} is not an architecture; one looks like sm_90")
    return int(match[1]), int(match[2])


def architecture_of(capability: Version) -> str:
    """Return the name of the architecture with a compute capability: (12, 1) is sm_121."""
    return f"sm_{capability[0]}{capability[1]}"


@lru_cache(maxsize=1024)
def product_key(name: str) -> str:
    """Return a product name in the form for comparison. Old drivers omit the prefix "NVIDIA-"."""
    return re.sub(r"^nvidia-", "", re.sub(r"[\s_]+", "-", name.strip().lower()))


class Variant(Entry):
    """An additional image: its vLLM versions, the suffix of its tag, and its CUDA version."""

    when: Specifiers
    suffix: str
    cuda: NumericVersion


class Platform(Sourced):
    """Devices other than NVIDIA GPUs, the images for them, and the resources that Pods request."""

    devices: str
    resources: tuple[str, ...] = ()
    pattern: Expression


class Images(Entry):
    """Facts about images: the content of `images.yaml`.

    `drivers` maps a CUDA major to the first driver branch that supports it. `compatibility_variable` makes the engine load the forward
    compatibility package in the image.
    """

    repository: str
    variants: tuple[Variant, ...]
    sources: Mapping[str, str]
    other_platforms: tuple[Platform, ...]
    host_architectures: tuple[str, ...]
    drivers: Mapping[int, int]
    compatibility_variable: str

    def variants_of(self, version: str) -> tuple[Variant, ...]:
        """Return the additional images of a vLLM version."""
        return tuple(variant for variant in self.variants if variant.when.contains(version, prereleases=True))

    def other_devices(self, image: str) -> str | None:
        """Return the devices that an image is for, by its name, if they are not NVIDIA GPUs."""
        host, slash, rest = image.lower().partition("@")[0].partition("/")
        name = rest if slash and ("." in host or ":" in host or host == "localhost") else host + slash + rest
        return next((platform.devices for platform in self.other_platforms if platform.pattern.search(name[:NAME_LIMIT])), None)

    def devices_of(self, resource: str) -> str | None:
        """Return the devices that a resource stands for, if they are not NVIDIA GPUs."""
        return next((platform.devices for platform in self.other_platforms if resource in platform.resources), None)

    def is_official(self, image: str) -> bool:
        """Return whether an image is of the vLLM project, including mirrors that kept its name."""
        return re.search(r"(^|/)vllm-openai([:@]|$)", image) is not None


def cuda_of_tag(image: str) -> Version | None:
    """Return the CUDA version that an image's tag names (`v0.24.0-cu129`), or None."""
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    match = re.search(r"(?:^|[-_.+])cu(?:da)?-?([0-9]{2})\.?([0-9])(?:[-_.]|$)", tag)
    return (int(match[1]), int(match[2])) if match else None
