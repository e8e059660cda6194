"""The table of GPUs: whole, consistent, and spelled as nodes spell it."""

import re

import pytest

from support.gpus import KINDS, known_gpus, real_node
from vllm_operator.catalog.entry import read_data
from vllm_operator.catalog.gpus import architecture_of, capability_of, product_key
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.inventory.node_labels import split_product

GPUS = known_gpus()


def test_architectures_from_volta_to_blackwell_are_known() -> None:
    names = {"sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"}
    assert set(GPUS.architectures) == names


@pytest.mark.parametrize(
    ("name", "capability", "fp8", "fp4", "mig"),
    [
        ("sm_80", (8, 0), False, False, True),
        ("sm_86", (8, 6), False, False, False),
        ("sm_89", (8, 9), True, False, False),
        ("sm_90", (9, 0), True, False, True),
        ("sm_100", (10, 0), True, True, True),
        ("sm_103", (10, 3), True, True, True),
        ("sm_120", (12, 0), True, True, True),
        ("sm_121", (12, 1), True, True, False),
    ],
)
def test_what_an_architecture_can_do(name: str, capability: tuple[int, int], fp8: bool, fp4: bool, mig: bool) -> None:
    architecture = GPUS.architectures[name]
    assert (capability_of(name), architecture.fp8, architecture.fp4, architecture.mig) == (capability, fp8, fp4, mig)
    assert architecture_of(capability) == name


@pytest.mark.parametrize(("name", "floor"), [("sm_100", (12, 8)), ("sm_120", (12, 8)), ("sm_103", (12, 9)), ("sm_121", (12, 9))])
def test_the_cuda_that_an_architecture_needs(name: str, floor: tuple[int, int]) -> None:
    assert GPUS.architectures[name].cuda == floor


@pytest.mark.parametrize("name", ["sm90", "sm_9", "sm_9.0", "sm_1234", "90", ""])
def test_what_is_no_architecture_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not an architecture"):
        capability_of(name)


def test_every_product_has_a_known_architecture_and_every_label_a_known_product() -> None:
    assert {product.architecture for product in GPUS.products.values()} <= set(GPUS.architectures)
    named = {product for table in GPUS.label_tables for product in table.values.values()}
    assert [name for name in named if GPUS.product(name) is None] == []


def test_products_are_spelled_as_labels_can_be() -> None:
    assert [p.name for p in GPUS.products.values() if not re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,61}[A-Za-z0-9]", p.name)] == []


def test_every_part_of_the_table_has_a_source() -> None:
    table, images = read_data("gpus.yaml"), read_data("images.yaml")
    sources = [*table["sources"].values(), table["presence"]["source"], *images["sources"].values()]
    assert all(sources)
    assert all(label.source for label in GPUS.label_tables)


def test_the_table_agrees_with_real_machines() -> None:
    for kind in KINDS:
        labels = real_node(kind)["metadata"]["labels"]
        product = GPUS.product(split_product(labels.get("nvidia.com/gpu.product", ""))[0])
        if product is None:
            continue
        major, minor = labels["nvidia.com/gpu.compute.major"], labels["nvidia.com/gpu.compute.minor"]
        assert product.architecture == f"sm_{major}{minor}", kind
        if "-MIG-" not in labels["nvidia.com/gpu.product"]:
            assert product.memory_mebibytes == (int(labels["nvidia.com/gpu.memory"]) if "nvidia.com/gpu.memory" in labels else None), kind
        assert product.host in (None, labels["kubernetes.io/arch"]), kind


@pytest.mark.parametrize("name", ["NVIDIA-H200", "nvidia-h200", "H200", "NVIDIA H200"])
def test_products_compare_in_any_spelling(name: str) -> None:
    assert product_key(name) == "h200"
    product = GPUS.product(name)
    assert product is not None
    assert product.title == "H200 141GB"


def test_titles_are_for_people_even_of_unknown_products() -> None:
    assert GPUS.title("NVIDIA-H200", "sm_90") == "NVIDIA H200 141GB (sm_90)"
    assert GPUS.title("NVIDIA-R100", "sm_130") == "NVIDIA R100 (sm_130)"
    assert GPUS.title(None, "sm_90") == "GPU (sm_90)"
    assert GPUS.title(None, None) == "GPU of unknown architecture"


def test_releases_have_images_for_older_drivers() -> None:
    images = load_catalog().images
    assert [variant.suffix for variant in images.variants_of("0.20.1")] == ["-cu129"]
    assert [variant.suffix for variant in images.variants_of("0.19.0")] == ["-cu130"]
    assert images.variants_of("0.11.0") == ()
