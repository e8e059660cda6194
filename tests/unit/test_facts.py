"""What is known of a model, and where it is known from."""

from typing import Any

import pytest

from vllm_operator.api.spec import Attention, ModelSpec, Quantization
from vllm_operator.catalog.entry import parse_entry
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.models import Models, read_billions
from vllm_operator.sizing.model_facts import (
    FROM_CONFIG,
    FROM_SPEC,
    FROM_TABLE,
    FROM_WEIGHTS,
    ModelFiles,
    model_name,
    read_config,
    resolve_facts,
)

MODELS = load_catalog().models


@pytest.mark.parametrize(
    ("repository", "family", "attention", "experts", "quantization"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama", "GQA", 0, "BF16"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "llama", "GQA", 0, "BF16"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "llama", "GQA", 0, "FP8"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama", "GQA", 0, "INT4"),
        ("Qwen/Qwen3-32B", "qwen3", "GQA", 0, "BF16"),
        ("Qwen/Qwen3-32B-FP8", "qwen3", "GQA", 0, "FP8Block"),
        ("Qwen/Qwen3-14B-AWQ", "qwen3", "GQA", 0, "INT4"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-moe-235b", "GQA", 128, "FP8Block"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-moe", "GQA", 128, "BF16"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3-next", "Hybrid", 512, "BF16"),
        ("Qwen/Qwen3.5-27B", "qwen3.5", "Hybrid", 0, "BF16"),
        ("nvidia/Qwen3.5-27B-NVFP4", "qwen3.5", "Hybrid", 0, "NVFP4"),
        ("Qwen/Qwen3.5-122B-A10B-FP8", "qwen3.5-moe", "Hybrid", 256, "FP8Block"),
        ("openai/gpt-oss-120b", "gpt-oss-120b", "GQA", 128, "MXFP4"),
        ("openai/gpt-oss-20b", "gpt-oss", "GQA", 32, "MXFP4"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral", "GQA", 8, "BF16"),
        ("google/gemma-3-27b-it", "gemma-3-27b", "GQA", 0, "BF16"),
        ("nvidia/Gemma-4-31B-IT-NVFP4", "gemma-4", "GQA", 0, "NVFP4"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "nemotron-3-nano", "Hybrid", 128, "FP8"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "nemotron-3-super", "Hybrid", 512, "NVFP4"),
        ("MiniMaxAI/MiniMax-M2", "minimax-m2", "GQA", 256, "FP8Block"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax-m2", "GQA", 256, "FP8Block"),
        ("zai-org/GLM-4.5", "glm-4.5", "GQA", 160, "BF16"),
        ("zai-org/GLM-4.6-FP8", "glm-4.5", "GQA", 160, "FP8"),
        ("zai-org/GLM-4.7-Flash", "glm-4.7-flash", "MLA", 64, "BF16"),
        ("zai-org/GLM-5-FP8", "glm-5", "SparseMLA", 256, "FP8Block"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3", "MLA", 256, "FP8Block"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3", "MLA", 256, "FP8Block"),
        ("nvidia/DeepSeek-R1-0528-FP4", "deepseek-v3", "MLA", 256, "NVFP4"),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-v3", "MLA", 256, "NVFP4"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "deepseek-r1-distill", "GQA", 0, "BF16"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.2", "SparseMLA", 256, "FP8Block"),
        ("deepseek-ai/DeepSeek-V4", "deepseek-v4", "SparseMLA", 256, "MXFP4"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2", "MLA", 384, "FP8Block"),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2-thinking", "MLA", 384, "INT4"),
        ("nvidia/Kimi-K2-Thinking-NVFP4", "kimi-k2-thinking", "MLA", 384, "NVFP4"),
    ],
)
def test_well_known_models_are_recognised_by_name(
    repository: str, family: str | None, attention: str | None, experts: int | None, quantization: str | None
) -> None:
    facts = resolve_facts(ModelSpec(uri=f"hf://{repository}"), MODELS)
    assert (facts.family, facts.attention, facts.experts, facts.quantization) == (family, attention, experts, quantization)
    assert facts.sources["attention"] == FROM_TABLE


def test_names_are_compared_without_regard_to_case_and_on_claims_by_the_last_part() -> None:
    facts = resolve_facts(ModelSpec(uri="pvc://weights/models/deepseek-v3.2/"), MODELS)
    assert facts.family == "deepseek-v3.2"


@pytest.mark.parametrize(
    ("uri", "want"),
    [("hf://org/name", "org/name"), ("pvc://claim/a/b", "b"), ("pvc://claim/a/b/", "b"), ("pvc://claim", "claim")],
)
def test_the_name_of_a_model(uri: str, want: str) -> None:
    assert model_name(ModelSpec(uri=uri)) == want


def test_an_unknown_model_has_no_facts() -> None:
    facts = resolve_facts(ModelSpec(uri="hf://someone/something"), MODELS)
    assert (facts.attention, facts.experts, facts.quantization, facts.weight_bytes, facts.sources) == (None, None, None, None, {})


DEEPSEEK_CONFIG = {
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_group": 8,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "hidden_size": 7168,
    "moe_intermediate_size": 2048,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
}


def test_config_json_tells_what_the_name_does_not() -> None:
    facts = resolve_facts(ModelSpec(uri="hf://someone/finetune"), MODELS, ModelFiles(DEEPSEEK_CONFIG))
    assert (facts.attention, facts.experts, facts.quantization) == (Attention.MLA, 256, Quantization.FP8_BLOCK)
    assert (facts.routing, facts.routing_groups, facts.mla_dims) == ("DeepSeekV3", 8, (128, 64, 128))
    assert facts.family == "deepseek-v3"
    assert facts.sources["attention"] == FROM_CONFIG


def test_what_the_user_says_beats_config_json_which_beats_the_table() -> None:
    spec = ModelSpec.model_validate({"uri": "hf://deepseek-ai/DeepSeek-R1", "facts": {"experts": 16, "weightSize": "12Gi"}})
    facts = resolve_facts(spec, MODELS, ModelFiles({**DEEPSEEK_CONFIG, "n_group": 4}))
    assert (facts.experts, facts.sources["experts"]) == (16, FROM_SPEC)
    assert (facts.routing_groups, facts.sources["routing_groups"]) == (4, FROM_CONFIG)
    assert (facts.weight_bytes, facts.sources["weight_bytes"]) == (12 << 30, FROM_SPEC)


def test_expert_groups_given_by_the_user_tell_the_routing() -> None:
    spec = ModelSpec.model_validate({"uri": "hf://someone/small-deepseek", "facts": {"attention": "MLA", "experts": 8, "routingGroups": 4}})
    facts = resolve_facts(spec, MODELS)
    assert (facts.routing, facts.sources["routing"]) == ("DeepSeekV3", FROM_SPEC)


@pytest.mark.parametrize(
    ("quantization", "scheme"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "tensor"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "token"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, None),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt"),
        ({"quantization": {"quant_algo": "NVFP4"}}, "modelopt"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "mxfp8"}, "mxfp8"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "compressed"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {"g": {"weights": {"strategy": "tensor"}}},
            },
            "compressed-tensor",
        ),
        ({"quant_method": ["fp8"]}, None),
    ],
)
def test_how_the_weights_are_published_is_read_from_config_json(quantization: dict[str, Any], scheme: str | None) -> None:
    assert read_config({"quantization_config": quantization}).quantization_scheme == scheme


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"head_dim": 64, "hidden_size": 2880, "num_attention_heads": 64}, 64),
        ({"hidden_size": 4096, "num_attention_heads": 32}, 128),
        ({"hidden_size": 7168, "num_attention_heads": 128, "kv_lora_rank": 512}, None),
        ({"hidden_size": 4096, "num_attention_heads": 0}, None),
        ({}, None),
    ],
)
def test_the_head_size_is_read_or_divided(config: dict[str, Any], size: int | None) -> None:
    assert read_config(config).head_size == size


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, Quantization.FP8),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, Quantization.FP8_BLOCK),
        ({"quantization_config": {"quant_method": "mxfp4"}}, Quantization.MXFP4),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, Quantization.INT4),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, Quantization.INT8),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, Quantization.NVFP4),
        ({"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}}, Quantization.NVFP4),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "format": "pack-quantized",
                    "config_groups": {"g": {"weights": {"num_bits": 4}}},
                }
            },
            Quantization.INT4,
        ),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "format": "float-quantized",
                    "config_groups": {"g": {"weights": {"strategy": "block"}}},
                }
            },
            Quantization.FP8_BLOCK,
        ),
        ({"text_config": {"quantization_config": {"quant_method": "mxfp4"}}}, Quantization.MXFP4),
        ({"torch_dtype": "bfloat16"}, Quantization.BF16),
        ({"expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8"}}, Quantization.MXFP4),
        ({}, None),
    ],
)
def test_the_number_format_is_read_as_the_engine_reads_it(config: dict[str, Any], want: str | None) -> None:
    assert resolve_facts(ModelSpec(uri="hf://someone/x"), MODELS, ModelFiles({"model_type": "x", **config})).quantization == want


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({"num_attention_heads": 32, "num_key_value_heads": 8}, Attention.GQA),
        ({"num_attention_heads": 32, "num_key_value_heads": 32}, Attention.MHA),
        ({"kv_lora_rank": 512, "num_attention_heads": 16}, Attention.MLA),
        ({"kv_lora_rank": 512, "index_topk": 2048}, Attention.SPARSE_MLA),
        ({"layer_types": ["linear_attention", "full_attention"], "num_attention_heads": 16}, Attention.HYBRID),
        ({"hybrid_override_pattern": "M-M*"}, Attention.HYBRID),
        ({"text_config": {"num_attention_heads": 32, "num_key_value_heads": 8}}, Attention.GQA),
        ({}, None),
    ],
)
def test_the_attention_kind_is_read_as_the_engine_reads_it(config: dict[str, Any], want: str | None) -> None:
    assert resolve_facts(ModelSpec(uri="hf://someone/x"), MODELS, ModelFiles({"model_type": "x", **config})).attention == want


