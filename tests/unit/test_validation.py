"""Reading a VLLMDeployment without an API server refuses what the API server refuses."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.refusals import REFUSALS, Refusal, manifest
from vllm_operator.api.crd import custom_resource_definition
from vllm_operator.api.validation import check_of, is_about_change, violations

WITHOUT_PAST = [refusal for refusal in REFUSALS if refusal.before is None]


@pytest.mark.parametrize("refusal", WITHOUT_PAST, ids=lambda refusal: refusal.name)
def test_what_the_api_server_refuses_is_refused_with_the_same_words(refusal: Refusal) -> None:
    metadata = dict(refusal.metadata)
    found = violations(manifest(metadata.pop("name", "demo"), refusal.spec, metadata))
    assert all(any(word in line for line in found) for word in refusal.want), found


def rules_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (rule["rule"] for rule in schema.get("x-kubernetes-validations", ()))
        schema = list(schema.values())
    for inner in schema if isinstance(schema, list) else ():
        yield from rules_in(inner)


def test_every_rule_of_the_crd_is_checked_here_too() -> None:
    rules = set(rules_in(custom_resource_definition()))
    assert len(rules) > 20
    assert [rule for rule in rules if not is_about_change(rule) and check_of(rule) is None] == []


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({"acelerator": {}}, 'unknown field "spec.acelerator"; did you mean accelerator?'),
        ({"parallelism": {"tensors": 4}}, 'unknown field "spec.parallelism.tensors"; did you mean tensor?'),
        ({"engine": {"version": 0.20}}, "spec.engine.version: Invalid value: 'number': must be of type string; put it in quotes: \"0.2\""),
        ({"replicas": "2"}, "spec.replicas: Invalid value: 'string': must be of type integer; write it without quotes: 2"),
        ({"replicas": True}, "spec.replicas: Invalid value: 'boolean': must be of type integer"),
        ({"engine": []}, "spec.engine: Invalid value: 'array': must be of type object"),
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
