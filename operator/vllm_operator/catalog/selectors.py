"""What vLLM's own selectors answer, by version, architecture and the layer that they are asked about.

The tables were made by running the selectors of each version on a made-up machine of each architecture (`hack/oracle`). They
decide which backend the engine takes by itself and which pins it accepts. Rules explain and advise; where a rule and a
table disagree, the table is right.
"""

import marshal
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar

from vllm_operator.catalog.resources import read_data
from vllm_operator.catalog.rule_matching import Component
from vllm_operator.catalog.versions import Release, parse_release

TABLES: Mapping[Component, str] = {
    Component.ATTENTION: "attention",
    Component.MLA_DECODE: "attention",
    Component.SPARSE_ATTENTION: "attention",
    Component.MLA_PREFILL: "prefill",
    Component.GEMM: "gemm",
}
"""The table that answers for a component, by the name of its file."""
READ_ENTRIES = 64
"""Entries of a table that are kept as Python objects after they were read."""
BLOCK, READ_BLOCKS = 64, 4
"""Entries that are compressed together, and how many such blocks are kept uncompressed after they were read."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a selector answers for one layer.

    Attributes:
        takes: The backend that it takes by itself; None if it raises, because none fits, or if that is unknown.
        accepts: The backends that it accepts when asked for them.
        refuses: The backends that it refuses, each with the selector's own reason.
        ignores: The backends in place of which it takes another one without an error, which is the value.
        raises: Why it raises by itself; None if it does not, or if that is unknown.
        others: What it takes if the layer is another one of the cases.
    """

    takes: str | None
    accepts: tuple[str, ...]
    refuses: Mapping[str, str]
    ignores: Mapping[str, str] = field(default_factory=dict)
    raises: str | None = None
    others: tuple[str, ...] = ()


Item = TypeVar("Item")


