"""Reading a VLLMDeployment without an API server refuses what the API server refuses."""

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from support.refusals import REFUSALS, Refusal, args, manifest, words
from vllm_operator.api.crd import custom_resource_definition
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.planning.validation import violations

WITHOUT_PAST = [refusal for refusal in REFUSALS if refusal.before is None]


@pytest.mark.parametrize("refusal", WITHOUT_PAST, ids=lambda refusal: refusal.name)
def test_what_the_api_server_refuses_is_refused_with_the_same_words(refusal: Refusal) -> None:
    metadata = dict(refusal.metadata)
    found = violations(manifest(metadata.pop("name", "demo"), refusal.spec, metadata))
    assert all(any(word in line for line in found) for word in refusal.want), found


def rules_in(schema: Any) -> Iterator[dict[str, str]]:
    if isinstance(schema, dict):
        yield from schema.get("x-kubernetes-validations", ())
        schema = list(schema.values())
    for inner in schema if isinstance(schema, list) else ():
        yield from rules_in(inner)


def test_every_rule_of_the_crd_refuses_a_spec_of_the_table() -> None:
    """Otherwise nothing shows that a rule is evaluated here as by the API server."""
    rules = [rule for rule in rules_in(custom_resource_definition()) if "oldSelf" not in rule["rule"]]
    messages = {rule["message"] for rule in rules if not rule["rule"].startswith("self.matches(r'")}  # a pattern
    owned_flags = (message.partition(" allowed in")[0] for message in messages if " allowed in" in message)
    flags = {flag for listed in owned_flags for flag in re.findall(r"--?[a-z-]+", listed)}
    owned = [each for flag in flags for each in (args(flag.lstrip("-")), words(flag))]
    specs = [*owned, *(refusal.spec for refusal in WITHOUT_PAST)]
    found = {line for spec in specs for line in violations(manifest("demo", spec, {}))}
    found |= set(violations(manifest("Demo", {}, {})))
    assert len(messages) > 20
    assert {message for message in messages if not any(message in line for line in found)} == set()


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({"acelerator": {}}, 'unknown field "spec.acelerator"; did you mean accelerator?'),
        ({"parallelism": {"tensors": 4}}, 'unknown field "spec.parallelism.tensors"; did you mean tensor?'),
        ({"engine": {"version": 0.20}}, "spec.engine.version: Invalid value: 'number': must be of type string; put it in quotes: \"0.2\""),
        ({"replicas": "2"}, "spec.replicas: Invalid value: 'string': must be of type integer; write it without quotes: 2"),
        ({"replicas": True}, "spec.replicas: Invalid value: 'boolean': must be of type integer"),
        ({"engine": []}, "spec.engine: Invalid value: 'array': must be of type object"),
        (
            {"cache": {"claimName": "My_Claim"}},
            "spec.cache.claimName: Invalid value: 'My_Claim': should match "
            "'^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'",
        ),
        ({"accelerator": {"architectures": []}}, "spec.accelerator.architectures: Invalid value: should have at least 1 items"),
    ],
)
def test_the_message_names_the_field_and_what_is_allowed(spec: dict[str, Any], want: str) -> None:
    assert violations(manifest("demo", spec, {})) == [want]


@pytest.mark.parametrize(
    ("content", "want"),
    [
        ("{kind: Deployment, apiVersion: apps/v1}", "must be vllm-operator.dev/v1alpha1 and VLLMDeployment, not apps/v1 Deployment"),
        ("{kind: VLLMDeployment, apiVersion: vllm-operator.dev/v1alpha1}", "metadata.name: Required value"),
        ("{kind: VLLMDeployment, apiVersion: vllm-operator.dev/v1alpha1, metadata: {name: a}}", "spec: Required value"),
        ("{kind: VLLMDeployment, apiVersion: vllm-operator.dev/v1alpha1, metadata: {name: a}, spec: 3}", "must be of type object"),
    ],
)
def test_an_object_of_another_kind_or_without_its_parts(content: str, want: str) -> None:
    (line,) = violations(yaml.safe_load(content))
    assert want in line


JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 1, 1.5, "", "x", "x\n", [], [None, None], [1, 1], ["a", "a"], [[], []], {}, {"a": None}, {1: 2}]
)
TEXTS = [
    "x",
    "x\n",
    "hf://a/b",
    "hf://a/b\n",
    "pvc://a/b\u00a0c",
    "sm_90",
    "sm_90\n",
    "20Gi",
    "/var/a",
    "1g.10gb",
    "GPU-1",
    "MIG-1",
    "0.20.1",
]


def values_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of this schema, and some that are not."""
    if "properties" in schema:
        fields = [st.tuples(st.just(name), values_of(field)) for name, field in schema["properties"].items()]
        return JUNK | st.lists(st.one_of(fields), max_size=2).map(dict)
    if "items" in schema:
        return JUNK | st.lists(values_of(schema["items"]), max_size=3)
    if "enum" in schema:
        return JUNK | st.sampled_from(schema["enum"])
    return JUNK | (st.sampled_from([0, 1, 2, 10**12]) if schema.get("type") == "integer" else st.sampled_from(TEXTS))


SPECS = values_of(custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])


@given(spec=SPECS)
@example(spec={"accelerator": {"uuids": [None, None]}})
@example(spec={"replicas": None})
@example(spec={"service": {"annotations": {"a": None}}})
@example(spec={"model": {"uri": "hf://a/b\n"}})
@example(spec={"model": {"uri": "pvc://a/b\xa0c"}})
def test_what_is_accepted_can_be_parsed_and_nothing_raises(spec: Any) -> None:
    content = manifest("demo", {}, {})
    content["spec"] = {**content["spec"], **spec} if isinstance(spec, dict) else spec
    if not violations(content):
        VLLMDeployment.parse(content)


def test_a_text_does_not_end_with_a_newline() -> None:
    assert violations(manifest("demo", {"model": {"uri": "hf://a/b\n"}}, {}))


def test_a_name_does_not_end_with_a_newline() -> None:
    assert violations(manifest("demo\n", {"model": {"uri": "hf://a/b"}}, {}))


def test_null_is_the_default() -> None:
    content = manifest("demo", {}, {})
    content["spec"]["replicas"] = None
    assert violations(content) == []
    assert VLLMDeployment.parse(content).spec.replicas == 1


def test_a_pod_template_of_any_depth_and_with_any_values_is_survived() -> None:
    template: dict[str, Any] = {"number": 10**40, "share": 0.5, "date": datetime(2026, 1, 1, tzinfo=UTC)}
    for _ in range(5000):
        template = {"a": template}
    assert violations(manifest("demo", {"podTemplate": {"spec": template}}, {})) == []


def test_only_what_validates_loads_the_evaluation_of_rules() -> None:
    code = "import sys, vllm_operator.planning.presets; print('celpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
