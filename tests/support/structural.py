"""Whether a value fits a structural schema, as the API server would say, without one. Rules in CEL are left to the real one."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from support.crd import CRD
from vllm_operator.api.crd import schema_of
from vllm_operator.api.plan import Plan

SPEC, STATUS = (CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part] for part in ("spec", "status"))
PLAN = schema_of(Plan)
"""Of a plan, which the API server does not validate."""
TYPES = {"object": Mapping, "array": list, "string": str, "integer": int, "boolean": bool}


def violations(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield everything that the API server would refuse."""
    if not isinstance(value, TYPES[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        yield f"{path}: {value!r} is no {schema['type']}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str):
        yield from _string(value, schema, path)
    elif isinstance(value, int):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield f"{path}: {value} is out of bounds"
    elif isinstance(value, list):
        yield from _array(value, schema, path)
    elif isinstance(value, Mapping):
        yield from _object(value, schema, path)


def _string(value: str, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if len(value) > schema.get("maxLength", len(value)) or len(value) < schema.get("minLength", 0):
        yield f"{path}: {len(value)} characters are too many or too few"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: {value!r} does not match {schema['pattern']}"


def _array(value: list[Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if len(value) > schema.get("maxItems", len(value)) or len(value) < schema.get("minItems", 0):
        yield f"{path}: {len(value)} entries are too many or too few"
    keys = schema.get("x-kubernetes-list-map-keys")
    if schema.get("x-kubernetes-list-type") in ("map", "set"):
        seen = [str([entry.get(key) for key in keys]) if keys else str(entry) for entry in value]
        for key in sorted({key for key in seen if seen.count(key) > 1}):
            yield f"{path}: {key} is there {seen.count(key)} times"
    for index, entry in enumerate(value):
        yield from violations(entry, schema["items"], f"{path}[{index}]")


def _object(value: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name in schema.get("required", []):
        if name not in value:
            yield f"{path}.{name}: is missing"
    if len(value) > schema.get("maxProperties", len(value)):
        yield f"{path}: {len(value)} entries are too many"
    for name, child in value.items():
        if "additionalProperties" in schema:
            yield from violations(child, schema["additionalProperties"], f"{path}.{name}")
        elif name not in schema["properties"]:
            yield f"{path}.{name}: there is no such field"
        elif child is None:
            yield f"{path}.{name}: is null"
        else:
            yield from violations(child, schema["properties"][name], f"{path}.{name}")
