"""Rendered manifests on a real API server: taken as they are, stable, and changed from any state to any other."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster import CLAIMS_SINCE, Cluster, Manifest, skip_before, the_pod
from support.manifests import CASES, read_case
from vllm_operator.api.labels import FIELD_MANAGER
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.kube.managed_fields import needs_apply, with_digest
from vllm_operator.rendering.manifests import render

pytestmark = pytest.mark.cluster

SMALLEST = next(case for case in CASES if case.name == "smallest")
PINNED_SLICE = next(case for case in CASES if case.name == "dra-pinned-slice")
DRIVER = "gpu.nvidia.com"


async def apply_all(cluster: Cluster, resource: VLLMDeployment, plan: Plan) -> dict[str, Manifest]:
    """Apply what is rendered, in this namespace and without the owner, which does not exist here; return it by kind."""
    applied = {}
    for manifest in render(resource, plan):
        manifest["metadata"].pop("ownerReferences", None)
        manifest["metadata"]["namespace"] = cluster.namespace
        manifest = with_digest(manifest)
        live = await cluster.apply(manifest, manager=FIELD_MANAGER)
        assert not needs_apply(manifest, live), manifest["kind"]
        assert missing(manifest, live) == []
        applied[manifest["kind"]] = live
    return applied


def missing(wanted: Any, live: Any, path: str = "") -> list[str]:
    """Say where an object is not as it was applied."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        return [line for name, value in wanted.items() for line in missing(value, live.get(name), f"{path}/{name}")]
    if isinstance(wanted, list) and isinstance(live, list) and len(wanted) == len(live):
        return [line for index, value in enumerate(wanted) for line in missing(value, live[index], f"{path}/{index}")]
    return [] if wanted == live else [f"{path}: {wanted!r} became {live!r}"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_every_recorded_manifest_is_taken_as_it_is_and_applying_it_again_changes_nothing(cluster: Cluster, case: Path) -> None:
    resource, plan = read_case(case)
    first = await apply_all(cluster, resource, plan)
    again = await apply_all(cluster, resource, plan)
    assert again["Service"]["metadata"]["resourceVersion"] == first["Service"]["metadata"]["resourceVersion"]
    assert again["Deployment"]["metadata"]["generation"] == 1
    assert again["Deployment"]["spec"] == first["Deployment"]["spec"]


CHANGES: list[dict[str, Any]] = [
    {"replicas": 3},
    {"replicas": 3, "rollout": {"strategy": "Recreate"}},
    {"rollout": {"strategy": "RollingUpdate", "maxSurge": 1}},
    {"service": {"type": "NodePort", "port": 80}},
    {"service": {"type": "LoadBalancer"}},
    {"service": {"type": "LoadBalancer", "loadBalancerClass": "lb.example/internal", "annotations": {"lb.example/scheme": "internal"}}},
    {"auth": {"apiKeySecretRef": {"name": "key"}}},
    {"cache": {"claimName": "another"}},
    {"cache": {"storage": "ClaimPerReplica"}},
    {"cache": {"hostPath": "/mnt/nvme"}},
    {"accelerator": {"allocation": "DRA"}},
    {"podTemplate": {"spec": {"containers": [{"name": "vllm", "startupProbe": {"exec": {"command": ["true"]}}}]}}},
    {"podTemplate": {"spec": {"volumes": [{"name": "cache", "hostPath": {"path": "/fast"}}]}}},
    {"podTemplate": {"spec": {"containers": [{"name": "sidecar", "image": "registry.example/sidecar:1"}]}}},
    {"engine": {"env": [{"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}},
    {"engine": {"args": [{"name": "seed", "value": "1"}]}},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
async def test_a_change_can_be_made_and_taken_back(cluster: Cluster, change: dict[str, Any]) -> None:
    resource, plan = read_case(SMALLEST)
    spec = {**resource.spec.to_json(), **change}
    changed = VLLMDeployment.parse({"metadata": resource.metadata.to_json(), "spec": spec})
    other = plan.model_copy(update={"resource": DRIVER}) if "accelerator" in change else plan
    before = await apply_all(cluster, resource, plan)
    during = await apply_all(cluster, changed, other)
    # A claim never shrinks: what grew stays as it is, which the API refuses before it comes to this.
    after = await apply_all(cluster, changed if "volume" in change.get("cache", {}) else resource, plan)
    assert (
        during["Deployment"]["spec"] != before["Deployment"]["spec"]
        or during.keys() != before.keys()
        or change.keys() & {"service", "cache"}
    )
    assert after["Deployment"]["spec"] == before["Deployment"]["spec"]


@pytest.fixture
async def dra_node(cluster: Cluster) -> AsyncIterator[str]:
    """A node with two slices of one profile, and one that no selector may stumble over: it has hardly any attribute."""
    skip_before(CLAIMS_SINCE, "resource.k8s.io/v1")
    [node] = cluster.simulated.add_nodes("h100-sxm")
    slices = [mig_device("gpu-0-mig-a", "MIG-aaaa"), mig_device("gpu-0-mig-b", "MIG-4d806f22-346a-5a1d-ac01-86b505cdf485")]
    bare = {"name": "gpu-1-mig-c", "attributes": {"type": {"string": "mig"}}}
    selector = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'"
    manifests: list[Manifest] = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "mig.nvidia.com"},
            "spec": {"selectors": [{"cel": {"expression": selector}}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-gpus"},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [bare, *slices],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": cluster.namespace},
            "spec": {
                "capacity": {"storage": "20Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/cache"},
                "claimRef": {"namespace": cluster.namespace, "name": "deepseek-cache"},
            },
        },
    ]
    for manifest in manifests:
        await cluster.create(manifest)
    yield node
    for manifest in [*manifests, {"kind": "Node", "metadata": {"name": node}}]:
        await cluster.delete(manifest["kind"], manifest["metadata"]["name"])


def mig_device(name: str, uuid: str) -> dict[str, Any]:
    return {
        "name": name,
        "attributes": {
            "type": {"string": "mig"},
            "uuid": {"string": uuid},
            "profile": {"string": "1g.10gb"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "cudaComputeCapability": {"version": "9.0.0"},
        },
    }


async def test_a_pinned_slice_is_the_one_that_the_scheduler_allocates(cluster: Cluster, dra_node: str) -> None:
    resource, plan = read_case(PINNED_SLICE)
    template = {"spec": {"tolerations": [{"operator": "Exists"}]}}
    spec = {**resource.spec.to_json(), "podTemplate": template}
    await apply_all(cluster, VLLMDeployment.parse({"metadata": resource.metadata.to_json(), "spec": spec}), plan)
    [claim] = await wait_for_claims(cluster)
    [device] = claim["status"]["allocation"]["devices"]["results"]
    assert (device["pool"], device["device"]) == (dra_node, "gpu-0-mig-b")


async def wait_for_claims(cluster: Cluster) -> list[Manifest]:
    replica_sets = await cluster.wait_for("Deployment", "deepseek", lambda live: live.get("status", {}).get("updatedReplicas") == 1)
    assert replica_sets["status"]["replicas"] == 1
    scheduled = await cluster.wait_for("Pod", await the_pod(cluster), lambda live: live["spec"].get("nodeName"))
    names = [status["resourceClaimName"] for status in scheduled["status"]["resourceClaimStatuses"]]
    return [await cluster.get("ResourceClaim", name) for name in names]
