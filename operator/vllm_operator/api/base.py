"""Base of all API models (camelCase on the wire, snake_case in Python, immutable) and helpers for their schemas."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

DEPTH_LIMIT = 100
"""Maximum depth of an object without a schema, in levels. Deeper levels are not read."""


class Model(BaseModel):
    """An API object.

    Unknown fields are dropped, not refused: the API server has already validated the object, and a newer CRD must not
    crash an older operator.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")

    def to_json(self) -> dict[str, Any]:
        """The object as JSON: camelCase keys, without unset and null fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def list_map(*keys: str) -> dict[str, Any]:
    """Schema markers of a list whose entries are identified by these keys."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def list_set() -> dict[str, Any]:
    """Schema markers of a list with unique values."""
    return {"x-kubernetes-list-type": "set"}


def list_atomic() -> dict[str, Any]:
    """Schema markers of a list that is replaced as a whole."""
    return {"x-kubernetes-list-type": "atomic"}


def map_atomic() -> dict[str, Any]:
    """Schema markers of an object that is replaced as a whole, with one field owner for all of it."""
    return {"x-kubernetes-map-type": "atomic"}


def open_objects(**fields: str) -> dict[str, Any]:
    """Schema of an object with these fields (name and description). They are objects that the API server does not validate."""
    return {
        "properties": {
            name: {"type": "object", "description": description, "x-kubernetes-preserve-unknown-fields": True}
            for name, description in fields.items()
        }
    }


def checked_by(*validations: Mapping[str, str]) -> dict[str, Any]:
    """Schema entry for CEL rules. Each has `rule` and `message`, and optionally `fieldPath`."""
    return {"x-kubernetes-validations": [dict(rule) for rule in validations]}


Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""The name of a Kubernetes object."""


def cut_depth(value: Any, depth: int = DEPTH_LIMIT) -> Any:
    """Remove levels below the limit, because pydantic serializes at most 255 levels."""
    if isinstance(value, dict):
        return {key: cut_depth(inner, depth - 1) for key, inner in value.items()} if depth else None
    if isinstance(value, list):
        return [cut_depth(inner, depth - 1) for inner in value] if depth else None
    return value
