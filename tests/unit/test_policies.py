"""Policies for GPUs: which of those are taken on which a model fits, and what is said about the others."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.gpus import inventory_of, real_node
from support.operators import Bench, controlled_by_deployment, llama
from support.plans import deployment, known
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.controller.inventory_reader import InventoryCache
from vllm_operator.inventory.devices import read_used
from vllm_operator.kube.client import POD, Forbidden
from vllm_operator.planning.planner import plan as make_plan

QWEN, LLAMA_70B = "hf://Qwen/Qwen3-8B", "hf://meta-llama/Llama-3.3-70B-Instruct"
FLEET = ("l40s", "h100-sxm", "h200", "b200", "gb10")


def pod(node: str, gpus: int, phase: str = "Running", **labels: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    metadata = {"name": f"on-{node}", "namespace": "default", "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [container]}, "status": {"phase": phase}}


def planned(
    resource: VLLMDeployment,
    *machines: str,
    pods: list[Any] | None = None,
    pinned: Plan | None = None,
) -> Plan:
    inventory = inventory_of(*(real_node(machine, machine) for machine in machines))
    if pods is not None:
        inventory = replace(inventory, used=read_used(pods).all)
    made = make_plan(resource, inventory, known(), pinned=pinned).plan
    assert made is not None
    return made


def with_policy(policy: str, uri: str = QWEN, generation: int = 1, **accelerator: Any) -> VLLMDeployment:
    return deployment(uri, generation=generation, accelerator={"policy": policy, **accelerator})


def verdicts(plan: Plan) -> dict[str, str]:
    return {each.gpu: each.verdict for each in plan.candidates or ()}


@pytest.mark.parametrize(
    ("policy", "uri", "product", "count"),
    [
        ("SmallestThatFits", QWEN, "NVIDIA-L40S", 1),
        ("MostCapable", QWEN, "NVIDIA-B200", 1),
        ("SmallestThatFits", LLAMA_70B, "NVIDIA-B200", 1),
    ],
)
def test_each_policy_takes_another_gpu(policy: str, uri: str, product: str, count: int) -> None:
    made = planned(with_policy(policy, uri), *FLEET)
    assert (made.product, made.count) == (product, count)


def test_most_free_counts_what_the_pods_on_the_nodes_request() -> None:
    request = with_policy("MostFree")
    assert planned(request, "h100-sxm", "h200", pods=[pod("h100-sxm", 7)]).product == "NVIDIA-H200"
    made = planned(request, "h100-sxm", "h200", pods=[pod("h100-sxm", 2), pod("h200", 3), pod("h100-sxm", 6, "Succeeded")])
    assert made.product == "NVIDIA-H100-80GB-HBM3"
    assert verdicts(made)["1 x NVIDIA H200 141GB (sm_90)"] == "fits; free for 5 replicas"


def test_most_free_without_a_view_of_the_pods_takes_the_smallest_and_says_so() -> None:
    made = planned(with_policy("MostFree"), "l40s", "h200")
    assert made.product == "NVIDIA-L40S"
    assert "it is unknown which GPUs are free" in made.notes[0]


def test_a_policy_takes_the_place_of_the_order_in_the_spec() -> None:
    products = ["NVIDIA-H200", "NVIDIA-L40S"]
    assert planned(deployment(QWEN, accelerator={"products": products}), *FLEET).product == "NVIDIA-H200"
    assert planned(with_policy("SmallestThatFits", products=products), *FLEET).product == "NVIDIA-L40S"


def test_a_model_of_unknown_size_follows_the_policy_too() -> None:
    assert planned(with_policy("MostCapable", "hf://acme/unheard-of"), *FLEET).product == "NVIDIA-B200"


def test_a_gpu_in_use_stays_until_the_policy_changes() -> None:
    pinned = planned(with_policy("SmallestThatFits"), *FLEET)
    edited = deployment(QWEN, generation=2, accelerator={"policy": "SmallestThatFits"}, backends={"attention": "TRITON_ATTN"})
    assert planned(edited, *FLEET, pinned=pinned).product == "NVIDIA-L40S"
    assert planned(with_policy("MostCapable", generation=2), *FLEET, pinned=pinned).product == "NVIDIA-B200"


@pytest.mark.parametrize("policy", ["SmallestThatFits", "MostCapable", "MostFree"])
def test_a_plan_in_force_stays_whatever_is_free_today(policy: str) -> None:
    request = with_policy(policy, LLAMA_70B)
    pinned = planned(request, *FLEET, pods=[])
    inventory = inventory_of(*(real_node(machine, machine) for machine in FLEET))
    outcome = make_plan(request, inventory, known(), pinned=pinned)
    assert (outcome.plan, outcome.drift) == (pinned, ())


def test_every_gpu_of_the_cluster_is_listed_with_the_reason() -> None:
    made = planned(deployment(LLAMA_70B, accelerator={"products": ["NVIDIA-H200", "NVIDIA-L40S", "NVIDIA-GB10"]}), *FLEET, "h100-mig-mixed")
    found = verdicts(made)
    assert next(iter(found.items())) == ("2 x NVIDIA H200 141GB (sm_90)", "chosen")
    assert found["4 x NVIDIA L40S (sm_89)"] == "fits on 4"
    assert found["1 x NVIDIA GB10 (sm_121)"].startswith("does not fit: ")
    assert found["NVIDIA B200 (sm_100)"] == "not in spec.accelerator.products"


def test_with_one_kind_of_gpu_there_is_nothing_to_list() -> None:
    assert planned(deployment(QWEN), "h200").candidates is None


HOSTILE = st.recursive(
    st.none() | st.integers() | st.text(max_size=9), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner)
)


@given(st.lists(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), HOSTILE)))
def test_no_pod_makes_counting_fail(pods: list[dict[str, Any]]) -> None:
    read_used(pods)


def test_init_containers_and_own_pods_count_as_in_the_scheduler() -> None:
    entry = pod("n", 2)
    entry["spec"]["initContainers"] = [{"resources": {"requests": {"nvidia.com/gpu": "3"}}}]
    labels = {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": "demo", "app.kubernetes.io/component": "engine"}
    own, copy = pod("n", 1), pod("n", 1, **labels, **{"app.kubernetes.io/managed-by": "vllm-operator"})
    own["metadata"] |= controlled_by_deployment("demo", labels)
    assert read_used([entry, own]).all == {("n", "nvidia.com/gpu"): 4}
    assert read_used([entry, copy]).without(("default", "demo")) == {("n", "nvidia.com/gpu"): 4}, "a Pod of somebody else with all labels"
    assert read_used([entry, own]).without(("default", "demo")) == {("n", "nvidia.com/gpu"): 3}


async def test_pods_are_listed_only_for_a_new_plan_with_the_policy() -> None:
    bench = Bench(real_node("h100-sxm", "h100-sxm"), real_node("h200", "h200"))
    bench.cluster.put({"apiVersion": "v1", "kind": "Pod", **pod("h100-sxm", 6)})
    bench.cluster.put(llama(accelerator={"policy": "MostFree"}))
    await bench.settle()
    assert bench.plan().product == "NVIDIA-H200"
    assert bench.status().plan is not None
    calls = bench.cluster.calls["find"]
    await bench.settle()
    after = bench.cluster.calls["find"] - calls
    bench.cluster.put(llama("other"))
    await bench.settle(("default", "other"))
    calls = bench.cluster.calls["find"]
    await bench.settle(("default", "other"))
    assert after == bench.cluster.calls["find"] - calls
    assert [f"{each.gpu}: {each.verdict}" for each in bench.plan().candidates or ()] == [
        "1 x NVIDIA H200 141GB (sm_90): chosen; free for 8 replicas",
        "1 x NVIDIA H100 80GB (sm_90): fits; free for 2 replicas",
    ]


async def test_an_operator_that_may_not_list_the_pods_knows_nothing_of_free_gpus() -> None:
    bench = Bench(real_node("h200", "a"), real_node("h200", "b"))
    bench.cluster.put({"apiVersion": "v1", "kind": "Pod", **pod("a", 6)})
    await bench.inventory.read()
    found = await bench.inventory.used_devices()
    assert found is not None
    assert found.all == {("a", "nvidia.com/gpu"): 6}
    bench.cluster.fail("find", POD, Forbidden("no", verb="list", resource="pods"), times=2)
    assert await bench.inventory.used_devices() is None


async def test_the_plan_says_which_gpus_the_spec_does_not_allow() -> None:
    bench = Bench(real_node("h100-sxm", "h100-sxm"), real_node("h200", "h200"))
    bench.cluster.put(llama(accelerator={"products": ["NVIDIA-H200"]}))
    await bench.settle()
    assert [each.verdict for each in bench.plan().candidates or ()] == ["chosen", "not in spec.accelerator.products"]


async def test_slices_in_use_are_left_to_others_and_an_operator_for_some_namespaces_asks_for_no_pods() -> None:
    bench = Bench(real_node("h100-mig-mixed", "mixed"), real_node("h100-sxm", "whole"))
    container = {"name": "other", "resources": {"limits": {"nvidia.com/mig-3g.40gb": "1"}}}
    other = {"metadata": {"name": "other", "namespace": "x"}, "spec": {"nodeName": "mixed", "containers": [container]}}
    bench.cluster.put(llama())
    await bench.settle()
    assert bench.plan().mig_profile == "3g.40gb"
    bench.cluster.put({"apiVersion": "v1", "kind": "Pod", **other})
    bench.cluster.put(llama("second"))
    await bench.settle(("default", "second"))
    assert bench.plan("second").mig_profile is None
    bench.inventory = InventoryCache(bench.cluster, bench.read_inventory, sees_all_pods=False, clock=lambda: 0.0)
    assert await bench.inventory.used_devices(insist=False) is None
