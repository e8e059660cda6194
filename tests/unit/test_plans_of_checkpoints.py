"""Plans that depend on a checkpoint's config.json: its KV cache, the bits and groups of its weights, the mark of images."""

import json
from pathlib import Path
from typing import Any

import pytest
from annotated_types import MaxLen

from support.backends import chosen, decide, knowledge
from vllm_operator.api.plan import Plan
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.models import FACTS
from vllm_operator.planning.engine.backends import BackendDecision, choose_backends
from vllm_operator.planning.engine.image import ResolvedVersion, resolve_version
from vllm_operator.planning.engine.rule_input import describe_rule_input
from vllm_operator.sizing.model_facts import ModelFiles, keep_facts, resolve_facts

CHECKPOINTS = Path(__file__).parents[1] / "corpus/plans"
MODELS = {
    "kv-cache-in-checkpoint": "nvidia/Llama-3.3-70B-Instruct-NVFP4",
    "kv-cache-in-checkpoint-sparse": "nvidia/DeepSeek-V3.2-NVFP4",
    "gptq-int8": "Qwen/Qwen3-14B-GPTQ-Int8",
    "uneven-blocks": "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",
    "uneven-groups": "RedHatAI/Qwen3-30B-A3B-quantized.w4a16",
    "gemma-images": "google/gemma-4-31B-it",
}


def plan(name: str, version: str, architecture: str, changes: dict[str, Any] | None = None, **spec: Any) -> BackendDecision:
    """Choose the backends for a checkpoint. `changes` are made in its config.json, `args` are flags, `spec` is the rest of the spec."""
    config = json.loads((CHECKPOINTS / f"{name}.config.json").read_text("utf-8")) | (changes or {})
    engine = {"version": version, "args": [{"name": flag, "value": value} for flag, value in spec.pop("args", {}).items()]}
    parsed = VLLMDeploymentSpec.model_validate({"model": {"uri": f"hf://{MODELS[name]}"}, "engine": engine, **spec})
    resolved = resolve_version(parsed.engine, knowledge()[0])
    assert isinstance(resolved, ResolvedVersion)
    facts = resolve_facts(parsed.model, load_catalog().models, ModelFiles(config=config))
    return choose_backends(resolved, describe_rule_input(parsed, resolved, facts, architecture), knowledge()[2], parsed.backends)


def backend(decision: BackendDecision, component: str) -> str:
    assert decision.refusal is None, decision.refusal
    return chosen(decision)[component][0]


LLAMA, SPARSE, GPTQ, BLOCKS, GROUPS, IMAGES = MODELS
FP8 = {"num_bits": 8, "type": "float"}
SPELLINGS: list[dict[str, Any]] = [
    {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": FP8},
    {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}},
    {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
    {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "kv_cache_scheme": FP8},
]


@pytest.mark.parametrize("written", SPELLINGS)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_89", "sm_120"])
def test_the_kv_cache_of_the_checkpoint_is_the_type_that_automatic_means(architecture: str, written: dict[str, Any]) -> None:
    changes = {"quantization_config": written}
    assert backend(plan(LLAMA, "0.33.0", architecture, changes), "Attention") == "FLASHINFER"
    assert backend(plan(LLAMA, "0.33.0", architecture, changes, args={"kv-cache-dtype": "auto"}), "Attention") == "FLASHINFER"
    assert backend(plan(LLAMA, "0.33.0", architecture, changes, args={"kv-cache-dtype": "bfloat16"}), "Attention") == "FLASH_ATTN"
    assert backend(plan(LLAMA, "0.33.0", architecture, changes | {"quantization_config": {}}), "Attention") == "FLASH_ATTN"


def test_versions_before_0_14_ignore_the_kv_cache_of_the_checkpoint() -> None:
    assert backend(plan(LLAMA, "0.13.0", "sm_120"), "Attention") == "FLASH_ATTN"
    assert backend(plan(LLAMA, "0.14.0", "sm_120"), "Attention") == "FLASHINFER"


def test_a_pin_that_cannot_read_the_kv_cache_of_the_checkpoint_is_refused() -> None:
    for pinned in ("FLASH_ATTN", "FLEX_ATTENTION"):
        refusal = plan(LLAMA, "0.33.0", "sm_120", backends={"attention": pinned}).refusal
        assert refusal is not None
        assert "refuses" in refusal


def test_the_kv_cache_of_the_checkpoint_does_not_start_on_turing() -> None:
    refusal = plan(LLAMA, "0.33.0", "sm_75").refusal
    assert refusal is not None
    assert "does not support an FP8 KV cache" in refusal


DENSE_LATENT = {"index_topk": None, "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]}


def test_mla_with_the_kv_cache_of_the_checkpoint() -> None:
    assert backend(plan(SPARSE, "0.33.0", "sm_90", DENSE_LATENT), "MLADecode") == "FLASHMLA"
    refusal = plan(SPARSE, "0.33.0", "sm_80", DENSE_LATENT).refusal
    assert refusal is not None
    assert "FP8 KV cache" in refusal


def test_sparse_mla_with_the_kv_cache_of_the_checkpoint() -> None:
    tp8: dict[str, Any] = {"parallelism": {"tensor": 8}}
    refusal = plan(SPARSE, "0.29.0", "sm_90", **tp8).refusal
    assert refusal is not None
    assert "Set --kv-cache-dtype to bfloat16, fp8 or fp8_ds_mla." in refusal
    assert backend(plan(SPARSE, "0.33.0", "sm_90", **tp8), "SparseAttention") == "FLASHMLA_SPARSE"
    assert backend(plan(SPARSE, "0.33.0", "sm_100", **tp8), "SparseAttention") == "FLASHINFER_MLA_SPARSE"
    for given, taken in (("fp8_ds_mla", "FLASHMLA_SPARSE"), ("bfloat16", "FLASH_ATTN_MLA_SPARSE")):
        assert backend(plan(SPARSE, "0.33.0", "sm_90", args={"kv-cache-dtype": given}, **tp8), "SparseAttention") == taken


def test_the_kv_cache_of_the_checkpoint_is_a_fact_of_the_plan() -> None:
    config = json.loads((CHECKPOINTS / f"{LLAMA}.config.json").read_text("utf-8"))
    parsed = VLLMDeploymentSpec.model_validate({"model": {"uri": "hf://a/b"}})
    kept = keep_facts(resolve_facts(parsed.model, load_catalog().models, ModelFiles(config=config)))
    assert [(fact.value, fact.source) for fact in kept if fact.name == "kvCache"] == [("fp8_e4m3", "config.json")]


PACKED = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}
ONE_GROUP = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "strategy": "channel"}}},
}
ACTIVATIONS = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}


