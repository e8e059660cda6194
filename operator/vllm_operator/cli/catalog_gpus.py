"""GPU architectures and products for `vllm-operator catalog gpus`."""

from typing import Any

from vllm_operator.catalog.gpus import Architecture, Product, product_key
from vllm_operator.catalog.loader import Catalog

HEADER = ("NAME", "GPU", "ARCHITECTURE", "MEMORY", "FP8", "FP4", "MIG", "CUDA FROM")


def entries(catalog: Catalog) -> dict[str, Any]:
    """Every product, and every architecture of which no product is known; in the operator's order of preference."""
    gpus = catalog.gpus
    found: dict[str, Any] = {}
    for architecture in gpus.architectures.values():
        products = [product for product in gpus.products.values() if product.architecture == architecture.name]
        for product in products:
            found[product.name] = _product(product, architecture)
        if not products:
            found[architecture.name] = _architecture(architecture)
    return found


def row(name: str, entry: Any) -> tuple[str, ...]:
    """A product as a row."""
    memory = entry.get("memoryMebibytes")
    return (
        name,
        entry.get("title", ""),
        f"{entry['architecture']} {entry['family']}",
        f"{memory} MiB" if memory else "",
        *("yes" if entry[ability] else "" for ability in ("fp8", "fp4", "mig")),
        entry["cuda"],
    )


def find(catalog: Catalog, name: str) -> Any:
    """Everything about an architecture or a product; None if there is none of this name."""
    gpus = catalog.gpus
    architecture = gpus.architectures.get(name)
    product = gpus.products.get(product_key(name))
    if architecture is not None:
        members = [product.name for product in gpus.products.values() if product.architecture == name]
        return {**_architecture(architecture), "products": members, "backends": _backends(catalog, name)}
    if product is None:
        return None
    return {**_product(product, gpus.architectures[product.architecture]), "backends": _backends(catalog, product.architecture)}


def _architecture(architecture: Architecture) -> dict[str, Any]:
    return {
        "architecture": architecture.name,
        "family": architecture.family,
        "fp8": architecture.fp8,
        "fp4": architecture.fp4,
        "mig": architecture.mig,
        "unifiedMemory": architecture.unified_memory,
        "cuda": ".".join(map(str, architecture.cuda)),
    }


def _product(product: Product, architecture: Architecture) -> dict[str, Any]:
    return {
        "product": product.name,
        "title": product.title,
        "memoryMebibytes": product.memory_mebibytes,
        "dataCenter": product.data_center,
        "host": product.host,
        **_architecture(architecture),
    }


def _backends(catalog: Catalog, architecture: str) -> dict[str, list[str]]:
    """The backends that work on an architecture, for some model in some version, by component."""
    found: dict[str, list[str]] = {}
    for kernel in catalog.rules.kernels.entries:
        if any(architecture in condition.members.get("architecture", (architecture,)) for condition in kernel.works):
            found.setdefault(kernel.component, []).append(kernel.backend)
    return found
