"""Drift in what is ours is undone; what others set beside it, or own, stays."""

from typing import Any

import pytest

from support.operators import KEY, Bench, content_of, llama
from vllm_operator.api import labels
from vllm_operator.cluster.client import (
    AUTOSCALER,
    CLAIM,
    DEPLOYMENT,
    SERVICE,
    VLLM_DEPLOYMENT,
    Kind,
)


def in_container(change: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": "vllm", **change}]}}}}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param(DEPLOYMENT, in_container({"image": "evil"}), id="image"),
        pytest.param(DEPLOYMENT, {"spec": {"replicas": 7}}, id="replicas"),
        pytest.param(DEPLOYMENT, in_container({"args": ["--evil"]}), id="args"),
        pytest.param(DEPLOYMENT, in_container({"env": [{"name": "HOME", "value": "/evil"}]}), id="value of a variable"),
        pytest.param(DEPLOYMENT, in_container({"env": [{"name": "EVIL", "value": "1"}]}), id="added variable"),
        pytest.param(DEPLOYMENT, in_container({"startupProbe": {"failureThreshold": 1}}), id="probe"),
        pytest.param(DEPLOYMENT, in_container({"resources": {"limits": {"nvidia.com/gpu": "8"}}}), id="limits"),
        pytest.param(DEPLOYMENT, in_container({"command": ["sleep"]}), id="added command"),
        pytest.param(
            DEPLOYMENT, {"spec": {"template": {"spec": {"containers": [{"name": "evil", "image": "evil"}]}}}}, id="added container"
        ),
        pytest.param(DEPLOYMENT, {"spec": {"strategy": {"type": "Evil"}}}, id="strategy"),
        pytest.param(SERVICE, {"spec": {"selector": {"evil": "1"}}}, id="selector of the service"),
        pytest.param(SERVICE, {"spec": {"ports": [{"name": "evil", "port": 1}]}}, id="added port of the service"),
        pytest.param(
            DEPLOYMENT, {"metadata": {"labels": {labels.MANAGED_BY_LABEL: "vllm-operator", labels.NAME_LABEL: "evil"}}}, id="label"
        ),
    ],
)
async def test_drift_in_what_is_ours_is_undone(bench: Bench, kind: Kind, change: dict[str, Any]) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    before = bench.cluster.all(kind)[0]
    bench.cluster.edit(kind, "default", "llama", change)
    assert content_of(bench.cluster.all(kind)[0]) != content_of(before)
    await bench.settle()
    assert content_of(bench.cluster.all(kind)[0]) == content_of(before)


@pytest.mark.parametrize("kind", [DEPLOYMENT, SERVICE, CLAIM])
async def test_a_child_that_was_deleted_comes_back(bench: Bench, kind: Kind) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    names = {item["metadata"]["name"] for item in bench.cluster.all(kind)}
    for name in names:
        bench.cluster.remove(kind, "default", name)
    await bench.settle()
    assert {item["metadata"]["name"] for item in bench.cluster.all(kind)} == names


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"metadata": {"labels": {"team": "a"}}}, id="label"),
        pytest.param({"metadata": {"annotations": {"note": "b"}}}, id="annotation"),
        pytest.param(
            {"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}}, id="rollout restart"
        ),
        pytest.param({"spec": {"paused": True}}, id="paused rollout"),
    ],
)
async def test_what_others_add_beside_ours_stays(bench: Bench, change: dict[str, Any]) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    bench.cluster.edit(DEPLOYMENT, "default", "llama", change)
    before = bench.deployment()
    bench.cluster.writes.clear()
    await bench.settle()
    assert bench.deployment() == before
    assert not [write for write in bench.cluster.writes if write.kind == "Deployment"]


async def test_an_autoscaler_on_the_deployment_keeps_its_replicas_until_it_goes(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    target = {"kind": "Deployment", "name": "llama"}
    metadata = {"name": "hpa", "namespace": "default"}
    bench.cluster.put(
        {"apiVersion": AUTOSCALER.api_version, "kind": AUTOSCALER.kind, "metadata": metadata, "spec": {"scaleTargetRef": target}}
    )
    bench.cluster.edit(DEPLOYMENT, "default", "llama", {"spec": {"replicas": 5}}, manager="kube-controller-manager")
    for entry in bench.cluster._objects[("Deployment", "default", "llama")]["metadata"]["managedFields"]:
        if entry["manager"] == "kube-controller-manager":
            entry["subresource"] = "scale"
    await bench.settle()
    assert bench.deployment()["spec"]["replicas"] == 5
    bench.cluster.remove(AUTOSCALER, "default", "hpa")
    await bench.settle()
    assert bench.deployment()["spec"]["replicas"] == 1


async def test_an_object_of_somebody_else_with_our_name_is_not_taken_over(bench: Bench) -> None:
    metadata = {"name": "llama", "namespace": "default"}
    bench.cluster.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 9, "template": {}}})
    bench.cluster.put(llama())
    await bench.reconciler.reconcile(KEY)
    assert bench.deployment()["spec"] == {"replicas": 9, "template": {}}
    ready = bench.condition("Ready")
    assert ready.reason == "ApplyFailed"
    assert "is not the operator's" in ready.message


async def test_children_of_an_earlier_object_of_the_name_go_first(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    bench.add_pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    await bench.settle()
    assert bench.condition("Ready").status == "True"
    old = bench.deployment()
    bench.cluster.remove(VLLM_DEPLOYMENT, "default", "llama")
    bench.cluster.put(llama())
    result = await bench.reconciler.reconcile(KEY)
    assert (result.name, result.requeue_seconds is not None) == ("waiting", True)
    assert bench.condition("Ready").status == "False", "what still serves is the earlier object's"
    await bench.settle()
    assert bench.deployment()["metadata"]["uid"] != old["metadata"]["uid"]
