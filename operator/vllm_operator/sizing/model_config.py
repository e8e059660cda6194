"""Facts in a model's config.json, read by the rules of vLLM.

The content of the file never raises an error. A missing fact is unknown. Multimodal
models keep the language model's configuration under `text_config`.
Source of the rules: vllm/transformers_utils/model_arch_config_convertor.py and vllm/config/model.py, 0.33.0.
"""

from collections.abc import Mapping
from typing import Any

from vllm_operator.api.reading import mapping, read_integer
from vllm_operator.api.spec import Attention, Quantization
from vllm_operator.catalog.models import BLOCK, Facts

EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
HYBRID_KEYS = ("hybrid_override_pattern", "layers_block_type", "full_attention_interval", "linear_key_head_dim", "mamba_num_heads")


def read_config(config: Mapping[str, Any]) -> Facts:
    """Read the facts. Facts that are missing or invalid are None."""
    text = {**config, **mapping(config.get("text_config"))}
    experts = next((count for key in EXPERT_KEYS if (count := read_integer(text.get(key))) is not None), None)
    heads = read_integer(text.get("num_attention_heads"))
    groups = read_integer(text.get("n_group"))
    model_type = text.get("model_type") if isinstance(text.get("model_type"), str) else None
    known = heads is not None
    return Facts(
        model_type=model_type,
        attention=_attention(text, heads),
        experts=experts if experts is not None else (0 if known else None),
        quantization=_quantization(text, config),
        quantization_scheme=_scheme(mapping(text.get("quantization_config")) or mapping(config.get("quantization_config"))),
        routing=_routing(text, groups) if experts else None,
        routing_groups=groups if groups is not None else (0 if experts else None),
        hidden_size=read_integer(text.get("hidden_size")),
        moe_intermediate_size=read_integer(text.get("moe_intermediate_size")),
        attention_heads=heads,
        mla_dims=_mla_dims(text),
        head_size=_head_size(text, heads),
    )


def _attention(text: Mapping[str, Any], heads: int | None) -> Attention | None:
    if read_integer(text.get("kv_lora_rank")) or text.get("compress_ratios"):
        return Attention.SPARSE_MLA if text.get("index_topk") or text.get("compress_ratios") else Attention.MLA
    layers = text.get("layer_types")
    linear = isinstance(layers, list) and any(kind in ("linear_attention", "mamba") for kind in layers)
    if linear or any(text.get(key) for key in HYBRID_KEYS):
        return Attention.HYBRID
    kv_heads = read_integer(text.get("num_key_value_heads"))
    if heads is None:
        return None
    return Attention.GQA if kv_heads is not None and kv_heads < heads else Attention.MHA


def _head_size(text: Mapping[str, Any], heads: int | None) -> int | None:
    """Return the size of a head without MLA. Without a value in the file, vLLM divides the width."""
    if read_integer(text.get("kv_lora_rank")):
        return None
    hidden = read_integer(text.get("hidden_size"))
    return read_integer(text.get("head_dim")) or (hidden // heads if hidden and heads else None)


def _mla_dims(text: Mapping[str, Any]) -> tuple[int, int, int] | None:
    dims = [read_integer(text.get(key)) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
    nope, rope, value = dims
    return None if nope is None or rope is None or value is None else (nope, rope, value)


def _routing(text: Mapping[str, Any], groups: int | None) -> str | None:
    scores = text.get("scoring_func")
    if scores == "sigmoid":
        biased = text.get("topk_method") == "noaux_tc" or text.get("use_routing_bias") is True
        if groups:
            return "DeepSeekV3"
        return "MiniMax2" if biased else None
    if scores == "sqrtsoftplus":
        return "DeepSeekV4"
    return "Renormalize" if text.get("norm_topk_prob") is True else None


def _quantization(text: Mapping[str, Any], config: Mapping[str, Any]) -> Quantization | None:
    quantization = mapping(text.get("quantization_config")) or mapping(config.get("quantization_config"))
    if not quantization:
        dtype = text.get("torch_dtype") or text.get("dtype")
        return {"bfloat16": Quantization.BF16, "float16": Quantization.FP16}.get(dtype) if isinstance(dtype, str) else None
    method = quantization.get("quant_method")
    algorithm = str(quantization.get("quant_algo") or mapping(quantization.get("quantization")).get("quant_algo") or "").upper()
    if method == "fp8":
        if text.get("expert_dtype") == "fp4":
            return Quantization.MXFP4
        return Quantization.FP8_BLOCK if quantization.get("weight_block_size") == list(BLOCK) else Quantization.FP8
    if method in ("gptq", "awq", "auto-round", "auto_gptq", "auto_awq"):
        return Quantization.INT4 if quantization.get("bits", 4) == 4 else Quantization.INT8
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return Quantization.MXFP4
    if method == "mxfp8":
        return Quantization.MXFP8
    if method == "compressed-tensors":
        return _compressed(quantization)
    return {"NVFP4": Quantization.NVFP4, "MXFP8": Quantization.MXFP8, "FP8": Quantization.FP8}.get(algorithm)


def _scheme(quantization: Mapping[str, Any]) -> str | None:
    """Return the publishing format of the weights, as named in `hack/oracle/gemm.py`; None if the number format is sufficient."""
    method = quantization.get("quant_method")
    if method == "fp8":
        schemes = {"static": "tensor", "dynamic": "token"}
        return None if quantization.get("weight_block_size") else schemes.get(str(quantization.get("activation_scheme")))
    if method == "compressed-tensors":
        weights = mapping(next(iter(mapping(quantization.get("config_groups")).values()), None), "weights")
        if weights.get("strategy") == "block":
            return None
        is_one_scale = quantization.get("format") == "float-quantized" and weights.get("strategy") == "tensor"
        return "compressed-tensor" if is_one_scale else "compressed"
    if method in ("gptq", "awq", "mxfp8"):
        return str(method)
    algorithm = quantization.get("quant_algo") or mapping(quantization.get("quantization")).get("quant_algo")
    return "modelopt" if algorithm in ("FP8", "NVFP4", "MXFP8") else None


def _compressed(quantization: Mapping[str, Any]) -> Quantization | None:
    named = {"nvfp4-pack-quantized": Quantization.NVFP4, "mxfp4-pack-quantized": Quantization.MXFP4}
    format_name = str(quantization.get("format"))
    groups = mapping(quantization.get("config_groups"))
    weights = mapping(next(iter(groups.values()), None), "weights")
    if format_name in named:
        return named[format_name]
    if format_name == "pack-quantized":
        return Quantization.INT4 if weights.get("num_bits", 4) == 4 else Quantization.INT8
    if format_name == "float-quantized":
        return Quantization.FP8_BLOCK if weights.get("strategy") == "block" else Quantization.FP8
    return Quantization.INT8 if format_name == "int-quantized" else None