@pytest.mark.parametrize(
    ("version", "architecture", "taken"), [("0.29.0", "sm_80", "ALLSPARK"), ("0.33.0", "sm_80", "MARLIN"), ("0.29.0", "sm_90", "MACHETE")]
)
def test_eight_bits_with_one_scale_for_each_output(version: str, architecture: str, taken: str) -> None:
    assert backend(plan(GPTQ, version, architecture, {"quantization_config": ONE_GROUP}), "GEMM") == taken


@pytest.mark.parametrize(("architecture", "weights_only"), [("sm_80", "MARLIN"), ("sm_90", "MACHETE")])
def test_eight_bits_of_weights_alone_have_the_kernels_of_four(architecture: str, weights_only: str) -> None:
    for version in ("0.20.0", "0.33.0"):
        assert backend(plan(GPTQ, version, architecture), "GEMM") == weights_only
        assert backend(plan(GPTQ, version, architecture, {"quantization_config": PACKED}), "GEMM") == weights_only
        assert backend(plan(GPTQ, version, architecture, {"quantization_config": ACTIVATIONS}), "GEMM") == "CUTLASS"
        assert backend(decide("hf://Qwen/Qwen3-14B-GPTQ-Int8", version, architecture), "GEMM") == weights_only


def with_cache(uri: str, version: str, architecture: str, cache: str) -> BackendDecision:
    return decide(uri, version, architecture, engine={"args": [{"name": "kv-cache-dtype", "value": cache}]})


QWEN, QWEN_MOE, GEMMA, R1 = (
    "hf://Qwen/Qwen3-8B",
    "hf://Qwen/Qwen3-30B-A3B-Instruct-2507",
    "hf://google/gemma-3-12b-it",
    "hf://deepseek-ai/DeepSeek-R1",
)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize(("cache", "taken"), [
    ("turboquant_3bit_nc", "TURBOQUANT"), ("turboquant_k8v4", "TURBOQUANT"),
    ("int8_per_token_head", "TRITON_ATTN"),
    ("nvfp4", "FLASHINFER"),
])  # fmt: skip
def test_a_kv_cache_that_one_backend_reads_chooses_it(architecture: str, cache: str, taken: str) -> None:
    for model in (QWEN, QWEN_MOE):
        assert backend(with_cache(model, "0.33.0", architecture, cache), "Attention") == taken
    assert backend(with_cache(QWEN, "0.33.0", "sm_90", "fp8_per_token_head"), "Attention") == "TRITON_ATTN"


def test_kv_caches_that_a_model_or_gpu_cannot_have_are_refused() -> None:
    refused = [
        with_cache(R1, "0.33.0", "sm_90", "turboquant_k8v4"),
        with_cache(GEMMA, "0.33.0", "sm_90", "turboquant_k8v4"),
        with_cache(QWEN, "0.29.0", "sm_90", "nvfp4"),
        with_cache(QWEN, "0.33.0", "sm_75", "nvfp4"),
    ]
    assert all(decision.refusal is not None for decision in refused)


TP4: dict[str, Any] = {"parallelism": {"tensor": 4}}
TP8: dict[str, Any] = {"parallelism": {"tensor": 8}}


@pytest.mark.parametrize("architecture", ["sm_89", "sm_90", "sm_100", "sm_120"])
def test_blocks_that_the_gpus_cut_are_divided_since_0_29(architecture: str) -> None:
    for goal in ("Throughput", "Latency"):
        assert backend(plan(BLOCKS, "0.33.0", architecture, **TP8, backends={"optimizeFor": goal}), "MoE") == "TRITON"
    for version, gpu in (("0.28.0", architecture), ("0.33.0", "sm_80")):
        refusal = plan(BLOCKS, version, gpu, **TP8).refusal
        assert refusal is not None
        assert "128x128 blocks" in refusal
    assert plan(BLOCKS, "0.33.0", architecture, **TP8, backends={"moe": "DEEPGEMM"}).refusal is not None


AWQ_GROUPS = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}}
GPTQ_GROUPS = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}}


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_groups_that_the_gpus_cut_are_refused_since_0_25_except_in_gptq(architecture: str) -> None:
    refusal = plan(GROUPS, "0.33.0", architecture, **TP4).refusal
    assert refusal is not None
    assert "divisible by group_size" in refusal
    assert plan(GROUPS, "0.33.0", architecture, parallelism={"tensor": 4, "expert": "Enabled"}).refusal is None
    assert backend(plan(GROUPS, "0.33.0", architecture, parallelism={"tensor": 2}), "MoE") != "TRITON"
    assert backend(plan(GROUPS, "0.21.0", architecture, **TP4), "MoE") == "TRITON"
    assert backend(plan(GROUPS, "0.33.0", architecture, GPTQ_GROUPS, **TP4), "MoE") == "TRITON"
    assert backend(plan(GROUPS, "0.33.0", architecture, AWQ_GROUPS, **TP4), "MoE") == "TRITON"


