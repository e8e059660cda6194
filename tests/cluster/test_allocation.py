"""A cluster with NVIDIA's DRA driver alone: the examples as they are, and the real scheduler that places their Pods."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.claims import DEVICE_CLASSES, in_dra_mode, with_uuids
from support.cluster import CLAIMS_SINCE, Cluster, Manifest, Simulator, skip_before
from support.crd import install_crd
from support.gpus import machines_of_the_examples
from support.operator_process import OperatorProcess, condition
from vllm_operator.api.labels import INSTANCE_LABEL, KIND

pytestmark = pytest.mark.cluster

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
OF_THE_PLUGIN = ("jetson-thor", "time-sliced")
"""Examples about what only a device plugin offers."""
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "100Gi"}}},
}
COPIES = 6
"""Nodes of each kind: the examples are there all at once."""


@pytest.fixture
async def slices(cluster: Cluster) -> AsyncIterator[tuple[Manifest, ...]]:
    """The machines of the examples without device plugin and labels, and their ResourceSlices, which it returns; and what a user brings."""
    skip_before(CLAIMS_SINCE, "resource.k8s.io/v1")
    await install_crd(cluster)
    nodes: list[Manifest] = []
    published: list[Manifest] = []
    for machine in machines_of_the_examples():
        for number in range(COPIES if "nvidia.com/gpu.product" in machine["metadata"]["labels"] else 0):
            name = machine["metadata"]["name"] + (f"-{number}" if number else "")
            labels = {**machine["metadata"]["labels"], "kubernetes.io/hostname": name}
            node, listed = in_dra_mode({**machine, "metadata": {**machine["metadata"], "name": name, "labels": labels}})
            nodes.append(node)
            published.append(listed)
    cluster.simulated.create_nodes(nodes)
    created = [await cluster.create(manifest) for manifest in (*DEVICE_CLASSES, *published)]
    priorities = "/apis/scheduling.k8s.io/v1/priorityclasses"
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "production"}, "value": 1}
    await cluster.request("POST", priorities, body=priority)
    yield tuple(published)
    await cluster.request("DELETE", f"{priorities}/production")
    for manifest in (*created, *nodes):
        await cluster.delete(manifest["kind"], manifest["metadata"]["name"])


@pytest.mark.extended
@pytest.mark.timeout(420)
async def test_the_pods_of_every_example_get_a_node_without_a_field_set_by_hand(
    cluster: Cluster, slices: tuple[Manifest, ...], sim: Simulator
) -> None:
    await sim.script(path="ok", pull="0", load="0")
    manifests: list[dict[str, Any]] = [
        with_uuids(manifest, slices)
        for path in EXAMPLES
        if path.stem not in OF_THE_PLUGIN
        for manifest in yaml.safe_load_all(path.read_text("utf-8"))
    ]
    deployments = [each for each in manifests if each["kind"] == KIND]
    names = {each["metadata"]["name"] for each in deployments if not each["spec"].get("parallelism", {}).get("nodes")}
    async with OperatorProcess(cluster.kubeconfig, lease=f"{cluster.namespace}/vllm-operator") as operator:
        await operator.until_ready(within=60)
        named = set(re.findall(r"(?:pvc://|claimName: )([a-z0-9-]+)", yaml.safe_dump_all(manifests)))
        for name in named - {each["metadata"]["name"] for each in manifests}:  # which the user brings
            await cluster.create(in_namespace({**CLAIM, "metadata": {"name": name}}, cluster))
        pinned = [each for each in deployments if "uuids" in str(each["spec"].get("accelerator"))]
        for manifest in pinned:
            await cluster.create(in_namespace(manifest, cluster))
        await placed_pods(cluster, {each["metadata"]["name"] for each in pinned})  # before others take their devices
        for manifest in (each for each in manifests if each not in pinned):
            await cluster.create(in_namespace(manifest, cluster))
        placed = await placed_pods(cluster, names)
        told = {each["metadata"]["name"]: condition(each, "Ready")["message"] for each in await cluster.list_all("VLLMDeployment")}
        assert not names - placed.keys(), "\n".join(f"{name}: {told[name]}" for name in names - placed.keys())
        claims = {each["metadata"]["name"]: each for each in await cluster.list_all("ResourceClaim")}
    for pod in placed.values():
        [used] = pod["status"]["resourceClaimStatuses"]
        results = claims[used["resourceClaimName"]]["status"]["allocation"]["devices"]["results"]
        assert {(each["driver"], each["pool"]) for each in results} == {("gpu.nvidia.com", pod["spec"]["nodeName"])}
    assert "Traceback" not in operator.log, operator.log


def in_namespace(manifest: Manifest, cluster: Cluster) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": cluster.namespace}}


async def report_fetched(cluster: Cluster, pod: Manifest) -> None:
    """Put in what the program that downloads weights would have reported: the simulated Pod completes without a word."""
    [status] = pod["status"].get("containerStatuses") or [{}]
    ended = status.get("state", {}).get("terminated")
    if ended and pod["status"].get("phase") == "Succeeded" and not ended.get("message"):
        ended["message"] = json.dumps({"result": "Fetched", "commit": "0123456789abcdef0123456789abcdef01234567"})
        await cluster.patch("Pod", pod["metadata"]["name"], {"status": {"containerStatuses": [status]}}, subresource="status")


async def placed_pods(cluster: Cluster, names: set[str]) -> dict[str, Manifest]:
    """A Pod of each engine that the scheduler has placed by a claim, by its instance; after four minutes, what there is."""
    placed: dict[str, Manifest] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(240):
            while names - placed.keys():
                for pod in await cluster.list_all("Pod"):
                    if "-fetch-" in pod["metadata"]["name"]:
                        await report_fetched(cluster, pod)
                    if pod["spec"].get("nodeName") and pod["spec"].get("resourceClaims"):
                        placed[pod["metadata"]["labels"][INSTANCE_LABEL]] = pod
                await asyncio.sleep(0.5)
    return placed
