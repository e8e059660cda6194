"""Objects of users that look like the operator's stay as they are, whatever labels and owners were copied with them."""

import asyncio
from typing import Any

import pytest

from support.audit import AuditTrail
from support.cluster import Cluster, Manifest
from support.operator_process import OperatorProcess, has, llama

pytestmark = pytest.mark.cluster

NO_PLAN = {"accelerator": {"architectures": ["sm_103"]}}
CONTENT = ("apiVersion", "kind", "spec")


def copy_of(manifest: Manifest, *fields: str, name: str) -> Manifest:
    """What `kubectl get -o yaml | kubectl apply` makes of an object, with these fields of its metadata."""
    kept = {field: manifest["metadata"][field] for field in fields}
    content: dict[str, Any] = {field: manifest[field] for field in CONTENT}
    return content | {"metadata": {"name": name, **kept}}


async def test_copies_are_not_scaled_and_not_deleted(served: Cluster, operator: OperatorProcess, audit: AuditTrail) -> None:
    await served.create(llama(served.namespace, replicas=2, cache={"priming": "Never"}))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    own = await served.get("Deployment", "llama")
    await served.create(copy_of(own, "labels", name="llama-copy") | {"spec": own["spec"] | {"replicas": 0}})
    await served.create(copy_of(own, "labels", "ownerReferences", name="llama-owned") | {"spec": own["spec"] | {"replicas": 0}})
    audit.mark()
    # fewer replicas follow also where there is no plan, and a new plan prunes what is not desired
    await served.patch("VLLMDeployment", "llama", {"spec": {"replicas": 1, **NO_PLAN}})
    await served.wait_for("Deployment", "llama", lambda it: it["spec"]["replicas"] == 1)
    await served.patch("VLLMDeployment", "llama", {"spec": {"accelerator": None}})
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    writes = audit.writes(agent="vllm-operator", namespace=served.namespace)
    assert {request.name for request in writes if request.resource == "deployments"} == {"llama"}
    assert (await served.get("Deployment", "llama-copy"))["spec"]["replicas"] == 0
    assert not (await served.get("Deployment", "llama-owned"))["metadata"].get("deletionTimestamp")


@pytest.mark.parametrize("kind", ["Deployment", "Service"])
async def test_an_object_of_the_name_that_only_has_the_labels_is_not_taken_over(
    served: Cluster, operator: OperatorProcess, kind: str
) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    mine = copy_of(await served.get(kind, "llama"), "labels", name="llama")
    await operator.stop()
    await served.delete(kind, "llama")
    await served.wait_until_gone(kind, "llama")
    if kind == "Service":
        mine["spec"] = {key: value for key, value in mine["spec"].items() if not key.startswith("clusterIP")}
    await served.create(mine)
    before = (await served.get(kind, "llama"))["spec"]
    await operator.start()
    told = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ApplyFailed"), within=60)
    assert f"{kind} llama" in next(each["message"] for each in told["status"]["conditions"] if each["type"] == "Ready")
    after = await served.get(kind, "llama")
    assert after["spec"] == before
    assert "vllm-operator" not in {entry["manager"] for entry in after["metadata"]["managedFields"]}


async def test_orphaned_children_are_taken_over_and_their_primer_goes(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    own = await served.get("Deployment", "llama")
    path = f"/apis/vllm-operator.dev/v1alpha1/namespaces/{served.namespace}/vllmdeployments/llama"
    await served.request("DELETE", path, body={"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"})
    await served.wait_until_gone("VLLMDeployment", "llama")
    await served.wait_for("Deployment", "llama", lambda it: not it["metadata"].get("ownerReferences"))
    primer = copy_of(own, "labels", name="llama.primer") | {"spec": own["spec"] | {"replicas": 0}}
    await served.apply(primer, manager="vllm-operator", force=False)
    await served.create(llama(served.namespace))
    await asyncio.gather(
        served.wait_until_gone("Deployment", "llama.primer"),
        served.wait_for("Deployment", "llama", lambda it: it["metadata"].get("ownerReferences")),
    )
    assert (await served.get("Deployment", "llama"))["metadata"]["uid"] == own["metadata"]["uid"]
