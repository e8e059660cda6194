"""Base of all API models (camelCase on the wire, snake_case in Python, immutable), and helpers for their schemas.

A string type has a bound, a pattern, and a message about what a valid value looks like (`rules.yaml`). For a pattern that does not match,
the API server quotes only the pattern, so `vllm_operator.api.crd` turns it into a CEL rule with this message.
`vllm_operator.planning.validation` checks a file with the same rule.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from vllm_operator.api.labels import NAME_LIMIT, NAME_PATTERN

DEPTH_LIMIT = 100
"""Maximum depth of an object without a schema, in levels. Deeper levels are not read."""
LIST_SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}
"""Schema markers of a list with unique values."""
LIST_ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
"""Schema markers of a list that is replaced as a whole."""
MAP_ATOMIC: dict[str, Any] = {"x-kubernetes-map-type": "atomic"}
"""Schema markers of an object that is replaced as a whole, with one field owner for all of it."""
OPEN_MAP: dict[str, Any] = {**MAP_ATOMIC, "x-kubernetes-preserve-unknown-fields": True}
"""Schema markers of an object that is replaced as a whole and that the API server neither validates nor prunes."""


class Model(BaseModel):
    """An API object.

    Unknown fields are dropped, not refused: the API server has already validated the object, and a newer CRD must not
    crash an older operator.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")

    def to_json(self) -> dict[str, Any]:
        """Return the object as JSON: camelCase keys, without unset and null fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def list_map(*keys: str) -> dict[str, Any]:
    """Return the schema markers of a list whose entries are identified by these keys."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def open_objects(**fields: str) -> dict[str, Any]:
    """Return the schema of an object with these fields (name to description), which are objects that the API server does not validate."""
    return {
        "properties": {
            name: {"type": "object", "description": description, "x-kubernetes-preserve-unknown-fields": True}
            for name, description in fields.items()
        }
    }


RULES = "x-rules"
"""Key of names of groups of CEL rules in a JSON schema. In the CRD, it is replaced by the rules."""


def checked_by(*groups: str) -> dict[str, Any]:
    """Return the schema entry for groups of CEL rules in `rules.yaml`."""
    return {RULES: list(groups)}


def cut_depth(value: Any, depth: int = DEPTH_LIMIT) -> Any:
    """Remove levels below the limit, because pydantic serializes at most 255 levels."""
    if isinstance(value, dict):
        return {key: cut_depth(inner, depth - 1) for key, inner in value.items()} if depth else None
    if isinstance(value, list):
        return [cut_depth(inner, depth - 1) for inner in value] if depth else None
    return value


FORM = "x-form"
"""Key of the name of a form in a JSON schema. Not part of the CRD."""


def form(name: str, limit: int, pattern: str, **constraints: Any) -> Any:
    """Return the form of a string: its maximum length and its pattern. By its name, `rules.yaml` says what a valid value looks like."""
    return Field(max_length=limit, pattern=pattern, json_schema_extra={FORM: name}, **constraints)


def optional(description: str, *markers: Mapping[str, Any], **constraints: Any) -> Any:
    """Return a field that may be absent, because the operator has a default. `markers` are further entries of its schema."""
    return Field(default=None, description=description, json_schema_extra=_merged(markers), **constraints)


def repeated(description: str, *markers: Mapping[str, Any], **constraints: Any) -> Any:
    """Return a field with a list that is empty by default. `markers` are further entries of its schema."""
    return Field(default_factory=list, description=description, json_schema_extra=_merged(markers), **constraints)


def _merged(markers: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    return {name: value for each in markers for name, value in each.items()} or None


Text = Annotated[str, Field(max_length=1024)]
"""A sentence or a short paragraph."""
Name = Annotated[str, Field(min_length=1, max_length=NAME_LIMIT, pattern=NAME_PATTERN)]
"""The name of a Kubernetes object."""
SPACES = r" \t\n\f\r"
"""The characters that \\s matches in RE2, which the API server uses. For pydantic, \\s would match all spaces of Unicode."""
