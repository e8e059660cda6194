"""Validation of `spec.podTemplate` before it is merged, and of its fields against the schema of the API server.

It refuses templates that cannot be merged, containers without an image, and impossible names of PersistentVolumeClaims, because the API
server accepts any text as `claimName`. It also refuses unknown fields: server-side apply refuses them regardless of `fieldValidation`, and
the error refers to a Deployment that the user did not write. The schema comes from the OpenAPI document of the API server
(https://kubernetes.io/docs/concepts/overview/kubernetes-api/#openapi-v3). The API server validates the rest, and the user sees its errors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from vllm_operator.api.conditions import FALSE, Reason, Verdict
from vllm_operator.api.labels import COMPONENT_LABEL, CONTAINER, INSTANCE_LABEL, NAME_LABEL, is_name
from vllm_operator.api.reading import mapping, named, read_text, sequence
from vllm_operator.catalog.notes import say
from vllm_operator.text.wording import few, similar

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


SCHEMA_PATH = "/openapi/v3/apis/apps/v1"
"""Path of the OpenAPI document with Deployments and Pod templates. Every account may read it (system:discovery)."""
_ROOT = "io.k8s.api.core.v1.PodTemplateSpec"
_PREFIX = "#/components/schemas/"
MOST = 50
"""Maximum number of unknown fields to find."""
_DEEPEST = 32
"""Maximum depth of the search. The schema of Kubernetes is less deep."""

PodSchema = Mapping[str, Mapping[str, str | None]]
"""The fields of each type, with the type of their value or list entries; None for values without fields."""


def read_pod_schema(document: Mapping[str, Any]) -> PodSchema | None:
    """Read the fields of a Pod template from an OpenAPI v3 document; None if it does not describe them. Any document is valid input."""
    described = mapping(document, "components", "schemas")
    types: dict[str, Mapping[str, str | None]] = {}
    waiting = [_ROOT]
    while waiting:
        name = waiting.pop()
        if name in types:
            continue
        properties = mapping(described.get(name), "properties")
        types[name] = {str(field): _type_of(value, described) for field, value in properties.items()}
        waiting += [inner for inner in types[name].values() if inner is not None]
    return types if types[_ROOT] else None


def find_unknown_fields(template: Mapping[str, Any] | None, schema: PodSchema | None) -> tuple[str, ...]:
    """Return up to `MOST` fields of any template that the API server does not know, with similar ones; none without a schema."""
    return tuple(islice(_unknown(template, _ROOT, "podTemplate", schema, _DEEPEST), MOST)) if schema is not None else ()


def refuse_unknown_fields(fields: Sequence[str]) -> Verdict | None:
    """Return the verdict about unknown fields; None if there are none."""
    if not fields:
        return None
    message = f"The API server does not know these fields of a Pod: {few(fields, 4)}. Correct or remove them."
    return Verdict(FALSE, Reason.INVALID_SPEC, message)


def find_kept_labels(template: Mapping[str, Any] | None, rendered: Mapping[str, str]) -> dict[str, str]:
    """Return the selector labels that the user sets to other values. They keep the rendered values."""
    given = mapping(template, "metadata", "labels")
    return {label: rendered[label] for label in SELECTOR_LABELS if label in given and given[label] != rendered[label]}


def _type_of(schema: Any, described: Mapping[str, Any]) -> str | None:
    """Return the type of a value or of list entries; None if it has no fields."""
    entries = mapping(schema, "items")
    for place in (mapping(schema), entries):
        for reference in (place, *map(mapping, sequence(place.get("allOf")))):
            name = (read_text(reference.get("$ref")) or "").removeprefix(_PREFIX)
            if name and mapping(described.get(name), "properties"):
                return name
    return None


def _unknown(value: Any, type: str, path: str, schema: PodSchema, levels: int) -> Iterator[str]:
    if isinstance(value, list):
        for index, entry in enumerate(value):
            if isinstance(entry, dict):
                yield from _unknown(entry, type, f"{path}[{index}]", schema, levels)
        return
    fields = schema[type]
    for name, inner in mapping(value).items():
        place = f"{path}.{name}"
        if name not in fields:
            yield place[:120] + "".join(f" (did you mean {near}?)" for near in similar(str(name), fields))
        elif (inner_type := fields[name]) is not None and levels > 0:
            yield from _unknown(inner, inner_type, place, schema, levels - 1)
