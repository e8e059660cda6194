"""Answers of vLLM's selectors by version, architecture and layer.

The tables are the output of the selectors of each version on a simulated machine of each architecture (`hack/oracle`). They contain the
engine's default backend and the pins that it accepts. Rules explain and advise. If a rule and a table disagree, the table is right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from vllm_operator.catalog.entry import read_data
from vllm_operator.catalog.rule_matching import Component
from vllm_operator.catalog.versions import Release, parse_release

TABLES: Mapping[Component, str] = {
    Component.ATTENTION: "attention",
    Component.MLA_DECODE: "attention",
    Component.SPARSE_ATTENTION: "attention",
    Component.MLA_PREFILL: "prefill",
    Component.GEMM: "gemm",
    Component.MOE: "moe",
}
"""The table for a component, by file name."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The answer of a selector for one layer.

    Attributes:
        takes: The default backend; None if it raises because none fits, or if unknown.
        accepts: The backends that it accepts on request.
        refuses: The backends that it refuses, each with the selector's reason.
        ignores: The backends that it replaces without an error, each with the replacement.
        raises: Why it raises without a request; None if it does not, or if unknown.
        others: The default backends for the other cases of the layer.
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

    Attributes:
        reasons: Error messages.
        answers: All distinct answers.
        cases: Tables: the index in `answers` by the name of the case, such as `Dense/128/auto`.
        versions: The index in `cases` by version and architecture.
    """

    reasons: Sequence[str]
    answers: Sequence[Mapping[str, Any]]
    cases: Sequence[Mapping[str, int]]
    versions: Mapping[Release, Mapping[str, int]]

    def find(self, release: Release, architecture: str, cases: Sequence[str]) -> Selection | None:
        """Return the answer for a layer; None if the version, the architecture or one of the cases is missing.

        Args:
            release: The vLLM version. An unknown version gets the common answer of its neighbours.
            architecture: Such as sm_90.
            cases: The possible cases of the layer, the likeliest first. The first one determines the default backend; a backend is accepted
                if any case accepts it.
        """
        return agreed([self._find_in(asked, architecture, cases) for asked in nearest(self.versions, release)])

    def _find_in(self, release: Release, architecture: str, cases: Sequence[str]) -> Selection | None:
        root = self.versions[release].get(architecture)
        places = [self._place(root, case) for case in cases] if root is not None else []
        found = [self._read(self.answers[place]) for place in places if place is not None]
        return combine(found) if found and len(found) == len(places) else None

    def _place(self, root: int, case: str) -> int | None:
        return self.cases[root].get(case)

    def _read(self, answer: Mapping[str, Any]) -> Selection:
        return Selection(
            answer.get("takes"),
            tuple(answer.get("accepts", ())),
            {name: self.reasons[number] for name, number in _by_name(answer.get("refuses", {})).items()},
            _by_name(answer.get("ignores", {})),
            self.reasons[answer["raises"]] if "raises" in answer else None,
        )


class SelectorTrees(Selectors):
    """Answers about layers with many properties. A case is a path, such as `FP8/Unset/Tensor/Llama4`.

    `cases` are branches by part of the path: an index in `cases`, for the last part in `answers`. `*` matches all other parts.
    """

    __slots__ = ()

    def _place(self, root: int, case: str) -> int | None:
        place: int | None = root
        for part in case.split("/"):
            if place is None:
                return None
            branches = self.cases[place]
            place = branches.get(part, branches.get(ANY))
        return place


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
    if not rest:
        return first
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
    """Parse a table, or a table of trees.

    Raises:
        ValueError: A key is not a version.
    """
    versions = {}
    for version, architectures in written["versions"].items():
        release = parse_release(version)
        if release is None:
            raise ValueError(f"{version!r} is not a version")
        versions[release] = architectures
    if "trees" in written:
        return SelectorTrees(written["reasons"], written["answers"], written["trees"], versions)
    return Selectors(written["reasons"], written["answers"], written["cases"], versions)


NO_SELECTORS = Selectors((), (), (), {})
"""No answers."""


@cache
def load_selectors() -> Mapping[Component, Selectors]:
    """Read the tables that ship with the operator, by component."""
    tables = {name: parse_selectors(read_data(f"selectors/{name}.json")) for name in sorted(set(TABLES.values()))}
    return {component: tables[name] for component, name in TABLES.items()}
