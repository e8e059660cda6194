"""GPUs as the estimate sees them: memory that CUDA reports, architecture, unified memory."""

import re

from vllm_operator.catalog.gpus import GPUs, Product
from vllm_operator.catalog.memory import MemoryFacts
from vllm_operator.planning.memory.estimate import Device

MIB_PER_GIB = 1024
LABEL_LIMIT = 120


def device_of(product: Product | None, architecture: str | None, memory_mebibytes: int | None, gpus: GPUs, facts: MemoryFacts) -> Device:
    """Return a GPU of the cluster.

    Args:
        product: What is known about it; None if unknown.
        architecture: Such as sm_90.
        memory_mebibytes: Memory by the node label; None for that of the product.
        gpus: The table of GPUs.
        facts: The constants.
    """
    known = facts.usable_memory
    title = product.title if product else ""
    family = gpus.architectures.get(architecture or "")
    unified = family is not None and family.unified_memory
    if unified:
        stated = known.unified_gib.get(title)
        return Device(float(stated) if stated is not None else None, architecture, title, unified=True)
    mebibytes = memory_mebibytes or (product.memory_mebibytes if product else None)
    if mebibytes is None:
        return Device(None, architecture, title)
    reported = mebibytes / MIB_PER_GIB
    return Device(max(reported - known.reserve_gib - known.reserve_share * reported, 0.0), architecture, title)


def find_product(name: str, gpus: GPUs) -> Product | None:
    """Return the GPU that a name means: a label value, a title, or words of a title, such as `H100` or `RTX 5090`."""
    exact = gpus.product(name)
    if exact is not None:
        return exact
    words = _words(name[:LABEL_LIMIT])
    best: tuple[int, int, Product] | None = None
    for product in gpus.products_by_name.values() if words else ():
        for own in (_words(product.title), _words(product.name)):
            if words <= own or own <= words:
                score = (len(words & own), -len(own ^ words))
                if best is None or score > best[:2]:
                    best = (*score, product)
    return best[2] if best else None


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.lower())) - {"nvidia", "geforce"}
