"""The conditions of rules, and the facts for them.

A condition lists required facts. An unknown fact satisfies no requirement: then no rule applies, and vLLM chooses.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cached_property
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, StrictBool

from vllm_operator.api.spec import Allocation, Attention, Distribution, OptimizeFor, Quantization
from vllm_operator.catalog.entry import Entry, Expression, matching, quote, read_text
from vllm_operator.catalog.models import Facts
from vllm_operator.catalog.versions import Release, parse_release

ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "sm_7x": ("sm_70", "sm_72", "sm_75"),
    "sm_8x": ("sm_80", "sm_86", "sm_87", "sm_88"),
    "sm_10x": ("sm_100", "sm_103"),
    "sm_12x": ("sm_120", "sm_121"),
}
"""Condition values for several architectures. sm_89 is not in sm_8x, because it has FP8 arithmetic."""

KV_CACHE_FLAG, AUTOMATIC = "--kv-cache-dtype", "auto"
SETTINGS_LIMIT = 16
"""Maximum number of variables, flags or patterns in one mapping of a rule."""
VALUE_LIMIT = 4096
"""Maximum characters of a variable or argument for a pattern. A longer one is unknown, like an absent one."""

_CLAUSE = re.compile(r"^(>=|<=|==|>|<)\s*([0-9]+(?:\.[0-9]+){0,3})$")


class Component(StrEnum):
    """Parts of the engine that have a choice of backends, in the order in which they are decided."""

    ATTENTION = "Attention"
    MLA_DECODE = "MLADecode"
    SPARSE_ATTENTION = "SparseAttention"
    MLA_PREFILL = "MLAPrefill"
    LINEAR_ATTENTION = "LinearAttention"
    GEMM = "GEMM"
    ALL_TO_ALL = "AllToAll"
    MOE = "MoE"
    ALL_REDUCE = "AllReduce"
    SAMPLER = "Sampler"
    KV_CACHE = "KVCache"
    SPECULATIVE_DECODING = "SpeculativeDecoding"
    ENGINE = "Engine"
    """Settings of the engine as a whole. Only quirks have this component."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleInput(Facts):
    """Facts for the choice of backends: those of the model, and of the GPU and the spec. None: unknown. See `Condition`.

    `environment` and `arguments` are the user's settings of the engine, with flags spelled `--like-this`.
    """

    release: Release
    architecture: str | None = None
    family: str | None = None
    class_since: Release | None = None
    newer_class: bool | None = None
    mixture_of_experts: bool | None = None
    heads_per_rank: int | None = None
    weight_gigabytes: float | None = None
    slice_gigabytes: float | None = None
    slice_compute: int | None = None
    deepseek_heads: bool | None = None
    unequal_heads: bool | None = None
    uneven_blocks: bool | None = None
    uneven_groups: bool | None = None
    uneven_heads: bool | None = None
    uneven_width: bool | None = None
    uneven_experts: bool | None = None
    optimize_for: str = "Throughput"
    distribution: str = "vLLM"
    allocation: str = "DevicePlugin"
    mig: bool = False
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert_tensor: int = 1
    expert_parallel: bool = False
    exchanges_tokens: bool = False
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)  # a mapping has no hash; it counts for equality
    arguments: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def effective_arguments(self) -> Mapping[str, str]:
        """The arguments, with the type of the KV cache that the checkpoint requests if the user gives none."""
        if self.kv_cache is None or self.arguments.get(KV_CACHE_FLAG, AUTOMATIC) != AUTOMATIC:
            return self.arguments
        return {**self.arguments, KV_CACHE_FLAG: self.kv_cache}


@dataclass(frozen=True, slots=True)
class Range:
    """An interval of numbers or releases. A bound is a value and whether the interval includes it."""

    low: Any = None
    low_included: bool = True
    high: Any = None
    high_included: bool = False

    def contains(self, value: Any) -> bool:
        """Return whether the value lies in the interval."""
        if self.low is not None and (value < self.low or (value == self.low and not self.low_included)):
            return False
        return self.high is None or value < self.high or (value == self.high and self.high_included)

    def disjoint(self, other: "Range") -> bool:
        """Return whether no value lies in both intervals."""
        return any(
            below.high < above.low or (below.high == above.low and not (below.high_included and above.low_included))
            for below, above in ((self, other), (other, self))
            if below.high is not None and above.low is not None
        )


def parse_range(text: object, *, releases: bool = False) -> Range:
    """Read a range of numbers or versions: `>=0.17.1,<0.20`, `>=2` or `0`. Raises ValueError if the text is none."""
    bounds: dict[str, Any] = {}
    for clause in str(text).split(","):
        match = _CLAUSE.match(clause.strip()) or _CLAUSE.match(f"=={clause.strip()}")
        if match is None or (not releases and match[2].count(".") > 1):
            raise ValueError(f"{quote(text)} is not a range: write for example '>=2' or '>=0.17.1,<0.20'")
        value = parse_release(match[2] if "." in match[2] else f"{match[2]}.0") if releases else float(match[2])
        if value is None:
            raise ValueError(f"{quote(clause.strip())} is not a version: write for example '>=0.17.1'")
        if match[1] in (">", ">=", "=="):
            bounds |= {"low": value, "low_included": match[1] != ">"}
        if match[1] in ("<", "<=", "=="):
            bounds |= {"high": value, "high_included": match[1] != "<"}
    return Range(**bounds)


