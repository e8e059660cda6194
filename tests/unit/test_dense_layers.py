"""Kernels of dense layers, the prefill of MLA, and the sampler: what is expected, and which pins work.

Each line was wrong in a release. vLLM's own selectors, run by hack/oracle, say what is right.
"""

from typing import Any

import pytest

from support.backends import decide, emitted, notes_of
from vllm_operator.planning.engine.backends import BackendDecision

FP8_BY_MODELOPT, FP8_DYNAMIC = "hf://nvidia/Llama-3.1-8B-Instruct-FP8", "hf://RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"
FP8_BLOCKS, SPARSE = "hf://Qwen/Qwen3-32B-FP8", "hf://deepseek-ai/DeepSeek-V3.2"
NVFP4, NVFP4_COMPRESSED = "hf://nvidia/Llama-3.3-70B-Instruct-FP4", "hf://RedHatAI/Llama-3.3-70B-Instruct-NVFP4"
MLA, OTHER_MLA = "hf://deepseek-ai/DeepSeek-R1", "hf://zai-org/GLM-4.7-Flash"
GEMMA, SINKS, LLAMA = "hf://google/gemma-3-27b-it", "hf://openai/gpt-oss-20b", "hf://meta-llama/Llama-3.1-8B-Instruct"


def backend(decision: BackendDecision, component: str) -> str | None:
    return next((choice.backend for choice in decision.choices if choice.component == component), None)


def without_deep_gemm() -> dict[str, Any]:
    return {"engine": {"env": [{"name": "VLLM_USE_DEEP_GEMM", "value": "0"}]}}


@pytest.mark.parametrize(
    ("uri", "version", "architecture", "component", "expected"),
    [
        (FP8_BY_MODELOPT, "0.11.0", "sm_100", "GEMM", "FLASHINFER_CUTLASS"),
        (FP8_BY_MODELOPT, "0.14.1", "sm_120", "GEMM", "FLASHINFER_CUTLASS"),
        (FP8_BY_MODELOPT, "0.14.1", "sm_90", "GEMM", "CUTLASS"),
        (FP8_DYNAMIC, "0.14.1", "sm_100", "GEMM", "CUTLASS"),
        (FP8_DYNAMIC, "0.33.0", "sm_100", "GEMM", "CUTLASS"),
        (FP8_BY_MODELOPT, "0.29.0", "sm_80", "GEMM", "MARLIN"),
        (FP8_BY_MODELOPT, "0.33.0", "sm_80", "GEMM", "MARLIN"),
        (FP8_BLOCKS, "0.24.0", "sm_89", "GEMM", "TRITON"),
        (FP8_BLOCKS, "0.29.0", "sm_89", "GEMM", "MARLIN"),
        (FP8_BLOCKS, "0.33.0", "sm_89", "GEMM", "MARLIN"),
        (NVFP4, "0.11.2", "sm_100", "GEMM", "FLASHINFER_CUTLASS"),
        (NVFP4_COMPRESSED, "0.11.2", "sm_90", "GEMM", "MARLIN"),
        (NVFP4_COMPRESSED, "0.14.1", "sm_80", "GEMM", "MARLIN"),
        ("hf://Qwen/Qwen2.5-72B-Instruct-AWQ", "0.18.1", "sm_90", "GEMM", "MARLIN"),
        ("hf://Qwen/Qwen2.5-72B-Instruct-AWQ", "0.20.1", "sm_90", "GEMM", "MACHETE"),
        (MLA, "0.18.0", "sm_100", "MLAPrefill", "FLASH_ATTN"),
        (MLA, "0.18.1", "sm_100", "MLAPrefill", "TRTLLM_RAGGED"),
        (MLA, "0.19.0", "sm_100", "MLAPrefill", "FLASH_ATTN"),
        (OTHER_MLA, "0.24.0", "sm_100", "MLAPrefill", "FLASH_ATTN"),
        (OTHER_MLA, "0.26.0", "sm_100", "MLAPrefill", "TRTLLM_RAGGED"),
        (OTHER_MLA, "0.15.0", "sm_100", "MLADecode", "CUTLASS_MLA"),
        (OTHER_MLA, "0.18.1", "sm_100", "MLADecode", "CUTLASS_MLA"),
        (GEMMA, "0.13.0", "sm_75", "Attention", "TRITON_ATTN"),
        (GEMMA, "0.23.0", "sm_75", "Attention", "TRITON_ATTN"),
        (GEMMA, "0.23.0", "sm_100", "Attention", "FLASHINFER"),
        (GEMMA, "0.24.0", "sm_100", "Attention", "FLASHINFER"),
        (GEMMA, "0.33.0", "sm_100", "Attention", "FLASH_ATTN"),
        ("hf://google/gemma-3-12b-it", "0.33.0", "sm_100", "Attention", "TRITON_FLASHINFER"),
        (SINKS, "0.12.0", "sm_103", "Attention", "TRITON_ATTN"),
        (LLAMA, "0.11.0", "sm_90", "Sampler", "FLASHINFER"),
        (LLAMA, "0.11.1", "sm_90", "Sampler", "NATIVE"),
        (LLAMA, "0.11.2", "sm_120", "Sampler", "NATIVE"),
    ],
)
def test_the_default_of_vllm_is_expected(uri: str, version: str, architecture: str, component: str, expected: str) -> None:
    decision = decide(uri, version, architecture)
    assert (backend(decision, component), decision.refusal) == (expected, None)


