"""Evaluates the CEL rules of the CRDs with cel-python, and adds what they use of Kubernetes: functions and optional values."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import celpy
from celpy import celtypes
from celpy.evaluation import CELEvalError

LEVELS = 16
"""Maximum depth of values that rules can read. Only Pod templates, which have no rules, have deeper levels and values of other types."""
_ENVIRONMENT = celpy.Environment()


def holds(rule: str, subject: celtypes.Value) -> bool:
    """Return whether a CEL rule holds for a value from `to_cel`. False, as in the API server, if it cannot be evaluated."""
    try:
        return bool(_program(rule).evaluate({"self": subject}))
    except CELEvalError:
        return False


@cache
def _program(rule: str) -> celpy.Runner:
    return _ENVIRONMENT.program(_ENVIRONMENT.compile(_OPTIONAL.sub(r"optional(\1, '\2', ", rule)), functions=_FUNCTIONS)


def to_cel(value: Any, levels: int = LEVELS) -> celtypes.Value:
    """Convert a value without fields that are null, which the API server drops."""
    match value:
        case Mapping() if levels:
            fields = {celtypes.StringType(name): to_cel(inner, levels - 1) for name, inner in value.items() if inner is not None}
            return celtypes.MapType(fields)
        case list() if levels:
            return celtypes.ListType([to_cel(inner, levels - 1) for inner in value])
        case bool():
            return celtypes.BoolType(value)
        case int() if abs(value) < 2**63:
            return celtypes.IntType(value)
        case str():
            return celtypes.StringType(value)
        case _:
            return None


def _optional(value: Any, path: str, default: Any) -> Any:
    for name in path.replace("?", "").strip(".").split("."):
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value[celtypes.StringType(name)]
    return value


def _find(text: str, pattern: str) -> celtypes.StringType:
    found = re.search(pattern, text)
    return celtypes.StringType(found[0] if found is not None else "")


_OPTIONAL = re.compile(r"([\w.]+?)((?:\.\?\w+)+)\.orValue\(")
"""`self.?a.?b.orValue(c)`. cel-python has no optional values, so it becomes `optional(self, '.?a.?b', c)`."""
_FUNCTIONS: dict[str, Any] = {
    "find": _find,
    "replace": lambda text, old, new: celtypes.StringType(text.replace(old, new)),
    "optional": _optional,
}
