"""Each row of vLLM's status of DeepSeek R1 on B200, in the version it was written for and in later ones."""

from typing import Any

import pytest

from support.backends import chosen, decide, emitted, notes_of

Spec = dict[str, Any]

FP8 = "hf://deepseek-ai/DeepSeek-R1"
FP4 = "hf://nvidia/DeepSeek-R1-FP4"
TP = {"tensor": 8}
EP = {"data": 4, "expert": "Enabled"}

ROWS = [
    # row, model, version, parallelism, backends, component=backend, what is set
    ("FP8 GEMM: DeepGEMM by default", FP8, "0.11.0", TP, {}, "GEMM=DEEPGEMM", {}),
    ("FP8 GEMM: DeepGEMM forced needs no variable", FP8, "0.16.0", TP, {"gemm": "DEEPGEMM"}, "GEMM=DEEPGEMM", {}),
    ("FP8 GEMM: CUTLASS block-scaled by variable", FP8, "0.12.0", TP, {"gemm": "CUTLASS"}, "GEMM=CUTLASS", {"VLLM_USE_DEEP_GEMM": "0"}),
    ("FP8 GEMM: CUTLASS block-scaled by flag", FP8, "0.33.0", TP, {"gemm": "CUTLASS"}, "GEMM=CUTLASS", {"--linear-backend": "cutlass"}),
    ("FP8 MoE: CUTLASS block-scaled, TP only, by itself", FP8, "0.12.0", TP, {}, "MoE=VLLM_CUTLASS", {}),
    ("FP8 MoE: DeepGEMM by variable", FP8, "0.12.0", TP, {"moe": "DEEPGEMM"}, "MoE=DEEPGEMM", {"VLLM_MOE_USE_DEEP_GEMM": "1"}),
    ("FP8 MoE: DeepGEMM by flag", FP8, "0.20.1", TP, {"moe": "DEEPGEMM"}, "MoE=DEEPGEMM", {"--moe-backend": "deep_gemm"}),
    (
        "FP8 MoE: FlashInfer TRTLLM by variable",
        FP8,
        "0.12.0",
        TP,
        {"moe": "FLASHINFER_TRTLLM"},
        "MoE=FLASHINFER_TRTLLM",
        {"VLLM_USE_FLASHINFER_MOE_FP8": "1", "VLLM_FLASHINFER_MOE_BACKEND": "latency"},
    ),
    (
        "FP8 MoE: FlashInfer TRTLLM chosen for latency",
        FP8,
        "0.12.0",
        TP,
        {"optimizeFor": "Latency"},
        "MoE=FLASHINFER_TRTLLM",
        {"VLLM_USE_FLASHINFER_MOE_FP8": "1", "VLLM_FLASHINFER_MOE_BACKEND": "latency"},
    ),
    (
        "FP8 MoE: FlashInfer TRTLLM by flag",
        FP8,
        "0.24.0",
        TP,
        {"moe": "FLASHINFER_TRTLLM"},
        "MoE=FLASHINFER_TRTLLM",
        {"--moe-backend": "flashinfer_trtllm"},
    ),
    ("FP8 MoE: FlashInfer TRTLLM by itself", FP8, "0.24.0", TP, {}, "MoE=FLASHINFER_TRTLLM", {}),
    ("Prefill: FlashInfer CUTLASS by default", FP8, "0.12.0", TP, {}, "MLAPrefill=FLASHINFER", {}),
    ("Prefill: TRTLLM ragged by default", FP8, "0.16.0", TP, {}, "MLAPrefill=TRTLLM_RAGGED", {}),
    ("Prefill: FlashAttention by default", FP8, "0.33.0", TP, {}, "MLAPrefill=FLASH_ATTN", {}),
    (
        "Prefill: FlashInfer turned off by variable",
        FP8,
        "0.12.0",
        TP,
        {"mlaPrefill": "FLASH_ATTN"},
        "MLAPrefill=FLASH_ATTN",
        {"VLLM_DISABLE_FLASHINFER_PREFILL": "1"},
    ),
    (
        "Prefill: TRTLLM ragged by variable",
        FP8,
        "0.12.0",
        TP,
        {"mlaPrefill": "TRTLLM_RAGGED"},
        "MLAPrefill=TRTLLM_RAGGED",
        {"VLLM_USE_TRTLLM_RAGGED_DEEPSEEK_PREFILL": "1"},
    ),
    (
        "Prefill: TRTLLM ragged by JSON flag",
        FP8,
        "0.20.1",
        TP,
        {"mlaPrefill": "TRTLLM_RAGGED"},
        "MLAPrefill=TRTLLM_RAGGED",
        {"--attention-config.use_trtllm_ragged_deepseek_prefill": "true"},
    ),
    (
        "Prefill: TRTLLM ragged by its own flag",
        FP8,
        "0.24.0",
        TP,
        {"mlaPrefill": "TRTLLM_RAGGED"},
        "MLAPrefill=TRTLLM_RAGGED",
        {"--attention-config.mla_prefill_backend": "TRTLLM_RAGGED"},
    ),
    ("Prefill: cuDNN by variable", FP8, "0.11.0", TP, {"mlaPrefill": "CUDNN"}, "MLAPrefill=CUDNN", {"VLLM_USE_CUDNN_PREFILL": "1"}),
    (
        "Prefill: cuDNN by JSON flag",
        FP8,
        "0.16.0",
        TP,
        {"mlaPrefill": "CUDNN"},
        "MLAPrefill=CUDNN",
        {"--attention-config.use_cudnn_prefill": "true"},
    ),
    (
        "MLA decode: FlashInfer MLA, the fastest",
        FP8,
        "0.11.0",
        TP,
        {},
        "MLADecode=FLASHINFER_MLA",
        {"VLLM_ATTENTION_BACKEND": "FLASHINFER_MLA"},
    ),
    ("MLA decode: FlashInfer MLA by flag", FP8, "0.14.0", TP, {}, "MLADecode=FLASHINFER_MLA", {"--attention-backend": "FLASHINFER_MLA"}),
    ("MLA decode: FlashInfer MLA by itself", FP4, "0.33.0", TP, {}, "MLADecode=FLASHINFER_MLA", {}),
    (
        "MLA decode: CUTLASS MLA by variable",
        FP8,
        "0.12.0",
        TP,
        {"attention": "CUTLASS_MLA"},
        "MLADecode=CUTLASS_MLA",
        {"VLLM_ATTENTION_BACKEND": "CUTLASS_MLA"},
    ),
    (
        "MLA decode: CUTLASS MLA by flag",
        FP8,
        "0.20.1",
        TP,
        {"attention": "CUTLASS_MLA"},
        "MLADecode=CUTLASS_MLA",
        {"--attention-backend": "CUTLASS_MLA"},
    ),
    ("Communications: all-reduce", FP8, "0.20.1", TP, {}, "AllReduce=CUSTOM", {}),
    (
        "Communications, FP8: naive where AG-RS fails",
        FP8,
        "0.11.0",
        EP,
        {},
        "AllToAll=NAIVE",
        {"VLLM_ALL2ALL_BACKEND": "naive"},
    ),
    (
        "Communications, FP8: DeepEP high throughput by variable",
        FP8,
        "0.11.0",
        EP,
        {"allToAll": "deepep_high_throughput"},
        "AllToAll=DEEPEP_HIGH_THROUGHPUT",
        {"VLLM_ALL2ALL_BACKEND": "deepep_high_throughput"},
    ),
    (
        "Communications, FP8: DeepEP high throughput by flag",
        FP8,
        "0.20.1",
        EP,
        {"allToAll": "deepep_high_throughput"},
        "AllToAll=DEEPEP_HIGH_THROUGHPUT",
        {"--all2all-backend": "deepep_high_throughput"},
    ),
    (
        "Communications, FP8: DeepEP low latency",
        FP8,
        "0.24.0",
        EP,
        {"allToAll": "deepep_low_latency"},
        "AllToAll=DEEPEP_LOW_LATENCY",
        {"--all2all-backend": "deepep_low_latency"},
    ),
    ("Communications, FP8: PPLX", FP8, "0.11.0", EP, {"allToAll": "pplx"}, "AllToAll=PPLX", {"VLLM_ALL2ALL_BACKEND": "pplx"}),
    ("Communications, FP8: AG-RS by itself", FP8, "0.12.0", EP, {}, "AllToAll=ALLGATHER_REDUCESCATTER", {}),
    ("FP4 GEMM: FlashInfer CUTLASS by itself", FP4, "0.12.0", TP, {}, "GEMM=FLASHINFER_CUTLASS", {}),
    (
        "FP4 GEMM: FlashInfer cuDNN by variable",
        FP4,
        "0.12.0",
        TP,
        {"gemm": "FLASHINFER_CUDNN"},
        "GEMM=FLASHINFER_CUDNN",
        {"VLLM_NVFP4_GEMM_BACKEND": "flashinfer-cudnn"},
    ),
    (
        "FP4 GEMM: FlashInfer cuDNN by flag",
        FP4,
        "0.24.0",
        TP,
        {"gemm": "FLASHINFER_CUDNN"},
        "GEMM=FLASHINFER_CUDNN",
        {"--linear-backend": "flashinfer_cudnn"},
    ),
    (
        "FP4 GEMM: FlashInfer TRTLLM",
        FP4,
        "0.20.1",
        TP,
        {"gemm": "FLASHINFER_TRTLLM"},
        "GEMM=FLASHINFER_TRTLLM",
        {"VLLM_NVFP4_GEMM_BACKEND": "flashinfer-trtllm"},
    ),
    (
        "FP4 GEMM: the first variable",
        FP4,
        "0.11.0",
        TP,
        {"gemm": "FLASHINFER_TRTLLM"},
        "GEMM=FLASHINFER_TRTLLM",
        {"VLLM_USE_TRTLLM_FP4_GEMM": "1"},
    ),
    ("FP4 GEMM: vLLM CUTLASS", FP4, "0.16.0", TP, {"gemm": "CUTLASS"}, "GEMM=CUTLASS", {"VLLM_NVFP4_GEMM_BACKEND": "cutlass"}),
    (
        "FP4 MoE: FlashInfer CUTLASS for throughput",
        FP4,
        "0.12.0",
        TP,
        {},
        "MoE=FLASHINFER_CUTLASS",
        {"VLLM_USE_FLASHINFER_MOE_FP4": "1", "VLLM_FLASHINFER_MOE_BACKEND": "throughput"},
    ),
    (
        "FP4 MoE: FlashInfer TRTLLM for latency",
        FP4,
        "0.12.0",
        TP,
        {"optimizeFor": "Latency"},
        "MoE=FLASHINFER_TRTLLM",
        {"VLLM_USE_FLASHINFER_MOE_FP4": "1", "VLLM_FLASHINFER_MOE_BACKEND": "latency"},
    ),
    (
        "FP4 MoE: FlashInfer CUTLASS by flag",
        FP4,
        "0.24.0",
        TP,
        {"moe": "FLASHINFER_CUTLASS"},
        "MoE=FLASHINFER_CUTLASS",
        {"--moe-backend": "flashinfer_cutlass"},
    ),
    ("FP4 MoE: vLLM CUTLASS, TP only", FP4, "0.24.0", TP, {"moe": "VLLM_CUTLASS"}, "MoE=VLLM_CUTLASS", {"--moe-backend": "cutlass"}),
    ("FP4 communications: AG-RS by itself", FP4, "0.11.0", EP, {}, "AllToAll=ALLGATHER_REDUCESCATTER", {}),
    (
        "FP4 communications: FlashInfer All2Allv with CUTLASS experts",
        FP4,
        "0.12.0",
        EP,
        {"allToAll": "flashinfer_all2allv", "moe": "FLASHINFER_CUTLASS"},
        "AllToAll=FLASHINFER_ALL2ALLV",
        {"--all2all-backend": "flashinfer_all2allv"},
    ),
    ("FP4 communications: naive", FP4, "0.12.0", EP, {"allToAll": "naive"}, "AllToAll=NAIVE", {"--all2all-backend": "naive"}),
]


