"""A Gateway, an InferencePool and a NetworkPolicy in front of an engine, with the CustomResourceDefinitions of Gateway API."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.account import ACCOUNT, granted, make_account, remove_account, rules_of
from support.audit import AuditTrail
from support.cluster import Cluster
from support.crd import install_crd
from support.operator_process import OperatorProcess, condition, has, llama

pytestmark = pytest.mark.cluster

DEFINITIONS = list(yaml.safe_load_all((Path(__file__).parent / "data" / "gateway.yaml").read_text("utf-8")))
GATEWAY: dict[str, Any] = {
    "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}],
    "hostnames": ["llama.example.com"],
    "inferencePool": {"endpointPicker": {"name": "llama-epp", "failureMode": "FailOpen"}},
}
POLICY: dict[str, Any] = {"ingressFrom": [{"namespaceSelector": {"matchLabels": {"team": "gateways"}}}]}
INTEGRATIONS = {"integrations": {"gateway": True}}


@pytest.fixture
async def allowed(served: Cluster, tmp_path: Path) -> AsyncIterator[OperatorProcess]:
    """The operator as the chart installs it with the integration."""
    kubeconfig = await make_account(served, tmp_path / "operator.kubeconfig", **INTEGRATIONS)
    rules = rules_of(served.namespace)
    async with OperatorProcess(kubeconfig, served.namespace, rules_config_map=rules, integrations="gateway") as process:
        await process.until_ready(within=60)
        yield process
    await remove_account(served)
    for definition in DEFINITIONS:
        await served.delete("CustomResourceDefinition", definition["metadata"]["name"])
        await served.wait_until_gone("CustomResourceDefinition", definition["metadata"]["name"])
    assert "Traceback" not in process.log, process.log


async def look_again(cluster: Cluster, value: str) -> None:
    """The kinds are not watched; a watch event of the object stands for the next resync."""
    await cluster.patch("VLLMDeployment", "llama", {"metadata": {"annotations": {"look": value}}})


async def test_a_gateway_serves_the_engine_as_soon_as_its_kinds_are_installed(
    served: Cluster, allowed: OperatorProcess, audit: AuditTrail
) -> None:
    await served.create(llama(served.namespace, gateway=GATEWAY, networkPolicy=POLICY))
    missing = await served.wait_for("VLLMDeployment", "llama", has("Exposed", "False", "KindNotInstalled"))
    assert "kubectl apply -f https://github.com/kubernetes-sigs/gateway-api" in condition(missing, "Exposed")["message"]
    ready = await served.wait_for("VLLMDeployment", "llama", has("Available", "True"))
    assert ready["status"]["url"] == f"http://llama.{served.namespace}.svc:8000"
    pods = await served.list_all("Pod")

    for definition in DEFINITIONS:
        await install_crd(served, definition)
    await look_again(served, "after the installation")
    await served.wait_for("VLLMDeployment", "llama", has("Exposed", "False", "RouteNotAccepted"))
    route = await served.wait_for("HTTPRoute", "llama", bool)
    [rule] = route["spec"]["rules"]
    assert [backend["kind"] for backend in rule["backendRefs"]] == ["InferencePool"]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    pool = await served.get("InferencePool", "llama")
    assert pool["spec"]["selector"]["matchLabels"].items() <= pods[0]["metadata"]["labels"].items()
    [allowed_peers] = (await served.get("NetworkPolicy", "llama"))["spec"]["ingress"]
    assert allowed_peers["from"] == POLICY["ingressFrom"]

    accepted = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-11-21T12:00:00Z"}
    parent = {"parentRef": GATEWAY["parentRefs"][0], "controllerName": "example.com/gateway", "conditions": [accepted]}
    await served.patch("HTTPRoute", "llama", {"status": {"parents": [parent]}}, subresource="status")
    await look_again(served, "after the acceptance")
    await served.wait_for("VLLMDeployment", "llama", lambda it: it["status"]["url"] == "https://llama.example.com")
    await served.wait_for("VLLMDeployment", "llama", has("Exposed", "True", "InEffect"))

    # drift is put right, and what is no longer asked for goes
    for kind, wrong in (("HTTPRoute", {"hostnames": ["wrong.example.com"]}), ("InferencePool", {"targetPorts": [{"number": 9}]})):
        await served.patch(kind, "llama", {"spec": wrong})
    await served.patch("NetworkPolicy", "llama", {"spec": {"ingress": []}})
    await look_again(served, "after the drift")
    await served.wait_for("NetworkPolicy", "llama", lambda it: bool(it["spec"].get("ingress")))
    await served.wait_for("HTTPRoute", "llama", lambda it: it["spec"]["hostnames"] == ["llama.example.com"])
    await served.wait_for("InferencePool", "llama", lambda it: it["spec"]["targetPorts"] == [{"number": 8000}])
    await served.patch("VLLMDeployment", "llama", {"spec": {"gateway": {"inferencePool": None}}})
    await served.wait_until_gone("InferencePool", "llama")
    await served.wait_for("HTTPRoute", "llama", lambda it: it["spec"]["rules"][0]["backendRefs"][0]["port"] == 8000)
    await served.patch("VLLMDeployment", "llama", {"spec": {"gateway": None, "networkPolicy": None}})
    await served.wait_until_gone("HTTPRoute", "llama")
    await served.wait_until_gone("NetworkPolicy", "llama")
    await served.wait_for("VLLMDeployment", "llama", lambda it: it["status"]["url"] == f"http://llama.{served.namespace}.svc:8000")
    assert [pod["metadata"]["uid"] for pod in await served.list_all("Pod")] == [pod["metadata"]["uid"] for pod in pods]

    requests = audit.requests(user=f"system:serviceaccount:{served.namespace}:{ACCOUNT}")
    assert [it for it in requests if it.status in (401, 403)] == []
    added = granted(served.namespace, **INTEGRATIONS) - granted(served.namespace)
    used = {(it.group, it.resource, verb) for it in requests for verb in (it.verb, *(["create"] if it.status == 201 else []))}
    assert added - used == set()
    assert {(group, kind, verb) for group, kind, verb in granted(served.namespace) if kind == "networkpolicies"} - used == set()


async def test_a_route_that_the_chart_does_not_allow_is_explained_and_changes_nothing_else(
    served: Cluster, operator: OperatorProcess, audit: AuditTrail
) -> None:
    await served.create(llama(served.namespace, gateway=GATEWAY))
    told = await served.wait_for("VLLMDeployment", "llama", has("Exposed", "False", "IntegrationDisabled"))
    assert "Set integrations.gateway to true" in condition(told, "Exposed")["message"]
    await served.wait_for("VLLMDeployment", "llama", has("Available", "True"))
    requests = audit.requests(user=f"system:serviceaccount:{served.namespace}:{ACCOUNT}")
    assert [it for it in requests if it.group.startswith(("gateway.", "inference."))] == []


async def test_a_policy_of_another_is_not_taken_over(served: Cluster, operator: OperatorProcess) -> None:
    theirs = {"podSelector": {}, "policyTypes": ["Ingress"]}
    metadata = {"name": "llama", "namespace": served.namespace}
    await served.create({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": theirs})
    await served.create(llama(served.namespace, networkPolicy=POLICY))
    told = await served.wait_for("VLLMDeployment", "llama", has("Isolated", "False", "ApplyFailed"))
    assert "was not created by the operator" in condition(told, "Isolated")["message"]
    await served.patch("VLLMDeployment", "llama", {"spec": {"networkPolicy": None}})
    await served.wait_for("VLLMDeployment", "llama", lambda it: not condition(it, "Isolated"))
    assert (await served.get("NetworkPolicy", "llama"))["spec"]["policyTypes"] == ["Ingress"]
