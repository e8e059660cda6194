"""Validation of a VLLMDeployment or a preset by the API server's rules, for files that are read without one; and of its artifact.

The schema and the CEL rules come from the CRDs, and the messages name fields as the API server does. An unknown field is an error, as in
`kubectl apply`, and the message suggests a similar name. Transition rules (`oldSelf`) are skipped, because a file has no previous state.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from vllm_operator.api.conditions import FALSE, Reason, Verdict
from vllm_operator.api.crd import custom_resource_definition, preset_definition
from vllm_operator.api.labels import API_VERSION, KIND
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import PRESET_PLURALS
from vllm_operator.catalog.notes import say
from vllm_operator.text.wording import similar

TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (Mapping,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "number": (int, float),
}
KEPT_BY_KUBERNETES = ("apiVersion", "kind", "metadata", "status")


def violations(manifest: Mapping[str, Any]) -> list[str]:
    """Return the API server's errors for a manifest, one line per problem, in the order of the fields."""
    kind = str(manifest.get("kind"))
    if kind not in (KIND, *PRESET_PLURALS) or manifest.get("apiVersion") != API_VERSION:
        return [f"apiVersion and kind must be {API_VERSION} and {KIND}, not {manifest.get('apiVersion')} {manifest.get('kind')}"]
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
        return ["metadata.name: Required value"]
    schema = _schema(kind)
    found = list(_check_fields(manifest, {**schema["properties"], **{name: {} for name in KEPT_BY_KUBERNETES}}, ""))
    found += _check(manifest["spec"], schema["properties"]["spec"], "spec") if "spec" in manifest else ["spec: Required value"]
    return found or list(_check_rules(manifest, schema, ""))


@cache
def _schema(kind: str) -> Mapping[str, Any]:
    definition = custom_resource_definition() if kind == KIND else preset_definition(kind)
    schema: Mapping[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _check(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the errors of a value and, if it has the right type, of its content. Rules are evaluated only if both are valid."""
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        given = next((name for name, types in TYPES.items() if type(value) in types), "null" if value is None else "object")
        yield f"{path}: Invalid value: {given!r}: must be of type {kind}{_hint(value, kind)}"
        return
    found = list(_check_bounds(value, schema, path))
    if isinstance(value, Mapping):
        found += _check_object(value, schema, path)
    elif isinstance(value, list):
        found += _check_list(value, schema, path)
    yield from found or _check_rules(value, schema, path)


def _check_object(value: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    fields: Mapping[str, Any] = schema.get("properties", {})
    if (entries := schema.get("additionalProperties")) is not None:
        fields = dict.fromkeys(value, entries)
    yield from (f"{path}.{name}: Required value" for name in schema.get("required", ()) if value.get(name) is None)
    if fields and not schema.get("x-kubernetes-preserve-unknown-fields"):
        yield from _check_fields(value, fields, path)
    for name, field in fields.items():
        if value.get(name) is not None or (name in value and entries is not None):  # null is no value of a map
            yield from _check(value[name], field, f"{path}.{name}")


def _check_fields(value: Mapping[str, Any], fields: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in (name for name in value if name not in fields):
        near = similar(str(name), fields)
        meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(fields))}"
        yield f'unknown field "{path}{"." if path else ""}{name}"{meant}'


def _check_list(value: list[Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for index, item in enumerate(value):
        yield from _check(item, schema.get("items", {}), f"{path}[{index}]")
    keys, seen = schema.get("x-kubernetes-list-map-keys", ()), list[Any]()
    for index, item in enumerate(value if schema.get("x-kubernetes-list-type") in ("set", "map") else ()):
        identity = {key: item.get(key) for key in keys} if keys and isinstance(item, Mapping) else item
        if identity in seen:
            yield f"{path}[{index}]: Duplicate value: {identity if isinstance(identity, str) else repr(identity)}"
        seen.append(identity)


def _check_bounds(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(f'"{choice}"' for choice in schema["enum"])
        yield f'{path}: Unsupported value: "{value}": supported values: {allowed}'
    if isinstance(value, int) and value < schema.get("minimum", value):
        yield f"{path}: Invalid value: {value}: should be greater than or equal to {schema['minimum']}"
    if isinstance(value, int) and value > schema.get("maximum", value):
        yield f"{path}: Invalid value: {value}: should be less than or equal to {schema['maximum']}"
    pattern = re.sub(r"\$$", r"\\Z", schema.get("pattern", ""))  # in RE2, `$` does not match before a final newline
    if isinstance(value, str) and re.search(pattern, value) is None:
        yield f"{path}: Invalid value: {value!r}: should match '{schema['pattern']}'"
    if isinstance(value, str | list):
        unit, low, high = ("characters", "minLength", "maxLength") if isinstance(value, str) else ("items", "minItems", "maxItems")
        if len(value) < schema.get(low, 0):
            yield f"{path}: Invalid value: should have at least {schema[low]} {unit}"
        if len(value) > schema.get(high, len(value)):
            yield f"{path}: Too long: may have at most {schema[high]} {unit}"


def _check_rules(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    rules = [rule for rule in schema.get("x-kubernetes-validations", ()) if "oldSelf" not in rule["rule"]]
    if not rules:
        return
    from vllm_operator.planning.cel import holds, to_cel  # takes 0.1 s and 16 MiB, which an operator without presets does not need

    subject = to_cel(value)
    for rule in rules:
        if not holds(rule["rule"], subject):
            shown = f"Invalid value: {value!r}: " if isinstance(value, str) else "Invalid value: "
            yield f"{path}{rule.get('fieldPath', '')}: {shown}{rule['message']}".lstrip(": ")


def _hint(value: Any, kind: str) -> str:
    if kind == "string" and isinstance(value, bool | int | float):
        return f'; put it in quotes: "{str(value).lower() if isinstance(value, bool) else value}"'
    return f"; write it without quotes: {value}" if kind == "integer" and isinstance(value, str) and value.isdecimal() else ""


@dataclass(frozen=True, slots=True)
class ArtifactTrust:
    """The allowed artifacts: by repository with all below it (all if empty), and whether each must be named by digest."""

    repositories: tuple[str, ...] = ()
    needs_digest: bool = False


def refuse_artifact(resource: VLLMDeployment, trust: ArtifactTrust) -> Verdict | None:
    """Return why the artifact of a spec is refused; None if it is allowed or absent."""
    artifact = resource.spec.cache.artifact if resource.spec.cache else None
    if artifact is None:
        return None
    named = [name for name in (artifact.repository, (artifact.reference or "").partition("@")[0]) if name]
    below = tuple(f"{repository.rstrip('/')}/" for repository in trust.repositories)
    if refused := [name for name in named if below and not f"{name}/".startswith(below)]:
        message = say("artifact.elsewhere", name=refused[0], allowed=", ".join(trust.repositories[:8]))
        return Verdict(FALSE, Reason.ARTIFACT_NOT_ALLOWED, message)
    if trust.needs_digest and artifact.reference is None:
        return Verdict(FALSE, Reason.ARTIFACT_NOT_ALLOWED, say("artifact.no-digest"))
    return None
