"""How many bytes the weights of each module take: from config.json, or from the name of a format.

What a checkpoint leaves in 16 bits is the largest source of error, so the lists of config.json are read
(`modules_to_not_convert`, `ignore`, `exclude_modules`, `quantized_layers`). Their patterns are untrusted: they are read as
globs, never run as regular expressions.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from vllm_operator.planning.memory.layers import ModelShape, Module, Shard
from vllm_operator.planning.model.tensors import ALIASES, find_family
from vllm_operator.pods.reading import mapping, read_integer

PATTERN_LIMIT, PATTERN_LENGTH = 20_000, 200
RULES_LIMIT = 256
"""Paths inside a layer. Lists of thousands of modules have some dozen of them, each for many layers."""
SCALE_BYTES = 2
"""Bytes of a scale or a zero point of a group of weights."""
EXCLUDE_KEYS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "unquantized_modules")
FP8_BYTES, NVFP4_BYTES, MXFP4_BYTES, MXFP8_BYTES = 1.0, 0.5 + 1 / 16, 0.5 + 1 / 32, 1 + 1 / 32
BLOCK_BYTES = 1 + 4 / (128 * 128)
MARKS = ("lm_head", "embed_tokens", "vision_tower")


@dataclass(frozen=True, slots=True)
class Rule:
    """Modules whose path inside a layer matches; `layers` is None for all layers."""

    pattern: str
    layers: frozenset[int] | None
    size: float | None
    """Bytes per element; None for that of the model."""


@dataclass(frozen=True, slots=True)
class MeasuredSize:
    """Bytes per element of a family of modules in some layers, from the tensors of the checkpoint."""

    family: str
    layers: frozenset[int]
    size: float


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Bytes per element of each module.

    Attributes:
        name: Name of the format for people, such as NVFP4.
        size: Bytes per element of quantized linear modules.
        rules: Modules with another size. The first that matches counts.
        experts_only: Only the routed experts are quantized.
        assumed: Which modules are quantized is an assumption: the checkpoint's config.json was not read.
        blocks: Sides of the blocks with a common scale; a shard must be a multiple of them.
        group: Inputs with a common scale; a shard of the inputs must be a multiple of them.
        narrow_cache: The checkpoint asks for a KV cache in FP8.
        wide_drafts: Layers for multi-token prediction are not quantized.
        measured: What the tensors of the checkpoint take, by family. It counts before everything else.
        outside: The same for modules outside of layers, in bytes of the whole module.
        draft_size: The same for layers for multi-token prediction, in bytes per element; None if unknown.
    """

    name: str
    size: float
    rules: tuple[Rule, ...] = ()
    experts_only: bool = False
    assumed: bool = False
    blocks: int = 0
    group: int = 0
    narrow_cache: bool = False
    wide_drafts: bool = False
    measured: tuple[MeasuredSize, ...] = ()
    outside: tuple[tuple[str, int], ...] = ()
    draft_size: float | None = None

    @property
    def quantized(self) -> bool:
        """Whether some weights have less than 16 bits."""
        if self.measured:
            return any(each.size < 2 - 1 / 16 for each in self.measured)
        return self.size < 2 or any(rule.size is not None and rule.size < 2 for rule in self.rules)

    def draft_bytes_of(self, module: Module, wide: int = 2) -> float:
        """The same as `bytes_of` for a module of the layers for multi-token prediction."""
        if self.draft_size is not None:
            return module.total * self.draft_size
        return module.total * wide if self.wide_drafts else self.bytes_of(module, wide)

    def bytes_of(self, module: Module, wide: int = 2) -> float:
        """Bytes of a module in the whole model. `wide` is the size of an element that is not quantized."""
        if self.outside and (known := dict(self.outside).get(module.name)) is not None:
            return known
        if not module.linear:
            return module.total * wide
        usual = self.size if not self.experts_only or module.shard is Shard.EXPERTS else float(wide)
        if not module.in_layers:
            return module.total * (wide if module.name in MARKS else usual)
        if not self.rules and not self.measured:
            return module.total * usual
        remaining, total = set(module.layers), 0.0
        family = find_family(module.name, is_expert=module.shard is Shard.EXPERTS) if self.measured else ""
        for each in self.measured:
            if remaining and each.family == family:
                hit = remaining & each.layers
                total += len(hit) * module.elements * each.size
                remaining = remaining - hit
        for rule in self.rules:
            if remaining and _matches(module.name, rule.pattern):
                hit = remaining if rule.layers is None else remaining & rule.layers
                total += len(hit) * module.elements * (wide if rule.size is None else rule.size)
                remaining = remaining - hit
        return total + len(remaining) * module.elements * usual


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
    if method in ("awq", "gptq", "auto-round", "auto_gptq", "auto_awq", "gptq_marlin", "awq_marlin"):
        bits, group = _bits(written, 4), read_integer(written.get("group_size")) or 128
        zeros = bits / 8 / group if method.startswith(("awq", "auto_awq")) else 0
        return WeightFormat(f"INT{bits}", grouped_bytes(bits, group) + zeros, rules, group=max(group, 0))
    if method == "compressed-tensors":
        return _compressed(written, rules)
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return WeightFormat("MXFP4", MXFP4_BYTES, rules, experts_only=True)
    if method in ("bitsandbytes", "bnb"):
        return WeightFormat("INT4", 0.5 + 4 / 64, rules) if written.get("load_in_4bit") else WeightFormat("INT8", 1.0, rules)
    if "quantized_layers" in written or algorithm == "MIXED_PRECISION":
        return _mixed(written, rules)
    if method == "fp8" or "FP8" in algorithm or method in ("fbgemm_fp8", "ptpc_fp8"):
        block = written.get("weight_block_size")
        blocks = read_integer(block[0]) if isinstance(block, list) and block else None
        if "MXFP8" in algorithm or method == "mxfp8":
            return WeightFormat("MXFP8", MXFP8_BYTES, rules)
        return WeightFormat("FP8Block" if blocks else "FP8", BLOCK_BYTES if blocks else FP8_BYTES, rules, blocks=blocks or 0)
    if "NVFP4" in algorithm or "FP4" in algorithm:
        return WeightFormat("NVFP4", NVFP4_BYTES, rules)
    return WeightFormat(method.upper() or "unknown", float(shape.element_bytes), rules, assumed=True)


