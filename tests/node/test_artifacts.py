"""Caches that are published to a real registry, with TLS and an account, to Pods that share no volume with those that filled them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nodeenv import NodeEnvironment
from nodeenv.configuration import MACHINE_ADDRESS
from support.cluster import Cluster, Manifest
from support.engines import ENGINE, eventually, model, seconds_to_serve, the_engine, until_ready
from support.operator_process import condition, has
from support.registry import Registry
from support.sessions import own_namespace
from support.verdicts import cache_verdict, has_cache

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

REPOSITORY = "team/caches"
SPEED = "20"


@pytest.fixture(scope="module")
def registry(environment: NodeEnvironment) -> Iterator[Registry]:
    control_plane = environment.control_plane
    folder = environment.folder / "registry"
    running = Registry(folder, control_plane.authority, control_plane.authority_key, address=MACHINE_ADDRESS)
    running.start()
    yield running
    running.stop()


async def log_in(cluster: Cluster, name: str, content: dict[str, str]) -> None:
    metadata = {"name": name, "namespace": cluster.namespace}
    kind = "kubernetes.io/dockerconfigjson"
    await cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "stringData": content})


def with_artifact(cluster: Cluster, registry: Registry, *, replicas: int = 1, speed: str = SPEED, **cache: Any) -> Manifest:
    artifact = {"repository": f"{registry.host}/{REPOSITORY}", "pullSecretRef": {"name": "read"}, **cache.pop("artifact", {})}
    return model(cluster, speed=speed, spec={"replicas": replicas, "cache": {**cache, "artifact": artifact}})


async def fetch_result(cluster: Cluster, pod: Manifest) -> dict[str, Any]:
    statuses = pod["status"]["initContainerStatuses"]
    ended = next(status for status in statuses if status["name"] == "fetch-caches")["state"]["terminated"]
    return dict(json.loads(ended["message"]))


async def test_three_replicas_of_another_namespace_without_a_volume_start_warm(
    cluster: Cluster, environment: NodeEnvironment, registry: Registry
) -> None:
    for name in ("read", "write"):
        await log_in(cluster, name, registry.account())
    await cluster.create(with_artifact(cluster, registry, artifact={"publish": "WhenPrimed", "pushSecretRef": {"name": "write"}}))
    await until_ready(cluster)
    first = await the_engine(cluster)
    template = (await cluster.get("Deployment", "llama"))["spec"]["template"]
    cold_seconds = await seconds_to_serve(cluster, first)
    assert (await fetch_result(cluster, first))["result"] == "NotFound"
    published = await cluster.wait_for("VLLMDeployment", "llama", has("CachePublished", "True"), within=120)
    assert len(registry.tags(REPOSITORY)) == 2
    deployment = await cluster.get("Deployment", "llama")
    assert (deployment["spec"]["template"], deployment["metadata"]["generation"]) == (template, 1)
    [claim] = [it for it in await cluster.list_all("PersistentVolumeClaim") if it["metadata"]["name"] == "llama-cache"]
    await cluster.delete("VLLMDeployment", "llama")
    await cluster.delete("PersistentVolumeClaim", claim["metadata"]["name"])

    async with own_namespace(environment, grace_seconds=1) as other:
        await log_in(other, "read", registry.account())
        await other.create(with_artifact(other, registry, replicas=3, storage="EmptyDir"))
        warm = await until_ready(other)
        assert warm["status"]["cache"].get("warmStartSeconds") is not None, warm["status"]["cache"]
        assert "were fetched from the registry" in cache_verdict(warm).message
        pods = await other.list_all("Pod", selector=ENGINE)
        results = [await fetch_result(other, pod) for pod in pods]
        assert [result["result"] for result in results] == ["Fetched"] * 3
        assert {result["tag"] for result in results} == {published["status"]["cache"]["artifact"]["tag"]}
        for pod in pods:
            assert await seconds_to_serve(other, pod) * 5 < cold_seconds
        await other.delete("VLLMDeployment", "llama")
        changed = with_artifact(other, registry, storage="EmptyDir")
        changed["metadata"]["name"] = "changed"
        changed["spec"]["engine"]["args"] = [{"name": "max-num-seqs", "value": "8"}]
        await other.create(changed)

        def says_what_differs(resource: Manifest) -> bool:
            return "The artifact was made with other values of --max-num-seqs." in cache_verdict(resource).message

        partly = await other.wait_for("VLLMDeployment", "changed", says_what_differs, within=120)
        assert partly["status"]["cache"]["artifact"]["fetch"] == "PartlyFetched"
        await other.delete("VLLMDeployment", "changed")

        async def is_empty() -> bool:
            return not await other.list_all("Pod")

        await eventually(is_empty, within=60)


async def test_a_primer_publishes_what_replicas_without_a_volume_fetch_after_a_change(cluster: Cluster, registry: Registry) -> None:
    for name in ("read", "write"):
        await log_in(cluster, name, registry.account())
    artifact = {"repository": f"{registry.host}/team/prewarmed", "publish": "WhenPrimed", "pushSecretRef": {"name": "write"}}
    created = await cluster.create(with_artifact(cluster, registry, storage="EmptyDir", artifact=artifact))
    first = await until_ready(cluster)
    assert condition(first, "CachePublished")["reason"] == "WaitingForRollout"
    old = await the_engine(cluster)
    environment = [*created["spec"]["engine"]["env"], {"name": "VLLM_LOG_STATS_INTERVAL", "value": "7"}]
    await cluster.patch("VLLMDeployment", "llama", {"spec": {"engine": {"env": environment}}})
    held = await cluster.wait_for("VLLMDeployment", "llama", has_cache("Compiling"), within=60)
    assert held["status"]["readyReplicas"] == 1
    published = await cluster.wait_for("VLLMDeployment", "llama", has("CachePublished", "True"), within=180)
    await cluster.wait_until_gone("Pod", old["metadata"]["name"], within=120)
    warm = await cluster.wait_for(
        "VLLMDeployment", "llama", lambda it: has("Ready", "True")(it) and "warmStartSeconds" in it["status"]["cache"], within=120
    )
    result = await fetch_result(cluster, await the_engine(cluster))
    assert (result["result"], result["tag"]) == ("Fetched", published["status"]["cache"]["artifact"]["tag"])
    assert "were fetched from the registry" in cache_verdict(warm).message
    assert not await cluster.exists("Deployment", "llama.primer")


FAILURES = {
    "the account is wrong": ("Denied", {}),
    "there is no Secret": ("SecretMissing", {}),
    "there is no artifact": ("NotFound", {"repository": "team/none"}),
    "nobody listens": ("Unreachable", {"host": f"{MACHINE_ADDRESS}:9"}),
}


@pytest.mark.parametrize(("reason", "change"), FAILURES.values(), ids=FAILURES.keys())
async def test_a_start_without_its_artifact_is_cold_and_says_why(
    cluster: Cluster, registry: Registry, reason: str, change: dict[str, str]
) -> None:
    if reason != "SecretMissing":
        await log_in(cluster, "read", registry.account("wrong") if reason == "Denied" else registry.account())
    repository = f"{change.get('host', registry.host)}/{change.get('repository', REPOSITORY)}"
    await cluster.create(with_artifact(cluster, registry, speed="200", storage="EmptyDir", artifact={"repository": repository}))
    ready = await until_ready(cluster)
    pod = await the_engine(cluster)
    result = await fetch_result(cluster, pod)
    assert (result["result"], result["seconds"] < 110) == (reason, True), result
    assert "No caches were fetched" in cache_verdict(ready).message
    assert ready["status"]["cache"]["artifact"]["fetch"] == reason


async def test_an_engine_that_requires_an_artifact_does_not_start_without(cluster: Cluster, registry: Registry) -> None:
    await log_in(cluster, "read", registry.account("wrong"))
    await cluster.create(with_artifact(cluster, registry, speed="200", storage="EmptyDir", artifact={"policy": "Required"}))
    crashed = await cluster.wait_for("VLLMDeployment", "llama", has("Crashed", "True", reason="CacheArtifactRequired"), within=120)
    assert "refuses access" in condition(crashed, "Crashed")["message"]