def test_the_mark_of_images_in_the_configuration_counts() -> None:
    assert backend(plan(IMAGES, "0.33.0", "sm_90"), "Attention") == "TRITON_FLASH_ATTN"
    assert backend(plan(IMAGES, "0.29.0", "sm_90"), "Attention") == "FLASH_ATTN"
    config = json.loads((CHECKPOINTS / f"{IMAGES}.config.json").read_text("utf-8"))
    unmarked = {"text_config": config["text_config"] | {"use_bidirectional_attention": None}}
    assert backend(plan(IMAGES, "0.33.0", "sm_90", unmarked), "Attention") == "FLASH_ATTN"


@pytest.mark.parametrize("version", ["0.20.2", "0.22.0", "0.24.0"])
def test_versions_that_forget_the_mark_of_images(version: str) -> None:
    for architecture, taken in (("sm_80", "FLASH_ATTN"), ("sm_90", "FLASH_ATTN"), ("sm_100", "FLASHINFER")):
        assert backend(decide(GEMMA, version, architecture), "Attention") == taken
    assert backend(decide(GEMMA, "0.19.1", "sm_80"), "Attention") == backend(decide(GEMMA, "0.25.1", "sm_80"), "Attention") == "TRITON_ATTN"


QUANTIZED = ("*self_attn*", "*mlp.*")


@pytest.mark.parametrize(("left_out", "kernel"), [((), "MARLIN"), (QUANTIZED[:1], "MARLIN"), (QUANTIZED, "TORCH")])
def test_dense_layers_that_are_not_quantized_run_with_pytorch(left_out: tuple[str, ...], kernel: str) -> None:
    written = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", *left_out]}
    assert backend(plan(LLAMA, "0.33.0", "sm_80", {"quantization_config": written}), "GEMM") == kernel


MIMO = {
    "architectures": ["MiMoV2FlashForCausalLM"], "model_type": "mimo_v2_flash",
    "head_dim": 192, "v_head_dim": 128, "quantization_config": {},
}  # fmt: skip


def test_a_model_that_came_with_a_newer_version_is_refused() -> None:
    refusal = plan(LLAMA, "0.13.0", "sm_90", MIMO).refusal
    assert refusal is not None
    assert "vLLM 0.13.0 does not support this model (MiMoV2FlashForCausalLM). Use vLLM 0.14.0 or newer." in refusal
    assert plan(LLAMA, "0.14.0", "sm_90", MIMO).refusal is None
    assert plan(LLAMA, "0.13.0", "sm_90", MIMO, args={"model-impl": "transformers"}).refusal is None
    assert plan(LLAMA, "0.13.0", "sm_90", MIMO | {"architectures": ["OurOwnModel"]}).refusal is None


@pytest.mark.parametrize(
    ("version", "architecture", "taken"),
    [
        ("0.33.0", "sm_90", "FLASH_ATTN_DIFFKV"),
        ("0.33.0", "sm_100", "FLASH_ATTN_DIFFKV"),
        ("0.33.0", "sm_80", "TRITON_ATTN_DIFFKV"),
        ("0.33.0", "sm_120", "TRITON_ATTN_DIFFKV"),
        ("0.21.0", "sm_90", "FLASH_ATTN_DIFFKV"),
        ("0.17.1", "sm_90", "FLASH_ATTN"),
    ],
)
def test_heads_of_two_sizes_have_backends_of_their_own(version: str, architecture: str, taken: str) -> None:
    assert backend(plan(LLAMA, version, architecture, MIMO), "Attention") == taken
    same = MIMO | {"v_head_dim": 192}
    assert "DIFFKV" not in backend(plan(LLAMA, version, architecture, same), "Attention")


@pytest.mark.parametrize(
    ("version", "architecture", "taken"), [("0.33.0", "sm_90", "HUMMING"), ("0.25.1", "sm_90", "MARLIN"), ("0.33.0", "sm_80", "MARLIN")]
)
def test_small_groups_have_no_kernel_of_machete(version: str, architecture: str, taken: str) -> None:
    written = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    assert backend(plan(GPTQ, version, architecture, {"quantization_config": written}), "GEMM") == taken


def test_a_router_that_does_not_renormalise_is_not_deepseeks() -> None:
    facts = resolve_facts(
        VLLMDeploymentSpec.model_validate({"model": {"uri": "hf://a/b"}}).model,
        load_catalog().models,
        ModelFiles(
            config={"num_attention_heads": 16, "n_routed_experts": 64, "n_group": 1, "scoring_func": "softmax", "norm_topk_prob": False}
        ),
    )
    assert facts.routing == "Default"


def test_no_attention_backend_is_named_for_models_without_a_kv_cache() -> None:
    bert = {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "num_attention_heads": 16, "hidden_size": 1024}
    for version, architecture in (("0.21.0", "sm_80"), ("0.33.0", "sm_100")):
        assert "Attention" not in chosen(plan(LLAMA, version, architecture, {**bert, "num_key_value_heads": None}))
        assert "Attention" in chosen(plan(LLAMA, version, architecture, {"quantization_config": {}}))


@pytest.mark.parametrize(
    ("model", "taken"),
    [("google/gemma-2-27b-it", "TRITON_ATTN"), ("zai-org/GLM-4-32B-0414", "TRITON_ATTN"), ("Qwen/Qwen3-8B", "FLASHINFER")],
)
def test_models_in_float32_on_turing_have_a_backend_that_computes_in_it(model: str, taken: str) -> None:
    assert backend(decide(f"hf://{model}", "0.21.0", "sm_75"), "Attention") == taken
    assert backend(decide(f"hf://{model}", "0.33.0", "sm_75"), "Attention") == "TRITON_ATTN"


def compressed(form: str, **group: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}}


