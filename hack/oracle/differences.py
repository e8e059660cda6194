"""Where the catalog and vLLM's selectors differ, and which of these differences have a reason.

`allowed.yaml` is the list of reasons. A check fails on a difference without a line, and on a line without a difference.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from oracle.tables import release

ALLOWED = Path(__file__).resolve().parent / "allowed.yaml"
SHOWN = 3
"""Differences of one kind, component and version that a report spells out."""


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


@dataclass(frozen=True, slots=True)
class Allowed:
    """A line of the list: differences that it covers, and why they are right."""

    kind: Kind
    component: str
    versions: SpecifierSet
    architectures: str
    cases: tuple[str, ...]
    reason: str

    def covers(self, difference: Difference) -> bool:
        return (
            (difference.kind, difference.component) == (self.kind, self.component)
            and self.versions.contains(difference.version)
            and fnmatchcase(difference.architecture, self.architectures)
            and any(fnmatchcase(difference.case, pattern) for pattern in self.cases)
        )

    def __str__(self) -> str:
        where = f"{self.kind} {self.component} {str(self.versions) or 'all versions'} {self.architectures}"
        return f"{where} {', '.join(self.cases)}"


def parse_allowed(entries: Sequence[Mapping[str, Any]]) -> list[Allowed]:
    """Read the list. Raises ValueError for a line without a reason, or that cannot be read."""
    lines = []
    for entry in entries:
        if unknown := entry.keys() - {"difference", "component", "versions", "architectures", "cases", "reason"}:
            raise ValueError(f"{entry}: {', '.join(sorted(unknown))} is unknown")
        if not str(entry.get("reason") or "").strip():
            raise ValueError(f"{entry}: the reason is missing")
        try:
            versions = SpecifierSet(entry["versions"])
        except InvalidSpecifier as error:
            raise ValueError(f"{entry}: {error}") from error
        cases = entry.get("cases", "*")
        lines.append(
            Allowed(
                Kind(entry["difference"]),
                entry["component"],
                versions,
                entry.get("architectures", "*"),
                (cases,) if isinstance(cases, str) else tuple(cases),
                entry["reason"].strip(),
            )
        )
    return lines


def load_allowed(path: Path = ALLOWED) -> list[Allowed]:
    return parse_allowed(yaml.safe_load(path.read_text()) or [])


def unexplained(differences: Iterable[Difference], lines: Sequence[Allowed]) -> list[Difference]:
    return [difference for difference in differences if not any(line.covers(difference) for line in lines)]


def stale(lines: Iterable[Allowed], differences: Collection[Difference], versions: Iterable[str], asked: Collection[str]) -> list[Allowed]:
    """The lines that cover no difference any more. A line about answers is judged only if the wheels of all its versions were asked."""
    known = list(versions)

    def is_judged(line: Allowed) -> bool:
        return line.kind is not Kind.ANSWER or all(version in asked for version in known if line.versions.contains(version))

    return [line for line in lines if is_judged(line) and not any(line.covers(difference) for difference in differences)]


def describe(differences: Iterable[Difference]) -> list[str]:
    def group(difference: Difference) -> tuple[str, tuple[int, ...], Kind]:
        return difference.component, release(difference.version), difference.kind

    lines = []
    for _, found in groupby(sorted(differences, key=group), key=group):
        same = list(found)
        for each in same[:SHOWN]:
            lines.append(f"{each.kind} {each.component} {each.version} {each.architecture} {each.case}: {each.detail}")
        if len(same) > SHOWN:
            lines.append(f"  and {len(same) - SHOWN} more of {same[0].component} {same[0].version}")
    return lines
