"""Objects that an earlier version of the operator has served keep serving: no rollout, and no record of a cache is lost."""

import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from support.account import make_account, remove_account
from support.cluster import Cluster, Manifest, Simulator
from support.crd import install_crd
from support.operator_process import OperatorProcess, condition
from vllm_operator.api import labels

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

DATA = Path(__file__).parent / "data" / "upgrade"
OBJECTS = 20
Children = dict[tuple[str, str], Manifest]
CHILDREN = ("Deployment", "ReplicaSet", "Pod", "Service", "PersistentVolumeClaim")


def recorded() -> Iterator[list[Manifest]]:
    """Objects with their children: the four of `data/upgrade/objects.yaml`, again and again under other names."""
    text = (DATA / "objects.yaml").read_text("utf-8")
    documents = list(yaml.safe_load_all(text))
    names = [document["metadata"]["name"] for document in documents if document["kind"] == labels.KIND]
    for number in range(OBJECTS):
        old = names[number % len(names)]
        new = f"{old.removesuffix('-0')}-{number}"
        own = [document for document in documents if document["metadata"]["name"] in (old, f"{old}-cache", f"{old}-weights")]
        yield json.loads(json.dumps(own).replace(f'"{old}', f'"{new}').replace(f"//{old}.", f"//{new}.").replace(f" {old}-", f" {new}-"))


async def restore(cluster: Cluster, documents: list[Manifest]) -> Manifest:
    """Create an object and its children with the field managers of the operator; return the object as it is in the file."""
    resource, *children = documents
    made = await cluster.create({**resource, "metadata": {"name": resource["metadata"]["name"], "namespace": cluster.namespace}})
    for child in copy.deepcopy(children):
        metadata = child["metadata"] | {"namespace": cluster.namespace}
        records = metadata.pop("annotations", {})
        for owner in metadata.get("ownerReferences", ()):
            owner["uid"] = made["metadata"]["uid"]
        await cluster.apply({**child, "metadata": metadata}, manager=labels.FIELD_MANAGER)
        if records:
            patch = {"metadata": {"annotations": records}}
            await cluster.patch(child["kind"], metadata["name"], patch, manager=labels.CLAIM_FIELD_MANAGER)
    metadata = {"name": resource["metadata"]["name"], "namespace": cluster.namespace}
    await cluster.apply_status({**resource, "metadata": metadata}, manager=labels.STATUS_FIELD_MANAGER)
    return resource


async def running(cluster: Cluster) -> Children:
    """All children by kind and name."""
    return {(kind, item["metadata"]["name"]): item for kind in CHILDREN for item in await cluster.list_all(kind)}


def assert_unchanged(before: Children, after: Children) -> None:
    """No rollout, and no record of a cache is lost. (An annotation of the operator raises the generation of a Deployment.)"""
    assert after.keys() == before.keys()
    for key, child in before.items():
        now = after[key]
        assert now["metadata"]["uid"] == child["metadata"]["uid"]
        assert now["spec"] == child["spec"], key
        assert (now["metadata"].get("annotations") or {}).items() >= (child["metadata"].get("annotations") or {}).items(), key


async def until_settled(operator: OperatorProcess) -> None:
    """Wait until each object was reconciled and nothing is left to do."""
    async with asyncio.timeout(60):
        while (await operator.reconciles()).get("success", 0) < OBJECTS:  # noqa: ASYNC110 - a metric has no event
            await asyncio.sleep(0.1)


async def test_twenty_objects_of_an_earlier_version_are_taken_over_without_a_rollout(
    cluster: Cluster, sim: Simulator, gpu_nodes: Callable[..., list[str]], tmp_path: Path
) -> None:
    await install_crd(cluster, yaml.safe_load((DATA / "crd.yaml").read_text("utf-8")))
    for number in range(3):
        gpu_nodes("h100-sxm", name=f"gpu-{number}")
    await sim.script(path="ok", pull="0", load="0")
    objects = [await restore(cluster, documents) for documents in recorded()]
    for resource in objects:
        await cluster.wait_for("Deployment", resource["metadata"]["name"], lambda d: d.get("status", {}).get("readyReplicas") == 1)
    before = await running(cluster)
    kubeconfig = await make_account(cluster, tmp_path / "operator.kubeconfig")

    # the operator comes before its CRD: the API server refuses the new status, and the plan stays where it was
    async with OperatorProcess(kubeconfig, cluster.namespace) as operator:
        await operator.until_says("pinnedPlan: field not declared in schema", times=OBJECTS)
        assert await operator.stop() == 0
    assert_unchanged(before, await running(cluster))

    await install_crd(cluster)
    stored = {item["metadata"]["name"]: item for item in await cluster.list_all(labels.KIND)}
    for resource in objects:
        assert stored[resource["metadata"]["name"]]["status"]["plan"] == resource["status"]["plan"], "the CRD pruned the plan"

    async with OperatorProcess(kubeconfig, cluster.namespace) as operator:
        await operator.until_ready()
        for resource in objects:
            name, plan = resource["metadata"]["name"], resource["status"]["plan"]
            now = await cluster.wait_for(labels.KIND, name, lambda r: "pinnedPlan" in r["status"] and "plan" not in r["status"])
            for field in ("status", "reason", "lastTransitionTime"):
                assert condition(now, "Ready")[field] == condition(resource, "Ready")[field], "it did not serve all the time"
            conditions = now["status"]["conditions"]
            assert {found["type"] for found in conditions} <= {"Ready", "Planned", "CacheWarm"}, "what has nothing to report is absent"
            assert not [found for found in conditions if "observedGeneration" in found]
            told_elsewhere = ("claimName", "imageDigest", "savedSeconds", "stages", "weightsClaimName")
            assert now["status"]["cache"].items() >= {it for it in resource["status"]["cache"].items() if it[0] not in told_elsewhere}
            revision = await cluster.get("ControllerRevision", now["status"]["pinnedPlan"]["revision"])
            assert (revision["revision"], revision["data"]) == (1, plan)
        await until_settled(operator)
        assert await operator.stop() == 0
        assert "Traceback" not in operator.log, operator.log

        assert_unchanged(before, await running(cluster))
        assert len(await cluster.list_all("ControllerRevision")) == OBJECTS

        await operator.start()  # once more: nothing is left to do
        await operator.until_says("serving", times=2)
        await until_settled(operator)
        assert await operator.writes() == 0
    await remove_account(cluster)
