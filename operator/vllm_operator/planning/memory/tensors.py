"""The format of weights by the tensors of a checkpoint: how many bytes the modules of each layer take."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from vllm_operator.planning.memory.layers import ModelShape, Module, Shard
from vllm_operator.planning.memory.quantization import MeasuredSize, WeightFormat
from vllm_operator.planning.model.tensors import TensorSizes, find_family

LEAST, MOST = 0.25, 4.5
"""Bytes of an element: fewer or more means that the names were not understood."""
DIGITS = 4


def measure_format(form: WeightFormat, shape: ModelShape, sizes: TensorSizes) -> WeightFormat | None:
    """Return the format with the bytes that the tensors take; None if the names of the tensors are not those of the model.

    Args:
        form: The format that config.json states.
        shape: The model.
        sizes: All tensors of the checkpoint.
    """
    expected = _elements(shape.modules)
    found = {(family, layer): size for family, layer, size in sizes.layers}
    measured: dict[tuple[str, float], set[int]] = {}
    for (family, layer), elements in expected.items():
        size = (found.get((family, layer)) or found.get(("mixer", layer), 0)) / elements
        if not LEAST <= size <= MOST:
            return None
        measured.setdefault((family, round(size, DIGITS)), set()).add(layer)
    rules = tuple(MeasuredSize(family, frozenset(own), size) for (family, size), own in measured.items())
    outside = [(name, size) for name, size in sizes.ends if any(module.name == name for module in shape.modules)]
    outside += [("vision_tower", sizes.encoder)] if sizes.encoder and shape.vision else []
    drafted = {family for family, _ in _elements(shape.drafts)}
    own_drafts = sizes.drafts + sum(size for (family, layer), size in found.items() if layer >= shape.layers and family in drafted)
    elements = sum(module.total for module in shape.drafts)
    size = own_drafts / elements if elements else 0.0
    return replace(form, measured=rules, outside=tuple(outside), draft_size=size if LEAST <= size <= MOST else None, assumed=False)


def _elements(modules: Iterable[Module]) -> Counter[tuple[str, int]]:
    """Elements of the linear modules by family and layer."""
    counted: Counter[tuple[str, int]] = Counter()
    for module in modules:
        if module.in_layers and module.linear and module.elements:
            for layer in module.layers:
                counted[find_family(module.name, is_expert=module.shard is Shard.EXPERTS), layer] += module.elements
    return counted
