"""Bytes of the weights of each module, from rules for module paths in config.json, or from the sizes of the tensors.

The modules that a checkpoint leaves in 16 bits are the largest source of error, so the lists of config.json are read. Their patterns are
untrusted: they are parsed as globs, never run as regular expressions.

The headers of safetensors files list the tensors with types and sizes. They give the bytes of the weights of each layer, independent of
config.json. A file begins with the length of its header in 8 bytes, then comes a JSON object:
`{"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {...}}`.
Source: https://github.com/huggingface/safetensors#format. Headers are untrusted: unreadable entries are ignored.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from vllm_operator.api.reading import mapping, read_integer, sequence, text
from vllm_operator.api.spec import Quantization
from vllm_operator.catalog.entry import Entry, loader
from vllm_operator.sizing.model_shape import NESTED, ModelShape, Module, Shard

LENGTH_BYTES = 8
HEADER_LIMIT = 2 * 1024 * 1024
"""Maximum bytes of a header. A file with 5 GB has a header of up to some hundred KB, even with thousands of experts."""
TENSORS_LIMIT, NAME_LIMIT, SIZE_LIMIT = 100_000, 300, 1 << 46
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.([0-9]{1,3})\.(.+)$")
ENCODER_NAMES = re.compile(r"(?:^|\.)(?:vision|visual|audio|multi_modal|multimodal|mm_|patch_merger|pre_mm|image)")
DRAFT_NAMES = re.compile(r"(?:^|\.)(?:mtp|nextn|eagle|draft)")
FAMILIES = frozenset({"self_attn", "linear_attn", "mixer", "mlp", "experts", "shared_experts"})


TensorSizes = Counter[tuple[str, int]]
"""Bytes of the tensors of a checkpoint by family of modules (such as `self_attn`, `experts`) and layer; others have the layer OUTSIDE."""
OUTSIDE, DRAFTS, ENCODER = -1, "drafts", "vision_tower"


def header_length(beginning: bytes) -> int | None:
    """Return the length of the header from the first 8 bytes of a file; None if it is implausible."""
    length = int.from_bytes(beginning[:LENGTH_BYTES], "little") if len(beginning) >= LENGTH_BYTES else 0
    return length if 2 <= length <= HEADER_LIMIT else None


def read_header(header: bytes) -> dict[str, int] | None:
    """Return the bytes of each tensor in the engine, by name; None if this is no header. 32-bit weights are loaded with 16 bits."""
    try:
        content = json.loads(header)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or len(content) > TENSORS_LIMIT:
        return None
    found = {}
    for name, about in content.items():
        offsets = sequence(mapping(about).get("data_offsets"))
        if len(name) <= NAME_LIMIT and len(offsets) == 2:
            begin, end = (read_integer(offset) for offset in offsets)
            if begin is not None and end is not None and 0 <= begin <= end < SIZE_LIMIT:
                found[name] = (end - begin) // (2 if about.get("dtype") == "F32" and name.endswith("weight") else 1)
    return found


def add_up(tensors: Mapping[str, int]) -> TensorSizes:
    """Return the sums of the tensors of one file."""
    sizes: TensorSizes = Counter()
    names = load_names()
    for name, size in tensors.items():
        layer = LAYER.search(name)
        if ENCODER_NAMES.search(name):
            sizes[ENCODER, OUTSIDE] += size
        elif DRAFT_NAMES.search(name):
            sizes[DRAFTS, OUTSIDE] += size
        elif layer is not None:
            if (family := _family_of_tensor(layer[2])) in FAMILIES:
                sizes[family, int(layer[1])] += size
        elif end := next((names.ends[part] for part in name.split(".") if part in names.ends), ""):
            sizes[end, OUTSIDE] += size
    return sizes


@lru_cache(maxsize=1024)
def _family_of_tensor(path: str) -> str:
    """Return the family of a tensor inside a layer; empty for norms, biases and the router, which always have 16 bits or more."""
    parts = path.split(".")
    if (
        any(word in path for word in load_names().not_linear)
        or path.endswith("bias")
        or parts[-2:-1] in (["gate"], ["router"], ["shared_expert_gate"])
    ):
        return ""
    own = [part for part in parts[:-1] if not part.isdigit()] or parts
    return find_family(".".join(own), is_expert="experts" in own)


@lru_cache(maxsize=1024)
def find_family(path: str, *, is_expert: bool) -> str:
    """Return the family of a module by its path inside a layer: `experts`, `shared_experts`, else the first part, such as `mlp`."""
    parts = [load_names().aliases.get(part, part) for part in path.split(".")]
    if "shared_experts" in parts:
        return "shared_experts"
    return "experts" if is_expert else parts[0]


PATTERN_LIMIT, PATTERN_LENGTH = 20_000, 200
RULES_LIMIT = 256
"""Maximum number of paths inside a layer. Lists of thousands of modules have some dozen of them, each for many layers."""
SCALE_BYTES = 2  # bytes of a scale or a zero point of a group of weights
FEW_EXPERTS = 8
MAX_EXPRESSIONS, MAX_GROUPS, MAX_CHOICES = 512, 4, 64
"""Limits for untrusted expressions: regular expressions of a list, groups of alternatives in one, and resulting globs."""
MARKS = ("lm_head", "embed_tokens", "vision_tower")


@dataclass(frozen=True, slots=True)
class Rule:
    """Bytes per element of modules whose path inside a layer matches; None is the model's type. `layers` is None for all layers."""

    pattern: str
    layers: frozenset[int] | None
    size: float | None


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Bytes per element of each module. The measured sizes of the checkpoint's tensors take precedence."""

    name: str  # as it is shown, such as NVFP4
    size: float  # of quantized linear modules
    rules: tuple[Rule, ...] = ()  # modules with another size; the first match counts
    experts_only: bool = False  # only the routed experts are quantized
    assumed: bool = False  # the set of quantized modules is an assumption, because config.json was not read
    blocks: int = 0  # sides of the blocks with a common scale; a shard must be a multiple of them
    group: int = 0  # inputs with a common scale; a shard of the inputs must be a multiple of them
    narrow_cache: bool = False  # the checkpoint requests a KV cache in FP8
    wide_drafts: bool = False  # layers for multi-token prediction are not quantized
    measured: tuple[Rule, ...] = ()  # sizes of the checkpoint's tensors, with families as patterns
    outside: tuple[tuple[str, int], ...] = ()  # the same for modules outside of layers, in bytes of the whole module
    draft_size: float | None = None  # the same for layers for multi-token prediction, in bytes per element; None if unknown

    @property
    def quantized(self) -> bool:
        """Whether some weights have less than 16 bits."""
        least = 2 - 1 / 16 if self.measured else 2
        return (self.size < 2 and not self.measured) or any((rule.size or 2) < least for rule in self.measured or self.rules)

    def draft_bytes_of(self, module: Module, wide: int) -> float:
        """Return `bytes_of` for a module of the layers for multi-token prediction."""
        if self.draft_size is not None:
            return module.total * self.draft_size
        return module.total * wide if self.wide_drafts else self.bytes_of(module, wide)

    def bytes_of(self, module: Module, wide: int = 2) -> float:
        """Return the bytes of a module in the whole model. `wide` is the size of an element that is not quantized."""
        if self.outside and (known := dict(self.outside).get(module.name)) is not None:
            return known
        if not module.linear:
            return module.total * wide
        usual = self.size if not self.experts_only or module.shard is Shard.EXPERTS else float(wide)
        if not module.layers:
            return module.total * (wide if module.name in MARKS else usual)
        remaining, total = set(module.layers), 0.0
        family = find_family(module.name, is_expert=module.shard is Shard.EXPERTS) if self.measured else ""
        matching = [rule for rule in self.measured if rule.pattern == family]
        for rule in (*matching, *(rule for rule in self.rules if _matches(module.name, rule.pattern))):
            hit = remaining if rule.layers is None else remaining & rule.layers
            total += len(hit) * module.elements * (wide if rule.size is None else rule.size)
            remaining = remaining - hit
        return total + len(remaining) * module.elements * usual


