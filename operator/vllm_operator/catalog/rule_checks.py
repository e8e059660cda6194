"""What is looked at in a rule from outside before it is read: types, lengths and spellings.

Our own rules are tested; those of the cluster's owner come as they are written. A value that no fact can ever have
(`architectures: sm90`) is told, because such a rule would never apply and nobody would know why.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_operator.api.spec import Allocation, Attention, Distribution, OptimizeFor, Quantization
from vllm_operator.catalog.linear_patterns import PatternError, compile_linear
from vllm_operator.catalog.rule_matching import ARCHITECTURES

TEXTS = {"because": 400, "source": 400, "refuse": 900, "warn": 900}
"""Longest text of each kind, in characters: they go into the status."""
REQUIRED = ("id", "component", "kind", "because", "source")
PRIORITY = 100
"""A priority lies between minus this and this."""
ALTERNATIVES_LIMIT = 4
SETTINGS_LIMIT, VALUE_LIMIT, PATTERN_LIMIT = 16, 1024, 200

_ID = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_BACKEND = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FLAG = re.compile(r"--[a-z0-9][-a-z0-9_.]{0,125}")
_ARCHITECTURE = re.compile(r"sm_[0-9]{2,3}")
VALUES: Mapping[str, tuple[str, ...]] = {
    "attention": tuple(Attention),
    "quantizations": tuple(Quantization),
    "optimizeFor": tuple(OptimizeFor),
    "distributions": tuple(Distribution),
    "allocations": tuple(Allocation),
}
"""Conditions on facts that have one of a few values."""


def complaint(document: Mapping[Any, Any]) -> str | None:
    """Say what is wrong with a rule as it was read from YAML; None if nothing is, as far as can be seen here."""
    return next(_complaints(document), None)


def _complaints(document: Mapping[Any, Any]) -> Iterator[str]:
    yield from (f"{name} is missing" for name in REQUIRED if name not in document)
    yield from (f"{name} must be text" for name in REQUIRED if not isinstance(document.get(name), str))
    if not _ID.fullmatch(document["id"]):
        yield "id must be lower-case letters, digits, dashes and dots, at most 63"
    for name, limit in TEXTS.items():
        text = document.get(name)
        if text is not None and not (isinstance(text, str) and 0 < len(text) <= limit):
            yield f"{name} must be text of at most {limit} characters"
    backend = document.get("backend")
    if backend is not None and not (isinstance(backend, str) and _BACKEND.fullmatch(backend)):
        yield "backend must be the name of a backend"
    others = document.get("alternatives", [])
    if (
        not isinstance(others, list)
        or len(others) > ALTERNATIVES_LIMIT
        or not all(isinstance(o, str) and _BACKEND.fullmatch(o) for o in others)
    ):
        yield f"alternatives must be a list of at most {ALTERNATIVES_LIMIT} names of backends"
    priority = document.get("priority", 0)
    if type(priority) is not int or abs(priority) > PRIORITY:
        yield f"priority must be a number from {-PRIORITY} to {PRIORITY}"
    yield from _settings(document.get("environment"), "environment", _VARIABLE, "is not the name of a variable")
    yield from _settings(document.get("arguments"), "arguments", _FLAG, "is not a flag; one looks like --max-num-seqs")
    when = document.get("when", {})
    if not isinstance(when, dict):
        yield "when must be a mapping of conditions"
    else:
        yield from _condition(when)
        if isinstance(when.get("except"), dict):
            yield from _condition(when["except"])


def _settings(settings: Any, where: str, names: re.Pattern[str], wrong: str) -> Iterator[str]:
    if settings is None:
        return
    if not isinstance(settings, dict) or len(settings) > SETTINGS_LIMIT:
        yield f"{where} must be a mapping of at most {SETTINGS_LIMIT} names to values"
        return
    for name, value in settings.items():
        if not (isinstance(name, str) and names.fullmatch(name)):
            yield f"{where}: {str(name)[:64]} {wrong}"
        if isinstance(value, (dict, list, bool)) or len(str(value)) > VALUE_LIMIT or (value is None and where == "environment"):
            yield f"{where}: the value of {name} must be text (in quotes) of at most {VALUE_LIMIT} characters"


def _condition(when: Mapping[Any, Any]) -> Iterator[str]:
    for value in _listed(when.get("architectures")):
        if not (isinstance(value, str) and (value in ARCHITECTURES or _ARCHITECTURE.fullmatch(value))):
            yield f"architectures: {value!r} is not an architecture; one looks like sm_90, or sm_12x for sm_120 and sm_121"
    for key, known in VALUES.items():
        for value in _listed(when.get(key)):
            if value not in known:
                yield f"{key}: {value!r} does not exist; known are {', '.join(known)}"
    for key in ("environment", "arguments"):
        patterns = when.get(key)
        if isinstance(patterns, dict) and len(patterns) > SETTINGS_LIMIT:
            yield f"when.{key} must be a mapping of at most {SETTINGS_LIMIT} names to patterns"
        for pattern in patterns.values() if isinstance(patterns, dict) else ():
            if not (isinstance(pattern, str) and len(pattern) <= PATTERN_LIMIT):
                yield f"when.{key}: a pattern must be text of at most {PATTERN_LIMIT} characters"
            try:
                compile_linear(pattern)
            except PatternError as error:
                yield f"when.{key}: {pattern[:80]!r} is not a regular expression of RE2: {error}"


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
