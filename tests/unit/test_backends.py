"""Choosing backends: what is chosen, by whom, and what is set for it."""

from typing import Any

import pytest

from support.backends import chosen, decide, emitted, notes_of

DEEPSEEK = "hf://deepseek-ai/DeepSeek-R1"
NEMOTRON = "hf://nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"
LLAMA = "hf://meta-llama/Llama-3.1-8B-Instruct"
MINIMAX = "hf://MiniMaxAI/MiniMax-M2.5"


@pytest.mark.parametrize("version", ["0.16.0", "0.19.0", "0.20.1", "0.24.0", "0.33.0"])
def test_fp8_mla_experts_on_hopper_are_left_to_the_engine(version: str) -> None:
    decision = decide(DEEPSEEK, version, "sm_90", parallelism={"tensor": 8})
    assert chosen(decision)["MLADecode"] == ("FLASH_ATTN_MLA", "Engine")
    assert chosen(decision)["MoE"] == ("FLASHINFER_CUTLASS" if version == "0.16.0" else "TRITON", "Engine")
    assert emitted(decision) == {}


@pytest.mark.parametrize("version", ["0.16.0", "0.19.0", "0.20.1", "0.24.0", "0.33.0"])
def test_fp8_mla_experts_on_blackwell_are_left_to_the_engine(version: str) -> None:
    decision = decide(DEEPSEEK, version, "sm_100", parallelism={"tensor": 8})
    assert chosen(decision)["MLADecode"] == ("FLASHINFER_MLA", "Engine")
    assert chosen(decision)["MoE"] == ("FLASHINFER_TRTLLM", "Engine")


def test_flashinfer_mla_is_asked_for_where_the_engine_would_take_a_slower_one() -> None:
    assert emitted(decide(DEEPSEEK, "0.14.0", "sm_100"))["--attention-backend"] == "FLASHINFER_MLA"
    assert emitted(decide(DEEPSEEK, "0.12.0", "sm_100"))["VLLM_ATTENTION_BACKEND"] == "FLASHINFER_MLA"


@pytest.mark.parametrize(
    ("version", "goal", "backend", "by", "want"),
    [
        ("0.19.0", "Throughput", "FLASHINFER_CUTLASS", "Engine", {}),
        ("0.19.0", "Latency", "MARLIN", "Rule", {"--moe-backend": "marlin"}),
        ("0.33.0", "Throughput", "FLASHINFER_CUTLASS", "Engine", {}),
        ("0.33.0", "Latency", "MARLIN", "Rule", {"--moe-backend": "marlin"}),
        ("0.16.0", "Latency", "FLASHINFER_CUTLASS", "Engine", {}),
    ],
)
def test_nvfp4_experts_on_sm120_trade_memory_for_latency(version: str, goal: str, backend: str, by: str, want: dict[str, str]) -> None:
    decision = decide(NEMOTRON, version, "sm_120", backends={"optimizeFor": goal})
    assert chosen(decision)["MoE"] == (backend, by)
    assert emitted(decision) == want


def test_a_version_that_cannot_be_asked_for_the_better_backend_says_so() -> None:
    decision = decide(NEMOTRON, "0.16.0", "sm_120", backends={"optimizeFor": "Latency"})
    assert any("choose MoE backend MARLIN, but vLLM 0.16.0 has no setting for it" in note for note in notes_of(decision))


@pytest.mark.parametrize(
    ("version", "architecture", "want"),
    [
        ("0.19.0", "sm_90", {}),
        ("0.20.1", "sm_80", {}),
        ("0.20.1", "sm_90", {"VLLM_USE_DEEP_GEMM": "0"}),
        ("0.20.1", "sm_100", {"VLLM_USE_DEEP_GEMM": "0"}),
        ("0.20.1", "sm_120", {}),
        ("0.24.0", "sm_90", {"VLLM_USE_DEEP_GEMM": "0"}),
        ("0.24.0", "sm_120", {"VLLM_USE_DEEP_GEMM": "0"}),
        ("0.26.0", "sm_90", {}),
    ],
)
def test_the_deep_gemm_warm_up_is_turned_off_for_unquantized_models_where_it_dies(
    version: str, architecture: str, want: dict[str, str]
) -> None:
    decision = decide(LLAMA, version, architecture)
    assert emitted(decision) == want
    assert all("vllm#41849" not in (variable.reason or "") for variable in decision.env)


def test_the_user_beats_a_quirk_and_the_plan_says_so() -> None:
    decision = decide(LLAMA, "0.20.1", "sm_90", engine={"env": [{"name": "VLLM_USE_DEEP_GEMM", "value": "1"}]})
    assert emitted(decision) == {}
    assert any("spec.engine sets VLLM_USE_DEEP_GEMM to 1. The operator would use 0" in note for note in notes_of(decision))


