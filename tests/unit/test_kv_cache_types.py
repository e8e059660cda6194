"""Each value of `--kv-cache-dtype` is planned, refused or unknown; other number formats that vLLM refuses; the sampler of small slices."""

from typing import Any

import pytest

from support.backends import decide, describe, knowledge
from support.gpus import real_node
from support.plans import deployment, made, planned, refusal
from vllm_operator.catalog.versions import load_versions
from vllm_operator.sizing.model_facts import ModelFiles

QWEN, MLA, SPARSE = "hf://Qwen/Qwen3-8B", "hf://deepseek-ai/DeepSeek-V3.1", "hf://deepseek-ai/DeepSeek-V3.2"


def with_cache(value: str, **flags: str) -> dict[str, Any]:
    args = [{"name": "kv-cache-dtype", "value": value}, *({"name": name, "value": given} for name, given in flags.items())]
    return {"engine": {"args": args}}


def refused(uri: str, version: str, architecture: str, value: str, **flags: str) -> str:
    decision = decide(uri, version, architecture, parallelism={"tensor": 8 if "deepseek" in uri else 1}, **with_cache(value, **flags))
    return decision.refusal or ""


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
    assert f"Remove --kv-cache-dtype {value}" in message


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
