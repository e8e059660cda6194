"""Whether an object still is what was applied: compares the wish with the object as the API server has it.

Server-side apply records in `metadata.managedFields` who owns which field. Three things follow from it:

* the object lacks or contradicts something that is wished (`differs`), be it because the wish changed or
  because somebody else changed the object;
* our entry names a field that is not wished any more (`owns_more`): it must be given up, by applying;
* another manager has added something inside of what is ours, such as an environment variable in our
  container (`fields_of_others`): applying does not remove it, a JSON patch does.

Fields that the API server filled in by itself are in nobody's way: they contradict no wish.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_operator.cluster.client import Manifest
from vllm_operator.pods.reading import read_quantity

Path = tuple[str, ...]

ATOMIC_MAPS: tuple[Path, ...] = (("selector",), ("nodeSelector",), ("matchLabels",))
"""Maps that server-side apply replaces as a whole: an added key is a difference."""
LIST_KEYS = ("name", "key", "containerPort", "port", "mountPath", "devicePath", "ip", "uid", "topologyKey", "type")
"""Fields that tell the entries of a list apart, the first that all entries have."""
STAYS = ("f:metadata",)
"""What others add here is theirs: labels, annotations (`kubectl rollout restart`)."""
QUANTITIES = frozenset({"limits", "requests", "capacity", "sizeLimit"})


def differs(desired: Any, live: Any, path: Path = ()) -> Path | None:
    """Return the path of the first wished field that the live object lacks or contradicts; None if there is none.

    The API server leaves out empty values and writes quantities in its own way (`1024Mi` becomes `1Gi`):
    neither is a difference.
    """
    if isinstance(desired, dict):
        return _map_differs(desired, live, path)
    if isinstance(desired, list | tuple):
        return _list_differs(desired, live, path)
    if desired == live and isinstance(desired, bool) == isinstance(live, bool):
        return None
    if _empty(desired) and _empty(live):
        return None
    if QUANTITIES.intersection(path) and _same_quantity(desired, live):
        return None
    return path


def _map_differs(desired: Mapping[str, Any], live: Any, path: Path) -> Path | None:
    if not isinstance(live, dict):
        return None if _empty(desired) and live is None else path
    if path[-1:] in ATOMIC_MAPS and "matchLabels" not in desired and set(live) - set(desired):
        return path
    for key, value in desired.items():
        found = differs(value, live.get(key), (*path, key))
        if found is not None:
            return found
    return None


def _list_differs(desired: Sequence[Any], live: Any, path: Path) -> Path | None:
    live = live if isinstance(live, list | tuple) else []
    key = _list_key(desired, live)
    if key is None:
        if len(desired) != len(live):
            return path
        pairs = zip(desired, live, strict=True)
        return next((found for index, (a, b) in enumerate(pairs) if (found := differs(a, b, (*path, str(index)))) is not None), None)
    by_key: dict[Any, list[Any]] = {}
    for item in live:
        by_key.setdefault(item.get(key), []).append(item)
    for item in desired:
        # ports of two protocols have the same number
        candidates = by_key.get(item[key], [])
        differences = [differs(item, candidate, (*path, str(item[key]))) for candidate in candidates]
        if None not in differences:
            return differences[0] if differences else (*path, str(item[key]))
    return None


def _list_key(*lists: Sequence[Any]) -> str | None:
    items = [item for entries in lists for item in entries]
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    return next((key for key in LIST_KEYS if all(key in item for item in items)), None)


def _empty(value: Any) -> bool:
    return value is None or value in ("", 0, False) or (isinstance(value, Mapping | Sequence) and not value)


def _same_quantity(desired: Any, live: Any) -> bool:
    left, right = read_quantity(desired), read_quantity(live)
    return left is not None and left == right


def owned_fields(live: Manifest, manager: str) -> Mapping[str, Any] | None:
    """The fields that a manager has applied, as `fieldsV1`; None if it has applied nothing."""
    for entry in live.get("metadata", {}).get("managedFields") or ():
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: Mapping[str, Any] = entry.get("fieldsV1") or {}
            return fields
    return None


def owns_more(fields: Mapping[str, Any], desired: Any) -> bool:
    """Whether these owned fields name something that is not wished."""
    steps = _Steps(desired)
    for name, inner in fields.items():
        if name == ".":
            continue
        found, value = steps.follow(name)
        if not found or (inner and owns_more(inner, value)):
            return True
    return False


def fields_of_others(live: Manifest, desired: Manifest, manager: str, *, within: str = "spec") -> tuple[str, ...]:
    """JSON pointers of what other managers have added inside of `within` and is not wished, in order of removal.

    Left alone: metadata at any depth, and what came through a subresource (`scale`, `status`).
    """
    pointers: dict[str, None] = {}
    for theirs in _other_entries(live, manager, within):
        for pointer in _fields_of_others(theirs, desired.get(within), live.get(within), f"/{within}"):
            pointers[pointer] = None
    # entries of a list are removed from its end, so that the places of the others do not move
    return tuple(sorted(pointers, key=_removal_order, reverse=True))


def lost_field(live: Manifest, desired: Manifest, manager: str, *, within: str = "spec") -> bool:
    """Whether another manager has taken over a wished field, as happens to a list that is replaced as a whole."""
    ours = (owned_fields(live, manager) or {}).get(f"f:{within}", {})
    return any(_lost(theirs, ours, desired.get(within)) for theirs in _other_entries(live, manager, within))


def _other_entries(live: Manifest, manager: str, within: str) -> Iterator[Mapping[str, Any]]:
    for entry in live.get("metadata", {}).get("managedFields") or ():
        theirs = (entry.get("fieldsV1") or {}).get(f"f:{within}")
        if entry.get("manager") != manager and not entry.get("subresource") and isinstance(theirs, Mapping):
            yield theirs


def _fields_of_others(theirs: Mapping[str, Any], desired: Any, live: Any, pointer: str) -> Iterator[str]:
    in_live, in_wish = _Steps(live), _Steps(desired)
    for name, inner in theirs.items():
        if name == "." or name in STAYS:
            continue
        found, value = in_live.follow(name)
        if not found:
            continue
        wished, wanted = in_wish.follow(name)
        if wished and not inner:
            continue
        place = f"{pointer}/{_place(live, name, value)}"
        if not wished:
            yield place
        else:
            yield from _fields_of_others(inner, wanted, value, place)


def _lost(theirs: Mapping[str, Any], ours: Mapping[str, Any], desired: Any) -> bool:
    steps = _Steps(desired)
    for name, inner in theirs.items():
        if name == "." or name in STAYS:
            continue
        wished, wanted = steps.follow(name)
        if wished and ((not inner and name not in ours) or (inner and _lost(inner, ours.get(name) or {}, wanted))):
            return True
    return False


class _Steps:
    """Follows steps of a `fieldsV1` path from one value: `f:name`, `k:{"name":"x"}` or `v:"x"`."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._items: dict[tuple[str, str], list[Mapping[str, Any]]] | None = None

    def follow(self, name: str) -> tuple[bool, Any]:
        """Whether there is such a thing, and what it is."""
        kind, _, rest = name.partition(":")
        value = self._value
        if kind == "f":
            return (True, value[rest]) if isinstance(value, Mapping) and rest in value else (False, None)
        if not isinstance(value, Sequence) or isinstance(value, str):
            return False, None
        wanted = json.loads(rest)
        if kind == "v":
            return (True, None) if wanted in value else (False, None)
        for key, text in wanted.items():
            for item in self._having(key, text):
                # a wish may leave out a key field that has a default, as the protocol of a port
                if all(item.get(k, v) == v for k, v in wanted.items()):
                    return True, item
        return False, None

    def _having(self, key: str, value: Any) -> Sequence[Mapping[str, Any]]:
        """Items of the list by one of their fields: thousands of variables take a moment, not minutes."""
        if self._items is None:
            self._items = {}
            for item in self._value:
                for name, inner in item.items() if isinstance(item, Mapping) else ():
                    if isinstance(inner, str | int):
                        self._items.setdefault((name, str(inner)), []).append(item)
        return self._items.get((key, str(value)), ())


def _place(value: Any, name: str, child: Any) -> str:
    if name.startswith("f:"):
        return name[2:].replace("~", "~0").replace("/", "~1")
    if name.startswith("v:"):
        return str(value.index(json.loads(name[2:])))
    return str(next(index for index, item in enumerate(value) if item is child))


def _removal_order(pointer: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in pointer.split("/"))
