"""Ten engines on an H200 with vLLM 0.26.0 (docs/performance.md): the estimate is as near to each part as it was when it was measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_operator.catalog.gpus import load_gpus
from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.shapes import load_shapes
from vllm_operator.planning.memory.cases import predict, read_case

TABLES = load_shapes(), load_gpus(), load_memory()
LINES = (Path(__file__).parent / "h200_memory.jsonl").read_text("utf-8").splitlines()
ENGINES: dict[str, dict[str, Any]] = {case["id"]: case for case in map(json.loads, LINES)}
WEIGHTS, KV_CACHE, TOKENS = 0.031, 1.65, 0.021
"""The largest errors: of the weights, of the KV cache in GiB, and of the tokens."""


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_on_an_h200_has_the_memory_that_was_estimated(name: str) -> None:
    measured, made = ENGINES[name]["measured"], predict(read_case(ENGINES[name]), *TABLES)
    assert made.prediction == "started"
    assert made.weights == pytest.approx(measured["weights_gib"], rel=WEIGHTS)
    assert made.kv_cache == pytest.approx(measured["kv_gib"], abs=KV_CACHE)
    assert made.tokens == pytest.approx(measured["kv_tokens"], rel=TOKENS)
