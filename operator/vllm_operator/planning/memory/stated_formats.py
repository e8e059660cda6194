"""How many bytes the weights of each module take, as config.json states it in `quantization_config`.

Each kind of checkpoint says in its own words which modules have another format: lists of modules that are not quantized, formats by
pattern (`dynamic` of GPTQModel, `extra_config` of AutoRound, `layer_quant_config` of Quark), groups with targets (compressed-tensors), or
a format for each layer (ModelOpt). Sources: vllm/model_executor/layers/quantization, 0.20.0 and 0.26.0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from vllm_operator.planning.memory.layers import ModelShape
from vllm_operator.planning.memory.quantization import (
    BLOCK_BYTES,
    FP8_BYTES,
    MXFP4_BYTES,
    MXFP8_BYTES,
    NF4_BYTES,
    NVFP4_BYTES,
    PATTERN_LIMIT,
    Rule,
    WeightFormat,
    grouped_bytes,
    read_rules,
)
from vllm_operator.pods.reading import mapping, read_integer

EXCLUDE_KEYS = (
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "unquantized_modules",
    "llm_int8_skip_modules",
    "exclude",
)
ALGORITHMS = (
    ("NVFP4", NVFP4_BYTES),
    ("MXFP8", MXFP8_BYTES),
    ("MXFP4", MXFP4_BYTES),
    ("FP8", FP8_BYTES),
    ("W4A", 0.5 + 2 / 128),
    ("INT4", 0.5 + 2 / 128),
    ("W8A8", 1.0),
    ("INT8", 1.0),
)
"""Formats of NVIDIA ModelOpt by a part of their name; the first counts."""
GROUPED_METHODS = ("awq", "gptq", "auto-round", "auto_round", "inc", "auto_gptq", "auto_awq", "gptq_marlin", "awq_marlin", "moe_wna16")
USUAL_GROUP = 128
CLASSES = ("Linear", "FusedMoE", "MoE")
"""Targets of compressed-tensors that mean all layers of a class."""


def read_format(config: Mapping[str, Any], shape: ModelShape) -> WeightFormat:
    """The format that a config.json states; 16 bits if it states none."""
    form = _read_format(config, shape)
    drafts = any("mtp" in rule.pattern for rule in form.rules if rule.size is None)
    return replace(form, wide_drafts=drafts, narrow_cache=_has_narrow_cache(config))


def _has_narrow_cache(config: Mapping[str, Any]) -> bool:
    written = mapping(config.get("quantization_config")) or mapping(mapping(config.get("text_config")).get("quantization_config"))
    places = (mapping(written.get("quantization")), written)
    scheme = next((mapping(place["kv_cache_scheme"]) for place in places if mapping(place.get("kv_cache_scheme"))), {})
    algorithm = next((place["kv_cache_quant_algo"] for place in places if isinstance(place.get("kv_cache_quant_algo"), str)), "")
    return (scheme.get("num_bits") == 8 and scheme.get("type") == "float") or algorithm[:8].upper() == "FP8"


def _read_format(config: Mapping[str, Any], shape: ModelShape) -> WeightFormat:
    nested = mapping(config.get("text_config"))
    written = (
        mapping(config.get("quantization_config"))
        or mapping(nested.get("quantization_config"))
        or mapping(config.get("compression_config"))
    )
    if not written:
        return WeightFormat("BF16", float(shape.element_bytes))
    method = str(written.get("quant_method", ""))[:40].lower()
    rules = _rules_of(written)
    algorithm = str(written.get("quant_algo") or mapping(written.get("quantization")).get("quant_algo") or "").upper()[:40]
    if (nested.get("expert_dtype") or config.get("expert_dtype")) == "fp4":
        return WeightFormat("MXFP4", BLOCK_BYTES, (*rules, Rule("mlp.experts", None, MXFP4_BYTES)))
    if method in GROUPED_METHODS:
        return _grouped(written, method, rules, shape)
    if method == "compressed-tensors":
        return _compressed(written, rules)
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return WeightFormat("MXFP4", MXFP4_BYTES, rules, experts_only=True)
    if method in ("bitsandbytes", "bnb"):
        small = written.get("load_in_4bit") or written.get("_load_in_4bit")
        return WeightFormat("INT4", NF4_BYTES, rules) if small else WeightFormat("INT8", 1.0, rules)
    if method == "quark":
        return _quark(written, rules, shape)
    if method == "experts_int8":
        return WeightFormat("INT8", 1.0, rules, experts_only=True)
    if "quantized_layers" in written or algorithm == "MIXED_PRECISION":
        return _mixed(written, rules)
    if "MXFP8" in algorithm or method == "mxfp8":
        return WeightFormat("MXFP8", MXFP8_BYTES, rules)
    if "FP4" in algorithm or (method == "modelopt_fp4" and not algorithm):
        return WeightFormat("NVFP4", NVFP4_BYTES, rules)
    if "FP8" in algorithm or method in ("fp8", "fbgemm_fp8", "ptpc_fp8") or (method == "modelopt" and not algorithm):
        block = written.get("weight_block_size")
        blocks = read_integer(block[0]) if isinstance(block, list) and block else None
        return WeightFormat("FP8Block" if blocks else "FP8", BLOCK_BYTES if blocks else FP8_BYTES, rules, blocks=blocks or 0)
    size = _algorithm_bytes(algorithm)
    if size is not None:
        return WeightFormat("INT8" if size == 1 else "INT4", size, rules, group=0 if size == 1 else USUAL_GROUP)
    return WeightFormat(method.upper() or "unknown", float(shape.element_bytes), rules, assumed=True)


def _grouped(written: Mapping[str, Any], method: str, rules: tuple[Rule, ...], shape: ModelShape) -> WeightFormat:
    """AWQ, GPTQ, AutoRound: integers with a common scale, and other formats by pattern."""
    bits, group = _bits(written, 4), read_integer(written.get("group_size")) or USUAL_GROUP
    zeros = bits / 8 / group if group > 0 and method.startswith(("awq", "auto_awq")) else 0.0
    named: dict[float | None, list[str]] = {}
    for pattern, how in islice(mapping(written.get("dynamic")).items(), PATTERN_LIMIT):
        # Regular expressions; a minus means that the modules are not quantized.
        size = None if pattern.startswith("-:") else _element_bytes(mapping(how), bits, group)
        named.setdefault(size, []).append("re:" + pattern.removeprefix("-:").removeprefix("+:"))
    for pattern, how in islice(mapping(written.get("extra_config")).items(), PATTERN_LIMIT):
        named.setdefault(_element_bytes(mapping(how), bits, group), []).append("re:" + pattern if "*" in pattern else pattern)
    own = [rule for size, patterns in named.items() for rule in read_rules(patterns, size)]
    size = grouped_bytes(bits, group) + zeros
    outside = (("lm_head", round(shape.vocabulary * shape.hidden * size)),) if written.get("lm_head") is True else ()
    return WeightFormat(f"INT{bits}", size, (*own, *rules), group=max(group, 0), outside=outside)


def _element_bytes(how: Mapping[str, Any], bits: int, group: int) -> float | None:
    """Bytes of a weight with these settings; None for 16 bits."""
    own = _bits(how, bits, most=16)
    written = read_integer(how.get("group_size"))
    return None if own >= 16 else grouped_bytes(own, written if written is not None else group)


def _compressed(written: Mapping[str, Any], rules: tuple[Rule, ...]) -> WeightFormat:
    """compressed-tensors: groups of layers, each with a format. That for a whole class counts where no other group names a layer."""
    groups = [group for group in mapping(written.get("config_groups")).values() if isinstance(group, Mapping)][:PATTERN_LIMIT]
    usual = [group for group in groups if any(target in CLASSES for target in _targets(group))]
    form = _compressed_group(usual[0] if usual else (groups[0] if groups else {}), written)
    own = [
        rule
        for group in groups
        if group not in usual
        for rule in read_rules([target for target in _targets(group) if target not in CLASSES], _compressed_group(group, written).size)
    ]
    if groups and not usual and own:  # only what is named is quantized
        return replace(form, name="mixed" if len(groups) > 1 else form.name, size=2.0, rules=(*rules, *own))
    return replace(form, rules=(*rules, *own))


def _targets(group: Mapping[str, Any]) -> list[str]:
    listed = group.get("targets")
    return [target for target in listed[:PATTERN_LIMIT] if isinstance(target, str)] if isinstance(listed, list) else ["Linear"]


def _compressed_group(group: Mapping[str, Any], written: Mapping[str, Any]) -> WeightFormat:
    weights = mapping(group.get("weights"))
    bits, size = read_integer(weights.get("num_bits")) or 4, read_integer(weights.get("group_size")) or 0
    name = str(group.get("format") or written.get("format", ""))[:60]
    is_float = weights.get("type") == "float"
    if not 2 <= bits <= 8:
        return WeightFormat(f"INT{bits}", 2.0, assumed=True)
    if bits == 4 and ("nvfp4" in name or (is_float and size == 16)):
        return WeightFormat("NVFP4", NVFP4_BYTES)
    if bits == 4 and ("mxfp4" in name or is_float):
        return WeightFormat("MXFP4", MXFP4_BYTES)
    if bits == 8:
        if is_float and size == 32:
            return WeightFormat("MXFP8", MXFP8_BYTES)
        block = weights.get("strategy") == "block"
        kind = "FP8" if is_float else "INT8"
        scales = 0.0 if block or size <= 0 else 2 / size
        return WeightFormat(f"{kind}Block" if block else kind, (BLOCK_BYTES if block else 1.0) + scales, blocks=128 if block else 0)
    return WeightFormat(f"INT{bits}", grouped_bytes(bits, size or USUAL_GROUP), group=max(size, 0))


def _quark(written: Mapping[str, Any], rules: tuple[Rule, ...], shape: ModelShape) -> WeightFormat:
    """AMD Quark: one format for all, and others by pattern."""
    usual = _quark_bytes(mapping(written.get("global_quant_config")))
    named: dict[float | None, list[str]] = {}
    for pattern, how in islice(mapping(written.get("layer_quant_config")).items(), PATTERN_LIMIT):
        named.setdefault(_quark_bytes(mapping(how)), []).append(pattern)
    own = [rule for size, patterns in named.items() for rule in read_rules(patterns, size)]
    size = usual if usual is not None else float(shape.element_bytes)
    name = {MXFP4_BYTES: "MXFP4", FP8_BYTES: "FP8"}.get(size, "QUARK")
    return WeightFormat(name, size, (*rules, *own), assumed=usual is None)


def _quark_bytes(how: Mapping[str, Any]) -> float | None:
    """Bytes of a weight; None for 16 bits. Formats with two steps are lists, of which the first has the values."""
    weight = how.get("weight")
    weight = mapping(weight[0] if isinstance(weight, list) and weight else weight)
    kind = str(weight.get("dtype") or "")[:20].lower()
    group = read_integer(weight.get("group_size")) or 0
    if kind == "fp4":
        return MXFP4_BYTES if group != 16 else NVFP4_BYTES
    if kind.startswith("fp6"):
        return 0.75 + 1 / 32
    if kind.startswith(("fp8", "int8", "uint8")):
        return FP8_BYTES
    return grouped_bytes(4, group or USUAL_GROUP) if kind in ("int4", "uint4") else None


def _mixed(written: Mapping[str, Any], rules: tuple[Rule, ...]) -> WeightFormat:
    """Mixed precision of NVIDIA ModelOpt: each quantized layer is named with its format; what is not named has 16 bits."""
    layers = mapping(written.get("quantized_layers")) or mapping(mapping(written.get("quantization")).get("quantized_layers"))
    if layers:
        named: dict[float, list[str]] = {}
        for name, how in islice(layers.items(), PATTERN_LIMIT):
            size = _algorithm_bytes(str(mapping(how).get("quant_algo", "")).upper()[:20])
            if size is not None and isinstance(name, str):
                named.setdefault(size, []).append(name)
        own = [rule for size, names in named.items() for rule in read_rules(names, size)]
        return WeightFormat("mixed", 2.0, (*rules, *own))
    usual = (Rule("self_attn*", None, FP8_BYTES), Rule("linear_attn*", None, FP8_BYTES), Rule("mixer.in_proj", None, FP8_BYTES))
    return WeightFormat("mixed", NVFP4_BYTES, (*rules, *usual), assumed=True)


def _algorithm_bytes(algorithm: str) -> float | None:
    return next((size for name, size in ALGORITHMS if name in algorithm), None)


def _bits(written: Mapping[str, Any], default: int, most: int = 8) -> int:
    bits = read_integer(written.get("bits") or written.get("w_bit"))
    return bits if bits is not None and 2 <= bits <= most else default


def _rules_of(written: Mapping[str, Any]) -> tuple[Rule, ...]:
    listed: Iterable[Any] = ()
    for key in EXCLUDE_KEYS:
        found = written.get(key) or mapping(written.get("quantization")).get(key)
        if isinstance(found, list):
            listed = found[:PATTERN_LIMIT]
            break
    return read_rules([name for name in listed if isinstance(name, str)], None)
