"""The operator writes to claims that it has created, whatever their names and labels, and to what a user has named; to no others."""

from collections.abc import Callable
from typing import Any

import pytest

from support.audit import AuditTrail
from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.operator_process import OperatorProcess, has, llama
from support.verdicts import cache_verdict, has_cache

pytestmark = pytest.mark.cluster

OURS = {
    "app.kubernetes.io/name": "vllm",
    "app.kubernetes.io/instance": "llama",
    "app.kubernetes.io/component": "cache",
    "app.kubernetes.io/managed-by": "vllm-operator",
}
DELETE: dict[str, Any] = {"cache": {"onDelete": "Delete"}}
CLAIM = "PersistentVolumeClaim"


def claim(cluster: Cluster, **metadata: Any) -> Manifest:
    """A claim as the operator itself would ask for it, so that nothing in its spec contradicts an apply."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": CLAIM,
        "metadata": {"name": "llama-cache", "namespace": cluster.namespace, **metadata},
        "spec": spec,
    }


def managers(manifest: Manifest) -> set[str]:
    """The field managers of ours that have written to an object."""
    return {entry["manager"] for entry in manifest["metadata"]["managedFields"] if entry["manager"].startswith("vllm-operator")}


async def create_as_user(cluster: Cluster) -> None:
    await cluster.create(claim(cluster))


async def create_with_copied_labels(cluster: Cluster) -> None:
    await cluster.create(claim(cluster, labels=OURS))


async def apply_as_user(cluster: Cluster) -> None:
    await cluster.apply(claim(cluster), manager="argocd-controller")


@pytest.mark.parametrize("make", [create_as_user, create_with_copied_labels, apply_as_user])
async def test_a_claim_of_a_user_is_never_written_to_whatever_the_spec_says_later(
    served: Cluster, operator: OperatorProcess, make: Callable[[Cluster], Any]
) -> None:
    await make(served)
    before = await served.get(CLAIM, "llama-cache")
    await served.create(llama(served.namespace))
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ClaimNameTaken"))
    assert "but the operator did not create it" in cache_verdict(told).message
    assert "set spec.cache.claimName to llama-cache" in cache_verdict(told).message
    await served.patch("VLLMDeployment", "llama", {"spec": DELETE})
    await served.wait_for("VLLMDeployment", "llama", lambda it: it["status"]["observedGeneration"] == 2)
    after = await served.get(CLAIM, "llama-cache")
    assert managers(after) == set()
    assert after["metadata"].get("labels") == before["metadata"].get("labels")
    assert "ownerReferences" not in after["metadata"]
    assert not await served.exists("Deployment", "llama"), "no Pod writes to the volume either"
    await served.patch("VLLMDeployment", "llama", {"spec": {"cache": {"onDelete": None, "claimName": "llama-cache"}}})
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await served.delete("VLLMDeployment", "llama")
    await served.wait_until_gone("Deployment", "llama")
    handed_over = await served.get(CLAIM, "llama-cache")
    assert managers(handed_over) == {"vllm-operator-cache"}, "records of what is on it, and nothing else"
    assert handed_over["metadata"].get("labels") == before["metadata"].get("labels")
    assert "ownerReferences" not in handed_over["metadata"]


async def test_a_claim_that_the_operator_has_applied_is_its_own(served: Cluster, operator: OperatorProcess) -> None:
    await served.apply(claim(served, labels=OURS), manager="vllm-operator", force=False)
    await served.create(llama(served.namespace, cache={"volume": {"size": "40Gi"}}))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await served.wait_for(CLAIM, "llama-cache", lambda it: it["spec"]["resources"]["requests"]["storage"] == "40Gi")


async def test_a_claim_that_was_orphaned_is_found_again(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, **DELETE))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    before = await served.get(CLAIM, "llama-cache")
    path = f"/apis/vllm-operator.dev/v1alpha1/namespaces/{served.namespace}/vllmdeployments/llama"
    await served.request("DELETE", path, body={"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"})
    await served.wait_until_gone("VLLMDeployment", "llama")
    await served.wait_for(CLAIM, "llama-cache", lambda it: not it["metadata"].get("ownerReferences"))
    # this API server lets only those add an owner who may delete the claim; the operator may not, and says so
    await served.create(llama(served.namespace, cache={"onDelete": "Delete", "volume": {"size": "40Gi"}}))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    grown = await served.wait_for(CLAIM, "llama-cache", lambda it: it["spec"]["resources"]["requests"]["storage"] == "40Gi")
    assert grown["metadata"]["uid"] == before["metadata"]["uid"]
    await served.wait_for("VLLMDeployment", "llama", lambda it: "stays when this object is deleted" in cache_verdict(it).message)


async def test_a_claim_of_an_earlier_object_is_left_to_the_garbage_collector(
    served: Cluster, operator: OperatorProcess, audit: AuditTrail
) -> None:
    await served.create(llama(served.namespace, **DELETE))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await served.delete("VLLMDeployment", "llama")
    second = await served.create(llama(served.namespace, **DELETE))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=90)
    owned = await served.get(CLAIM, "llama-cache")
    assert [owner["uid"] for owner in owned["metadata"]["ownerReferences"]] == [second["metadata"]["uid"]]
    assert [
        e
        for e in audit.requests(agent="vllm-operator", namespace=served.namespace)
        if e.verb == "delete" and e.resource == "persistentvolumeclaims"
    ] == []


async def test_a_claim_that_another_object_uses_outlives_its_own(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    other = llama(served.namespace, cache={"claimName": "llama-cache"})
    await served.create({**other, "metadata": {**other["metadata"], "name": "other"}})
    await served.wait_for("VLLMDeployment", "other", has("Ready", "True"))
    await served.patch("VLLMDeployment", "llama", {"spec": DELETE})
    told = await served.wait_for("VLLMDeployment", "llama", lambda it: "no effect" in cache_verdict(it).message)
    assert "VLLMDeployment other uses PersistentVolumeClaim llama-cache as well" in cache_verdict(told).message
    await served.delete("VLLMDeployment", "llama")
    await served.wait_until_gone("Deployment", "llama")
    assert "deletionTimestamp" not in (await served.get(CLAIM, "llama-cache"))["metadata"]


async def test_an_owner_that_may_not_be_removed_is_reported(served: Cluster, operator: OperatorProcess) -> None:
    """This API server lets only those change owners who may delete the claim."""
    await served.create(llama(served.namespace, **DELETE))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    other = llama(served.namespace, cache={"claimName": "llama-cache"})
    await served.create({**other, "metadata": {**other["metadata"], "name": "other"}})
    for name in ("llama", "other"):
        await served.wait_for("VLLMDeployment", name, lambda it: "Remove the owner yourself" in cache_verdict(it).message)


@pytest.mark.extended
@pytest.mark.timeout(240)
async def test_a_finished_cleaning_job_does_not_keep_a_claim_that_is_deleted(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    await sim.script(path="ok", pull="0", load="0", backoff="60")
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    engine = await the_pod(served, selector="app.kubernetes.io/component=engine")
    first_line = b"INFO 11-21 12:00:00 [core.py:97] Initializing a V1 LLM engine (v0.20.1) with config\n"
    sim.log(engine).write(first_line + b"OSError: [Errno 28] No space left on device: '/cache/vllm/torch_compile_cache/a'\n")
    await sim.change(engine, path="crash", crash_phase="ready", crash_after="0", load="hold")
    await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True", "DiskFull"))
    [cleaner] = await served.wait_for_pods(selector="app.kubernetes.io/component=cleaning")
    await served.wait_for("Pod", cleaner, lambda p: p.get("status", {}).get("phase") == "Succeeded")
    await operator.kill()
    first = await served.get("PersistentVolumeClaim", "llama-cache")
    await served.delete("PersistentVolumeClaim", "llama-cache")
    await operator.start()
    told = await served.wait_for(
        "VLLMDeployment",
        "llama",
        lambda r: has_cache("ClaimTerminating")(r) and engine in cache_verdict(r).message,
    )
    assert "set spec.replicas to 0" in cache_verdict(told).message
    await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 0}})
    await served.wait_for("PersistentVolumeClaim", "llama-cache", lambda it: it["metadata"]["uid"] != first["metadata"]["uid"], within=60)
    assert await served.list_all("Job") == []