@pytest.mark.parametrize(("row", "model", "version", "parallelism", "backends", "want", "settings"), ROWS, ids=[row[0] for row in ROWS])
def test_the_row_is_reached_and_invoked_as_its_version_takes_it(
    row: str, model: str, version: str, parallelism: Spec, backends: Spec, want: str, settings: dict[str, str]
) -> None:
    decision = decide(model, version, "sm_100", parallelism=parallelism, backends=backends)
    component, _, backend = want.partition("=")
    assert decision.refusal is None, decision.refusal
    assert chosen(decision)[component][0] == backend
    assert settings.items() <= emitted(decision).items()
    if not settings:
        assert chosen(decision)[component][1] in ("Engine", "User")


@pytest.mark.parametrize(
    ("combination", "model", "version", "parallelism", "backends", "want"),
    [
        (
            "FP8 blocks and FlashInfer CUTLASS experts",
            FP8,
            "0.12.0",
            TP,
            {"moe": "FLASHINFER_CUTLASS"},
            "does not support block quantization",
        ),
        (
            "FP8 blocks and FlashInfer CUTLASS experts, by flag",
            FP8,
            "0.24.0",
            TP,
            {"moe": "FLASHINFER_CUTLASS"},
            "Set spec.backends.moe to Auto",
        ),
        ("AG-RS and FP8", FP8, "0.11.0", EP, {"allToAll": "allgather_reducescatter"}, "does not support FP8 experts"),
        (
            "TRTLLM experts and All2Allv",
            FP4,
            "0.16.0",
            EP,
            {"allToAll": "flashinfer_all2allv", "moe": "FLASHINFER_TRTLLM"},
            "do not work with FlashInfer's all-to-all",
        ),
        (
            "data-parallel attention and FlashInfer experts",
            FP8,
            "0.11.0",
            {"data": 8},
            {"moe": "FLASHINFER_TRTLLM"},
            "fail with data parallelism",
        ),
        (
            "vLLM CUTLASS experts and expert parallelism",
            FP4,
            "0.20.1",
            {"tensor": 8, "expert": "Enabled"},
            {"moe": "VLLM_CUTLASS"},
            "expert parallelism",
        ),
        (
            "cuDNN prefill in versions without it",
            FP8,
            "0.24.0",
            TP,
            {"mlaPrefill": "CUDNN"},
            "no setting for MLA prefill backend CUDNN",
        ),
    ],
)
def test_what_is_known_to_fail_is_refused_before_a_pod_starts(
    combination: str, model: str, version: str, parallelism: Spec, backends: Spec, want: str
) -> None:
    refusal = decide(model, version, "sm_100", parallelism=parallelism, backends=backends).refusal
    assert refusal is not None
    assert want in refusal


