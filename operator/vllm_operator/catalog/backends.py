"""Backends: requirements, settings that request them, names in logs, and the answers of vLLM's selectors.

The requirements of a backend (GPUs, number formats, versions) come from the checks in vLLM's sources. With them the planner refuses a
forced backend before a Pod starts, suggests alternatives, and checks the rules. A backend without an entry is unknown, and not refused.

A backend is requested by a flag if the version has one, else by variables. The settings have changed often: MoE kernels were chosen by
VLLM_USE_FLASHINFER_MOE_FP8 and others up to 0.16 and by --moe-backend since 0.17.1. A backend has one name here for all versions; an
invocation knows how its versions spell it.

The tables of selectors are the output of the selectors of each version on a simulated machine of each architecture (`hack/oracle`). They
contain the engine's default backend and the pins that it accepts. Rules explain and advise. If a rule and a table disagree, the table is
right.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from pydantic import Field

from vllm_operator.catalog.entry import Entry, Sourced, load_file, loader, read_data
from vllm_operator.catalog.rule_matching import Component, Condition, Releases, RuleInput
from vllm_operator.catalog.versions import Release, Since, VersionTable, read_release


class Kernel(Sourced):
    """A backend of a component, and its alternative requirements, one of which must hold.

    `needs` names additional contents of the image, `scope` says what it is for, as the end of a sentence. `fallback` is the backend that
    vLLM uses, without an error, if this one does not work.
    """

    component: Component
    backend: str
    works: tuple[Condition, ...]
    needs: str | None = None
    scope: str | None = None
    fallback: str | None = None


@dataclass(frozen=True, slots=True)
class Kernels:
    """All backends that have an entry."""

    entries: tuple[Kernel, ...]

    def find(self, component: str, backend: str) -> Kernel | None:
        """Return the entry of a backend."""
        return next((kernel for kernel in self.entries if (kernel.component, kernel.backend) == (component, backend)), None)

    def working(self, component: str, rule_input: RuleInput, chosen: Mapping[str, str]) -> tuple[str, ...]:
        """Return the backends of a component that no known fact rules out."""
        return tuple(
            kernel.backend
            for kernel in self.entries
            if kernel.component == component and any(condition.possible(rule_input, chosen) for condition in kernel.works)
        )


class Setting(Entry):
    """Variables and flags that together request a backend."""

    environment: Mapping[str, str] = {}
    arguments: Mapping[str, str] = {}


class Invocation(Entry):
    """One way to request the backends of a component.

    Either `flag` takes a name from the version's list `accepts` (in lower case with `spelling: lower`, with the
    exceptions in `names`), or `settings` holds what each backend needs.
    """

    component: Component
    when: Condition = Condition()
    flag: str | None = None
    accepts: str | None = None
    spelling: Literal["lower"] | None = None
    names: Mapping[str, str] = {}
    settings: Mapping[str, Setting] = Field({}, alias="backends")

    def spell(self, backend: str) -> str:
        """Return the backend's name in the spelling of this flag."""
        return self.names.get(backend) or (backend.lower() if self.spelling else backend)

    def _accepted(self, table: VersionTable) -> tuple[str, ...]:
        return table.backends.get(self.accepts or "", ())

    def setting(self, backend: str, table: VersionTable) -> Setting | None:
        """Return the setting that requests the backend; None if this invocation cannot request it from this version."""
        if self.flag is None:
            return self.settings.get(backend)
        name = self.spell(backend)
        return Setting(arguments={self.flag: name}) if name in self._accepted(table) else None

    def backends(self, table: VersionTable) -> tuple[str, ...]:
        """Return the backends that can be requested, by our names, sorted."""
        if self.flag is None:
            return tuple(sorted(self.settings))
        ours = {theirs: name for name, theirs in self.names.items()}
        return tuple(sorted(ours.get(name, name.upper() if self.spelling else name) for name in self._accepted(table)))

    def asked(self, rule_input: RuleInput, table: VersionTable) -> tuple[str, str] | None:
        """Return the backend that the user's flags or variables request, and the setting; None without one."""
        if self.flag is not None:
            value = rule_input.arguments.get(self.flag)
            names = (name for name in self.backends(table) if self.spell(name) == value)
            return None if value is None else (next(names, value), f"{self.flag} {value}")
        given = {**rule_input.environment, **rule_input.arguments}
        settings = {name: {**setting.environment, **setting.arguments} for name, setting in self.settings.items()}
        used = {name: given[name] for wanted in settings.values() for name in wanted if name in given}
        if not used:
            return None
        exact = next((name for name, wanted in settings.items() if wanted == used), None)
        if exact is None and all(name in table.variables and table.variables[name].default == value for name, value in used.items()):
            return None
        by = ", ".join(f"{name}={value}" for name, value in sorted(used.items()))
        return exact or by, by


def canonical(name: str, invocations: tuple[Invocation, ...]) -> str:
    """Return our name of a backend in a spelling of vLLM: `deep_gemm`, `flashinfer-cutlass`."""
    upper = name.upper().replace("-", "_")
    theirs = {spelled.upper().replace("-", "_"): ours for one in invocations for ours, spelled in one.names.items()}
    return theirs.get(upper, upper)