def test_a_mig_uuid_is_refused_where_the_engine_dies_of_it_and_let_through_where_it_does_not() -> None:
    engine = {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "MIG-377e0049-554c-540b-93c6-d0976f8426cb"}]}
    refused = decide(LLAMA, "0.20.1", "sm_90", engine=engine)
    assert refused.refusal is not None
    assert "Remove the variable" in refused.refusal
    assert decide(LLAMA, "0.24.0", "sm_90", engine=engine).refusal is None


def test_a_refused_combination_is_planned_and_noted_if_the_user_insists() -> None:
    engine = {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "MIG-377e0049"}]}
    decision = decide(LLAMA, "0.20.1", "sm_90", engine=engine, allow_unsupported=True)
    assert decision.refusal is None
    assert notes_of(decision)[0].startswith(
        "vLLM is known to fail with this spec, which was started because of the annotation vllm-operator.dev/allow-unsupported:"
    )


def test_models_without_expert_groups_avoid_the_kernel_that_dies_of_them() -> None:
    assert emitted(decide(MINIMAX, "0.16.0", "sm_100"))["VLLM_USE_FLASHINFER_MOE_FP8"] == "0"
    assert "VLLM_USE_FLASHINFER_MOE_FP8" not in emitted(decide(MINIMAX, "0.18.0", "sm_100"))
    assert "VLLM_USE_FLASHINFER_MOE_FP8" not in emitted(decide(DEEPSEEK, "0.16.0", "sm_100"))


@pytest.mark.parametrize(
    ("version", "field", "name", "want"),
    [
        ("0.20.1", "moe", "DEEPGEMM", {"--moe-backend": "deep_gemm"}),
        ("0.20.1", "moe", "deep_gemm", {"--moe-backend": "deep_gemm"}),
        ("0.20.1", "moe", "triton", {"--moe-backend": "triton"}),
        ("0.16.0", "moe", "TRITON", {"VLLM_USE_FLASHINFER_MOE_FP8": "0", "VLLM_MOE_USE_DEEP_GEMM": "0"}),
        ("0.20.1", "attention", "FLASHMLA", {"--attention-backend": "FLASHMLA"}),
        ("0.12.0", "attention", "FLASHMLA", {"VLLM_ATTENTION_BACKEND": "FLASHMLA"}),
        ("0.24.0", "mlaPrefill", "FLASH_ATTN", {"--attention-config.mla_prefill_backend": "FLASH_ATTN"}),
        ("0.24.0", "gemm", "CUTLASS", {"--linear-backend": "cutlass"}),
        ("0.20.1", "sampler", "FLASHINFER", {"VLLM_USE_FLASHINFER_SAMPLER": "1"}),
        ("0.20.1", "allToAll", "deepep_low_latency", {"--all2all-backend": "deepep_low_latency"}),
        ("0.11.0", "allToAll", "deepep_low_latency", {"VLLM_ALL2ALL_BACKEND": "deepep_low_latency"}),
    ],
)
def test_a_forced_backend_is_asked_for_the_way_the_version_takes_it(version: str, field: str, name: str, want: dict[str, str]) -> None:
    decision = decide(DEEPSEEK, version, "sm_90", backends={field: name})
    assert decision.refusal is None
    assert want.items() <= emitted(decision).items()
    assert "User" in {by for _, by in chosen(decision).values()}


def test_a_forced_backend_that_the_version_does_not_have_is_refused_with_those_it_has() -> None:
    refusal = decide(DEEPSEEK, "0.20.1", "sm_90", backends={"moe": "FLASHINFER_B12X"}).refusal
    assert refusal is not None
    assert "vLLM 0.20.1" in refusal
    assert "FLASHINFER_CUTLASS" in refusal


def test_a_backend_set_by_the_users_own_flag_counts_as_the_users_choice() -> None:
    decision = decide(DEEPSEEK, "0.20.1", "sm_90", engine={"args": [{"name": "moe_backend", "value": "deep_gemm"}]})
    assert chosen(decision)["MoE"] == ("DEEPGEMM", "User")
    assert emitted(decision) == {}


@pytest.mark.parametrize(("uri", "architecture"), [("hf://someone/unknown", "sm_90"), (DEEPSEEK, None), (DEEPSEEK, "sm_75")])
def test_where_something_is_unknown_the_choice_stays_with_the_engine(uri: str, architecture: str | None) -> None:
    decision = decide(uri, "0.20.1", architecture)
    assert decision.refusal is None
    assert emitted(decision) == {}


def test_a_version_older_than_all_known_gets_no_setting_and_cannot_be_forced() -> None:
    assert decide(DEEPSEEK, "0.10.2", "sm_100").choices == ()
    refusal = decide(DEEPSEEK, "0.10.2", "sm_100", backends={"moe": "TRITON"}).refusal
    assert refusal is not None
    assert "spec.engine.args" in refusal


