"""Drift in what is ours is undone; what others set beside it, or own, stays."""

from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.operators import KEY, Bench, content_of, llama
from vllm_operator.api import labels
from vllm_operator.caches.claims import is_claim_of_operator
from vllm_operator.controller.apply import Applier
from vllm_operator.kube.client import (
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


async def test_an_object_of_another_owner_with_our_name_is_not_taken_over(bench: Bench) -> None:
    metadata = {"name": "llama", "namespace": "default"}
    bench.cluster.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 9, "template": {}}})
    bench.cluster.put(llama())
    await bench.reconciler.reconcile(KEY)
    assert bench.deployment()["spec"] == {"replicas": 9, "template": {}}
    ready = bench.condition("Ready")
    assert ready.reason == "ApplyFailed"
    assert "was not created by the operator" in ready.message


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


def users_claim(name: str = "llama-cache", **metadata: Any) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}}
    return {"apiVersion": "v1", "kind": CLAIM.kind, "metadata": {"name": name, "namespace": "default", **metadata}, "spec": spec}


@pytest.mark.parametrize("labelled", [False, True], ids=["unlabelled", "with copied labels"])
async def test_replicas_that_already_use_a_claim_of_a_user_go_on(bench: Bench, labelled: bool) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    ours = next(claim for claim in bench.cluster.all(CLAIM) if claim["metadata"]["name"] == "llama-cache")
    bench.cluster.remove(CLAIM, "default", "llama-cache")
    theirs = bench.cluster.put(users_claim(labels=ours["metadata"]["labels"] if labelled else {}))
    bench.add_pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    bench.restart()
    await bench.settle()
    changed = llama(replicas=2, cache={"onDelete": "Delete"})["spec"]
    bench.cluster.put({**bench.resource(), "spec": changed})
    await bench.settle()
    [now] = [claim for claim in bench.cluster.all(CLAIM) if claim["metadata"]["name"] == "llama-cache"]
    assert now == theirs
    assert bench.deployment()["spec"]["replicas"] == 2
    warm = bench.cache_verdict()
    assert (warm.reason, "The Pods keep using it." in warm.message) == ("ClaimNameTaken", True)


async def test_replicas_that_would_move_to_a_claim_of_a_user_stay_where_they_are(bench: Bench) -> None:
    bench.cluster.put(users_claim("mine"))
    bench.cluster.put(users_claim())
    bench.cluster.put(llama(cache={"claimName": "mine"}))
    await bench.settle()
    bench.add_pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    before = bench.deployment()["spec"]["template"]
    bench.cluster.put({**bench.resource(), "spec": llama(replicas=1)["spec"]})
    await bench.settle()
    assert bench.deployment()["spec"]["template"] == before
    assert (bench.condition("Ready").reason, bench.condition("Ready").reason) == ("ClaimNameTaken", "ClaimNameTaken")
    bench.cluster.remove(CLAIM, "default", "llama-cache")
    await bench.settle()
    assert {it["metadata"]["name"] for it in bench.cluster.all(DEPLOYMENT)} == {"llama", "llama.primer"}, "the rollout begins"


async def test_a_claim_that_a_user_creates_between_the_look_and_the_write_is_not_taken_over(bench: Bench) -> None:
    """The API server has the last word: an apply that is to create a claim fails on one that exists."""
    bench.cluster.put(users_claim())
    applier = Applier(bench.cluster)
    owner = {"metadata": {"name": "llama", "uid": "1"}}
    applied = await applier.apply(owner, [users_claim(labels={labels.MANAGED_BY_LABEL: labels.MANAGED_BY})], [])
    assert [str(refusal) for refusal in applied.refusals] == [
        "PersistentVolumeClaim llama-cache exists and was not created by the operator. Name it in spec, create the "
        "VLLMDeployment with another name, or delete it"
    ]
    assert "labels" not in bench.cluster.all(CLAIM)[0]["metadata"]


async def test_a_claim_of_an_earlier_object_is_never_deleted_by_the_operator(bench: Bench) -> None:
    bench.cluster.put(llama(cache={"onDelete": "Delete"}))
    await bench.settle()
    bench.cluster.remove(VLLM_DEPLOYMENT, "default", "llama")
    bench.cluster.put(llama(cache={"onDelete": "Delete"}))
    bench.cluster.writes.clear()
    assert (await bench.reconciler.reconcile(KEY)).name == "waiting"
    assert [write for write in bench.cluster.writes if write.kind == CLAIM.kind] == []


async def test_no_pod_starts_with_a_claim_of_an_earlier_object(bench: Bench) -> None:
    """It would keep the claim, whose deletion the garbage collector is about to request, for ever."""
    bench.cluster.put(llama(cache={"onDelete": "Delete"}))
    await bench.settle()
    for kind in (VLLM_DEPLOYMENT, DEPLOYMENT):
        bench.cluster.remove(kind, "default", "llama")
    bench.cluster.put(llama(cache={"onDelete": "Delete"}))
    assert (await bench.reconciler.reconcile(KEY)).name == "waiting"
    assert bench.cluster.all(DEPLOYMENT) == []
    bench.cluster.remove(CLAIM, "default", "llama-cache")
    await bench.settle()
    assert len(bench.cluster.all(DEPLOYMENT)) == 1


CREATED_BY = {
    "the operator": ([("vllm-operator", "Apply", True)], True),
    "the operator, and bound since": ([("vllm-operator", "Apply", True), ("kube-controller-manager", "Update", False)], True),
    "a user": ([("kubectl-create", "Update", True)], False),
    "a user, and the operator has applied it since": ([("kubectl-create", "Update", True), ("vllm-operator", "Apply", True)], False),
    "a tool that restored a backup with all labels": ([("velero-server", "Update", True)], False),
    "somebody who has applied the same since": ([("vllm-operator", "Apply", True), ("argocd", "Apply", True)], False),
    "nobody knows": ([], False),
}


@pytest.mark.parametrize(("entries", "want"), CREATED_BY.values(), ids=CREATED_BY)
def test_who_created_a_claim(entries: list[tuple[str, str, bool]], want: bool) -> None:
    fields: dict[bool, Any] = {True: {"f:spec": {"f:accessModes": {}}}, False: {"f:spec": {"f:volumeName": {}}}}
    managed = [{"manager": manager, "operation": operation, "fieldsV1": fields[modes]} for manager, operation, modes in entries]
    assert is_claim_of_operator(users_claim(managedFields=managed)) is want


class Forgetful(FakeCluster):
    """An API server that does not know a field of Services: an apply changes nothing of it, however often."""

    async def apply(self, manifest: dict[str, Any], *, manager: str, force: bool = True) -> dict[str, Any]:
        known = {name: value for name, value in manifest["spec"].items() if name != "unknown"}
        return dict(await super().apply({**manifest, "spec": known}, manager=manager, force=force))


async def test_what_is_remembered_of_children_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_operator.controller.apply.MAX_CHECKED", 8)
    applier = Applier(Forgetful())
    for number in range(50):
        metadata = {"name": f"llama-{number}", "namespace": "default", "labels": {}}
        desired = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"unknown": 1, "type": "ClusterIP"}}
        await applier.apply({"metadata": {"name": "llama", "uid": "1"}}, [desired], [])
    memories = [value for value in vars(applier).values() if hasattr(value, "__len__")]
    assert memories
    assert max(map(len, memories)) <= 8
