"""vLLM's own answers decide which backend is expected for experts, and which pins are refused or without effect."""

from typing import Any

import pytest

from support.backends import chosen, decide, emitted, notes_of
from vllm_operator.catalog.backends import load_selectors, parse_selectors
from vllm_operator.catalog.rule_matching import Component, RuleInput
from vllm_operator.planning.engine.rule_input import moe_cases

NANO_NVFP4 = "hf://nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4"
QWEN, QWEN_FP8 = "hf://Qwen/Qwen3-235B-A22B-Instruct-2507", "hf://Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"
QWEN_NVFP4 = "hf://nvidia/Qwen3-235B-A22B-NVFP4"
MINIMAX, KIMI_INT4 = "hf://MiniMaxAI/MiniMax-M2.5", "hf://moonshotai/Kimi-K2-Thinking"
GPT_OSS, DEEPSEEK = "hf://openai/gpt-oss-120b", "hf://deepseek-ai/DeepSeek-R1"
TP8 = {"parallelism": {"tensor": 8}}
DP2 = {"parallelism": {"data": 2}}
EP8 = {"parallelism": {"tensor": 8, "expert": "Enabled"}}


def exchanging(backend: str) -> dict[str, Any]:
    return {"parallelism": {"data": 8, "expert": "Enabled"}, "backends": {"allToAll": backend}}


@pytest.mark.parametrize(
    ("model", "version", "architecture", "spec", "expected"),
    [
        # hidden size 2688: trtllm_nvfp4_moe.py:109 (0.18.1)
        (NANO_NVFP4, "0.18.1", "sm_100", {}, "FLASHINFER_CUTLASS"),
        # oracle/unquantized.py (0.20.0, 0.23.0)
        (QWEN, "0.20.0", "sm_90", TP8, "FLASHINFER_CUTLASS"),
        (QWEN, "0.23.0", "sm_90", TP8, "TRITON"),
        # the choice does not depend on the tensor parallel size: quantization/fp8.py:163 (0.11.1)
        (QWEN_FP8, "0.11.2", "sm_90", EP8, "DEEPGEMM"),
        (DEEPSEEK, "0.11.2", "sm_90", TP8, "DEEPGEMM"),
        (QWEN_FP8, "0.17.0", "sm_90", {"parallelism": {"tensor": 4}}, "TRITON"),
        # router logits in FP32: trtllm_fp8_moe.py:93 (0.18.1)
        (MINIMAX, "0.18.1", "sm_100", {"parallelism": {"tensor": 4}}, "DEEPGEMM"),
        # data parallelism: flashinfer_cutlass_moe.py:148 (0.15.1)
        (QWEN_NVFP4, "0.15.1", "sm_120", DP2, "VLLM_CUTLASS"),
        (QWEN_FP8, "0.15.1", "sm_90", DP2, "DEEPGEMM"),
        # VLLM_USE_FLASHINFER_MOE_INT4 is unset: flashinfer_mxint4_moe.py:24 (0.23.0)
        (KIMI_INT4, "0.23.0", "sm_100", TP8, "MARLIN"),
        # dynamic scales: flashinfer_cutlass_moe.py is for one fixed scale per tensor
        ("hf://RedHatAI/Mixtral-8x7B-Instruct-v0.1-FP8-dynamic", "0.33.0", "sm_120", {}, "TRITON"),
        ("hf://zai-org/GLM-4.5-FP8", "0.16.0", "sm_100", {}, "FLASHINFER_CUTLASS"),
        # experts do not balance in FlashInfer TRTLLM
        (DEEPSEEK, "0.33.0", "sm_100", EP8 | {"engine": {"args": [{"name": "--enable-eplb"}]}}, "DEEPGEMM"),
        (GPT_OSS, "0.33.0", "sm_90", exchanging("deepep_low_latency"), "MARLIN"),
        (QWEN_FP8, "0.33.0", "sm_100", {"engine": {"env": [{"name": "VLLM_USE_DEEP_GEMM", "value": "1"}]}}, "DEEPGEMM"),
    ],
)
def test_the_backend_that_vllm_takes_is_expected(model: str, version: str, architecture: str, spec: dict[str, Any], expected: str) -> None:
    assert chosen(decide(model, version, architecture, **spec))["MoE"] == (expected, "Engine")