class Packed(Sequence[Item], Generic[Item]):
    """The entries of a table, serialized and compressed in blocks: a deployment needs a few of thousands.

    As Python objects they take 40 times the memory.
    """

    def __init__(self, written: Sequence[Any], read: Callable[[Any], Item] = lambda item: item) -> None:
        self._number = len(written)
        blocks = [_pack(written[start : start + BLOCK]) for start in range(0, len(written), BLOCK)]
        unpack = lru_cache(maxsize=READ_BLOCKS)(lambda number: marshal.loads(zlib.decompress(blocks[number])))
        self._read = lru_cache(maxsize=READ_ENTRIES)(lambda place: read(marshal.loads(unpack(place // BLOCK)[place % BLOCK])))

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, place: Any) -> Any:
        return self._read(place)


def _pack(entries: Sequence[Any]) -> bytes:
    return zlib.compress(marshal.dumps(tuple(map(marshal.dumps, entries))), 1)


@dataclass(frozen=True, slots=True)
class Selectors:
    """The answers of all versions.

    Attributes:
        selections: All different answers.
        cases: Tables of answers: the place in `selections` by the name of the case, such as `Dense/128/auto`.
        versions: The place in `cases` by version and architecture.
    """

    selections: Sequence[Selection]
    cases: Sequence[Mapping[str, int]]
    versions: Mapping[Release, Mapping[str, int]]

    def find(self, release: Release, architecture: str, cases: Sequence[str]) -> Selection | None:
        """Return the answer for a layer; None if that version, architecture or one of the cases was not asked.

        Args:
            release: The vLLM version. One that was not asked gets what those before and after it agree on.
            architecture: Such as sm_90.
            cases: The cases that the layer may be, the likeliest first. Of several, the first decides which backend is
                taken; a backend is accepted if one of them accepts it.
        """
        return agreed([self._find_in(asked, architecture, cases) for asked in nearest(self.versions, release)])

    def _find_in(self, release: Release, architecture: str, cases: Sequence[str]) -> Selection | None:
        place = self.versions[release].get(architecture)
        if place is None or not cases or any(case not in self.cases[place] for case in cases):
            return None
        return combine([self.selections[self.cases[place][case]] for case in cases])


ANY = "*"


@dataclass(frozen=True, slots=True)
class SelectorTrees:
    """The answers of all versions about layers with many properties, of which a case is a path, such as `FP8/Unset/Tensor/Llama4`.

    Attributes:
        selections: All different answers.
        trees: Branches by part of the path: the place in `trees`, at the last part in `selections`. `*` is all other parts.
        versions: The place in `trees` by version and architecture.
    """

    selections: Sequence[Selection]
    trees: Sequence[Mapping[str, int]]
    versions: Mapping[Release, Mapping[str, int]]

    def find(self, release: Release, architecture: str, cases: Sequence[str]) -> Selection | None:
        """Return the answer for a layer, as `Selectors.find` does."""
        return agreed([self._find_in(asked, architecture, cases) for asked in nearest(self.versions, release)])

    def _find_in(self, release: Release, architecture: str, cases: Sequence[str]) -> Selection | None:
        root = self.versions[release].get(architecture)
        if root is None or not cases:
            return None
        found = [self._follow(root, case) for case in cases]
        return combine([selection for selection in found if selection is not None]) if all(found) else None

    def _follow(self, place: int, case: str) -> Selection | None:
        for part in case.split("/"):
            branches = self.trees[place]
            if part not in branches and ANY not in branches:
                return None
            place = branches[part] if part in branches else branches[ANY]
        return self.selections[place]


def nearest(versions: Mapping[Release, object], release: Release) -> Sequence[Release]:
    """The version if it was asked, else those before and after it; none if there is none on either side."""
    if release in versions:
        return (release,)
    before = max((asked for asked in versions if asked < release), default=None)
    after = min((asked for asked in versions if asked > release), default=None)
    return () if before is None or after is None else (before, after)


def agreed(found: Sequence[Selection | None]) -> Selection | None:
    """What all answers agree on; None if one is missing."""
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
    """Make one answer for a layer that may be one of several cases, the likeliest first."""
    first = found[0]
    accepts = tuple(dict.fromkeys(name for selection in found for name in selection.accepts))
    refuses = {name: text for name, text in first.refuses.items() if all(name in selection.refuses for selection in found)}
    ignores = {name: taken for name, taken in first.ignores.items() if name not in accepts}
    others = tuple(dict.fromkeys(one.takes for one in found if one.takes is not None and one.takes != first.takes))
    raises = first.raises if all(selection.raises for selection in found) else None
    return Selection(first.takes, accepts, refuses, ignores, raises, others)


def parse_selector_trees(written: Mapping[str, Any]) -> SelectorTrees:
    """Read a table of trees as `hack/oracle` writes it.

    Raises:
        ValueError: A key is not a version.
    """
    reasons: Sequence[str] = written["reasons"]

    def read(entry: Mapping[str, Any]) -> Selection:
        return Selection(
            entry.get("takes"),
            tuple(entry.get("accepts", ())),
            {name: reasons[number] for number, names in entry.get("refuses", ()) for name in names},
            {name: taken for taken, names in entry.get("ignores", ()) for name in names},
            reasons[entry["raises"]] if "raises" in entry else None,
        )

    return SelectorTrees(Packed(written["answers"], read), Packed(written["trees"]), _by_release(written["versions"]))


def parse_selectors(written: Mapping[str, Any]) -> Selectors:
    """Read a table as `hack/oracle` writes it.

    Raises:
        ValueError: A key is not a version.
    """
    reasons: Sequence[str] = written["reasons"]

    def read(entry: Mapping[str, Any]) -> Selection:
        return Selection(
            entry["takes"],
            tuple(entry["accepts"]),
            {name: reasons[number] for name, number in entry["refuses"].items()},
            entry.get("ignores", {}),
            reasons[entry["raises"]] if "raises" in entry else None,
        )

    return Selectors(Packed(written["answers"], read), Packed(written["cases"]), _by_release(written["versions"]))


def _by_release(written: Mapping[str, Mapping[str, int]]) -> Mapping[Release, Mapping[str, int]]:
    versions = {}
    for version, architectures in written.items():
        release = parse_release(version)
        if release is None:
            raise ValueError(f"{version!r} is not a version")
        versions[release] = architectures
    return versions


NO_SELECTORS = Selectors((), (), {})
"""Nothing was asked."""


@cache
def load_selectors() -> Mapping[Component, Selectors | SelectorTrees]:
    """Read the tables that ship with the operator, by the component that they answer for."""
    tables = {name: parse_selectors(read_data(f"selectors/{name}.json")) for name in sorted(set(TABLES.values()))}
    experts = parse_selector_trees(read_data("selectors/moe.json"))
    return {**{component: tables[name] for component, name in TABLES.items()}, Component.MOE: experts}
