"""Reading what others wrote: numbers and versions of labels and Kubernetes objects, without ever raising."""

import re
from collections.abc import Mapping
from typing import Any

from vllm_operator.catalog.gpus import Version, parse_version

INTEGER_LIMIT = 10**15
_EMPTY: Mapping[str, Any] = {}


def read_integer(value: Any) -> int | None:
    """Return a non-negative integer below the limit from an integer or its decimal digits, else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if 0 <= value < INTEGER_LIMIT else None
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value, re.ASCII):
        return int(value)
    return None


def read_version(value: Any) -> Version | None:
    """Return a version made of numbers as a tuple, else None."""
    if not isinstance(value, str):
        return None
    try:
        return parse_version(value)
    except ValueError:
        return None


def mapping(value: Any, *path: str) -> Mapping[str, Any]:
    """Follow a path of keys to an object; an empty one where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else _EMPTY


def sequence(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def read_text(value: Any) -> str | None:
    """Return the value if it is a text that is not empty, else None."""
    return value if isinstance(value, str) and value else None
