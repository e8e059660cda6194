"""What is known of NVIDIA GPUs: architectures, products, and the labels by which clouds name them.

An architecture is a compute capability: `sm_90` is (9, 0). Versions and capabilities are compared as tuples of
integers, never as text ("10.0" < "9.0") and never with one number (12.1 is not "more" than 9.0 in what it can run).
"""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.catalog.resources import read_data

Version = tuple[int, ...]
"""A version or compute capability as a tuple of integers."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A GPU architecture and what it can do.

    `rank` orders architectures where the user states no preference, lowest first. `cuda` is the lowest CUDA
    toolkit that builds for it, `cuda_before` the first one that does not any more.
    """

    name: str
    family: str
    rank: int
    fp8: bool
    fp4: bool
    mig: bool
    unified_memory: bool
    cuda: Version
    cuda_before: Version | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """A GPU product. `name` is as in the label nvidia.com/gpu.product, `title` is for people.

    `memory_mebibytes` is None where the driver does not report it; `host` is the CPU architecture of the machines
    it is built into, None where that is open.
    """

    name: str
    title: str
    architecture: str
    memory_mebibytes: int | None
    data_center: bool
    host: str | None


@dataclass(frozen=True, slots=True)
class LabelTable:
    """A label by which a cloud names its GPUs, and what its values mean (lower case; `match` says how they compare)."""

    key: str
    name: str
    match: str
    values: Mapping[str, str]
    source: str
    requires: str | None = None
    count_label: str | None = None
    memory_label: str | None = None
    mig_label: str | None = None
    sharing_label: str | None = None

    def product_name(self, labels: Mapping[str, str]) -> str | None:
        """Return the product that these node labels name, or None where this table does not apply."""
        value = labels.get(self.key)
        if not isinstance(value, str) or (self.requires is not None and self.requires not in labels):
            return None
        value = value.lower()
        if self.match == "prefix":
            return next((product for known, product in self.values.items() if value.startswith(known)), None)
        if self.match == "pattern":
            return next((product for known, product in self.values.items() if fnmatch.fnmatchcase(value, known)), None)
        return self.values.get(value)


@dataclass(frozen=True, slots=True)
class GPUs:
    """Everything that is known of GPUs."""

    architectures: Mapping[str, Architecture]
    products: Mapping[str, Product]
    label_tables: tuple[LabelTable, ...]
    presence_labels: tuple[str, ...]

    def product(self, name: str | None) -> Product | None:
        """Return what is known of a product, by its label value in any spelling, or None."""
        if name is None:
            return None
        return self.products.get(product_key(name))

    def rank(self, architecture: str | None) -> int:
        """Return the place of an architecture in the order of preference; unknown ones come last."""
        known = self.architectures.get(architecture) if architecture else None
        return known.rank if known else len(self.architectures)

    def title(self, product: str | None, architecture: str | None) -> str:
        """Return a GPU's name for people: "NVIDIA H200 141GB (sm_90)"."""
        known = self.product(product)
        if known is not None:
            name = f"NVIDIA {known.title}"
        elif product:
            name = product.replace("-", " ").replace("_", " ")
        else:
            name = "GPU"
        return f"{name} ({architecture})" if architecture else f"{name} of unknown architecture"


def capability_of(architecture: str) -> Version:
    """Return the compute capability of `sm_90`: the last digit is the minor.

    Raises:
        ValueError: This is not the name of an architecture.
    """
    match = re.fullmatch(r"sm_([0-9]{1,2})([0-9])", architecture)
    if match is None:
        raise ValueError(f"{architecture!r} is not an architecture; one looks like sm_90")
    return int(match[1]), int(match[2])


def architecture_of(capability: Version) -> str:
    """Return the name of the architecture with a compute capability: (12, 1) is sm_121."""
    return f"sm_{capability[0]}{capability[1]}"


def product_key(name: str) -> str:
    """Return the form in which product names compare: old drivers leave out "NVIDIA-", new ones write it."""
    return re.sub(r"^nvidia-", "", re.sub(r"[\s_]+", "-", name.strip().lower()))


def parse_version(text: str) -> Version:
    """Read `12.8` as (12, 8).

    Raises:
        ValueError: This is not a version made of numbers.
    """
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", text, re.ASCII):
        raise ValueError(f"{text!r} is not a version")
    return tuple(int(part) for part in text.split("."))


def load_gpus(data: Mapping[str, Any] | None = None) -> GPUs:
    """Read the table of GPUs; `data` is the parsed file, the one in the package if absent."""
    table = read_data("gpus.yaml") if data is None else data
    architectures = {entry["name"]: _architecture(rank, entry) for rank, entry in enumerate(table["architectures"])}
    return GPUs(
        architectures=architectures,
        products={product_key(entry["name"]): _product(entry) for entry in table["products"]},
        label_tables=tuple(_label_table(entry) for entry in table["labels"]),
        presence_labels=tuple(table["presence"]["labels"]),
    )


def _architecture(rank: int, entry: Mapping[str, Any]) -> Architecture:
    return Architecture(
        name=entry["name"],
        family=entry["family"],
        rank=rank,
        fp8=entry["fp8"],
        fp4=entry["fp4"],
        mig=entry["mig"],
        unified_memory=entry.get("unifiedMemory", False),
        cuda=parse_version(entry["cuda"]),
        cuda_before=parse_version(entry["cudaBefore"]) if "cudaBefore" in entry else None,
    )


def _product(entry: Mapping[str, Any]) -> Product:
    return Product(
        name=entry["name"],
        title=entry["title"],
        architecture=entry["architecture"],
        memory_mebibytes=entry.get("memory"),
        data_center=entry.get("dataCenter", False),
        host=entry.get("host"),
    )


def _label_table(entry: Mapping[str, Any]) -> LabelTable:
    return LabelTable(
        key=entry["key"],
        name=entry["name"],
        match=entry.get("match", "exact"),
        values=entry["values"],
        source=entry["source"],
        requires=entry.get("requires"),
        count_label=entry.get("countLabel"),
        memory_label=entry.get("memoryLabel"),
        mig_label=entry.get("migLabel"),
        sharing_label=entry.get("sharingLabel"),
    )
