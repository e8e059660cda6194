"""The fields of `spec.podTemplate`: which of them the API server knows, and which labels keep their values.

Server-side apply refuses an object with one field that its schema does not declare, whatever `fieldValidation` says, in words
about a Deployment that the user has not written. The schema is in the API server's OpenAPI document
(https://kubernetes.io/docs/concepts/overview/kubernetes-api/#openapi-v3). So no list of fields is kept here, and an API server that
is newer or older than the operator is asked for what it knows itself.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.conditions import Reason
from vllm_operator.api.status import ConditionStatus
from vllm_operator.planning.outcome import Verdict
from vllm_operator.planning.pod_template import SELECTOR_LABELS
from vllm_operator.pods.reading import mapping, read_text, sequence

SCHEMA_PATH = "/openapi/v3/apis/apps/v1"
"""Where an API server describes Deployments, and with them Pod templates. Every account may read it (system:discovery)."""
_ROOT = "io.k8s.api.core.v1.PodTemplateSpec"
_PREFIX = "#/components/schemas/"
LIKENESS = 0.7
"""From here on a field that is not known is taken for a misspelling of one that is."""
MOST = 50
"""Fields that are looked for at most: a person corrects a few, and looks again."""
NAMED = 4
"""Fields that the message names."""
_LONGEST = 120
"""Characters of a field in the message."""
_DEEPEST = 32
"""Levels of a Pod template that are looked at. Those of Kubernetes end earlier."""

PodSchema = Mapping[str, Mapping[str, str | None]]
"""By the name of each type its fields, each with the type of its value, or of the entries of its list; None where that has no fields."""


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field that the API server does not know. `near` is the known field that may be meant; empty where there is none."""

    path: str
    near: str = ""


def read_pod_schema(document: Mapping[str, Any]) -> PodSchema | None:
    """Read the fields of a Pod template out of an OpenAPI v3 document; None if it does not describe them. Takes any document."""
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
    """The fields of `spec.podTemplate` that the API server does not know, in the order in which they are written.

    Args:
        template: The Pod template of the user. Any object.
        schema: What the API server knows; None if that is not known, and then nothing is found.
    """
    found: list[UnknownField] = []
    if schema is not None:
        for field in _unknown(template, _ROOT, "podTemplate", schema, _DEEPEST):
            found.append(field)
            if len(found) == MOST:
                break
    return tuple(found)


def refuse_unknown_fields(fields: Sequence[UnknownField]) -> Verdict | None:
    """Why the spec is not accepted; None where all fields are known."""
    if not fields:
        return None
    named = ", ".join(f"{field.path[:_LONGEST]}{f' (did you mean {field.near}?)' if field.near else ''}" for field in fields[:NAMED])
    more = f" and {len(fields) - NAMED} more" if len(fields) > NAMED else ""
    message = f"The API server does not know these fields of a Pod: {named}{more}. Correct or remove them."
    return Verdict(ConditionStatus.FALSE, Reason.INVALID_SPEC, message)


def find_kept_labels(template: Mapping[str, Any] | None, rendered: Mapping[str, str]) -> dict[str, str]:
    """Labels that the user sets to other values, and that keep those by which the Deployment and the Service select the Pods."""
    given = mapping(template, "metadata", "labels")
    return {label: rendered[label] for label in SELECTOR_LABELS if label in given and given[label] != rendered[label]}


def _type_of(schema: Any, described: Mapping[str, Any]) -> str | None:
    """The type of a value, or of the entries of a list, if it is one with fields."""
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
            yield UnknownField(place, _near(str(name), fields))
        elif (inner_type := fields[name]) is not None and levels > 0:
            yield from _unknown(inner, inner_type, place, schema, levels - 1)


def _near(name: str, fields: Mapping[str, Any]) -> str:
    by_lower = {field.lower(): field for field in fields}
    alike = difflib.get_close_matches(name[:64].lower(), by_lower, 1, LIKENESS)
    return by_lower[alike[0]] if alike else ""
