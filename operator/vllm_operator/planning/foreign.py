"""Reading what others wrote: numbers, versions and sizes of labels and Kubernetes objects, without ever raising."""

import re
from collections.abc import Mapping
from typing import Any

from vllm_operator.catalog.gpus import Version, parse_version

MEBIBYTE = 1024 * 1024
_EMPTY: Mapping[str, Any] = {}
SUFFIXES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def read_integer(value: Any) -> int | None:
    """Return a non-negative integer from an integer or its decimal digits, else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value >= 0 else None
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


def read_bytes(value: Any) -> int | None:
    """Return a Kubernetes quantity of memory in bytes, else None."""
    if isinstance(value, int):
        return read_integer(value)
    match = re.fullmatch(r"([0-9]{1,18})(\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|k|M|G|T|)", value, re.ASCII) if isinstance(value, str) else None
    if match is None:
        return None
    return int(float(match[1] + (match[2] or "")) * SUFFIXES[match[3]])


def read_cores(value: Any) -> float | None:
    """Return a Kubernetes quantity of CPU in cores, such as 250m or the 1234567n of metrics, else None."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([num]?)", value, re.ASCII) if isinstance(value, str) else None
    return float(match[1]) * {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}[match[2]] if match is not None else None


def read_mebibytes(value: Any) -> int | None:
    """Return a Kubernetes quantity of memory in MiB, rounded down, else None."""
    size = read_bytes(value)
    return None if size is None else size // MEBIBYTE


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
