"""Whose a Pod is: known by the labels that select it and by its controller, whatever else is changed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.operators import Bench, controlled_by_deployment, llama
from vllm_operator.kube.client import DEPLOYMENT, POD, SERVICE, VLLM_DEPLOYMENT, Kind
from vllm_operator.pods.view import instance_of, place_of

ENGINE = {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": "llama", "app.kubernetes.io/component": "engine"}


def pod(changed: dict[str, Any] | None = None, *, deployment: str = "llama", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {**controlled_by_deployment(deployment, {**ENGINE, **(changed or {})}), **metadata}}


def controller(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": name, "controller": True, **fields}]}


FOLLOWER = {
    "app.kubernetes.io/component": "follower",
    "leaderworkerset.sigs.k8s.io/group-index": "1",
    "leaderworkerset.sigs.k8s.io/worker-index": "2",
}
PRIMER, CLEANING = ({"app.kubernetes.io/component": component} for component in ("primer", "cleaning"))


@pytest.mark.parametrize(
    ("manifest", "want"),
    [
        pytest.param(pod(), "llama", id="a replica"),
        pytest.param(pod({"app.kubernetes.io/managed-by": "Helm"}), "llama", id="another tool is said to manage it"),
        pytest.param(pod(PRIMER, deployment="llama.primer"), "llama", id="a primer"),
        pytest.param(pod(CLEANING, **controller("Job", "llama-clean-0011aabb")), "llama", id="of a Job"),
        pytest.param(pod(**controller("StatefulSet", "llama")), "llama", id="a leader"),
        pytest.param(pod(FOLLOWER, **controller("StatefulSet", "llama-1")), "llama", id="a follower"),
        pytest.param(pod(FOLLOWER, **controller("StatefulSet", "llama-0")), None, id="a follower of another group"),
        pytest.param(pod(FOLLOWER, **controller("StatefulSet", "llama")), None, id="a follower among the leaders"),
        pytest.param(pod({"app.kubernetes.io/name": "mine"}), None, id="another name"),
        pytest.param(pod({"app.kubernetes.io/component": "server"}), None, id="another component"),
        pytest.param(pod(PRIMER), None, id="a primer of the Deployment of the replicas"),
        pytest.param(pod(ownerReferences=[]), None, id="released by its ReplicaSet"),
        pytest.param(pod(**controller("ReplicaSet", "theirs-abc")), None, id="of somebody else's Deployment"),
        pytest.param(pod(**controller("StatefulSet", "llama-abc")), None, id="of a StatefulSet"),
        pytest.param(pod(**controller("ReplicaSet", "llama-abc", controller=False)), None, id="owned and not controlled"),
        pytest.param(pod(labels=ENGINE), None, id="without its hash"),
        pytest.param({}, None, id="nothing"),
        pytest.param({"metadata": {"labels": [], "ownerReferences": {}}}, None, id="of another shape"),
    ],
)
def test_whose_a_pod_is(manifest: dict[str, Any], want: str | None) -> None:
    assert instance_of(manifest) == want


@pytest.mark.parametrize(
    ("labels", "want"),
    [
        pytest.param(FOLLOWER, (1, 2), id="a follower"),
        pytest.param({}, None, id="no group"),
        pytest.param({**FOLLOWER, "leaderworkerset.sigs.k8s.io/group-index": "x"}, None, id="no number"),
        pytest.param({**FOLLOWER, "leaderworkerset.sigs.k8s.io/group-index": "9" * 99}, None, id="a number that no group has"),
    ],
)
def test_place_in_a_group(labels: dict[str, str], want: tuple[int, int] | None) -> None:
    assert place_of({"metadata": {"labels": labels}}) == want


@given(st.dictionaries(st.sampled_from(["labels", "ownerReferences"]), st.none() | st.text() | st.lists(st.none() | st.integers())))
def test_any_pod_is_judged(metadata: dict[str, Any]) -> None:
    assert instance_of({"metadata": metadata}) is None


async def test_what_runs_with_another_label_today_is_not_rolled_out_by_an_upgrade(bench: Bench) -> None:
    """The label of the template stays the user's, as it was with the versions that lost such Pods from view."""
    bench.cluster.put(llama(podTemplate={"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}}))
    await bench.settle()
    assert bench.deployment()["spec"]["template"]["metadata"]["labels"] == {**ENGINE, "app.kubernetes.io/managed-by": "Helm"}
    bench.add_pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    await bench.settle()
    assert bench.condition("Ready").status == "True"


@pytest.mark.parametrize("kind", [DEPLOYMENT, SERVICE])
@pytest.mark.parametrize("label", ["app.kubernetes.io/managed-by", "app.kubernetes.io/instance"])
async def test_a_child_with_changed_labels_is_put_right_and_not_reported_as_another_owners(bench: Bench, kind: Kind, label: str) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    before = bench.cluster.all(kind)[0]["metadata"]
    bench.cluster.edit(kind, "default", "llama", {"metadata": {"labels": {label: "other"}}})
    await bench.settle()
    [after] = bench.cluster.all(kind)
    assert (after["metadata"]["uid"], after["metadata"]["labels"]) == (before["uid"], before["labels"])
    assert bench.condition("Ready").reason != "ApplyFailed"


async def test_a_child_that_is_labelled_as_anothers_is_not_taken_for_it(bench: Bench) -> None:
    """The Deployment of one object, labelled as if it belonged to the other."""
    for name in ("llama", "other"):
        bench.cluster.put(llama(name))
        await bench.settle(("default", name))
    bench.cluster.edit(DEPLOYMENT, "default", "llama", {"metadata": {"labels": {"app.kubernetes.io/instance": "other"}}})
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "other", {"spec": {"replicas": 2}})
    await bench.settle(("default", "other"))
    found = {item["metadata"]["name"]: item for item in bench.cluster.all(DEPLOYMENT)}
    assert found["llama"]["metadata"]["labels"]["app.kubernetes.io/instance"] == "other"
    await bench.settle()
    found = {item["metadata"]["name"]: item for item in bench.cluster.all(DEPLOYMENT)}
    assert found["llama"]["metadata"]["labels"]["app.kubernetes.io/instance"] == "llama"


async def test_a_pod_of_another_owner_is_never_deleted_nor_counted(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": "theirs", "namespace": "default", "labels": ENGINE | {"app.kubernetes.io/managed-by": "vllm-operator"}}
    bench.cluster.put({"apiVersion": "v1", "kind": POD.kind, "metadata": metadata, "status": ready})
    await bench.settle()
    assert bench.status().ready_replicas == 0