def _compressed(written: Mapping[str, Any], rules: tuple[Rule, ...]) -> WeightFormat:
    groups = [group for group in mapping(written.get("config_groups")).values() if isinstance(group, Mapping)]
    weights = mapping(groups[0].get("weights")) if groups else {}
    bits, group = read_integer(weights.get("num_bits")) or 4, read_integer(weights.get("group_size")) or 0
    name = str(written.get("format", ""))
    if bits not in (4, 8):
        return WeightFormat(f"INT{bits}", 2.0, rules, assumed=True)
    if "nvfp4" in name or (bits == 4 and weights.get("type") == "float" and group == 16):
        return WeightFormat("NVFP4", NVFP4_BYTES, rules)
    if "mxfp4" in name or (bits == 4 and weights.get("type") == "float"):
        return WeightFormat("MXFP4", MXFP4_BYTES, rules)
    if bits == 8:
        block = weights.get("strategy") == "block"
        kind = "FP8" if weights.get("type") == "float" else "INT8"
        return WeightFormat(f"{kind}Block" if block else kind, BLOCK_BYTES if block else 1.0, rules, blocks=128 if block else 0)
    return WeightFormat("INT4", grouped_bytes(4, group or 128), rules, group=max(group, 0))


def _mixed(written: Mapping[str, Any], rules: tuple[Rule, ...]) -> WeightFormat:
    """Mixed precision of NVIDIA ModelOpt: each quantized layer is named with its format; what is not named has 16 bits."""
    sizes = {"NVFP4": NVFP4_BYTES, "FP8": FP8_BYTES, "W4A8_AWQ": 0.52, "MXFP8": MXFP8_BYTES}
    layers = mapping(written.get("quantized_layers"))
    if layers:
        named: dict[float, list[str]] = {}
        for name, how in list(layers.items())[:PATTERN_LIMIT]:
            size = sizes.get(str(mapping(how).get("quant_algo", "")).upper()[:20])
            if size is not None and isinstance(name, str):
                named.setdefault(size, []).append(name)
        own = [rule for size, names in named.items() for rule in _read_rules(names, size)]
        return WeightFormat("mixed", 2.0, (*rules, *own))
    usual = (Rule("self_attn*", None, FP8_BYTES), Rule("linear_attn*", None, FP8_BYTES), Rule("mixer.in_proj", None, FP8_BYTES))
    return WeightFormat("mixed", NVFP4_BYTES, (*rules, *usual), assumed=True)


