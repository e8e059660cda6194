"""Rules for the choice of backends, as data.

A rule has one component, a condition and a consequence. Four sources compete, in this order: the user's setting; a quirk (a combination
known to fail, with a workaround); a choice (the best backend); vLLM's default. Within a kind the rule with the highest priority wins. Two
rules of the same kind, component and priority may not both apply unless they agree, which is checked when the rules are loaded.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from itertools import combinations
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, model_validator

from vllm_operator.catalog.backends import Invocation, Kernel, Kernels, Selectors, load_selectors
from vllm_operator.catalog.entry import Entry, EntryError, list_data, load_file, matching
from vllm_operator.catalog.notes import Severity
from vllm_operator.catalog.rule_matching import SETTINGS_LIMIT, Component, Condition
from vllm_operator.catalog.versions import Release


class RuleKind(StrEnum):
    """Kinds of rules."""

    QUIRK = "quirk"
    CHOICE = "choice"
    ENGINE = "engine"


def _read_setting(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"write '{str(value).lower()}' in quotes, or what else the value is")
    return str(value) if isinstance(value, int | float) else value


SETTINGS_LENGTH = 2000
"""Maximum characters of all names and values of `environment`, and of `arguments`, because they are stored in the status."""

RuleName = Annotated[
    str,
    AfterValidator(
        matching(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", "is not a name: use at most 63 lower-case letters, digits, dashes and dots")
    ),
]
Backend = Annotated[str, AfterValidator(matching(r"[A-Za-z0-9_.:-]{1,64}", "is not the name of a backend"))]
VariableName = Annotated[str, AfterValidator(matching(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "is not the name of a variable"))]
FlagName = Annotated[str, AfterValidator(matching(r"--[a-z0-9][-a-z0-9_.]{0,125}", "is not a flag; one looks like --max-num-seqs"))]
Value = Annotated[str, Field(max_length=1024), BeforeValidator(_read_setting)]
Reason = Annotated[str, Field(min_length=1, max_length=400)]
Message = Annotated[str, Field(min_length=1, max_length=900)]


class Rule(Entry):
    """One rule. Its texts are bounded, because they are stored in the status."""

    id: RuleName = Field(description="unique name, shown as the source of a backend in the plan")
    component: Component = Field(description="part of the engine")
    kind: RuleKind = Field(description="`quirk`, `choice` or `engine`")
    when: Condition = Field(Condition(), description="facts that must all hold; an unknown fact never does")
    backend: Backend | None = Field(None, description="backend that is used")
    alternatives: Annotated[tuple[Backend, ...], Field(max_length=4)] = Field(
        (), description="only for `engine`: backends that vLLM uses instead, for reasons that are not visible from outside"
    )
    environment: Annotated[Mapping[VariableName, Value], Field(max_length=SETTINGS_LIMIT)] = Field({}, description="variables that are set")
    arguments: Annotated[Mapping[FlagName, Value | None], Field(max_length=SETTINGS_LIMIT)] = Field(
        {}, description="flags that are set; a flag without a value has `null`"
    )
    refuse: Message | None = Field(None, description="stops the VLLMDeployment: the problem, then what the user can do")
    warn: Message | None = Field(None, description="note for the user: the problem, then what the user can do")
    severity: Severity = Field(Severity.RISK, description="of the note in `warn`: `Failure`, `Risk`, `NoEffect` or `Info`")
    because: Reason = Field(description="reason, in one sentence")
    source: Reason = Field(description="where it is known from")
    priority: Annotated[StrictInt, Field(ge=-100, le=100)] = Field(0, description="the highest of a kind and component wins")

    def __hash__(self) -> int:
        return hash(self.id)  # equal rules have equal names; mappings among the fields have no hash

    @model_validator(mode="after")
    def _check_effect(self) -> "Rule":
        if self.alternatives and self.kind is not RuleKind.ENGINE:
            raise ValueError("only a rule of the kind engine has alternatives; remove them")
        if "severity" in self.model_fields_set and not self.warn:
            raise ValueError("severity is that of a warning; add warn, or remove severity")
        if not (self.backend or self.environment or self.arguments or self.refuse or self.warn):
            raise ValueError("nothing follows from it; add backend, environment, arguments, refuse or warn")
        for name, settings in (("environment", self.environment), ("arguments", self.arguments)):
            if sum(len(key) + len(value or "") for key, value in settings.items()) > SETTINGS_LENGTH:
                raise ValueError(f"{name} must be at most {SETTINGS_LENGTH} characters long in total")
        return self


class Rivals(NamedTuple):
    """Backends that work in addition to the chosen ones, with their components, and the condition of a rule under which they do."""

    when: Mapping[str, Any]
    backends: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class RulesOfVersion:
    """The rules for one version, in order of precedence: rules that choose a backend, by component, and the others."""

    choosing: Mapping[Component, tuple[Rule, ...]]
    others: tuple[Rule, ...]
    invocations: Mapping[Component, tuple[Invocation, ...]]
    kernels: Kernels
    selectors: Mapping[Component, Selectors]


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """All rules in order of precedence, the invocations and requirements of backends, and the answers of vLLM's selectors."""

    rules: tuple[Rule, ...]
    invocations: tuple[Invocation, ...]
    kernels: Kernels
    selectors: Mapping[Component, Selectors]

    def of(self, release: Release) -> RulesOfVersion:
        """Return the rules for one of the known versions."""
        return _select(self, release)


@lru_cache(maxsize=64)
def _select(rules: Rules, release: Release) -> RulesOfVersion:
    applying = [rule for rule in rules.rules if rule.when.versions.contains(release)]
    ways = [way for way in rules.invocations if way.when.versions.contains(release)]
    return RulesOfVersion(
        choosing={component: tuple(rule for rule in applying if rule.backend and rule.component is component) for component in Component},
        others=tuple(rule for rule in applying if not rule.backend),
        invocations={component: tuple(way for way in ways if way.component is component) for component in Component},
        kernels=rules.kernels,
        selectors=rules.selectors,
    )


def find_conflicts(rules: Iterable[Rule]) -> list[str]:
    """Return pairs of rules with an undefined order that may both apply and contradict each other."""
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


def build_rules(
    rules: Iterable[Rule], invocations: Iterable[Invocation], kernels: Kernels, selectors: Mapping[Component, Selectors]
) -> Rules:
    """Put rules in order of precedence. Raises EntryError if two rules have the same id, or are in conflict."""
    ordered = tuple(sorted(rules, key=lambda rule: (list(RuleKind).index(rule.kind), -rule.priority)))
    if repeated := [name for name, count in Counter(rule.id for rule in ordered).items() if count > 1]:
        raise EntryError(f"two rules are called {repeated[0]}")
    if conflicts := find_conflicts(ordered):
        raise EntryError("; ".join(conflicts))
    return Rules(ordered, tuple(invocations), kernels, selectors)


@cache
def load_rules() -> Rules:
    """Read the rules that ship with the operator."""
    rules = (rule for name in list_data("rules") for rule in load_file(tuple[Rule, ...], name))
    invocations, kernels = load_file(tuple[Invocation, ...], "invocations.yaml"), load_file(tuple[Kernel, ...], "kernels.yaml")
    return build_rules(rules, invocations, Kernels(kernels), load_selectors())
