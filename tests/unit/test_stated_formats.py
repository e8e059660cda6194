"""The format that each kind of quantized checkpoint states in its config.json: bytes of a weight by module."""

from collections.abc import Mapping
from typing import Any

import pytest

from vllm_operator.catalog.models import load_shapes
from vllm_operator.sizing.formats import read_format
from vllm_operator.sizing.model_shape import read_shape

WIDE, FP8, BLOCK, NVFP4, MXFP4, MXFP8, INT4 = 2.0, 1.0, 1 + 4 / 16384, 0.5625, 0.53125, 1.03125, 0.5 + 2 / 128
AWQ = INT4 + 0.5 / 128
MOE = {"self_attn.q_proj": 0, "mlp.experts": 0, "mlp.shared_experts": 0}
ALL, ATTENTION, ROUTED = MOE.keys(), {"self_attn.q_proj"}, {"mlp.experts"}


def shape_of(name: str) -> Any:
    known = load_shapes().find(name)
    assert known is not None
    shape = read_shape({key: value for key, value in known.config.items() if key != "quantization_config"})
    assert shape is not None
    return shape


def sizes(name: str, quantization: Mapping[str, Any]) -> dict[str, float]:
    """Bytes of a weight by module, on average over its layers."""
    shape = shape_of(name)
    form = read_format({"quantization_config": quantization}, shape)
    found: dict[str, tuple[float, int]] = {}
    for module in shape.modules:
        if module.linear or module.name in ("lm_head", "embed_tokens"):
            held, elements = found.get(module.name, (0.0, 0))
            found[module.name] = held + form.bytes_of(module), elements + module.total
    return {module: held / elements for module, (held, elements) in found.items() if elements}


def group(bits: int, kind: str = "int", size: int | None = None, targets: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"targets": targets or ["Linear"], "weights": {"num_bits": bits, "type": kind, "group_size": size, **more}}


def compressed(*groups: Mapping[str, Any], ignore: list[str] | None = None) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {f"group_{number}": each for number, each in enumerate(groups)},
        "ignore": ignore or ["lm_head"],
    }


EXPERTS = [f"model.layers.{layer}.mlp.experts.{expert}.{name}" for layer in range(1, 46) for expert in range(128) for name in ("up_proj",)]