def test_speculative_decoding_uses_the_kernel_that_decodes_several_tokens_at_once() -> None:
    engine = {"args": [{"name": "--speculative-config", "value": '{"method": "mtp", "num_speculative_tokens": 3}'}]}
    for version in ("0.11.0", "0.20.1", "0.33.0"):
        decision = decide(FP4, version, "sm_100", parallelism=TP, engine=engine)
        assert chosen(decision)["SpeculativeDecoding"][0] == "FLASHINFER_MLA"


@pytest.mark.parametrize(
    ("advice", "model", "version", "engine", "want"),
    [
        ("nvcc on PATH", FP8, "0.16.0", {"env": [{"name": "PATH", "value": "/usr/bin"}]}, "has no CUDA directory"),
        ("libraries of the nvidia packages", FP8, "0.16.0", {"env": [{"name": "LD_LIBRARY_PATH", "value": "/x"}]}, "nvidia packages"),
        ("eager mode", FP8, "0.16.0", {"args": [{"name": "--enforce-eager"}]}, "10 to 30 % lower"),
        ("DeepGEMM off", FP8, "0.16.0", {"env": [{"name": "VLLM_USE_DEEP_GEMM", "value": "0"}]}, "vLLM uses its CUTLASS or Triton kernels"),
    ],
)
def test_what_the_user_sets_is_kept_and_its_price_is_reported(advice: str, model: str, version: str, engine: Spec, want: str) -> None:
    decision = decide(model, version, "sm_100", parallelism=TP, engine=engine)
    assert decision.refusal is None
    assert any(want in note for note in notes_of(decision))


def test_triton_experts_without_a_tuned_configuration_are_explained() -> None:
    decision = decide(FP8, "0.16.0", "sm_100", parallelism=TP, backends={"moe": "TRITON"})
    assert any("Using default MoE config" in note for note in notes_of(decision))
