"""VLLMDeployments whose engine is the stand-in of `hack/engine`, and their Pods on a real node."""

from support.cluster import Cluster, Manifest
from support.operator_process import llama

ENGINE_IMAGE = "docker.io/library/vllm-engine:test"
ENGINE = "app.kubernetes.io/managed-by=vllm-operator"


def model(cluster: Cluster, **environment: str) -> Manifest:
    """A VLLMDeployment whose engine is the stand-in; `speed="5"` becomes ENGINE_SPEED."""
    env = [{"name": f"ENGINE_{name.upper()}", "value": value} for name, value in environment.items()]
    return llama(cluster.namespace, engine={"image": ENGINE_IMAGE, "version": "0.20.1", "env": env})


async def the_engine(cluster: Cluster) -> Manifest:
    pods = await cluster.list_all("Pod", selector=ENGINE)
    [pod] = [it for it in pods if not it["metadata"].get("deletionTimestamp")]
    return pod


async def told_once(cluster: Cluster, name: str = "llama") -> list[str]:
    """The reasons of the events about a VLLMDeployment.

    Raises:
        AssertionError: Something was told twice.
    """
    told = [(event["reason"], event["message"]) for event in await cluster.events(name=name)]
    assert len(told) == len(set(told)), told
    assert all(event.get("count", 1) == 1 for event in await cluster.events(name=name))
    return [reason for reason, _ in told]