class Names(Entry):
    """The content of `formats.yaml`: formats, and how checkpoints and people name formats and modules."""

    formats: Mapping[str, WeightFormat]
    methods: Mapping[str, str]
    experts_only: frozenset[str]
    grouped: frozenset[str]
    algorithms: Mapping[str, str]  # in the order in which they are tried
    usual_algorithms: Mapping[str, str]
    exclude_keys: tuple[str, ...]
    classes: frozenset[str]
    quantizations: Mapping[str, Quantization]
    packed: Mapping[str, Quantization]
    aliases: Mapping[str, str]
    ends: Mapping[str, str]
    not_linear: tuple[str, ...]
    no_name: frozenset[str]
    of_checkpoint: frozenset[str]
    gguf_bits: Mapping[str, float]


load_names = loader(Names, "formats.yaml")
"""Reads the names that ship with the package."""


def _format(name: str) -> WeightFormat:
    return load_names().formats[name]


def grouped_bytes(bits: int, group: int) -> float:
    """Return the bytes of a weight whose group has a common scale."""
    return bits / 8 + (SCALE_BYTES / group if group > 0 else 0)


def read_rules(names: Iterable[str], size: float | None) -> tuple[Rule, ...]:
    """Return rules for the modules of a list, such as `model.layers.3.self_attn*` or `re:.*shared_experts.*`."""
    layers: dict[str, set[int] | None] = {}
    named: dict[str, set[str]] = {}
    expressions = 0
    for name in names:
        expressions += name.startswith("re:") and "(" in name
        if expressions > MAX_EXPRESSIONS:
            break
        for pattern in _globs(name[:PATTERN_LENGTH]):
            own, path = _split(pattern)
            if expert := _EXPERT.search(path):  # all experts are one module here
                path = path[: expert.start(1)]
                named.setdefault(path, set()).add(expert[1])
            if len(layers) >= RULES_LIMIT and path not in layers:
                continue
            if own is None:
                layers[path] = None
            elif (known := layers.setdefault(path, set())) is not None:
                known.add(own)
    few = {path for path, experts in named.items() if len(experts) < FEW_EXPERTS}
    return tuple(Rule(path, None if own is None else frozenset(own), size) for path, own in layers.items() if path not in few)


