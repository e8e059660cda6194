"""Where the catalog and vLLM's selectors differ, and which of these differences have a reason.

`allowed.yaml` is the list of reasons. A check fails on a difference without a line, and on a line without a difference.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import StringConstraints

from oracle.finding import Difference, Kind, find_changed, find_missing
from oracle.rules import find_contradicted
from oracle.tables import release
from oracle.wheels import Found, committed_versions
from vllm_operator.catalog.entry import Entry, Specifiers, parse_entry

SHOWN = 3
"""Differences of one kind, component and version that a report spells out."""


class Allowed(Entry):
    """A line of the list: differences that it covers, and why they are right."""

    difference: Kind
    component: str
    versions: Specifiers
    architectures: str = "*"
    cases: str | tuple[str, ...] = "*"
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]

    def covers(self, difference: Difference) -> bool:
        cases = (self.cases,) if isinstance(self.cases, str) else self.cases
        return (
            (difference.kind, difference.component) == (self.difference, self.component)
            and self.versions.contains(difference.version)
            and fnmatchcase(difference.architecture, self.architectures)
            and any(fnmatchcase(difference.case, pattern) for pattern in cases)
        )


def compare(asked: Mapping[str, Found], tables: Mapping[str, Any]) -> tuple[list[Difference], list[str]]:
    """All differences, and what to say about those without a reason and reasons without a difference."""
    versions, found = committed_versions(), []
    for component, table in tables.items():
        for version, answers in asked.items():
            if component in answers:
                found += find_changed(component, version, answers[component], table)
        found += [*find_missing(component, table, versions), *find_contradicted(component, table)]
    lines = [line for line in load_allowed() if line.component in tables]
    problems = describe(unexplained(found, lines))
    problems += [
        f"allowed.yaml has a line that covers nothing any more; remove it: {line}" for line in stale(lines, found, versions, asked)
    ]
    return found, problems


def parse_allowed(entries: Sequence[Mapping[str, Any]]) -> list[Allowed]:
    """Read the list. Raises EntryError for a line without a reason, or that cannot be read."""
    return parse_entry(list[Allowed], entries)


def load_allowed() -> list[Allowed]:
    return parse_allowed(yaml.safe_load((Path(__file__).parent / "allowed.yaml").read_text()))


def unexplained(differences: Iterable[Difference], lines: Sequence[Allowed]) -> list[Difference]:
    return [difference for difference in differences if not any(line.covers(difference) for line in lines)]


def stale(lines: Iterable[Allowed], differences: Collection[Difference], versions: Iterable[str], asked: Collection[str]) -> list[Allowed]:
    """The lines that cover no difference any more. A line about answers is judged only if the wheels of all its versions were asked."""
    known = list(versions)

    def is_judged(line: Allowed) -> bool:
        return line.difference is not Kind.ANSWER or all(version in asked for version in known if line.versions.contains(version))

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
