"""How many bytes the weights of each module take, by rules for paths of modules.

What a checkpoint leaves in 16 bits is the largest source of error, so the lists of config.json are read. Their patterns are untrusted: they
are read as globs, never run as regular expressions.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from vllm_operator.planning.memory.layers import Module, Shard
from vllm_operator.planning.model.tensors import ALIASES, find_family

PATTERN_LIMIT, PATTERN_LENGTH = 20_000, 200
RULES_LIMIT = 256
"""Paths inside a layer. Lists of thousands of modules have some dozen of them, each for many layers."""
SCALE_BYTES = 2
"""Bytes of a scale or a zero point of a group of weights."""
FP8_BYTES, NVFP4_BYTES, MXFP4_BYTES, MXFP8_BYTES = 1.0, 0.5 + 1 / 16, 0.5 + 1 / 32, 1 + 1 / 32
BLOCK_BYTES = 1 + 4 / (128 * 128)
NF4_BYTES = 0.5 + 4 / 64
"""4 bits, and 32 bits for each 64 weights, also with double quantization (model_loader/bitsandbytes_loader.py, 0.20.0)."""
FEW_EXPERTS = 8
MOST_EXPRESSIONS, MOST_GROUPS, MOST_CHOICES = 512, 4, 64
"""Regular expressions of a list, groups of alternatives in one, and globs that come of it: expressions are untrusted."""
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


def grouped_bytes(bits: int, group: int) -> float:
    """Return the bytes of a weight whose group has a common scale."""
    return bits / 8 + (SCALE_BYTES / group if group > 0 else 0)


def read_rules(names: Iterable[str], size: float | None) -> tuple[Rule, ...]:
    """Rules for the modules of a list, such as `model.layers.3.self_attn*` or `re:.*shared_experts.*`."""
    layers: dict[str, set[int] | None] = {}
    named: dict[str, set[str]] = {}
    expressions = 0
    for name in names:
        expressions += name.startswith("re:") and "(" in name
        if expressions > MOST_EXPRESSIONS:
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
    """The globs that a name or a regular expression means; none for an expression with conditions."""
    if not name.startswith("re:"):
        return [name]
    if "(?!" in name or "(?<" in name or "(?=" in name:
        return []
    found = [_REPEATED.sub("*", name[3:].replace("\\.", ".\0")).replace(".\0", ".").strip("^$")]
    for _ in range(MOST_GROUPS):
        choices = _CHOICES.search(found[0])
        if choices is None:
            break
        found = [each.replace(choices[0], choice, 1) for each in found for choice in choices[1].split("|")][:MOST_CHOICES]
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


_PARTS = ALIASES | {"in_proj_qkv": "in_proj_qkvz"}
_JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}


@lru_cache(maxsize=4096)
def _matches(name: str, pattern: str) -> bool:
    parts = [_PARTS.get(part.strip("*"), part.strip("*")) for part in pattern.split(".")]
    parts = [part for part in parts if part]
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
    return _contains(own, parts)


def _contains(own: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether `parts` are adjacent parts of the path `own`."""
    return any(list(own[at : at + len(parts)]) == list(parts) for at in range(len(own) - len(parts) + 1))
