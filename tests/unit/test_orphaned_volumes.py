"""Volumes that the operator created and that no VLLMDeployment uses any more: found, marked, counted, never deleted."""

from typing import Any

import pytest

from support.fleet import Fleet
from support.operators import Bench, llama
from vllm_operator.api.labels import UNUSED_ANNOTATION
from vllm_operator.caches.claims import find_orphans, requested_bytes
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.object_cache import ObjectCache
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, VLLM_DEPLOYMENT, Forbidden


def remove(bench: Bench, name: str = "llama") -> None:
    bench.cluster.remove(VLLM_DEPLOYMENT, "default", name)
    bench.cluster.remove(DEPLOYMENT, "default", name)


def orphans(bench: Bench) -> list[str]:
    return [claim["metadata"]["name"] for claim in find_orphans(bench.cluster.all(CLAIM), bench.cluster.all(VLLM_DEPLOYMENT))]


def marked(fleet: Fleet, claim: str = "llama-cache") -> str | None:
    return fleet.annotations(claim).get(UNUSED_ANNOTATION)


async def test_the_volumes_of_a_deleted_object_are_orphans_and_say_since_when(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    assert orphans(bench) == []
    remove(bench)
    assert sorted(orphans(bench)) == ["llama-cache", "llama-weights"]
    await bench.settle()
    assert marked(fleet) == marked(fleet, "llama-weights") == fleet.time()
    since = fleet.time()
    bench.pass_time(3600)
    bench.restart()
    await bench.settle()
    assert marked(fleet) == since
    assert len(bench.cluster.all(CLAIM)) == 2


async def test_an_object_of_the_same_name_uses_them_again(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    remove(bench)
    await bench.settle()
    await fleet.serve()
    assert orphans(bench) == []
    assert marked(fleet) is None


async def test_a_volume_that_another_object_uses_is_no_orphan(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve("first")
    await fleet.serve("second", cache={"claimName": "first-cache", "priming": "Never"})
    remove(bench, "first")
    await fleet.settle("first")
    assert orphans(bench) == ["first-weights"]
    assert marked(fleet, "first-cache") is None
    remove(bench, "second")
    assert set(orphans(bench)) == {"first-cache", "first-weights"}


async def test_an_object_that_begins_to_use_a_marked_volume_removes_the_mark(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve("first")
    remove(bench, "first")
    await fleet.settle("first")
    assert marked(fleet, "first-cache")
    await fleet.serve("second", cache={"claimName": "first-cache", "priming": "Never"})
    await fleet.settle("second")
    assert marked(fleet, "first-cache") is None


def edited(claim: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {**claim, "metadata": {**claim["metadata"], **metadata}}


async def test_only_volumes_that_the_operator_made_and_that_stay_are_orphans(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    claim = fleet.claim()
    assert find_orphans([claim], []) == [claim]
    owner = {"kind": "VLLMDeployment", "name": "llama", "uid": "u"}
    theirs = [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:accessModes": {}}}}]
    for other in (
        edited(claim, deletionTimestamp="2026-01-01T00:00:00Z"),
        edited(claim, ownerReferences=[owner]),
        edited(claim, managedFields=theirs),
    ):
        assert find_orphans([other], []) == []
    assert find_orphans([claim], [llama("new", cache={"claimName": "llama-cache"})]) == [], "it is named, and will be recorded"
    elsewhere = {**llama(), "metadata": {**llama()["metadata"], "namespace": "other"}}
    assert find_orphans([claim], [elsewhere]) == [claim]


@pytest.mark.parametrize(("size", "expected"), [("20Gi", 20 * 2**30), (None, 0), ([], 0)])
def test_the_size_is_what_is_requested(size: Any, expected: int) -> None:
    assert requested_bytes({"spec": {"resources": {"requests": {"storage": size}}}}) == expected


async def test_objects_whose_deployment_is_gone_are_known_from_memory(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    cache = ObjectCache(bench.cluster)
    await cache.refresh(CLAIM)
    assert cache.unowned(CLAIM) == [], "not before all VLLMDeployments are known"
    await cache.refresh(VLLM_DEPLOYMENT)
    assert cache.unowned(CLAIM) == []
    assert [it["metadata"]["name"] for it in cache.known(VLLM_DEPLOYMENT, "default")] == ["llama"]
    remove(bench)
    await cache.refresh(VLLM_DEPLOYMENT)
    assert len(cache.unowned(CLAIM)) == 2
    assert cache.known(VLLM_DEPLOYMENT, "default") == []


def test_they_are_metrics_for_each_namespace() -> None:
    metrics = Metrics()
    assert "vllm_operator_orphaned_volumes{" not in metrics.render().decode()
    metrics.observe_orphans(lambda: {"models": [1024, 2048]})
    text = metrics.render().decode()
    assert 'vllm_operator_orphaned_volumes{namespace="models"} 2.0' in text
    assert 'vllm_operator_orphaned_volume_bytes{namespace="models"} 3072.0' in text


async def test_a_forbidden_mark_is_no_failure(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    remove(bench)
    bench.cluster.fail("patch", CLAIM, Forbidden("no"), times=2)
    assert (await bench.reconciler.reconcile(("default", "llama"))).name == "gone"
