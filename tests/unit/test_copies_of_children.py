"""Objects that have the operator's labels or owner and are not the operator's: a user has copied them."""

import pytest

from support.operators import Bench, llama
from vllm_operator.api.labels import FIELD_MANAGER
from vllm_operator.kube.client import DEPLOYMENT, SERVICE, VLLM_DEPLOYMENT, Kind, Manifest


def replicas_of(bench: Bench) -> dict[str, int]:
    return {each["metadata"]["name"]: each["spec"]["replicas"] for each in bench.cluster.all(DEPLOYMENT)}


async def test_only_its_own_deployment_is_scaled_where_the_spec_cannot_be_planned(bench: Bench) -> None:
    bench.cluster.put(llama(replicas=3, cache={"priming": "Never"}))
    await bench.settle()
    own = bench.deployment()
    stopped = {**own["spec"], "replicas": 0}
    bench.cluster.put(
        {**own, "metadata": {"name": "llama-copy", "namespace": "default", "labels": own["metadata"]["labels"]}, "spec": stopped}
    )
    bench.cluster.put({**own, "metadata": {**own["metadata"], "name": "llama.primer"}, "spec": stopped})
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"replicas": 1, "accelerator": {"architectures": ["sm_103"]}}})
    await bench.settle()
    assert replicas_of(bench) == {"llama": 1, "llama-copy": 0, "llama.primer": 0}


async def test_a_copy_of_a_deployment_that_is_gone_is_not_scaled_in_its_place(bench: Bench) -> None:
    bench.cluster.put(llama(replicas=3, cache={"priming": "Never"}))
    await bench.settle()
    own = bench.deployment()
    bench.cluster.put({**own, "metadata": {"name": "llama-copy", "namespace": "default", "labels": own["metadata"]["labels"]}})
    bench.cluster.remove(DEPLOYMENT, "default", "llama")
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"replicas": 1, "accelerator": {"architectures": ["sm_103"]}}})
    await bench.settle()
    assert replicas_of(bench) == {"llama-copy": 3}


def copied(manifest: Manifest, *fields: str, name: str = "llama-copy") -> Manifest:
    """What `kubectl get -o yaml | kubectl apply` makes of an object, with these fields of its metadata."""
    kept = {field: manifest["metadata"][field] for field in fields}
    return {**manifest, "metadata": {"name": name, "namespace": "default", **kept}}


async def test_a_copy_that_kept_labels_and_owner_is_not_deleted(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    for kind in (DEPLOYMENT, SERVICE):
        bench.cluster.put(copied(bench.cluster.all(kind)[0], "labels", "ownerReferences"))
    bench.restart()
    await bench.settle()
    assert sorted(replicas_of(bench)) == ["llama", "llama-copy"]
    assert len(bench.cluster.all(SERVICE)) == 2


@pytest.mark.parametrize("kind", [DEPLOYMENT, SERVICE])
async def test_an_object_of_the_name_that_only_has_the_labels_is_not_taken_over(bench: Bench, kind: Kind) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    mine = {**copied(bench.cluster.all(kind)[0], "labels", name="llama"), "spec": {"paused": True}}
    bench.cluster.remove(kind, "default", "llama")
    before = bench.cluster.put(mine)
    bench.restart()
    await bench.settle()
    assert await bench.cluster.get(kind, "llama", "default") == before
    assert bench.condition("Ready").reason == "ApplyFailed"
    assert f"{kind.kind} llama" in bench.condition("Ready").message


async def test_children_that_were_orphaned_are_taken_over_and_their_primer_is_deleted(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    own = bench.deployment()
    await bench.cluster.apply(copied(own, "labels", name="llama.primer"), manager=FIELD_MANAGER)
    orphan = [{"op": "remove", "path": "/metadata/ownerReferences"}]
    await bench.cluster.patch(DEPLOYMENT, "llama", "default", orphan, manager="kube-controller-manager")
    bench.restart()
    await bench.settle()
    assert list(replicas_of(bench)) == ["llama"]
    assert bench.deployment()["metadata"]["uid"] == own["metadata"]["uid"]
    assert bench.deployment()["metadata"]["ownerReferences"] == own["metadata"]["ownerReferences"]
