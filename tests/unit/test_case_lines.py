"""Lines of `vllm-operator fit --cases`: one bad line costs that line, and what a line says of its checkpoint counts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.catalog.gpus import load_gpus
from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.shapes import load_shapes
from vllm_operator.cli.fit import estimate_lines, load_predictor
from vllm_operator.planning.engine.shape import ParallelShape
from vllm_operator.planning.memory.cases import predict, read_case
from vllm_operator.planning.memory.estimate import Estimate
from vllm_operator.planning.memory.resolve import resolve_model
from vllm_operator.planning.memory.weights import weigh

GIB = 1 << 30
FACTS, SHAPES, GPUS = load_memory(), load_shapes(), load_gpus()
ESTIMATE = load_predictor()
CASES = Path(__file__).parents[2] / "docs" / "sizing-cases.jsonl"


def case(name: str, **changes: Any) -> Estimate:
    line = next(line for line in map(json.loads, CASES.read_text("utf-8").splitlines()) if line["id"] == name)
    return predict(read_case({**line, **changes}), SHAPES, GPUS, FACTS)


@pytest.mark.parametrize(
    ("name", "checkpoint", "expected"),
    [
        ("openai/gpt-oss-120b", 121.5, 1.0),  # a second copy of the weights
        ("zai-org/GLM-4.5-Air", 199.03, 1.0),  # without the layers of the draft
        ("zai-org/GLM-4.5-Air", 205.77, 1.0),  # with them
        ("meta-llama/Llama-3.1-8B-Instruct", 29.9, 1.0),  # in 32 bits
        ("meta-llama/Llama-3.1-8B-Instruct", 14.0, 0.94),
        ("meta-llama/Llama-3.1-8B-Instruct", 22.0, 1.0),  # something that is not loaded
        ("meta-llama/Llama-3.1-8B-Instruct", 1e9, 1.0),
        ("meta-llama/Llama-3.1-8B-Instruct", 5.4, 0.36),  # fewer bits
    ],
)
def test_the_size_of_the_checkpoint_corrects_the_weights_as_far_as_it_says_what_is_loaded(
    name: str, checkpoint: float, expected: float
) -> None:
    model = resolve_model(name, SHAPES)
    assert model is not None
    plain, corrected = (
        weigh(model.shape, model.form, ParallelShape(), FACTS, (0, 26, 0), architecture="sm_90", checkpoint=size)
        for size in (None, int(checkpoint * GIB))
    )
    assert corrected / plain == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "Qwen/Qwen2.5-32B-Instruct", "tp": 3}, "40 attention heads cannot be divided by 3."),
        ({"model": "Qwen/Qwen3-235B-A22B", "quantization": "fp8_block", "tp": 8}, "no multiple of 128"),
        ({"model": "Qwen/Qwen3-32B", "pp": 4096}, "64 layers cannot be spread over 4096 stages."),
    ],
)
def test_an_engine_that_vllm_cannot_divide_is_refused(changes: dict[str, Any], said: str) -> None:
    made = case("llmd-3", **changes)
    assert made.prediction == "refused"
    assert said in made.limit


@pytest.mark.parametrize(("gpu", "budget"), [("DGX Spark", 111.9), ("NVIDIA GB10", 111.9), ("Jetson Thor", None)])
def test_a_machine_with_unified_memory_has_that_of_its_gpu(gpu: str, budget: float | None) -> None:
    assert case("f3a63f53f4", gpu=gpu, gpu_memory_gib=None, gpu_memory_utilization=None).budget == (
        budget and pytest.approx(budget, abs=0.1)
    )


@pytest.mark.parametrize(("written", "name"), [("a1", "a1"), (17, "17"), (None, ""), (True, ""), (["a"], ""), (1.5, "")])
def test_a_line_has_the_id_of_its_case(written: Any, name: str) -> None:
    [made] = estimate_lines([json.dumps({"id": written, "model": "Qwen/Qwen3-8B"})], ESTIMATE)
    assert made["id"] == name


VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["Qwen/Qwen3-8B", "mtp 99999", "0.20.1", "GB10 + GB10", "VLLM_PP_LAYER_PARTITION=1,2", "fp8", "9" * 400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        *("id", "vllm_version", "gpu", "gpu_memory_gib", "tp", "pp", "dp", "ep", "model", "quantization", "kv_cache_dtype", "note"),
        *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "enforce_eager", "cpu_offload_gb"),
        *("spec", "dcp", "config", "checkpoint_bytes"),
    ]
)
LINES = st.sampled_from([json.loads(line) for line in CASES.read_text("utf-8").splitlines()])


@pytest.mark.hypothesis
@given(LINES, st.dictionaries(FIELDS, VALUE, max_size=6), st.booleans())
def test_no_line_of_cases_raises_an_error(line: dict[str, Any], changes: dict[str, Any], known: bool) -> None:
    written = json.dumps({**(line if known else {}), **changes})
    [made] = estimate_lines([written], ESTIMATE)
    assert made["outcome"] in ("started", "tight", "refused", "oom", "unknown")
    json.dumps(made, allow_nan=False)


@pytest.mark.hypothesis
@given(st.text(max_size=60))
def test_no_text_instead_of_a_case_raises_an_error(text: str) -> None:
    for made in estimate_lines([text], ESTIMATE):
        assert made["outcome"] == "unknown"
