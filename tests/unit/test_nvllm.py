"""Plans for nvLLM: they start the engine as the fork's own scripts do, and say what its README says."""

from typing import Any

import pytest

from support.backends import chosen, decide, emitted, notes_of
from support.gpus import real_node
from support.plans import deployment, made
from vllm_operator.rendering.manifests import render

QWEN, SUPER = "hf://nvidia/Qwen3.5-27B-NVFP4", "hf://nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"
GEMMA = "hf://RedHatAI/gemma-4-31B-it-NVFP4"
NVLLM: dict[str, Any] = {"distribution": "nvLLM"}


def with_flags(**flags: str | None) -> dict[str, Any]:
    names = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
    return {**NVLLM, "args": [{"name": name, **({"value": value} if value else {})} for name, value in names.items()]}


def test_cute_paged_attention_gets_the_cache_that_it_reads_and_the_stream_k_kernel() -> None:
    decision = decide(QWEN, "0.20.1", "sm_121", engine=NVLLM)
    assert chosen(decision)["Attention"] == ("CUTE_PAGED", "Rule")
    assert emitted(decision) == {
        "--attention-backend": "CUTE_PAGED",
        "--kv-cache-dtype": "fp8_e4m3",
        "VLLM_NVFP4_GEMM_BACKEND": "cutlass",
    }
    assert chosen(decide(QWEN, "0.20.1", "sm_121"))["Attention"] == ("FLASH_ATTN", "Engine")


def test_another_cache_leaves_triton_for_attention() -> None:
    decision = decide(QWEN, "0.20.1", "sm_121", engine=with_flags(kv_cache_dtype="auto"))
    assert chosen(decision)["Attention"] == ("TRITON_ATTN", "Rule")
    assert "--kv-cache-dtype" not in emitted(decision)
    own = decide(QWEN, "0.20.1", "sm_121", engine=with_flags(kv_cache_dtype="fp8"))
    assert chosen(own)["Attention"] == ("CUTE_PAGED", "Rule")
    forced = decide(QWEN, "0.20.1", "sm_121", engine=with_flags(kv_cache_dtype="auto"), backends={"attention": "CUTE_PAGED"})
    assert forced.refusal is not None
    assert "FP8 KV cache only" in forced.refusal


def test_the_output_projection_is_split_for_latency() -> None:
    decision = decide(QWEN, "0.20.1", "sm_121", engine=NVLLM, backends={"optimizeFor": "Latency"})
    assert emitted(decision)["CUTE_WO_SPLIT"] == "8"
    own = {**NVLLM, "env": [{"name": "CUTE_WO_SPLIT", "value": "2"}]}
    assert "CUTE_WO_SPLIT" not in emitted(decide(QWEN, "0.20.1", "sm_121", engine=own, backends={"optimizeFor": "Latency"}))
    wrong = {**NVLLM, "env": [{"name": "CUTE_WO_SPLIT", "value": "3"}]}
    assert decide(QWEN, "0.20.1", "sm_121", engine=wrong).refusal is not None


@pytest.mark.parametrize(("size", "guarded"), [("74G", False), ("76G", True)])
def test_models_that_leave_no_memory_for_graphs_run_without(size: str, guarded: bool) -> None:
    facts = {"attention": "GQA", "experts": 0, "quantization": "NVFP4", "weightSize": size}
    decision = decide("hf://someone/large", "0.20.1", "sm_121", engine=NVLLM, facts=facts)
    assert ("--enforce-eager" in emitted(decision)) is guarded
    assert "--enforce-eager" not in emitted(decide("hf://someone/large", "0.20.1", "sm_121", facts=facts))


def test_a_model_of_120_billion_nvfp4_weights_counts_as_large() -> None:
    assert "--enforce-eager" in emitted(decide(SUPER, "0.20.1", "sm_121", engine=NVLLM))


@pytest.mark.parametrize(
    ("model", "words"), [(SUPER, 'lists Nemotron 3 Super as "Not Ready"'), (GEMMA, 'lists Gemma 4 as "Degraded"'), (QWEN, None)]
)
def test_the_status_of_a_model_in_the_readme_is_told(model: str, words: str | None) -> None:
    notes = notes_of(decide(model, "0.20.1", "sm_121", engine=NVLLM))
    assert [note for note in notes if "lists" in note and (words or "lists") in note] == [note for note in notes if "lists" in note]
    assert any(words in note for note in notes) if words else not any("lists" in note for note in notes)
    assert not any("nvLLM lists" in note for note in notes_of(decide(model, "0.20.1", "sm_121")))


def test_tq_becomes_what_the_start_script_makes_of_it() -> None:
    decision = decide(QWEN, "0.20.1", "sm_121", engine=with_flags(tq=None))
    assert chosen(decision)["KVCache"] == ("TURBOQUANT", "User")
    assert chosen(decision)["Attention"] == ("TRITON_ATTN", "Rule")
    assert (emitted(decision)["--kv-cache-dtype"], emitted(decision)["--attention-backend"]) == ("turboquant35", "TRITON_ATTN")
    assert [note for note in notes_of(decision) if "--tq" in note] == [
        "The operator sets what nvLLM's serve.sh makes of --tq: a TurboQuant KV cache, which holds more context at about 25 % lower "
        "throughput, and Triton for attention."
    ]
    refusal = decide(QWEN, "0.20.1", "sm_121", engine={"args": [{"name": "--tq"}]}).refusal
    assert refusal is not None
    assert "turboquant_4bit_nc" in refusal


@pytest.mark.parametrize(
    ("flag", "instead"),
    [("--tq", ["--kv-cache-dtype", "turboquant35", "--attention-backend", "TRITON_ATTN"]), ("--debug", ["--enforce-eager"])],
)
def test_flags_of_the_start_script_do_not_reach_vllm_serve(flag: str, instead: list[str]) -> None:
    resource = deployment(QWEN, engine={**NVLLM, "version": "0.20.1", "args": [{"name": flag}, {"name": "--max-num-seqs", "value": "4"}]})
    manifests = render(resource, made(resource, real_node("gb10")))
    [words] = [
        container["args"]
        for manifest in manifests
        if manifest["kind"] == "Deployment"
        for container in manifest["spec"]["template"]["spec"]["containers"]
    ]
    assert flag not in words
    assert [word for word in instead if word not in words] == []
    assert words[-2:] == ["--max-num-seqs", "4"]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_100", "sm_110"])
def test_other_gpus_are_refused(architecture: str) -> None:
    refusal = decide(QWEN, "0.20.1", architecture, engine=NVLLM).refusal
    assert refusal is not None
    assert "GB10 (sm_121) and GH200 (sm_90)" in refusal


@pytest.mark.parametrize("architecture", ["sm_90", "sm_120"])
def test_gpus_that_need_an_image_of_their_own_are_planned_with_a_note(architecture: str) -> None:
    decision = decide(QWEN, "0.20.1", architecture, engine=NVLLM)
    assert decision.refusal is None
    assert any("compiled for GB10 (sm_121) only" in note for note in notes_of(decision))
