"""Linear attention, the sampler and the exchange of tokens: what each version takes, refuses and replaces."""

from typing import Any

import pytest

from support.backends import chosen, decide, emitted, notes_of

NEXT, QWEN_3_5, LLAMA = "hf://Qwen/Qwen3-Next-80B-A3B-Instruct", "hf://Qwen/Qwen3.5-27B", "hf://meta-llama/Llama-3.1-8B-Instruct"
NANO, EXPERTS = "hf://nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "hf://Qwen/Qwen3-235B-A22B-Instruct-2507"
GPT_OSS, R1 = "hf://openai/gpt-oss-120b", "hf://deepseek-ai/DeepSeek-R1"
APART: dict[str, Any] = {"parallelism": {"data": 8, "expert": "Enabled"}}


def with_flag(name: str, value: str) -> dict[str, Any]:
    return {"engine": {"args": [{"name": name, "value": value}]}}


@pytest.mark.parametrize(
    ("model", "architecture", "cache", "component", "expected"),
    [
        (LLAMA, "sm_75", "auto", "Attention", "FLEX_ATTENTION"),
        (LLAMA, "sm_80", "auto", "Attention", "FLASH_ATTN"),
        (LLAMA, "sm_89", "fp8", "Attention", "TRITON_ATTN"),
        (LLAMA, "sm_90", "fp8", "Attention", "FLASH_ATTN"),
        (LLAMA, "sm_100", "auto", "Attention", "FLASHINFER"),
        (LLAMA, "sm_103", "auto", "Attention", "FLASH_ATTN"),
        (GPT_OSS, "sm_80", "auto", "Attention", "TRITON_ATTN"),
        (GPT_OSS, "sm_90", "auto", "Attention", "FLASH_ATTN"),
        (GPT_OSS, "sm_103", "auto", "Attention", "TRITON_ATTN"),
        (GPT_OSS, "sm_103", "auto", "MoE", "TRITON"),
        (R1, "sm_90", "auto", "MLADecode", "FLASHMLA"),
    ],
)
def test_vllm_0_11_0_which_has_no_table_of_attention(model: str, architecture: str, cache: str, component: str, expected: str) -> None:
    """Source: get_attn_backend_cls and check_and_update_config (vllm/platforms/cuda.py, 0.11.0)."""
    assert chosen(decide(model, "0.11.0", architecture, **with_flag("--kv-cache-dtype", cache)))[component] == (expected, "Engine")


@pytest.mark.parametrize(
    ("version", "architecture", "pin"),
    [
        ("0.23.0", "sm_90", "FLASHMLA_SPARSE_DSV4"),
        ("0.24.0", "sm_100", "FLASHINFER_MLA_SPARSE_DSV4"),
        ("0.33.0", "sm_120", "FLASHINFER_MLA_SPARSE_DSV4"),
        ("0.33.0", "sm_90", "FLASHMLA_SPARSE"),
    ],
)
def test_the_attention_of_deepseek_v4_is_not_judged_by_the_selector_that_it_does_not_ask(version: str, architecture: str, pin: str) -> None:
    decision = decide("hf://deepseek-ai/DeepSeek-V4", version, architecture, backends={"attention": pin}, parallelism={"tensor": 8})
    assert (chosen(decision)["SparseAttention"], decision.refusal) == ((pin, "User"), None)


@pytest.mark.parametrize(
    ("version", "architecture", "pin", "refused"),
    [
        ("0.19.1", "sm_90", "FLASH_ATTN", True),
        ("0.22.0", "sm_89", "FLASH_ATTN", True),
        ("0.24.0", "sm_100", "FLASH_ATTN", False),
        ("0.20.1", "sm_90", "FLASHINFER", True),
        ("0.22.0", "sm_90", "FLASHINFER", False),
        ("0.33.0", "sm_120", "TRITON_ATTN", False),
    ],
)
def test_the_large_heads_of_gemma_4(version: str, architecture: str, pin: str, refused: bool) -> None:
    decision = decide("hf://google/gemma-4-31B-it", version, architecture, backends={"attention": pin})
    assert (decision.refusal is not None) is refused


