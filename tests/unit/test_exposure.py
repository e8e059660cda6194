"""How clients reach an engine: the Service, its URL, and the key that they send."""

from typing import Any

import pytest

from support import observations as o
from support.gpus import real_node
from support.plans import deployment, made
from vllm_operator.rendering.manifests import render_service
from vllm_operator.rendering.pod import render_pod_template
from vllm_operator.status.report import report

AUTH: dict[str, Any] = {"apiKeySecretRef": {"name": "llama-key"}}


def variables(**spec: Any) -> dict[str, Any]:
    resource = deployment(**spec)
    container = render_pod_template(resource, made(resource, real_node("h200")))["spec"]["containers"][0]
    return {variable["name"]: variable for variable in container["env"]}


@pytest.mark.parametrize(
    ("version", "guarded"),
    [
        ("0.11.0", "only /v1."),
        ("0.20.1", "only /v1."),
        ("0.22.0", "only /v1, /v2 and /inference."),
        ("0.33.0", "only /v1, /v2, /inference and /cohere."),
    ],
)
def test_the_plan_names_the_paths_that_the_key_guards(version: str, guarded: str) -> None:
    plan = made(deployment(auth=AUTH, engine={"version": version}), real_node("h200"))
    [note] = [note for note in plan.notes if "spec.auth" in note]
    assert guarded in note
    assert "/metrics" in note


def test_the_key_is_a_variable_from_the_secret_and_never_a_flag() -> None:
    source = {"secretKeyRef": {"name": "llama-key", "key": "api-key"}}
    assert variables(auth=AUTH)["VLLM_API_KEY"] == {"name": "VLLM_API_KEY", "valueFrom": source}
    assert "VLLM_API_KEY" not in variables()


@pytest.mark.parametrize(
    "engine",
    [{"env": [{"name": "VLLM_API_KEY", "value": "mine"}]}, {"args": [{"name": "api-key", "value": "mine"}]}],
    ids=["by a variable", "by a flag"],
)
def test_a_key_that_the_user_sets_otherwise_wins_and_is_noted(engine: dict[str, Any]) -> None:
    plan = made(deployment(auth=AUTH, engine={"version": "0.20.1", **engine}), real_node("h200"))
    assert any("spec.auth has no effect" in note for note in plan.notes)
    found = variables(auth=AUTH, engine={"version": "0.20.1", **engine})["VLLM_API_KEY"]
    assert found.get("value") == ("mine" if "env" in engine else None)


def test_the_service_gets_annotations_and_the_class_of_its_load_balancer() -> None:
    fields = {"type": "LoadBalancer", "loadBalancerClass": "a.example/b", "annotations": {"a.example/scheme": "internal"}}
    service = render_service(deployment(service=fields))
    assert service["metadata"]["annotations"] == {"a.example/scheme": "internal"}
    assert service["spec"]["loadBalancerClass"] == "a.example/b"
    plain = render_service(deployment())
    assert "annotations" not in plain["metadata"]
    assert "loadBalancerClass" not in plain["spec"]


def test_the_status_has_the_url_of_the_service_from_the_first_replica_that_serves() -> None:
    assert report(o.observe(o.starting_pod())).status.url is None
    serving = o.observe(o.ready_pod())
    written = report(serving)
    assert written.status.url == "http://vllm-a.models.svc:8000"
    assert report(o.after(serving, written, pods=(o.starting_pod(),))).status.url == written.status.url