@pytest.mark.parametrize(
    ("uri", "version", "architecture", "spec", "words"),
    [
        (
            FP8_BY_MODELOPT,
            "0.26.0",
            "sm_80",
            {},
            "The quantization method modelopt is not supported for the current GPU. Minimum capability: 89",
        ),
        (NVFP4, "0.11.1", "sm_90", {}, "always uses FlashInfer CUTLASS for NVFP4 weights"),
        (NVFP4, "0.11.2", "sm_80", {}, "always uses FlashInfer CUTLASS for NVFP4 weights"),
        (FP8_DYNAMIC, "0.24.0", "sm_90", {"backends": {"gemm": "MARLIN"}}, "To apply FP8 Marlin on high-capability GPUs"),
        (NVFP4, "0.24.0", "sm_120", {"backends": {"gemm": "FLASHINFER_B12X"}}, "no 'flashinfer_b12x' kernel exists for NVFP4 layers"),
        (NVFP4, "0.24.0", "sm_90", {"backends": {"gemm": "FLASHINFER_CUDNN"}}, "does not work with vLLM 0.24.0 on sm_90"),
        (OTHER_MLA, "0.24.0", "sm_100", {"backends": {"mlaPrefill": "FLASHINFER"}}, "Model does not have supported MLA dimensions"),
        (
            OTHER_MLA,
            "0.18.1",
            "sm_100",
            {"backends": {"attention": "FLASHINFER_MLA"}},
            "refuses attention backend FLASHINFER_MLA on sm_100: FlashInfer MLA kernel requires qk_nope_head_dim in",
        ),
        (SINKS, "0.26.0", "sm_90", {"backends": {"attention": "FLEX_ATTENTION"}}, "attention sinks not supported"),
        (SPARSE, "0.16.0", "sm_100", {"backends": {"gemm": "CUTLASS"}}, "VLLM_USE_DEEP_GEMM=0"),
    ],
)
def test_what_vllm_does_not_start_with_is_refused(uri: str, version: str, architecture: str, spec: dict[str, Any], words: str) -> None:
    refusal = decide(uri, version, architecture, **spec).refusal
    assert refusal is not None
    assert words in refusal


@pytest.mark.parametrize(
    ("uri", "version", "architecture", "pin", "setting"),
    [
        (NVFP4, "0.11.1", "sm_100", {"gemm": "FLASHINFER_CUDNN"}, ("VLLM_NVFP4_GEMM_BACKEND", "flashinfer-cudnn")),
        (NVFP4, "0.11.2", "sm_100", {"gemm": "FLASHINFER_TRTLLM"}, ("VLLM_NVFP4_GEMM_BACKEND", "flashinfer-trtllm")),
        (NVFP4, "0.33.0", "sm_120", {"gemm": "FLASHINFER_B12X"}, ("--linear-backend", "flashinfer_b12x")),
        (MLA, "0.11.1", "sm_100", {"mlaPrefill": "TRTLLM_RAGGED"}, ("VLLM_USE_TRTLLM_RAGGED_DEEPSEEK_PREFILL", "1")),
        (MLA, "0.11.2", "sm_100", {"mlaPrefill": "CUDNN"}, ("VLLM_USE_CUDNN_PREFILL", "1")),
        (FP8_BLOCKS, "0.24.0", "sm_90", {"gemm": "CUTLASS"}, ("--linear-backend", "cutlass")),
    ],
)
def test_a_pin_that_vllm_accepts_is_planned(
    uri: str, version: str, architecture: str, pin: dict[str, str], setting: tuple[str, str]
) -> None:
    decision = decide(uri, version, architecture, backends=pin)
    assert decision.refusal is None
    assert setting in emitted(decision).items()


def test_marlin_is_set_where_vllm_takes_a_kernel_without_fp8() -> None:
    assert emitted(decide(FP8_BY_MODELOPT, "0.29.0", "sm_80"))["--linear-backend"] == "marlin"
    assert "--linear-backend" not in emitted(decide(FP8_BY_MODELOPT, "0.31.0", "sm_80"))


@pytest.mark.parametrize(
    ("uri", "version", "architecture", "pin", "component", "taken"),
    [
        (FP8_BLOCKS, "0.20.1", "sm_89", {"gemm": "CUTLASS"}, "GEMM", "TRITON"),
        (FP8_DYNAMIC, "0.33.0", "sm_90", {"gemm": "MACHETE"}, "GEMM", "CUTLASS"),
        (MLA, "0.20.1", "sm_90", {"mlaPrefill": "TRTLLM_RAGGED"}, "MLAPrefill", "FLASH_ATTN"),
    ],
)
def test_what_vllm_takes_in_place_of_a_pin_is_expected(
    uri: str, version: str, architecture: str, pin: dict[str, str], component: str, taken: str
) -> None:
    decision = decide(uri, version, architecture, backends=pin)
    assert backend(decision, component) == taken
    assert any("has no effect" in text for text in notes_of(decision))


@pytest.mark.parametrize(
    ("version", "architecture", "expected"),
    [("0.16.0", "sm_90", "CUTLASS"), ("0.24.0", "sm_90", "CUTLASS"), ("0.33.0", "sm_100", "CUTLASS"), ("0.20.1", "sm_89", "TRITON")],
)
def test_deep_gemm_turned_off_is_not_expected(version: str, architecture: str, expected: str) -> None:
    assert backend(decide(FP8_BLOCKS, version, architecture, **without_deep_gemm()), "GEMM") == expected
