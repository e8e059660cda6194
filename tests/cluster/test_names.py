"""Names on a real API server: of other namespaces, of no object at all, of children, and at their maximum length."""

from typing import Any

import pytest

from support.cluster import Cluster, Manifest, Simulator
from support.operator_process import OperatorProcess, condition, has, llama
from support.sessions import own_namespace
from support.verdicts import has_plan, plan_verdict
from testenv import Environment

pytestmark = pytest.mark.cluster


def claim(namespace: str) -> Manifest:
    metadata = {"name": "llama-cache", "namespace": namespace, "annotations": {"note": "of a user in another namespace"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def mounting(name: str) -> Manifest:
    return {"spec": {"volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": name}}]}}


@pytest.mark.parametrize("name", ["../../{}/persistentvolumeclaims/llama-cache", "../persistentvolumeclaims?watch=true&x="])
async def test_a_path_as_the_name_of_a_claim_reaches_nothing(environment: Environment, served: Cluster, name: str) -> None:
    """The operator has all permissions here, so only its own check protects other namespaces."""
    async with own_namespace(environment) as victim, OperatorProcess(served.kubeconfig, served.namespace) as operator:
        await victim.create(claim(victim.namespace))
        await operator.until_ready()
        await served.create(llama(served.namespace, podTemplate=mounting(name.format(victim.namespace))))
        told = await served.wait_for("VLLMDeployment", "llama", has_plan("False", "InvalidSpec"), within=10)
        assert "no PersistentVolumeClaim can have the name" in plan_verdict(told).message
        assert not await served.exists("Deployment", "llama")
        metadata = (await victim.get("PersistentVolumeClaim", "llama-cache"))["metadata"]
        assert [annotation for annotation in metadata["annotations"] if "vllm-operator.dev" in annotation.partition("/")[0]] == []
        assert not any("vllm-operator" in entry["manager"] for entry in metadata["managedFields"])
        await served.patch("VLLMDeployment", "llama", {"spec": {"podTemplate": None}})
        await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))


async def test_no_pod_unavailable_means_one_more(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, replicas=2, cache={"priming": "Never"}, rollout={"maxUnavailable": 0}))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    strategy: dict[str, Any] = (await served.get("Deployment", "llama"))["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


async def test_an_object_with_the_name_of_a_primer_holds_no_rollout(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="0")
    for name, priming in (("llama-primer", "Never"), ("llama", "Always")):
        await served.create(llama(served.namespace, name, cache={"priming": priming}))
        await served.wait_for("VLLMDeployment", name, has("Ready", "True"))
    before = await served.get("Deployment", "llama-primer")
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": "0.24.0"}}})
    await served.wait_for("VLLMDeployment", "llama", lambda r: has("Ready", "True")(r) and "vLLM 0.24.0" in r["status"]["plan"], within=60)
    await served.wait_until_gone("Deployment", "llama.primer")
    after = await served.get("Deployment", "llama-primer")
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


async def test_an_object_with_the_longest_name_gets_its_jobs(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    """The name of a Job is also the value of a label, which has at most 63 characters."""
    name = f"{'l' * 26}-{'m' * 25}"
    await served.create(llama(served.namespace, name, weights={"prefetch": "BeforeStart"}, cache={"priming": "Never"}))
    [pod] = await served.wait_for_pods(selector="app.kubernetes.io/component=fetching")
    assert (await served.get("Pod", pod))["metadata"]["labels"]["app.kubernetes.io/instance"] == name
    await served.wait_for("VLLMDeployment", name, lambda r: "Job" in condition(r, "Ready").get("message", ""))
