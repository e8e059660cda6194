"""Bad input and missing things on a real API server: each ends in words that help, none in a traceback or a lost update."""

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster import Cluster, Manifest, Simulator, the_pod
from support.crd import CRD, install_crd
from support.operator_process import OperatorProcess, condition, has, llama, problem
from support.permissions import OPTIONAL
from support.verdicts import cache_verdict, has_cache, has_plan, plan_verdict
from testenv import Environment
from vllm_operator.controller.preconditions import REQUIRED

pytestmark = pytest.mark.cluster


# the operator's surroundings


async def test_without_a_kubeconfig_it_says_so_and_ends(tmp_path: Path) -> None:
    async with OperatorProcess(tmp_path / "nothing") as operator:
        assert await operator.ended() == 2
    assert "There is no kubeconfig" in operator.log
    assert "Set KUBECONFIG" in operator.log
    assert "Traceback" not in operator.log


@pytest.mark.parametrize("content", ["just text", "[1, 2]", "clusters: 5", "apiVersion: v1\nkind: Config\n", "a: [unclosed"])
async def test_with_a_kubeconfig_that_is_none_it_says_so_and_ends(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    async with OperatorProcess(path) as operator:
        assert await operator.ended() == 2
    assert f"The kubeconfig {path} cannot be used" in operator.log
    assert "Traceback" not in operator.log


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("workers", "many", "VLLM_OPERATOR_WORKERS is 'many'; it must be a valid integer"),
        ("log_format", "xml", "it must be 'text' or 'json'"),
        ("worker", "8", "VLLM_OPERATOR_WORKER is not a setting"),
    ],
)
async def test_with_a_setting_that_cannot_be_used_it_says_so_and_ends(tmp_path: Path, setting: str, value: str, words: str) -> None:
    async with OperatorProcess(tmp_path / "nothing", **{setting: value}) as operator:
        assert await operator.ended() == 2
    assert words in operator.log