FOUR_BITS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_100", "sm_120"])
def test_four_bits_with_fp8_activations_need_hopper(architecture: str) -> None:
    changes = compressed("pack-quantized", weights=FOUR_BITS, input_activations={"num_bits": 8, "type": "float", "strategy": "token"})
    refusal = plan(LLAMA, "0.33.0", architecture, changes).refusal
    assert refusal is not None
    assert "sm_90 only" in refusal
    assert backend(plan(LLAMA, "0.33.0", "sm_90", changes), "GEMM") == "CUTLASS"
    assert plan(LLAMA, "0.33.0", architecture, compressed("pack-quantized", weights=FOUR_BITS)).refusal is None


@pytest.mark.parametrize(
    "written",
    [
        {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"},
        {"quant_method": "moe_wna16"},
        {"quant_method": "torchao"},
        {"quant_method": "quark"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"},
    ],
)
def test_the_name_says_no_format_for_which_the_file_has_another(written: dict[str, Any]) -> None:
    decision = plan(LLAMA, "0.29.0", "sm_120", {"quantization_config": written})
    assert decision.refusal is None
    assert "GEMM" not in chosen(decision)


def test_a_deprecated_format_gets_the_flag_that_it_needs() -> None:
    changes = {"quantization_config": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}}
    assert "--allow-deprecated-quantization" in {each.name for each in plan(LLAMA, "0.29.0", "sm_90", changes).args}
    assert "--allow-deprecated-quantization" not in {each.name for each in plan(LLAMA, "0.29.0", "sm_90").args}


@pytest.mark.parametrize(("version", "architecture", "taken"), [("0.29.0", "sm_90", "MACHETE"), ("0.33.0", "sm_80", "MARLIN")])
def test_auto_round_in_eight_bits_has_the_kernels_of_gptq(version: str, architecture: str, taken: str) -> None:
    written = {"quant_method": "auto-round", "bits": 8, "group_size": 128, "packing_format": "auto_round:auto_gptq"}
    assert backend(plan(LLAMA, version, architecture, {"quantization_config": written}), "GEMM") == taken


@pytest.mark.parametrize("written", [{"bits": 4, "sym": False}, {"bits": 3, "sym": True}])
def test_gptq_without_a_kernel_of_marlin_is_refused_since_0_22(written: dict[str, Any]) -> None:
    changes = {"quantization_config": {"quant_method": "gptq", "group_size": 128, **written}}
    assert plan(GPTQ, "0.21.0", "sm_80", changes).refusal is None
    refusal = plan(GPTQ, "0.22.0", "sm_80", changes).refusal
    assert refusal is not None
    assert "symmetric weights of 4 or 8 bits" in refusal


@pytest.mark.parametrize(("version", "taken"), [("0.24.0", "FLASH_ATTN"), ("0.29.0", "TRITON_ATTN"), ("0.33.0", "TRITON_FLASH_ATTN")])
def test_paligemma_attends_to_images_in_both_directions(version: str, taken: str) -> None:
    changes = {"model_type": "paligemma", "text_config": {"model_type": "gemma2", "head_dim": 256}, "quantization_config": {}}
    assert backend(plan(LLAMA, version, "sm_90", changes), "Attention") == taken


def test_bitsandbytes_is_refused_since_0_28() -> None:
    changes = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    assert plan(LLAMA, "0.27.1", "sm_90", changes).refusal is None
    refusal = plan(LLAMA, "0.28.0", "sm_90", changes).refusal
    assert refusal is not None
    assert "no longer reads bitsandbytes" in refusal


@pytest.mark.parametrize(
    ("architecture", "taken"), [("sm_75", "HUMMING"), ("sm_86", "HUMMING"), ("sm_89", "MARLIN"), ("sm_90", "DEEPGEMM")]
)
def test_blocks_of_compressed_tensors_have_a_kernel_of_their_own_before_ada(architecture: str, taken: str) -> None:
    changes = compressed("float-quantized", weights={"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]})
    assert backend(plan(LLAMA, "0.33.0", architecture, changes), "GEMM") == taken


def test_a_plan_has_room_for_all_facts() -> None:
    limit = next(each.max_length for each in Plan.model_fields["model_facts"].metadata if isinstance(each, MaxLen))
    assert limit >= len(FACTS)


def test_sizes_of_mla_alone_make_no_mla() -> None:
    config = {
        "model_type": "minicpm3",
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "head_dim": None,
    }
    plain = config | {"num_key_value_heads": 64, "quantization_config": {}}
    assert backend(plan(LLAMA, "0.33.0", "sm_80", plain), "Attention") == "FLASH_ATTN"
    assert "MLADecode" in chosen(plan(LLAMA, "0.33.0", "sm_80", plain | {"model_type": "deepseek_v3"}))


def test_turboquant_is_refused_for_sliding_windows() -> None:
    windows = {"sliding_window": 4096, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "quantization_config": {}}
    refusal = plan(LLAMA, "0.33.0", "sm_90", windows, args={"kv-cache-dtype": "turboquant_4bit_nc"}).refusal
    assert refusal is not None
    assert "sliding windows" in refusal
    assert "turboquant" not in refusal.partition("Set --kv-cache-dtype")[2]
    assert plan(LLAMA, "0.33.0", "sm_90", {"quantization_config": {}}, args={"kv-cache-dtype": "turboquant_4bit_nc"}).refusal is None


def test_dual_chunk_attention_is_refused_unless_it_is_overridden() -> None:
    changes = {"dual_chunk_attention_config": {"chunk_size": 262144}, "quantization_config": {}}
    refusal = plan(LLAMA, "0.33.0", "sm_90", changes).refusal
    assert refusal is not None
    assert "--hf-overrides" in refusal
    overridden = plan(LLAMA, "0.33.0", "sm_90", changes, args={"hf-overrides": '{"dual_chunk_attention_config": null}'})
    assert overridden.refusal is None


@pytest.mark.parametrize(
    ("name", "version", "last"),
    [
        ("MiniMaxM1ForCausalLM", "0.24.0", "0.23"),
        ("Grok1ForCausalLM", "0.25.0", "0.24"),
        ("TeleChatForCausalLM", "0.26.0", "0.25"),
        ("Plamo2ForCausalLM", "0.28.0", "0.26"),
        ("ArcticForCausalLM", "0.33.0", "0.28"),
        ("BambaForCausalLM", "0.33.0", "0.23"),
    ],
)
def test_a_class_that_vllm_removed_is_refused_with_its_last_version(name: str, version: str, last: str) -> None:
    changes = {"architectures": [name], "model_type": "other", "quantization_config": {}}
    refusal = plan(LLAMA, version, "sm_90", changes).refusal
    assert refusal is not None
    assert f"Use vLLM {last}." in refusal
    assert plan(LLAMA, "0.23.0", "sm_90", changes).refusal is None


@pytest.mark.parametrize(("dtype", "works", "fails"), [("float16", "float16", "bfloat16"), ("bfloat16", "bfloat16", "float16")])
def test_a_16_bit_cache_has_the_type_of_the_checkpoint(dtype: str, works: str, fails: str) -> None:
    changes = {"torch_dtype": dtype, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    assert plan(LLAMA, "0.33.0", "sm_90", changes, args={"kv-cache-dtype": works}).refusal is None
    assert plan(LLAMA, "0.33.0", "sm_90", changes, args={"kv-cache-dtype": fails}).refusal is not None


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_gemma_2_in_integers_does_not_start_in_float32(method: str) -> None:
    changes = {"model_type": "gemma2", "quantization_config": {"quant_method": method, "bits": 4, "group_size": 128, "sym": True}}
    refusal = plan(GPTQ, "0.33.0", "sm_75", changes).refusal
    assert refusal is not None
    assert "in float32 on sm_75" in refusal
    assert plan(GPTQ, "0.33.0", "sm_80", changes).refusal is None


@pytest.mark.parametrize("mark", [{"is_causal": False}, {"use_bidirectional_attention": True}])
def test_attention_in_both_directions_has_no_backend_of_a_decoder(mark: dict[str, Any]) -> None:
    assert "Attention" not in chosen(plan(LLAMA, "0.33.0", "sm_100", {"quantization_config": {}, **mark}))


PLAIN = {"quantization_config": None, "torch_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("value", "architecture", "taken"),
    [
        ("fp8", "sm_75", "MARLIN"),
        ("fp8", "sm_89", "CUTLASS"),
        ("fp8_per_channel", "sm_90", "CUTLASS"),
        ("fp8_per_block", "sm_90", "DEEPGEMM"),
        ("experts_int8", "sm_90", "TORCH"),
        ("mxfp8", "sm_100", "FLASHINFER_CUTEDSL"),
    ],
)
def test_the_flag_quantizes_a_checkpoint_in_16_bits(value: str, architecture: str, taken: str) -> None:
    assert backend(plan(BLOCKS, "0.33.0", architecture, PLAIN), "GEMM") == "TORCH"
    assert backend(plan(BLOCKS, "0.33.0", architecture, PLAIN, args={"quantization": value}), "GEMM") == taken


def test_the_flag_that_names_the_format_of_the_checkpoint_changes_nothing() -> None:
    without, given = (plan(GROUPS, "0.33.0", "sm_80", AWQ_GROUPS, args=args) for args in ({}, {"quantization": "awq"}))
    assert [chosen(each) for each in (without, given)] == [chosen(without)] * 2
    assert plan(BLOCKS, "0.33.0", "sm_90", args={"quantization": "fp8"}).refusal is None


@pytest.mark.parametrize(
    ("value", "unknown", "known"),
    [
        ("bitsandbytes", "0.28.0", "0.27.1"),
        ("nvfp4_per_token", "0.25.1", "0.26.0"),
        ("fp8_per_channel", "0.23.0", "0.24.0"),
        ("gguf", "0.24.0", "0.23.0"),
    ],
)
def test_a_format_that_the_version_does_not_know_is_refused(value: str, unknown: str, known: str) -> None:
    assert plan(BLOCKS, unknown, "sm_100", PLAIN, args={"quantization": value}).refusal is not None
    assert plan(BLOCKS, known, "sm_100", PLAIN, args={"quantization": value}).refusal is None


def test_weights_ordered_by_activation_are_refused_since_0_30() -> None:
    ordered = {"quantization_config": {**GPTQ_GROUPS["quantization_config"], "desc_act": True}}
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True, "actorder": "group"}
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}}
    for changes in (ordered, {"quantization_config": packed}):
        assert plan(GROUPS, "0.29.0", "sm_80", changes).refusal is None
        assert "ordering" in str(plan(GROUPS, "0.30.0", "sm_80", changes).refusal)


@pytest.mark.parametrize(
    ("written", "starts"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "sm_80 since 0.27.0"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "sm_80 since 0.27.0"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "sm_80 since 0.24.0"),
        ({"quant_method": "experts_int8"}, "sm_80 since 0.20.1"),
        ({"quant_method": "fbgemm_fp8"}, "sm_80 since 0.20.1"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "sm_89 since 0.20.1"),
    ],
)
def test_formats_that_need_a_newer_gpu_are_refused(written: dict[str, Any], starts: str) -> None:
    oldest, _, since = starts.split()
    changes = {"quantization_config": written}
    assert plan(BLOCKS, since, oldest, changes).refusal is None
    assert plan(BLOCKS, since, "sm_89", changes).refusal is None
    if since == "0.20.1":
        assert plan(BLOCKS, "0.33.0", "sm_75", changes).refusal is not None
    else:
        assert plan(BLOCKS, "0.23.0", "sm_80", changes).refusal is not None


