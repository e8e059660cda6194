"""Which backends to use where, as data: rules, and how a backend is asked for in each version.

A rule says for one component under which condition it applies and what follows. Four kinds of knowledge
compete, in this order: what the user forces; a quirk (a combination known to fail, and the way around it);
a choice (what is best here); what the engine would do by itself. Within a kind the rule with the highest
priority wins; two rules of the same kind, component and priority may not both apply unless they agree, which
is checked when the rules are loaded.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import combinations
from typing import Any

from vllm_operator.catalog.invocations import Invocation, load_invocations
from vllm_operator.catalog.kernels import Kernels, load_kernels
from vllm_operator.catalog.resources import list_data, read_data
from vllm_operator.catalog.rule_matching import RuleMatch, parse_match
from vllm_operator.catalog.versions import Release


class RuleKind(StrEnum):
    """What kind of knowledge a rule is."""

    QUIRK = "quirk"
    CHOICE = "choice"
    ENGINE = "engine"


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
    """Settings of the engine as a whole: only quirks have it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    `backend` is what is chosen; `alternatives` are what the engine may take in its place by itself, for reasons that
    cannot be seen from outside. `environment` and `arguments` are set besides. `refuse` stops the deployment and
    `warn` is told to the user; both say what is the case and what can be done. `because` is the reason in one
    sentence, `source` where it is known from.
    """

    id: str
    component: Component
    kind: RuleKind
    when: RuleMatch
    because: str
    source: str
    backend: str | None = None
    alternatives: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str | None] = field(default_factory=dict)
    refuse: str | None = None
    warn: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules in order of precedence, the ways to ask for a backend, and where backends work."""

    rules: tuple[Rule, ...]
    invocations: tuple[Invocation, ...]
    kernels: Kernels

    def of(self, release: Release) -> "Rules":
        """The part that concerns one version."""
        return Rules(
            tuple(rule for rule in self.rules if rule.when.versions.contains(release)),
            tuple(invocation for invocation in self.invocations if invocation.when.versions.contains(release)),
            self.kernels,
        )


class RuleError(ValueError):
    """Rules that cannot be used: malformed, or in conflict with each other."""


_KEYS = {"id", "component", "kind", "when", "because", "source", "priority"}
_KEYS |= {"backend", "alternatives", "environment", "arguments", "refuse", "warn"}

_LIMITS = {"id": 128, "backend": 64, "because": 900, "source": 350, "refuse": 1000, "warn": 1000, "environment": 2000, "arguments": 2000}


def parse_rule(data: Mapping[str, Any], compile_pattern: Callable[[str], re.Pattern[str]] = re.compile) -> Rule:
    """Read one rule. `compile_pattern` reads the regular expressions in it.

    Raises:
        RuleError: It is malformed; the message names the rule and what is wrong.
    """
    name = data.get("id", "without an id")
    try:
        if unknown := sorted(set(data) - _KEYS):
            raise ValueError(f"unknown key {', '.join(unknown)}")
        _check_lengths(data)
        rule = Rule(
            id=data["id"],
            component=Component(data["component"]),
            kind=RuleKind(data["kind"]),
            when=parse_match(data.get("when", {}), compile_pattern),
            because=data["because"],
            source=data["source"],
            backend=data.get("backend"),
            alternatives=tuple(data.get("alternatives", ())),
            environment={key: str(value) for key, value in data.get("environment", {}).items()},
            arguments={key: None if value is None else str(value) for key, value in data.get("arguments", {}).items()},
            refuse=data.get("refuse"),
            warn=data.get("warn"),
            priority=data.get("priority", 0),
        )
    except KeyError as error:
        raise RuleError(f"rule {name}: {error.args[0]} is missing") from error
    except (ValueError, TypeError, AttributeError, re.error) as error:
        raise RuleError(f"rule {name}: {error}") from error
    if rule.alternatives and rule.kind is not RuleKind.ENGINE:
        raise RuleError(f"rule {name}: alternatives are what the engine takes by itself; only a rule of the kind engine has them")
    if not (rule.backend or rule.environment or rule.arguments or rule.refuse or rule.warn):
        raise RuleError(f"rule {name}: nothing follows from it; give backend, environment, arguments, refuse or warn")
    return rule


def _check_lengths(data: Mapping[str, Any]) -> None:
    """What a rule says ends up in the status, whose texts are bounded."""
    for key, limit in _LIMITS.items():
        if len(str(data.get(key, ""))) > limit:
            raise ValueError(f"{key} is longer than {limit} characters")


def find_conflicts(rules: Iterable[Rule]) -> list[str]:
    """Name pairs of rules whose order is not defined although they may both apply and say different things."""
    groups: dict[tuple[Component, RuleKind, int], list[Rule]] = {}
    for rule in rules:
        if rule.backend:
            groups.setdefault((rule.component, rule.kind, rule.priority), []).append(rule)
    return [
        f"{one.id} and {two.id} may both apply and choose {one.backend} and {two.backend}; give one of them a higher priority"
        for group in groups.values()
        for one, two in combinations(group, 2)
        if one.backend != two.backend and not one.when.disjoint(two.when)
    ]


def build_rules(rules: Iterable[Rule], invocations: Iterable[Invocation], kernels: Kernels) -> Rules:
    """Put rules in order of precedence.

    Raises:
        RuleError: Two rules have the same id, or are in conflict.
    """
    ordered = tuple(sorted(rules, key=lambda rule: (list(RuleKind).index(rule.kind), -rule.priority)))
    seen: set[str] = set()
    for rule in ordered:
        if rule.id in seen:
            raise RuleError(f"two rules are called {rule.id}")
        seen.add(rule.id)
    if conflicts := find_conflicts(ordered):
        raise RuleError("; ".join(conflicts))
    return Rules(ordered, tuple(invocations), kernels)


@cache
def load_rules() -> Rules:
    """Read the rules that ship with the operator."""
    rules = (parse_rule(data) for name in list_data("rules") for data in read_data(name))
    return build_rules(rules, load_invocations(), load_kernels())