async def test_it_starts_without_the_api_server_and_serves_when_it_is_there(
    environment: Environment, served: Cluster, tmp_path: Path
) -> None:
    kubeconfig = yaml.safe_load(served.kubeconfig.read_text())
    there = kubeconfig["clusters"][0]["cluster"]["server"]
    kubeconfig["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    async with OperatorProcess(path, served.namespace) as operator:
        await operator.until_says("https://127.0.0.1:1 cannot be reached")
        assert (await operator.fetch("/healthz"))[0] == 200
        status, text = await operator.fetch("/readyz")
        assert status == 503
        assert "The API server https://127.0.0.1:1 cannot be reached" in text
        assert await operator.stop() == 0
        assert "Traceback" not in operator.log
    assert there != "https://127.0.0.1:1"


async def test_an_outage_of_the_api_server_is_survived(environment: Environment, served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    writes = await operator.writes()
    environment.control_plane.stop_component("kube-apiserver", kill=True)
    try:
        await asyncio.sleep(1)
    finally:
        environment.control_plane.start_component("kube-apiserver")
    await served.create(llama(served.namespace, "second"))
    await served.wait_for("VLLMDeployment", "second", has_plan(), within=30)
    assert (await served.get("VLLMDeployment", "llama"))["status"]["readyReplicas"] == 1
    assert await operator.writes() > writes
    assert "Traceback" not in operator.log


async def test_it_starts_without_the_crd_and_serves_when_it_is_there(served: Cluster) -> None:
    await served.delete("CustomResourceDefinition", CRD["metadata"]["name"])
    await served.wait_until_gone("CustomResourceDefinition", CRD["metadata"]["name"])
    async with OperatorProcess(served.kubeconfig, served.namespace) as operator:
        await operator.until_says("kubectl apply -f crds/")
        status, text = await operator.fetch("/readyz")
        assert status == 503
        assert "The CRD vllmdeployments.vllm-operator.dev does not exist" in text
        await install_crd(served)
        await operator.until_ready()
        await served.create(llama(served.namespace))
        await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
        assert (await operator.fetch("/readyz"))[0] == 200
        assert "Traceback" not in operator.log


async def limited(cluster: Cluster, tmp_path: Path, rules: list[Manifest]) -> Path:
    """A kubeconfig for a service account that may do just this."""
    name = f"limited-{cluster.namespace}"
    await cluster.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator", "namespace": cluster.namespace}})
    await cluster.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": cluster.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}}
    await cluster.create({**binding, "subjects": [subject], "roleRef": role})
    path = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/operator/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = (await cluster.request("POST", path, body=request))["status"]["token"]
    kubeconfig = yaml.safe_load(cluster.kubeconfig.read_text())
    kubeconfig["users"][0]["user"] = {"token": token}
    target = tmp_path / "kubeconfig"
    target.write_text(yaml.safe_dump(kubeconfig))
    return target


def rules(*, without: tuple[str, str] = ("", "")) -> list[Manifest]:
    """What the operator says it needs and its Lease, which is what the chart grants, without one verb on one resource."""
    wanted: dict[tuple[str, str], list[str]] = {}
    for permission in (*REQUIRED, *OPTIONAL):
        resource = permission.kind.plural + (f"/{permission.subresource}" if permission.subresource else "")
        if (resource, permission.verb) != without:
            wanted.setdefault((permission.kind.group, resource), []).append(permission.verb)
    wanted["coordination.k8s.io", "leases"] = ["get", "watch", "create", "patch"]  # in the operator's own namespace
    return [{"apiGroups": [group], "resources": [resource], "verbs": verbs} for (group, resource), verbs in wanted.items()]


async def test_with_exactly_the_permissions_of_the_chart_it_serves(served: Cluster, tmp_path: Path) -> None:
    async with OperatorProcess(await limited(served, tmp_path, rules()), served.namespace) as operator:
        await operator.until_ready()
        await served.create(llama(served.namespace))
        await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
        assert (await operator.fetch("/readyz"))[0] == 200
        assert "forbidden" not in operator.log
        assert "Traceback" not in operator.log


@pytest.mark.parametrize(
    ("without", "words", "type", "reason"),
    [
        (("nodes", "list"), "may not list nodes", "Ready", "PermissionMissing"),
        (("services", "patch"), "may not patch services", "Ready", "ApplyFailed"),
        (("pods/log", "get"), "may not get pods/log", "Ready", "Serving"),
        (("pods", "watch"), "may not watch pods", "Ready", "Serving"),
        (("events", "create"), "may not create events", "Ready", "Serving"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
async def test_without_a_permission_it_names_it_and_does_the_rest(
    served: Cluster, tmp_path: Path, without: tuple[str, str], words: str, type: str, reason: str
) -> None:
    kubeconfig = await limited(served, tmp_path, rules(without=without))
    async with OperatorProcess(kubeconfig, served.namespace, resync_seconds="2") as operator:
        await operator.until_says(words)
        status, text = await operator.fetch("/readyz")
        assert status == 503
        assert words in text
        await served.create(llama(served.namespace))
        seen = await served.wait_for("VLLMDeployment", "llama", lambda r: condition(r, type).get("reason") == reason)
        assert seen["status"]["observedGeneration"] == 1
        assert "Traceback" not in operator.log


# what it reads


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.compute.major": "ninety", "nvidia.com/gpu.product": "", "nvidia.com/gpu.memory": "5.5.5"},
        {"nvidia.com/gpu.compute.major": "9" * 60, "nvidia.com/gpu.memory": "9" * 60, "nvidia.com/gpu.count": "x"},
        {"nvidia.com/gpu.product": "SOME-NEW-GPU", "nvidia.com/gpu.compute.major": None, "nvidia.com/mig.strategy": "weird"},
    ],
    ids=["no numbers", "huge numbers", "unknown product"],
)
async def test_malformed_node_labels_end_in_a_condition(
    served: Cluster, operator: OperatorProcess, gpu_nodes: Callable[..., list[str]], labels: dict[str, str | None]
) -> None:
    await served.patch("Node", "gpu-h100-sxm-0", {"metadata": {"labels": labels}})
    await served.create(llama(served.namespace))
    seen = await served.wait_for("VLLMDeployment", "llama", lambda r: plan_verdict(r).reason)
    assert plan_verdict(seen).message
    assert condition(seen, "Ready")["message"]


async def test_binary_and_endless_log_lines_do_no_harm(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace))
    log = sim.log(await the_pod(served))
    log.write(bytes(range(256)) * 40 + b"\n")
    log.write(b"\xff\xfe\x1b[31m\x00" * 1000 + b"\n")
    for _ in range(40):
        log.write(b"x" * 65536)
    log.write(b"\n" + b"\r" * 5000 + b"\n")
    log.write(b"INFO 11-21 12:00:00 [gpu_model_runner.py:3000] Starting to load model meta-llama/Llama-3.1-8B-Instruct...\n")
    await served.wait_for("VLLMDeployment", "llama", lambda r: r.get("status", {}).get("startup", {}).get("stage") == "WeightLoad")
    await sim.change(await the_pod(served), load="0")
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))


