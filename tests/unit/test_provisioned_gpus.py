"""GPUs on nodes that do not exist yet: Karpenter's NodePools, and node pools of zero nodes that a ConfigMap lists."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.gpus import inventory_of, known_gpus, node_pool, real_node
from support.plans import deployment, known
from vllm_operator.api.plan import Plan
from vllm_operator.catalog.user_entries import POOL_FORM, read_instance_types
from vllm_operator.inventory.nodes import read_node_pools
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.planner import plan

SMALL, LARGE = "hf://Qwen/Qwen3-0.6B", "hf://meta-llama/Llama-3.3-70B-Instruct"
L40S = "4 x NVIDIA-L40S node.kubernetes.io/instance-type=g6e.12xlarge"
H100 = "8 x NVIDIA-H100-80GB-HBM3 cloud.google.com/gke-nodepool=h100 kubernetes.io/arch=amd64"


def planned(uri: str, *nodes: Any, node_pools: tuple[Any, ...] = (), pinned: Plan | None = None, types: Any = None, **spec: Any) -> Outcome:
    catalog = replace(known(), instance_types=read_instance_types(types or {}, known_gpus()).entries)
    return plan(deployment(uri, **spec), inventory_of(*nodes, node_pools=node_pools), catalog, pinned=pinned)


def made(*args: Any, **options: Any) -> Plan:
    outcome = planned(*args, **options)
    assert outcome.plan is not None, outcome.planned.message
    return outcome.plan


def affinity(found: Plan) -> dict[str, Any]:
    return {each.key: each.values for each in found.node_requirements}


def test_karpenter_adds_the_node_that_no_pool_has() -> None:
    outcome = planned(SMALL, real_node("cpu"), node_pools=(node_pool(gpu_name=["l40s"], gpu_count=["1"], arch=["amd64"]),))
    found = outcome.plan
    assert found is not None
    assert (found.product, found.resource, found.provisioner) == ("NVIDIA-L40S", "nvidia.com/gpu", "NodePool gpu")
    assert affinity(found) == {
        "kubernetes.io/arch": ["amd64"],
        "karpenter.k8s.aws/instance-gpu-name": ["l40s"],
        "nvidia.com/gpu.slices.gi": None,
    }
    assert "on a node that NodePool gpu would add" in outcome.planned.message


def test_nodes_that_exist_come_first_if_the_model_fits_on_them() -> None:
    pools = (node_pool(gpu_name=["l4", "h200"], gpu_count=["1", "8"]),)
    small = made(SMALL, real_node("b200"), node_pools=pools)
    assert (small.product, small.provisioner) == ("NVIDIA-B200", None)
    assert [each.verdict for each in small.candidates or ()] == [
        "chosen",
        "fits; NodePool gpu would add a node",
        "fits; NodePool gpu would add a node",
    ]
    large = made(LARGE, real_node("l4"), node_pools=pools)
    assert (large.product, large.provisioner) == ("NVIDIA-H200", "NodePool gpu")
    for policy in ("MostCapable", "MostFree", "SmallestThatFits"):
        assert made(SMALL, real_node("l40s"), node_pools=pools, accelerator={"policy": policy}).provisioner is None


def test_a_node_pool_of_the_config_map_gives_the_labels_of_the_affinity() -> None:
    found = made(LARGE, real_node("l4"), types={"h100": H100})
    assert (found.product, found.provisioner) == ("NVIDIA-H100-80GB-HBM3", "node pool h100")
    assert affinity(found)["cloud.google.com/gke-nodepool"] == ["h100"]
    assert affinity(found)["kubernetes.io/arch"] == ["amd64"]
    assert "nvidia.com/gpu.product" not in affinity(found)


def test_a_plan_stays_when_the_node_is_there_and_no_longer_speaks_of_adding_it() -> None:
    before = made(SMALL, types={"h100": H100})
    after = planned(SMALL, real_node("h100-sxm"), types={"h100": H100}, pinned=before)
    assert after.plan == before
    assert "would add" not in after.planned.message
    assert not [each for each in after.drift if "GPU" in each]


def test_a_plan_for_a_node_that_is_still_to_come_is_not_questioned_because_of_others() -> None:
    pools = (node_pool(gpu_name=["h200"], gpu_count=["8"]),)
    one = {"accelerator": {"count": 1}}
    before = made("hf://Qwen/Qwen3-32B", real_node("l4"), node_pools=pools, **one)
    assert (before.product, before.count) == ("NVIDIA-H200", 1)
    after = planned("hf://Qwen/Qwen3-32B", real_node("l4"), node_pools=pools, pinned=before, **one)
    assert (after.plan, after.drift) == (before, ())


def test_a_product_that_is_named_first_comes_after_one_that_is_there() -> None:
    pools = (node_pool(gpu_name=["l40s"], gpu_count=["8"]),)
    found = made(SMALL, real_node("h100-sxm"), node_pools=pools, accelerator={"products": ["NVIDIA-L40S", "NVIDIA-H100-80GB-HBM3"]})
    assert found.product == "NVIDIA-H100-80GB-HBM3"
    unknown = made("hf://acme/new-8b", real_node("l4"), node_pools=(node_pool(gpu_name=["b200"]),))
    assert unknown.product == "NVIDIA-L4"


def test_what_no_node_pool_has_is_said_with_what_they_would_add() -> None:
    outcome = planned(SMALL, types={"h100": H100}, accelerator={"products": ["NVIDIA-B200"]})
    assert outcome.plan is None
    assert "8x NVIDIA H100 80GB (sm_90) that node pool h100 would add" in outcome.planned.message


def test_the_node_selector_of_the_pod_template_applies_to_nodes_that_would_be_added() -> None:
    pools = (node_pool("a", gpu_name=["l4"], labels={"team": "a"}), node_pool("b", gpu_name=["l40s"], labels={"team": "b"}))
    template = {"spec": {"nodeSelector": {"team": "b"}}}
    assert made(SMALL, node_pools=pools, podTemplate=template).provisioner == "NodePool b"


@pytest.mark.parametrize(
    ("pool", "found"),
    [
        (node_pool(gpu_name=["h100"], gpu_count=["1", "8"]), [("NVIDIA-H100-80GB-HBM3", 8)]),
        (node_pool(gpu_name=["l4", "l40s"]), [("NVIDIA-L4", 1), ("NVIDIA-L40S", 1)]),
        (node_pool(gpu_name=["l4"], gpu_count=["8"], limits={"nvidia.com/gpu": "4"}), [("NVIDIA-L4", 4)]),
        (node_pool(gpu_name=["l4"], limits={"nvidia.com/gpu": "0"}), []),
        (node_pool(gpu_name=["mystery"]), []),
        (node_pool(family=["g6"]), []),
        (node_pool(labels={"cloud.google.com/gke-accelerator": "nvidia-l4"}), [("NVIDIA-L4", 1)]),
        ({"metadata": {"name": "gone", "deletionTimestamp": "now"}, "spec": node_pool(gpu_name=["l4"])["spec"]}, []),
        ({"metadata": {"name": "empty"}}, []),
    ],
    ids=["counts", "two GPUs", "a limit", "nothing left", "unknown", "no GPU named", "GKE", "being deleted", "empty"],
)
def test_what_a_node_pool_offers(pool: Any, found: list[tuple[str, int]]) -> None:
    assert [(each.product, each.count) for each, _ in read_node_pools([pool], known_gpus())] == found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["spec", "template", "requirements", "key", "limits"]), inner)
    ),
    max_leaves=12,
)


@given(JSON, JSON)
def test_any_node_pool_is_read(spec: Any, requirements: Any) -> None:
    hostile = {"metadata": {"name": "x"}, "spec": {"template": {"spec": {"requirements": requirements}}, "limits": spec}}
    assert isinstance(read_node_pools([{"metadata": {"name": "x"}, "spec": spec}, hostile], known_gpus()), list)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", POOL_FORM),
        ("4", POOL_FORM),
        ("4 x NVIDIA-L40S", POOL_FORM),
        ("0 x NVIDIA-L40S a=b", POOL_FORM),
        ("4 x NVIDIA-L40S a", POOL_FORM),
        ("4 x NVIDIA-L40S a={{x}}", POOL_FORM),
        ("4 x NVIDIA-L40S " + "a=b " * 500, POOL_FORM),
        ("4 x NVIDIA-L9000 a=b", "NVIDIA-L9000 is not a known GPU"),
    ],
)
def test_an_invalid_entry_is_named_and_ignored(text: str, problem: str) -> None:
    read = read_instance_types({"wrong": text, "right": L40S}, known_gpus())
    assert read.added == ("right",)
    assert [each for each in read.problems if problem in each and "node pool wrong" in each]


def test_more_node_pools_than_the_limit_are_ignored() -> None:
    read = read_instance_types({f"p{number:03}": L40S for number in range(70)}, known_gpus())
    assert len(read.entries) == 64
    assert read.problems == ("there are more than 64 node pools; the others are ignored.",)
