"""GPUs as the estimate sees them: memory that CUDA reports, architecture, unified memory."""

import re
from functools import lru_cache

from vllm_operator.catalog.gpus import GPUs, Product
from vllm_operator.catalog.memory import MemoryFacts
from vllm_operator.planning.memory.estimate import Device

MIB_PER_GIB = 1024
LABEL_LIMIT = 120
SAME_MEMORY = 0.1
"""A stated size that differs by less from that of the product is its nominal size."""
SIZE = re.compile(r"(?<![a-z0-9.-])([0-9]{1,4}) ?(?:gb|gib|(?<=[0-9]{2})g)(?![a-z0-9])|-([0-9]{2,3})gb(?![a-z0-9])")
COUNT = re.compile(r"^\W*[0-9]{1,3}(?: *[x*\u00d7] *| +(?=[a-z]))(?![0-9]+gb)|[ (]+[x*\u00d7] *[0-9]{1,3}\W*$|\([0-9]{1,3} *[x*\u00d7]\)")
JOINED = re.compile(r"\b(rtx|[0-9]{4})(?=[0-9d])([0-9]{4}|d\b)")
COMMON = frozenset(
    (
        *(
            "nvidia",
            "geforce",
            "tesla",
            "quadro",
            "rtx",
            "blackwell",
            "grace",
            "hopper",
            "superchip",
            "tensor",
            "core",
            "dgx",
            "hgx",
            "nvlink",
        ),
        *("gpu", "gpus", "edition", "generation", "class", "inferred"),
        *("sxm", "sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "hbm2", "hbm2e", "hbm3", "hbm3e"),
    )
)
"""Words of names that do not tell products apart."""


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
    """Return the GPU that a name means: a label value, a title, or as people and logs write it, such as `8x H100` or `RTX 5090`."""
    exact = gpus.product(name)
    if exact is not None:
        return exact
    words, sizes = _words(name)
    best: tuple[int, int, int, Product] | None = None
    for product in (*gpus.products_by_name.values(), *gpus.cards) if words else ():
        for own, own_sizes in (_words(product.title), _words(product.name)):
            if own and (words <= own or own <= words):
                score = (len(words & own), len(sizes & own_sizes), -len(own ^ words))
                if best is None or score > best[:3]:
                    best = (*score, product)
    return best[3] if best else None


def stated_mebibytes(name: str, product: Product | None) -> int | None:
    """Return the memory that a name states, such as `24 GB class`; None if it states none, or that of the product."""
    _, sizes = _words(name)
    if len(sizes) != 1 or (product is not None and sizes <= _words(product.name)[1]):
        return None
    stated = int(next(iter(sizes)).removesuffix("gb")) * MIB_PER_GIB
    known = product.memory_mebibytes if product is not None else None
    return None if known is not None and abs(stated - known) < SAME_MEMORY * known else stated


def smallest_named(name: str, gpus: GPUs) -> Product | None:
    """Return the GPU that a name means; of several (`RTX 5070 Ti + RTX 5090`) that with the least memory, None if one is unknown."""
    found = [find_product(each, gpus) for each in name[:LABEL_LIMIT].split("+")]
    known = [product for product in found if product is not None]
    return min(known, key=lambda product: product.memory_mebibytes or 0) if len(known) == len(found) else None


@lru_cache(maxsize=512)
def _words(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words that tell products apart, and the sizes of the memory."""
    text = SIZE.sub(lambda found: f" {found[1] or found[2]}gb ", name[:LABEL_LIMIT].lower())
    text = COUNT.sub(" ", JOINED.sub(r"\1 \2", text))
    words = frozenset(re.findall(r"[a-z0-9]+", text)) - COMMON
    sizes = frozenset(word for word in words if re.fullmatch(r"[0-9]+gb", word))
    return words - sizes, sizes
