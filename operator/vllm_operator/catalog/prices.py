"""Prices of GPUs, which the owner of the cluster gives in a ConfigMap: a key for each product, with the price of one GPU per hour.

    data:
      NVIDIA-L4: "0.71"
      NVIDIA-H100-80GB-HBM3: "3.93"
      NVIDIA-H100-80GB-HBM3-MIG-1g.10gb: "0.60"

The texts are untrusted. An invalid entry is left out and reported.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_operator.catalog.gpus import product_key

ENTRIES_LIMIT = 256
"""Most prices. There are fewer products of GPUs."""
SHOWN = 60
"""Characters of an invalid entry in a message."""
_PRICE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of one GPU or MIG slice per hour, in the currency of the owner. The keys are those of `product_key`."""

    by_product: Mapping[str, float] = field(default_factory=dict)

    def of(self, product: str | None, mig_profile: str | None) -> float | None:
        """Return the price of a GPU or of a MIG slice; None if it is not known."""
        if product is None:
            return None
        name = product if mig_profile is None else f"{product}-MIG-{mig_profile}"
        return self.by_product.get(product_key(name))


@dataclass(frozen=True, slots=True)
class ReadPrices:
    """The valid prices, the names of their products as they were written, and a sentence about each invalid entry."""

    prices: Prices
    added: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def read_prices(texts: Mapping[str, str]) -> ReadPrices:
    """Read prices by product, as in the label nvidia.com/gpu.product."""
    found: dict[str, float] = {}
    added: list[str] = []
    problems: list[str] = []
    for name in sorted(texts):
        text = texts[name].strip() if len(texts[name]) <= ENTRIES_LIMIT else ""
        if _PRICE.fullmatch(text) is None:
            problems.append(f'price of {name[:SHOWN]}: write the price of one GPU per hour, such as "3.93". The entry is ignored.')
        elif product_key(name) in found:
            problems.append(f"price of {name[:SHOWN]}: another entry is for the same product. The entry is ignored.")
        elif len(found) >= ENTRIES_LIMIT:
            problems.append(f"there are more than {ENTRIES_LIMIT} prices; the others are ignored.")
            break
        else:
            found[product_key(name)] = float(text)
            added.append(name)
    return ReadPrices(Prices(found), tuple(added), tuple(problems))