_EXPERT = re.compile(r"\bexperts(\.[0-9]{1,5})(?:\.|$)")
_CHOICES = re.compile(r"\((?:\?:)?([^()|]{1,60}(?:\|[^()|]{1,60}){0,63})\)")
_REPEATED = re.compile(r"(?:\\d|\\w|\[0-9\]|\[\^\.\]|\.)[+*]")


def _globs(name: str) -> list[str]:
    """Return the globs for a name or a regular expression; none for an expression with conditions."""
    if not name.startswith("re:"):
        return [name]
    if "(?!" in name or "(?<" in name or "(?=" in name:
        return []
    found = [_REPEATED.sub("*", name[3:].replace("\\.", ".\0")).replace(".\0", ".").strip("^$")]
    for _ in range(MAX_GROUPS):
        choices = _CHOICES.search(found[0])
        if choices is None:
            break
        found = [each.replace(choices[0], choice, 1) for each in found for choice in choices[1].split("|")][:MAX_CHOICES]
    return found


_LAYER = re.compile(r"(?:^|[.*])layers\.(\d{1,5}|\*)(?:\.|(?=\*)|$)")


def _split(pattern: str) -> tuple[int | None, str]:
    """Split `model.layers.3.self_attn*` into the layer and the path inside a layer."""
    found = _LAYER.search(pattern)
    if found is None:
        return None, pattern.rpartition("model.")[2] or "*"
    path = pattern[found.end() :].lstrip(".") or "*"
    return (None if found[1] == "*" else int(found[1])), path


_PROJECTIONS = frozenset({"gate_proj", "up_proj", "gate_up_proj", "w1", "w2", "w3", "weight", "weight_scale"})
_JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}


@lru_cache(maxsize=4096)
def _matches(name: str, pattern: str) -> bool:
    parts = [load_names().aliases.get(part, part) for each in pattern.split(".") if (part := each.strip("*"))]
    if not parts:
        return "*" in pattern
    own = name.split(".")
    if len(parts) == 1 and pattern[0] == pattern[-1] == "*" and any(pattern.strip("*") in part for part in own):
        return True
    if parts[-1] in _JOINED and own[-1] in _JOINED[parts[-1]]:
        parts = [*parts[:-1], own[-1]]
    if parts[-1] in _PROJECTIONS and len(parts) > 1:
        parts = parts[:-1]
        if parts[-1] == "mlp":
            return name.endswith(".down_proj")  # the dense MLP is one module here
    if pattern.startswith("mlp*") and name.startswith(("mlp.experts", "mlp.gate")):
        return False  # Gemma 4 calls its dense MLP `mlp`, and its experts `experts`
    if "shared_experts" in parts:
        parts = parts[: parts.index("shared_experts") + 1]
    return any(own[at : at + len(parts)] == parts for at in range(len(own) - len(parts) + 1))