def _read_number(value: object) -> Range:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("write a number, or a range such as '>=2,<8'")
    return parse_range(value)


Element = TypeVar("Element")
OneOrMore = Annotated[frozenset[Element], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]
"""A value, or a list of values, one of which must match."""
Releases = Annotated[Range, PlainValidator(lambda value: parse_range(read_text(value, "0.20"), releases=True))]
Number = Annotated[Range, PlainValidator(_read_number)]
_is_architecture = matching(
    r"sm_([0-9]{2,3}|(7|8|10|12)x)", "is not an architecture; one looks like sm_90, or sm_12x for sm_120 and sm_121"
)
ArchitectureName = Annotated[str, AfterValidator(_is_architecture)]
_EXPANDED = AfterValidator(lambda names: frozenset(each for name in names for each in ARCHITECTURES.get(name, (name,))))
Patterns = Annotated[Mapping[str, Expression], Field(max_length=SETTINGS_LIMIT)]


def _values(description: str, alias: str | None = None) -> Any:
    return Field(frozenset(), alias=alias, description=description)


class FactValues(Entry):
    """Values of facts, by fact: the field names are as in `RuleInput`."""

    architecture: Annotated[OneOrMore[ArchitectureName], _EXPANDED] = _values(
        "`sm_90`; `sm_7x`, `sm_8x`, `sm_10x` and `sm_12x` stand for their families", "architectures"
    )
    attention: OneOrMore[Attention] = _values("kind of attention")
    quantization: OneOrMore[Quantization] = _values("number format of the weights", "quantizations")
    quantization_scheme: OneOrMore[str] = _values(
        "how the format is published: `modelopt`, `compressed` for compressed-tensors", "quantizationSchemes"
    )
    model_class: OneOrMore[str] = _values("class of the model, as `architectures` in config.json has it", "modelClasses")
    dtype: OneOrMore[str] = _values("type in which a quantized model computes, by its name in PyTorch", "dtypes")
    family: OneOrMore[str] = _values("family of the model, as `vllm-operator catalog models` lists them", "families")
    routing: OneOrMore[str] = _values("how the router picks experts, by vLLM's name")
    optimize_for: OneOrMore[OptimizeFor] = _values("`spec.optimizeFor`")
    distribution: OneOrMore[Distribution] = _values("build of vLLM", "distributions")
    allocation: OneOrMore[Allocation] = _values("how the GPUs are requested", "allocations")
    newer_class: OneOrMore[StrictBool] = _values("vLLM has the class of the model only in newer versions")
    mixture_of_experts: OneOrMore[StrictBool] = _values("the model has experts")
    expert_parallel: OneOrMore[StrictBool] = _values("experts are spread over the GPUs")
    exchanges_tokens: OneOrMore[StrictBool] = _values(
        "tokens travel between GPUs to their experts: expert parallelism with more than one data-parallel rank"
    )
    mig: OneOrMore[StrictBool] = _values("the GPU is a MIG slice")
    kv_cache: OneOrMore[str] = _values("type of the KV cache that the checkpoint requests, by vLLM's name", "checkpointCaches")
    desc_act: OneOrMore[StrictBool] = _values("weights in GPTQ are ordered by activation across groups (`desc_act`)")
    windowed: OneOrMore[StrictBool] = _values("some layers have a sliding window")
    dual_chunk: OneOrMore[StrictBool] = _values("config.json has `dual_chunk_attention_config`")
    deepseek_heads: OneOrMore[StrictBool] = _values("the MLA head sizes are those of DeepSeek R1", "deepSeekHeads")
    unequal_heads: OneOrMore[StrictBool] = _values("keys and values have heads of different sizes, without MLA")
    uneven_blocks: OneOrMore[StrictBool] = _values("the part of an expert on one GPU is not a multiple of the blocks that share a scale")
    uneven_groups: OneOrMore[StrictBool] = _values("the part of an expert on one GPU is not a multiple of the groups that share a scale")
    uneven_heads: OneOrMore[StrictBool] = _values("the attention heads do not divide by the tensor-parallel size")
    uneven_width: OneOrMore[StrictBool] = _values("the width of a layer is not a multiple of 128")
    uneven_experts: OneOrMore[StrictBool] = _values("the experts do not divide by the number of GPUs")

    @cached_property
    def members(self) -> Mapping[str, frozenset[Any]]:
        """The given values by fact, as plain values."""
        given = (fact for fact in FactValues.model_fields if fact in self.model_fields_set)
        return {fact: frozenset(one.value if isinstance(one, Enum) else one for one in getattr(self, fact)) for fact in given}


