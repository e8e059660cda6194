"""`kubectl vllm` on a real API server: NAME is the live object, rollbacks, waves of new plans, the check, and volumes that nobody uses."""

import json
from typing import Any

import pytest

from support.account import ACCOUNT
from support.cluster import Cluster, Manifest, Simulator
from support.kubectl_vllm import as_json, kubectl_vllm
from support.operator_process import OperatorProcess, condition, has, llama
from support.own_knowledge import ATTENTION_RULE, config_map
from support.verdicts import has_plan, plan_verdict
from vllm_operator import __version__
from vllm_operator.api.labels import ROLLBACK_ANNOTATION, UNUSED_ANNOTATION

pytestmark = pytest.mark.cluster


async def version(cluster: Cluster) -> str:
    deployment = await cluster.get("Deployment", "llama")
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"]).partition(":v")[2].partition("-")[0]


async def set_version(cluster: Cluster, wanted: str) -> None:
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": wanted}}})


def serves(wanted: str) -> Any:
    def check(resource: Manifest) -> bool:
        return f"vLLM {wanted}" in plan_verdict(resource).message and condition(resource, "Ready").get("status") == "True"

    return check


async def test_a_rollback_runs_an_earlier_plan_until_the_spec_changes(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="0")
    await served.create(llama(served.namespace, engine={"version": "0.20.1"}))
    await served.wait_for("VLLMDeployment", "llama", serves("0.20.1"))
    await set_version(served, "0.24.0")
    await served.wait_for("VLLMDeployment", "llama", serves("0.24.0"))
    assert [(row["revision"], row["state"]) for row in await as_json(served, "history", "llama")] == [(1, "served"), (2, "serves")]

    status, said = await kubectl_vllm(served, "rollback", "llama", "--dry-run")
    assert (status, "from revision 2 to revision 1" in said, "v0.20.1" in said) == (0, True, True)
    assert await version(served) == "0.24.0"
    status, said = await kubectl_vllm(served, "rollback", "vllm/llama")
    assert status == 0, said
    resource = await served.wait_for("VLLMDeployment", "llama", serves("0.20.1"))
    assert plan_verdict(resource).reason == "RolledBack"
    assert resource["spec"]["engine"]["version"] == "0.24.0"
    assert await version(served) == "0.20.1"
    await served.wait_for_event("llama", "RolledBack")
    states = [(row["revision"], row["state"]) for row in await as_json(served, "history", "llama")]
    assert states == [(1, "serves"), (2, "rolled back")]
    assert "RolledBack" in json.dumps(await as_json(served, "status", "llama"))

    status, said = await kubectl_vllm(served, "plan", "llama", "--diff")
    assert (status, ROLLBACK_ANNOTATION in said) == (1, True), said
    await set_version(served, "0.26.0")
    await served.wait_for("VLLMDeployment", "llama", serves("0.26.0"))


async def test_new_plans_come_in_waves_until_one_does_not_serve(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="0")
    for name in ("a", "b", "c"):
        await served.create(llama(served.namespace, name))
    for name in ("a", "b", "c"):
        await served.wait_for("VLLMDeployment", name, has("Ready", "True"))
    status, said = await kubectl_vllm(served, "replan", "a", "b", "--wave", "1", "--timeout", "60")
    lines = [line.partition("/")[2] for line in said.splitlines()]
    assert (status, lines) == (0, ["a: a new plan is requested", "a: serves", "b: a new plan is requested", "b: serves"])
    assert (await served.get("VLLMDeployment", "a"))["status"]["replanToken"]
    assert await kubectl_vllm(served, "replan", "--dry-run", "-A") == (0, "0 plans would be replaced.\n")

    await served.create(config_map("rules", served.namespace, ATTENTION_RULE))
    for name in ("a", "b", "c"):
        await served.wait_for("VLLMDeployment", name, has_plan("True", "PlanDrifted"), within=90)
    status, said = await kubectl_vllm(served, "replan", "--dry-run")
    assert (status, said.startswith("3 plans would be replaced."), "FLASHINFER" in said) == (0, True, True), said
    await sim.script(load="hold")
    status, said = await kubectl_vllm(served, "replan", "--wave", "1", "--timeout", "3")
    assert status == 1, said
    assert f"{served.namespace}/a does not serve with the new plan" in said
    assert "2 more are as they were" in said
    for name in ("b", "c"):
        assert plan_verdict(await served.get("VLLMDeployment", name)).reason == "PlanDrifted"


