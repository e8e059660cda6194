"""What exposes an engine beside its Service, on a cluster in memory."""

from typing import Any

from support.operators import Bench, llama
from vllm_operator.kube.client import DEPLOYMENT, NETWORK_POLICY

POLICY: dict[str, Any] = {"ingressFrom": [{"podSelector": {"matchLabels": {"app": "chat"}}}]}


def change(bench: Bench, generation: int, **spec: Any) -> None:
    resource = bench.resource()
    kept = {name: value for name, value in {**resource["spec"], **spec}.items() if value is not None}
    bench.cluster.put({**resource, "spec": kept, "metadata": {**resource["metadata"], "generation": generation}})


async def test_a_network_policy_is_written_once(bench: Bench) -> None:
    bench.cluster.put(llama(networkPolicy=POLICY))
    await bench.settle()
    [policy] = bench.cluster.all(NETWORK_POLICY)
    assert policy["spec"]["ingress"] == [{"from": POLICY["ingressFrom"], "ports": [{"port": 8000, "protocol": "TCP"}]}]
    bench.restart()
    await bench.settle()
    assert [write.kind for write in bench.cluster.writes].count("NetworkPolicy") == 1


async def test_it_comes_and_goes_without_a_new_plan_or_a_rollout(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    plan, [deployment] = bench.status().plan, bench.cluster.all(DEPLOYMENT)
    change(bench, 2, networkPolicy=POLICY)
    await bench.settle()
    assert bench.cluster.all(NETWORK_POLICY)
    change(bench, 3, networkPolicy=None)
    bench.restart()  # what it knew is forgotten; the generation in the status says that there is something to do
    await bench.settle()
    assert not bench.cluster.all(NETWORK_POLICY)
    assert bench.status().plan == plan
    [now] = bench.cluster.all(DEPLOYMENT)
    assert now["spec"] == deployment["spec"]
