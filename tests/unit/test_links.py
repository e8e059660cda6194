"""What joins the GPUs of a machine: NVLink or PCIe, as far as their product says."""

import pytest

from support.gpus import real_node
from support.plans import deployment, made
from vllm_operator.api.plan import Plan
from vllm_operator.catalog.loader import load_catalog

SMALL, LARGE = "hf://meta-llama/Llama-3.1-8B-Instruct", "hf://meta-llama/Llama-3.3-70B-Instruct"
SXM, PCIE = "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"
OVER_PCIE = "exchange the results of each layer over PCIe"
EIGHT_L40S = real_node("l40s", labels={"nvidia.com/gpu.count": "8"}, allocatable={"nvidia.com/gpu": "8"})
NODES = [
    real_node("h100-sxm", f"node-{number}", labels={"nvidia.com/gpu.product": product, "nvidia.com/gpu.compute.major": "8"})
    for number, product in enumerate((SXM, PCIE))
]


@pytest.mark.parametrize(("uri", "product"), [(LARGE, SXM), (SMALL, PCIE)])
def test_of_equal_gpus_several_with_nvlink_are_taken_together_and_one_is_taken_where_there_are_no_links(uri: str, product: str) -> None:
    assert {made(deployment(uri), *order).product for order in (NODES, NODES[::-1])} == {product}


def test_a_larger_gpu_is_not_taken_for_its_links() -> None:
    nodes = [EIGHT_L40S, real_node("h200")]
    plan = made(deployment(LARGE, accelerator={"count": 8}), *nodes)
    assert plan.product == "NVIDIA-L40S"


def about_links(plan: Plan) -> list[str]:
    return [note for note in plan.notes if OVER_PCIE in note]


def test_several_gpus_without_nvlink_are_told_and_what_vllm_recommends() -> None:
    plan = made(deployment(LARGE), EIGHT_L40S)
    [note] = about_links(plan)
    assert note.endswith(f"set spec.parallelism.pipeline to {plan.count}.")
    recommended = made(deployment(LARGE, parallelism={"pipeline": plan.count}), EIGHT_L40S)
    assert recommended.count == plan.count
    assert about_links(recommended) == []


@pytest.mark.parametrize("kind", ["h100-sxm", "b200"])
def test_nothing_is_said_of_gpus_with_nvlink_or_of_one_gpu(kind: str) -> None:
    assert about_links(made(deployment(LARGE), real_node(kind))) == []
    assert about_links(made(deployment(SMALL), real_node("l40s"))) == []


def test_the_links_of_each_product_follow_from_its_form() -> None:
    for product in load_catalog().gpus.products_by_name.values():
        if "SXM" in product.name or "HBM3" in product.name:
            assert product.links in ("NVLink", None), product.name
        if "PCI" in product.name.upper() or "GeForce" in product.name:
            assert product.links != "NVLink", product.name