class Condition(FactValues):
    """The `when` of a rule. All given facts must hold; an empty condition always holds."""

    versions: Releases = Field(Range(), description="vLLM versions in quotes: `'>=0.17.1,<0.20'`")
    tensor: Number = Field(Range(), description="tensor-parallel size: a number or a range such as `'>=2,<8'`")
    pipeline: Number = Field(Range(), description="pipeline-parallel size")
    data: Number = Field(Range(), description="data-parallel size")
    expert_tensor: Number = Field(Range(), description="number of GPUs that share one expert; 1 with expert parallelism")
    experts: Number = Field(Range(), description="routed experts of a layer")
    routing_groups: Number = Field(Range(), description="groups of experts")
    heads_per_rank: Number = Field(Range(), description="attention heads on one GPU")
    group_size: Number = Field(Range(), description="weights in integers that share a scale")
    head_size: Number = Field(Range(), description="size of an attention head without MLA")
    weight_gigabytes: Number = Field(Range(), description="size of all weights, in decimal gigabytes")
    slice_gigabytes: Number = Field(Range(), description="memory of the MIG slice by its profile, in decimal gigabytes")
    slice_compute: Number = Field(Range(), description="compute slices of the MIG slice by its profile: 1 for `1g.10gb`")
    excluded: FactValues = Field(FactValues(), alias="except", description="values of the facts above that must not hold")
    chosen: Mapping[Component, OneOrMore[str]] = Field({}, description="backends chosen so far, by component")
    forced: Mapping[Component, OneOrMore[str]] = Field({}, description="backends that the user forced, by component")
    environment: Patterns = Field({}, description="variables that the user set: a regular expression by name")
    arguments: Patterns = Field(
        {}, description="flags that the user set, and `--kv-cache-dtype` as the checkpoint requests it: a regular expression by name"
    )

    @cached_property
    def numbers(self) -> Mapping[str, Range]:
        """The given ranges by fact."""
        return {fact: getattr(self, fact) for fact in NUMBERS if fact in self.model_fields_set}

    def holds(self, rule_input: RuleInput, chosen: Mapping[str, str], forced: Mapping[str, str]) -> bool:
        """Return whether the condition holds, given the backends chosen so far and those that the user forces."""
        # Plain loops: this runs some hundred times per plan, and most rules fail at their first fact.
        for fact, values in self.members.items():
            if getattr(rule_input, fact) not in values:
                return False
        for fact, values in self.excluded.members.items():
            if getattr(rule_input, fact) in values:
                return False
        for fact, span in self.numbers.items():
            number = getattr(rule_input, fact)
            if number is None or not span.contains(number):
                return False
        for wanted, actual in ((self.chosen, chosen), (self.forced, forced)):
            for component, names in wanted.items():
                if actual.get(component) not in names:
                    return False
        for patterns, settings in ((self.environment, rule_input.environment), (self.arguments, rule_input.effective_arguments)):
            for name, pattern in patterns.items():
                if not _found(pattern, settings.get(name)):
                    return False
        return True

    def possible(self, rule_input: RuleInput, chosen: Mapping[str, str]) -> bool:
        """Return whether no known fact contradicts the condition. Unknown facts do not contradict it."""
        return (
            self.versions.contains(rule_input.release)
            and all((value := getattr(rule_input, fact)) is None or value in values for fact, values in self.members.items())
            and not any(getattr(rule_input, fact) in values for fact, values in self.excluded.members.items())
            and all((n := getattr(rule_input, fact)) is None or span.contains(n) for fact, span in self.numbers.items())
            and all(chosen.get(component, "") in ("", *names) for component, names in self.chosen.items())
            and all(_found(pattern, rule_input.effective_arguments.get(name)) for name, pattern in self.arguments.items())
        )

    def disjoint(self, other: "Condition") -> bool:
        """Return whether both conditions can never hold at the same time, as far as the conditions show."""
        if self.versions.disjoint(other.versions):
            return True
        pairs: list[tuple[Mapping[Any, Any], Mapping[Any, Any]]]
        pairs = [(self.members, other.members), (self.chosen, other.chosen), (self.forced, other.forced)]
        if any(mine[key].isdisjoint(theirs[key]) for mine, theirs in pairs for key in mine.keys() & theirs.keys()):
            return True
        if any(
            one.members[key] <= two.excluded.members[key]
            for one, two in ((self, other), (other, self))
            for key in one.members.keys() & two.excluded.members.keys()
        ):
            return True
        return any(self.numbers[key].disjoint(other.numbers[key]) for key in self.numbers.keys() & other.numbers.keys())


NUMBERS = tuple(name for name, field in Condition.model_fields.items() if field.annotation is Range and name != "versions")
"""Facts that are numbers."""


def _found(pattern: re.Pattern[str], value: str | None) -> bool:
    return value is not None and len(value) <= VALUE_LIMIT and pattern.search(value) is not None
