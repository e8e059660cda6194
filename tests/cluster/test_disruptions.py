"""Evictions, as `kubectl drain` requests them, with the real eviction API and the real controller of PodDisruptionBudgets."""

from collections.abc import Callable

import pytest

from support.cluster import Cluster, Manifest, Simulator
from support.operator_process import OperatorProcess, condition, has, llama

pytestmark = pytest.mark.cluster

ENGINES = "app.kubernetes.io/component=engine"
EVICTED, NOT_NOW = 201, 429


def allows(number: int) -> Callable[[Manifest], bool]:
    return lambda budget: bool(budget.get("status", {}).get("disruptionsAllowed") == number)


async def serve(cluster: Cluster, replicas: int) -> list[str]:
    """Serve with this many replicas; return the names of the Pods."""
    shared = {"volume": {"accessMode": "ReadWriteMany"}}
    await cluster.create(llama(cluster.namespace, replicas=replicas, cache=shared))
    await cluster.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    return await cluster.wait_for_pods(replicas, selector=ENGINES)


async def test_a_second_replica_is_evicted_only_when_another_serves_again(
    served: Cluster, sim: Simulator, operator: OperatorProcess
) -> None:
    first, second = await serve(served, 2)
    await served.wait_for("PodDisruptionBudget", "llama", allows(1))
    await sim.script(path="ok", load="hold")
    assert await served.evict(first) == EVICTED
    [new] = await served.wait_for_pods(1, selector=ENGINES, but=[first, second])
    await served.wait_for("PodDisruptionBudget", "llama", allows(0))
    assert await served.evict(second) == NOT_NOW
    # a Pod that does not serve is never kept: a crashed engine must not block the drain of a node
    await served.wait_until_runs(new)
    assert await served.evict(new) == EVICTED
    await sim.script(path="ok", load="0")
    [last] = await served.wait_for_pods(1, selector=ENGINES, but=[first, second, new])
    await sim.change(last, load="0")
    await served.wait_for("PodDisruptionBudget", "llama", allows(1))
    assert await served.evict(second) == EVICTED
    await served.wait_until_gone("Pod", second)

    await served.delete("VLLMDeployment", "llama")
    await served.wait_until_gone("PodDisruptionBudget", "llama")


async def test_a_single_replica_can_be_evicted(served: Cluster, operator: OperatorProcess) -> None:
    [pod] = await serve(served, 1)
    assert not await served.exists("PodDisruptionBudget", "llama")
    assert await served.evict(pod) == EVICTED


async def test_a_budget_of_a_user_is_the_only_one_for_its_pods(served: Cluster, operator: OperatorProcess) -> None:
    """With two, the eviction API would refuse every eviction."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app.kubernetes.io/instance": "llama"}}}
    metadata = {"name": "theirs", "namespace": served.namespace}
    theirs = await served.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec})
    first, _ = await serve(served, 2)
    await served.wait_for("PodDisruptionBudget", "theirs", allows(1))
    assert await served.evict(first) == EVICTED
    assert condition(await served.get("VLLMDeployment", "llama"), "Protected")["status"] == "True"
    assert [it["metadata"]["uid"] for it in await served.list_all("PodDisruptionBudget")] == [theirs["metadata"]["uid"]]
