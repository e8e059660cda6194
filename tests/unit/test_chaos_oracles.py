"""The chaos runs would notice: each of their checks is shown what it must find, and what it must not."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.foreign import claim, differences, essence, labels_like, traces
from chaos.operators import writes_beside_the_holder
from chaos.statuses import unexplained, untrue
from chaos.updates import lost_plan, lost_updates
from chaos.volumes import UNMARKED, Volume, inventory, unexpected_losses
from support.audit import Request
from support.gpus import real_node
from support.operator_process import llama
from support.operators import Bench
from support.operators import llama as bench_llama
from support.plans import known
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.kube.client import REVISION
from vllm_operator.planning.planner import plan
from vllm_operator.rendering.manifests import render

Manifest = dict[str, Any]
NODE: Manifest = {"apiVersion": "v1", "kind": "Node", **real_node("h100-sxm")}


def resource(**ready: Any) -> Manifest:
    said = (("Ready", "True", "Serving"), ("Available", "True", "Serving"), ("PlanDrifted", "True", "PlanDrifted"))
    conditions: list[Manifest] = [
        {"type": type, "status": status, "reason": reason, "message": "All is well."} for type, status, reason in said
    ]
    told = {"observedGeneration": ready.pop("observedGeneration", 2), "readyReplicas": 1, "conditions": conditions}
    conditions[0] |= ready
    metadata: Manifest = {"name": "llama", "generation": 2, "uid": "u", "namespace": "default"}
    return {**llama("default"), "metadata": metadata, "status": told}


def pod(*, ready: bool = True) -> Manifest:
    return {"metadata": {"name": "llama-1"}, "status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}


def test_a_status_that_is_right_is_not_complained_of() -> None:
    assert unexplained(resource()) == []
    assert untrue(resource(), [pod()]) == []


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        ({"reason": "OperatorFailed", "message": "KeyError"}, "OperatorFailed: KeyError"),
        ({"reason": "SomethingElse"}, "no such reason is documented"),
        ({"message": ""}, "the message is ''"),
        ({"type": "Stalled"}, "conditions are ['Stalled', 'Available', 'PlanDrifted']"),
        ({"message": "x" * 501}, "the message is"),
        ({"message": "a\x1bb"}, "the message is"),
    ],
)
def test_a_condition_that_explains_nothing_is_found(ready: Manifest, words: str) -> None:
    [found] = unexplained(resource(**ready))
    assert words in found


@pytest.mark.parametrize(
    ("seen", "pods", "words"),
    [
        (resource(), [], "it tells of 1 ready replicas, 0 Pods are Ready"),
        (resource(), [pod(ready=False)], "Ready is True with 0 of 1 Pods Ready"),
        (resource(status="False"), [pod()], "Ready is False with 1 of 1 Pods Ready"),
        (resource(status="False", reason="NotExposed"), [], "Available is True with 0 Pods Ready"),
        (resource(observedGeneration=1), [pod()], "the newest is 2"),
    ],
)
def test_a_status_that_contradicts_the_pods_is_found(seen: Manifest, pods: list[Manifest], words: str) -> None:
    assert any(words in found for found in untrue(seen, pods))


def test_what_was_done_to_an_object_of_a_user_is_found() -> None:
    before = claim("mine", uid="u", resourceVersion="1") | {"status": {"phase": "Bound"}}
    unchanged = before | {"metadata": before["metadata"] | {"resourceVersion": "2"}, "status": {"phase": "Lost"}}
    assert differences(essence(before), essence(unchanged)) == []
    touched = before | {"metadata": before["metadata"] | {"labels": labels_like("llama", "cache")}}
    [found] = differences(essence(before), essence(touched))
    assert found.startswith("metadata.labels: None became")
    managed = before | {"metadata": before["metadata"] | {"managedFields": [{"manager": "kubectl"}, {"manager": "vllm-operator-cache"}]}}
    assert traces(managed) == ["vllm-operator-cache"]


def served() -> tuple[Manifest, list[Manifest]]:
    """A VLLMDeployment and its children as they should be."""
    manifest = llama("default")
    manifest["metadata"] |= {"generation": 1, "uid": "u"}
    parsed = VLLMDeployment.parse(manifest)
    outcome = plan(parsed, read_inventory([NODE], (), known().gpus), known())
    assert outcome.plan is not None
    return manifest, list(render(parsed, outcome.plan))


def test_an_update_that_is_lost_is_found() -> None:
    manifest, children = served()
    assert lost_updates(manifest, [NODE], children) == []
    manifest["spec"]["replicas"] = 2
    assert lost_updates(manifest, [NODE], children) == ["Deployment llama is not as the spec asks for: replicas"]
    manifest["spec"]["replicas"] = 1
    assert lost_updates(manifest, [NODE], []) == [
        f"{kind} llama is not as the spec asks for: it is missing" for kind in ("Service", "Deployment")
    ]


async def test_a_plan_that_is_lost_is_found() -> None:
    bench = Bench()
    bench.cluster.put(bench_llama())
    await bench.settle()
    assert lost_plan(bench.resource(), bench.cluster.all(REVISION)) == []
    [said] = lost_plan(bench.resource(), [])
    assert "the current plan is lost" in said


def test_a_file_of_another_owner_that_is_changed_or_gone_is_found(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = tmp_path / "volume"
    folder.mkdir()
    volume = Volume(folder, outside)
    volume.add_cache("v0.20.1-sm90-h100-tp1-12345678")
    volume.rest()
    assert volume.changed() == []
    (folder / "notes.txt").write_text("other")
    os.unlink(folder / "v0.9-link-00000004")
    assert volume.changed() == ["notes.txt on volume volume", "v0.9-link-00000004 on volume volume"]


KEY, OTHER = "v0.20.1-sm90-h100-tp1-12345678", "v0.16.0-sm90-h100-tp1-12345678"


@pytest.mark.parametrize(
    ("act", "lost"),
    [
        (lambda folder: None, []),
        (lambda folder: shutil.rmtree(folder / KEY), []),
        (lambda folder: shutil.rmtree(folder / OTHER), ["triton/b.cubin"]),
        (lambda folder: shutil.rmtree(folder / UNMARKED), ["triton/a.cubin"]),
        (lambda folder: (folder / KEY / "triton/b.cubin").unlink(), ["triton/b.cubin"]),
        (lambda folder: (folder / KEY / "flashinfer/c.so").unlink(), []),
        (lambda folder: (folder / KEY).rename(folder / f".leaving-{KEY}"), []),
        (lambda folder: [(folder / KEY).rename(folder / f".deleting-{KEY}"), (folder / f".deleting-{KEY}/triton/b.cubin").unlink()], []),
        (lambda folder: (folder / "notes.txt").unlink(), ["notes.txt"]),
    ],
)
def test_what_a_cleaning_pod_must_not_remove_is_missed(tmp_path: Path, act: Callable[[Path], object], lost: list[str]) -> None:
    """One directory is removable, in which somebody else deletes a file meanwhile; another one is in use."""
    outside = tmp_path / "outside"
    outside.mkdir()
    volume = Volume(tmp_path / "volume", outside)
    volume.add_cache(KEY)
    volume.add_cache(OTHER)
    assert volume.marked() == {KEY, OTHER}
    before = inventory(volume.folder)
    act(volume.folder)
    found = unexpected_losses(before, inventory(volume.folder), {KEY}, [f"{KEY}/flashinfer/c.so"])
    assert bool(found) == bool(lost)
    assert all(any(path.endswith(name) for path in found) for name in lost)


def written(second: int, user: str, resource: str, status: int = 200) -> Request:
    return Request("patch", "", resource, "", "default", "llama", user, "", status, f"2026-11-22T12:00:{second:02d}.000000Z")


@pytest.mark.parametrize(
    ("writes", "by"),
    [
        ([written(1, "a", "deployments"), written(2, "a", "leases"), written(3, "a", "services")], []),
        ([written(1, "a", "leases"), written(2, "b", "leases"), written(3, "b", "pods"), written(4, "a", "leases", 409)], []),
        ([written(1, "a", "leases"), written(2, "b", "leases", 409), written(3, "b", "pods")], ["b"]),
        ([written(4, "a", "pods", 409), written(1, "a", "leases"), written(3, "b", "leases")], ["a"]),
        ([written(1, "a", "leases"), written(2, "b", "selfsubjectaccessreviews", 201)], []),
    ],
)
def test_a_write_without_the_lease_is_found(writes: list[Request], by: list[str]) -> None:
    assert [found[0] for found in writes_beside_the_holder(writes)] == by
