"""GPUs as records of measurements name them."""

import pytest

from vllm_operator.catalog.loader import load_catalog
from vllm_operator.sizing.resolve import find_product


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("RTX PRO 6000 Blackwell", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"),
        ("H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("24 GB class (inferred)", None),
        ("", None),
    ],
)
def test_a_gpu_is_found_by_the_words_of_its_label_or_title(name: str, product: str | None) -> None:
    found = find_product(name, load_catalog().gpus)
    assert (found.name if found else None) == product
