"""Validation of `spec.podTemplate` before it is merged.

It refuses templates that cannot be merged, containers without an image, and impossible names of PersistentVolumeClaims, because the API
server accepts any text as `claimName`. The API server validates the rest, such as unknown fields, and the user sees its errors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.api.labels import COMPONENT_LABEL, CONTAINER, INSTANCE_LABEL, NAME_LABEL, is_name
from vllm_operator.api.reading import mapping, named, sequence
from vllm_operator.catalog.notes import say

HANDLERS = frozenset({"httpGet", "exec", "tcpSocket", "grpc", "sleep"})
"""A probe or hook has exactly one of these."""
SELECTOR_LABELS = (NAME_LABEL, INSTANCE_LABEL, COMPONENT_LABEL)
"""Labels in the selectors of the Deployment, the Service and the operator. They keep their rendered values."""

DEPTH_LIMIT, VALUES_LIMIT = 50, 10_000
NAME_SHOWN = 63
"""Maximum characters of a name in a message."""


class SpecError(ValueError):
    """A field of the spec is invalid. The message names it and what is expected."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """How an object is merged: by `objects` for the objects in it.

    `lists` are merged by entry, with these key fields, and entries by the rules in `entries`, without which they are replaced. `added_to`
    are lists that only grow. All other lists are replaced.
    """

    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    entries: Mapping[str, "MergeRules"] = field(default_factory=dict)
    objects: Mapping[str, "MergeRules"] = field(default_factory=dict)
    added_to: frozenset[str] = frozenset()


PLAIN = MergeRules()
_CONTAINER = MergeRules(
    lists={"env": ("name",), "volumeMounts": ("mountPath",), "ports": ("containerPort", "protocol")},
    objects={"resources": MergeRules(lists={"claims": ("name",)})},
)
_POD = MergeRules(
    lists=dict.fromkeys(("containers", "initContainers", "volumes", "imagePullSecrets", "resourceClaims"), ("name",)),
    entries={"containers": _CONTAINER, "initContainers": _CONTAINER},
    added_to=frozenset({"tolerations"}),
)
POD_TEMPLATE = MergeRules(objects={"spec": _POD})
"""How a Pod template is merged."""
_DEFAULTS: Mapping[str, str] = {"protocol": "TCP"}


def identify(entry: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values of the key fields of a list entry."""
    return tuple(str(entry.get(key, _DEFAULTS.get(key))) for key in keys)


def check_pod_template(template: Mapping[str, Any] | None) -> None:
    """Check that a Pod template can be merged. Raises SpecError if not."""
    if template is None:
        return
    _check_extent(template)
    if unknown := sorted(map(str, set(template) - {"metadata", "spec"})):
        raise SpecError(say("template.unknown", fields=", ".join(unknown)))
    metadata = _mapping(template.get("metadata"), "podTemplate.metadata")
    if unknown := sorted(map(str, set(metadata) - {"labels", "annotations"})):
        raise SpecError(f"podTemplate.metadata has {', '.join(unknown)}; only labels and annotations are allowed")
    for part in ("labels", "annotations"):
        for name, value in _mapping(metadata.get(part), f"podTemplate.metadata.{part}").items():
            if value is not None and not isinstance(value, str):
                raise SpecError(f'podTemplate.metadata.{part}: the value of {name} must be a string; put it in quotes: "{value}"')
    _check_object(template, "podTemplate", POD_TEMPLATE)
    for index, volume in enumerate(sequence(mapping(template, "spec").get("volumes"))):
        claim = mapping(volume, "persistentVolumeClaim").get("claimName")
        if claim is not None and not is_name(claim):
            raise SpecError(say("template.claim", index=index, name=repr(str(claim)[:NAME_SHOWN])))


def check_containers(template: Mapping[str, Any] | None) -> None:
    """Refuse a new container without an image with SpecError: the API server would refuse the Deployment."""
    for part, ours in (("containers", (CONTAINER,)), ("initContainers", ())):
        for index, container in enumerate(map(mapping, sequence(mapping(template, "spec").get(part)))):
            if container.get("name") not in ours and not container.get("image"):
                meant = f"; the container of the engine is {CONTAINER}" if ours else ""
                name = str(container.get("name"))[:NAME_SHOWN]
                raise SpecError(say("template.no-image", place=f"{part}[{index}]", name=name, meant=meant))


def tolerations_of(template: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Return the tolerations in `spec.podTemplate`. Any value is valid input."""
    return tuple(sequence(mapping(template, "spec").get("tolerations")))


def run_as_user(template: Mapping[str, Any] | None) -> int | None:
    """Return the user ID of the engine container in a template; None for the user of the image. Any template is valid input."""
    holders = named(template, CONTAINER, "spec", "containers", key="name"), mapping(template, "spec")
    users = (mapping(holder.get("securityContext")).get("runAsUser") for holder in holders)
    return next((user for user in users if type(user) is int), None)


def _check_extent(template: Mapping[str, Any]) -> None:
    level, count = list[Any]([template]), 0
    for _ in range(DEPTH_LIMIT):
        level = [inner for value in level for inner in (value.values() if isinstance(value, Mapping) else value)]
        count += len(level)
        level = [value for value in level if isinstance(value, Mapping | list)]
        if count > VALUES_LIMIT:
            raise SpecError(f"podTemplate has more than {VALUES_LIMIT} values; put large data into a ConfigMap")
        if not level:
            return
    raise SpecError(f"podTemplate has more than {DEPTH_LIMIT} levels of nesting; reduce them")


def _check_object(value: Any, path: str, rules: MergeRules) -> None:
    fields = _mapping(value, path)
    for name, inner in rules.objects.items():
        _check_object(fields.get(name), f"{path}.{name}", inner)
    for name, keys in rules.lists.items():
        _check_list(fields.get(name), f"{path}.{name}", keys, rules.entries.get(name, PLAIN))


def _check_list(entries: Any, path: str, keys: tuple[str, ...], rules: MergeRules) -> None:
    if not isinstance(entries, list | None):
        raise SpecError(f"{path} must be a list, each entry with a {keys[0]}")
    seen: set[tuple[str, ...]] = set()
    for index, entry in enumerate(entries or ()):
        if not isinstance(entry, Mapping) or not isinstance(entry.get(keys[0]), str | int):
            raise SpecError(f"{path}[{index}] needs a {keys[0]}, because entries are merged by it")
        identity = identify(entry, keys)
        if identity in seen:
            raise SpecError(f"{path} has {keys[0]} {entry[keys[0]]} twice; keep one of them")
        seen.add(identity)
        _check_object(entry, f"{path}[{index}]", rules)


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping | None):
        raise SpecError(f"{path} must be an object with fields, not {type(value).__name__}")
    return value or {}


def find_kept_labels(template: Mapping[str, Any] | None, rendered: Mapping[str, str]) -> dict[str, str]:
    """Return the selector labels that the user sets to other values. They keep the rendered values."""
    given = mapping(template, "metadata", "labels")
    return {label: rendered[label] for label in SELECTOR_LABELS if label in given and given[label] != rendered[label]}