def test_vllm_0_21_0_which_has_no_wheel_follows_its_neighbours() -> None:
    decision = decide(R1, "0.21.0", "sm_90", backends={"moe": "FLASHINFER_TRTLLM"})
    assert decision.refusal is not None
    assert "kernel does not support this GPU" in decision.refusal
    assert chosen(decide(R1, "0.21.0", "sm_90", parallelism={"tensor": 8}))["MoE"] == ("TRITON", "Engine")


@pytest.mark.parametrize(
    ("model", "version", "architecture", "expected"),
    [
        (NEXT, "0.16.0", "sm_90", "TRITON"),
        (NEXT, "0.17.0", "sm_90", "FLASHINFER"),
        (NEXT, "0.33.0", "sm_90", "FLASHINFER"),
        (NEXT, "0.21.0", "sm_100", "TRITON"),
        (NEXT, "0.22.0", "sm_100", "FLASHINFER"),
        # the head size is in the inner part of config.json: hf_config until 0.25, hf_text_config since 0.26
        (QWEN_3_5, "0.22.0", "sm_100", "TRITON"),
        (QWEN_3_5, "0.25.1", "sm_103", "TRITON"),
        (QWEN_3_5, "0.26.0", "sm_100", "FLASHINFER"),
        (NEXT, "0.29.0", "sm_120", "TRITON"),
        (NEXT, "0.30.0", "sm_120", "FLASHINFER"),
        (NEXT, "0.33.0", "sm_121", "FLASHINFER"),
        (NEXT, "0.33.0", "sm_110", "TRITON"),
        (NEXT, "0.33.0", "sm_89", "TRITON"),
        (NANO, "0.33.0", "sm_100", "TRITON"),
    ],
)
def test_linear_attention_by_default(model: str, version: str, architecture: str, expected: str) -> None:
    assert chosen(decide(model, version, architecture))["LinearAttention"] == (expected, "Engine")


@pytest.mark.parametrize(
    ("model", "version", "architecture", "asked", "expected"),
    [
        (NEXT, "0.18.0", "sm_90", "triton", ("TRITON", "User")),
        (NEXT, "0.18.0", "sm_90", "flashinfer", ("FLASHINFER", "User")),
        (NEXT, "0.18.0", "sm_100", "flashinfer", ("TRITON", "Engine")),
        (NEXT, "0.33.0", "sm_80", "flashinfer", ("TRITON", "Engine")),
        (NEXT, "0.33.0", "sm_90", "cutedsl", ("TRITON", "Engine")),
        (NEXT, "0.33.0", "sm_100", "cutedsl", ("CUTEDSL", "User")),
        (QWEN_3_5, "0.24.0", "sm_100", "cutedsl", ("TRITON", "Engine")),
    ],
)
def test_linear_attention_that_cannot_run_is_replaced_by_triton(
    model: str, version: str, architecture: str, asked: str, expected: tuple[str, str]
) -> None:
    decision = decide(model, version, architecture, **with_flag("--gdn-prefill-backend", asked))
    assert (chosen(decision)["LinearAttention"], decision.refusal) == (expected, None)
    assert any("has no effect" in note for note in notes_of(decision)) is (expected[1] == "Engine")


def test_a_model_without_linear_attention_ignores_its_flag() -> None:
    decision = decide(LLAMA, "0.33.0", "sm_90", **with_flag("--gdn-prefill-backend", "triton"))
    assert "LinearAttention" not in chosen(decision)
    assert any("has no linear attention" in note for note in notes_of(decision))


def test_linear_attention_of_another_vendor_is_refused() -> None:
    refusal = decide(NEXT, "0.33.0", "sm_90", **with_flag("--gdn-prefill-backend", "aiter_flydsl")).refusal
    assert refusal is not None
    assert "GPUs of other vendors" in refusal


@pytest.mark.parametrize(
    ("version", "architecture", "expected"),
    [
        ("0.11.0", "sm_75", ("FLASHINFER", "Engine")),
        ("0.11.0", "sm_120", ("NATIVE", "Rule")),
        ("0.11.1", "sm_90", ("NATIVE", "Engine")),
        ("0.20.2", "sm_100", ("NATIVE", "Engine")),
        ("0.21.0", "sm_100", ("FLASHINFER", "Engine")),
        ("0.22.1", "sm_75", ("FLASHINFER", "Engine")),
        ("0.24.0", "sm_75", ("NATIVE", "Engine")),
        ("0.33.0", "sm_110", ("FLASHINFER", "Engine")),
        ("0.33.0", "sm_121", ("FLASHINFER", "Engine")),
    ],
)
def test_the_sampler_by_default(version: str, architecture: str, expected: tuple[str, str]) -> None:
    assert chosen(decide(LLAMA, version, architecture))["Sampler"] == expected


