"""The readiness probe that notices hangs, in the Pods of engines."""

from typing import Any

import pytest

from support.gpus import real_node
from support.plans import deployment, made
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.rendering.pod import render_pod_template

CHECK = ["python3", "-I", "-S", "-X", "pycache_prefix=/tmp/.vllm-operator-bytecode", "/tools/__main__.py", "check-engine"]
LOAD, WATCHDOG = "--enable-server-load-tracking", "--watchdog-config"


def plan_of(resource: VLLMDeployment) -> Plan:
    return made(resource, real_node("h200"))


def pod_of(resource: VLLMDeployment, plan: Plan | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = render_pod_template(resource, plan or plan_of(resource))["spec"]
    return spec


def engine_of(pod: dict[str, Any]) -> dict[str, Any]:
    return dict(pod["containers"][0])


@pytest.mark.parametrize(("spec", "action"), [({}, "Restart"), ({"onHang": "Restart"}, "Restart"), ({"onHang": "Report"}, "Report")])
def test_the_probe_does_what_the_spec_says(spec: dict[str, Any], action: str) -> None:
    pod = pod_of(deployment(remediation=spec))
    probe = engine_of(pod)["readinessProbe"]
    assert probe["exec"]["command"] == [
        *CHECK,
        *("http://127.0.0.1:8000", "/tmp/.vllm-operator-engine", "/cache/hangs", "/tmp/vllm-operator-stacks", action),
    ]
    assert "httpGet" not in probe
    assert {"name": "operator-tools", "mountPath": "/tools", "readOnly": True} in engine_of(pod)["volumeMounts"]
    assert pod["initContainers"][0]["name"] == "copy-tools"


def test_a_probe_of_the_user_replaces_it_and_needs_no_programs() -> None:
    probe = {"httpGet": {"path": "/health", "port": "http"}}
    pod = pod_of(deployment(podTemplate={"spec": {"containers": [{"name": "vllm", "readinessProbe": probe}]}}))
    assert "exec" not in engine_of(pod)["readinessProbe"]
    assert "copy-tools" not in str(pod)


@pytest.mark.parametrize("flag", ["--ssl-certfile", "ssl_keyfile"])
def test_an_engine_with_tls_is_probed_over_tls(flag: str) -> None:
    engine = engine_of(pod_of(deployment(engine={"version": "0.20.1", "args": [{"name": flag, "value": "/tls/tls.crt"}]})))
    assert "https://127.0.0.1:8000" in engine["readinessProbe"]["exec"]["command"]
    for name in ("startupProbe", "livenessProbe"):
        assert engine[name]["httpGet"]["scheme"] == "HTTPS"


@pytest.mark.parametrize(("version", "has_watchdog"), [("0.11.0", False), ("0.32.0", False), ("0.33.0", True)])
def test_engines_show_their_load_and_write_stacks_if_they_can(version: str, has_watchdog: bool) -> None:
    engine = engine_of(pod_of(deployment(engine={"version": version})))
    assert LOAD in engine["args"]
    assert (WATCHDOG in engine["args"]) == has_watchdog
    assert {"name": "PYTHONFAULTHANDLER", "value": "1"} in engine["env"]