class LoggedName(Entry):
    """A pattern of logged names, and the backends that such a line can mean."""

    pattern: re.Pattern[str]
    backends: tuple[str, ...]


class LoggedNamesOfComponent(Sourced):
    """The logged names of one component."""

    component: Component
    names: tuple[LoggedName, ...]


@dataclass(frozen=True, slots=True)
class LoggedNames:
    """Names of backends in vLLM's log, with our names.

    The log writes "TRT-LLM ragged DeepSeek", `AgRsAll2AllManager` or `FlashInferCutlassNvFp4LinearKernel`, differently in each version. Our
    names allow a comparison of the engine's choice with the plan.
    """

    components: Mapping[str, tuple[LoggedName, ...]]

    def meant(self, component: str, logged: str) -> tuple[str, ...]:
        """Return the backends, by our names, that a logged name can mean; none if it is unknown."""
        bare = _bare(logged)
        return next((name.backends for name in self.components.get(component, ()) if name.pattern.fullmatch(bare)), ())

    def agree(self, component: str, logged: str, planned: str) -> bool:
        """Return whether a logged name can be the planned backend."""
        meant = self.meant(component, logged)
        if meant:
            return planned in meant
        # an unknown name agrees if one contains the other, and both or neither name FlashInfer
        first, second = _bare(logged), _bare(planned)
        return (first in second or second in first) and ("flashinfer" in first) == ("flashinfer" in second)


def _bare(backend: str) -> str:
    return "".join(c for c in backend.casefold() if c.isascii() and c.isalnum())


def load_logged_names() -> LoggedNames:
    """Read the logged names that ship with the operator."""
    return LoggedNames({entry.component.value: entry.names for entry in load_file(tuple[LoggedNamesOfComponent, ...], "logged_names.yaml")})


@dataclass(frozen=True, slots=True)
class Selection:
    """The answer of a selector for one layer.

    `takes` is the default backend; None if it raises because none fits, or if unknown. It `accepts` backends on request, `refuses` others,
    each with its reason, and `ignores` others without an error, each with the replacement. `raises` is why it raises without a request;
    None if it does not, or if unknown. `others` are the default backends for the other cases of the layer.
    """

    takes: str | None
    accepts: tuple[str, ...]
    refuses: Mapping[str, str]
    ignores: Mapping[str, str] = field(default_factory=dict)
    raises: str | None = None
    others: tuple[str, ...] = ()


ANY = "*"


@dataclass(frozen=True, slots=True)
class Selectors:
    """The answers of all versions in the format of `hack/oracle`. Answers are parsed on demand, because a deployment needs only a few.

    `versions` leads from version and architecture to a table in `cases`, and that from the name of the case, such as `FP8/tensor`, to an
    answer in `answers`. With `are_trees`, for layers with many properties, it leads from the first part of a path, such as
    `FP8/Unset/Tensor/Llama4`, to the table for the next part, and only from the last part to an answer. `*` stands for all other parts.
    """

    reasons: Sequence[str] = ()
    answers: Sequence[Mapping[str, Any]] = ()
    cases: Sequence[Mapping[str, int]] = ()
    versions: Mapping[Release, Mapping[str, int]] = field(default_factory=dict)
    are_trees: bool = False

    def find(self, release: Release, architecture: str, cases: Sequence[str]) -> Selection | None:
        """Return the answer for a layer; None if the version, the architecture or one of the cases is missing.

        An unknown version gets the common answer of its neighbours. `cases` are the possible cases of the layer, the likeliest first: the
        first one determines the default backend; a backend is accepted if any case accepts it.
        """
        return agreed([self._find_in(each, architecture, cases) for each in nearest(self.versions, release)])

    def _find_in(self, release: Release, architecture: str, cases: Sequence[str]) -> Selection | None:
        root = self.versions[release].get(architecture)
        places = [self._place(root, case) for case in cases]
        found = [self._read(self.answers[place]) for place in places if place is not None]
        return combine(found) if found and len(found) == len(places) else None

    def _place(self, root: int | None, case: str) -> int | None:
        place = root
        for part in case.split("/") if self.are_trees else (case,):
            if place is None:
                return None
            place = self.cases[place].get(part, self.cases[place].get(ANY))
        return place

    def _read(self, answer: Mapping[str, Any]) -> Selection:
        return Selection(
            answer.get("takes"),
            tuple(answer.get("accepts", ())),
            {name: self.reasons[number] for name, number in _by_name(answer.get("refuses", {})).items()},
            _by_name(answer.get("ignores", {})),
            self.reasons[answer["raises"]] if "raises" in answer else None,
        )


def _by_name(written: Mapping[str, Any] | Sequence[tuple[Any, Sequence[str]]]) -> Mapping[str, Any]:
    """Return values by name. Trees have the names of each value instead."""
    return written if isinstance(written, Mapping) else {name: value for value, names in written for name in names}