def test_on_a_small_slice_the_batches_are_those_of_a_small_gpu() -> None:
    small = {"mig": {"profile": "1g.10gb"}}
    assert emitted(decide(LLAMA, "0.26.0", "sm_90", accelerator=small)) == {"--max-num-seqs": "256"}
    assert emitted(decide(LLAMA, "0.26.0", "sm_90", accelerator=small, engine={"args": [{"name": "max-num-seqs", "value": "8"}]})) == {}
    assert emitted(decide(LLAMA, "0.26.0", "sm_90", accelerator={"mig": {"profile": "7g.141gb"}})) == {}


@pytest.mark.parametrize(
    ("uri", "tensor", "expert", "refused"),
    [
        (MINIMAX, 8, "Disabled", True),
        (MINIMAX, 8, "Enabled", False),
        (MINIMAX, 4, "Disabled", False),
        ("hf://Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", 8, "Disabled", True),
        ("hf://Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", 4, "Disabled", False),
        (DEEPSEEK, 8, "Disabled", False),
        (DEEPSEEK, 32, "Disabled", True),
    ],
)
def test_experts_are_not_cut_across_the_blocks_of_their_scales(uri: str, tensor: int, expert: str, refused: bool) -> None:
    refusal = decide(uri, "0.24.0", "sm_90", parallelism={"tensor": tensor, "expert": expert}).refusal
    assert (refusal is not None) is refused
    assert refusal is None or "spec.parallelism.expert to Enabled" in refusal


@pytest.mark.parametrize(
    ("what", "uri", "version", "architecture", "spec"),
    [
        ("sparse attention on Ada", "hf://deepseek-ai/DeepSeek-V3.2", "0.33.0", "sm_89", {}),
        ("sparse attention on SM120 before 0.24", "hf://deepseek-ai/DeepSeek-V3.2", "0.23.0", "sm_120", {}),
        ("GLM-5 before 0.16", "hf://zai-org/GLM-5-FP8", "0.15.0", "sm_100", {}),
        ("expert parallelism of a dense model", LLAMA, "0.20.1", "sm_90", {"parallelism": {"expert": "Enabled"}}),
        ("Hopper kernel on Blackwell", DEEPSEEK, "0.20.1", "sm_100", {"backends": {"attention": "FLASH_ATTN_MLA"}}),
        ("Blackwell kernel on Hopper", DEEPSEEK, "0.20.1", "sm_90", {"backends": {"moe": "FLASHINFER_TRTLLM"}}),
        (
            "Blackwell kernel by flag",
            DEEPSEEK,
            "0.20.1",
            "sm_90",
            {"engine": {"args": [{"name": "--moe-backend", "value": "flashinfer_trtllm"}]}},
        ),
        ("NVFP4 on Hopper with 0.12", NEMOTRON, "0.12.0", "sm_90", {}),
        (
            "DeepGEMM forced by variable",
            "hf://RedHatAI/Mixtral-8x7B-FP8",
            "0.16.0",
            "sm_90",
            {"engine": {"env": [{"name": "VLLM_USE_DEEP_GEMM", "value": "1"}]}},
        ),
        ("a Service called vllm", LLAMA, "0.20.1", "sm_80", {"engine": {"env": [{"name": "VLLM_PORT", "value": "tcp://10.0.0.1:80"}]}}),
        (
            "E5M2 cache and FP8 weights",
            DEEPSEEK,
            "0.20.1",
            "sm_90",
            {"engine": {"args": [{"name": "kv-cache-dtype", "value": "fp8_e5m2"}]}},
        ),
    ],
)
def test_what_cannot_work_is_refused_with_what_can_be_done(
    what: str, uri: str, version: str, architecture: str, spec: dict[str, Any]
) -> None:
    refusal = decide(uri, version, architecture, **spec).refusal
    assert refusal is not None, what
    assert any(word in refusal for word in ("Use ", "Set ", "Leave ", "Remove ", "Give ", "What can be asked for here"))


def test_the_only_kernel_for_sparse_attention_on_sm120_gets_the_cache_it_needs() -> None:
    decision = decide("hf://deepseek-ai/DeepSeek-V3.2", "0.24.0", "sm_120")
    assert chosen(decision)["SparseAttention"] == ("FLASHINFER_MLA_SPARSE_SM120", "Engine")
    assert emitted(decision)["--kv-cache-dtype"] == "fp8_ds_mla"


def test_a_plan_differs_where_the_versions_differ() -> None:
    spec: dict[str, Any] = {"backends": {"optimizeFor": "Latency", "attention": "CUTLASS_MLA"}, "parallelism": {"tensor": 8}}
    seen = {
        version: emitted(decide("hf://nvidia/DeepSeek-R1-FP4", version, "sm_100", **spec)) for version in ("0.12.0", "0.16.0", "0.33.0")
    }
    assert seen["0.12.0"] == {
        "VLLM_ATTENTION_BACKEND": "CUTLASS_MLA",
        "VLLM_USE_FLASHINFER_MOE_FP4": "1",
        "VLLM_FLASHINFER_MOE_BACKEND": "latency",
    }
    assert seen["0.16.0"] == seen["0.33.0"] == {"--attention-backend": "CUTLASS_MLA"}
