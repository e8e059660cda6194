"""Nodes that were given other GPUs: a plan that is made anew is made for what is there, and it is told when none fits any more."""

from typing import Any

import pytest

from support.gpus import real_node
from support.operators import Bench, llama
from vllm_operator.kube.client import NODE, VLLM_DEPLOYMENT

AFFINITY = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."


def product(bench: Bench) -> str | None:
    plan = bench.plan()
    return plan.product


@pytest.fixture
async def replaced() -> Bench:
    """An H100 for which was planned a while ago, and whose picture is still fresh, has become an H200."""
    bench = Bench(real_node("h100-sxm", "gpu-1"))
    bench.cluster.put(llama())
    await bench.settle()
    assert product(bench) == "NVIDIA-H100-80GB-HBM3"
    bench.pass_time(2)
    bench.cluster.put({"apiVersion": "v1", "kind": NODE.kind, **real_node("h200", "gpu-1")})
    return bench


@pytest.mark.parametrize(
    "change",
    [{"metadata": {"annotations": {"vllm-operator.dev/replan": "1"}}}, {"spec": {"engine": {"version": "0.24.0"}}}],
    ids=["a new plan is asked for", "the spec changes"],
)
async def test_a_plan_made_anew_is_for_the_nodes_as_they_are(replaced: Bench, change: dict[str, Any]) -> None:
    replaced.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", change)
    await replaced.settle()
    assert product(replaced) == "NVIDIA-H200"


async def test_another_number_of_replicas_is_no_new_plan_and_reads_no_nodes(replaced: Bench) -> None:
    replaced.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"replicas": 2}})
    await replaced.settle()
    assert (product(replaced), replaced.condition("Planned").reason) == ("NVIDIA-H100-80GB-HBM3", "Planned")


async def test_a_pod_that_no_node_takes_tells_that_the_nodes_are_others_now(replaced: Bench) -> None:
    replaced.pass_time(6)
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": AFFINITY}
    pod = replaced.add_pod(phase="Pending", conditions=[waits])
    replaced.cluster.put({**pod, "spec": replaced.deployment()["spec"]["template"]["spec"]})
    await replaced.settle()
    assert replaced.condition("Planned").reason == "PlanDrifted"
    assert "The current plan is for NVIDIA-H100-80GB-HBM3. A new plan would use NVIDIA-H200. To apply it, set the annotation" in (
        replaced.condition("Progressing").message
    )
