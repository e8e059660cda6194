"""Nodes that were given other GPUs: a plan that is made anew is made for what is there, and it is told when none fits any more."""

from typing import Any

import pytest

from support.gpus import real_node
from support.operators import Bench, llama
from vllm_operator.api.labels import RAN_ANNOTATION
from vllm_operator.kube.client import NODE, REVISION, VLLM_DEPLOYMENT

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
    assert (product(replaced), replaced.plan_verdict().reason) == ("NVIDIA-H100-80GB-HBM3", "Planned")


async def wait_for_node(replaced: Bench) -> None:
    """A Pod of the plan finds no node."""
    replaced.pass_time(6)
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": AFFINITY}
    pod = replaced.add_pod(phase="Pending", conditions=[waits])
    replaced.cluster.put({**pod, "spec": replaced.deployment()["spec"]["template"]["spec"]})
    await replaced.settle()


async def test_a_plan_that_never_ran_follows_the_nodes(replaced: Bench) -> None:
    await wait_for_node(replaced)
    assert product(replaced) == "NVIDIA-H200"


async def test_a_plan_that_ran_stays_and_its_pod_tells_that_the_nodes_are_others_now(replaced: Bench) -> None:
    [revision] = replaced.cluster.all(REVISION)
    ran = {"metadata": {"annotations": {RAN_ANNOTATION: "2026-11-21T12:00:00Z"}}}
    replaced.cluster.edit(REVISION, "default", revision["metadata"]["name"], ran)
    await wait_for_node(replaced)
    assert replaced.plan_verdict().reason == "PlanDrifted"
    assert "The plan is for NVIDIA-H100-80GB-HBM3, and NVIDIA-H200 is free now. To use NVIDIA-H200, request a new plan" in (
        replaced.condition("Ready").message
    )
