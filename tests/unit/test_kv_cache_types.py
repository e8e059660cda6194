"""Each value of `--kv-cache-dtype` is planned, refused or unknown; other number formats that vLLM refuses; the sampler of small slices."""

import random
import re
from dataclasses import replace
from typing import Any

import pytest

from support.backends import decide, describe, knowledge
from support.gpus import real_node
from support.plans import deployment, made, planned, refusal
from vllm_operator.catalog.backends import load_selectors
from vllm_operator.catalog.rule_matching import Component
from vllm_operator.catalog.versions import load_versions
from vllm_operator.planning.engine.backends import choose_backends
from vllm_operator.planning.engine.rule_input import attention_cases, attention_component
from vllm_operator.sizing.model_facts import ModelFiles

QWEN, MLA, SPARSE = "hf://Qwen/Qwen3-8B", "hf://deepseek-ai/DeepSeek-V3.1", "hf://deepseek-ai/DeepSeek-V3.2"


def with_cache(value: str, **flags: str) -> dict[str, Any]:
    args = [{"name": "kv-cache-dtype", "value": value}, *({"name": name, "value": given} for name, given in flags.items())]
    return {"engine": {"args": args}}


def refused(uri: str, version: str, architecture: str, value: str, **flags: str) -> str:
    decision = decide(uri, version, architecture, parallelism={"tensor": 8 if "deepseek" in uri else 1}, **with_cache(value, **flags))
    return decision.refusal or ""


def test_sparse_layers_on_hopper_read_an_fp8_cache_in_its_plain_form_since_0_30() -> None:
    assert "No sparse attention backend for sm_90" in refused(SPARSE, "0.29.0", "sm_90", "fp8_e4m3")
    assert refused(SPARSE, "0.30.0", "sm_90", "fp8_e4m3") == ""


@pytest.mark.parametrize("value", sorted({name for table in load_versions().tables for name in table.backends["kvCacheDtype"]} - {"auto"}))
def test_every_value_of_a_version_has_an_entry(value: str) -> None:
    assert knowledge()[2].kernels.find("KVCache", value.upper())


@pytest.mark.parametrize(
    ("uri", "architecture", "value", "why"),
    [
        (QWEN, "sm_90", "fp8_ds_mla", "is for sparse MLA"),
        (MLA, "sm_90", "fp8_ds_mla", "is for sparse MLA"),
        (QWEN, "sm_90", "fp8_inc", "is for Intel Gaudi"),
        (QWEN, "sm_90", "octave_k3v4", "is not for NVIDIA GPUs"),
        (QWEN, "sm_90", "ultraquant_4bit", "is for AMD GPUs"),
        (QWEN, "sm_90", "nvfp4_4over6", "is for sm_100 and sm_103"),
        (QWEN, "sm_100", "nvfp4_ds_mla", "is for sparse MLA"),
        (SPARSE, "sm_90", "nvfp4_ds_mla", "on sm_100 and sm_103"),
        (MLA, "sm_90", "int8_per_token_head", "is for attention without MLA"),
        (MLA, "sm_90", "turboquant_k8v4", "is for attention without MLA"),
        (QWEN, "sm_90", "float16", "is for weights in float16"),
        (QWEN, "sm_75", "bfloat16", "is for weights in bfloat16"),
        (QWEN, "sm_90", "fp9", "does not accept --kv-cache-dtype fp9"),
    ],
)
def test_a_type_of_the_wrong_kind_is_refused(uri: str, architecture: str, value: str, why: str) -> None:
    message = refused(uri, "0.33.0", architecture, value)
    assert why in message
    assert "--kv-cache-dtype to " in message or "emove --kv-cache-dtype" in message


@pytest.mark.parametrize(
    ("architecture", "value", "why"),
    [
        ("sm_90", "turboquant_k8v4", "does not work with keys and values of two sizes"),
        ("sm_80", "int8_per_token_head", "TRITON_ATTN_DIFFKV reads an 8-bit KV cache in fp8_e4m3 only"),
        ("sm_100", "fp8", "FLASH_ATTN_DIFFKV reads a 16-bit KV cache only on sm_100"),
        ("sm_90", "fp8_e5m2", "FLASH_ATTN_DIFFKV reads no KV cache in fp8_e5m2"),
        ("sm_90", "fp8", None),
    ],
)
def test_a_type_for_keys_and_values_of_two_sizes(architecture: str, value: str, why: str | None) -> None:
    resolved, known, _ = describe("hf://acme/two-sizes", "0.33.0", architecture, **with_cache(value))
    heads: dict[str, Any] = {"attention": "GQA", "quantization": "BF16", "head_size": 192, "value_head_size": 128, "unequal_heads": True}
    refusal = choose_backends(resolved, replace(known, **heads), knowledge()[2]).refusal
    assert (refusal is None) if why is None else (why in (refusal or ""))