def test_experts_in_8_bit_integers_run_with_triton_and_the_other_layers_stay_wide() -> None:
    for value in ("experts_int8", "int8_per_channel_weight_only"):
        decision = plan(BLOCKS, "0.33.0", "sm_100", PLAIN, args={"quantization": value})
        assert (backend(decision, "MoE"), backend(decision, "GEMM")) == ("TRITON", "TORCH")


@pytest.mark.parametrize(("value", "refused", "starts"), [("fp8_per_channel", "sm_80", "sm_89"), ("nvfp4_per_token", "sm_120", "sm_100")])
def test_a_format_of_the_flag_that_needs_other_gpus_is_refused(value: str, refused: str, starts: str) -> None:
    assert value in str(plan(BLOCKS, "0.33.0", refused, PLAIN, args={"quantization": value}).refusal)
    assert plan(BLOCKS, "0.33.0", starts, PLAIN, args={"quantization": value}).refusal is None


@pytest.mark.parametrize("version", ["0.21.0", "0.26.0", "0.33.0"])
@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
def test_adapters_have_experts_that_support_them(version: str, architecture: str) -> None:
    lora: dict[str, Any] = {"args": {"enable-lora": ""}}
    nvfp4 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    fp8 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
    assert backend(plan(BLOCKS, version, architecture, **lora), "MoE") == "TRITON"
    assert backend(plan(BLOCKS, version, architecture, fp8, **lora), "MoE") == "TRITON"
    assert backend(plan(BLOCKS, version, architecture, nvfp4, **lora), "MoE") == "MARLIN"
    taken = "FLASHINFER_TRTLLM" if architecture == "sm_100" and version != "0.21.0" else "TRITON"
    assert backend(plan(BLOCKS, version, architecture, PLAIN, **lora), "MoE") == taken