def nearest(versions: Mapping[Release, object], release: Release) -> Sequence[Release]:
    """Return the version if it is known, else its two neighbours; none if a side has no neighbour."""
    if release in versions:
        return (release,)
    before = max((asked for asked in versions if asked < release), default=None)
    after = min((asked for asked in versions if asked > release), default=None)
    return () if before is None or after is None else (before, after)


def agreed(found: Sequence[Selection | None]) -> Selection | None:
    """Return the common part of all answers; None if one is missing."""
    answers = [selection for selection in found if selection is not None]
    if not answers or len(answers) < len(found):
        return None
    first, *rest = answers
    return Selection(
        first.takes if all(one.takes == first.takes for one in rest) else None,
        tuple(name for name in first.accepts if all(name in one.accepts for one in rest)),
        {name: reason for name, reason in first.refuses.items() if all(name in one.refuses for one in rest)},
        {name: taken for name, taken in first.ignores.items() if all(one.ignores.get(name) == taken for one in rest)},
        first.raises if all(one.raises for one in rest) else None,
        first.others,
    )


def combine(found: Sequence[Selection]) -> Selection:
    """Return one answer for a layer with several possible cases, the likeliest first."""
    first = found[0]
    accepts = tuple(dict.fromkeys(name for selection in found for name in selection.accepts))
    refuses = {name: text for name, text in first.refuses.items() if all(name in selection.refuses for selection in found)}
    ignores = {name: taken for name, taken in first.ignores.items() if name not in accepts}
    others = tuple(dict.fromkeys(one.takes for one in found if one.takes is not None and one.takes != first.takes))
    raises = first.raises if all(selection.raises for selection in found) else None
    return Selection(first.takes, accepts, refuses, ignores, raises, others)


def parse_selectors(written: Mapping[str, Any]) -> Selectors:
    """Parse a table, or a table of trees. Raises ValueError if a key is not a version."""
    versions = {read_release(version): architectures for version, architectures in written["versions"].items()}
    are_trees = "trees" in written
    return Selectors(written["reasons"], written["answers"], written["trees" if are_trees else "cases"], versions, are_trees)


SELECTOR_TABLES: Mapping[Component, str] = {
    **dict.fromkeys((Component.ATTENTION, Component.MLA_DECODE, Component.SPARSE_ATTENTION), "attention"),
    Component.MLA_PREFILL: "prefill",
    Component.GEMM: "gemm",
    Component.MOE: "moe",
}
"""The table for a component, by file name."""


@cache
def load_selectors() -> Mapping[Component, Selectors]:
    """Read the tables that ship with the operator, by component."""
    tables = {name: parse_selectors(read_data(f"selectors/{name}.json")) for name in sorted(set(SELECTOR_TABLES.values()))}
    return {component: tables[name] for component, name in SELECTOR_TABLES.items()}


class Questions(Entry):
    """The vocabulary of the keys in the tables of selectors: the content of `questions.yaml`, which explains the fields."""

    head_sizes: tuple[int, ...]
    head_sizes_with_image_prefix: tuple[int, ...]
    image_prefix_forgotten: Releases
    image_prefix_in_config_since: Since
    image_prefix_models: frozenset[str]
    head_sizes_with_sinks: tuple[int, ...]
    mla_heads: tuple[tuple[int, int, int], ...]
    attention_flags: Mapping[str, Mapping[Component, frozenset[str]]]
    own_attention: frozenset[str]
    encoder_models: frozenset[str]
    gemm_blocks_apart: frozenset[str]
    sparse_cache_types: Mapping[Since, Mapping[str, str]]
    cache_types_as_given: frozenset[str]
    cache_types_ignored: frozenset[str]
    expert_schemes: Mapping[str, tuple[str, ...]]
    published: Mapping[str, tuple[str, ...]]
    groups_of_32: frozenset[str] = Field(alias="groupsOf32")
    models: Mapping[str, str]
    routings: frozenset[str]
    asked: Mapping[str, frozenset[str]]
    expert_flags: frozenset[str]
    expert_variables: frozenset[str]
    expert_pins: tuple[str, ...]
    online: Mapping[str, Mapping[str, bool | str]]
    gemm_schemes: Mapping[str, tuple[str, ...]]
    gemm_weights_only: Mapping[str, str]
    gemm_groups: frozenset[int]
    gemm_one_group_before: Since
    gemm_one_group_architectures: frozenset[str]
    gemm_flags: Mapping[str, frozenset[str]]
    gemm_variables: frozenset[str]
    fields: Mapping[Component, str]
    labels: Mapping[Component, str]
    kinds: Mapping[Component, str]
    selectors: Mapping[Component, str]
    facts: Mapping[str, str]
    quantized_margin: float
    width_of_exchange: int
    few_heads: int
    many_parts: int
    hidden_block: int
    exchange: str
    expert_flag_since: Since


load_questions = loader(Questions, "questions.yaml")
"""Reads the vocabulary that ships with the package."""
