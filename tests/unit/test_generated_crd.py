"""The committed CRD is what the types say, and keeps to the Kubernetes API conventions."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import generate_crds

CRD, *PRESETS = (
    yaml.safe_load((generate_crds.FOLDER / f"{name}.yaml").read_text("utf-8"))
    for name in ("vllmdeployments", "vllmpresets", "clustervllmpresets")
)
VERSION = CRD["spec"]["versions"][0]
ROOT = VERSION["schema"]["openAPIV3Schema"]
UNCHECKED = "x-kubernetes-preserve-unknown-fields"


def nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below and including this one, with its path."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from nodes(field, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


NODES = [*nodes(ROOT["properties"]["spec"], "spec"), *nodes(ROOT["properties"]["status"], "status")]
PRESET_NODES = list(nodes(PRESETS[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec"))
FIELDS = [(path, schema) for path, schema in NODES if not path.endswith(("[]", "{}"))]


def of_type(name: str) -> list[Any]:
    known = [(f"preset {path}", schema) for path, schema in PRESET_NODES]
    return [pytest.param(path, schema, id=path) for path, schema in [*NODES, *known] if schema.get("type") == name]


def test_the_committed_crds_are_those_of_the_types() -> None:
    assert set(generate_crds.FOLDER.iterdir()) == generate_crds.files().keys()


def test_both_kinds_of_presets_have_one_spec_and_no_status() -> None:
    scopes = {crd["spec"]["names"]["kind"]: crd["spec"].pop("scope") for crd in map(copy.deepcopy, PRESETS)}
    assert scopes == {"VLLMPreset": "Namespaced", "ClusterVLLMPreset": "Cluster"}
    schemas = [crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] for crd in PRESETS]
    assert schemas[0] == schemas[1]
    assert sorted(schemas[0]) == ["apiVersion", "kind", "metadata", "spec"]


def test_a_preset_has_only_fields_that_a_vllmdeployment_has() -> None:
    own = {path for path, _ in NODES}
    assert {path for path, _ in PRESET_NODES} - own == set()


def test_no_field_is_a_fraction_or_a_boolean() -> None:
    assert [(path, schema["type"]) for path, schema in NODES if schema.get("type") in ("number", "boolean")] == []


def test_every_node_has_one_type() -> None:
    assert [path for path, schema in NODES if not isinstance(schema.get("type"), str)] == []


def test_every_field_is_described() -> None:
    assert [path for path, schema in FIELDS if not schema.get("description")] == []


@pytest.mark.parametrize(("path", "schema"), of_type("string"))
def test_every_string_is_bounded(path: str, schema: dict[str, Any]) -> None:
    assert "maxLength" in schema or "enum" in schema


@pytest.mark.parametrize(("path", "schema"), of_type("array"))
def test_every_list_is_bounded_and_says_how_it_merges(path: str, schema: dict[str, Any]) -> None:
    assert schema["maxItems"] > 0
    kind = schema["x-kubernetes-list-type"]
    assert kind in ("map", "set", "atomic")
    if kind == "map":
        keys = schema["x-kubernetes-list-map-keys"]
        assert keys
        assert set(keys) <= set(schema["items"]["required"]), "a key of a list must always be there"
    if schema["items"]["type"] == "object":
        assert kind != "set", "objects are told apart by keys"


@pytest.mark.parametrize(("path", "schema"), of_type("integer"))
def test_every_integer_says_its_width(path: str, schema: dict[str, Any]) -> None:
    assert schema["format"] in ("int32", "int64")


@pytest.mark.parametrize(("path", "schema"), of_type("object"))
def test_every_object_has_fields_or_is_left_unchecked_on_purpose(path: str, schema: dict[str, Any]) -> None:
    has_fields = bool(schema.get("properties")) or bool(schema.get("additionalProperties"))
    assert has_fields != bool(schema.get(UNCHECKED))


def test_only_what_kubernetes_itself_defines_is_left_unchecked() -> None:
    unchecked = {path for path, schema in NODES if schema.get(UNCHECKED)}
    value_from = "spec.engine.env[].valueFrom"
    assert unchecked == {
        "spec.podTemplate.metadata",
        "spec.podTemplate.spec",
        f"{value_from}.secretKeyRef",
        f"{value_from}.configMapKeyRef",
        f"{value_from}.fieldRef",
        f"{value_from}.resourceFieldRef",
        *(f"spec.networkPolicy.ingressFrom[].{field}" for field in ("podSelector", "namespaceSelector", "ipBlock")),
    }


def test_the_only_defaults_are_the_number_of_replicas_and_a_status_that_nobody_has_written() -> None:
    defaults = {path: schema["default"] for path, schema in NODES if "default" in schema}
    assert defaults == {"spec.replicas": 1, "status": {"observedGeneration": -1}}


def test_every_enum_value_is_camel_case_and_starts_like_a_name() -> None:
    values = {value for _, schema in NODES for value in schema.get("enum", [])}
    assert {value for value in values if not value.isalnum()} == set()


def test_every_rule_says_something_and_ends_without_a_full_stop() -> None:
    rules = [rule for _, schema in [*NODES, ("", ROOT)] for rule in schema.get("x-kubernetes-validations", [])]
    assert len(rules) > 20
    for rule in rules:
        assert 20 <= len(rule["message"]) <= 300
        assert not rule["message"].endswith(".")


def test_durations_are_named_after_their_unit() -> None:
    for path, schema in NODES:
        if schema.get("type") == "integer" and any(word in path.lower() for word in ("deadline", "stall", "timeout", "eta")):
            is_count = path.rpartition(".")[2].startswith("max")
            assert path.endswith("Seconds") or is_count, path


def test_status_and_scale_are_subresources() -> None:
    assert VERSION["subresources"]["status"] == {}
    for path in VERSION["subresources"]["scale"].values():
        _, part, field = path.split(".")
        assert field in ROOT["properties"][part]["properties"]


def test_conditions_are_distinguished_by_type() -> None:
    conditions = ROOT["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert set(conditions["items"]["required"]) == {"type", "status", "reason", "message"}


def test_columns_that_everybody_sees_fit_a_terminal() -> None:
    shown = [column["name"] for column in VERSION["additionalPrinterColumns"] if not column.get("priority")]
    assert shown == ["Model", "GPU", "Desired", "Ready", "Status", "Stage", "URL", "Age"]


@pytest.mark.parametrize("column", VERSION["additionalPrinterColumns"], ids=lambda column: column["name"])
def test_every_column_shows_a_field_that_exists(column: dict[str, Any]) -> None:
    path = column["jsonPath"]
    if path.startswith((".metadata", ".status.conditions")):  # ObjectMeta and metav1.Condition: not ours
        return
    schema = ROOT
    for name in path.strip(".").split("."):
        schema = schema["properties"][name]
    assert column["type"] in (schema["type"], "date")