def test_the_sampler_that_a_gpu_cannot_run_is_refused() -> None:
    refusal = decide(LLAMA, "0.24.0", "sm_75", backends={"sampler": "FLASHINFER"}).refusal
    assert refusal is not None
    assert "Sampler backend FLASHINFER does not work with vLLM 0.24.0 on sm_75" in refusal
    for version, architecture in (("0.23.0", "sm_75"), ("0.24.0", "sm_80"), ("0.33.0", "sm_90")):
        decision = decide(LLAMA, version, architecture, backends={"sampler": "FLASHINFER"})
        assert (decision.refusal, notes_of(decision)) == (None, [])


@pytest.mark.parametrize("version", ["0.11.0", "0.22.0", "0.33.0"])
def test_processed_logprobs_need_the_native_sampler(version: str) -> None:
    processed = with_flag("--logprobs-mode", "processed_logprobs")
    assert chosen(decide(LLAMA, version, "sm_90", **processed))["Sampler"] == ("NATIVE", "Engine")
    assert (
        chosen(decide(LLAMA, version, "sm_90", **with_flag("--logprobs-mode", "raw_logits")))["Sampler"][0] != "NATIVE"
        or version == "0.12.0"
    )
    pinned = decide(LLAMA, version, "sm_90", backends={"sampler": "FLASHINFER"}, **processed)
    assert any("has no effect with --logprobs-mode" in note for note in notes_of(pinned))


@pytest.mark.parametrize(
    ("version", "pin", "expected"),
    [
        ("0.16.0", "pplx", ("PPLX", "User")),
        ("0.17.0", "pplx", ("ALLGATHER_REDUCESCATTER", "Engine")),
        ("0.18.1", "naive", ("NAIVE", "User")),
        ("0.19.0", "naive", ("ALLGATHER_REDUCESCATTER", "Engine")),
        ("0.33.0", "pplx", ("ALLGATHER_REDUCESCATTER", "Engine")),
        ("0.33.0", "deepep_low_latency", ("DEEPEP_LOW_LATENCY", "User")),
    ],
)
def test_an_exchange_that_was_removed_is_replaced(version: str, pin: str, expected: tuple[str, str]) -> None:
    decision = decide(EXPERTS, version, "sm_90", backends={"allToAll": pin}, **APART)
    assert (chosen(decision)["AllToAll"], decision.refusal) == (expected, None)
    replaced = expected[1] == "Engine"
    assert any("spec.backends.allToAll has no effect" in note for note in notes_of(decision)) is replaced
    assert ("--all2all-backend" in emitted(decision)) is not replaced


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        ("nixl_ep", "must contain the package of this exchange"),
        ("deepep_high_throughput", "must contain DeepEP"),
        ("flashinfer_nvlink_two_sided", "NVLink fabric"),
    ],
)
def test_what_an_exchange_needs_is_told(pin: str, words: str) -> None:
    decision = decide(EXPERTS, "0.33.0", "sm_100", backends={"allToAll": pin}, **APART)
    text = " ".join([*notes_of(decision), decision.refusal or ""])
    assert words in text


@pytest.mark.parametrize(
    ("version", "architecture", "tensor", "expected"),
    [
        ("0.28.0", "sm_90", 8, "CUSTOM"),
        ("0.29.0", "sm_90", 8, "FLASHINFER"),
        ("0.33.0", "sm_103", 4, "FLASHINFER"),
        ("0.33.0", "sm_80", 8, "CUSTOM"),
        ("0.33.0", "sm_120", 2, "CUSTOM"),
        ("0.33.0", "sm_89", 4, "NCCL"),
    ],
)
def test_the_all_reduce_by_default(version: str, architecture: str, tensor: int, expected: str) -> None:
    assert chosen(decide(LLAMA, version, architecture, parallelism={"tensor": tensor}))["AllReduce"] == (expected, "Engine")
