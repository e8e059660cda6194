"""What users write in `podTemplate`, and what others make of our labels: nothing is lost from view, no slip stays untold."""

import asyncio
from typing import Any

import pytest

from support.cluster import Cluster, Manifest, RefusedError, Simulator, is_ready, the_pod
from support.operator_process import OperatorProcess, has, llama, problem
from support.verdicts import has_plan, plan_verdict
from testenv.binaries import kubernetes_minor

pytestmark = pytest.mark.cluster

MANAGED_BY, INSTANCE = "app.kubernetes.io/managed-by", "app.kubernetes.io/instance"
SHARED: dict[str, Any] = {"volume": {"accessMode": "ReadWriteMany"}}


def with_labels(**labels: str) -> Manifest:
    return {"metadata": {"labels": {f"app.kubernetes.io/{name.replace('_', '-')}": value for name, value in labels.items()}}}


async def label(cluster: Cluster, kind: str, name: str, **labels: str | None) -> None:
    """Change labels of a live object as a tool would."""
    changed = {f"app.kubernetes.io/{key.replace('_', '-')}": value for key, value in labels.items()}
    await cluster.patch(kind, name, {"metadata": {"labels": changed}})


async def label_of(cluster: Cluster, kind: str, name: str, label: str) -> str:
    return str((await cluster.get(kind, name))["metadata"]["labels"].get(label))


async def scaled(cluster: Cluster, replicas: int) -> None:
    """Ask for another number of replicas, and wait until all of them are told as ready."""
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"replicas": replicas}})
    await cluster.wait_for("VLLMDeployment", "llama", lambda r: r["status"].get("readyReplicas") == replicas)


async def told(cluster: Cluster, *words: str) -> Manifest:
    """Wait until the status says these words about the plan."""
    return await cluster.wait_for("VLLMDeployment", "llama", lambda r: all(word in plan_verdict(r).message for word in words))


# labels by which Pods and children are found


async def test_pods_that_another_tool_is_said_to_manage_are_seen(served: Cluster, operator: OperatorProcess) -> None:
    template = with_labels(managed_by="Helm")
    await served.create(llama(served.namespace, replicas=3, cache=SHARED | {"priming": "Auto"}, podTemplate=template))
    resource = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=40)
    assert resource["status"]["readyReplicas"] == 3
    [one, *_] = await served.wait_for_pods(3)
    assert await label_of(served, "Pod", one, MANAGED_BY) == "Helm"
    assert "podTemplate" not in plan_verdict(resource).message, "all of the spec is in effect"


async def test_the_labels_that_select_pods_are_kept_and_reported(served: Cluster, operator: OperatorProcess) -> None:
    template = with_labels(instance="other", component="server", part_of="shop")
    await served.create(llama(served.namespace, podTemplate=template))
    resource = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    assert f"podTemplate.metadata.labels cannot change {INSTANCE}" in plan_verdict(resource).message
    pod = await the_pod(served)
    assert await label_of(served, "Pod", pod, INSTANCE) == "llama"
    assert await label_of(served, "Pod", pod, "app.kubernetes.io/part-of") == "shop"
    event = await served.wait_for_event("llama", "FieldsIgnored")
    assert event["type"] == "Warning"


async def test_an_empty_part_of_the_template_removes_nothing(served: Cluster, operator: OperatorProcess) -> None:
    """`labels:` with nothing below it is a null in YAML."""
    template = {"metadata": {"labels": None}, "spec": None}
    await served.create(llama(served.namespace, podTemplate=template))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))


@pytest.mark.parametrize("labels", [{"managed_by": "Helm"}, {"managed_by": None}, {"instance": "other"}, {"instance": None}])
@pytest.mark.parametrize("kind", ["Deployment", "Service"])
async def test_a_child_that_was_relabelled_is_put_right(
    served: Cluster, operator: OperatorProcess, kind: str, labels: dict[str, str | None]
) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    before = await served.get(kind, "llama")
    await label(served, kind, "llama", **labels)
    wanted = before["metadata"]["labels"]
    await served.wait_for(kind, "llama", lambda child: child["metadata"]["labels"] == wanted, within=10)
    assert (await served.get(kind, "llama"))["metadata"]["uid"] == before["metadata"]["uid"]
    await scaled(served, 2)