def grouped_bytes(bits: int, group: int) -> float:
    """Return the bytes of a weight whose group has a common scale."""
    return bits / 8 + (SCALE_BYTES / group if group > 0 else 0)


def _bits(written: Mapping[str, Any], default: int) -> int:
    bits = read_integer(written.get("bits") or written.get("w_bit"))
    return bits if bits is not None and 2 <= bits <= 8 else default


def _rules_of(written: Mapping[str, Any]) -> tuple[Rule, ...]:
    for key in EXCLUDE_KEYS:
        listed = written.get(key) or mapping(written.get("quantization")).get(key)
        if isinstance(listed, list):
            return _read_rules([name for name in listed[:PATTERN_LIMIT] if isinstance(name, str)], None)
    return ()


def _read_rules(names: Iterable[str], size: float | None) -> tuple[Rule, ...]:
    """Rules for the modules of a list, such as `model.layers.3.self_attn*` or `re:.*shared_experts.*`."""
    layers: dict[str, set[int] | None] = {}
    for name in names:
        for pattern in _globs(name[:PATTERN_LENGTH]):
            own, path = _split(pattern)
            if len(layers) >= RULES_LIMIT and path not in layers:
                continue
            if own is None:
                layers[path] = None
            elif (known := layers.setdefault(path, set())) is not None:
                known.add(own)
    return tuple(Rule(path, None if own is None else frozenset(own), size) for path, own in layers.items())


def _globs(name: str) -> list[str]:
    if not name.startswith("re:"):
        return [name]
    text = name[3:].replace("\\.", ".").replace(".*", "*").strip("^$")
    choices = re.search(r"\(([^()|]{1,40}(?:\|[^()|]{1,40}){0,15})\)", text)
    return [text.replace(choices[0], choice) for choice in choices[1].split("|")] if choices else [text]


_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,5}|\*)(?:\.|(?=\*)|$)")


def _split(pattern: str) -> tuple[int | None, str]:
    """Split `model.layers.3.self_attn*` into the layer and the path inside a layer."""
    found = _LAYER.search(pattern)
    if found is None:
        return None, pattern.rpartition("model.")[2] or "*"
    path = pattern[found.end() :].lstrip(".") or "*"
    return (None if found[1] == "*" else int(found[1])), path


_PROJECTIONS = frozenset({"gate_proj", "up_proj", "gate_up_proj", "w1", "w2", "w3", "weight", "weight_scale"})


@lru_cache(maxsize=4096)
def _matches(name: str, pattern: str) -> bool:
    parts = [ALIASES.get(part.strip("*"), part.strip("*")) for part in pattern.split(".")]
    parts = [part for part in parts if part]
    if not parts:
        return "*" in pattern
    if parts[-1] in _PROJECTIONS and len(parts) > 1:
        parts = parts[:-1]
        if parts[-1] == "mlp":
            return name.endswith(".down_proj")  # the dense MLP is one module here
    if pattern.startswith("mlp*") and name.startswith(("mlp.experts", "mlp.gate")):
        return False  # Gemma 4 calls its dense MLP `mlp`, and its experts `experts`
    return _contains(name.split("."), parts)


def _contains(own: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether `parts` are adjacent parts of the path `own`."""
    return any(list(own[at : at + len(parts)]) == list(parts) for at in range(len(own) - len(parts) + 1))
