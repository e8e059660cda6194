"""How many bytes the weights of each module take, from the name of a format: as people and logs write it, or in the name of a model."""

import re
from dataclasses import replace

from vllm_operator.planning.memory.layers import ModelShape, Shard
from vllm_operator.planning.memory.quantization import (
    BLOCK_BYTES,
    FP8_BYTES,
    MXFP4_BYTES,
    MXFP8_BYTES,
    NF4_BYTES,
    NVFP4_BYTES,
    Rule,
    WeightFormat,
    grouped_bytes,
)

NO_NAME = frozenset({"", "auto", "default", "null", "unknown", "not stated", "n/a", "-", "?"})
"""What stands for a format that was not written down: that of the checkpoint."""
GGUF_BITS = {
    "q2_k": 3.16,
    "iq2_m": 2.93,
    "iq3_m": 3.76,
    "q3_k_s": 3.64,
    "q3_k_m": 4.0,
    "q3_k": 4.0,
    "q3_k_l": 4.3,
    "iq4_xs": 4.46,
    "iq4_nl": 4.68,
    "q4_0": 4.64,
    "q4_k_s": 4.67,
    "q4_k_m": 4.89,
    "q4_k": 4.89,
    "q5_k_s": 5.57,
    "q5_k_m": 5.7,
    "q5_k": 5.7,
    "q6_k": 6.56,
    "q8_0": 8.5,
}
"""Bits of a weight by type, of all tensors with the embedding (ggml-org/llama.cpp tools/quantize/README.md, Llama 3.1 8B)."""
GGUF_TYPE = re.compile(r"\bi?q[2-8]_[0-9a-z]{1,2}(?:_[sml])?\b")

IN_NAME = re.compile(
    r"(?<![a-z0-9])(awq|gptq|int[48]|[48]bit|bnb|autoround|gguf|fp8|nvfp4|mxfp4|w4a16|w8a8|i?q[2-8]_[0-9a-z]{1,2}(?:_[sml])?)(?![a-z0-9])"
)
BLOCKED = ("qwen/", "deepseek-ai/", "minimaxai/")
"""Organisations whose checkpoints in FP8 have blocks with a common scale."""


def find_format(name: str, known: str) -> str:
    """Return the format in the name of a checkpoint (`awq` of `Qwen3-8B-AWQ`), empty if there is none besides that of the known model."""
    found = [each for each in dict.fromkeys(IN_NAME.findall(name.lower()[:200])) if each not in known.lower()]
    return "fp8_block" if found == ["fp8"] and name.lower().startswith(BLOCKED) else " ".join(found)


def name_format(label: str, shape: ModelShape) -> WeightFormat | None:
    """The format that a name means, such as `fp8_block` or `int4 (experts, group 32)`; None if it means none or is not known.

    Which modules are quantized follows what is usual for the format and the kind of model. Layers for multi-token prediction are
    usually left out where weights have 4 bits.
    """
    form = _name_format(label, shape)
    return replace(form, wide_drafts=True) if form is not None and form.name in ("NVFP4", "INT4") else form


def _name_format(label: str, shape: ModelShape) -> WeightFormat | None:
    text = label.lower().strip()[:200]
    words = frozenset(re.findall(r"[a-z0-9]+", text))
    moe = shape.experts > 0
    packed = GGUF_TYPE.search(text)
    if packed:
        size = GGUF_BITS.get(packed[0])
        return None if size is None else _gguf(shape, packed[0], size / 8)
    experts = moe and "experts" in words
    if re.match(r"(none|bf16|fp16|bfloat16|float16|half)\b", text):
        return WeightFormat("BF16", float(shape.element_bytes))
    if "fbgemm" in words:
        ends = frozenset({0, shape.layers - 1})
        return WeightFormat("FP8", FP8_BYTES, (Rule("self_attn*", None, None), Rule("*", ends, None)))
    if "native" in words and "fp4" in words:
        return WeightFormat("MXFP4", BLOCK_BYTES, (Rule("mlp.experts", None, MXFP4_BYTES),))
    if "nvfp4" in words or "fp4" in words:
        return _usual_nvfp4(shape, moe, "mixed" in words)
    if "mxfp4" in words:
        return WeightFormat("MXFP4", MXFP4_BYTES, experts_only=moe)
    if "mxfp8" in words:
        return WeightFormat("MXFP8", MXFP8_BYTES)
    if "fp8" in words and "block" in text:
        return WeightFormat("FP8Block", BLOCK_BYTES, blocks=128)
    if words & {"fp8", "float8"}:
        return WeightFormat("FP8", FP8_BYTES, experts_only=experts)
    if "modelopt" in words:  # vLLM's name for NVIDIA's checkpoints in FP8
        return WeightFormat("FP8", FP8_BYTES)
    if words & {"int8", "w8a8", "8bit", "w8a16"} or "8-bit" in text:
        return WeightFormat("INT8", 1.0, experts_only=experts)
    if words & {"bitsandbytes", "bnb", "nf4"}:
        return WeightFormat("INT4", NF4_BYTES)
    if words & {"awq", "gptq", "int4", "w4a16", "w4a8", "4bit", "autoround"} or "4-bit" in text or "auto-round" in text:
        stated = re.search(r"group (?:size )?([0-9]{1,4})", text)
        group = int(stated[1]) if stated and int(stated[1]) > 0 else 128
        zeros = 0.5 / group if "awq" in words else 0.0
        plain = bool(words & {"awq", "gptq"}) and not experts
        return WeightFormat("INT4", grouped_bytes(4, group) + zeros, experts_only=experts, assumed=not plain, group=group)
    return None


def _gguf(shape: ModelShape, name: str, size: float) -> WeightFormat:
    """GGUF: nearly all tensors are quantized, also the embedding, to several types."""
    outside = tuple((each.name, round(each.total * size)) for each in shape.modules if each.shard is Shard.VOCABULARY)
    return WeightFormat(name.upper(), size, outside=outside)


def _usual_nvfp4(shape: ModelShape, moe: bool, mixed: bool) -> WeightFormat:
    """NVIDIA's checkpoints: experts in 4 bits and the rest in 16; with mixed precision, and for dense hybrids, attention in FP8.

    Where attention has FP8, so has the KV cache, as ModelOpt does it by default (hf_ptq.py --kv_cache_qformat).
    """
    hybrid = any(module.name.startswith(("linear_attn", "mixer")) for module in shape.modules)
    if moe and not mixed:
        return WeightFormat("NVFP4", NVFP4_BYTES, experts_only=True, assumed=True)
    if mixed or hybrid:
        rules = [Rule(f"{name}*", None, FP8_BYTES) for name in ("linear_attn", "mixer.in_proj", "mixer.out_proj", "mixer.shared_experts")]
        attention = Rule("self_attn*", None, FP8_BYTES if hybrid and not moe else None)
        rules = [*rules, attention, Rule("mixer.latent_proj", None, None)]
        return WeightFormat("NVFP4", NVFP4_BYTES, tuple(rules), assumed=True, narrow_cache=True)
    return WeightFormat("NVFP4", NVFP4_BYTES, assumed=True)