async def test_a_child_that_was_relabelled_while_no_operator_looked_is_put_right(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await operator.kill()
    for kind in ("Deployment", "Service"):
        await label(served, kind, "llama", managed_by="Helm")
    await operator.start()
    for kind in ("Deployment", "Service"):
        await served.wait_for(kind, "llama", lambda child: child["metadata"]["labels"][MANAGED_BY] == "vllm-operator", within=60)
    assert has("Ready", "True")(await served.get("VLLMDeployment", "llama"))


async def test_a_pod_that_was_relabelled_is_still_seen(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await label(served, "Pod", await the_pod(served), managed_by=None)
    await scaled(served, 2)


async def test_a_pod_that_was_taken_out_of_its_replica_set_is_left_alone(served: Cluster, operator: OperatorProcess) -> None:
    """As one does to look into a Pod in peace: the ReplicaSet lets go of it, and makes another."""
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    out = await the_pod(served)
    await served.patch("Pod", out, {"metadata": {"labels": {"pod-template-hash": None}}})
    await served.wait_for_pods(2)
    await scaled(served, 2)
    assert (await served.get("VLLMDeployment", "llama"))["status"]["replicas"] == 2
    assert "deletionTimestamp" not in (await served.get("Pod", out))["metadata"]


async def test_pods_of_another_owner_with_our_labels_are_not_counted(served: Cluster, operator: OperatorProcess) -> None:
    labels = {f"app.kubernetes.io/{key}": value for key, value in (("name", "vllm"), ("instance", "llama"), ("component", "engine"))}
    labels["app.kubernetes.io/managed-by"] = "vllm-operator"
    spec = {"containers": [{"name": "theirs", "image": "theirs:1"}], "tolerations": [{"operator": "Exists"}]}
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await served.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs", "labels": labels}, "spec": spec})
    await served.wait_for("Pod", "theirs", is_ready)
    await scaled(served, 2)
    await scaled(served, 1)


# fields that Kubernetes does not know, and containers that are none


async def test_fields_that_kubernetes_does_not_know_are_reported(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await served.patch("VLLMDeployment", "llama", {"spec": {"podTemplate": {"spec": {"nodeSelecter": {"a": "b"}}}}})
    resource = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ApplyFailed"))
    assert ".spec.template.spec.nodeSelecter: field not declared in schema" in problem(resource)
    assert "spec.podTemplate. Correct it there. If its name is right, it needs a newer Kubernetes." in problem(resource)
    assert resource["status"]["readyReplicas"] == 1, "what runs keeps running"
    # an operator that begins anew says the same
    await operator.until_quiet()
    before = (await served.get("VLLMDeployment", "llama"))["metadata"]["resourceVersion"]
    await operator.kill()
    await operator.start()
    await operator.until_says("serving", times=2)
    async with asyncio.timeout(30):
        while not (await operator.reconciles()).get("refused"):  # noqa: ASYNC110 - the operator counts, and tells nobody
            await asyncio.sleep(0.1)
    assert (await served.get("VLLMDeployment", "llama"))["metadata"]["resourceVersion"] == before
    # once they are corrected, nothing is left to tell
    await served.patch("VLLMDeployment", "llama", {"spec": {"podTemplate": None}})
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))


OF_FEATURES_THAT_ARE_OFF: dict[int, Manifest] = {
    30: {"hostUsers": False},
    33: {"resources": {"limits": {"cpu": "1"}}},
    35: {"workloadRef": {"name": "work", "podGroup": "group"}},
    37: {"schedulingGroup": {"podGroupName": "group"}},
}
"""By the minor version of Kubernetes."""


async def test_a_field_that_the_api_server_knows_and_does_not_keep_is_reported(served: Cluster, operator: OperatorProcess) -> None:
    """Such as one of a feature that is off."""
    spec = OF_FEATURES_THAT_ARE_OFF[kubernetes_minor()]
    await served.create(llama(served.namespace, podTemplate={"spec": spec}))
    resource = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    assert f"did not keep spec.template.spec.{next(iter(spec))}" in plan_verdict(resource).message
    await served.wait_for_event("llama", "FieldsIgnored")
    await operator.until_quiet()
    before = (await served.get("VLLMDeployment", "llama"))["metadata"]["resourceVersion"]
    await operator.kill()
    await operator.start()
    await operator.until_says("serving", times=2)
    async with asyncio.timeout(30):
        while not (await operator.reconciles()).get("success"):  # noqa: ASYNC110 - the operator counts, and tells nobody
            await asyncio.sleep(0.1)
    assert (await served.get("VLLMDeployment", "llama"))["metadata"]["resourceVersion"] == before


async def test_a_container_that_the_pod_does_not_have_needs_an_image(served: Cluster, operator: OperatorProcess) -> None:
    containers = [{"name": "engine", "resources": {"limits": {"memory": "64Gi"}}}]
    await served.create(llama(served.namespace, podTemplate={"spec": {"containers": containers}}))
    resource = await served.wait_for("VLLMDeployment", "llama", has_plan("False", "InvalidSpec"))
    message = plan_verdict(resource).message
    assert "podTemplate.spec.containers[0]" in message
    assert "the container of the engine is vllm" in message
    with pytest.raises(RefusedError, match="404"):
        await served.get("Deployment", "llama")


async def test_priming_goes_on_where_the_primer_was_relabelled(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    """A primer that is lost from view would never go, and hold its GPU for ever."""
    await served.create(llama(served.namespace, cache=SHARED))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await sim.script(path="ok", pull="0", load="hold")
    await served.patch("VLLMDeployment", "llama", {"spec": {"cache": {"priming": "Always"}, "engine": {"version": "0.21.0"}}})
    await served.wait_for("Deployment", "llama.primer", bool)
    await label(served, "Deployment", "llama.primer", managed_by="Helm")
    await served.wait_for("Deployment", "llama.primer", lambda d: d["metadata"]["labels"][MANAGED_BY] == "vllm-operator", within=10)
