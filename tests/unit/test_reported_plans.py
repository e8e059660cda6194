"""Plans that a comparison with vLLM's own selectors found wrong: one line for each item of its list.

The list has three parts: backends that vLLM does not take, refusals without need, and settings that a version does not need or
lacks. In brackets is the place in vLLM's sources that decides, as far as it is one place.
"""

from typing import Any

import pytest

from support.backends import chosen, decide, emitted, notes_of
from vllm_operator.catalog.versions import load_versions

LLAMA, LLAMA_FP8 = "hf://meta-llama/Llama-3.1-8B-Instruct", "hf://nvidia/Llama-3.1-8B-Instruct-FP8"
LLAMA_NVFP4, NVFP4_COMPRESSED = "hf://nvidia/Llama-3.3-70B-Instruct-FP4", "hf://RedHatAI/Llama-3.3-70B-Instruct-NVFP4"
QWEN_32B = "hf://Qwen/Qwen3-32B-FP8"
QWEN, QWEN_FP8, QWEN_NVFP4 = (
    "hf://Qwen/Qwen3-235B-A22B-Instruct-2507",
    "hf://Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
    "hf://nvidia/Qwen3-235B-A22B-NVFP4",
)
QWEN_NEXT, QWEN_3_5, QWEN_3_5_MOE = "hf://Qwen/Qwen3-Next-80B-A3B-Instruct", "hf://Qwen/Qwen3.5-27B", "hf://Qwen/Qwen3.5-35B-A3B-FP8"
KIMI_THINKING, FLASH = "hf://moonshotai/Kimi-K2-Thinking", "hf://zai-org/GLM-4.7-Flash"
R1, V3_2, V4 = "hf://deepseek-ai/DeepSeek-R1", "hf://deepseek-ai/DeepSeek-V3.2", "hf://deepseek-ai/DeepSeek-V4"
GLM_5, GEMMA, GPT_OSS = "hf://zai-org/GLM-5-FP8", "hf://google/gemma-3-27b-it", "hf://openai/gpt-oss-120b"
NANO = "hf://nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4"
M2, M2_5 = "hf://MiniMaxAI/MiniMax-M2", "hf://MiniMaxAI/MiniMax-M2.5"

TP4: dict[str, Any] = {"parallelism": {"tensor": 4}}
TP8: dict[str, Any] = {"parallelism": {"tensor": 8}}
DP2: dict[str, Any] = {"parallelism": {"data": 2}}
NO_DEEP_GEMM: dict[str, Any] = {"engine": {"env": [{"name": "VLLM_USE_DEEP_GEMM", "value": "0"}]}}
BLACKWELL, DATA_CENTER = ("sm_100", "sm_103", "sm_120", "sm_121"), ("sm_100", "sm_103")


def pin(**backends: str) -> dict[str, Any]:
    return {"backends": backends}


RELEASES = """
0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 0.17.1 0.18.0 0.18.1 0.19.0 0.19.1 0.20.0 0.20.1 0.20.2
0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 0.26.0 0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
"""

Item = tuple[str, str, str, tuple[str, ...], dict[str, Any], str, str]

