"""Which image, for which driver."""

from typing import Any

import pytest

from support.gpus import real_node
from support.plans import deployment, made, refusal
from vllm_operator.catalog.gpus import cuda_of_tag

COMPATIBILITY = "VLLM_ENABLE_CUDA_COMPATIBILITY"


def labels(cuda: str | None, driver: str | None = None) -> dict[str, str | None]:
    """Labels of a driver; None removes them."""
    major, minor = cuda.split(".") if cuda else (None, None)
    return {
        "nvidia.com/cuda.runtime-version.major": major,
        "nvidia.com/cuda.runtime-version.minor": minor,
        "nvidia.com/cuda.runtime.major": major,
        "nvidia.com/cuda.runtime.minor": minor,
        "nvidia.com/cuda.driver-version.full": driver,
    }


@pytest.mark.parametrize(
    ("version", "cuda", "image", "compatibility"),
    [
        ("0.33.0", "13.0", "vllm/vllm-openai:v0.33.0", False),
        ("0.33.0", "13.2", "vllm/vllm-openai:v0.33.0", False),
        ("0.33.0", "12.9", "vllm/vllm-openai:v0.33.0-cu129", False),
        ("0.20.1", "12.8", "vllm/vllm-openai:v0.20.1-cu129", True),
        ("0.20.1", "12.2", "vllm/vllm-openai:v0.20.1-cu129", True),
        ("0.19.0", "13.0", "vllm/vllm-openai:v0.19.0", False),
        ("0.16.0", "12.8", "vllm/vllm-openai:v0.16.0", False),
        ("0.11.0", "12.8", "vllm/vllm-openai:v0.11.0", False),
    ],
)
def test_the_image_suits_the_driver(version: str, cuda: str, image: str, compatibility: bool) -> None:
    plan = made(deployment(engine={"version": version}), real_node("h200", labels=labels(cuda)))
    assert plan.image == image
    assert any(v.name == COMPATIBILITY and v.value == "1" for v in plan.env) is compatibility


def test_an_image_of_the_user_is_taken_or_refused_with_what_can_be_done() -> None:
    request = deployment(engine={"image": "vllm/vllm-openai:v0.20.1"})
    reason, message = refusal(request, real_node("h100-sxm-old-driver"))
    assert reason == "NoMatchingGPU"
    assert "vllm/vllm-openai:v0.20.1 is built with CUDA 13.0, but the GPU driver supports CUDA 12.2" in message
    for remedy in ("driver to 580 or later", "-cu129", COMPATIBILITY):
        assert remedy in message


@pytest.mark.parametrize(
    "insistence",
    [
        {"annotations": {"vllm-operator.dev/allow-unsupported": "true"}},
        {"engine": {"image": "vllm/vllm-openai:v0.20.1", "env": [{"name": COMPATIBILITY, "value": "1"}]}},
    ],
)
def test_who_insists_gets_the_image(insistence: dict[str, Any]) -> None:
    request = deployment(**{"engine": {"image": "vllm/vllm-openai:v0.20.1"}, **insistence})
    assert made(request, real_node("h100-sxm-old-driver")).image == "vllm/vllm-openai:v0.20.1"


def test_cards_without_forward_compatibility_need_a_newer_driver() -> None:
    reason, message = refusal(deployment(), real_node("rtx-5090", labels=labels("12.4")))
    assert reason == "NoMatchingGPU"
    assert "driver" in message
    assert COMPATIBILITY not in message


def test_an_image_without_kernels_for_the_gpu_is_refused() -> None:
    _, message = refusal(deployment(engine={"version": "0.11.0"}), real_node("gb10"))
    assert "CUDA 12.8, which does not support sm_121" in message


@pytest.mark.parametrize(
    ("version", "image", "needed"),
    [
        ("0.20.1", "vllm/vllm-openai:v0.20.1-cu129", "CUDA 12.9"),
        ("0.18.0", "vllm/vllm-openai:v0.18.0", "CUDA 12.9"),
    ],
)
def test_without_any_word_on_the_driver_the_image_with_cuda_12_is_taken_and_noted(version: str, image: str, needed: str) -> None:
    plan = made(deployment(engine={"version": version}), real_node("gke-h100"))
    assert plan.image == image
    assert any(f"needs a driver that supports {needed}" in note for note in plan.notes)