def test_a_type_that_the_engine_replaces_is_noted() -> None:
    def notes(architecture: str, value: str) -> str:
        decision = decide(SPARSE, "0.33.0", architecture, parallelism={"tensor": 8}, **with_cache(value))
        assert decision.refusal is None
        return " ".join(note.text for note in decision.notes)

    assert "in its own layout, fp8_ds_mla" in notes("sm_90", "fp8")
    assert "in fp8_ds_mla on sm_120, also with --kv-cache-dtype bfloat16" in notes("sm_120", "bfloat16")
    turboquant = decide(QWEN, "0.33.0", "sm_90", **with_cache("turboquant_k8v4"))
    assert any("The first two and the last two layers keep a 16-bit KV cache" in note.text for note in turboquant.notes)


@pytest.mark.parametrize(
    ("uri", "version", "architecture", "value"),
    [
        (SPARSE, "0.33.0", "sm_90", "fp8_ds_mla"),
        (SPARSE, "0.33.0", "sm_100", "nvfp4_ds_mla"),
        (SPARSE, "0.12.0", "sm_90", "bfloat16"),
        (QWEN, "0.33.0", "sm_90", "bfloat16"),
        (QWEN, "0.32.0", "sm_90", "float16"),
        (QWEN, "0.33.0", "sm_75", "float16"),
        (QWEN, "0.33.0", "sm_100", "nvfp4_4over6"),
        (QWEN, "0.33.0", "sm_90", "turboquant_k8v4"),
        (QWEN, "0.25.0", "sm_90", "int4_per_token_head"),
        (QWEN, "0.33.0", "sm_90", "fp8"),
        (QWEN, "0.33.0", "sm_90", "auto"),
    ],
)
def test_a_type_of_the_right_kind_is_planned(uri: str, version: str, architecture: str, value: str) -> None:
    assert not refused(uri, version, architecture, value)


MODELS = {
    "without MLA": "hf://Qwen/Qwen3-8B",
    "FP8 weights": "hf://Qwen/Qwen3-8B-FP8",
    "sinks": "hf://openai/gpt-oss-20b",
    "images": "hf://google/gemma-3-27b-it",
    "hybrid": "hf://Qwen/Qwen3.5-27B",
    "MLA": "hf://deepseek-ai/DeepSeek-V3.1",
    "MLA of other sizes": "hf://zai-org/GLM-4.7-Flash",
    "sparse MLA": "hf://deepseek-ai/DeepSeek-V3.2",
    "sparse MLA with a default": "hf://zai-org/GLM-5-FP8",
    "own attention": "hf://deepseek-ai/DeepSeek-V4-Flash",
    "heads of two sizes": "hf://XiaomiMiMo/MiMo-V2-Flash",
}
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121")
ATTENTION = {"Attention", "MLADecode", "SparseAttention"}
OFFERED = re.compile(r"[Ss]et --kv-cache-dtype to ([^.]+?)(?:, or remove --kv-cache-dtype)?\.")


def every_type(count: int | None = None) -> list[tuple[str, str, str, str]]:
    """Each model, GPU, version and type of its KV cache, or always the same sample of them."""
    cases = [
        (uri, table.version, architecture, value)
        for uri in MODELS.values()
        for table in load_versions().tables
        for architecture in ARCHITECTURES
        for value in table.backends["kvCacheDtype"]
    ]
    return cases if count is None else random.Random(36).sample(cases, count)


def unexplained(uri: str, version: str, architecture: str, value: str) -> str | None:
    """Return what a plan with this type does not say; None if it says everything."""
    shape: dict[str, Any] = {"parallelism": {"tensor": 8}} if "Qwen" not in uri and "google" not in uri else {}
    decision = decide(uri, version, architecture, **with_cache(value), **shape)
    if decision.refusal is None:
        told = [note.text for note in decision.notes if "--kv-cache-dtype" in note.text]
        backends = {choice.backend for choice in decision.choices if choice.component in ATTENTION}
        accepts = load_selectors()[Component.ATTENTION].find(*asked(uri, version, architecture, value, shape)) if not told else None
        silent = not told and (accepts is None or accepts.raises or not backends & {*accepts.accepts})
        return f"planned with {backends} in silence" if silent and value != "auto" else None
    other = decide(uri, version, architecture, **with_cache("auto"), **shape)
    offered = OFFERED.search(decision.refusal)
    if other.refusal is None and not offered and "emove --kv-cache-dtype" not in decision.refusal:
        return f"no type that works is offered: {decision.refusal}"
    for name in re.split(", | or ", offered[1])[:: -1 if len(value) % 2 else 1][:2] if offered else ():  # two of them: each is a case, too
        if refusal := decide(uri, version, architecture, **with_cache(name), **shape).refusal:
            return f"{name} is offered, and refused: {refusal}"
    return None