@pytest.mark.parametrize(
    ("model", "version", "architecture", "spec", "words"),
    [
        (NANO_NVFP4, "0.15.1", "sm_90", {}, "No NvFp4 MoE backend supports the deployment configuration"),
        (DEEPSEEK, "0.33.0", "sm_80", exchanging("deepep_low_latency"), "No FP8 MoE backend supports the deployment configuration"),
    ],
)
def test_a_plan_on_which_the_selector_raises_is_refused(
    model: str, version: str, architecture: str, spec: dict[str, Any], words: str
) -> None:
    refusal = decide(model, version, architecture, **spec).refusal
    assert refusal is not None
    assert words in refusal
    assert decide(model, version, architecture, allow_unsupported=True, **spec).refusal is None


@pytest.mark.parametrize(
    ("model", "version", "architecture", "backend", "words"),
    [
        (DEEPSEEK, "0.33.0", "sm_90", "FLASHINFER_TRTLLM", "on sm_90: kernel does not support this GPU"),
        (QWEN_NVFP4, "0.33.0", "sm_100", "TRITON", "on sm_100: not supported for NvFP4 MoE"),
        (MINIMAX, "0.18.1", "sm_100", "FLASHINFER_TRTLLM", "router logits dtype torch.float32"),
        (NANO_NVFP4, "0.18.1", "sm_100", "VLLM_CUTLASS", "kernel does not support no act_and_mul MLP layer"),
    ],
)
def test_a_pin_that_the_selector_refuses_is_refused_with_its_reason(
    model: str, version: str, architecture: str, backend: str, words: str
) -> None:
    refusal = decide(model, version, architecture, backends={"moe": backend}).refusal
    assert refusal is not None
    assert f"vLLM {version} refuses MoE backend {backend} " in refusal
    assert words in refusal
    assert "Set spec.backends.moe to " in refusal


@pytest.mark.parametrize(
    ("model", "version", "architecture", "backend", "flag"),
    [
        (QWEN_FP8, "0.17.0", "sm_90", "DEEPGEMM", "deep_gemm"),
        (QWEN_NVFP4, "0.33.0", "sm_100", "FLASHINFER_CUTEDSL", "flashinfer_cutedsl"),
        (QWEN, "0.33.0", "sm_90", "FLASHINFER_CUTLASS", "flashinfer_cutlass"),
    ],
)
def test_a_pin_that_the_selector_accepts_is_set(model: str, version: str, architecture: str, backend: str, flag: str) -> None:
    decision = decide(model, version, architecture, backends={"moe": backend})
    assert decision.refusal is None
    assert (emitted(decision)["--moe-backend"], chosen(decision)["MoE"]) == (flag, (backend, "User"))
    assert not [note for note in notes_of(decision) if "does not know" in note]


@pytest.mark.parametrize(
    ("model", "version", "architecture", "taken"),
    [
        (GPT_OSS, "0.17.0", "sm_100", "FLASHINFER_TRTLLM"),
        (GPT_OSS, "0.18.1", "sm_90", "TRITON"),
        (KIMI_INT4, "0.20.1", "sm_90", "MARLIN"),
        (KIMI_INT4, "0.23.0", "sm_100", "MARLIN"),
    ],
)
def test_a_pin_that_vllm_ignores_is_without_effect(model: str, version: str, architecture: str, taken: str) -> None:
    decision = decide(model, version, architecture, backends={"moe": "FLASHINFER_CUTLASS"}, parallelism={"tensor": 8})
    assert (decision.refusal, chosen(decision)["MoE"]) == (None, (taken, "Engine"))
    assert "--moe-backend" not in emitted(decision)
    assert any("spec.backends.moe has no effect" in note for note in notes_of(decision))


def test_a_pin_in_a_version_without_a_table_is_planned_with_a_note() -> None:
    decision = decide(QWEN_FP8, "0.99.0", "sm_90", backends={"moe": "DEEPGEMM"})
    assert decision.refusal is None
    assert any("does not know whether vLLM 0.99.0 accepts MoE backend DEEPGEMM" in note for note in notes_of(decision))


EXPERTS: dict[str, Any] = {"mixture_of_experts": True, "quantization": "FP8Block", "routing": "DeepSeekV3"}


