"""Who owns which field of a child, as server-side apply records it in `metadata.managedFields`.

A child is up to date if both hold:

* its annotation `vllm-operator.dev/applied-digest` is the digest of the desired manifest;
* the operator still owns exactly the desired fields.

Values are not compared: a manager that changes a field becomes its owner, and a removed field has no owner. Two kinds of changes do not
change owners, and stay: defaults of the API server, and changes by admission webhooks.

Format of the record: https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from vllm_operator.api import labels
from vllm_operator.api.conditions import Change
from vllm_operator.api.reading import digest, read_quantity
from vllm_operator.api.resource import template_field
from vllm_operator.kube.client import Manifest

Path = tuple[str, ...]
Fields = Mapping[str, Any]
"""Fields in the format `fieldsV1`. Empty: a value with one owner as a whole."""

_KEPT_IF_FALSE = ("hostUsers",)  # and dropped by default before Kubernetes 1.33
SCALER = "kube-controller-manager"
"""Field manager that writes `replicas` through the scale subresource for a HorizontalPodAutoscaler."""
_RECORDED_METADATA = ("labels", "annotations", "ownerReferences")


def with_digest(desired: Manifest) -> Manifest:
    """Return a desired manifest with the annotation that has its digest."""
    annotations = {**(desired["metadata"].get("annotations") or {}), labels.APPLIED_ANNOTATION: digest(desired, 16)}
    return {**desired, "metadata": {**desired["metadata"], "annotations": annotations}}


def needs_apply(digested: Manifest, child: Manifest) -> bool:
    """Return whether a child differs from a desired manifest `with_digest`."""
    fields = _applied_as(digested, child)
    return not fields or find_difference(fields, _recorded(digested)) is not None


def find_drift(digested: Manifest, child: Manifest) -> Change | None:
    """Return the first field of a child that somebody else has changed since it was applied; None if there is none."""
    desired = _recorded(digested)
    path = find_difference(_applied_as(digested, child), desired)
    return describe_change(child, desired, path) if path is not None else None


def _applied_as(digested: Manifest, child: Manifest) -> Fields:
    """Return the fields that the operator has applied to a child; empty if the last apply was not of this manifest."""
    digest = digested["metadata"]["annotations"][labels.APPLIED_ANNOTATION]
    is_same = (child["metadata"].get("annotations") or {}).get(labels.APPLIED_ANNOTATION) == digest
    return (find_applied(child) or {}) if is_same else {}


def _recorded(digested: Manifest) -> Manifest:
    """Return the parts of a manifest of which managedFields records the owner."""
    metadata = {name: value for name, value in digested["metadata"].items() if name in _RECORDED_METADATA}
    rest = {name: value for name, value in digested.items() if name not in ("apiVersion", "kind", "metadata", "status")}
    return {"metadata": metadata, **rest}


def describe_change(child: Manifest, known: Any, path: Path) -> Change:
    """Return a change at a path of `known`, the desired or the live object, with the latest field manager that owns the field."""
    entries = (entry for entry in child["metadata"].get("managedFields") or () if entry.get("manager") != labels.FIELD_MANAGER)
    owners = [
        (str(entry.get("time") or ""), str(entry.get("manager") or ""))
        for entry in entries
        if _owns(entry.get("fieldsV1") or {}, known, path)
    ]
    time, manager = max(owners, default=("", ""))
    return Change(_in_words(known, path), manager, time)


def _owns(fields: Fields, known: Any, path: Path) -> bool:
    items = _Items(known)
    for name, inner in fields.items() if path else ():
        place = None if name == "." else items.find(name)
        if place is not None and str(place) == path[0]:
            return not inner or _owns(inner, known[place], path[1:])
    return not path


def _in_words(known: Any, path: Path) -> str:
    """Return a path for messages, with the names of list items, such as containers, instead of their numbers."""
    words = []
    for part in path:
        is_item = isinstance(known, list) and part.isdigit() and int(part) < len(known)
        known = known[int(part)] if is_item else known.get(part) if isinstance(known, dict) else None
        words.append(str(known["name"]) if is_item and isinstance(known, dict) and "name" in known else part)
    return ".".join(words)


def find_applied(child: Manifest) -> Fields | None:
    """Return the fields that the operator has applied; None if it has applied nothing."""
    for entry in child["metadata"].get("managedFields") or ():
        if entry.get("manager") == labels.FIELD_MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: Fields = entry.get("fieldsV1") or {}
            return fields
    return None


def find_difference(fields: Fields, desired: Any) -> Path | None:
    """Return the path of a field that is desired and not owned, or owned and not desired; None if there is none."""
    if not fields:
        return None
    items, found = _Items(desired), set()
    for name, inner in fields.items():
        if name == ".":
            continue
        place = items.find(name)
        if place is None:
            return (name,)
        found.add(place)
        if inner and (difference := find_difference(inner, desired[place])) is not None:
            return (str(place), *difference)
    return next(((str(place),) for place in items.places() if place not in found), None)


def find_unkept(fields: Fields, desired: Any, live: Any) -> Path | None:
    """Return the path of an applied field that a feature gate or a webhook has removed or changed; None if there is none.

    Maps and lists of maps that are owned as a whole count as kept: the API server adds defaults to them.
    """
    if desired == live:
        return None  # most parts are equal, and comparing is faster than walking through their fields
    if not fields:
        return None if _is_kept(desired, live) else ()
    in_desired, in_live = _Items(desired), _Items(live)
    for name, inner in fields.items():
        place = None if name == "." else in_desired.find(name)
        if place is None or (not desired[place] and place not in _KEPT_IF_FALSE):  # the API server omits empty values
            continue
        where = in_live.find(name)
        unkept = () if where is None else None if name[0] == "v" else find_unkept(inner, desired[place], live[where])
        if unkept is not None:
            return (_name_of(name, place), *unkept)
    return None


def differs_in_template(desired: Mapping[str, Any], live: Manifest) -> bool:
    """Return whether applying a Deployment or LeaderWorkerSet would change its Pod templates, and so replace its Pods."""
    part = template_field(desired)
    fields = ((find_applied(live) or {}).get("f:spec") or {}).get(f"f:{part}") or {}
    wanted, present = desired["spec"][part], (live.get("spec") or {}).get(part)
    return not fields or find_difference(fields, wanted) is not None or find_unkept(fields, wanted, present) is not None


def find_additions(child: Manifest, desired: Manifest) -> tuple[str, ...]:
    """Return JSON pointers of undesired additions of other managers to the spec, in the order in which to remove them.

    Metadata at any depth stays (`kubectl rollout restart` writes an annotation), and so do writes through a subresource, such as `scale`.
    """
    pointers: dict[str, None] = {}
    for entry in child["metadata"].get("managedFields") or ():
        theirs = (entry.get("fieldsV1") or {}).get("f:spec")
        if entry.get("manager") != labels.FIELD_MANAGER and not entry.get("subresource") and isinstance(theirs, Mapping):
            pointers |= dict.fromkeys(_additions(theirs, desired.get("spec"), child.get("spec"), "/spec"))
    # Items of a list are removed from its end, so that the other indexes stay valid.
    return tuple(sorted(pointers, key=lambda it: [(part.isdigit(), len(part), part) for part in it.split("/")], reverse=True))


def is_scaled(child: Manifest) -> bool:
    """Return whether a controller has set `replicas` through the scale subresource."""
    for entry in child["metadata"].get("managedFields") or ():
        fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        if entry.get("manager") == SCALER and entry.get("subresource") == "scale" and "f:replicas" in fields:
            return True
    return False


def _additions(theirs: Fields, desired: Any, live: Any, pointer: str) -> Iterator[str]:
    in_live, in_desired = _Items(live), _Items(desired)
    for name, inner in theirs.items():
        if name in (".", "f:metadata"):
            continue
        where = in_live.find(name)
        if where is None:
            continue
        place = in_desired.find(name)
        deeper = f"{pointer}/{str(where).replace('~', '~0').replace('/', '~1')}"
        if place is None:
            yield deeper
        elif inner:
            yield from _additions(inner, desired[place], live[where], deeper)


class _Items:
    """Finds the items of a map or a list by their names in `fieldsV1`: `f:name`, `k:{"name":"x"}` or `v:"x"`."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._indexes: dict[str, dict[str | int, list[int]]] = {}

    def places(self) -> Sequence[Any]:
        """Return the keys of the map that have a value, or the indexes of the list; none for other values."""
        if isinstance(self._value, dict):
            return [key for key, value in self._value.items() if value is not None]
        return range(len(self._value)) if isinstance(self._value, list | tuple) else ()

    def find(self, name: str) -> Any:
        """Return the key or the index of an item; None if there is no such item."""
        if name[0] == "f":
            key = name[2:]
            return key if isinstance(self._value, dict) and key in self._value else None
        if not isinstance(self._value, list | tuple):
            return None
        wanted = _parse(name[2:])
        if name[0] == "v":
            return self._value.index(wanted) if wanted in self._value else None
        for key, value in wanted.items():
            if having := self._having(key, value):
                exact = (index for index in having if all(self._value[index].get(k) == v for k, v in wanted.items()))
                # a manifest may omit a key field that has a default, such as the protocol of a port
                by_default = (index for index in having if all(self._value[index].get(k, v) == v for k, v in wanted.items()))
                return next(exact, next(by_default, None))
        return None

    def _having(self, key: str, value: Any) -> Sequence[int]:
        """Return the indexes of items with this field. An index keeps lists of thousands of variables fast."""
        if key not in self._indexes:
            index = self._indexes[key] = {}
            for number, item in enumerate(self._value):
                if isinstance(item, dict) and isinstance(inner := item.get(key), str | int):
                    index.setdefault(inner, []).append(number)
        return self._indexes[key].get(value, ())


@lru_cache(maxsize=4096)
def _parse(name: str) -> Any:
    """Parse the JSON in the name of an item. Cached, because most objects have the same few names."""
    return json.loads(name)


def _is_kept(desired: Any, live: Any) -> bool:
    if isinstance(desired, dict) or desired == live or not (desired or live):
        return True
    if isinstance(desired, list | tuple):
        return any(isinstance(item, dict) for item in desired)
    quantity = read_quantity(desired)  # the API server writes 1024Mi as 1Gi
    return quantity is not None and quantity == read_quantity(live)


def _name_of(name: str, place: Any) -> str:
    """Return the name of an item for messages: containers by their names instead of their numbers."""
    return str(place) if name.startswith("f:") else "/".join(map(str, _parse(name[2:]).values())) if name[0] == "k" else name[2:]