def asked(uri: str, version: str, architecture: str, value: str, shape: dict[str, Any]) -> tuple[Any, str, Any]:
    _, known, _ = describe(uri, version, architecture, **with_cache(value), **shape)
    return known.release, architecture, attention_cases(attention_component(known), known)


def test_a_type_is_planned_for_a_backend_that_reads_it_or_refused_with_types_that_work() -> None:
    cases = every_type(400)
    assert {str(case): why for case in cases if (why := unexplained(*case))} == {}


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", [table.version for table in load_versions().tables])
def test_every_type_is_planned_for_a_backend_that_reads_it_or_refused_with_types_that_work(version: str) -> None:
    assert {str(case): why for case in every_type() if case[1] == version and (why := unexplained(*case))} == {}


def test_the_type_of_the_weights_that_the_user_sets_counts() -> None:
    assert not refused(QWEN, "0.33.0", "sm_90", "float16", dtype="half")


@pytest.mark.parametrize(("version", "is_refused"), [("0.14.1", True), ("0.15.0", False)])
def test_a_cache_in_bfloat16_needs_a_version_that_has_it(version: str, *, is_refused: bool) -> None:
    assert bool(refused(QWEN, version, "sm_90", "bfloat16")) is is_refused


def test_a_type_that_no_table_has_is_noted_for_a_newer_version() -> None:
    decision = decide(QWEN, "0.99.0", "sm_90", **with_cache("fp3"))
    assert decision.refusal is None
    assert any("--kv-cache-dtype fp3" in each.text and "does not know" in each.text for each in decision.notes)


def test_the_plan_does_not_set_float16_for_a_model_that_needs_more() -> None:
    """vLLM takes float16 on Turing by itself, or float32 where the model does not allow it."""
    gemma = deployment("hf://google/gemma-3-4b-it", engine={"version": "0.33.0"}, sizing={"contextLength": 4096})
    outcome = planned(gemma, real_node("t4"))
    assert outcome.plan
    assert "--dtype" not in {argument.name for argument in outcome.plan.args}
    assert any("float32" in text for text in outcome.plan.notes)
    qwen = made(deployment("hf://Qwen/Qwen3-0.6B", engine={"version": "0.33.0"}), real_node("t4"))
    assert "--dtype" not in {argument.name for argument in qwen.args}


@pytest.mark.parametrize(
    ("profile", "version", "sampler"),
    [
        ("1g.10gb", "0.33.0", "NATIVE"),
        ("1g.20gb", "0.33.0", "NATIVE"),
        ("2g.20gb", "0.33.0", "FLASHINFER"),
        ("1g.10gb", "0.29.0", "FLASHINFER"),
    ],
)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_sampler_of_a_slice_with_few_multiprocessors(architecture: str, profile: str, version: str, sampler: str) -> None:
    decision = decide("hf://Qwen/Qwen3-0.6B", version, architecture, accelerator={"mig": {"profile": profile}})
    assert {choice.component: choice.backend for choice in decision.choices}["Sampler"] == sampler


def test_the_compute_slices_of_a_profile_are_read() -> None:
    assert describe(QWEN, "0.33.0", "sm_90", accelerator={"mig": {"profile": "3g.40gb"}})[1].slice_compute == 3
    assert describe(QWEN, "0.33.0", "sm_90")[1].slice_compute is None


def act_order(version: str, **written: Any) -> dict[str, Any]:
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True, **written}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "quantization_config": quantization,
    }
    resource = deployment("hf://acme/Llama-8B-GPTQ", engine={"version": version})
    return {"resource": resource, "files": ModelFiles(config=config, weight_bytes=6 << 30)}


def test_gptq_that_is_ordered_by_activation_is_refused_since_it_was_removed() -> None:
    given = act_order("0.33.0")
    reason, message = refusal(given["resource"], real_node("h100-sxm"), files=given["files"])
    assert reason == "Unsupported"
    assert "desc_act=True" in message


@pytest.mark.parametrize(
    ("version", "written"),
    [("0.29.0", {}), ("0.33.0", {"desc_act": False}), ("0.33.0", {"group_size": -1})],
    ids=["older", "plain", "one group"],
)
def test_other_gptq_is_planned(version: str, written: dict[str, Any]) -> None:
    given = act_order(version, **written)
    assert made(given["resource"], real_node("h100-sxm"), files=given["files"])