async def test_a_claim_that_does_not_bind_is_said_with_its_reason(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, cache={"volume": {"storageClassName": "no-such-class"}}))
    seen = await served.wait_for("VLLMDeployment", "llama", has_cache("StorageClassMissing"))
    assert "no-such-class" in cache_verdict(seen).message
    assert condition(seen, "Ready")["status"] == "False"


async def test_a_named_claim_that_does_not_exist_is_said_and_noticed_when_it_comes(served: Cluster, operator: OperatorProcess) -> None:
    await served.create(llama(served.namespace, cache={"claimName": "mine"}))
    await served.wait_for("VLLMDeployment", "llama", lambda r: cache_verdict(r).reason == "ClaimMissing")
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "mine", "namespace": served.namespace}
    await served.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)


async def test_an_image_that_cannot_be_pulled_is_said(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    await sim.script(path="imagepull", pull="0")
    await served.create(llama(served.namespace))
    seen = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ImagePullFailed"))
    assert "vllm/vllm-openai" in condition(seen, "Ready")["message"]


async def test_what_the_api_server_refuses_is_said_in_its_words(served: Cluster, operator: OperatorProcess) -> None:
    template: dict[str, Any] = {"spec": {"containers": [{"name": "vllm", "ports": [{"containerPort": 99999}]}]}}
    await served.create(llama(served.namespace, podTemplate=template))
    seen = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ApplyFailed"))
    assert "99999" in problem(seen)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"terminationGracePeriodSeconds": "soon"}, "terminationGracePeriodSeconds: expected numeric"),
        ({"containers": [{"name": "vllm", "resources": {"limits": {"memory": "2Gx"}}}]}, "quantities must match"),
    ],
)
async def test_a_slip_in_the_pod_template_is_said_and_repaired(
    served: Cluster, operator: OperatorProcess, spec: dict[str, Any], words: str
) -> None:
    await served.create(llama(served.namespace, podTemplate={"spec": spec}))
    seen = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ApplyFailed"))
    message = problem(seen)
    assert words in message
    assert "The refused field comes from spec.podTemplate. Correct it there." in message
    await served.wait_for_event("llama", "ApplyFailed")
    await served.patch("VLLMDeployment", "llama", {"spec": {"podTemplate": None}})
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))


async def test_a_field_that_the_api_server_does_not_know_is_said_and_repaired(served: Cluster, operator: OperatorProcess) -> None:
    tolerations = [{"key": "a", "effekt": "NoSchedule"}]
    await served.create(llama(served.namespace, podTemplate={"spec": {"tolerations": tolerations}}))
    seen = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ApplyFailed"))
    assert "effekt: field not declared in schema. The refused field comes from spec.podTemplate." in problem(seen)
    await served.wait_for_event("llama", "ApplyFailed")
    await served.patch("VLLMDeployment", "llama", {"spec": {"podTemplate": None}})
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))


async def test_a_quota_that_forbids_the_pod_is_said_with_its_name(served: Cluster, operator: OperatorProcess) -> None:
    quotas = f"/api/v1/namespaces/{served.namespace}/resourcequotas"
    metadata = {"name": "gpus", "namespace": served.namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}
    await served.request("POST", quotas, body=quota)
    await served.create(llama(served.namespace, parallelism={"tensor": 2}))
    seen = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "PodRefused"))
    message = problem(seen)
    assert message.startswith("The Deployment cannot create Pods: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2")
    assert "have the quota raised" in message


async def test_a_deployment_of_another_owner_is_not_taken_over(served: Cluster, operator: OperatorProcess) -> None:
    labels = {"app": "mine"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "mine", "image": "mine:1"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}
    metadata = {"name": "llama", "namespace": served.namespace}
    await served.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    await served.create(llama(served.namespace))
    seen = await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "ApplyFailed"))
    assert "Deployment llama" in problem(seen)
    assert (await served.get("Deployment", "llama"))["spec"]["template"]["spec"]["containers"][0]["image"] == "mine:1"


async def test_a_secret_in_the_log_does_not_reach_the_status(served: Cluster, sim: Simulator, operator: OperatorProcess) -> None:
    secret = "hf_" + base64.b32encode(b"this is a secret token").decode()[:34]
    await sim.script(path="ok", pull="0", load="hold")
    await served.create(llama(served.namespace))
    pod = await the_pod(served)
    log = sim.log(pod)
    log.write(f"RuntimeError: cannot download with token {secret}\n".encode())
    await sim.change(pod, path="crash", crash_after="0", message=f"RuntimeError: cannot download with token {secret}")
    seen = await served.wait_for("VLLMDeployment", "llama", has("Crashed", "True"))
    assert secret not in yaml.safe_dump(seen["status"])
    assert secret not in yaml.safe_dump(await served.events(name="llama"))
    assert secret not in operator.log