def test_turboquant_needs_layers_with_attention_only() -> None:
    hybrid = PLAIN | {"architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "mamba_n_heads": 64}
    assert "identifiable" in str(plan(BLOCKS, "0.33.0", "sm_90", hybrid, args={"kv-cache-dtype": "turboquant_k8v4"}).refusal)
    assert plan(BLOCKS, "0.33.0", "sm_90", hybrid).refusal is None


@pytest.mark.parametrize("name", ["GPTJForCausalLM", "DbrxForCausalLM", "KimiK25ForConditionalGeneration"])
def test_adapters_for_a_class_without_them_are_refused(name: str) -> None:
    lora: dict[str, Any] = {"args": {"enable-lora": ""}}
    for version in ("0.20.1", "0.33.0"):
        assert name in str(plan(BLOCKS, version, "sm_90", PLAIN | {"architectures": [name]}, **lora).refusal)
    assert plan(BLOCKS, "0.33.0", "sm_90", PLAIN | {"architectures": [name]}).refusal is None
    assert plan(BLOCKS, "0.33.0", "sm_90", **lora).refusal is None


def test_the_runner_does_not_change_which_backend_reads_the_kv_cache() -> None:
    flags = {"kv-cache-dtype": "fp8", "runner": "pooling"}
    assert backend(plan(BLOCKS, "0.33.0", "sm_86", PLAIN, args=flags), "Attention") == "FLASHINFER"


def test_mimo_v2_flash_needs_flash_attention_3_before_0_24() -> None:
    mimo = PLAIN | {"architectures": ["MiMoV2FlashForCausalLM"], "model_type": "mimo_v2_flash", "head_dim": 192, "v_head_dim": 128}
    for architecture in ("sm_75", "sm_80", "sm_89", "sm_120"):
        assert "FlashAttention 3" in str(plan(BLOCKS, "0.23.0", architecture, mimo).refusal)
        assert backend(plan(BLOCKS, "0.24.0", architecture, mimo), "Attention") == "TRITON_ATTN_DIFFKV"
    assert backend(plan(BLOCKS, "0.20.1", "sm_90", mimo), "Attention") == "FLASH_ATTN_DIFFKV"


def test_the_scoring_function_of_dots_is_refused_before_0_24_and_not_read_as_another() -> None:
    dots = PLAIN | {"architectures": ["Dots1ForCausalLM"], "model_type": "dots1", "scoring_func": "noaux_tc", "norm_topk_prob": True}
    assert "noaux_tc" in str(plan(BLOCKS, "0.23.0", "sm_100", dots).refusal)
    assert "MoE" not in chosen(plan(BLOCKS, "0.25.1", "sm_100", dots))


def test_falcon_ignores_the_type_of_the_kv_cache() -> None:
    falcon = PLAIN | {"architectures": ["FalconForCausalLM"], "model_type": "falcon", "head_dim": 64}
    decision = plan(BLOCKS, "0.33.0", "sm_90", falcon, args={"kv-cache-dtype": "int4_per_token_head"})
    assert backend(decision, "Attention") == "FLASH_ATTN"
    assert "ignore --kv-cache-dtype" in " ".join(note.text for note in decision.notes)
    assert backend(plan(BLOCKS, "0.33.0", "sm_90", PLAIN, args={"kv-cache-dtype": "int4_per_token_head"}), "Attention") == "TRITON_ATTN"


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_encoder_in_float16_does_not_start_with_a_cache_in_bfloat16(dtype: str) -> None:
    encoder = {"quantization_config": None, "architectures": ["ModernBertModel"], "model_type": "modernbert", "torch_dtype": dtype}
    assert "float16" in str(plan(LLAMA, "0.33.0", "sm_90", encoder, args={"kv-cache-dtype": "bfloat16"}).refusal)
    assert plan(LLAMA, "0.29.0", "sm_90", encoder, args={"kv-cache-dtype": "bfloat16"}).refusal is None
    wide = encoder | {"torch_dtype": "bfloat16"}
    assert plan(LLAMA, "0.33.0", "sm_90", wide, args={"kv-cache-dtype": "bfloat16"}).refusal is None


@pytest.mark.parametrize(
    ("name", "version", "starts"),
    [
        ("FlintForCausalLM", "0.33.0", False),
        ("KimiLinearForCausalLM", "0.33.0", False),
        ("DeepseekV4ForCausalLM", "0.28.0", False),
        ("DeepseekV4ForCausalLM", "0.33.0", True),
        ("NemotronH_Nano_VL_V2", "0.28.0", False),
        ("NemotronH_Nano_VL_V2", "0.33.0", True),
    ],
)
def test_adapters_of_a_class_depend_on_the_version(name: str, version: str, starts: bool) -> None:
    changes = PLAIN | {"architectures": [name]}
    assert (plan(BLOCKS, version, "sm_100", changes, args={"enable-lora": ""}).refusal is None) is starts


@pytest.mark.parametrize(("architecture", "taken"), [("sm_80", "TRITON_ATTN"), ("sm_89", "TRITON_ATTN"), ("sm_120", "FLASHINFER")])
def test_the_sinks_of_granite_exclude_flash_attention_2(architecture: str, taken: str) -> None:
    granite = {"quantization_config": None, "architectures": ["GraniteSWAForCausalLM"], "model_type": "granite_swa"}
    assert backend(plan(LLAMA, "0.33.0", architecture, granite), "Attention") == taken


def test_mxfp8_does_not_start_in_float16() -> None:
    changes = {"quantization_config": {"quant_method": "mxfp8", "weight_block_size": [1, 32]}}
    assert "bfloat16 only" in str(plan(LLAMA, "0.33.0", "sm_90", changes, args={"dtype": "float16"}).refusal)
    assert plan(LLAMA, "0.33.0", "sm_90", changes, args={"dtype": "bfloat16"}).refusal is None


def test_the_sinks_of_hy_4_need_flashmla() -> None:
    hy4 = {"model_type": "hy_v4", "architectures": ["HYV4ForCausalLM"], "quantization_config": None}
    for architecture in ("sm_90", "sm_100"):
        assert backend(plan(SPARSE, "0.33.0", architecture, hy4), "SparseAttention") == "FLASHMLA_SPARSE"
    assert backend(plan(SPARSE, "0.33.0", "sm_120", hy4), "SparseAttention") == "FLASHINFER_MLA_SPARSE_SM120"
    assert {"SparseAttention", "KVCache"}.isdisjoint(chosen(plan(SPARSE, "0.29.0", "sm_120", hy4)))


def test_sparse_mla_in_float16_has_no_flash_attention_4() -> None:
    plain, tp8 = {"quantization_config": None}, {"tensor": 8}
    wide = plan(SPARSE, "0.33.0", "sm_100", plain, parallelism=tp8)
    assert backend(wide, "SparseAttention") == "FLASH_ATTN_MLA_SPARSE_FA4"
    assert (
        backend(plan(SPARSE, "0.33.0", "sm_100", plain, args={"dtype": "float16"}, parallelism=tp8), "SparseAttention")
        == "FLASHINFER_MLA_SPARSE"
    )


def test_youtu_has_the_backends_of_mla() -> None:
    youtu = {"model_type": "youtu", "architectures": ["YoutuForCausalLM"], "quantization_config": None, "index_topk": None}
    assert backend(plan(SPARSE, "0.33.0", "sm_80", youtu), "MLADecode") == "TRITON_MLA"


def test_eurobert_has_no_backend_of_a_decoder() -> None:
    encoder = {"quantization_config": None, "architectures": ["EuroBertModel"], "model_type": "eurobert"}
    assert "Attention" not in chosen(plan(LLAMA, "0.33.0", "sm_100", encoder))


FLINT = {"quantization_config": None, "architectures": ["FlintForCausalLM"], "model_type": "flint"}


@pytest.mark.parametrize(
    ("architecture", "args", "refused"),
    [
        ("sm_75", {}, "Flint requires FlashInfer attention"),
        ("sm_80", {}, "Flint requires FlashInfer attention"),
        ("sm_90", {}, "Flint requires FlashInfer attention"),
        ("sm_120", {"dtype": "float16"}, "bfloat16 only"),
        ("sm_100", {"kv-cache-dtype": "fp8"}, "bfloat16 only"),
    ],
)
def test_flint_needs_the_sinks_of_flashinfer_and_bfloat16(architecture: str, args: dict[str, str], refused: str) -> None:
    assert refused in str(plan(LLAMA, "0.33.0", architecture, FLINT, args=args).refusal)


@pytest.mark.parametrize("architecture", ["sm_100", "sm_120", "sm_121"])
def test_flint_is_planned_with_flashinfer(architecture: str) -> None:
    assert backend(plan(LLAMA, "0.33.0", architecture, FLINT), "Attention") == "FLASHINFER"


MISTRAL_SMALL_4 = {
    "quantization_config": None,
    "index_topk": None,
    "architectures": ["Mistral4ForCausalLM"],
    "model_type": "mistral4",
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@pytest.mark.parametrize("version", ["0.29.0", "0.33.0"])
@pytest.mark.parametrize("args", [{}, {"dtype": "float16"}])
def test_only_the_head_sizes_of_glm_have_trtllm_for_the_prefill_of_mla(version: str, args: dict[str, str]) -> None:
    glm = MISTRAL_SMALL_4 | {"qk_nope_head_dim": 192, "v_head_dim": 256, "architectures": ["Glm4MoeLiteForCausalLM"]}
    assert backend(plan(SPARSE, version, "sm_100", MISTRAL_SMALL_4, args=args), "MLAPrefill") == "FLASH_ATTN"
    assert backend(plan(SPARSE, version, "sm_100", glm | {"model_type": "glm4_moe_lite"}, args=args), "MLAPrefill") == "TRTLLM_RAGGED"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Gemma2ForCausalLM", "gemma2"),
        ("Gemma3ForCausalLM", "gemma3_text"),
        ("Gemma3ForConditionalGeneration", "gemma3"),
        ("Gemma3TextModel", "gemma3_text"),
        ("Glm4ForCausalLM", "glm4"),
    ],
)
@pytest.mark.parametrize("version", ["0.11.0", "0.15.1", "0.33.0"])
def test_some_models_do_not_start_in_float16(name: str, kind: str, version: str) -> None:
    changes = {"quantization_config": None, "architectures": [name], "model_type": kind}
    for given in ("half", "float16"):
        assert "does not support float16" in str(plan(LLAMA, version, "sm_90", changes, args={"dtype": given}).refusal)
    assert plan(LLAMA, version, "sm_90", changes, args={"dtype": "bfloat16"}).refusal is None