# The format in `quantization_config` of config.json.
#
# Each kind of checkpoint says in its own words which modules have another format: lists of modules that are not quantized, formats by
# pattern (`dynamic` of GPTQModel, `extra_config` of AutoRound, `layer_quant_config` of Quark), groups with targets (compressed-tensors), or
# a format for each layer (ModelOpt). Sources: vllm/model_executor/layers/quantization, 0.20.0 and 0.26.0.

USUAL_GROUP = 128


def read_quantization(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the quantization in a config.json; empty without one. Old files of ModelOpt have one more level."""
    places = (config, *(mapping(config, key) for key in NESTED))
    written = next((found for place in places if (found := mapping(place, "quantization_config"))), {})
    return {**mapping(written, "quantization"), **written}


def read_format(config: Mapping[str, Any], shape: ModelShape) -> WeightFormat:
    """Return the format in a config.json; 16 bits without one."""
    quantization = read_quantization(config)
    written = quantization or mapping(config, "compression_config")
    if not written:
        return WeightFormat("BF16", float(shape.element_bytes))
    listed = next((found for key in load_names().exclude_keys if (found := sequence(written.get(key)))), [])
    rules = read_rules([name for name in listed[:PATTERN_LIMIT] if isinstance(name, str)], None)
    method = str(written.get("quant_method", ""))[:40].lower()
    is_native = (mapping(config, "text_config").get("expert_dtype") or config.get("expert_dtype")) == "fp4"
    form = _format("DeepSeekV4") if is_native else _read_method(written, method, shape)
    # The patterns of AWQ and GPTQ take precedence over the list of modules that are not quantized.
    rules = (*form.rules, *rules) if method in load_names().grouped else (*rules, *form.rules)
    drafts = any("mtp" in rule.pattern for rule in rules if rule.size is None)
    return replace(form, rules=rules, wide_drafts=drafts, narrow_cache=requested_cache(quantization) is not None)


def requested_cache(written: Mapping[str, Any]) -> str | None:
    """Return the type of the KV cache that a checkpoint's quantization requests, as in `--kv-cache-dtype`; None for the model's type."""
    scheme = mapping(written, "kv_cache_scheme")
    narrow = (scheme.get("num_bits") == 8 and scheme.get("type") == "float") or text(written, "kv_cache_quant_algo")[:3].upper() == "FP8"
    return "fp8_e4m3" if narrow else None


def _read_method(written: Mapping[str, Any], method: str, shape: ModelShape) -> WeightFormat:
    algorithm = str(written.get("quant_algo") or "").upper()[:40]
    names = load_names()
    if method in names.grouped:
        return _grouped(written, method, shape)
    if method == "compressed-tensors":
        return _compressed(written)
    if method == "quark":
        return _quark(written, shape)
    if method in ("bitsandbytes", "bnb") and (written.get("load_in_4bit") or written.get("_load_in_4bit")):
        return _format("NF4")
    if method in names.methods:
        return replace(_format(names.methods[method]), experts_only=method in names.experts_only)
    if "quantized_layers" in written or algorithm == "MIXED_PRECISION":
        return _mixed(written)
    form = _find_algorithm(algorithm or names.usual_algorithms.get(method, ""))
    if form is None:
        return WeightFormat(method.upper() or "unknown", float(shape.element_bytes), assumed=True)
    block = written.get("weight_block_size")
    blocks = (read_integer(block[0]) if isinstance(block, list) and block else None) if form.name == "FP8" else None
    return replace(_format("FP8Block"), blocks=blocks) if blocks else form


def _find_algorithm(algorithm: str) -> WeightFormat | None:
    return next((_format(name) for part, name in load_names().algorithms.items() if part in algorithm), None)


def _rules_by_size(sizes: Iterable[tuple[str, float | None]]) -> tuple[Rule, ...]:
    named: dict[float | None, list[str]] = {}
    for pattern, size in islice(sizes, PATTERN_LIMIT):
        named.setdefault(size, []).append(pattern)
    return tuple(rule for size, patterns in named.items() for rule in read_rules(patterns, size))


def _grouped(written: Mapping[str, Any], method: str, shape: ModelShape) -> WeightFormat:
    """Return the format of AWQ, GPTQ or AutoRound: integers with a common scale, and other formats by pattern."""
    bits, group = _bits(written, 4), read_integer(written.get("group_size")) or USUAL_GROUP
    zeros = bits / 8 / group if group > 0 and method.startswith(("awq", "auto_awq")) else 0.0
    sizes = [  # regular expressions; a minus means that the modules are not quantized
        ("re:" + pattern.removeprefix("-:").removeprefix("+:"), None if pattern.startswith("-:") else _element_bytes(how, bits, group))
        for pattern, how in mapping(written, "dynamic").items()
    ]
    sizes += [
        ("re:" + pattern if "*" in pattern else pattern, _element_bytes(how, bits, group))
        for pattern, how in mapping(written, "extra_config").items()
    ]
    size = grouped_bytes(bits, group) + zeros
    outside = (("lm_head", round(shape.vocabulary * shape.hidden * size)),) if written.get("lm_head") is True else ()
    return WeightFormat(f"INT{bits}", size, _rules_by_size(sizes), group=max(group, 0), outside=outside)


def _element_bytes(how: Any, bits: int, group: int) -> float | None:
    """Return the bytes of a weight with these settings; None for 16 bits."""
    own, written = _bits(mapping(how), bits, most=16), read_integer(mapping(how).get("group_size"))
    return None if own >= 16 else grouped_bytes(own, written if written is not None else group)


def _bits(written: Mapping[str, Any], default: int, most: int = 8) -> int:
    bits = read_integer(written.get("bits") or written.get("w_bit"))
    return bits if bits is not None and 2 <= bits <= most else default


def _compressed(written: Mapping[str, Any]) -> WeightFormat:
    """Return the format of compressed-tensors: groups of layers with formats. A group for a whole class has the lowest precedence."""
    groups = [group for group in mapping(written, "config_groups").values() if isinstance(group, Mapping)][:PATTERN_LIMIT]
    classes = load_names().classes
    usual = [group for group in groups if any(target in classes for target in _targets(group))]
    form = _compressed_group(next(iter((*usual, *groups)), {}), written)
    own = tuple(
        rule
        for group in groups
        if group not in usual
        for rule in read_rules([target for target in _targets(group) if target not in classes], _compressed_group(group, written).size)
    )
    if groups and not usual and own:  # only named modules are quantized
        return replace(form, name="mixed" if len(groups) > 1 else form.name, size=2.0, rules=own)
    return replace(form, rules=own)


def _targets(group: Mapping[str, Any]) -> list[str]:
    listed = group.get("targets")
    return [target for target in listed[:PATTERN_LIMIT] if isinstance(target, str)] if isinstance(listed, list) else ["Linear"]


def _compressed_group(group: Mapping[str, Any], written: Mapping[str, Any]) -> WeightFormat:
    weights = mapping(group.get("weights"))
    bits, size = read_integer(weights.get("num_bits")) or 4, read_integer(weights.get("group_size")) or 0
    name, is_float = str(group.get("format") or written.get("format", ""))[:60], weights.get("type") == "float"
    if not 2 <= bits <= 8:
        return WeightFormat(f"INT{bits}", 2.0, assumed=True)
    if bits == 4 and (is_float or "fp4" in name):
        return _format("NVFP4" if "nvfp4" in name or (is_float and size == 16) else "MXFP4")
    if bits != 8:
        return WeightFormat(f"INT{bits}", grouped_bytes(bits, size or USUAL_GROUP), group=max(size, 0))
    if is_float and size == 32:
        return _format("MXFP8")
    if weights.get("strategy") == "block":
        return replace(_format("FP8Block"), name="FP8Block" if is_float else "INT8Block")
    return replace(_format("FP8" if is_float else "INT8"), size=grouped_bytes(8, size))


def _quark(written: Mapping[str, Any], shape: ModelShape) -> WeightFormat:
    """Return the format of AMD Quark: one format for all, and others by pattern."""
    usual = _quark_bytes(written.get("global_quant_config"))
    sizes = ((pattern, _quark_bytes(how)) for pattern, how in mapping(written.get("layer_quant_config")).items())
    size = usual if usual is not None else float(shape.element_bytes)
    name = next((name for name in ("MXFP4", "FP8") if _format(name).size == size), "QUARK")
    return WeightFormat(name, size, _rules_by_size(sizes), assumed=usual is None)


def _quark_bytes(how: Any) -> float | None:
    """Return the bytes of a weight; None for 16 bits. Formats with two steps are lists, whose first entry has the values."""
    weight = mapping(how).get("weight")
    weight = mapping(weight[0] if isinstance(weight, list) and weight else weight)
    kind, group = str(weight.get("dtype") or "")[:20].lower(), read_integer(weight.get("group_size")) or 0
    if kind == "fp4":
        return _format("MXFP4" if group != 16 else "NVFP4").size
    if kind.startswith("fp6"):
        return 0.75 + 1 / 32
    if kind.startswith(("fp8", "int8", "uint8")):
        return _format("FP8").size
    return grouped_bytes(4, group or USUAL_GROUP) if kind in ("int4", "uint4") else None


def _mixed(written: Mapping[str, Any]) -> WeightFormat:
    """Return the format of NVIDIA ModelOpt's mixed precision: each quantized layer is named with its format, others have 16 bits."""
    layers = mapping(written, "quantized_layers")
    if not layers:
        names = ("self_attn*", "linear_attn*", "mixer.in_proj")
        rules = tuple(Rule(name, None, _format("FP8").size) for name in names)
        return WeightFormat("mixed", _format("NVFP4").size, rules, assumed=True)
    found = {name: _find_algorithm(str(mapping(how).get("quant_algo", "")).upper()[:20]) for name, how in layers.items()}
    return WeightFormat("mixed", 2.0, _rules_by_size((name, form.size) for name, form in found.items() if form is not None))


# The format by a name: as people and logs write it, or in the name of a model.

GGUF_TYPE = re.compile(r"\bi?q[2-8]_[0-9a-z]{1,2}(?:_[sml])?\b")

IN_NAME = re.compile(
    r"(?<![a-z0-9])(awq|gptq|int[48]|[48]bit|bnb|autoround|gguf|bf16|fp[48]|nvfp4|mxfp[48]|w4a16|w8a8|i?q[2-8]_[0-9a-z]{1,2}(?:_[sml])?)"
    r"(?![a-z0-9])"
)
BLOCKED = ("qwen/", "deepseek-ai/", "minimaxai/")  # organisations whose checkpoints in FP8 have blocks with a common scale


def find_format(name: str, known: str) -> str:
    """Return the format in the name of a checkpoint (`awq` of `Qwen3-8B-AWQ`); empty without one besides the known model's."""
    found = [each for each in dict.fromkeys(IN_NAME.findall(name.lower()[:200])) if each not in known.lower()]
    return "fp8_block" if found == ["fp8"] and name.lower().startswith(BLOCKED) else " ".join(found)


def name_format(label: str, shape: ModelShape) -> WeightFormat | None:
    """Return the format for a name, such as `fp8_block` or `int4 (experts, group 32)`; None if it is empty or unknown."""
    form = _name_format(label, shape)
    # Layers for multi-token prediction are usually left out where weights have 4 bits.
    return replace(form, wide_drafts=True) if form is not None and form.name in ("NVFP4", "INT4") else form


def _name_format(label: str, shape: ModelShape) -> WeightFormat | None:
    """Return the format with the usual set of quantized modules for the format and the kind of model."""
    text = label.lower().strip()[:200].replace("-bit", "bit").replace("auto-round", "autoround")
    words = frozenset(re.findall(r"[a-z0-9]+", text))
    moe = shape.experts > 0
    experts = moe and "experts" in words
    if packed := GGUF_TYPE.search(text):
        return _gguf(shape, packed[0])
    if re.match(r"(none|bf16|fp16|bfloat16|float16|half)\b", text):
        return WeightFormat("BF16", float(shape.element_bytes))
    if "fbgemm" in words:
        return replace(_format("FP8"), rules=(Rule("self_attn*", None, None), Rule("*", frozenset({0, shape.layers - 1}), None)))
    if {"native", "fp4"} <= words or text == "deepseek_v4_fp8":
        return _format("DeepSeekV4")
    if words & {"nvfp4", "fp4"}:
        return _usual_nvfp4(shape, moe, "mixed" in words)
    if "mxfp4" in words:
        return replace(_format("MXFP4"), experts_only=moe)
    if "mxfp8" in words:
        return _format("MXFP8")
    if "fp8" in words and "block" in text:
        return replace(_format("FP8Block"), blocks=0) if "per" in words else _format("FP8Block")  # the flag: of weights that are cut
    if words & {"fp8", "float8", "modelopt"}:  # `modelopt` is vLLM's name for NVIDIA's checkpoints in FP8
        return replace(_format("FP8"), experts_only=experts and not words.isdisjoint({"fp8", "float8"}))
    if words & {"int8", "w8a8", "8bit", "w8a16"}:
        return replace(_format("INT8"), experts_only=experts)
    if words & {"bitsandbytes", "bnb", "nf4"}:
        return _format("NF4")
    if words & {"awq", "gptq", "int4", "w4a16", "w4a8", "4bit", "autoround"}:
        stated = re.search(r"group (?:size )?([0-9]{1,4})", text)
        group = int(stated[1]) if stated and int(stated[1]) > 0 else USUAL_GROUP
        zeros = 0.5 / group if "awq" in words else 0.0
        plain = bool(words & {"awq", "gptq"}) and not experts
        return WeightFormat("INT4", grouped_bytes(4, group) + zeros, experts_only=experts, assumed=not plain, group=group)
    return None


def _gguf(shape: ModelShape, name: str) -> WeightFormat | None:
    """Return a GGUF format: nearly all tensors are quantized, including the embedding, to several types."""
    size = load_names().gguf_bits.get(name, 0.0) / 8
    outside = tuple((each.name, round(each.total * size)) for each in shape.modules if each.shard is Shard.VOCABULARY)
    return WeightFormat(name.upper(), size, outside=outside) if size else None


def _usual_nvfp4(shape: ModelShape, moe: bool, mixed: bool) -> WeightFormat:
    """Return NVIDIA's usual format: experts in 4 bits, the rest in 16; attention in FP8 with mixed precision and for dense hybrids."""
    hybrid = any(module.name.startswith(("linear_attn", "mixer")) for module in shape.modules)
    if moe and not mixed:
        return replace(_format("NVFP4"), experts_only=True, assumed=True)
    if not (mixed or hybrid):
        return replace(_format("NVFP4"), assumed=True)
    narrow = ("linear_attn*", "mixer.in_proj*", "mixer.out_proj*", "mixer.shared_experts*")
    fp8 = _format("FP8").size
    rules = [Rule(name, None, fp8) for name in narrow]
    rules += [Rule("self_attn*", None, fp8 if hybrid and not moe else None), Rule("mixer.latent_proj", None, None)]
    # With attention in FP8 the KV cache has FP8 too, ModelOpt's default (hf_ptq.py --kv_cache_qformat).
    return replace(_format("NVFP4"), rules=tuple(rules), assumed=True, narrow_cache=True)


# The format of weights from the tensors of a checkpoint: bytes of the modules of each layer.

LEAST, MOST = 0.25, 4.5  # Bounds for the bytes of an element. Values outside mean that the names were not understood.
DIGITS = 4


def measure_format(form: WeightFormat, shape: ModelShape, sizes: TensorSizes) -> WeightFormat | None:
    """Return the format of config.json with the measured bytes of all tensors; None if the tensor names do not match the model."""
    measured: dict[tuple[str, float], set[int]] = {}
    for (family, layer), elements in _elements(shape.modules).items():
        size = (sizes[family, layer] or sizes["mixer", layer]) / elements
        if not LEAST <= size <= MOST:
            return None
        measured.setdefault((family, round(size, DIGITS)), set()).add(layer)
    rules = tuple(Rule(family, frozenset(own), size) for (family, size), own in measured.items())
    outside = tuple((module.name, size) for module in shape.modules if (size := sizes[module.name, OUTSIDE]))
    drafted, elements = {family for family, _ in _elements(shape.drafts)}, sum(module.total for module in shape.drafts)
    own = sizes[DRAFTS, OUTSIDE] + sum(size for (family, layer), size in sizes.items() if layer >= shape.layers and family in drafted)
    size = own / elements if elements else 0.0
    return replace(form, measured=rules, outside=outside, draft_size=size if LEAST <= size <= MOST else None, assumed=False)


def _elements(modules: Iterable[Module]) -> Counter[tuple[str, int]]:
    counted: Counter[tuple[str, int]] = Counter()
    for module in modules:
        if module.layers and module.linear and module.elements:
            for layer in module.layers:
                counted[find_family(module.name, is_expert=module.shard is Shard.EXPERTS), layer] += module.elements
    return counted