TAKEN: list[Item] = [
    # item of the list, model, versions, GPUs, spec, component, what vLLM takes
    ("sampler in 0.11.1 and 0.11.2 [topk_topp_sampler.py]", LLAMA, "0.11.1 0.11.2", ("sm_90", "sm_100", "sm_120"), {}, "Sampler", "NATIVE"),
    ("sampler in 0.11.0", LLAMA, "0.11.0", ("sm_90", "sm_100"), {}, "Sampler", "FLASHINFER"),
    (
        "FP8 per tensor on Blackwell in 0.11.0 to 0.14.1 [w8a8_utils.py 0.12.0:408]",
        LLAMA_FP8,
        "0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.0 0.14.1",
        BLACKWELL,
        {},
        "GEMM",
        "FLASHINFER_CUTLASS",
    ),
    (
        "FP8 with blocks on sm_89 from 0.29 [kernels/linear/__init__.py 0.29.0:443]",
        QWEN_32B,
        "0.29.0 0.30.0 0.31.0 0.32.0 0.33.0",
        ("sm_89",),
        {},
        "GEMM",
        "MARLIN",
    ),
    (
        "Kimi K2 Thinking from 0.23 [flashinfer_mxint4_moe.py:24]",
        KIMI_THINKING,
        "0.23.0 0.24.0 0.28.0 0.33.0",
        DATA_CENTER,
        TP8,
        "MoE",
        "MARLIN",
    ),
    (
        "prefill of GLM-4.7-Flash from 0.26 [mla/prefill/flash_attn.py 0.26.0:71]",
        FLASH,
        "0.26.0 0.27.0 0.28.0 0.33.0",
        DATA_CENTER,
        {},
        "MLAPrefill",
        "TRTLLM_RAGGED",
    ),
    (
        "decode of GLM-4.7-Flash in 0.15 to 0.18.1",
        FLASH,
        "0.15.0 0.15.1 0.16.0 0.17.0 0.17.1 0.18.0 0.18.1",
        DATA_CENTER,
        {},
        "MLADecode",
        "CUTLASS_MLA",
    ),
    ("prefill of MLA in 0.18.1", R1, "0.18.1", DATA_CENTER, TP8, "MLAPrefill", "TRTLLM_RAGGED"),
    ("BF16 experts in 0.20.0 on Hopper [oracle/unquantized.py]", QWEN, "0.20.0", ("sm_90",), TP8, "MoE", "FLASHINFER_CUTLASS"),
    ("BF16 experts in 0.20.0 on Blackwell", QWEN, "0.20.0", DATA_CENTER, TP8, "MoE", "FLASHINFER_TRTLLM"),
    (
        "Gemma 3 27B on data center Blackwell from 0.25 [flash_attn.py 0.24.0:196]",
        GEMMA,
        "0.25.0 0.26.0 0.33.0",
        DATA_CENTER,
        {},
        "Attention",
        "FLASH_ATTN",
    ),
    (
        "Gemma 3 27B on T4 in 0.13 to 0.23",
        GEMMA,
        "0.13.0 0.14.1 0.15.1 0.16.0 0.19.1 0.20.0 0.23.0",
        ("sm_75",),
        {},
        "Attention",
        "TRITON_ATTN",
    ),
    ("gpt-oss on sm_103 in 0.12.0", GPT_OSS, "0.12.0", ("sm_103",), {}, "Attention", "TRITON_ATTN"),
    (
        "Nemotron Nano NVFP4 in 0.17.1 to 0.19.1 (hidden % 512)",
        NANO,
        "0.17.1 0.18.0 0.18.1 0.19.0 0.19.1",
        DATA_CENTER,
        {},
        "MoE",
        "FLASHINFER_CUTLASS",
    ),
    ("MLA on Hopper in 0.11.1 and 0.11.2", R1, "0.11.1 0.11.2", ("sm_90",), TP8, "MLADecode", "FLASH_ATTN_MLA"),
    ("FP8 experts with TP8 in 0.11 [fp8.py 0.11.1:163]", R1, "0.11.0 0.11.1 0.11.2", ("sm_90", "sm_100"), TP8, "MoE", "DEEPGEMM"),
    ("FP8 experts on H100 in 0.17.0", QWEN_FP8, "0.17.0", ("sm_90",), TP4, "MoE", "TRITON"),
    ("BF16 experts on H100 in 0.23.0", QWEN, "0.23.0", ("sm_90",), TP8, "MoE", "TRITON"),
    ("MiniMax M2.5 in 0.18", M2_5, "0.18.0 0.18.1", DATA_CENTER, TP4, "MoE", "DEEPGEMM"),
    ("sparse attention of V3.2 on H100 in 0.25", V3_2, "0.25.0 0.25.1", ("sm_90",), TP8, "SparseAttention", "FLASH_ATTN_MLA_SPARSE"),
    ("sparse attention of GLM-5 on H100 in 0.25", GLM_5, "0.25.0 0.25.1", ("sm_90",), TP8, "SparseAttention", "FLASH_ATTN_MLA_SPARSE"),
    (
        "sparse attention of GLM-5 with at most 16 heads in 0.17.0 to 0.18.1 [flashinfer_mla_sparse.py 0.17.0:120]",
        GLM_5,
        "0.17.0 0.17.1 0.18.0 0.18.1",
        DATA_CENTER,
        TP8,
        "SparseAttention",
        "FLASHMLA_SPARSE",
    ),
    (
        "sparse attention of V3.2 with at most 16 heads in 0.17.0 to 0.18.1 [cuda.py 0.17.0:57]",
        V3_2,
        "0.17.0 0.17.1 0.18.0 0.18.1",
        DATA_CENTER,
        TP8,
        "SparseAttention",
        "FLASHINFER_MLA_SPARSE",
    ),
    ("Qwen3-Next on H100 in 0.17.0", QWEN_NEXT, "0.17.0", ("sm_90",), {"parallelism": {"tensor": 2}}, "LinearAttention", "FLASHINFER"),
    ("NVFP4 experts on workstation GPUs in 0.15.0", QWEN_NVFP4, "0.15.0", ("sm_120", "sm_121"), TP4, "MoE", "VLLM_CUTLASS"),
    (
        "NVFP4 experts apart on workstation GPUs in 0.15.0",
        QWEN_NVFP4,
        "0.15.0",
        ("sm_120", "sm_121"),
        {"parallelism": {"tensor": 4, "expert": "Enabled"}},
        "MoE",
        "MARLIN",
    ),
    ("NVFP4 experts with DP2 on workstation GPUs in 0.15", QWEN_NVFP4, "0.15.0 0.15.1", ("sm_120", "sm_121"), DP2, "MoE", "VLLM_CUTLASS"),
    ("FP8 experts with blocks and DP2 on H100 in 0.15", QWEN_FP8, "0.15.0 0.15.1", ("sm_90",), DP2, "MoE", "DEEPGEMM"),
    (
        "dense layers after VLLM_USE_DEEP_GEMM=0",
        QWEN_32B,
        "0.11.0 0.11.2 0.16.0 0.20.1 0.24.0 0.33.0",
        ("sm_90", "sm_100"),
        NO_DEEP_GEMM,
        "GEMM",
        "CUTLASS",
    ),
    ("experts on H100 after VLLM_USE_DEEP_GEMM=0", R1, "0.11.0 0.11.2 0.12.0", ("sm_90",), TP8 | NO_DEEP_GEMM, "MoE", "TRITON"),
    ("experts on B200 after VLLM_USE_DEEP_GEMM=0", R1, "0.11.0 0.11.2 0.12.0", ("sm_100",), TP8 | NO_DEEP_GEMM, "MoE", "VLLM_CUTLASS"),
    ("experts on B200 after VLLM_USE_DEEP_GEMM=0", QWEN_FP8, "0.15.0 0.16.0 0.17.1", ("sm_100",), TP4 | NO_DEEP_GEMM, "MoE", "TRITON"),
    ("experts on H100 after gemm: CUTLASS", R1, "0.11.0 0.11.2 0.12.0", ("sm_90",), TP8 | pin(gemm="CUTLASS"), "MoE", "TRITON"),
    ("experts on H100 with DP2 after gemm: CUTLASS", QWEN_FP8, "0.15.1", ("sm_90",), DP2 | pin(gemm="CUTLASS"), "MoE", "TRITON"),
    ("experts on B200 after gemm: CUTLASS", R1, "0.11.0 0.11.2 0.12.0", ("sm_100",), TP8 | pin(gemm="CUTLASS"), "MoE", "VLLM_CUTLASS"),
]