async def test_a_name_is_the_live_object(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="0")
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    status, said = await kubectl_vllm(served, "plan", "llama")
    assert (status, said.startswith(f"{served.namespace}/llama: hf://")) == (0, True), said
    assert (await as_json(served, "plan", "llama"))["plan"]["image"].startswith("vllm/vllm-openai:")
    listed = await as_json(served, "top")
    assert [each["metadata"]["name"] for each in listed["deployments"]] == ["llama"]
    status, said = await kubectl_vllm(served, "status", "llama", "--context", "another")
    assert (status, "Error: " in said) == (2, True)


async def test_the_volumes_of_a_deleted_object_are_listed_and_counted(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="0")
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    assert (await as_json(served, "caches"))["orphanedVolumes"] == []
    await served.delete("VLLMDeployment", "llama")
    await served.wait_for("PersistentVolumeClaim", "llama-cache", lambda claim: UNUSED_ANNOTATION in claim["metadata"]["annotations"])
    await served.wait_for("PersistentVolumeClaim", "llama-weights", lambda claim: UNUSED_ANNOTATION in claim["metadata"]["annotations"])
    rows = (await as_json(served, "caches"))["orphanedVolumes"]
    assert sorted(row["name"] for row in rows) == ["llama-cache", "llama-weights"]
    _, said = await kubectl_vllm(served, "caches")
    assert f"kubectl delete pvc -n {served.namespace} llama-cache llama-weights" in said
    _, metrics = await operator.fetch("/metrics")
    assert f'vllm_operator_orphaned_volumes{{namespace="{served.namespace}"}} 2.0' in metrics
    await served.create(llama(served.namespace))
    await served.wait_for("PersistentVolumeClaim", "llama-cache", lambda claim: UNUSED_ANNOTATION not in claim["metadata"]["annotations"])
    _, metrics = await operator.fetch("/metrics")
    assert f'vllm_operator_orphaned_volumes{{namespace="{served.namespace}"}}' not in metrics


async def test_the_check_says_what_is_missing(served: Cluster, operator: OperatorProcess) -> None:
    await operator.until_ready()
    status, said = await kubectl_vllm(served, "check")
    assert (status, "No Deployment of the chart was found" in said) == (1, True), said
    labels = {"app.kubernetes.io/name": "vllm-operator", "app.kubernetes.io/version": __version__}
    settings = {"LEASE": "vllm-operator", "NAMESPACES": served.namespace}
    variables = [{"name": f"VLLM_OPERATOR_{name}", "value": value} for name, value in settings.items()]
    container = {"name": "operator", "image": "operator", "env": variables}
    template = {"metadata": {"labels": labels}, "spec": {"serviceAccountName": ACCOUNT, "containers": [container]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "vllm-operator", "namespace": served.namespace, "labels": labels}
    await served.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    await served.wait_for("Deployment", "vllm-operator", has("Available", "True"))
    found = json.loads((await kubectl_vllm(served, "check", "-o", "json"))[1])
    results = {(each["check"], each["result"]) for each in found}
    fine = {"CRDs", "operator", "permissions", "operator's permissions", "GPU nodes"}
    assert {(name, "OK") for name in fine} <= results
    assert "TO DO" not in {each["result"] for each in found if each["check"] in fine - {"GPU nodes"}}
    await served.patch("Deployment", "vllm-operator", {"spec": {"template": {"spec": {"serviceAccountName": "default"}}}})
    _, said = await kubectl_vllm(served, "check")
    assert "vllm-operator may not list nodes, so no GPU can be chosen. Allow it in the ClusterRole of its ServiceAccount default" in said
    await operator.kill()
    await served.patch("Lease", "vllm-operator", {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    _, said = await kubectl_vllm(served, "check")
    assert "does not renew the Lease" in said


async def test_an_object_is_created_from_the_name_of_a_model(served: Cluster) -> None:
    status, said = await kubectl_vllm(served, "create", "Qwen/Qwen3-8B", "--gpu", "H200", "--replicas", "2")
    assert (status, said) == (0, "vllmdeployment.vllm-operator.dev/qwen3-8b created\n")
    spec = (await served.get("VLLMDeployment", "qwen3-8b"))["spec"]
    assert (spec["model"]["uri"], spec["accelerator"]["products"], spec["replicas"]) == ("hf://Qwen/Qwen3-8B", ["NVIDIA-H200"], 2)
    status, said = await kubectl_vllm(served, "create", "Qwen/Qwen3-8B")
    assert (status, "already exists" in said) == (2, True)
