"""Reading plain dicts of unknown shape.

Pods, claims and events come from the API server, but a test, a proxy or another controller may have put
anything into them. Every function here takes any value, never raises, and bounds what it returns.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from vllm_operator.catalog.gpus import Version, parse_version

Manifest = Mapping[str, Any]
"""A Kubernetes object as a plain dict. Its shape is not trusted."""

RunKey = tuple[str, int]
"""One run of the engine container: the uid of its Pod, and how often the container had been restarted before it."""

_LONGEST_TEXT = 8192
_LONGEST_LIST = 1000


def text(value: Any, *path: str) -> str:
    """Follow a path of keys to a string; the empty string where there is none."""
    if path:
        value = mapping(value, *path[:-1]).get(path[-1])
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""


def integer(value: Any, *path: str) -> int | None:
    """Follow a path of keys to a 64-bit integer; None where there is none."""
    if path:
        value = mapping(value, *path[:-1]).get(path[-1])
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def flag(value: Any, *path: str) -> bool:
    """Follow a path of keys to a boolean; False where there is none."""
    return mapping(value, *path[:-1]).get(path[-1]) is True


def objects(value: Any, *path: str) -> Iterator[Mapping[str, Any]]:
    """Follow a path of keys to a list and yield the objects in it."""
    if path:
        value = mapping(value, *path[:-1]).get(path[-1])
    if isinstance(value, list | tuple):
        yield from (item for item in value[:_LONGEST_LIST] if isinstance(item, Mapping))


def named(value: Any, name: str, *path: str, key: str = "type") -> Mapping[str, Any]:
    """Follow a path of keys to a list of objects; the first whose `key` is `name`, or an empty object."""
    return next((item for item in objects(value, *path) if item.get(key) == name), {})


def access_modes(claim: Any) -> tuple[str, ...]:
    """Access modes of a claim; empty where it is not known."""
    modes = mapping(claim, "spec").get("accessModes")
    return tuple(str(mode) for mode in modes[:8]) if isinstance(modes, list) else ()


def is_one_node(modes: tuple[str, ...]) -> bool:
    """Whether a claim with these access modes can be mounted on one node only."""
    return bool(modes) and set(modes) <= {"ReadWriteOnce", "ReadWriteOncePod"}


def moment(value: Any, *path: str) -> datetime | None:
    """Follow a path of keys to an RFC 3339 timestamp, as UTC; None where there is none.

    Times before 1971 are None: a kubelet writes 1970-01-01 for a container that never started.
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
    """Write a time as the API does: RFC 3339, UTC, whole seconds."""
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
