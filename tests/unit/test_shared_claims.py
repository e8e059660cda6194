"""A PersistentVolumeClaim that another VLLMDeployment uses has no owner, whatever `onDelete` says, and both objects say so."""

from collections.abc import Sequence
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.fleet import Fleet
from support.operators import Bench, llama
from vllm_operator.api.labels import SHARED_ANNOTATION_PREFIX
from vllm_operator.caches.claims import GRACE
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, VLLM_DEPLOYMENT, Forbidden, Kind

DELETE: dict[str, Any] = {"cache": {"onDelete": "Delete", "priming": "Never"}, "weights": {"onDelete": "Delete"}}
RETAIN: dict[str, Any] = {"cache": {"priming": "Never"}}
VOLUME: dict[str, Any] = {"name": "cache", "persistentVolumeClaim": {"claimName": "first-cache"}}
IN_TEMPLATE: dict[str, Any] = {"podTemplate": {"spec": {"volumes": [VOLUME]}}}

WAYS: dict[str, dict[str, Any]] = {
    "claimName": {"cache": {"claimName": "first-cache", "priming": "Never"}},
    "a volume of podTemplate": {**RETAIN, **IN_TEMPLATE},
    "the URI of an adapter": {**RETAIN, "adapters": [{"name": "sql", "uri": "pvc://first-cache/sql"}]},
    "a preset": {**RETAIN, "presetRef": {"name": "shared"}},
}


def owners(fleet: Fleet, claim: str = "first-cache") -> list[str]:
    return [owner["name"] for owner in fleet.claim(claim)["metadata"].get("ownerReferences") or ()]


def users(fleet: Fleet, claim: str = "first-cache") -> list[str]:
    records = {name: value for name, value in fleet.annotations(claim).items() if name.startswith(SHARED_ANNOTATION_PREFIX)}
    return [value.partition("/")[0] for value in records.values()]


def remove(bench: Bench, name: str) -> None:
    bench.cluster.remove(VLLM_DEPLOYMENT, "default", name)
    bench.cluster.remove(DEPLOYMENT, "default", name)


@pytest.fixture
async def first(bench: Bench, fleet: Fleet) -> Fleet:
    preset = {"metadata": {"name": "shared", "namespace": "default"}, "spec": IN_TEMPLATE}
    bench.cluster.put({"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMPreset", **preset})
    await fleet.serve("first", **DELETE)
    assert owners(fleet) == ["first"]
    return fleet


@pytest.mark.parametrize("way", WAYS)
async def test_whoever_begins_to_use_a_claim_removes_its_owner_before_any_pod_does(bench: Bench, first: Fleet, way: str) -> None:
    bench.cluster.put(llama("second", **WAYS[way]))
    bench.cluster.fail("apply", DEPLOYMENT, Forbidden("exceeded quota"))
    await bench.reconciler.reconcile(("default", "second"))
    assert owners(first) == [], "the garbage collector keeps it, also if `first` is deleted now"
    await first.settle("second")
    await first.settle("first")
    assert (owners(first), owners(first, "first-weights")) == ([], ["first"])
    assert "VLLMDeployment second uses PersistentVolumeClaim first-cache as well" in bench.cache_verdict("first").message
    assert "onDelete: Delete has no effect" in bench.cache_verdict("first").message
    assert "belongs to VLLMDeployment first" in bench.cache_verdict("second").message


@pytest.mark.parametrize("way", WAYS)
async def test_a_claim_that_is_in_use_already_gets_no_owner(bench: Bench, fleet: Fleet, way: str) -> None:
    preset = {"metadata": {"name": "shared", "namespace": "default"}, "spec": IN_TEMPLATE}
    bench.cluster.put({"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMPreset", **preset})
    await fleet.serve("first", **RETAIN)
    await fleet.serve("second", **WAYS[way])
    bench.pass_time(GRACE.total_seconds() + 1)
    await fleet.change("first", **DELETE)
    assert owners(fleet) == []
    await fleet.settle("second")
    assert "belongs to VLLMDeployment first" in bench.cache_verdict("second").message
    bench.restart()
    before = len(bench.cluster.writes)
    for name in ("first", "second"):
        await fleet.settle(name)
    assert len(bench.cluster.writes) == before, "nothing is written again"


