"""`spec.weights.prefetch` on the real API server: the Job, its record on the PersistentVolumeClaim, and what engines start with."""

import json
from typing import Any

import pytest

from support.cluster import Cluster, Manifest, Simulator
from support.operator_process import OperatorProcess, condition, has, llama
from support.stories import arguments

pytestmark = pytest.mark.cluster

COMMIT, OTHER = "8f3f9f1f1c0d5f4a0f6f0c7b5d7b1d2f0a4b8e6d", "1" * 40
SPEC: dict[str, Any] = {"weights": {"prefetch": "BeforeStart", "onDelete": "Delete"}, "cache": {"onDelete": "Delete", "priming": "Never"}}
SELECTOR = "app.kubernetes.io/component=fetching"


def records(claim: Manifest) -> dict[str, str]:
    annotations = claim["metadata"].get("annotations") or {}
    return {name: value for name, value in annotations.items() if name.startswith("fetched.vllm-operator.dev/")}


async def finish(cluster: Cluster, pod: str, result: dict[str, Any], *, code: int = 0) -> None:
    """The simulated Pod completes without a word; put in what the program would have reported."""
    found = await cluster.wait_for("Pod", pod, lambda p: p.get("status", {}).get("phase") == "Succeeded")
    times = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:10:00Z"}
    ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": json.dumps(result), **times}
    of_pod = found["spec"]["containers"][0]
    container = {
        "name": of_pod["name"],
        "image": of_pod["image"],
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    await cluster.patch("Pod", pod, {"status": {"phase": "Succeeded", "containerStatuses": [container]}}, subresource="status")


async def test_weights_are_fetched_before_the_first_pod_and_again_for_another_revision(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="ok", pull="0", load="0")
    await served.create(llama(served.namespace, **SPEC))
    [pod] = await served.wait_for_pods(selector=SELECTOR)
    job = await served.get("Job", (await served.get("Pod", pod))["metadata"]["ownerReferences"][0]["name"])
    assert job["metadata"]["ownerReferences"][0]["kind"] == "VLLMDeployment"
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "FetchFailed"))
    assert "The download is tried again" in condition(told, "Ready")["message"]
    deployment = await served.wait_for("Deployment", "llama", bool)
    assert deployment["spec"]["replicas"] == 0
    await finish(served, pod, {"result": "Denied", "message": "GatedRepoError: 403 Forbidden"}, code=1)
    await served.wait_for("VLLMDeployment", "llama", lambda r: "Set spec.model.tokenSecretRef" in condition(r, "Ready").get("message", ""))
    await finish(served, pod, {"result": "Fetched", "commit": COMMIT})
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    claim = await served.get("PersistentVolumeClaim", "llama-weights")
    assert list(records(claim).values()) == [COMMIT]
    deployment = await served.get("Deployment", "llama")
    assert arguments(deployment)[arguments(deployment).index("--revision") + 1] == COMMIT

    resource = await served.get("VLLMDeployment", "llama")
    model = {**resource["spec"]["model"], "revision": "v2"}
    await served.patch("VLLMDeployment", "llama", {"spec": {"model": model}})
    [second] = await served.wait_for_pods(selector=SELECTOR, but=[pod])
    of_second = await served.get("Job", (await served.get("Pod", second))["metadata"]["ownerReferences"][0]["name"])
    [replica] = await served.wait_for_pods(selector="app.kubernetes.io/component=engine")
    assert (await served.get("Pod", second))["spec"]["nodeName"] == (await served.get("Pod", replica))["spec"]["nodeName"]
    assert of_second["spec"]["activeDeadlineSeconds"] >= 3600
    unchanged = await served.get("Deployment", "llama")
    assert unchanged["spec"] == deployment["spec"], "the replica serves the previous spec until the weights are there"
    await finish(served, second, {"result": "Fetched", "commit": OTHER})
    await served.wait_for("Deployment", "llama", lambda d: OTHER in arguments(d))
    await served.wait_for("PersistentVolumeClaim", "llama-weights", lambda c: sorted(records(c).values()) == sorted([COMMIT, OTHER]))

    await served.delete("VLLMDeployment", "llama", propagation="Background")
    for each in (pod, second):
        await served.wait_until_gone("Pod", each, within=60)


async def test_a_job_whose_pod_a_quota_refuses_says_so_and_replicas_are_scaled_meanwhile(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="ok", pull="0", load="0")
    await served.create(llama(served.namespace, **SPEC))
    [pod] = await served.wait_for_pods(selector=SELECTOR)
    await finish(served, pod, {"result": "Fetched", "commit": COMMIT})
    resource = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}, "spec": {"hard": {"pods": "1"}}}
    await served.create(quota)
    await served.wait_for("ResourceQuota", "full", lambda q: q.get("status", {}).get("used", {}).get("pods") == "1")
    model = {**resource["spec"]["model"], "revision": "v2"}
    await served.patch("VLLMDeployment", "llama", {"spec": {"model": model}})
    await served.wait_for("VLLMDeployment", "llama", lambda r: "exceeded quota: full" in condition(r, "Ready").get("message", ""))
    await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 2}})
    deployment = await served.wait_for("Deployment", "llama", lambda d: d["spec"]["replicas"] == 2)
    assert COMMIT in arguments(deployment)


async def test_what_is_recorded_on_a_claim_is_not_fetched_again_by_a_new_object(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="ok", pull="0", load="0")
    spec: dict[str, Any] = {"weights": {"prefetch": "BeforeStart"}, "cache": {"priming": "Never"}}
    await served.create(llama(served.namespace, **spec))
    [pod] = await served.wait_for_pods(selector=SELECTOR)
    await finish(served, pod, {"result": "Fetched", "commit": COMMIT})
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await served.delete("VLLMDeployment", "llama", propagation="Foreground")
    await served.wait_until_gone("VLLMDeployment", "llama", within=60)
    await served.create(llama(served.namespace, **spec))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    deployment = await served.get("Deployment", "llama")
    assert arguments(deployment)[arguments(deployment).index("--revision") + 1] == COMMIT
    assert await served.list_all("Job") == []
