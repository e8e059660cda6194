"""Choosing backends: what is chosen, by whom, and what is set for it."""

from typing import Any

import pytest

from support.backends import decide

DEEPSEEK = "hf://deepseek-ai/DeepSeek-R1"
NEMOTRON = "hf://nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"
LLAMA = "hf://meta-llama/Llama-3.1-8B-Instruct"
MINIMAX = "hf://MiniMaxAI/MiniMax-M2.5"


def chosen(decision: Any) -> dict[str, tuple[str, str]]:
    return {choice.component: (choice.backend, choice.chosen_by.value) for choice in decision.choices}


def settings(decision: Any) -> dict[str, str | None]:
    return {entry.name: entry.value for entry in (*decision.env, *decision.args)}


@pytest.mark.parametrize("version", ["0.16.0", "0.19.0", "0.20.1", "0.24.0", "0.33.0"])
def test_fp8_mla_experts_on_hopper_are_left_to_the_engine(version):
    decision = decide(DEEPSEEK, version, "sm_90", parallelism={"tensor": 8})
    assert chosen(decision)["MLADecode"] == ("FLASH_ATTN_MLA", "Engine")
    assert chosen(decision)["MoE"] == ("FLASHINFER_CUTLASS" if version == "0.16.0" else "TRITON", "Engine")
    assert settings(decision) == {}


@pytest.mark.parametrize("version", ["0.16.0", "0.19.0", "0.20.1", "0.24.0", "0.33.0"])
def test_fp8_mla_experts_on_blackwell_are_left_to_the_engine(version):
    decision = decide(DEEPSEEK, version, "sm_100", parallelism={"tensor": 8})
    assert chosen(decision)["MLADecode"] == ("FLASHINFER_MLA", "Engine")
    assert chosen(decision)["MoE"] == ("FLASHINFER_TRTLLM", "Engine")


def test_flashinfer_mla_is_asked_for_where_the_engine_would_take_a_slower_one():
    assert settings(decide(DEEPSEEK, "0.14.0", "sm_100"))["--attention-backend"] == "FLASHINFER_MLA"
    assert settings(decide(DEEPSEEK, "0.12.0", "sm_100"))["VLLM_ATTENTION_BACKEND"] == "FLASHINFER_MLA"


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
def test_nvfp4_experts_on_sm120_trade_memory_for_latency(version, goal, backend, by, want):
    decision = decide(NEMOTRON, version, "sm_120", backends={"optimizeFor": goal})
    assert chosen(decision)["MoE"] == (backend, by)
    assert settings(decision) == want


def test_a_version_that_cannot_be_asked_for_the_better_backend_says_so():
    decision = decide(NEMOTRON, "0.16.0", "sm_120", backends={"optimizeFor": "Latency"})
    assert any("MARLIN would be better here, but vLLM 0.16.0 cannot be asked for it" in note for note in decision.notes)


@pytest.mark.parametrize(
    ("version", "architecture", "want"),
    [
        ("0.19.0", "sm_90", {}),
        ("0.20.1", "sm_80", {}),
        ("0.20.1", "sm_90", {"VLLM_USE_DEEP_GEMM": "0"}),
        ("0.20.1", "sm_100", {"VLLM_USE_DEEP_GEMM": "0"}),
        ("0.20.1", "sm_120", {}),
        ("0.24.0", "sm_90", {}),
    ],
)
def test_the_deep_gemm_warm_up_is_turned_off_for_unquantized_models_where_it_dies(version, architecture, want):
    decision = decide(LLAMA, version, architecture)
    assert settings(decision) == want
    assert all("vllm#41849" not in (variable.reason or "") for variable in decision.env)


def test_the_user_beats_a_quirk_and_the_plan_says_so():
    decision = decide(LLAMA, "0.20.1", "sm_90", engine={"env": [{"name": "VLLM_USE_DEEP_GEMM", "value": "1"}]})
    assert settings(decision) == {}
    assert any("VLLM_USE_DEEP_GEMM stays 1" in note for note in decision.notes)


def test_a_mig_uuid_is_refused_where_the_engine_dies_of_it_and_let_through_where_it_does_not():
    engine = {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "MIG-377e0049-554c-540b-93c6-d0976f8426cb"}]}
    refused = decide(LLAMA, "0.20.1", "sm_90", engine=engine)
    assert refused.refusal is not None
    assert refused.refusal.reason == "KnownBad"
    assert "Remove the variable" in refused.refusal.message
    assert decide(LLAMA, "0.24.0", "sm_90", engine=engine).refusal is None


def test_a_refused_combination_is_planned_and_noted_if_the_user_insists():
    engine = {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "MIG-377e0049"}]}
    decision = decide(LLAMA, "0.20.1", "sm_90", engine=engine, allow_known_bad=True)
    assert decision.refusal is None
    assert any("known to fail" in note for note in decision.notes)


def test_models_without_expert_groups_avoid_the_kernel_that_dies_of_them():
    assert settings(decide(MINIMAX, "0.16.0", "sm_100"))["VLLM_USE_FLASHINFER_MOE_FP8"] == "0"
    assert "VLLM_USE_FLASHINFER_MOE_FP8" not in settings(decide(MINIMAX, "0.18.0", "sm_100"))
    assert "VLLM_USE_FLASHINFER_MOE_FP8" not in settings(decide(DEEPSEEK, "0.16.0", "sm_100"))


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
def test_a_forced_backend_is_asked_for_the_way_the_version_takes_it(version, field, name, want):
    decision = decide(DEEPSEEK, version, "sm_90", backends={field: name})
    assert decision.refusal is None
    assert want.items() <= settings(decision).items()
    assert "User" in {by for _, by in chosen(decision).values()}


def test_a_forced_backend_that_the_version_does_not_have_is_refused_with_those_it_has():
    refusal = decide(DEEPSEEK, "0.20.1", "sm_90", backends={"moe": "FLASHINFER_B12X"}).refusal
    assert refusal is not None
    assert "vLLM 0.20.1" in refusal.message
    assert "FLASHINFER_CUTLASS" in refusal.message


def test_a_backend_set_by_the_users_own_flag_counts_as_the_users_choice():
    decision = decide(DEEPSEEK, "0.20.1", "sm_90", engine={"args": [{"name": "moe_backend", "value": "deep_gemm"}]})
    assert chosen(decision)["MoE"] == ("DEEPGEMM", "User")
    assert settings(decision) == {}


@pytest.mark.parametrize(("uri", "architecture"), [("hf://someone/unknown", "sm_90"), (DEEPSEEK, None), (DEEPSEEK, "sm_75")])
def test_where_something_is_unknown_the_choice_stays_with_the_engine(uri, architecture):
    decision = decide(uri, "0.20.1", architecture)
    assert decision.refusal is None
    assert settings(decision) == {}


def test_a_version_older_than_all_known_gets_no_setting_and_cannot_be_forced():
    assert decide(DEEPSEEK, "0.10.2", "sm_100").choices == ()
    refusal = decide(DEEPSEEK, "0.10.2", "sm_100", backends={"moe": "TRITON"}).refusal
    assert refusal is not None
    assert "spec.engine.args" in refusal.message
