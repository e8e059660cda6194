"""The tables of rotary embeddings, which vLLM computes for all positions of a model and keeps on every GPU."""

from collections.abc import Mapping
from math import ceil
from typing import Any

from vllm_operator.pods.reading import mapping, read_integer

TWO_TABLES = ("gemma3", "gemma4", "laguna")
"""Models whose layers with a window have a rotary embedding of their own."""
MOST = 64
"""Larger factors are not read."""
MOST_SCALED, LONGEST = 1024, 1 << 30
"""The same for YaRN, and for the length that it scales."""


WITH_SECTIONS = ("qwen2vl", "qwen25vl", "qwen25omni", "qwen3vl", "qwen3omni", "qwen35")
"""Models whose positions have a time, a height and a width (`mrope_section`), for files that do not say it."""


def has_sections(config: Mapping[str, Any], architecture: str) -> bool:
    """Whether positions have sections for time, height and width. vLLM makes their tables longer than the context."""
    return bool(_parameters(config).get("mrope_section")) or any(name in architecture for name in WITH_SECTIONS)


def rotary_share(config: Mapping[str, Any]) -> float:
    """Return the part of a head that is rotated."""
    places = (config, _parameters(config), mapping(_parameters(config), "full_attention"))
    for value in (place.get("partial_rotary_factor") for place in places):
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
            return float(value)
    return 1.0


def rotary_width(config: Mapping[str, Any], architecture: str, width: int, second: int) -> int:
    """Return the elements of all tables for one position of the model's maximum length.

    Args:
        config: The language model's part of config.json; untrusted.
        architecture: The model's class in lower case.
        width: Elements of one position in the table of the layers with full attention.
        second: The same in the table of the other layers; 0 without such layers.
    """
    return width * _factor(config) + (second if any(name in architecture for name in TWO_TABLES) else 0)


def scaled_length(config: Mapping[str, Any], length: int) -> int:
    """Return the longest context that vLLM accepts: with YaRN as many times the original one as its factor says, else that of the file.

    Linear and dynamic scaling multiply that of the file, except for Gemma 3.
    Source: vllm/config/model.py _get_and_verify_max_len, 0.11.0 to 0.33.0.
    """
    written = _parameters(config)
    factor, kind = written.get("factor"), written.get("rope_type", written.get("type"))
    original = read_integer(written.get("original_max_position_embeddings")) if kind == "yarn" else length
    scaled = kind == "yarn" or (kind in ("linear", "dynamic") and "gemma3" not in str(config.get("model_type"))[:40])
    if not scaled or not original or not 0 < original < LONGEST:
        return length
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= MOST_SCALED:
        return length
    return int(original * factor)


def usual_length(config: Mapping[str, Any]) -> int | None:
    """Return the context that vLLM takes by default where it is not the longest: with LongRoPE that before scaling."""
    written = _parameters(config)
    original = read_integer(config.get("original_max_position_embeddings"))
    longer = written.get("rope_type", written.get("type")) in ("longrope", "su")
    return original if longer and original and 0 < original < LONGEST else None


def _factor(config: Mapping[str, Any]) -> int:
    """How many times as long linear scaling makes a table (rotary_embedding/linear_scaling_rope.py, 0.11.0 to 0.33.0)."""
    written = _parameters(config)
    scaling = mapping(written, "full_attention") or written
    factor = scaling.get("factor")
    if scaling.get("rope_type", scaling.get("type")) != "linear" or isinstance(factor, bool) or not isinstance(factor, int | float):
        return 1
    return ceil(factor) if 1 <= factor <= MOST else 1


def _parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(config, "rope_parameters") or mapping(config, "rope_scaling")
