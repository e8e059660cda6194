"""Memory that others measured and published, part by part.

Source: https://github.com/llm-d-incubation/llm-d-planner, docs/accuracy/vllm-v0.19.0-accuracy-report.md. It is about vLLM 0.19.0 on an H100
with 79.19 GiB, with `--gpu-memory-utilization 0.95` and the defaults of 1024 requests and 8192 tokens.
"""

from typing import Any

import pytest

from support import estimates as support
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.models import load_shapes
from vllm_operator.sizing.cases import predict
from vllm_operator.sizing.estimate import Estimate
from vllm_operator.sizing.overhead import Batch, Run, activation_bytes
from vllm_operator.sizing.parallelism import ParallelShape
from vllm_operator.sizing.resolve import resolve_model

TABLES = load_shapes(), load_catalog().gpus, load_memory()
LLAMA, QWEN2, QWEN3 = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-8B"


def dense(hidden: int, width: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    """A dense model by the sizes that decide about activations."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": vocabulary,
        "max_position_embeddings": 16384,
        **more,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "codellama/CodeLlama-7b-hf": dense(4096, 11008, 32016),
    "ibm-granite/granite-3.1-8b-instruct": dense(4096, 12800, 49155),
    "ibm-granite/granite-3.1-2b-instruct": dense(2048, 8192, 49155),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": dense(
        2048,
        10944,
        102400,
        architectures=["DeepseekV2ForCausalLM"],
        n_routed_experts=64,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        n_shared_experts=2,
        first_k_dense_replace=1,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        num_attention_heads=16,
    ),
}


def engine(model: str, tensor: int = 1, stages: int = 1, **changes: Any) -> Estimate:
    case = {
        "model": model,
        "quantization": "mxfp4" if "gpt-oss" in model else "none",
        "vllm_version": "0.19.0",
        "gpu": "H100 80GB HBM3",
        "gpu_memory_gib": 79.19,
        "gpu_memory_utilization": 0.95,
        "max_model_len": 8192,
        "tp": tensor,
        "pp": stages,
        "config": CONFIGS.get(model),
    }
    return predict({**case, **changes}, *TABLES)


@pytest.mark.parametrize(
    ("model", "measured"),
    [
        ("codellama/CodeLlama-7b-hf", 0.77),
        ("ibm-granite/granite-3.1-8b-instruct", 0.85),
        ("ibm-granite/granite-3.1-2b-instruct", 0.75),
        (LLAMA, 1.89),
        (QWEN2, 2.21),
        (QWEN3, 2.21),
        ("microsoft/phi-4", 1.52),
        ("Qwen/Qwen3-30B-A3B", 2.68),
        ("openai/gpt-oss-20b", 2.87),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", 1.93),
    ],
)
def test_activations_on_one_gpu(model: str, measured: float) -> None:
    assert engine(model).activation == pytest.approx(measured, abs=0.04)


@pytest.mark.parametrize(
    ("model", "tensor", "stages", "weights", "other", "kv_cache"),
    [
        (LLAMA, 1, 1, 14.99, 0.25, 58.11),
        (QWEN2, 1, 1, 14.25, 0.24, 58.53),
        (LLAMA, 2, 1, 7.51, 2.07, None),
        (LLAMA, 4, 1, 3.77, 2.13, None),
        (QWEN2, 2, 1, 7.12, 2.06, None),
        (QWEN2, 4, 1, 3.55, 2.13, None),
        (LLAMA, 1, 2, 7.51, 0.07, None),
        (LLAMA, 1, 4, 4.26, 0.07, None),
    ],
)
def test_weights_and_what_is_outside_of_pytorch(
    model: str, tensor: int, stages: int, weights: float, other: float, kv_cache: float | None
) -> None:
    made = engine(model, tensor, stages)
    assert made.weights == pytest.approx(weights, abs=0.1)
    assert made.other == pytest.approx(other, abs=0.05)
    if kv_cache is not None:
        assert made.kv_cache == pytest.approx(kv_cache, abs=0.1)


@pytest.mark.parametrize(("model", "stages", "measured"), [(LLAMA, 2, 1.10), (LLAMA, 4, 1.05), (QWEN3, 3, 0.96)])
def test_a_stage_also_holds_what_it_hands_on(model: str, stages: int, measured: float) -> None:
    """The report is about the first stage; the last one samples."""
    known = resolve_model(model, TABLES[0])
    assert known is not None
    staged = support.engine(known.shape, parallel=ParallelShape(pipeline=stages), release=(0, 19, 0), architecture="sm_90")
    made = activation_bytes(staged, Run(Batch(8192, 1024), 8192, last=False)) / (1 << 30)
    assert made == pytest.approx(measured, abs=0.05)


@pytest.mark.parametrize(
    ("changes", "fused"),
    [
        ({}, True),
        ({"vllm_version": "0.16.0"}, False),
        ({"enforce_eager": True}, False),
        ({"gpu": "L40S", "gpu_memory_gib": 44.4}, False),
        ({"fuse_allreduce_rms": False}, False),
        ({"pp": 2}, False),
        ({"pp": 2, "vllm_version": "0.26.0"}, True),
        ({"tp": 8}, False),
    ],
)
def test_all_reduce_and_norm_in_one_kernel_need_a_workspace(changes: dict[str, Any], fused: bool) -> None:
    made = engine(LLAMA, 2, **{"tp": 2, **changes})
    assert made.other is not None
    assert (made.other > 1.5) is fused