@pytest.mark.parametrize(
    ("quantization", "attention", "experts", "shared"),
    [
        ({"quant_method": "fp8"}, FP8, FP8, FP8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, BLOCK, BLOCK, BLOCK),
        ({"quant_method": "fp8", "ignored_layers": ["re:.*self_attn.*"]}, WIDE, FP8, FP8),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["self_attn"]}, WIDE, FP8, FP8),
        ({"quant_method": "mxfp8"}, MXFP8, MXFP8, MXFP8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["shared_expert"]}, AWQ, AWQ, WIDE),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, INT4, INT4, INT4),
        (
            {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": 128,
                "dynamic": {"-:.*attn.*": {}, "+:.*shared_expert.*": {"bits": 8, "group_size": 32}},
            },
            WIDE,
            INT4,
            1 + 2 / 32,
        ),
        (
            {"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": {".*shared_experts.*": {"bits": 16}}},
            INT4,
            INT4,
            WIDE,
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": ["self_attn"]}, WIDE, 0.5625, 0.5625),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0, 1.0, 1.0),
        ({"quant_method": "experts_int8"}, WIDE, 1.0, WIDE),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, WIDE, MXFP4, WIDE),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["*self_attn*", "lm_head"]}, WIDE, NVFP4, NVFP4),
        ({"quant_method": "modelopt_fp4"}, NVFP4, NVFP4, NVFP4),
        ({"quant_method": "modelopt"}, FP8, FP8, FP8),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, FP8, FP8, FP8),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, INT4, INT4, INT4),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    **{name: {"quant_algo": "NVFP4"} for name in EXPERTS},
                    **{f"model.layers.{layer}.self_attn.qkv_proj": {"quant_algo": "FP8"} for layer in range(46)},
                },
            },
            FP8,
            NVFP4,
            WIDE,
        ),
        (compressed(group(8, "float")), FP8, FP8, FP8),
        (compressed(group(8, "float", strategy="block")), BLOCK, BLOCK, BLOCK),
        (compressed(group(4, "float", 16)), NVFP4, NVFP4, NVFP4),
        (compressed(group(4, "float", 32)), MXFP4, MXFP4, MXFP4),
        (compressed(group(4, "int", 128), ignore=["re:model\\.layers\\.\\d+\\.self_attn.*", "lm_head"]), WIDE, INT4, INT4),
        (compressed(group(4, "int", 128, ["re:.*mlp\\.experts.*"]), group(8, "float", None, ["re:.*self_attn.*"])), FP8, INT4, WIDE),
        (compressed(group(4, "float", 16), group(8, "float", None, ["re:.*self_attn.(q|k|v|o)_proj"])), FP8, NVFP4, NVFP4),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}},
                "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3"}}},
                "exclude": ["lm_head", "*shared_experts*"],
            },
            FP8,
            MXFP4,
            WIDE,
        ),
        ({"quant_method": "quark", "global_quant_config": {"weight": [{"dtype": "int4"}, {"dtype": "fp8"}]}}, INT4, INT4, INT4),
    ],
)
def test_each_kind_of_checkpoint_states_which_modules_are_quantized(
    quantization: Mapping[str, Any], attention: float, experts: float, shared: float
) -> None:
    found = sizes("zai-org/GLM-4.5-Air", quantization)
    assert found["self_attn.q_proj"] == pytest.approx(attention, rel=1e-6)
    assert found["mlp.experts"] == pytest.approx(experts, rel=1e-6)
    assert found["mlp.shared_experts"] == pytest.approx(shared, rel=1e-6)
    assert found["lm_head"] == found["embed_tokens"] == WIDE


def test_an_output_that_gptq_quantizes_is_small() -> None:
    assert sizes("Qwen/Qwen3-8B", {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True})["lm_head"] == pytest.approx(INT4)


def test_patterns_for_all_attention_hold_for_linear_attention() -> None:
    found = sizes("Qwen/Qwen3.5-122B-A10B", {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*attn.*": {}}})
    assert found["linear_attn.in_proj_qkvz"] == found["self_attn.q_proj"] == WIDE
    assert found["mlp.experts"] == pytest.approx(INT4)


@pytest.mark.parametrize(
    ("ignored", "share"),
    [
        (["re:.*layers\\.(0|1|2|3)\\..*"], 4 / 36),
        (["model.layers.0.", "model.layers.1."], 2 / 36),
        (["re:.*layers.([0-9]+).self_attn.*"], 1.0),
        (["model.layers.3.self_attn.qkv_proj"], 1 / 36),
        (["re:^(?!.*experts).*$"], 0.0),  # a condition is not understood
    ],
)
def test_patterns_may_name_layers(ignored: list[str], share: float) -> None:
    found = sizes("Qwen/Qwen3-8B", {"quant_method": "fp8", "modules_to_not_convert": ignored})
    assert found["self_attn.q_proj"] == pytest.approx(FP8 + share)


def test_an_expert_that_is_left_out_does_not_stand_for_all() -> None:
    left_out = ["model.layers.3.mlp.experts.17.down_proj"]
    assert sizes("Qwen/Qwen3-30B-A3B", {"quant_method": "fp8", "modules_to_not_convert": left_out})["mlp.experts"] == FP8


def test_many_choices_in_a_pattern_cost_little() -> None:
    pattern = "re:" + "(a|b|c|d|e|f|g|h)" * 11
    assert sizes("Qwen/Qwen3-8B", {"quant_method": "fp8", "modules_to_not_convert": [pattern] * 20_000})["mlp.down_proj"] == FP8