REFUSED: list[tuple[str, str, str, tuple[str, ...], dict[str, Any], str]] = [
    # item of the list, model, versions, GPUs, spec, words of the refusal
    (
        "Nemotron Nano NVFP4 in 0.15 [fused_marlin_moe.py:565]",
        NANO,
        "0.15.0 0.15.1",
        ("sm_80", "sm_89", "sm_90"),
        {},
        "No NvFp4 MoE backend supports the deployment configuration",
    ),
    ("the same on workstation GPUs", NANO, "0.15.0", ("sm_120", "sm_121"), {}, "No NvFp4 MoE backend supports"),
    (
        "NVFP4 before Blackwell in 0.11 is the code of 0.12 to 0.14",
        LLAMA_NVFP4,
        "0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.1",
        ("sm_80", "sm_89", "sm_90"),
        {},
        "always uses FlashInfer CUTLASS for NVFP4 weights",
    ),
    (
        "ModelOpt FP8 on Ampere before 0.27",
        LLAMA_FP8,
        "0.11.0 0.14.1 0.20.1 0.26.0",
        ("sm_80", "sm_86"),
        {},
        "The quantization method modelopt is not supported for the current GPU",
    ),
    (
        "gemm: CUTLASS sets what breaks sparse attention",
        V3_2,
        "0.12.0 0.16.0",
        ("sm_90", "sm_100"),
        TP8 | pin(gemm="CUTLASS"),
        "spec.backends.gemm sets VLLM_USE_DEEP_GEMM=0",
    ),
]

