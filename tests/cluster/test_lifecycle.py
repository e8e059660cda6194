"""From `kubectl apply` to a serving Pod, through changes, to deletion: the operator as a process on a real API server."""

from collections.abc import Callable

import pytest

from support.cluster import Cluster, Manifest, Simulator, is_ready, the_pod
from support.operator_process import OperatorProcess, condition, has, llama, pinned_plan
from support.verdicts import has_plan
from vllm_operator.api.labels import PLAN_ANNOTATION

pytestmark = pytest.mark.cluster

ON_NODE = {"hostPath": "/var/cache/vllm"}
"""Caches that no primer fills: a rollout begins at once."""


def is_observed(resource: Manifest) -> bool:
    """Whether the status is about the spec as it is."""
    return bool(resource["status"]["observedGeneration"] == resource["metadata"]["generation"])


def as_kubectl_waits(type: str) -> Callable[[Manifest], bool]:
    """The rule of `kubectl wait --for=condition=TYPE`: the condition is True, and was observed for the current spec."""

    def check(resource: Manifest) -> bool:
        found = condition(resource, type)
        observed = found.get("observedGeneration", resource["status"].get("observedGeneration", 0))
        return found.get("status") == "True" and observed >= resource["metadata"]["generation"]

    return check


async def wait_until_none(cluster: Cluster, kind: str) -> None:
    """Wait until no object of a kind is left."""
    for item in await cluster.list_all(kind):
        await cluster.wait_until_gone(kind, item["metadata"]["name"])


async def test_an_object_becomes_a_deployment_that_serves(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    ready = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    deployment = await served.get("Deployment", "llama")
    assert [ref["uid"] for ref in deployment["metadata"]["ownerReferences"]] == [ready["metadata"]["uid"]]
    assert ready["status"]["readyReplicas"] == 1
    assert ready["status"]["observedGeneration"] == ready["metadata"]["generation"]
    assert ready["status"]["gpu"] == "NVIDIA-H100-80GB-HBM3"
    assert (await served.get("PersistentVolumeClaim", "llama-cache"))["status"]["phase"] == "Bound"
    assert (await served.get("Service", "llama"))["spec"]["ports"][0]["port"] == 8000
    assert "finalizers" not in ready["metadata"]
    assert "annotations" not in ready["metadata"]


async def test_a_start_is_reported_as_in_the_log(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace))
    log = sim.log(await the_pod(served))
    log.write(b"INFO 11-21 12:00:00 [gpu_model_runner.py:3000] Starting to load model meta-llama/Llama-3.1-8B-Instruct...\n")
    seen = await served.wait_for("VLLMDeployment", "llama", lambda r: r.get("status", {}).get("startup", {}).get("stage") == "WeightLoad")
    assert condition(seen, "Ready")["reason"] == "Starting"
    await sim.change(await the_pod(served), load="0")
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))


async def test_a_change_of_the_spec_reaches_the_pods(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"args": [{"name": "max-model-len", "value": "4096"}]}}})
    changed = await served.wait_for(
        "Deployment",
        "llama",
        lambda d: "4096" in d["spec"]["template"]["spec"]["containers"][0]["args"] and d["metadata"]["generation"] == 2,
    )
    assert changed["spec"]["replicas"] == 1
    await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"]["observedGeneration"] == 2 and has("Ready", "True")(r))


@pytest.mark.parametrize("type", ["Ready", "Available"])
async def test_kubectl_wait_returns_for_each_condition_and_each_spec(served: Cluster, operator: OperatorProcess, type: str) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", as_kubectl_waits(type))
    await served.patch("VLLMDeployment", "llama", {"spec": {"podTemplate": {"metadata": {"annotations": {"a": "b"}}}}})
    changed = await served.wait_for("VLLMDeployment", "llama", as_kubectl_waits(type))
    assert changed["metadata"]["generation"] == 2
    assert {condition["observedGeneration"] for condition in changed["status"]["conditions"]} == {2}


async def test_the_scale_subresource_scales(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, cache={"volume": {"accessMode": "ReadWriteMany"}}))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 3}}, subresource="scale")
    scaled = await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"].get("readyReplicas") == 3)
    assert scaled["status"]["selector"]
    await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 0}}, subresource="scale")
    await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"].get("replicas", 0) == 0)
    assert not [pod for pod in await served.list_all("Pod") if is_ready(pod)]


