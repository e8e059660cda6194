"""What people may do, and what their namespaces demand."""

from pathlib import Path

import pytest
import yaml

from support.cluster import Cluster
from support.engines import eventually, model, the_engine, until_ready
from support.kubectl import Kubectl, KubectlError
from support.operator_process import condition, has, problem

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

ROLES = "rbac.authorization.k8s.io"


async def person(cluster: Cluster, folder: Path, role: str) -> Kubectl:
    """kubectl of somebody who has one of Kubernetes' own roles in the test's namespace, and nothing else."""
    kubeconfig = await cluster.act_as(role, folder / f"{role}.kubeconfig")
    subjects = [{"kind": "ServiceAccount", "name": role, "namespace": cluster.namespace}]
    reference = {"apiGroup": ROLES, "kind": "ClusterRole", "name": role}
    binding = {"apiVersion": f"{ROLES}/v1", "kind": "RoleBinding", "metadata": {"name": role}, "roleRef": reference, "subjects": subjects}
    await cluster.create(binding)
    kubectl = Kubectl(kubeconfig, cluster.namespace)

    async def may_look() -> bool:
        try:
            return await kubectl.run("auth", "can-i", "get", "vllmdeployments") == "yes\n"
        except KubectlError:
            return False

    await eventually(may_look, within=30)
    return kubectl


@pytest.mark.parametrize("role", ["admin", "edit"])
async def test_who_may_edit_a_namespace_creates_scales_describes_and_deletes(cluster: Cluster, tmp_path: Path, role: str) -> None:
    kubectl = await person(cluster, tmp_path, role)
    await kubectl.run("create", "-f", "-", stdin=yaml.safe_dump(model(cluster, speed="200")))
    await kubectl.run("wait", "vllm/llama", "--for=condition=Ready", "--timeout=120s")
    assert "Serving" in await kubectl.run("get", "vllm")
    await kubectl.run("scale", "vllm/llama", "--replicas=0")
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True", "ScaledToZero"), within=60)
    page = await kubectl.run("describe", "vllm", "llama")
    assert all(word in page for word in ("ScaledToZero", "Plan:", "Events:", "Started"))
    await kubectl.run("delete", "vllm", "llama")
    assert await kubectl.run("get", "vllm", "--output=name") == ""


async def test_who_may_only_view_a_namespace_sees_and_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.create(model(cluster, spec={"replicas": 0}))
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True", "ScaledToZero"), within=60)
    kubectl = await person(cluster, tmp_path, "view")
    assert "ScaledToZero" in await kubectl.run("describe", "vllm", "llama")
    for attempt in (["scale", "vllm/llama", "--replicas=1"], ["delete", "vllm", "llama"], ["label", "vllm", "llama", "a=b"]):
        with pytest.raises(KubectlError, match="forbidden"):
            await kubectl.run(*attempt)


async def test_in_a_restricted_namespace_it_says_which_setting_the_engine_needs(cluster: Cluster) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await cluster.patch("Namespace", cluster.namespace, {"metadata": {"labels": labels}})
    await cluster.create(model(cluster, speed="200"))
    told = await cluster.wait_for(
        "VLLMDeployment", "llama", lambda r: "runAsNonRoot" in condition(r, "Ready").get("message", ""), within=60
    )
    assert "spec.podTemplate.spec.securityContext" in problem(told)
    # all else is as it has to be
    assert "allowPrivilegeEscalation" not in problem(told)
    # any user will do, also one that the image does not know
    settings = {"spec": {"podTemplate": {"spec": {"securityContext": {"runAsNonRoot": True, "runAsUser": 1_000_680_000}}}}}
    await cluster.patch("VLLMDeployment", "llama", settings)
    await until_ready(cluster)
    assert (await the_engine(cluster))["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
