"""Every field of the objects that can be imported is in a table, and the report tells which of them are dropped, and why."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_operator.cli.imports.engine import put
from vllm_operator.cli.imports.sources import find_engines
from vllm_operator.cli.imports.tables import Table, load_tables

FIELDS = Path(__file__).parents[1] / "corpus/import_fields.yaml"
PEERS: Mapping[str, Any] = yaml.load(FIELDS.read_text("utf-8"), Loader=yaml.CSafeLoader)
CONTAINER = {"name": "main", "image": "vllm/vllm-openai:v0.20.1", "args": ["--model", "a/b"]}
POD = {"containers": [CONTAINER]}
KSERVE = {"kind": "InferenceService", "apiVersion": "serving.kserve.io/v1beta1", "metadata": {"name": "a"}}
LLMKUBE = {"apiVersion": "inference.llmkube.dev/v1alpha1", "metadata": {"name": "a"}}
MODEL = {**LLMKUBE, "kind": "Model", "spec": {"source": "a/b"}}
DYNAMO = {"kind": "DynamoGraphDeployment", "metadata": {"name": "a"}}
DYNAMO_CONTAINER = {"command": ["python3", "-m", "dynamo.vllm"], "args": ["--model", "a/b"]}
KAITO = {"apiVersion": "kaito.sh/v1beta1", "metadata": {"name": "a"}}
STACK_MODEL = {"name": "a", "repository": "vllm/vllm-openai", "tag": "v0.20.1", "modelURL": "a/b"}
OBJECTS: Mapping[str, list[dict[str, Any]]] = {
    "Deployment": [{"kind": "Deployment", "metadata": {"name": "a"}, "spec": {"template": {"spec": POD}}}],
    "StatefulSet": [{"kind": "StatefulSet", "metadata": {"name": "a"}, "spec": {"template": {"spec": POD}}}],
    "Service of Knative": [
        {"kind": "Service", "apiVersion": "serving.knative.dev/v1", "metadata": {"name": "a"}, "spec": {"template": {"spec": POD}}}
    ],
    "LeaderWorkerSet": [
        {"kind": "LeaderWorkerSet", "metadata": {"name": "a"}, "spec": {"leaderWorkerTemplate": {"leaderTemplate": {"spec": POD}}}}
    ],
    "InferenceService of KServe": [{**KSERVE, "spec": {"predictor": {"model": {**CONTAINER, "storageUri": "hf://a/b"}}}}],
    "ServingRuntime": [
        {"kind": "ServingRuntime", "metadata": {"name": "r"}, "spec": POD},
        {**KSERVE, "spec": {"predictor": {"model": {"storageUri": "hf://a/b", "runtime": "r"}}}},
    ],
    "LLMInferenceService of KServe": [
        {
            "kind": "LLMInferenceService",
            "apiVersion": "serving.kserve.io/v1alpha2",
            "metadata": {"name": "a"},
            "spec": {"model": {"uri": "hf://a/b"}, "template": {"containers": [CONTAINER]}},
        }
    ],
    "InferenceService of LLMKube": [{**LLMKUBE, "kind": "InferenceService", "spec": {"runtime": "vllm", "modelRef": "a"}}, MODEL],
    "Model of LLMKube": [MODEL, {**LLMKUBE, "kind": "InferenceService", "spec": {"runtime": "vllm", "modelRef": "a"}}],
    "VLLMRuntime": [
        {
            "kind": "VLLMRuntime",
            "metadata": {"name": "a"},
            "spec": {
                "model": {"modelURL": "a/b"},
                "lmCacheConfig": {"enabled": True},
                "deploymentConfig": {"image": {"name": "vllm/vllm-openai:v0.20.1"}},
            },
        }
    ],
    "StormService": [
        {
            "kind": "StormService",
            "metadata": {"name": "a"},
            "spec": {"template": {"spec": {"roles": [{"name": "decode", "template": {"spec": POD}}]}}},
        }
    ],
    "DynamoGraphDeployment": [{**DYNAMO, "spec": {"services": {"Worker": {"extraPodSpec": {"mainContainer": DYNAMO_CONTAINER}}}}}],
    "Model of KubeAI": [
        {"kind": "Model", "apiVersion": "kubeai.org/v1", "metadata": {"name": "a"}, "spec": {"engine": "VLLM", "url": "hf://a/b"}}
    ],
    "Workspace of KAITO": [{**KAITO, "kind": "Workspace", "inference": {"template": {"spec": POD}, "preset": {}}}],
    "InferenceSet of KAITO": [{**KAITO, "kind": "InferenceSet", "spec": {"template": {"inference": {"preset": {"name": "a/b"}}}}}],
    "values of llm-d": [{"modelArtifacts": {"name": "a/b", "uri": "hf://a/b"}, "decode": {"containers": [CONTAINER]}}],
    "values of the production stack": [{"servingEngineSpec": {"modelSpec": [{**STACK_MODEL, "lmcacheConfig": {"enabled": True}}]}}],
}
"""Objects that can be imported; the first is of the table's kind."""
WITHOUT_FIELDS = (
    "flags and variables of vLLM",
    "presets of KAITO",
    "tools",
    "annotations",
    "parts of GPUs",
    "fields that KServe fills in",
    "kinds without an engine",
    "other containers",
)