def test_gpt_oss_in_mxfp4_does_not_start_in_float16_and_its_copy_in_bfloat16_does() -> None:
    gpt_oss = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 32, "head_dim": 64}
    published = gpt_oss | {"quantization_config": {"quant_method": "mxfp4"}}
    assert "bfloat16 only" in str(plan(LLAMA, "0.33.0", "sm_90", published, args={"dtype": "float16"}).refusal)
    assert plan(LLAMA, "0.33.0", "sm_90", published, args={"dtype": "bfloat16"}).refusal is None
    assert plan(LLAMA, "0.33.0", "sm_90", gpt_oss | {"quantization_config": None}, args={"dtype": "float16"}).refusal is None


@pytest.mark.parametrize(("version", "warned"), [("0.17.1", True), ("0.19.0", True), ("0.19.1", False), ("0.33.0", False)])
@pytest.mark.parametrize("name", ["Glm4MoeLiteForCausalLM", "GlmMoeDsaForCausalLM"])
def test_models_of_transformers_5_are_planned_with_a_warning_for_older_images(name: str, version: str, warned: bool) -> None:
    kind = {"Glm4MoeLiteForCausalLM": "glm4_moe_lite", "GlmMoeDsaForCausalLM": "glm_moe_dsa"}[name]
    found = plan(SPARSE, version, "sm_90", {"quantization_config": None, "architectures": [name], "model_type": kind})
    assert found.refusal is None
    assert any("Transformers 4" in note.text for note in found.notes) is warned


