"""Autoscalers that the operator creates: the real controller with metrics of a stand-in, and KEDA's schema of a ScaledObject."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.account import ACCOUNT, granted, make_account, remove_account, rules_of
from support.audit import AuditTrail
from support.cluster import Cluster, Simulator
from support.crd import install_crd
from support.metrics_adapter import serve_metrics
from support.operator_process import OperatorProcess, condition, has, llama

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

[SCALED_OBJECT] = yaml.safe_load_all((Path(__file__).parent / "data" / "keda.yaml").read_text("utf-8"))
INTEGRATIONS = {"integrations": {"keda": True}}
WAITING = "vllm:num_requests_waiting"
SHARED = {"volume": {"accessMode": "ReadWriteMany"}}
KEDA: dict[str, Any] = {"prometheusAddress": "http://prometheus.monitoring.svc:9090"}


async def look_again(cluster: Cluster, value: str) -> None:
    """Autoscalers are not watched; a watch event of the object stands for the next resync."""
    await cluster.patch("VLLMDeployment", "llama", {"metadata": {"annotations": {"look": value}}})


async def test_the_real_controller_adds_one_replica_and_waits_until_it_may_serve(
    served: Cluster, sim: Simulator, operator: OperatorProcess, audit: AuditTrail
) -> None:
    await served.create(llama(served.namespace, cache=SHARED, autoscaling={"maxReplicas": 4}))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "NotAutoscaled"))
    told = await served.wait_for("VLLMDeployment", "llama", has("Autoscaled", "False", "MetricsAPIMissing"))
    assert "such as prometheus-adapter" in condition(told, "Autoscaled")["message"]
    assert not await served.exists("HorizontalPodAutoscaler", "llama")

    async with serve_metrics(served) as adapter:
        [pod] = await served.wait_for_pods(selector="app.kubernetes.io/component=engine")
        adapter.values[WAITING] = {pod: 40}
        await sim.script(path="ok", load="hold")  # later replicas go on loading
        await look_again(served, "with metrics")
        created = await served.wait_for("HorizontalPodAutoscaler", "llama", bool)
        # no start was measured
        assert created["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600
        await served.wait_for("VLLMDeployment", "llama", has("Autoscaled", "True", "InEffect"))
        # eight times the target asks for eight replicas; one is added
        await served.wait_for("VLLMDeployment", "llama", lambda it: it["spec"]["replicas"] == 2)
        await served.wait_for("Deployment", "llama", lambda it: it["spec"]["replicas"] == 2)
        limited = await served.wait_for("HorizontalPodAutoscaler", "llama", has("ScalingLimited", "True", "ScaleUpLimit"))
        assert limited["status"]["desiredReplicas"] == 2
        await served.wait_for("PodDisruptionBudget", "llama", bool)

        # drift is put right, and what is no longer asked for goes, without the replicas
        await served.patch("HorizontalPodAutoscaler", "llama", {"spec": {"maxReplicas": 2}})
        await look_again(served, "after the drift")
        await served.wait_for("HorizontalPodAutoscaler", "llama", lambda it: it["spec"]["maxReplicas"] == 4)
        adapter.values[WAITING] = {}
        await served.patch("VLLMDeployment", "llama", {"spec": {"autoscaling": None}})
        await served.wait_until_gone("HorizontalPodAutoscaler", "llama")
        replicas = (await served.get("VLLMDeployment", "llama"))["spec"]["replicas"]
        await served.wait_for("Deployment", "llama", lambda it: it["spec"]["replicas"] == replicas >= 2)

    requests = audit.requests(user=f"system:serviceaccount:{served.namespace}:{ACCOUNT}")
    assert [it for it in requests if it.status in (401, 403)] == []
    used = {(it.group, it.resource, verb) for it in requests for verb in (it.verb, *(["create"] if it.status == 201 else []))}
    kinds = ("horizontalpodautoscalers",)
    assert {right for right in granted(served.namespace) if right[1] in kinds} - used == set()


@pytest.fixture
async def allowed(served: Cluster, tmp_path: Path) -> AsyncIterator[OperatorProcess]:
    """The operator as the chart installs it with the integration."""
    kubeconfig = await make_account(served, tmp_path / "operator.kubeconfig", **INTEGRATIONS)
    async with OperatorProcess(kubeconfig, served.namespace, rules_config_map=rules_of(served.namespace), integrations="keda") as process:
        await process.until_ready(within=60)
        yield process
    await remove_account(served)
    name = SCALED_OBJECT["metadata"]["name"]
    if await served.exists("CustomResourceDefinition", name):
        await served.delete("CustomResourceDefinition", name)
        await served.wait_until_gone("CustomResourceDefinition", name)
    assert "Traceback" not in process.log, process.log


async def test_keda_gets_an_object_that_its_schema_accepts_as_soon_as_it_is_installed(
    served: Cluster, allowed: OperatorProcess, audit: AuditTrail
) -> None:
    await served.create(llama(served.namespace, cache=SHARED, autoscaling={"maxReplicas": 4, "keda": KEDA}))
    told = await served.wait_for("VLLMDeployment", "llama", has("Autoscaled", "False", "KindNotInstalled"))
    assert "kubectl apply --server-side -f https://github.com/kedacore/keda" in condition(told, "Autoscaled")["message"]
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "False", "NotAutoscaled"))

    await install_crd(served, SCALED_OBJECT)
    await look_again(served, "after the installation")
    await served.wait_for("VLLMDeployment", "llama", has("Autoscaled", "True", "InEffect"))
    created = await served.wait_for("ScaledObject", "llama", bool)
    [trigger] = created["spec"]["triggers"]
    assert trigger["metadata"]["query"] == f'sum(vllm:num_requests_waiting{{namespace="{served.namespace}",name="llama"}})'
    assert created["spec"]["scaleTargetRef"]["kind"] == "VLLMDeployment"

    to_zero = {"minReplicas": 0, "metric": "KVCacheUsage", "keda": {"activationQuery": "sum(gateway_waiting)"}}
    await served.patch("VLLMDeployment", "llama", {"spec": {"autoscaling": to_zero}})
    changed = await served.wait_for("ScaledObject", "llama", lambda it: it["spec"]["minReplicaCount"] == 0)
    assert [it["name"] for it in changed["spec"]["triggers"]] == ["engines", "running", "activation"]
    await served.patch("VLLMDeployment", "llama", {"spec": {"autoscaling": None}})
    await served.wait_until_gone("ScaledObject", "llama")

    requests = audit.requests(user=f"system:serviceaccount:{served.namespace}:{ACCOUNT}")
    assert [it for it in requests if it.status in (401, 403)] == []
    added = granted(served.namespace, **INTEGRATIONS) - granted(served.namespace)
    used = {(it.group, it.resource, verb) for it in requests for verb in (it.verb, *(["create"] if it.status == 201 else []))}
    assert added - used == set()
