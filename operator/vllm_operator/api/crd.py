"""The CustomResourceDefinitions, made of `definitions.yaml`, the types in `spec` and `status`, and CEL rules (`rules.yaml`).

Pydantic describes a type as JSON schema with references, and with `anyOf` for optional fields. The API server accepts only
a structural schema: one type per node, no references. `structural` converts one to the other and keeps the keywords that
the API server supports. Titles and Python defaults are dropped: an absent field means that the operator decides. The API server checks the
CEL rules before it stores an object.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from importlib import resources
from typing import Any

import yaml
from pydantic import BaseModel

from vllm_operator.api import labels
from vllm_operator.api.base import FORM, RULES
from vllm_operator.api.spec import PresetSpec, VLLMDeploymentSpec
from vllm_operator.api.status import VLLMDeploymentStatus

Schema = dict[str, Any]

INT32_MAX = 2**31 - 1
KEYWORDS = (
    *("description", "type", "format", "enum", "default", "minimum", "maximum", "minLength", "maxLength", "pattern"),
    *("minItems", "maxItems", "items", "additionalProperties", "maxProperties", "required", "properties"),
)
"""Keywords of JSON schema that are kept, in the order of the output. `x-kubernetes-*` follows."""


def structural(schema: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """Convert a JSON schema of pydantic, with the targets of its references, to a structural schema.

    Raises ValueError if the schema allows several types, which a structural schema cannot.
    """
    merged = _resolve(schema, definitions)
    if "properties" in merged:
        merged["properties"] = {name: structural(field, definitions) for name, field in merged["properties"].items()}
    if "items" in merged:
        merged["items"] = structural(merged["items"], definitions)
    extra = merged.get("additionalProperties")
    if isinstance(extra, Mapping):
        merged["additionalProperties"] = structural(extra, definitions)
    else:
        merged.pop("additionalProperties", None)
    if merged.get("type") == "integer":
        merged["format"] = "int32" if merged.get("maximum", INT32_MAX + 1) <= INT32_MAX else "int64"
    if RULES in merged:
        merged["x-kubernetes-validations"] = find_rules(*merged[RULES])
    if FORM in merged:
        # The default message of a pattern quotes the pattern. A CEL rule can say what to write instead.
        rule = {"rule": f"self.matches(r'{merged.pop('pattern')}')", "message": _read()["forms"][merged[FORM]]}
        merged["x-kubernetes-validations"] = [rule, *merged.get("x-kubernetes-validations", [])]
    kept = {keyword: merged[keyword] for keyword in KEYWORDS if keyword in merged}
    return kept | {keyword: value for keyword, value in merged.items() if keyword.startswith("x-kubernetes-")}


def _resolve(schema: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """Resolve references and drop "or null". Keywords beside `$ref` override those of its target."""
    beside = {keyword: value for keyword, value in schema.items() if keyword not in ("$ref", "anyOf", "default", "title", "const")}
    if "$ref" in schema:
        return _resolve(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions) | beside
    if "anyOf" in schema:
        branches = [branch for branch in schema["anyOf"] if branch.get("type") != "null"]
        if len(branches) != 1:
            raise ValueError(f"a field of the API has one type, not {len(branches)}: {schema}")
        return _resolve(branches[0], definitions) | beside
    if "const" in schema:
        beside["enum"] = [schema["const"]]
    return beside


def schema_of(model: type[BaseModel]) -> Schema:
    """Return the structural schema of an API type."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return structural(schema, schema.get("$defs", {}))


def custom_resource_definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition of VLLMDeployment."""
    spec = schema_of(VLLMDeploymentSpec)
    # Autoscalers read spec.replicas and need a number.
    spec["properties"]["replicas"]["default"] = VLLMDeploymentSpec.model_fields["replicas"].default
    # kstatus takes an object without a status for one that is up to date.
    status = schema_of(VLLMDeploymentStatus) | {"default": {"observedGeneration": -1}}
    definition = _definition(labels.KIND, spec=spec, status=status)
    _schema_in(definition)["x-kubernetes-validations"] = find_rules("name")
    return definition


def preset_definition(kind: str) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a preset kind."""
    return _definition(kind, spec=schema_of(PresetSpec))


def _definition(kind: str, **parts: Schema) -> dict[str, Any]:
    """Return the definition of a kind in `definitions.yaml`, with the schemas of these parts."""
    definition: dict[str, Any] = deepcopy(_read("definitions.yaml")[kind])
    _schema_in(definition)["properties"] |= parts
    return definition


def _schema_in(definition: Mapping[str, Any]) -> Schema:
    schema: Schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


DEFAULT_CACHE_SIZE = "20Gi"
"""Default size of the PersistentVolumeClaim of the caches."""


_LISTS_OF_FLAGS = {
    "arguments": ("args", "a.name.find('[A-Za-z].*')", ("",)),
    "words": ("extraArgs", "a.find('^--?[A-Za-z][A-Za-z0-9._-]*')", ("--", "-")),
}
"""Groups of rules that refuse flags with a field: the list, CEL for the flag in an entry, and what may precede its name."""


def find_rules(*groups: str) -> list[dict[str, str]]:
    """Return the rules of groups of `rules.yaml`: `rule` and `message`, and optionally `fieldPath`."""
    parts = {"{own_claims}": _read()["own_claims"], "{default_cache_size}": DEFAULT_CACHE_SIZE}
    found: list[dict[str, str]] = []
    for group in groups:
        found += [{field: _fill_in(text, parts) for field, text in sorted(rule.items())} for rule in _read()["rules"][group]]
        found += _about_owned_flags(*_LISTS_OF_FLAGS[group]) if group in _LISTS_OF_FLAGS else ()
    return found


def _fill_in(text: str, parts: Mapping[str, str]) -> str:
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


def owned_flags() -> Mapping[str, str]:
    """Return the flags for which the spec has a field, with what to use instead."""
    return {f"--{name}": owned["instead"] for owned in _read()["owned-flags"] for name in owned["names"]}


def _about_owned_flags(field: str, flag: str, dashes: tuple[str, ...]) -> Iterator[dict[str, str]]:
    for owned in _read()["owned-flags"]:
        names, instead = owned["names"], owned["instead"]
        listed = ", ".join(f"'{each}{name}'" for name in names for each in dashes)
        flags = " and ".join(f"--{name}" if len(name) > 2 else f"-{name}" for name in names)
        message = f"{flags} {'is' if len(names) == 1 else 'are'} not allowed in {field}; {instead}"
        yield {"message": message, "rule": f"self.all(a, !({flag}.replace('_', '-') in [{listed}]))"}


@cache
def _read(name: str = "rules.yaml") -> Mapping[str, Any]:
    text = resources.files("vllm_operator.api").joinpath(name).read_text("utf-8")
    content: Mapping[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    return content
