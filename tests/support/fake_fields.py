"""Server-side apply in memory: which fields a manifest names, and what applying it makes of an object.

A part of what an API server does, enough for tests of whoever applies: ownership by manager, conflicts, forced
take-over, fields that are given up and go. Lists are merged by key where they have one, else replaced.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

LIST_KEYS = (("containerPort", "protocol"), ("port", "protocol"), ("mountPath",), ("name",), ("type",), ("uid",))
DEFAULTS = {"protocol": "TCP"}
ATOMIC = frozenset({"selector", "nodeSelector", "args", "command", "tolerations", "accessModes", "nodeSelectorTerms"})
LIST_MAPS = frozenset(
    {
        "containers",
        "initContainers",
        "env",
        "ports",
        "volumes",
        "volumeMounts",
        "conditions",
        "ownerReferences",
        "imagePullSecrets",
        "resourceClaims",
        "claims",
        "backends",
    }
)
Fields = dict[str, Any]
Path = tuple[str, ...]


def list_key(name: str, item: Any) -> tuple[str, ...] | None:
    """The fields that tell the entries of this list apart; None for a list that is replaced as a whole."""
    if name not in LIST_MAPS or not isinstance(item, Mapping):
        return None
    return next((keys for keys in LIST_KEYS if keys[0] in item), None)


def entry_name(keys: tuple[str, ...], item: Mapping[str, Any]) -> str:
    """The name of a list entry in `fieldsV1`."""
    return "k:" + json.dumps({key: item.get(key, DEFAULTS.get(key)) for key in keys}, separators=(",", ":"))


def fields_of(value: Any, name: str = "") -> Fields:
    """The fields that a value names, as `fieldsV1`."""
    if isinstance(value, Mapping) and value and name not in ATOMIC:
        return {f"f:{key}": fields_of(inner, key) for key, inner in value.items()}
    if isinstance(value, list) and value and (keys := list_key(name, value[0])):
        return {entry_name(keys, item): {".": {}} | fields_of(item, "") for item in value}
    return {}


def leaves(fields: Fields, path: Path = ()) -> Iterator[Path]:
    """The paths of all leaves, entries of lists included."""
    for name, inner in fields.items():
        if inner:
            yield from leaves(inner, (*path, name))
        else:
            yield (*path, name)


def members(fields: Fields, path: Path = ()) -> Iterator[Path]:
    """The paths of all fields and entries that are named, those that only lead to others included: what is given up goes with them."""
    for name, inner in fields.items():
        if name != ".":
            yield (*path, name)
            yield from members(inner, (*path, name))


def read(value: Any, path: Path, name: str = "") -> tuple[bool, Any]:
    """Follow a path; (False, None) where it leads nowhere."""
    for step in path:
        if step == ".":
            continue
        if step.startswith("f:"):
            if not isinstance(value, Mapping) or step[2:] not in value:
                return False, None
            value, name = value[step[2:]], step[2:]
            continue
        found = [item for item in value if isinstance(item, Mapping) and _is(step, item, name)] if isinstance(value, list) else []
        if not found:
            return False, None
        value = found[0]
    return True, value


def remove(value: Any, path: Path, name: str = "") -> None:
    """Remove what a path leads to."""
    *way, last = path
    found, parent = read(value, tuple(way), name)
    if not found:
        return
    if last.startswith("f:") and isinstance(parent, dict):
        parent.pop(last[2:], None)
    elif isinstance(parent, list):
        list_name = way[-1][2:] if way else name
        parent[:] = [item for item in parent if not (isinstance(item, Mapping) and _is(last, item, list_name))]


def merge(live: Any, desired: Any, name: str = "") -> Any:
    """The live value with the wish laid over it."""
    if isinstance(desired, Mapping) and isinstance(live, Mapping) and name not in ATOMIC:
        return {**live, **{key: merge(live.get(key), inner, key) for key, inner in desired.items()}}
    if isinstance(desired, list) and desired and isinstance(live, list) and (keys := list_key(name, desired[0])):
        merged = list(live)
        for item in desired:
            step = entry_name(keys, item)
            at = next((index for index, old in enumerate(merged) if _is(step, old, name)), None)
            if at is None:
                merged.append(item)
            else:
                merged[at] = merge(merged[at], item)
        return merged
    return desired


def _is(step: str, item: Mapping[str, Any], name: str) -> bool:
    keys = list_key(name, item)
    return keys is not None and {key: item.get(key, DEFAULTS.get(key)) for key in keys} == _entry_key(step)


@lru_cache(maxsize=4096)
def _entry_key(step: str) -> Mapping[str, Any]:
    """What `entry_name` made a name of."""
    key: Mapping[str, Any] = json.loads(step.removeprefix("k:"))
    return key
