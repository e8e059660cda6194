"""Unknown fields and protected labels in `spec.podTemplate`.

Server-side apply refuses an object with a field that is not in the schema, regardless of `fieldValidation`, and the error refers to a
Deployment that the user did not write. The schema comes from the OpenAPI document of the API server
(https://kubernetes.io/docs/concepts/overview/kubernetes-api/#openapi-v3), so it always matches the version of the API server.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.reading import mapping, read_text, sequence
from vllm_operator.api.status import ConditionStatus
from vllm_operator.planning.pod_template import SELECTOR_LABELS
from vllm_operator.text.wording import similar

SCHEMA_PATH = "/openapi/v3/apis/apps/v1"
"""Path of the OpenAPI document with Deployments and Pod templates. Every account may read it (system:discovery)."""
_ROOT = "io.k8s.api.core.v1.PodTemplateSpec"
_PREFIX = "#/components/schemas/"
MOST = 50
"""Maximum number of unknown fields to find."""
NAMED = 4
"""Maximum number of fields in the message."""
_LONGEST = 120
"""Maximum length of a field in the message, in characters."""
_DEEPEST = 32
"""Maximum depth of the search. The schema of Kubernetes is less deep."""

PodSchema = Mapping[str, Mapping[str, str | None]]
"""The fields of each type, with the type of their value or list entries; None for values without fields."""


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field that the API server does not know. `near` is a similar known field, or empty."""

    path: str
    near: str = ""


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


def find_unknown_fields(template: Mapping[str, Any] | None, schema: PodSchema | None) -> tuple[UnknownField, ...]:
    """Return the fields of `spec.podTemplate` that the API server does not know, in their order, at most `MOST`.

    Args:
        template: The Pod template of the user. Any object is valid input.
        schema: The schema of the API server. If it is None, the result is empty.
    """
    found: list[UnknownField] = []
    if schema is not None:
        for field in _unknown(template, _ROOT, "podTemplate", schema, _DEEPEST):
            found.append(field)
            if len(found) == MOST:
                break
    return tuple(found)


def refuse_unknown_fields(fields: Sequence[UnknownField]) -> Verdict | None:
    """Return the verdict about unknown fields; None if there are none."""
    if not fields:
        return None
    named = ", ".join(f"{field.path[:_LONGEST]}{f' (did you mean {field.near}?)' if field.near else ''}" for field in fields[:NAMED])
    more = f" and {len(fields) - NAMED} more" if len(fields) > NAMED else ""
    message = f"The API server does not know these fields of a Pod: {named}{more}. Correct or remove them."
    return Verdict(ConditionStatus.FALSE, Reason.INVALID_SPEC, message)


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


def _unknown(value: Any, type: str, path: str, schema: PodSchema, levels: int) -> Iterator[UnknownField]:
    if isinstance(value, list):
        for index, entry in enumerate(value):
            if isinstance(entry, dict):
                yield from _unknown(entry, type, f"{path}[{index}]", schema, levels)
        return
    fields = schema[type]
    for name, inner in mapping(value).items():
        place = f"{path}.{name}"
        if name not in fields:
            yield UnknownField(place, "".join(similar(str(name), fields)))
        elif (inner_type := fields[name]) is not None and levels > 0:
            yield from _unknown(inner, inner_type, place, schema, levels - 1)
