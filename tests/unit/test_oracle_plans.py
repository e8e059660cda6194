"""The check of plans against the models that vLLM builds: which cases it asks, and what it finds wrong."""

from typing import Any

import pytest

from oracle import plans
from oracle.plans import VERSIONS, Case, all_cases, configuration, judge

LLAMA = Case("nvidia/Llama-3.3-70B-Instruct-NVFP4", "A100", "0.33.0", 2)
TAKEN = {"attention": {"FLASHINFER": 6}, "gemm": {"MARLIN": 24, "TORCH": 1}, "sampler": {"FLASHINFER": 1}}


def test_at_least_eighty_configurations_can_be_asked() -> None:
    repositories = plans.written()["checkpoints"]
    assert len(repositories) >= 80
    assert all(configuration(each)["architectures"] for each in repositories)


def test_a_seed_always_chooses_the_same_cases() -> None:
    first = all_cases(VERSIONS, 7, 40)
    assert first == all_cases(VERSIONS, 7, 40)
    assert first != all_cases(VERSIONS, 8, 40)
    assert any(case.cache for case in first)
    assert {"--quantization", "--enable-lora"} == {case.flag[0] for case in all_cases(VERSIONS, 7, 200) if case.flag}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (TAKEN, []),
        (TAKEN | {"attention": {"FLASH_ATTN": 6}}, ["Attention FLASHINFER planned, vLLM takes {'FLASH_ATTN': 6}"]),
        ({"raises": "ValueError: no"}, ["planned, and vLLM raises: ValueError: no"]),
        ({"gemm": {}}, []),
    ],
)
def test_a_plan_that_says_something_else_is_wrong(answer: dict[str, Any], found: list[str]) -> None:
    assert judge(LLAMA.outcome(), answer) == found


def test_a_refusal_is_wrong_if_vllm_builds_the_model() -> None:
    refused = Case("acme/Llama-3.3-70B-Instruct-GPTQ", "H100", "0.33.0", 2).outcome()
    assert judge(refused, {"raises": "ValueError: desc_act"}) == []
    assert "refused without need" in judge(refused, {"attention": {"FLASH_ATTN": 6}})[0]


def test_vllm_gets_the_flags_and_variables_of_the_plan() -> None:
    case = Case("Qwen/Qwen3-8B", "H100 1g.10gb", "0.33.0", cache="fp8")
    question = case.question(case.outcome())
    assert ("--kv-cache-dtype", "fp8") in question["arguments"]
    assert ("--max-num-seqs", "256") in question["arguments"]
    assert question["multiprocessors"] == 16


def test_vllm_gets_the_flag_of_the_user() -> None:
    case = Case("Qwen/Qwen3-8B", "L4", "0.33.0", flag=("--quantization", "fp8"))
    outcome = case.outcome()
    assert ("--quantization", "fp8") in case.question(outcome)["arguments"]
    assert str(case).endswith("vLLM 0.33.0, --quantization fp8")
    assert judge(outcome, {"gemm": {"CUTLASS": 24}}) == []
