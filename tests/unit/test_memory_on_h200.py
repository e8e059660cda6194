"""Ten engines on an H200 with vLLM 0.26.0 (docs/performance.md): the estimate is as near to each part as it was when it was measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.models import load_shapes
from vllm_operator.sizing.cases import predict
from vllm_operator.sizing.model_shape import read_shape

TABLES = load_shapes(), load_catalog().gpus, load_memory()
LINES = (Path(__file__).parent / "h200_memory.jsonl").read_text("utf-8").splitlines()
ENGINES: dict[str, dict[str, Any]] = {case["id"]: case for case in map(json.loads, LINES)}
WEIGHTS, KV_CACHE, TOKENS = 0.027, 0.2, 0.0035
"""The largest errors: of the weights, of the KV cache in GiB, and of the tokens."""
WITHOUT_MULTICAST = "llama-70b"
"""This engine has two GPUs. NCCL could not use multicast, so it took 0.5 GiB less than it does elsewhere."""


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_on_an_h200_has_the_memory_that_was_estimated(name: str) -> None:
    measured, made = ENGINES[name]["measured"], predict(ENGINES[name], *TABLES)
    assert made.prediction == "started"
    factor = 3 if name == WITHOUT_MULTICAST else 1
    assert made.weights == pytest.approx(measured["weights_gib"], rel=WEIGHTS)
    assert made.kv_cache == pytest.approx(measured["kv_gib"], abs=factor * KV_CACHE)
    assert made.tokens == pytest.approx(measured["kv_tokens"], rel=factor * TOKENS)


@pytest.mark.parametrize("name", ENGINES)
def test_the_activations_are_those_of_the_profiling_run(name: str) -> None:
    made = predict(ENGINES[name], *TABLES)
    assert made.activation == pytest.approx(ENGINES[name]["measured"]["activation_gib"], abs=0.11)


@pytest.mark.parametrize("name", [name for name, case in ENGINES.items() if case["measured"]["graphs_subtracted_gib"] > 0])
def test_the_graphs_are_those_that_the_engine_subtracted(name: str) -> None:
    made = predict(ENGINES[name], *TABLES)
    assert made.graphs == pytest.approx(ENGINES[name]["measured"]["graphs_subtracted_gib"], abs=0.06)


@pytest.mark.parametrize(
    ("config", "width"),
    [
        ({}, 512),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 8 * 256 + 256),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8}, "sliding_attention": {}}}, 8 * 256 + 256),
        ({"rope_scaling": {"type": "yarn", "factor": 8}}, 512),
        ({"rope_scaling": {"type": "linear", "factor": 1e300}}, 512),
        ({"rope_scaling": {"type": "linear", "factor": "8"}}, 512),
        ({"rope_scaling": ["linear"]}, 512),
    ],
)
def test_linear_scaling_makes_the_table_of_full_attention_longer(config: dict[str, Any], width: int) -> None:
    base = {
        "hidden_size": 64,
        "head_dim": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "intermediate_size": 128,
    }
    shape = read_shape({**base, "architectures": ["Gemma3ForCausalLM"], "sliding_window": 512, **config})
    assert shape is not None
    assert shape.rotary == width
