"""The tables of rotary embeddings, which vLLM computes for all positions of a model and keeps on every GPU."""

from collections.abc import Mapping
from math import ceil
from typing import Any

from vllm_operator.pods.reading import mapping

TWO_TABLES = ("gemma3", "gemma4")
"""Models whose layers with a window have a rotary embedding of their own."""
MOST = 64
"""Larger factors are not read."""


def rotary_width(config: Mapping[str, Any], architecture: str, width: int, second: int) -> int:
    """Return the elements of all tables for one position of the model's maximum length.

    Args:
        config: The language model's part of config.json; untrusted.
        architecture: The model's class in lower case.
        width: Elements of one position in the table of the layers with full attention.
        second: The same in the table of the other layers; 0 without such layers.
    """
    return width * _factor(config) + (second if any(name in architecture for name in TWO_TABLES) else 0)


def _factor(config: Mapping[str, Any]) -> int:
    """How many times as long linear scaling makes a table (rotary_embedding/linear_scaling_rope.py, 0.11.0 to 0.33.0)."""
    written = mapping(config, "rope_parameters") or mapping(config, "rope_scaling")
    scaling = mapping(written, "full_attention") or written
    factor = scaling.get("factor")
    if scaling.get("rope_type", scaling.get("type")) != "linear" or isinstance(factor, bool) or not isinstance(factor, int | float):
        return 1
    return ceil(factor) if 1 <= factor <= MOST else 1
