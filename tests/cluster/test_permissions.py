"""What the chart allows the operator to do is what it does: every request is in the audit log of the API server."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.account import ACCOUNT, granted
from support.audit import AuditTrail, Request
from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.engines import eventually
from support.metrics_adapter import serve_metrics
from support.operator_process import OperatorProcess, has, problem
from support.operator_process import llama as any_llama
from support.own_knowledge import ATTENTION_RULE, config_map
from support.stories import LOADING, RUNNING
from support.verdicts import cache_verdict, plan_verdict
from vllm_operator.api import labels
from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.controller.plan_store import OLD_REVISIONS

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

UUID = "MIG-8949ea7d-9166-53ce-9bac-6c58262addf9"
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"
SLICES = Path(__file__).parent.parent / "golden" / "cases" / "mig-uuid-claim" / "slices.yaml"


def llama(namespace: str, name: str = "llama", **spec: Any) -> Manifest:
    """A VLLMDeployment on whole GPUs: there are few slices."""
    return any_llama(namespace, name, **{"accelerator": {"mig": {"mode": "Disabled"}}, **spec})


NO_REQUEST = {
    # the API server looks this up itself when a child names its owner (OwnerReferencesPermissionEnforcement, as on OpenShift)
    ("vllm-operator.dev", "vllmdeployments/finalizers", "update"),
}
FOR_EVERYBODY = {
    # allowed by the role system:basic-user, to every account
    ("authorization.k8s.io", "selfsubjectaccessreviews", "create"),
}


@pytest.mark.timeout(400)  # it does one after the other all that the operator can do
async def test_every_permission_is_used_and_none_is_missing(
    served: Cluster, sim: Simulator, gpu_nodes: Callable[..., list[str]], operator: OperatorProcess, audit: AuditTrail, tmp_path: Path
) -> None:
    [node] = gpu_nodes("h100-mig-mixed")
    await publish_devices(served, node)
    await serve_and_put_right(served, sim, audit)
    await wait_for_a_volume(served)
    await crash_on_a_full_volume(served, sim)
    await stall(served, sim)
    await leave_replicas_to_an_autoscaler(served)
    await meet_what_is_not_ours(served)
    await limit_who_connects(served)
    await scale_by_metrics(served)
    await use_a_claim_of_the_user(served)
    await pin_a_device(served)
    await replace_what_an_earlier_object_left(served)
    await take_a_rule_of_the_owner(served, operator)
    await use_presets(served)
    await fill_the_history(served)
    # watches of before this test's own requests
    await operator.stop()
    # it was made before this test looked at the audit log
    await served.request("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{served.namespace}/leases/{ACCOUNT}")
    await operator.start()
    await operator.until_says("serving", times=2, within=60)
    await stand_by(served, tmp_path)

    requests = audit.requests(user=f"system:serviceaccount:{served.namespace}:{ACCOUNT}")
    refused = sorted({f"{it.verb} {it.resource}/{it.subresource} {it.name}" for it in requests if it.status in (401, 403)})
    assert refused == []
    rights = granted(served.namespace)
    used = {right for request in requests if request.resource for right in needed(request)} - FOR_EVERYBODY
    assert used - rights == set()
    of_groups = {right for right in rights if right[1] == "leaderworkersets"}  # see test_groups.py
    assert rights - used - of_groups == NO_REQUEST


async def test_the_right_that_makes_no_request_is_needed_all_the_same(served: Cluster, operator: OperatorProcess) -> None:
    role = await served.get("Role", ACCOUNT)
    rules = [rule for rule in role["rules"] if rule["resources"] != ["vllmdeployments/finalizers"]]
    assert len(rules) == len(role["rules"]) - 1
    await served.patch("Role", ACCOUNT, {"rules": rules})
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", lambda it: "blockOwnerDeletion" in str(it.get("status")))


def needed(request: Request) -> set[tuple[str, str, str]]:
    """The rights that a request takes: (group, resource, verb)."""
    resource = request.resource + (f"/{request.subresource}" if request.subresource else "")
    verbs = {request.verb}
    if request.verb == "patch" and request.status == 201:
        verbs.add("create")  # an apply of what was not there
    return {(request.group, resource, verb) for verb in verbs}


async def publish_devices(cluster: Cluster, node: str) -> None:
    slices = yaml.safe_load(SLICES.read_text("utf-8"))
    slices["metadata"]["name"] = node
    slices["spec"]["nodeName"] = slices["spec"]["pool"]["name"] = node
    # it goes with its node
    owner = (await cluster.get("Node", node))["metadata"]
    slices["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner["uid"]}]
    await cluster.create(slices)


async def serve_and_put_right(cluster: Cluster, sim: Simulator, audit: AuditTrail) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await cluster.create(llama(cluster.namespace))
    pod = await lose_pods_while_their_logs_are_read(cluster, sim, audit)
    await sim.script(path="ok", pull="0", load="0")
    await sim.change(pod, load="0")
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    await cluster.patch("Service", "llama", {"spec": {"selector": {"foreign": "yes"}}})
    await cluster.wait_for("Service", "llama", lambda service: "foreign" not in service["spec"]["selector"])


async def lose_pods_while_their_logs_are_read(cluster: Cluster, sim: Simulator, audit: AuditTrail) -> str:
    """A log ends with its Pod. If the operator still follows it, it asks the API server for the Pod. Return the Pod that stays."""
    seen: list[str] = []

    def has_read(name: str, subresource: str) -> bool:
        requests = audit.requests(user=ACCOUNT, namespace=cluster.namespace)
        return any((it.verb, it.resource, it.subresource, it.name) == ("get", "pods", subresource, name) for it in requests)

    async def follows() -> bool:
        return has_read(seen[-1], "log")

    while not any(has_read(name, "") for name in seen):
        seen.append(await the_pod(cluster, but=seen))
        sim.log(seen[-1]).write(RUNNING + LOADING)
        await eventually(follows, within=60)
        await cluster.request("DELETE", f"/api/v1/namespaces/{cluster.namespace}/pods/{seen[-1]}", params={"gracePeriodSeconds": "0"})
    return await the_pod(cluster, but=seen)


async def fill_the_history(cluster: Cluster) -> None:
    """More plans than are kept: the oldest one goes."""
    first = (await cluster.get("VLLMDeployment", "llama"))["status"]["revision"]
    for number in range(OLD_REVISIONS + 2):
        token = f"history-{number}"
        await cluster.patch("VLLMDeployment", "llama", {"metadata": {"annotations": {REPLAN_ANNOTATION: token}}})
        await cluster.wait_for("VLLMDeployment", "llama", planned_with(token))
    await cluster.wait_until_gone("ControllerRevision", first)


def planned_with(token: str) -> Callable[[Manifest], bool]:
    """Whether the current plan was made for this value of the annotation."""
    return lambda it: bool(it["status"].get("replanToken") == token)


async def wait_for_a_volume(cluster: Cluster) -> None:
    """Why a claim is not bound is told by its events."""
    volume = {"storageClassName": "there-is-none"}
    await cluster.create(llama(cluster.namespace, "waits", cache={"volume": volume, "onDelete": "Delete"}))
    await cluster.wait_for("VLLMDeployment", "waits", has("Ready", "False", "StorageClassMissing"), within=60)
    await cluster.wait_for("VLLMDeployment", "waits", lambda it: "there-is-none" in problem(it), within=60)
    await cluster.delete("VLLMDeployment", "waits")
    await cluster.wait_until_gone("Deployment", "waits", within=60)


async def crash_on_a_full_volume(cluster: Cluster, sim: Simulator) -> None:
    """Again and again: the crash is counted in one event, and a Job makes room."""
    await sim.script(path="crash", pull="0", crash_after="hold", backoff="1")
    await cluster.create(llama(cluster.namespace, "full"))
    pod = await pod_of(cluster, "full")
    for run in range(9):
        log = sim.log(pod, run=run)
        log.write(RUNNING + LOADING + b"OSError: [Errno 28] No space left on device: '/cache/vllm/torch_compile_cache/a'\n")
        log.exit()
    await sim.change(pod, crash_after="0.5")
    await cluster.wait_for("VLLMDeployment", "full", lambda it: "lastCrash" in it.get("status", {}), within=60)
    told = await cluster.wait_for_event("full", "DiskFull")
    await cluster.wait_for("VLLMDeployment", "full", lambda it: "volume is full" in cache_verdict(it).message, within=60)
    await cluster.wait_for("Event", told["metadata"]["name"], lambda it: it["count"] > told["count"], within=60)
    [job] = [it["metadata"]["name"] for it in await cluster.list_all("Job")]
    await cluster.delete("PersistentVolumeClaim", "full-cache")
    await cluster.wait_until_gone("Job", job)
    await cluster.delete("VLLMDeployment", "full")
    await cluster.wait_until_gone("Deployment", "full", within=60)
    await sim.script(path="ok", crash_after=None, backoff=None)


async def stall(cluster: Cluster, sim: Simulator) -> None:
    """An engine that says that it serves and does not; its Pod is deleted, as the spec wishes."""
    await sim.script(path="ok", load="hold")
    await cluster.create(
        llama(cluster.namespace, "stalls", startup={"stallTimeoutSeconds": 30, "onStall": "Restart", "maxStallRestarts": 1})
    )
    pod = await pod_of(cluster, "stalls")
    log = sim.log(pod)
    log.write(RUNNING + LOADING + b"INFO:     Application startup complete.\n", at=datetime.now(UTC) - timedelta(seconds=60))
    await cluster.wait_until_gone("Pod", pod, within=90)
    await cluster.delete("VLLMDeployment", "stalls")
    await cluster.wait_until_gone("Deployment", "stalls", within=60)
    await sim.script(load="0")


async def pod_of(cluster: Cluster, name: str) -> str:
    """The Pod of a VLLMDeployment, once its engine runs."""
    selector = f"app.kubernetes.io/instance={name}"
    found = await the_pod(cluster, selector=selector)
    await cluster.wait_until_runs(found)
    return found


async def leave_replicas_to_an_autoscaler(cluster: Cluster) -> None:
    autoscalers = AUTOSCALERS.format(cluster.namespace)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"}
    # without metrics it only keeps within its bounds, and that is enough here
    spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 3}
    metadata = {"name": "llama", "namespace": cluster.namespace}
    autoscaler = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}
    await cluster.request("POST", autoscalers, body=autoscaler)
    await cluster.wait_for("Deployment", "llama", lambda deployment: deployment["spec"]["replicas"] == 2, within=40)
    await cluster.wait_for("VLLMDeployment", "llama", lambda resource: resource["status"]["replicas"] == 2)


async def meet_what_is_not_ours(cluster: Cluster) -> None:
    pod = {"metadata": {"labels": {"app": "taken"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "taken"}}, "template": pod}
    taken = {"name": "taken", "namespace": cluster.namespace}
    await cluster.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": taken, "spec": spec})
    service = {"selector": {"app": "taken"}, "ports": [{"name": "http", "port": 8000}]}
    await cluster.create({"apiVersion": "v1", "kind": "Service", "metadata": taken, "spec": service})
    await cluster.create(llama(cluster.namespace, "taken"))
    await cluster.wait_for("VLLMDeployment", "taken", lambda it: "Service taken exists" in str(it.get("status")))
    await cluster.delete("VLLMDeployment", "taken")


async def limit_who_connects(cluster: Cluster) -> None:
    """A NetworkPolicy comes, changes and goes."""
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"networkPolicy": {}}})
    await cluster.wait_for("NetworkPolicy", "llama", bool)
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"networkPolicy": {"ingressFrom": [{"podSelector": {}}]}}})
    await cluster.wait_for("NetworkPolicy", "llama", lambda it: "from" in it["spec"]["ingress"][0])
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"networkPolicy": None}})
    await cluster.wait_until_gone("NetworkPolicy", "llama")


async def scale_by_metrics(cluster: Cluster) -> None:
    """A HorizontalPodAutoscaler and a PodDisruptionBudget come, change and go."""
    [theirs] = (await cluster.request("GET", AUTOSCALERS.format(cluster.namespace)))["items"]
    await cluster.request("DELETE", f"{AUTOSCALERS.format(cluster.namespace)}/{theirs['metadata']['name']}")
    async with serve_metrics(cluster):
        await cluster.patch("VLLMDeployment", "llama", {"spec": {"autoscaling": {"maxReplicas": 3}}})
        await cluster.wait_for("HorizontalPodAutoscaler", "llama", bool)
        await cluster.wait_for("PodDisruptionBudget", "llama", bool)
        await cluster.patch("PodDisruptionBudget", "llama", {"spec": {"maxUnavailable": 2}})
        await cluster.patch("VLLMDeployment", "llama", {"spec": {"autoscaling": {"maxReplicas": 4}}})
        await cluster.wait_for("HorizontalPodAutoscaler", "llama", lambda it: it["spec"]["maxReplicas"] == 4)
        await cluster.wait_for("PodDisruptionBudget", "llama", lambda it: it["spec"]["maxUnavailable"] == 1)
        await cluster.patch("VLLMDeployment", "llama", {"spec": {"autoscaling": None, "replicas": 1}})
        await cluster.wait_until_gone("HorizontalPodAutoscaler", "llama")
        await cluster.wait_until_gone("PodDisruptionBudget", "llama")


def template(name: str, namespace: str) -> Manifest:
    request = {"name": "gpu", "exactly": {"deviceClassName": "other.example.com", "count": 7}}
    metadata = {"name": name, "namespace": namespace}
    content = {"spec": {"devices": {"requests": [request]}}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": content}


async def use_a_claim_of_the_user(cluster: Cluster) -> None:
    metadata = {"name": "mine", "namespace": cluster.namespace}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await cluster.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    await cluster.create(llama(cluster.namespace, "on-mine", cache={"claimName": "mine"}))
    await cluster.wait_for("VLLMDeployment", "on-mine", has("Ready", "True"))


async def pin_a_device(cluster: Cluster) -> None:
    pinned = llama(cluster.namespace, "pinned", accelerator={"allocation": "DRA", "mig": {"uuids": [UUID]}})
    pinned["spec"]["model"]["uri"] = "hf://TinyLlama/TinyLlama-1.1B-Chat-v1.0"
    await cluster.create(pinned)
    deployment = await cluster.wait_for("Deployment", "pinned", bool)
    [ours] = [it["metadata"]["name"] for it in await cluster.list_all("ResourceClaimTemplate") if it["metadata"].get("ownerReferences")]
    assert ours in str(deployment["spec"]["template"])
    # nobody watches templates: it meets this one at its next look
    await cluster.delete("ResourceClaimTemplate", ours)
    await cluster.create(template(ours, cluster.namespace))
    await cluster.patch("VLLMDeployment", "pinned", {"metadata": {"annotations": {"look": "again"}}})
    await cluster.wait_for("VLLMDeployment", "pinned", lambda it: "was not created by the operator" in str(it.get("status")))
    await cluster.delete("ResourceClaimTemplate", ours)
    await cluster.patch("VLLMDeployment", "pinned", {"metadata": {"annotations": {"look": "once more"}}})
    await cluster.wait_for("ResourceClaimTemplate", ours, bool)
    # another request is another template; the old one goes when no ReplicaSet may create Pods with it
    await cluster.patch("VLLMDeployment", "pinned", {"spec": {"replicas": 0, "accelerator": {"mig": {"profile": "3g.40gb"}}}})
    await cluster.wait_until_gone("ResourceClaimTemplate", ours)
    # and without claims there is none
    [ours] = [it["metadata"]["name"] for it in await cluster.list_all("ResourceClaimTemplate")]
    await cluster.patch("VLLMDeployment", "pinned", {"spec": {"accelerator": {"allocation": "DevicePlugin", "mig": {"uuids": None}}}})
    await cluster.wait_until_gone("ResourceClaimTemplate", ours)


async def use_presets(cluster: Cluster) -> None:
    """One of the namespace and one of the cluster."""
    name = cluster.namespace
    spec = {"rollout": {"drainSeconds": 5}}
    for kind, metadata in (("VLLMPreset", {"name": name, "namespace": name}), ("ClusterVLLMPreset", {"name": name})):
        await cluster.create({"apiVersion": labels.API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})
        asking = kind.lower()
        await cluster.create(llama(name, asking, replicas=0, presetRef={"kind": kind, "name": name}))
        await cluster.wait_for("VLLMDeployment", asking, uses_preset(f"{kind} {name}"))
        await cluster.delete("VLLMDeployment", asking)
        await cluster.delete(kind, name)


def uses_preset(name: str) -> Callable[[Manifest], bool]:
    """Whether the plan was made with this preset."""
    return lambda it: f"with {name}" in plan_verdict(it).message


async def take_a_rule_of_the_owner(cluster: Cluster, operator: OperatorProcess) -> None:
    await cluster.create(config_map("rules", cluster.namespace, ATTENTION_RULE))
    await operator.until_says("rules of the ConfigMap in use: 1", within=60)
    await cluster.delete("ConfigMap", "rules")
    await operator.until_says("rules of the ConfigMap in use: 0", within=60)


async def stand_by(cluster: Cluster, tmp_path: Path) -> None:
    """A second operator watches the Lease of the first."""
    async with OperatorProcess(tmp_path / "operator.kubeconfig", cluster.namespace) as second:
        await second.until_says("standing by")
        # the audit log has a watch when it ends, or when its answer begins
        await asyncio.sleep(3)


def another_than(old: Manifest) -> Callable[[Manifest], bool]:
    return lambda seen: seen["metadata"]["uid"] != old["metadata"]["uid"]


async def replace_what_an_earlier_object_left(cluster: Cluster) -> None:
    plane = cluster.environment.control_plane
    left = [(kind, await cluster.get(kind, "pinned")) for kind in ("Deployment", "Service")]
    manifest = await cluster.get("VLLMDeployment", "pinned")
    again = {**manifest, "metadata": {"name": "pinned", "namespace": cluster.namespace}}
    # nobody else collects what belongs to the old one
    plane.stop_component("kube-controller-manager")
    try:
        await cluster.delete("VLLMDeployment", "pinned")
        await cluster.wait_until_gone("VLLMDeployment", "pinned")
        await cluster.create({key: value for key, value in again.items() if key != "status"})
        for kind, old in left:
            await cluster.wait_for(kind, "pinned", another_than(old))
    finally:
        plane.start_component("kube-controller-manager")
