"""Read values and quantities from plain dicts of unknown shape, and compute their digests.

The content of objects is untrusted: any controller or user may have written it. Every function accepts any value, never raises, and limits
the size of its result.

Quantities are amounts of memory, CPU and devices, such as 81559Mi, 250m or 1k
(https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/).
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from math import ceil
from typing import Any

Manifest = Mapping[str, Any]
"""A Kubernetes object as a plain dict. Its shape is untrusted."""

RunKey = tuple[str, int]
"""One run of the engine container: the UID of its Pod, and the number of restarts before the run."""

_LONGEST_TEXT = 8192
_LONGEST_LIST = 1000


def text(value: Any, *path: str) -> str:
    """Follow a path of keys to a string; empty if there is none."""
    found = _follow(value, path)
    return found[:_LONGEST_TEXT] if isinstance(found, str) else ""


def integer(value: Any, *path: str) -> int | None:
    """Follow a path of keys to a 64-bit integer; None if there is none."""
    found = _follow(value, path)
    return found if isinstance(found, int) and not isinstance(found, bool) and abs(found) < 2**63 else None


def flag(value: Any, *path: str) -> bool:
    """Follow a path of keys to a boolean; False if there is none."""
    return _follow(value, path) is True


def objects(value: Any, *path: str) -> Iterator[Mapping[str, Any]]:
    """Follow a path of keys to a list and yield the objects in it."""
    found = _follow(value, path)
    if isinstance(found, list | tuple):
        for item in found[:_LONGEST_LIST]:
            if isinstance(item, dict):
                yield item


def named(value: Any, name: str, *path: str, key: str = "type") -> Mapping[str, Any]:
    """Follow a path of keys to a list of objects; return the first whose `key` is `name`, or an empty object."""
    return next((item for item in objects(value, *path) if item.get(key) == name), _EMPTY)


def access_modes(claim: Any) -> tuple[str, ...]:
    """Return the access modes of a PVC; empty if unknown."""
    modes = mapping(claim, "spec").get("accessModes")
    return tuple(str(mode) for mode in modes[:8]) if isinstance(modes, list) else ()


def is_one_node(modes: tuple[str, ...]) -> bool:
    """Return whether a PVC with these access modes can be mounted on one node only."""
    return bool(modes) and set(modes) <= {"ReadWriteOnce", "ReadWriteOncePod"}


def moment(value: Any, *path: str) -> datetime | None:
    """Follow a path of keys to an RFC 3339 timestamp, as UTC; None if there is none.

    Return None for times before 1971, because the kubelet writes 1970-01-01 for a container that never started.
    """
    stamp = text(value, *path)
    if not 20 <= len(stamp) <= 40:
        return None
    try:
        parsed = datetime.fromisoformat(stamp)
        when = parsed.astimezone(UTC) if parsed.tzinfo else None
    except (ValueError, OverflowError):
        return None
    return when if when is not None and 1971 <= when.year <= 9000 else None


def stamp(when: datetime | None) -> str | None:
    """Format a time like the API: RFC 3339, UTC, whole seconds."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if when is not None else None


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


def mapping(value: Any, *path: str) -> Mapping[str, Any]:
    """Follow a path of keys to an object; empty if there is none."""
    found = _follow(value, path)
    return found if isinstance(found, dict) else _EMPTY


def _follow(value: Any, path: tuple[str, ...]) -> Any:
    """Follow a path of keys; None if a key is missing. All reads of objects use this function, so it must be fast."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def sequence(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def read_text(value: Any) -> str | None:
    """Return the value if it is a non-empty text, else None."""
    return value if isinstance(value, str) and value else None


MEBIBYTE = 2**20
LIMIT = 2**63
"""Upper limit of a quantity."""
LENGTH_LIMIT = 64
_QUANTITY = re.compile(r"(\+?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,4}))?", re.ASCII)
"""A number with a unit or an exponent. A larger exponent is beyond the limit of a quantity, or less than its smallest unit."""
_UNITS = {name: Decimal(1000) ** power for power, name in enumerate("num", -3)}
_UNITS |= {name: Decimal(1000) ** power for power, name in enumerate("kMGTPE", 1)}
_UNITS |= {f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", 1)}
_BINARY_UNITS = ("Ti", 2**40), ("Gi", 2**30)


def read_quantity(value: Any) -> Decimal | None:
    """Return a quantity as a number; None if it is invalid, negative, or too large for Kubernetes."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, int) and not 0 <= value < LIMIT:
        return None
    written = str(value)
    found = _QUANTITY.fullmatch(written) if len(written) <= LENGTH_LIMIT else None
    if found is None:
        return None
    number, unit, exponent = found.groups()
    amount = Decimal(f"{number}e{exponent or 0}") * _UNITS.get(unit, 1)
    return amount if amount < LIMIT else None


def read_bytes(value: Any) -> int | None:
    """Return a quantity of memory in bytes, rounded up as Kubernetes does, else None."""
    number = read_quantity(value)
    return None if number is None else ceil(number)


def read_mebibytes(value: Any) -> int | None:
    """Return a quantity of memory in MiB, rounded down, else None."""
    size = read_bytes(value)
    return None if size is None else size // MEBIBYTE


def read_count(value: Any) -> int | None:
    """Return a whole quantity, such as a number of devices, else None."""
    number = read_quantity(value)
    return int(number) if number is not None and number == int(number) else None


def format_bytes(size: int) -> str:
    """Format a number of bytes as a quantity: in TiB if it is a whole number, else in GiB, rounded up."""
    unit, factor = next((each for each in _BINARY_UNITS if size % each[1] == 0), _BINARY_UNITS[-1])
    return f"{ceil(Decimal(size) / factor)}{unit}"


def controller_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the controller of an object; empty without one."""
    owners = (mapping(owner) for owner in sequence(mapping(manifest, "metadata").get("ownerReferences")))
    return next((owner for owner in owners if owner.get("controller") is True), {})


def digest(value: object, length: int = 64) -> str:
    """Return the first hexadecimal digits of the SHA-256 of a value as JSON. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:length]
