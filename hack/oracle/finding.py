"""Where wheels and tables differ. See `checking` for what becomes of it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from oracle.tables import Answers, expand, merge, release
from oracle.trees import cases_below, find, normalize

TREES = frozenset({"moe"})
"""Components whose tables are trees, because their layers have many properties."""
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121")
NOTHING: Mapping[str, Any] = {"takes": None, "accepts": [], "refuses": {}, "ignores": {}, "raises": None}


class Kind(StrEnum):
    ANSWER = "Answer"
    """A selector of the wheel answers otherwise than the committed table."""
    MISSING = "Missing"
    """The committed table has no answer, or does not know which backend the selector takes."""
    RULE = "Rule"
    """A rule names another default than the committed table."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. `case` is the question: `*` for all, `BF16/*` for all below `BF16`. `detail` is what each side says."""

    kind: Kind
    component: str
    version: str
    architecture: str
    case: str
    detail: str = ""


def find_changed(component: str, version: str, asked: Mapping[str, Answers], table: Mapping[str, Any]) -> list[Difference]:
    """Where a version's selectors answer otherwise than the committed table. An architecture without answers could not be asked."""
    committed = dict(_answers(component, table, version, asked))
    found = []
    for architecture in ARCHITECTURES:
        now = _normal(component, version, asked.get(architecture, {}))
        was = committed.get(architecture, {})
        for case in sorted({*now, *was}):
            if now.get(case) != was.get(case):
                detail = f"committed {_say(was.get(case))}; the wheel {_say(now.get(case), was.get(case))}"
                found.append(Difference(Kind.ANSWER, component, version, architecture, case, detail))
    return found


def find_missing(component: str, table: Mapping[str, Any], versions: Iterable[str]) -> Iterator[Difference]:
    """Questions that the table answers for another version or architecture, but not for this one."""
    usual = _all_cases(component, table)
    for version in sorted(versions, key=release):
        placed = table["versions"].get(version)
        if placed is None:
            yield Difference(Kind.MISSING, component, version, "*", "*", "the table does not have this version")
            continue
        for architecture in ARCHITECTURES:
            if architecture not in placed:
                yield Difference(Kind.MISSING, component, version, architecture, "*", "the table does not have this architecture")
                continue
            answered = dict(_written(component, table, version, architecture))
            for case in sorted(usual - answered.keys()):
                yield Difference(Kind.MISSING, component, version, architecture, case, "the table does not have this case")
            for case, answer in answered.items():
                if _is_unknown(component, answer):
                    yield Difference(Kind.MISSING, component, version, architecture, case, "the backend that is taken is unknown")


def _is_unknown(component: str, answer: Mapping[str, Any]) -> bool:
    if answer["takes"] is not None or answer.get("raises") is not None:
        return False
    # the selectors of attention do not say why they raise; they do if nothing fits
    return component not in ("attention", "prefill") or bool(answer["accepts"])


def _all_cases(component: str, table: Mapping[str, Any]) -> set[str]:
    """All that the table answers for any version. Of a tree, the number formats: below them, `*` answers the rest."""
    if component in TREES:
        roots = {place for placed in table["versions"].values() for place in placed.values()}
        return {f"{name}/*" for place in roots for name in table["trees"][place]}
    return {case for cases in table["cases"] for case in cases}


def _written(component: str, table: Mapping[str, Any], version: str, architecture: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    place = table["versions"][version][architecture]
    if component not in TREES:
        for case, number in table["cases"][place].items():
            yield case, table["answers"][number]
        return
    for name in table["trees"][place]:
        yield f"{name}/*", {**NOTHING, "raises": "each case below is judged by itself"}
    for case, number in cases_below(table, place):
        yield case, {**NOTHING, **table["answers"][number]}


def _answers(
    component: str, table: Mapping[str, Any], version: str, asked: Mapping[str, Answers]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The committed answers by architecture. Of a tree, those to the cases that were asked."""
    if component not in TREES:
        yield from expand(table).get(version, {}).items()
        return
    for architecture in table["versions"].get(version, {}):
        cases = asked.get(architecture, {})
        yield architecture, {case: answer for case in cases if (answer := find(table, version, architecture, case)) is not None}


def _normal(component: str, version: str, answers: Answers) -> Mapping[str, Any]:
    """The answers as a table keeps them, without errors of the made-up machine."""
    if component in TREES:
        return {case: normalize(answer) for case, answer in answers.items()}
    return expand(merge({version: {"sm_0": answers}}))[version]["sm_0"]


def _say(answer: Mapping[str, Any] | None, than: Mapping[str, Any] | None = None) -> str:
    """An answer in a few words; if it is compared with another one, the backends about which they differ."""
    if answer is None:
        return "has no answer"
    if than is None or answer["takes"] != than["takes"] or answer.get("raises") != than.get("raises"):
        return f"takes {answer['takes']}" if answer["takes"] or not answer.get("raises") else f"raises {answer['raises']}"
    now, was = _by_backend(answer), _by_backend(than)
    return ", ".join(f"{now.get(name, 'has no answer about')} {name}" for name in sorted({*now, *was}) if now.get(name) != was.get(name))


def _by_backend(answer: Mapping[str, Any]) -> dict[str, str]:
    return {
        **dict.fromkeys(answer["accepts"], "accepts"),
        **{name: f"refuses ({reason})" for name, reason in answer["refuses"].items()},
        **{name: f"takes {taken} for" for name, taken in answer.get("ignores", {}).items()},
    }