@pytest.mark.parametrize("name", PEERS)
def test_every_field_of_the_other_tool_is_in_its_table(name: str) -> None:
    table = load_tables()[name]
    known = {*table.kept, *table.becomes, *table.dropped, *table.ignored, *table.parts}
    assert [path for path in PEERS[name]["fields"] if not is_covered(path.partition(" ")[0], known)] == []


def is_covered(path: str, known: set[str]) -> bool:
    """Whether a table has a field, one around it, or all that may be in it."""
    parts = path.split(".")
    return any(".".join(parts[:length]) in known for length in range(1, len(parts) + 1)) or any(
        each.startswith(f"{path}.") for each in known
    )


@pytest.mark.parametrize("name", PEERS)
def test_a_table_has_each_field_once_and_none_that_the_other_tool_does_not_have(name: str) -> None:
    table = load_tables()[name]
    listed = [*table.kept, *table.becomes, *table.dropped, *table.ignored]
    assert len(listed) == len({*listed})
    fields = [path.partition(" ")[0] for path in (*PEERS[name]["fields"], *PEERS[name].get("older", ()))]
    own = [path for path in listed if not path.startswith("status")]
    assert [
        path for path in own if not any(f"{field}.".startswith(f"{path}.") or f"{path}.".startswith(f"{field}.") for field in fields)
    ] == []


@pytest.mark.parametrize(("name", "path"), [(name, path) for name in OBJECTS for path in load_tables()[name].dropped])
def test_a_dropped_field_is_told_with_the_reason(name: str, path: str) -> None:
    table, (first, *others) = load_tables()[name], OBJECTS[name]
    [engine, *_] = find_engines([with_field(first, path), *others])
    assert [told for told in engine.report.dropped if told.endswith(f"{path}: {table.dropped[path]}.")]


def test_fields_of_a_pod_in_another_object_are_told_with_their_place() -> None:
    [manifest] = OBJECTS["Deployment"]
    [engine] = find_engines([with_field(with_field(manifest, "spec.template.spec.activeDeadlineSeconds"), "spec.template.spec.resources")])
    places = [told.partition(":")[0] for told in engine.report.dropped if told.startswith("spec.")]
    assert places == ["spec.template.spec.activeDeadlineSeconds", "spec.template.spec.resources"]


def test_a_setting_that_is_off_is_not_told() -> None:
    [values] = OBJECTS["values of the production stack"]
    model = {**values["servingEngineSpec"]["modelSpec"][0], "keda": {"enabled": False}, "pvcLabels": {}}
    [engine] = find_engines([{"servingEngineSpec": {"modelSpec": [model]}}])
    assert engine.report.dropped == []


def test_the_tables_name_where_their_fields_come_from() -> None:
    tables: Mapping[str, Table] = load_tables()
    assert {*tables} == {*PEERS, *WITHOUT_FIELDS}
    assert all(table.source for table in tables.values())
    assert all(peer["source"] for peer in PEERS.values())


def with_field(manifest: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the object with something in a field."""
    copy: dict[str, Any] = yaml.safe_load(yaml.safe_dump(manifest))
    inner, rest = copy, path
    while isinstance(inner.get(rest.partition(".")[0]), dict | list) and "." in rest:
        name, _, rest = rest.partition(".")
        inner = inner[name][0] if isinstance(inner[name], list) else inner[name]
    put(inner, rest, "something")
    return copy