async def test_a_deleted_object_takes_its_children_along_with_the_operator_down(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, cache={"onDelete": "Delete"}))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await operator.stop()
    await served.delete("VLLMDeployment", "llama")
    for kind, name in (("Deployment", "llama"), ("Service", "llama"), ("PersistentVolumeClaim", "llama-cache")):
        await served.wait_until_gone(kind, name)
    await wait_until_none(served, "ControllerRevision")
    assert not [pod for pod in await served.list_all("Pod") if not pod["metadata"].get("deletionTimestamp")]


async def test_a_deletion_in_the_foreground_waits_for_the_children_and_ends(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await served.delete("VLLMDeployment", "llama", propagation="Foreground")
    await served.wait_until_gone("VLLMDeployment", "llama")
    assert await served.list_all("ControllerRevision") == []
    assert await served.list_all("Deployment") == []


async def test_each_plan_is_a_revision_and_a_deleted_one_comes_back(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, cache=ON_NODE))
    first = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    name = first["status"]["revision"]
    assert (await pinned_plan(served, first))["engineVersion"] == "0.20.1"
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": "0.24.0"}}})
    second = await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"]["revision"] != name and is_observed(r))
    newest = second["status"]["revision"]
    assert (await pinned_plan(served, second))["engineVersion"] == "0.24.0"
    stored = sorted(await served.list_all("ControllerRevision"), key=lambda revision: int(revision["revision"]))
    assert [(revision["metadata"]["name"], int(revision["revision"])) for revision in stored] == [(name, 1), (newest, 2)]
    value, template = await applied(served)
    assert value == newest
    await served.delete("ControllerRevision", newest)
    again = await served.wait_for("ControllerRevision", newest, lambda it: it["metadata"]["uid"] != stored[1]["metadata"]["uid"])
    assert again["data"] == stored[1]["data"]
    await served.patch("Deployment", "llama", {"metadata": {"annotations": {PLAN_ANNOTATION: None}}})
    await served.wait_for("Deployment", "llama", lambda it: it["metadata"]["annotations"].get(PLAN_ANNOTATION) == value)
    assert (await applied(served))[1] == template, "no rollout"


async def test_an_undone_rollout_is_rolled_forward_also_by_an_operator_that_was_down(served: Cluster, operator: OperatorProcess) -> None:
    """What `kubectl rollout undo` writes: Pod template and annotations of the ReplicaSet, which has those of the Deployment of its time."""
    await served.create(llama(served.namespace, cache=ON_NODE))
    first = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    old = await served.get("Deployment", "llama")
    await served.patch("VLLMDeployment", "llama", {"spec": {"engine": {"version": "0.24.0"}}})
    name = first["status"]["revision"]
    second = await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"]["revision"] != name and is_observed(r))
    value, template = await applied(served)
    assert value != old["metadata"]["annotations"][PLAN_ANNOTATION]
    for is_down in (False, True):
        if is_down:
            await operator.stop()
        undone = {"metadata": {"annotations": old["metadata"]["annotations"]}, "spec": {"template": old["spec"]["template"]}}
        await served.patch("Deployment", "llama", undone)
        if is_down:
            await operator.start()
        await served.wait_for("Deployment", "llama", lambda it: it["spec"]["template"] == template and plan_of(it) == value)
        now = await served.wait_for("VLLMDeployment", "llama", has_plan("True"))
        assert now["status"]["revision"] == second["status"]["revision"]


async def applied(cluster: Cluster) -> tuple[str, Manifest]:
    """The name of the plan that the Deployment was rendered from, and its Pod template."""
    deployment = await cluster.get("Deployment", "llama")
    return plan_of(deployment), deployment["spec"]["template"]


def plan_of(deployment: Manifest) -> str:
    value: str = deployment["metadata"]["annotations"].get(PLAN_ANNOTATION, "")
    return value


async def test_the_caches_of_a_deleted_object_are_kept_and_found_again(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    claim = await served.get("PersistentVolumeClaim", "llama-cache")
    await served.delete("VLLMDeployment", "llama")
    await served.wait_until_gone("Deployment", "llama")
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    assert (await served.get("PersistentVolumeClaim", "llama-cache"))["metadata"]["uid"] == claim["metadata"]["uid"]


async def test_an_object_deleted_and_created_again_at_once_serves(served: Cluster, operator: OperatorProcess) -> None:
    first = await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await served.delete("VLLMDeployment", "llama")
    second = await served.create(llama(served.namespace))
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    owners = (await served.get("Deployment", "llama"))["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == [second["metadata"]["uid"]]


async def test_it_stops_at_once_when_asked_to(operator: OperatorProcess) -> None:
    status, text = await operator.fetch("/healthz")
    assert (status, text) == (200, "ok\n")
    assert (await operator.fetch("/readyz"))[0] == 200
    assert await operator.stop() == 0