async def test_objects_that_share_a_claim_to_keep_say_nothing(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve("first", **RETAIN)
    await fleet.serve("second", **WAYS["claimName"])
    await fleet.settle("first")
    assert [bench.cache_verdict(name).message.count("first-weights") for name in ("first", "second")] == [0, 0]


@pytest.mark.parametrize("change", ["deleted", "made again", "another claim"])
async def test_the_owner_returns_when_nobody_else_uses_the_claim(bench: Bench, first: Fleet, change: str) -> None:
    await first.serve("second", **WAYS["claimName"])
    await first.settle("first")
    assert (owners(first), users(first)) == ([], ["second"])
    if change == "another claim":
        await first.change("second", cache={"claimName": None})
    else:
        remove(bench, "second")
    if change == "made again":
        await first.serve("second", **RETAIN)
    bench.pass_time(GRACE.total_seconds() + 1)
    await first.settle("first")
    assert (owners(first), users(first)) == (["first"], [])
    assert "onDelete" not in bench.cache_verdict("first").message


async def test_an_object_that_is_being_deleted_counts_until_it_is_gone(bench: Bench, first: Fleet) -> None:
    await first.serve("second", **WAYS["claimName"])
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "second", {"metadata": {"deletionTimestamp": first.time()}})
    bench.pass_time(GRACE.total_seconds() + 1)
    await first.settle("first")
    assert owners(first) == []


async def test_a_held_deployment_that_still_mounts_the_claim_counts(bench: Bench, first: Fleet) -> None:
    await first.serve("second", **WAYS["claimName"])
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "second", {"spec": {"cache": {"claimName": None}}})
    bench.pass_time(GRACE.total_seconds() + 1)
    await first.settle("first")
    assert owners(first) == []


async def test_the_record_of_an_object_that_never_was_has_no_effect(bench: Bench, first: Fleet) -> None:
    first.annotate({f"{SHARED_ANNOTATION_PREFIX}none": f"second/{first.time()}"}, "first-cache")
    await first.settle("first")
    assert (owners(first), users(first)) == (["first"], [])


async def test_a_claim_that_the_operator_did_not_create_keeps_its_owner(bench: Bench, fleet: Fleet) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    owner = {"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMDeployment", "name": "first", "uid": "by-hand"}
    metadata = {"name": "first-cache", "namespace": "default", "ownerReferences": [owner]}
    bench.cluster.put({"apiVersion": "v1", "kind": CLAIM.kind, "metadata": metadata, "spec": spec})
    await fleet.serve("second", **WAYS["claimName"])
    assert (owners(fleet), users(fleet)) == (["first"], [])


class Enforcing:
    """A client of an API server that lets only those change owners who may delete the object, as OpenShift's."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def _check(self, name: str, owners: Any) -> None:
        live = next((item for item in self._cluster.all(CLAIM) if item["metadata"]["name"] == name), None)
        if live is not None and (live["metadata"].get("ownerReferences") or []) != owners:
            raise Forbidden("cannot set an ownerRef on a resource you can't delete")

    async def apply(self, manifest: Any, *, manager: str, force: bool = True) -> Any:
        if manifest["kind"] == CLAIM.kind:
            self._check(manifest["metadata"]["name"], manifest["metadata"].get("ownerReferences") or [])
        return await self._cluster.apply(manifest, manager=manager, force=force)

    async def patch(self, kind: Kind, name: str, namespace: str | None, operations: Sequence[Any], *, manager: str) -> Any:
        if any("ownerReferences" in operation["path"] for operation in operations):
            self._check(name, None)
        return await self._cluster.patch(kind, name, namespace, operations, manager=manager)


async def test_both_say_so_if_the_api_server_does_not_let_the_operator_remove_an_owner(bench: Bench, first: Fleet) -> None:
    bench.reconciler = bench.make_reconciler(client=Enforcing(bench.cluster))
    await first.serve("second", **WAYS["claimName"])
    await first.settle("first")
    await first.change("first", cache={"volume": {"size": "40Gi"}})
    assert (owners(first), users(first)) == (["first"], ["second"])
    assert first.claim("first-cache")["spec"]["resources"]["requests"]["storage"] == "40Gi", "the rest is applied"
    for name, lender in {"first": "this object", "second": "VLLMDeployment first"}.items():
        assert f"it is deleted with {lender}: the operator may not remove its owner" in bench.cache_verdict(name).message
