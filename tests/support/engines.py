"""VLLMDeployments whose engine is the stand-in of `hack/engine`, and their Pods on a real node."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from support.cluster import Cluster, Manifest, RefusedError
from support.operator_process import has, llama

ENGINE_IMAGE = "docker.io/library/vllm-engine:test"
COMPILED_ENGINE_IMAGE = "docker.io/library/vllm-engine-compiled:test"
"""The same, with Python's bytecode in it."""
ENGINE = "app.kubernetes.io/component=engine"
SERVING = "Application startup complete"


def model(
    cluster: Cluster, *, name: str = "llama", spec: Mapping[str, Any] | None = None, pod: Manifest | None = None, **env: str
) -> Manifest:
    """A VLLMDeployment whose engine is the stand-in; `speed="5"` becomes ENGINE_SPEED, `pod` is the spec of its Pod template."""
    variables = [{"name": f"ENGINE_{key.upper()}", "value": value} for key, value in env.items()]
    engine = {"image": ENGINE_IMAGE, "version": "0.20.1", "env": variables}
    given = {"podTemplate": {"spec": _small(pod or {})}, **(spec or {})}
    return llama(cluster.namespace, name, engine=engine, **given)


def _small(pod: Manifest) -> Manifest:
    """The spec of a Pod whose engine requests little: the node of the suite may have two cores, and several engines run on it."""
    little = {"requests": {"cpu": "10m", "memory": "64Mi"}}
    [engine] = pod.get("containers") or [{"name": "vllm"}]
    return {**pod, "containers": [{"resources": little, **engine}]}


def container(**content: Any) -> Manifest:
    """A Pod's spec that says something about the engine's container."""
    return {"containers": [{"name": "vllm", **content}]}


async def the_engine(cluster: Cluster, name: str = "llama") -> Manifest:
    pods = await cluster.list_all("Pod", selector=f"{ENGINE},app.kubernetes.io/instance={name}")
    [pod] = [it for it in pods if not it["metadata"].get("deletionTimestamp")]
    return pod


def restarts(pod: Manifest) -> int:
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", ()))


def has_stage(*stages: str) -> Callable[[Manifest], bool]:
    """A predicate for `wait_for`: a start is in one of these stages, or in any."""

    def check(resource: Manifest) -> bool:
        stage = (resource.get("status", {}).get("startup") or {}).get("stage")
        return stage in stages if stages else bool(stage)

    return check


async def until_ready(cluster: Cluster, name: str = "llama", *, within: float = 120) -> Manifest:
    return await cluster.wait_for("VLLMDeployment", name, has("Ready", "True"), within=within)


async def fetch(cluster: Cluster, pod: Manifest, path: str) -> str:
    """What an engine answers, asked through the API server."""
    name = pod["metadata"]["name"]
    return await cluster.read(f"/api/v1/namespaces/{cluster.namespace}/pods/{name}:8000/proxy{path}")


async def seconds_to_serve(cluster: Cluster, pod: Manifest) -> float:
    """How long the engine took, by the time stamps of its container's log."""
    log = await cluster.read_log(pod["metadata"]["name"], container="vllm", timestamps="true")
    lines = [line.partition(" ") for line in log.split("\n") if line]
    [done] = [stamp for stamp, _, text in lines if SERVING in text]
    return (datetime.fromisoformat(done) - datetime.fromisoformat(lines[0][0])).total_seconds()


async def told_once(cluster: Cluster, name: str = "llama") -> list[str]:
    """The reasons of the events about a VLLMDeployment.

    Raises:
        AssertionError: Something was told twice.
    """
    told = [(event["reason"], event["message"]) for event in await cluster.events(name=name)]
    assert len(told) == len(set(told)), told
    return [reason for reason, _ in told]


async def nothing_moved(cluster: Cluster, before: Manifest, name: str = "llama") -> None:
    """The same Pod in the same run serves as before, there was one rollout, and nothing was told twice.

    Raises:
        AssertionError: It is not so.
    """
    after = await the_engine(cluster, name)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert restarts(after) == restarts(before)
    assert (await cluster.get("Deployment", name))["metadata"]["generation"] == 1
    assert (await told_once(cluster, name)).count("Started") == 1


async def eventually(check: Callable[[], Any], *, within: float) -> Any:
    """Ask until the answer is true, and return it; what is not found counts as no.

    Raises:
        AssertionError: It was not, in time.
    """
    answer: Any = None
    try:
        async with asyncio.timeout(within):
            while True:
                try:
                    answer = await check()
                except (RefusedError, ValueError):
                    answer = None
                if answer:
                    return answer
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"not within {within:g} s: {answer!r}") from None