@pytest.mark.parametrize(
    "config",
    [
        {"num_attention_heads": "many", "quantization_config": []},
        {"quantization_config": {"quant_method": 5, "config_groups": {"g": None}}},
        {"text_config": "nonsense", "model_type": ["x"], "layer_types": 3, "n_group": -1},
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": [1], "format": None}},
    ],
)
def test_a_config_that_makes_no_sense_is_read_without_an_error(config: dict[str, Any]) -> None:
    facts = resolve_facts(ModelSpec(uri="hf://someone/x"), MODELS, ModelFiles(config))
    assert facts.attention in (None, Attention.MHA)


@pytest.mark.parametrize(
    ("name", "want"),
    [("Llama-3.1-70B-Instruct", 70.0), ("Qwen2.5-0.5B", 0.5), ("Qwen3-235B-A22B", 235.0), ("DeepSeek-R1", None), ("model-a1b2", None)],
)
def test_the_number_of_parameters_is_read_from_the_name(name: str, want: float | None) -> None:
    assert read_billions(name) == want


def test_the_weight_size_follows_from_parameters_and_format() -> None:
    assert resolve_facts(ModelSpec(uri="hf://meta-llama/Llama-3.1-70B-Instruct"), MODELS).weight_bytes == 140 * 10**9
    nvfp4 = resolve_facts(ModelSpec(uri="hf://nvidia/DeepSeek-R1-FP4"), MODELS).weight_bytes
    assert nvfp4 is not None
    assert 370e9 < nvfp4 < 400e9


def test_the_size_of_the_weight_files_beats_the_estimate_and_is_beaten_by_the_user() -> None:
    files = ModelFiles({"model_type": "llama"}, weight_bytes=141_107_412_992)
    read = resolve_facts(ModelSpec(uri="hf://meta-llama/Llama-3.1-70B-Instruct"), MODELS, files)
    assert (read.weight_bytes, read.sources["weight_bytes"]) == (141_107_412_992, FROM_WEIGHTS)
    given = ModelSpec.model_validate({"uri": "hf://meta-llama/Llama-3.1-70B-Instruct", "facts": {"weightSize": "100G"}})
    assert resolve_facts(given, MODELS, files).weight_bytes == 100 * 10**9


def test_a_table_with_a_fact_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="Cubist"):
        parse_entry(Models, {"formats": [], "families": [{"name": "x", "attention": "Cubist"}]})
