"""The conditions of rules, and the situations that they are held against.

A condition names the facts that must hold. A fact that is unknown satisfies no condition that asks for it:
where something is not known, no rule applies and the choice stays with vLLM.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.catalog.versions import Release, parse_release

MEMBERS: Mapping[str, str] = {
    "architectures": "architecture",
    "attention": "attention",
    "quantizations": "quantization",
    "families": "family",
    "routing": "routing",
    "optimizeFor": "optimize_for",
    "distributions": "distribution",
    "allocations": "allocation",
    "mixtureOfExperts": "mixture_of_experts",
    "expertParallel": "expert_parallel",
    "exchangesTokens": "exchanges_tokens",
    "mig": "mig",
    "deepSeekHeads": "deepseek_heads",
    "unevenBlocks": "uneven_blocks",
    "unevenHeads": "uneven_heads",
    "unevenWidth": "uneven_width",
    "unevenExperts": "uneven_experts",
}
"""Keys of a condition that list accepted values, and the facts that they are about."""

NUMBERS: Mapping[str, str] = {
    "tensor": "tensor",
    "pipeline": "pipeline",
    "data": "data",
    "expertTensor": "expert_tensor",
    "experts": "experts",
    "routingGroups": "routing_groups",
    "headsPerRank": "heads_per_rank",
    "weightGigabytes": "weight_gigabytes",
    "sliceGigabytes": "slice_gigabytes",
}
"""Keys of a condition that give a range of numbers, such as `>=2,<8`, and the facts that they are about."""

ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "sm_7x": ("sm_70", "sm_72", "sm_75"),
    "sm_8x": ("sm_80", "sm_86", "sm_87", "sm_88"),
    "sm_10x": ("sm_100", "sm_103"),
    "sm_12x": ("sm_120", "sm_121"),
}
"""Names of a condition that stand for several architectures. sm_89 is not in sm_8x: it has FP8 arithmetic."""

VALUE_LIMIT = 4096
"""Characters of a variable or argument that are looked at by a pattern; a longer one is unknown, like what is absent."""

_CLAUSE = re.compile(r"^(>=|<=|==|>|<)\s*([0-9][0-9.]*)$")


@dataclass(frozen=True, slots=True)
class RuleInput:
    """What is known when backends are chosen. None: unknown.

    `exchanges_tokens` says whether tokens travel between GPUs to their experts: expert parallelism with more
    than one data-parallel rank. `deepseek_heads` says whether the MLA head sizes are those of DeepSeek R1.
    `expert_tensor` is the number of GPUs that each expert is cut over; 1 with expert parallelism. `uneven_blocks` says whether
    the experts, cut like that, are no multiple of the scales' blocks, `uneven_heads` whether the attention heads cannot be shared
    out evenly, `uneven_experts` whether the experts cannot, `uneven_width` whether a layer's width is no multiple of 128.
    `slice_gigabytes` is the memory of a MIG slice by its profile. Sizes are decimal gigabytes.
    `environment` and `arguments` are what the user set on the engine, flags spelled `--like-this`.
    """

    release: Release
    architecture: str | None = None
    attention: str | None = None
    quantization: str | None = None
    family: str | None = None
    routing: str | None = None
    mixture_of_experts: bool | None = None
    experts: int | None = None
    routing_groups: int | None = None
    heads_per_rank: int | None = None
    weight_gigabytes: float | None = None
    slice_gigabytes: float | None = None
    deepseek_heads: bool | None = None
    uneven_blocks: bool | None = None
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
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Range:
    """An interval of numbers or releases; a bound is a value and whether it belongs to the interval."""

    low: Any = None
    low_included: bool = True
    high: Any = None
    high_included: bool = False

    def contains(self, value: Any) -> bool:
        """Whether the value lies in the interval."""
        if self.low is not None and (value < self.low or (value == self.low and not self.low_included)):
            return False
        return self.high is None or value < self.high or (value == self.high and self.high_included)

    def disjoint(self, other: "Range") -> bool:
        """Whether no value lies in both intervals."""
        return _before(self, other) or _before(other, self)


def _before(one: Range, other: Range) -> bool:
    if one.high is None or other.low is None:
        return False
    return bool(one.high < other.low) or (one.high == other.low and not (one.high_included and other.low_included))


def parse_range(text: str, *, releases: bool = False) -> Range:
    """Read `>=0.17.1,<0.20` or `>=2` or `0`.

    Raises:
        ValueError: It cannot be read.
    """
    bounds: dict[str, Any] = {}
    for clause in str(text).split(","):
        match = _CLAUSE.match(clause.strip()) or _CLAUSE.match(f"=={clause.strip()}")
        if match is None:
            raise ValueError(f"{text!r} is not a range: write for example '>=2' or '>=0.17.1,<0.20'")
        value = parse_release(match[2] if "." in match[2] else f"{match[2]}.0") if releases else float(match[2])
        if value is None:
            raise ValueError(f"{clause.strip()!r} is not a version: write for example '>=0.17.1'")
        if match[1] in (">", ">=", "=="):
            bounds |= {"low": value, "low_included": match[1] != ">"}
        if match[1] in ("<", "<=", "=="):
            bounds |= {"high": value, "high_included": match[1] != "<"}
    return Range(**bounds)


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """What must hold for a rule to apply. An empty condition always holds.

    `chosen` looks at the backends chosen so far, `forced` only at those that the user forced; both by component.
    """

    versions: Range = Range()
    members: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    excluded: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    numbers: Mapping[str, Range] = field(default_factory=dict)
    chosen: Mapping[str, frozenset[str]] = field(default_factory=dict)
    forced: Mapping[str, frozenset[str]] = field(default_factory=dict)
    environment: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    arguments: Mapping[str, re.Pattern[str]] = field(default_factory=dict)

    def holds(self, rule_input: RuleInput, chosen: Mapping[str, str], forced: Mapping[str, str]) -> bool:
        """Whether the condition holds, given the backends chosen so far and those that the user forced."""
        # Plain loops: this is asked some hundred times for each plan, and most rules fail at their first fact.
        for fact, values in self.members.items():
            if getattr(rule_input, fact) not in values:
                return False
        for fact, values in self.excluded.items():
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
        for patterns, settings in ((self.environment, rule_input.environment), (self.arguments, rule_input.arguments)):
            for name, pattern in patterns.items():
                if not _found(pattern, settings.get(name)):
                    return False
        return True

    def possible(self, rule_input: RuleInput, chosen: Mapping[str, str]) -> bool:
        """Whether nothing that is known speaks against the condition: unknown facts are given the benefit of the doubt."""
        return (
            self.versions.contains(rule_input.release)
            and all((value := getattr(rule_input, fact)) is None or value in values for fact, values in self.members.items())
            and not any(getattr(rule_input, fact) in values for fact, values in self.excluded.items())
            and all((n := getattr(rule_input, fact)) is None or span.contains(n) for fact, span in self.numbers.items())
            and all(chosen.get(component, "") in ("", *names) for component, names in self.chosen.items())
            and all(_found(pattern, rule_input.arguments.get(name)) for name, pattern in self.arguments.items())
        )

    def disjoint(self, other: "RuleMatch") -> bool:
        """Whether the two can be told never to hold at once."""
        if self.versions.disjoint(other.versions):
            return True
        sets = ((self.members, other.members), (self.chosen, other.chosen), (self.forced, other.forced))
        if any(mine[key].isdisjoint(theirs[key]) for mine, theirs in sets for key in mine.keys() & theirs.keys()):
            return True
        if any(
            one.members[key] <= two.excluded[key]
            for one, two in ((self, other), (other, self))
            for key in one.members.keys() & two.excluded.keys()
        ):
            return True
        return any(self.numbers[key].disjoint(other.numbers[key]) for key in self.numbers.keys() & other.numbers.keys())


def _found(pattern: re.Pattern[str], value: str | None) -> bool:
    return value is not None and len(value) <= VALUE_LIMIT and pattern.search(value) is not None


def parse_match(data: Mapping[str, Any], compile_pattern: Callable[[str], re.Pattern[str]] = re.compile) -> RuleMatch:
    """Read the `when` of a rule. `compile_pattern` reads the regular expressions in it.

    Raises:
        ValueError: A key is not known, or a value cannot be read.
    """
    known = {"versions", "except", "chosen", "forced", "environment", "arguments", *MEMBERS, *NUMBERS}
    if unknown := sorted(set(data) - known):
        raise ValueError(f"unknown condition {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return RuleMatch(
        versions=parse_range(data["versions"], releases=True) if "versions" in data else Range(),
        members=_members(data),
        excluded=_members(data.get("except", {})),
        numbers={NUMBERS[key]: parse_range(data[key]) for key in NUMBERS if key in data},
        chosen={component: frozenset(_listed(names)) for component, names in data.get("chosen", {}).items()},
        forced={component: frozenset(_listed(names)) for component, names in data.get("forced", {}).items()},
        environment={name: compile_pattern(pattern) for name, pattern in data.get("environment", {}).items()},
        arguments={name: compile_pattern(pattern) for name, pattern in data.get("arguments", {}).items()},
    )


def _members(data: Mapping[str, Any]) -> dict[str, frozenset[Any]]:
    values = {key: _listed(data[key]) for key in MEMBERS if key in data}
    return {
        MEMBERS[key]: frozenset(one for value in listed for one in ARCHITECTURES.get(value, (value,))) for key, listed in values.items()
    }


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else [value]
