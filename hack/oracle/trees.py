"""The answers of many versions about layers with many properties, as one table of the catalog.

A case is a path such as `FP8Block/Unset/Tensor/DeepSeekV3`. The answers of a version and architecture are a tree of such paths. Equal
trees are written once, and the most frequent branch of a tree stands for all that are not written: it is called `*`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from oracle.tables import Answers, Numbered, release, selectors_own, without_the_machine

ANY = "*"
DEPTH = 4
"""Parts of a path."""
EMPTY: Mapping[str, Any] = {"reasons": [], "answers": [], "trees": [], "versions": {}}


def merge_trees(versions: Mapping[str, Mapping[str, Answers]], committed: Mapping[str, Any] = EMPTY) -> dict[str, Any]:
    """Make one table of answers by version and architecture, and of the committed table, in which the same versions are replaced."""
    planted = _Merging(committed)
    placed: dict[str, dict[str, int]] = {}
    for version in sorted({*versions, *committed["versions"]}, key=release):
        if version in versions:
            by_architecture = sorted(versions[version].items(), key=lambda item: int(item[0].removeprefix("sm_")))
            placed[version] = {architecture: planted.plant(found) for architecture, found in by_architecture}
        else:
            placed[version] = {gpu: planted.transplant(place, 0) for gpu, place in committed["versions"][version].items()}
    ordered = _Merging(planted.table(placed))  # the same content always gets the same numbers
    return ordered.table(
        {version: {gpu: ordered.transplant(place, 0) for gpu, place in architectures.items()} for version, architectures in placed.items()}
    )


class _Merging:
    def __init__(self, committed: Mapping[str, Any]) -> None:
        self.reasons, self.answers, self.trees = Numbered(), Numbered(), Numbered()
        self._committed = committed

    def table(self, placed: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
        return {"reasons": self.reasons.values, "answers": self.answers.values, "trees": self.trees.values, "versions": placed}

    def plant(self, answers: Answers) -> int:
        leaves = {name: self.answers.number(_compact(answer, self.reasons)) for name, answer in sorted(answers.items())}
        return self._grow(leaves, 0)

    def _grow(self, leaves: Mapping[str, int], depth: int) -> int:
        if depth == DEPTH:
            return leaves[""]
        groups: dict[str, dict[str, int]] = {}
        for path, answer in leaves.items():
            first, _, rest = path.partition("/")
            groups.setdefault(first, {})[rest] = answer
        branches = {name: self._grow(group, depth + 1) for name, group in groups.items()}
        if depth > 0:  # all branches of the root are written: others were not asked
            usual = Counter(branches.values()).most_common(1)[0][0]
            branches = {name: place for name, place in branches.items() if place != usual} | {ANY: usual}
        return self.trees.number(branches)

    def transplant(self, place: int, depth: int) -> int:
        if depth == DEPTH:
            return self.answers.number(_compact(_expand(self._committed["answers"][place], self._committed["reasons"]), self.reasons))
        branches = {name: self.transplant(branch, depth + 1) for name, branch in sorted(self._committed["trees"][place].items())}
        return self.trees.number(branches)


def find(table: Mapping[str, Any], version: str, architecture: str, case: str) -> dict[str, Any] | None:
    """The answer to a case, with its reasons written out; None if it was not asked."""
    place: int = table["versions"][version][architecture]
    for part in case.split("/"):
        tree = table["trees"][place]
        if part not in tree and ANY not in tree:
            return None
        place = tree.get(part, tree.get(ANY))
    return _expand(table["answers"][place], table["reasons"])


def _expand(compact: Mapping[str, Any], reasons: Sequence[str]) -> dict[str, Any]:
    raises = compact.get("raises")
    return {
        "takes": compact.get("takes"),
        "accepts": compact.get("accepts", []),
        "refuses": {name: reasons[number] for number, names in compact.get("refuses", []) for name in names},
        "ignores": {name: taken for taken, names in compact.get("ignores", []) for name in names},
        "raises": None if raises is None else reasons[raises],
    }


def _compact(answer: Mapping[str, Any], reasons: Numbered) -> dict[str, Any]:
    """An answer without what is empty, and without errors of the made-up machine; pins are grouped by what they get."""
    refused = without_the_machine(answer["refuses"])
    raises = selectors_own(answer["raises"] or "")
    written = {
        "takes": answer["takes"],
        "accepts": sorted(answer["accepts"]),
        "refuses": [[reasons.number(text), names] for text, names in _group(refused)],
        "ignores": _group(answer["ignores"]),
        "raises": None if raises is None else reasons.number(raises),
    }
    return {name: value for name, value in written.items() if value not in (None, [])}


def _group(pins: Mapping[str, str]) -> list[list[Any]]:
    grouped: dict[str, list[str]] = {}
    for name, got in sorted(pins.items()):
        grouped.setdefault(got, []).append(name)
    return [[got, names] for got, names in sorted(grouped.items())]
