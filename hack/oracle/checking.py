"""Comparing wheels, tables and rules, and judging what differs by the list of reasons."""

from collections.abc import Mapping
from typing import Any

from oracle.differences import Difference, describe, load_allowed, stale, unexplained
from oracle.finding import find_changed, find_missing
from oracle.rules import find_contradicted
from oracle.wheels import Found, committed_versions


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
