"""Two operators that share a cluster by a label of namespaces: the audit log is the witness that each serves only its own."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from support import helm
from support.account import ROLE_GROUP
from support.audit import AuditTrail
from support.cluster import Cluster, Manifest
from support.crd import install_crd
from support.operator_process import OperatorProcess, has, llama
from support.sessions import own_namespace
from testenv import Environment

pytestmark = pytest.mark.cluster

SHARDS = ("a", "b")


@pytest.fixture
async def pair(environment: Environment, gpu_nodes: Callable[..., list[str]]) -> AsyncIterator[tuple[Cluster, Cluster]]:
    """Two namespaces, the first of shard a and the second of shard b. The label has a value of its own for each run of the test."""
    async with own_namespace(environment) as first, own_namespace(environment) as second:
        await install_crd(first)
        gpu_nodes("h100-sxm")
        for shard, cluster in zip(SHARDS, (first, second), strict=True):
            await move(cluster, f"{first.namespace}-{shard}")
        yield first, second


async def move(cluster: Cluster, shard: str) -> None:
    await cluster.patch("Namespace", cluster.namespace, {"metadata": {"labels": {"shard": shard}}})


async def account(cluster: Cluster, shard: str, path: Path) -> tuple[Path, list[Manifest]]:
    """An account with the rights that the chart gives to the operator of a shard, and the manifests of these rights."""
    values = {"settings": {"shard": f"shard={shard}"}, "crds": {"install": False}, "rbac": {"aggregate": False}}
    made = [it for it in helm.template(values, namespace=cluster.namespace) if it["apiVersion"].startswith(ROLE_GROUP)]
    kubeconfig = await cluster.act_as("vllm-operator", path)
    for manifest in made:
        await cluster.apply(manifest)
    return kubeconfig, made


async def test_each_serves_only_the_namespaces_of_its_shard_and_takes_over_one_that_moves(
    pair: tuple[Cluster, Cluster], audit: AuditTrail, tmp_path: Path
) -> None:
    first, second = pair
    shards = [f"{first.namespace}-{shard}" for shard in SHARDS]
    accounts = [await account(cluster, shard, tmp_path / shard) for cluster, shard in zip(pair, shards, strict=True)]
    try:
        async with (
            OperatorProcess(accounts[0][0], lease=f"{first.namespace}/vllm-operator", namespaces="", shard=f"shard={shards[0]}") as one,
            OperatorProcess(accounts[1][0], lease=f"{second.namespace}/vllm-operator", namespaces="", shard=f"shard={shards[1]}") as two,
        ):
            await one.until_ready()
            await two.until_ready()
            for cluster in pair:
                await cluster.create(llama(cluster.namespace))
            for cluster in pair:
                await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
            for own, other in ((first, second), (second, first)):
                written = audit.writes(user=f"system:serviceaccount:{own.namespace}:vllm-operator")
                assert {request.namespace for request in written if request.resource != "leases"} <= {own.namespace, ""}
                assert not [request for request in written if request.namespace == other.namespace]

            audit.mark()
            await move(first, shards[1])
            await one.until_says(f"the namespace {first.namespace} has left the shard")
            await two.until_says(f"the namespace {first.namespace} has joined the shard")
            await first.create(llama(first.namespace, "later"))
            await first.wait_for("VLLMDeployment", "later", has("Ready", "True"))
            served_by = audit.writes(user=f"system:serviceaccount:{second.namespace}:vllm-operator")
            assert any((request.namespace, request.name) == (first.namespace, "later") for request in served_by)
            assert "Traceback" not in one.log + two.log
    finally:
        for manifest in [it for _, made in accounts for it in made if it["kind"].startswith("Cluster")]:
            await first.delete(manifest["kind"], manifest["metadata"]["name"])
