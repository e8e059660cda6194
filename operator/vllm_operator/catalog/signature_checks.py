"""What is looked at in a crash signature from outside before it is used: names, types, lengths, patterns and texts."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from vllm_operator.catalog.linear_patterns import PatternError, compile_linear
from vllm_operator.catalog.signatures import FACTS, Severity
from vllm_operator.catalog.templates import TemplateError, check_template
from vllm_operator.catalog.versions import Versions

REQUIRED = ("id", "severity", "priority", "patterns", "cause", "remedy")
OPTIONAL = (
    "stages",
    "versions",
    "architectures",
    "environment",
    "arguments",
    "followsOthers",
    "retryable",
    "autoSafe",
    "references",
    "explains",
)
UNNAMED = "Unknown"
PRIORITIES = range(1, 101)
LIST_LIMIT, TEXT_LIMIT, PATTERN_LIMIT, GATE_LIMIT = 16, 600, 500, 200
_ID = re.compile(r"[A-Z][A-Za-z0-9]{2,62}")
_NAME = re.compile(r"--[a-z0-9][-a-z0-9_.]{0,125}|[A-Za-z_][A-Za-z0-9_]{0,127}|<[^<>]{1,80}>")
_WORD = re.compile(r"[A-Za-z]{2,}")


def complaint(document: Mapping[Any, Any], versions: Versions) -> str | None:
    """Say what is wrong with a signature as it was read from YAML; None if it can be used."""
    return next(_complaints(document, versions), None)


def _complaints(document: Mapping[Any, Any], versions: Versions) -> Iterator[str]:
    yield from (f"{name} is missing" for name in REQUIRED if name not in document)
    if document.get("remedyAction") is not None or document.get("autoSafe", False) is not False:
        yield "the operator acts by itself only on signatures that ship with it: leave out remedyAction, and autoSafe or set it to false"
    yield from (f"{str(name)[:40]} is not a field of a signature" for name in document if name not in (*REQUIRED, *OPTIONAL))
    if not (isinstance(document["id"], str) and _ID.fullmatch(document["id"])):
        yield "id must be a name like DriverTooOld, of letters and digits, at most 63"
    if document["id"] == UNNAMED:
        yield f"{UNNAMED} is what a crash without a signature is called"
    if document["severity"] not in list(Severity):
        yield f"severity must be {', '.join(Severity)}"
    if type(document["priority"]) is not int or document["priority"] not in PRIORITIES:
        yield f"priority must be a number from {PRIORITIES[0]} to {PRIORITIES[-1]}"
    for name in ("followsOthers", "retryable"):
        if type(document.get(name, False)) is not bool:
            yield f"{name} must be true or false"
    for name in ("versions", "architectures"):
        if not isinstance(document.get(name, ""), str) or len(document.get(name, "")) > TEXT_LIMIT:
            yield f"{name} must be text"
    for name in ("stages", "references", "explains"):
        yield from _texts(document.get(name, []), name)
    yield from _patterns(document["patterns"])
    captured = [group for pattern in document["patterns"] for group in compile_linear(pattern["regex"]).groupindex]
    for name in ("cause", "remedy"):
        yield from _template(document[name], name, captured, alone=True)
    for name in ("environment", "arguments"):
        yield from _changes(document.get(name, []), name, captured, versions)


def _texts(value: Any, where: str) -> Iterator[str]:
    if not (isinstance(value, list) and len(value) <= LIST_LIMIT and all(isinstance(one, str) and len(one) <= TEXT_LIMIT for one in value)):
        yield f"{where} must be a list of at most {LIST_LIMIT} texts"


def _patterns(value: Any) -> Iterator[str]:
    if not (isinstance(value, list) and 0 < len(value) <= LIST_LIMIT and all(isinstance(one, dict) for one in value)):
        yield f"patterns must be a list of 1 to {LIST_LIMIT}, each with anchor and regex"
        return
    for pattern in value:
        yield from (f"patterns: {str(name)[:40]} is not a field of a pattern" for name in pattern if name not in _PATTERN)
        for name in ("anchor", "regex", *(name for name in ("context",) if pattern.get(name) is not None)):
            if not (isinstance(pattern.get(name), str) and 0 < len(pattern[name]) <= PATTERN_LIMIT):
                yield f"patterns: {name} must be text of 1 to {PATTERN_LIMIT} characters"
        if not _WORD.search(pattern["anchor"]):
            yield f"patterns: anchor {pattern['anchor'][:40]!r} must contain a word of two letters, by which its lines are found"
        if pattern.get("evidence") not in (None, "weak"):
            yield "patterns: evidence can only be weak"
        for regex in (pattern["regex"], pattern.get("context") or ""):
            try:
                compile_linear(regex)
            except PatternError as error:
                yield f"patterns: {regex[:80]!r} is not a regular expression of RE2: {error}"


_PATTERN = ("anchor", "regex", "context", "evidence")


def _template(value: Any, where: str, captured: list[str], *, alone: bool) -> Iterator[str]:
    if not (isinstance(value, str) and 0 < len(value) <= TEXT_LIMIT):
        yield f"{where} must be text of 1 to {TEXT_LIMIT} characters"
        return
    try:
        unknown = sorted(check_template(value, alone=alone) - {*captured, *FACTS})
    except TemplateError as error:
        yield f"{where} {error}"
        return
    if unknown:
        yield f"{where} uses {', '.join(unknown)[:80]}, which no pattern captures"


def _changes(value: Any, where: str, captured: list[str], versions: Versions) -> Iterator[str]:
    if not (isinstance(value, list) and len(value) <= LIST_LIMIT and all(isinstance(one, dict) for one in value)):
        yield f"{where} must be a list of at most {LIST_LIMIT} changes, each with a name"
        return
    for change in value:
        name = change.get("name")
        yield from (f"{where}: {str(key)[:40]} is not a field of a change" for key in change if key not in _CHANGE)
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or (name.startswith("--") != (where == "arguments") and name[0] != "<"):
            yield f"{where}: {str(name)[:40]!r} is not the name of {'a flag' if where == 'arguments' else 'a variable'}"
        if type(change.get("remove", False)) is not bool:
            yield f"{where}: remove must be true or false"
        if change.get("value") is not None:
            yield from _template(change["value"], f"{where}: the value of {name}", captured, alone=False)
        yield from _known(name, change.get("versions"), versions)


_CHANGE = ("name", "value", "remove", "versions")


def _known(name: str, gate: Any, versions: Versions) -> Iterator[str]:
    """Flags and variables of vLLM must be known to every version for which the change is meant."""
    try:
        specifier = SpecifierSet(gate or "") if len(gate or "") <= GATE_LIMIT else None
    except (InvalidSpecifier, TypeError, AttributeError):
        specifier = None
    if specifier is None:
        yield f"{name}: versions must be a specifier such as '>=0.14,<0.20'"
        return
    if not name.startswith(("--", "VLLM_")):
        return
    for table in versions.tables:
        knows = table.knows_flag if name.startswith("--") else table.knows_variable
        if specifier.contains(table.version) and not knows(name):
            yield f"vLLM {table.version} does not know {name}; say in versions which ones do"
