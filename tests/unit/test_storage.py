"""Where caches and weights are kept: what is planned for what the spec says, and what it comes to on a cluster."""

from dataclasses import dataclass
from typing import Any

import pytest

from support.fleet import Fleet
from support.gpus import real_node
from support.operators import Bench
from support.operators import llama as resource
from support.plans import deployment, made
from vllm_operator.api.plan import Plan, PlannedWeights
from vllm_operator.caches.address import reported_cache_claim
from vllm_operator.caches.claims import plan_weights
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, EVENT, POD, VLLM_DEPLOYMENT, Forbidden
from vllm_operator.status.report import REAPPLY_LIMIT_SECONDS

GIB = 2**30
WITH_CACHES = PlannedWeights(place="WithCaches")


def own(size: str | None = None, weight_bytes: int | None = 15 * GIB) -> PlannedWeights:
    return PlannedWeights(place="OwnVolume", volume_size=size, size_bytes=weight_bytes)


@dataclass(frozen=True)
class Case:
    spec: dict[str, Any]
    want: PlannedWeights
    weight_bytes: int | None = 15 * GIB
    uri: str = "hf://meta-llama/Llama-3.1-8B-Instruct"


VOLUME = {"name": "cache", "hostPath": {"path": "/mnt"}}
CASES = {
    "nothing said: a claim as large as the weights need": Case({}, own("30Gi")),
    "a large model": Case({}, own("780Gi", 641 * GIB), weight_bytes=641 * GIB),
    "an unknown model": Case({}, own("100Gi", None), weight_bytes=None),
    "the caches on a claim of a class": Case({"cache": {"volume": {"storageClassName": "fast"}}}, own("30Gi")),
    "a size given": Case({"weights": {"volume": {"size": "1Ti"}}}, own("1Ti")),
    "a claim named": Case({"weights": {"claimName": "all-weights"}}, own()),
    "a directory of the node": Case({"weights": {"hostPath": "/mnt/nvme"}}, own()),
    "a claim for each replica, for all": Case({"cache": {"storage": "ClaimPerReplica"}}, own("30Gi")),
    "the caches on the user's claim": Case({"cache": {"claimName": "shared"}}, WITH_CACHES),
    "the same, but weights apart": Case({"cache": {"claimName": "shared"}, "weights": {}}, own("30Gi")),
    "the caches on the node": Case({"cache": {"hostPath": "/mnt"}}, WITH_CACHES),
    "the caches on the Pod": Case({"cache": {"storage": "EmptyDir"}}, WITH_CACHES),
    "the caches where podTemplate says": Case({"podTemplate": {"spec": {"volumes": [VOLUME]}}}, WITH_CACHES),
    "a model on a claim": Case({}, WITH_CACHES, uri="pvc://models/llama"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_where_weights_are_kept(case: Case) -> None:
    assert plan_weights(deployment(case.uri, **case.spec), case.weight_bytes) == case.want


def plan_of(**spec: Any) -> Plan:
    return made(deployment("hf://nobody/knows-it", **spec), real_node("h100-sxm"))


def test_a_guessed_size_is_reported() -> None:
    assert any("requests 100Gi for their PVC. Set spec.model.facts.weightSize" in note for note in plan_of().notes)
    assert not any("for their PVC" in note for note in plan_of(weights={"volume": {"size": "300Gi"}}).notes)


def sizes(bench: Bench) -> dict[str, str]:
    return {claim["metadata"]["name"]: claim["spec"]["resources"]["requests"]["storage"] for claim in bench.cluster.all(CLAIM)}


async def test_caches_and_weights_have_a_claim_each(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(cache={"onDelete": "Delete"})
    assert sizes(bench) == {"llama-cache": "20Gi", "llama-weights": "30Gi"}
    owners = {claim["metadata"]["name"]: bool(claim["metadata"].get("ownerReferences")) for claim in bench.cluster.all(CLAIM)}
    assert owners == {"llama-cache": True, "llama-weights": False}, "each goes, or stays, as its own part of the spec says"
    assert reported_cache_claim(bench.resource()) == "llama-cache"


async def test_the_claim_of_the_weights_grows_with_the_model_and_does_not_complain_of_a_smaller_one(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    await fleet.change(model={"uri": "hf://nobody/knows-it", "facts": {"weightSize": "50Gi"}})
    assert sizes(bench)["llama-weights"] == "70Gi"
    await fleet.change(model={"uri": "hf://nobody/knows-it", "facts": {"weightSize": "5Gi"}})
    assert sizes(bench)["llama-weights"] == "70Gi"
    assert "cannot shrink" not in bench.cache_verdict().message
    await fleet.change(weights={"volume": {"size": "10Gi"}})
    assert "llama-weights has 70Gi and cannot shrink" in bench.cache_verdict().message


async def test_a_claim_of_the_weights_that_is_missing_is_named(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(weights={"claimName": "all-weights"})
    warm = bench.cache_verdict()
    assert (warm.status, warm.reason) == ("False", "ClaimMissing")
    assert "all-weights (spec.weights.claimName) does not exist" in warm.message


PLACES = {
    "on the node": ({"cache": {"hostPath": "/mnt/nvme"}}, ()),
    "a claim of the Pod": ({"cache": {"storage": "ClaimPerReplica"}}, ("the Pod's own PVC", "A new Pod compiles again")),
    "nothing kept": ({"cache": {"storage": "EmptyDir"}}, ("an emptyDir of the Pod", "A new Pod compiles again")),
}


@pytest.mark.parametrize(("spec", "words"), PLACES.values(), ids=PLACES)
async def test_caches_on_no_shared_claim_are_spoken_of(bench: Bench, fleet: Fleet, spec: dict[str, Any], words: tuple[str, ...]) -> None:
    await fleet.serve(replicas=3, **spec)
    assert bench.cluster.all(CLAIM) == []
    assert fleet.replicas() == 3, "nothing is shared, so nobody waits"
    said = bench.cache_verdict().message
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param({"replicas": 9}, ("no node has GPUs for more than 8 replicas", "The other replica does not start."), id="too many"),
        pytest.param({"replicas": 8}, ("so all 8 replicas must run on the same one",), id="just enough"),
        pytest.param(
            {"replicas": 2, "cache": {"volume": {"accessMode": "ReadWriteMany"}}, "weights": {}},
            ("PVC llama-weights can be mounted on one node only", "set spec.weights.storage to HostPath or ClaimPerReplica"),
            id="only the weights",
        ),
    ],
)
async def test_replicas_that_one_claim_binds_to_one_node(bench: Bench, fleet: Fleet, spec: dict[str, Any], words: tuple[str, ...]) -> None:
    if "weights" in spec:
        bench.cluster.put(
            {
                "apiVersion": "v1",
                "kind": CLAIM.kind,
                "metadata": {"name": "llama-weights", "namespace": "default"},
                "spec": {"accessModes": ["ReadWriteOnce"]},
            }
        )
        spec = {**spec, "weights": {"claimName": "llama-weights"}}
    await fleet.serve(**spec)
    said = bench.cache_verdict().message
    assert bool(said) == bool(words), "only a directory on a node may be warm for the next Pod"
    assert all(word in said for word in words), said


# a model that is larger than the volume of its weights

QWEN_8B, QWEN_32B = {"uri": "hf://Qwen/Qwen3-8B"}, {"uri": "hf://Qwen/Qwen3-32B"}
TOO_SMALL = "PersistentVolumeClaim llama-weights has 30 GiB, and the weights of Qwen/Qwen3-32B take 59.6 GiB."


def resized(fleet: Fleet, size: str, *conditions: dict[str, str]) -> None:
    """What the storage driver says about the volume of the weights."""
    status = {"phase": "Bound", "capacity": {"storage": size}, "conditions": list(conditions)}
    fleet.bench.cluster.edit(CLAIM, "default", "llama-weights", {"status": status})


async def serve_a_small_model(fleet: Fleet, **spec: Any) -> dict[str, Any]:
    await fleet.serve(model=QWEN_8B, **spec)
    resized(fleet, "30Gi")
    fleet.ready(fleet.start())
    await fleet.settle()
    return dict((fleet.deployment() or {})["spec"])


async def test_a_volume_grows_before_a_larger_model_is_downloaded(bench: Bench, fleet: Fleet) -> None:
    before = await serve_a_small_model(fleet)
    await fleet.change(model=QWEN_32B)
    assert fleet.claim("llama-weights")["spec"]["resources"]["requests"]["storage"] == "90Gi"
    assert (fleet.deployment() or {})["spec"] == before
    ready = bench.condition("Ready")
    assert (ready.status, ready.reason) == ("False", "ClaimTooSmall")
    assert ready.message == (
        f"{TOO_SMALL} It is growing to 90 GiB, and new Pods wait for that (`kubectl describe pvc llama-weights -n default`). 1 replica "
        "serves the previous spec."
    )
    await fleet.change(replicas=2)
    assert fleet.replicas() == 2, "load does not wait"
    resized(fleet, "90Gi")
    await fleet.settle()
    assert (fleet.deployment() or {})["spec"]["template"] != before["template"]


async def test_a_file_system_that_grows_when_a_pod_mounts_it_is_not_waited_for(fleet: Fleet) -> None:
    before = await serve_a_small_model(fleet)
    await fleet.change(model=QWEN_32B)
    resized(fleet, "30Gi", {"type": "FileSystemResizePending", "status": "True"})
    await fleet.settle()
    assert (fleet.deployment() or {})["spec"]["template"] != before["template"]


async def test_a_volume_that_is_refused_to_grow_is_told_with_the_way_out(bench: Bench, fleet: Fleet) -> None:
    before = await serve_a_small_model(fleet)
    bench.cluster.fail("apply", CLAIM, Forbidden("only dynamically provisioned pvc can be resized"), times=99)
    await fleet.change(model=QWEN_32B)
    assert (fleet.deployment() or {})["spec"] == before
    said = bench.cache_verdict().message
    assert said.startswith(f"{TOO_SMALL} 1 replica serves the previous spec: to stay with it, undo the change. Set allowVolumeExpansion on")
    assert "A new PVC stops serving and loses the old weights: scale to 0, delete the PVC, scale up." in said
    assert bench.condition("Ready").status == "False"
    assert [event["reason"] for event in bench.cluster.all(EVENT) if "59.6 GiB" in event["message"]] == ["ClaimTooSmall"]
    assert (await bench.settle()).requeue_seconds == REAPPLY_LIMIT_SECONDS, "the class may allow it soon"
    bench.cluster.heal()
    await fleet.settle()
    assert "It is growing to 90 GiB" in bench.cache_verdict().message


async def test_a_volume_that_was_kept_from_a_smaller_model_grows_for_the_next_object(bench: Bench, fleet: Fleet) -> None:
    await serve_a_small_model(fleet)
    for kind in (VLLM_DEPLOYMENT, DEPLOYMENT, POD):
        for item in bench.cluster.all(kind):
            bench.cluster.remove(kind, "default", item["metadata"]["name"])
    bench.cluster.put(resource(model=QWEN_32B))
    await fleet.settle()
    assert fleet.deployment() is None
    assert bench.condition("Ready").reason == "ClaimTooSmall"
    resized(fleet, "90Gi")
    await fleet.settle()
    assert fleet.deployment() is not None


@pytest.mark.parametrize(
    ("spec", "annotations", "starts"),
    [
        pytest.param({"weights": {"volume": {"size": "40Gi"}}}, {}, False, id="a size that the user gave"),
        pytest.param(
            {"weights": {"volume": {"size": "40Gi"}}}, {"vllm-operator.dev/allow-unsupported": "true"}, True, id="the user insists"
        ),
        pytest.param(
            {"weights": {"volume": {"size": "40Gi"}}, "model": {**QWEN_32B, "facts": {"weightSize": "35Gi"}}},
            {},
            True,
            id="the user knows the size of the weights",
        ),
        pytest.param({"weights": {"volume": {"size": "70Gi"}}}, {}, True, id="large enough"),
        pytest.param({"weights": {"claimName": "mine"}}, {}, True, id="a claim of the user, who knows what it holds"),
        pytest.param({"model": {"uri": "hf://nobody/knows"}}, {}, True, id="an unknown model"),
    ],
)
async def test_when_the_size_of_a_volume_keeps_a_start_back(
    bench: Bench, fleet: Fleet, spec: dict[str, Any], annotations: dict[str, str], starts: bool
) -> None:
    made = resource(**{"model": QWEN_32B, **spec})
    made["metadata"]["annotations"] = annotations
    bench.cluster.put(made)
    await fleet.settle()
    assert (fleet.deployment() is not None) == starts
    assert ("Raise spec.weights.volume.size" in bench.cache_verdict().message) != starts


async def test_a_volume_that_no_pod_has_bound_can_be_deleted(bench: Bench, fleet: Fleet) -> None:
    bench.cluster.put(resource(model=QWEN_8B))
    await fleet.settle()
    await fleet.change(model=QWEN_32B)
    assert bench.cache_verdict().message == (
        f"{TOO_SMALL} It is not bound, so it is empty: delete it (`kubectl delete pvc llama-weights -n default`), and the operator "
        "creates a larger one."
    )