ALLOWED: list[tuple[str, str, str, tuple[str, ...], dict[str, Any]]] = [
    # item of the list, model, versions, GPUs, spec
    ("MiniMax M2 in 0.11.1 and 0.11.2", M2, "0.11.1 0.11.2", ("sm_90", "sm_100"), TP4),
    ("Qwen3.5 in 0.17.0", QWEN_3_5, "0.17.0", ("sm_80", "sm_90", "sm_100"), {}),
    ("Qwen3.5 with experts in 0.17.0", QWEN_3_5_MOE, "0.17.0", ("sm_90", "sm_100"), {}),
    ("DeepSeek V4 in 0.20.0", V4, "0.20.0", ("sm_90", "sm_100", "sm_103"), TP8),
    ("0.20.0 on Thor", LLAMA, "0.20.0", ("sm_110",), {}),
    ("FP8 on Thor in 0.20.0", QWEN_32B, "0.20.0", ("sm_110",), {}),
    ("sparse attention without DeepGEMM from 0.19", V3_2, "0.19.0 0.20.1 0.24.0 0.33.0", ("sm_90", "sm_100"), TP8 | NO_DEEP_GEMM),
    ("gemm: CUTLASS with sparse attention from 0.19", V3_2, "0.19.0 0.20.1", ("sm_90", "sm_100"), TP8 | pin(gemm="CUTLASS")),
    ("the same for GLM-5", GLM_5, "0.19.0 0.20.1", ("sm_90", "sm_100"), TP8 | pin(gemm="CUTLASS")),
    ("TRTLLM_RAGGED in 0.11.1 and 0.11.2", R1, "0.11.1 0.11.2", ("sm_100",), TP8 | pin(mlaPrefill="TRTLLM_RAGGED")),
    ("FLASHINFER_CUDNN in 0.11.1 and 0.11.2", LLAMA_NVFP4, "0.11.1 0.11.2", DATA_CENTER, pin(gemm="FLASHINFER_CUDNN")),
    ("--moe-backend in 0.17.0", QWEN_FP8, "0.17.0", ("sm_90",), TP4 | pin(moe="DEEPGEMM")),
    ("--moe-backend in 0.17.0, BF16", QWEN, "0.17.0", ("sm_90",), TP8 | pin(moe="TRITON")),
    ("FLASHINFER_B12X in 0.22.1", QWEN_NVFP4, "0.22.1", ("sm_120", "sm_121"), TP4 | pin(moe="FLASHINFER_B12X")),
]