@pytest.mark.parametrize(
    ("facts", "cases"),
    [
        ({}, ["FP8Block/Unset/Tensor/DeepSeekV3"]),
        ({"quantization": "FP8"}, [f"FP8{end}/Unset/Tensor/DeepSeekV3" for end in ("", "Dynamic", "Channel")]),
        ({"tensor": 8, "expert_tensor": 8}, ["FP8Block/Unset/Tensor8/DeepSeekV3"]),
        ({"data": 2, "expert_tensor": 2}, ["FP8Block/Unset/Data/DeepSeekV3"]),
        ({"expert_parallel": True, "tensor": 8}, ["FP8Block/Unset/Expert/DeepSeekV3"]),
        ({"expert_parallel": True}, ["FP8Block/Unset/Tensor/DeepSeekV3"]),
        ({"exchanges_tokens": True}, ["FP8Block/Unset/Exchange-nixl_ep/DeepSeekV3"]),
        ({"quantization": "NVFP4", "hidden_size": 2688}, ["NVFP4/Unset/Tensor/DeepSeekV3-hidden"]),
        ({"environment": {"VLLM_USE_DEEP_GEMM": "0"}}, ["FP8Block/VLLM_USE_DEEP_GEMM=0/Tensor/DeepSeekV3"]),
        ({"environment": {"VLLM_USE_DEEP_GEMM": "0", "VLLM_MOE_USE_DEEP_GEMM": "1"}}, []),
        ({"environment": {"VLLM_USE_FLASHINFER_MOE_FP8": "1"}}, []),
        ({"arguments": {"--enable-lora": ""}}, []),
        ({"family": "gpt-oss", "quantization": "MXFP4", "routing": "Renormalize"}, ["MXFP4/Unset/Tensor/GptOss"]),
        ({"quantization": "MXFP4"}, []),
        ({"quantization": "INT8"}, []),
        ({"routing": "Llama4"}, []),
        ({"quantization": "FP8", "quantization_scheme": "tensor", "routing": "Llama4"}, ["FP8/Unset/Tensor/Llama4"]),
        ({"routing": None}, []),
        ({"mixture_of_experts": False}, []),
    ],
)
def test_the_question_of_a_deployment(facts: dict[str, Any], cases: list[str]) -> None:
    assert list(moe_cases(RuleInput(release=(0, 33, 0), **EXPERTS | facts), {Component.ALL_TO_ALL: "NIXL_EP"})) == cases


def test_a_branch_that_is_not_written_is_the_usual_one_and_a_format_that_was_not_asked_has_no_answer() -> None:
    trees = parse_selectors(
        {
            "reasons": ["too old"],
            "answers": [
                {"takes": "TRITON", "accepts": ["TRITON"]},
                {"refuses": [[0, ["MARLIN"]]], "ignores": [["TRITON", ["B12X"]]], "raises": 0},
            ],
            "trees": [{"*": 0, "Llama4": 1}, {"*": 0}, {"*": 1}, {"FP8": 2}],
            "versions": {"0.20.1": {"sm_90": 3}},
        }
    )
    usual, other = (trees.find((0, 20, 1), "sm_90", [f"FP8/Unset/Tensor/{model}"]) for model in ("DeepSeekV3", "Llama4"))
    assert usual is not None
    assert (usual.takes, usual.accepts) == ("TRITON", ("TRITON",))
    assert other is not None
    assert (other.takes, other.refuses, other.ignores, other.raises) == (None, {"MARLIN": "too old"}, {"B12X": "TRITON"}, "too old")
    assert trees.find((0, 20, 1), "sm_90", ["NVFP4/Unset/Tensor/Llama4"]) is None
    assert trees.find((0, 20, 1), "sm_100", ["FP8/Unset/Tensor/Llama4"]) is None
    assert trees.find((0, 20, 1), "sm_90", []) is None


def test_every_question_has_an_answer_in_the_newest_version() -> None:
    experts = load_selectors()[Component.MOE]
    release = max(experts.versions)
    kinds = ("DeepSeekV3", "MiniMax2", "Renormalize")
    for quantization in ("BF16", "FP8Block", "FP8", "NVFP4", "MXFP8", "INT4"):
        for kind in kinds:
            facts = EXPERTS | {"quantization": quantization, "routing": kind}
            selection = experts.find(release, "sm_100", moe_cases(RuleInput(release=release, **facts), {}))
            assert selection is not None
            assert selection.takes
