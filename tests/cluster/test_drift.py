"""Drift on a real API server: what is ours is put right, what others own stays. Each change as kubectl users make it."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from support.audit import AuditTrail
from support.cluster import Cluster, Manifest
from support.operator_process import OperatorProcess, has, llama
from support.verdicts import plan_verdict

pytestmark = pytest.mark.cluster

CONTAINER = "/spec/template/spec/containers/0"


def json_patch(op: str, path: str, value: Any = None) -> list[Manifest]:
    return [{"op": op, "path": path} | ({} if op == "remove" else {"value": value})]


DRIFT: dict[str, tuple[str, list[Manifest]]] = {
    "image": ("Deployment", json_patch("replace", f"{CONTAINER}/image", "evil:1")),
    "replicas": ("Deployment", json_patch("replace", "/spec/replicas", 3)),
    "added argument": ("Deployment", json_patch("add", f"{CONTAINER}/args/-", "--evil")),
    "other arguments": ("Deployment", json_patch("replace", f"{CONTAINER}/args", ["--evil"])),
    "value of a variable": ("Deployment", json_patch("replace", f"{CONTAINER}/env/0/value", "evil")),
    "removed variable": ("Deployment", json_patch("remove", f"{CONTAINER}/env/0")),
    "added variable": ("Deployment", json_patch("add", f"{CONTAINER}/env/-", {"name": "EVIL", "value": "1"})),
    "added variable in front": ("Deployment", json_patch("add", f"{CONTAINER}/env/0", {"name": "EVIL", "value": "1"})),
    "startup probe": ("Deployment", json_patch("replace", f"{CONTAINER}/startupProbe/failureThreshold", 1)),
    "removed startup probe": ("Deployment", json_patch("remove", f"{CONTAINER}/startupProbe")),
    "limits": ("Deployment", json_patch("replace", f"{CONTAINER}/resources/limits/nvidia.com~1gpu", "2")),
    "added command": ("Deployment", json_patch("add", f"{CONTAINER}/command", ["sleep"])),
    "added container": ("Deployment", json_patch("add", "/spec/template/spec/containers/-", {"name": "evil", "image": "evil:1"})),
    "removed mount": ("Deployment", json_patch("remove", f"{CONTAINER}/volumeMounts/0")),
    "strategy": ("Deployment", json_patch("replace", "/spec/strategy", {"type": "RollingUpdate"})),
    "selector of the service": ("Service", json_patch("replace", "/spec/selector", {"evil": "1"})),
    "port of the service": ("Service", json_patch("replace", "/spec/ports/0/port", 9999)),
    "added port of the service": ("Service", json_patch("add", "/spec/ports/-", {"name": "evil", "port": 1})),
}


def wished(manifest: Manifest) -> Manifest:
    """What must be as before: the spec, without what the API server counts or fills in on a change."""
    spec = {key: value for key, value in manifest["spec"].items() if key not in ("clusterIP", "clusterIPs")}
    return {"spec": spec, "labels": manifest["metadata"]["labels"]}


def is_as_before(before: Manifest, live: Manifest) -> bool:
    return wished(live) == before


async def test_every_kind_of_drift_is_undone(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    left = []
    for name, (kind, patch) in DRIFT.items():
        before = await served.get(kind, "llama")
        want = wished(before)
        group = "/apis/apps/v1" if kind == "Deployment" else "/api/v1"
        path = f"{group}/namespaces/{served.namespace}/{kind.lower()}s/llama"
        changed = await served.request("PATCH", path, body=patch, content_type="application/json-patch+json")
        assert wished(changed) != want, name
        try:
            await served.wait_for(kind, "llama", partial(is_as_before, want), within=10)
        except AssertionError as error:
            left.append(f"{name}: {error}")
    assert not left, "\n".join(left)


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "llama"), ("Service", "llama"), ("PersistentVolumeClaim", "llama-cache")])
async def test_a_deleted_child_comes_back(served: Cluster, operator: OperatorProcess, kind: str, name: str) -> None:
    await served.create(llama(served.namespace, replicas=0))
    old = await served.wait_for(kind, name, bool)
    await served.delete(kind, name)
    await served.wait_for(kind, name, lambda child: child["metadata"]["uid"] != old["metadata"]["uid"])


async def test_what_others_own_stays(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    annotations = {"kubectl.kubernetes.io/restartedAt": "2026-11-21T12:00:00Z"}
    theirs: Manifest = {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}, "spec": {"paused": True}}
    theirs["spec"]["template"] = {"metadata": {"annotations": annotations}}
    await served.patch("Deployment", "llama", theirs)
    await served.patch("Service", "llama", {"metadata": {"annotations": {"cloud.example.com/class": "internal"}}})
    # a port that comes back shows that it has looked at everything after these changes
    port = json_patch("replace", "/spec/ports/0/port", 9999)
    path = f"/api/v1/namespaces/{served.namespace}/services/llama"
    await served.request("PATCH", path, body=port, content_type="application/json-patch+json")
    await served.wait_for("Service", "llama", lambda service: service["spec"]["ports"][0]["port"] == 8000)
    deployment = await served.get("Deployment", "llama")
    assert deployment["metadata"]["labels"]["team"] == "a"
    assert deployment["metadata"]["annotations"]["note"] == "b"
    assert deployment["spec"]["paused"] is True
    assert deployment["spec"]["template"]["metadata"]["annotations"] == annotations
    assert (await served.get("Service", "llama"))["metadata"]["annotations"]["cloud.example.com/class"] == "internal"


async def test_an_autoscaler_of_the_deployment_keeps_its_replicas(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, cache={"volume": {"accessMode": "ReadWriteMany"}}))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"}
    # without metrics it only keeps within its bounds, and that is enough here
    autoscalers = f"/apis/autoscaling/v2/namespaces/{served.namespace}/horizontalpodautoscalers"
    metadata = {"name": "llama", "namespace": served.namespace}
    spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 3}
    autoscaler = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}
    await served.request("POST", autoscalers, body=autoscaler)
    await served.wait_for("VLLMDeployment", "llama", lambda r: r["status"].get("readyReplicas") == 2, within=40)
    await served.request("DELETE", f"{autoscalers}/llama")
    await served.patch("VLLMDeployment", "llama", {"metadata": {"annotations": {"look": "again"}}})
    await served.wait_for("Deployment", "llama", lambda d: d["spec"]["replicas"] == 1)


class Webhook:
    """Sets a default, a label and another image in Deployments, each time somebody writes one."""

    def __init__(self) -> None:
        self.calls = 0

    async def answer(self, request: web.Request) -> web.Response:
        review = (await request.json())["request"]
        self.calls += 1
        patch = [
            *json_patch("replace", f"{CONTAINER}/image", "mirror.example/vllm:1"),
            *json_patch("add", "/spec/template/spec/priority", 0),
            *json_patch("add", "/metadata/labels/app.kubernetes.io~1name", "relabeled"),
        ]
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()
        response = {"uid": review["uid"], "allowed": True, "patchType": "JSONPatch", "patch": encoded}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


@pytest.fixture
async def webhook(served: Cluster) -> AsyncIterator[Webhook]:
    """A mutating admission webhook for Deployments in the namespace of the test."""
    plane, hook, app = served.environment.control_plane, Webhook(), web.Application()
    app.router.add_post("/", hook.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(plane.authority, plane.authority_key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    bundle = base64.b64encode(plane.authority.read_bytes()).decode()
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": served.namespace},
        "webhooks": [
            {
                "name": "mirror.example.com",
                "clientConfig": {"url": f"https://127.0.0.1:{runner.addresses[0][1]}/", "caBundle": bundle},
                "rules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": served.namespace}},
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
            }
        ],
    }
    await served.request("POST", path, body=configuration)
    try:
        yield hook
    finally:
        await served.request("DELETE", f"{path}/{served.namespace}")
        await runner.cleanup()


async def test_a_webhook_that_changes_deployments_causes_no_loop_and_hides_no_drift(
    served: Cluster, webhook: Webhook, operator: OperatorProcess, audit: AuditTrail
) -> None:
    """Each round ends with drift that the operator must correct, so what it wrote before is on record by then."""
    async with asyncio.timeout(60):  # the API server learns of a webhook a moment later
        while not webhook.calls:
            await served.request("POST", f"/apis/apps/v1/namespaces/{served.namespace}/deployments", body=probe(), params={"dryRun": "All"})
            await asyncio.sleep(0.1)
    await served.create(llama(served.namespace))
    resource = await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    assert "spec.template.spec.containers.vllm.image" in plan_verdict(resource).message
    deployment = await served.get("Deployment", "llama")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "mirror.example/vllm:1"
    for number in (2, 3, 4):
        await served.patch("Deployment", "llama", {"metadata": {"annotations": {"changed": str(number)}}})
        await served.patch("Deployment", "llama", {"spec": {"replicas": number}})
        await served.wait_for("Deployment", "llama", lambda it: it["spec"]["replicas"] == 1)
    written = [write for write in audit.writes(agent="vllm-operator/", namespace=served.namespace) if write.resource == "deployments"]
    assert 3 <= len(written) <= 4, "the Deployment is created once, and corrected three times; the last one may not be on record yet"


def probe() -> Manifest:
    labels = {"app": "probe"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "probe", "image": "probe"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "probe", "labels": labels}, "spec": spec}