def test_heads_of_80_have_flex_attention_in_0_11_0_only() -> None:
    phi = {"quantization_config": None, "architectures": ["PhiForCausalLM"], "model_type": "phi", "head_dim": 80}
    for architecture in ("sm_80", "sm_90", "sm_100"):
        assert backend(plan(LLAMA, "0.11.0", architecture, phi), "Attention") == "FLEX_ATTENTION"
    assert backend(plan(LLAMA, "0.13.0", "sm_90", phi), "Attention") == "FLASH_ATTN"


@pytest.mark.parametrize("given", ["float16", "half", "bfloat16", "auto"])
def test_attention_is_the_same_in_both_types_with_16_bits(given: str) -> None:
    paligemma = {"quantization_config": None, "architectures": ["Gemma4ForConditionalGeneration"]}
    for architecture in ("sm_80", "sm_90", "sm_120"):
        plain = backend(plan(IMAGES, "0.33.0", architecture, paligemma), "Attention")
        assert backend(plan(IMAGES, "0.33.0", architecture, paligemma, args={"dtype": given}), "Attention") == plain
    assert backend(plan(LLAMA, "0.33.0", "sm_120", args={"dtype": given}), "Attention") == "FLASHINFER"


def test_flex_attention_of_0_11_0_reads_no_fp8_cache() -> None:
    refused = str(plan(LLAMA, "0.11.0", "sm_75", {"quantization_config": None}, args={"kv-cache-dtype": "fp8_e5m2"}).refusal)
    assert "FlexAttention does not read an FP8 KV cache" in refused
    assert "remove --kv-cache-dtype" in refused.lower()
    assert plan(LLAMA, "0.11.0", "sm_75", {"quantization_config": None}).refusal is None


@pytest.mark.parametrize(
    ("version", "tensor", "quantized", "starts"),
    [("0.15.1", 2, True, False), ("0.15.1", 1, True, True), ("0.15.1", 2, False, True), ("0.17.1", 2, True, True)],
)
def test_quantized_mamba_layers_with_one_group_are_not_split_until_0_15(version: str, tensor: int, quantized: bool, starts: bool) -> None:
    granite = {
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"} if quantized else None,
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "mamba_n_groups": 1,
    }
    found = plan(LLAMA, version, "sm_90", granite, parallelism={"tensor": tensor})
    assert (found.refusal is None) is starts
    assert starts or "quantized Mamba layers" in str(found.refusal)


@pytest.mark.parametrize(
    ("name", "pipeline", "starts"),
    [("MiniMaxM1ForCausalLM", 2, False), ("MiniMaxM1ForCausalLM", 1, True), ("BertModel", 2, False), ("LlamaForCausalLM", 2, True)],
)
def test_a_class_without_pipelines_is_refused_with_them(name: str, pipeline: int, starts: bool) -> None:
    changes = {"quantization_config": None, "architectures": [name]}
    for given in ({"parallelism": {"pipeline": pipeline}}, {"args": {"pipeline-parallel-size": str(pipeline)}}):
        found = plan(LLAMA, "0.22.1", "sm_90", changes, **given)
        assert (found.refusal is None) is starts
        assert starts or f"no pipeline parallelism for this model ({name})" in str(found.refusal)


@pytest.mark.parametrize(("architecture", "taken"), [("sm_90", "FLASHINFER_MLA_SPARSE_SM90"), ("sm_100", "FLASHINFER_MLA_SPARSE")])
def test_sparse_heads_without_positions_have_flashinfer_on_hopper(architecture: str, taken: str) -> None:
    heads = {"qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256}
    flash = {"quantization_config": None, "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", **heads}
    assert backend(plan(SPARSE, "0.31.0", architecture, flash, parallelism={"tensor": 8}), "SparseAttention") == taken