SETTINGS: list[tuple[str, str, str, str, dict[str, Any], dict[str, str | None]]] = [
    # item of the list, model, version, GPU, spec, what is set (None: not set)
    (
        "VLLM_USE_TRTLLM_FP4_GEMM is gone in 0.11.1",
        LLAMA_NVFP4,
        "0.11.1",
        "sm_100",
        pin(gemm="FLASHINFER_TRTLLM"),
        {"VLLM_NVFP4_GEMM_BACKEND": "flashinfer-trtllm", "VLLM_USE_TRTLLM_FP4_GEMM": None},
    ),
    ("it is there in 0.11.0", LLAMA_NVFP4, "0.11.0", "sm_100", pin(gemm="FLASHINFER_TRTLLM"), {"VLLM_USE_TRTLLM_FP4_GEMM": "1"}),
    ("warm-up of DeepGEMM before 0.20", LLAMA, "0.19.1", "sm_90", {}, {"VLLM_USE_DEEP_GEMM": None}),
    ("warm-up of DeepGEMM in 0.20.0 [deep_gemm_warmup.py:136]", LLAMA, "0.20.0", "sm_90", {}, {"VLLM_USE_DEEP_GEMM": "0"}),
    ("its guard is unchanged in 0.22.0", LLAMA, "0.22.0", "sm_90", {}, {"VLLM_USE_DEEP_GEMM": "0"}),
    ("and in 0.25.1", LLAMA, "0.25.1", "sm_120", {}, {"VLLM_USE_DEEP_GEMM": "0"}),
    ("it asks for FP8 first in 0.26.0 [deep_gemm_warmup.py:153]", LLAMA, "0.26.0", "sm_90", {}, {"VLLM_USE_DEEP_GEMM": None}),
]


@pytest.mark.parametrize("item", TAKEN, ids=lambda item: item[0])
def test_what_vllm_takes_is_expected(item: Item) -> None:
    _, model, versions, architectures, spec, component, expected = item
    for version in versions.split():
        for architecture in architectures:
            decision = decide(model, version, architecture, **spec)
            assert (chosen(decision)[component][0], decision.refusal) == (expected, None), (version, architecture)


@pytest.mark.parametrize("item", REFUSED, ids=lambda item: item[0])
def test_what_vllm_does_not_start_with_is_refused(item: tuple[str, str, str, tuple[str, ...], dict[str, Any], str]) -> None:
    _, model, versions, architectures, spec, words = item
    for version in versions.split():
        for architecture in architectures:
            refusal = decide(model, version, architecture, **spec).refusal
            assert refusal is not None, (version, architecture)
            assert words in refusal, (version, architecture)


@pytest.mark.parametrize("item", ALLOWED, ids=lambda item: item[0])
def test_what_vllm_starts_with_is_not_refused(item: tuple[str, str, str, tuple[str, ...], dict[str, Any]]) -> None:
    _, model, versions, architectures, spec = item
    for version in versions.split():
        for architecture in architectures:
            assert decide(model, version, architecture, **spec).refusal is None, (version, architecture)


@pytest.mark.parametrize("item", SETTINGS, ids=lambda item: item[0])
def test_what_a_version_needs_is_set(item: tuple[str, str, str, str, dict[str, Any], dict[str, str | None]]) -> None:
    _, model, version, architecture, spec, expected = item
    found = emitted(decide(model, version, architecture, **spec))
    assert {name: found.get(name) for name in expected} == expected


def test_nvfp4_published_by_compressed_tensors_runs_with_marlin_before_blackwell() -> None:
    for version in ("0.11.0", "0.11.2", "0.12.0", "0.14.1"):
        decision = decide(NVFP4_COMPRESSED, version, "sm_90")
        assert (chosen(decision)["GEMM"][0], decision.refusal) == ("MARLIN", None)


def test_a_slow_indexer_is_mentioned() -> None:
    assert any("computes the indexer with PyTorch" in text for text in notes_of(decide(V3_2, "0.18.1", "sm_90", **TP8 | NO_DEEP_GEMM)))


def test_every_release_is_in_the_catalog() -> None:
    assert [table.version for table in load_versions().tables] == RELEASES.split()


def test_the_image_of_0_20_0_has_cuda_13_0() -> None:
    table = load_versions().resolve("0.20.0").table
    assert table is not None
    assert table.bundle.cuda == "13.0"