def test_without_any_word_on_the_driver_a_gpu_that_needs_cuda_13_gets_it() -> None:
    thor = real_node("gb10", labels={**labels(None), "nvidia.com/gpu.compute.major": "11", "nvidia.com/gpu.compute.minor": "0"})
    assert made(deployment(), thor).image == "vllm/vllm-openai:v0.20.1"


def test_the_branch_of_the_driver_tells_enough() -> None:
    node = real_node("h200", labels=labels(None, "570.133.20"))
    assert made(deployment(), node).image == "vllm/vllm-openai:v0.20.1-cu129"


def test_of_an_image_with_an_unknown_cuda_nothing_is_said() -> None:
    engine = {"image": "registry.example/inference:7", "version": "0.20.1"}
    assert made(deployment(engine=engine), real_node("h100-sxm-old-driver")).image == "registry.example/inference:7"


@pytest.mark.parametrize(
    ("image", "want"),
    [
        ("vllm/vllm-openai:v0.24.0-cu129", (12, 9)),
        ("vllm/vllm-openai:cu130-nightly", (13, 0)),
        ("registry:5000/vllm-openai:v0.24.0", None),
        ("example/cu129:latest", None),
        ("example/vllm:cuda12.8-v1", (12, 8)),
    ],
)
def test_tags_name_their_cuda(image: str, want: tuple[int, int] | None) -> None:
    assert cuda_of_tag(image) == want


def test_insisting_on_something_else_does_not_cost_the_image_that_suits_the_driver() -> None:
    request = deployment(engine={"version": "0.20.1"}, annotations={"vllm-operator.dev/allow-unsupported": "true"})
    assert made(request, real_node("h200", labels=labels("12.8"))).image == "vllm/vllm-openai:v0.20.1-cu129"


@pytest.mark.parametrize(
    ("image", "devices"),
    [
        ("vllm/vllm-openai-cpu:v0.28.0", "CPUs"),
        ("public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.28.0", "CPUs"),
        ("vllm/vllm-openai-rocm:v0.28.0", "AMD GPUs"),
        ("rocm/vllm:latest", "AMD GPUs"),
        ("registry.example:5000/own/vllm:0.28.0-rocm7.0", "AMD GPUs"),
        ("registry.example/own/vllm:0.28.0-xpu", "Intel GPUs"),
        ("quay.io/ascend/vllm-ascend:v0.11.0", "Ascend NPUs"),
        ("vllm/vllm-tpu@sha256:" + "0" * 64, "TPUs"),
    ],
)
def test_an_image_for_other_devices_is_refused(image: str, devices: str) -> None:
    reason, message = refusal(deployment(engine={"image": image}), real_node("h200"))
    assert reason == "Unsupported"
    assert f"is for {devices} and has no CUDA build" in message


def test_an_image_for_other_devices_in_the_pod_template_is_refused() -> None:
    container = {"name": "vllm", "image": "vllm/vllm-openai-cpu:v0.28.0"}
    assert refusal(deployment(podTemplate={"spec": {"containers": [container]}}), real_node("h200"))[0] == "Unsupported"


def test_who_insists_on_an_image_for_other_devices_gets_a_note_first() -> None:
    insistence = {"vllm-operator.dev/allow-unsupported": "true"}
    plan = made(deployment(engine={"image": "vllm/vllm-openai-cpu:v0.28.0"}, annotations=insistence), real_node("h200"))
    assert "has no CUDA build" in plan.notes[0]


@pytest.mark.parametrize("image", ["cpu.registry.example/vllm:0.20.1", "own/vllm:0.20.1-cpu-offload", "cpu-team/vllm:0.20.1"])
def test_a_word_that_does_not_name_the_devices_is_no_reason(image: str) -> None:
    assert made(deployment(engine={"image": image}), real_node("h200")).image == image
