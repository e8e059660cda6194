"""Lines of `vllm-operator fit --cases`: one bad line costs that line, and what a line says of its checkpoint counts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.estimates import engine
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.models import load_shapes
from vllm_operator.cli.fit import estimate_lines, load_predictor
from vllm_operator.sizing.cases import predict
from vllm_operator.sizing.estimate import Estimate
from vllm_operator.sizing.model_shape import read_shape
from vllm_operator.sizing.resolve import resolve_model
from vllm_operator.sizing.weights import weigh

GIB = 1 << 30
FACTS, SHAPES, GPUS = load_memory(), load_shapes(), load_catalog().gpus
ESTIMATE = load_predictor()
CASES = Path(__file__).parents[2] / "docs" / "sizing-cases.jsonl"


def case(name: str, **changes: Any) -> Estimate:
    line = next(line for line in map(json.loads, CASES.read_text("utf-8").splitlines()) if line["id"] == name)
    return predict({**line, **changes}, SHAPES, GPUS, FACTS)


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
        weigh(engine(model.shape, model.form, release=(0, 26, 0), architecture="sm_90", checkpoint_bytes=size))
        for size in (None, int(checkpoint * GIB))
    )
    assert corrected / plain == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "Qwen/Qwen2.5-32B-Instruct", "tp": 3}, "40 attention heads cannot be divided by 3."),
        ({"model": "Qwen/Qwen3-235B-A22B", "quantization": "fp8_block", "tp": 8}, "no multiple of 128"),
        ({"model": "Qwen/Qwen3-32B", "pp": 4096}, "64 layers cannot be spread over 4096 stages."),
        ({"model": "Qwen/Qwen3-32B", "tp": 2, "ep": True}, "It has no experts to spread."),
        ({"model": "Qwen/Qwen3-32B", "tp": 8, "dcp": 2}, "--decode-context-parallel-size 2 needs 16 tensor-parallel ranks for 8 KV heads."),
        ({"model": "Qwen/Qwen3-32B", "tp": 16, "dcp": 3}, "16 tensor-parallel ranks cannot be divided by"),
        ({"model": "deepseek-ai/DeepSeek-V3", "tp": 8, "dcp": 16}, "8 tensor-parallel ranks cannot be divided by"),
        ({"model": "Qwen/Qwen2.5-7B-Instruct", "tp": 28, "dcp": 2}, "7 heads for each KV head cannot be divided by"),
    ],
)
def test_an_engine_that_vllm_cannot_divide_is_refused(changes: dict[str, Any], said: str) -> None:
    made = case("llmd-3", **changes)
    assert made.prediction == "refused"
    assert said in made.limit


@pytest.mark.parametrize(
    "sizes", [{"model": "deepseek-ai/DeepSeek-V3", "tp": 8, "dcp": 8}, {"model": "Qwen/Qwen3-32B", "tp": 16, "dcp": 2}]
)
def test_tokens_are_divided_where_vllm_can(sizes: dict[str, Any]) -> None:
    divided, whole = case("glm5-a", quantization="", **sizes), case("glm5-a", quantization="", **{**sizes, "dcp": 1})
    assert (divided.tokens or 0) / (whole.tokens or 1) == pytest.approx(sizes["dcp"], rel=0.01)


@pytest.mark.parametrize(("gpu", "budget"), [("DGX Spark", 111.9), ("NVIDIA GB10", 111.9), ("Jetson Thor", None)])
def test_a_machine_with_unified_memory_has_that_of_its_gpu(gpu: str, budget: float | None) -> None:
    assert case("f3a63f53f4", gpu=gpu, gpu_memory_gib=None, gpu_memory_utilization=None).budget == (
        budget and pytest.approx(budget, abs=0.1)
    )


def test_a_case_without_a_length_is_not_refused_for_that_of_the_model() -> None:
    made = case("vllm-19407", max_model_len=None)
    assert (made.prediction, case("vllm-19407").prediction) == ("tight", "refused")
    assert "does not state its length: up to 38" in made.limit


def test_a_context_longer_than_that_of_the_model_is_not_said_to_start() -> None:
    assert case("llmd-3", max_model_len=131_072).prediction == "started"
    made = case("llmd-3", max_model_len=131_073)
    assert (made.prediction, made.limit.split(",")[0]) == ("refused", "vLLM refuses a context of 131073 tokens")
    assert case("llmd-3", max_model_len=131_073, note="VLLM_ALLOW_LONG_MAX_MODEL_LEN=1").prediction == "started"


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131_072),
        ({"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}, 131_072),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 40_960),
        ({"rope_type": "yarn", "factor": "4", "original_max_position_embeddings": 32768}, 40_960),
        ({"rope_type": "yarn", "factor": float("inf"), "original_max_position_embeddings": 32768}, 40_960),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10**12}, 40_960),
    ],
)
def test_yarn_lengthens_the_context_that_is_accepted(scaling: dict[str, Any], longest: int) -> None:
    known = SHAPES.find("Qwen/Qwen3-8B")
    assert known is not None
    shape = read_shape({**known.config, "rope_scaling": scaling})
    assert shape is not None
    assert shape.max_length == longest


@pytest.mark.parametrize(
    "changes",
    [
        {"quantization": "int4 (W4A16), experts partly on the host"},
        {"note": "KV cache in host memory"},
        {"note": "weights offloaded to the CPU"},
    ],
)
def test_a_part_in_the_host_memory_is_unknown(changes: dict[str, Any]) -> None:
    assert case("llmd-3", **changes).prediction == "unknown"
    assert case("llmd-3", cpu_offload_gb=4, **changes).prediction == "started"


def test_the_block_size_of_a_case_counts() -> None:
    assert (case("llmd-7", block_size=128).tokens or 1) % 128 == 0
    assert (case("llmd-7", block_size=None).tokens or 0) % 128


@pytest.mark.parametrize("figure", ["activation_gib", "non_torch_gib", "graph_estimate_gib", "measured", "error_text"])
def test_what_was_measured_does_not_change_the_prediction(figure: str) -> None:
    assert case("llmd-3", **{figure: 40.0}) == case("llmd-3", **{figure: None})


@pytest.mark.parametrize("kind", ["turboquant", "octave"])
def test_deepseek_v4_with_a_type_of_cache_that_is_not_modelled_is_not_said_to_start(kind: str) -> None:
    assert case("dsv4-pro6000", kv_cache_dtype=kind).prediction == "unknown"
    assert case("dsv4-pro6000", kv_cache_dtype=kind, gpu_memory_utilization=0.7).prediction == "refused"


@pytest.mark.parametrize(("share", "outcome"), [(0.95, "started"), (0.97, "tight"), (0.98, "tight"), (0.99, "refused"), (1.0, "refused")])
def test_with_unified_memory_the_host_needs_a_part(share: float, outcome: str) -> None:
    made = case("f3a63f53f4", gpu_memory_utilization=share)
    assert made.prediction == outcome
    assert "117.6 GiB are free" in made.limit or outcome == "started"


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
        *("spec", "dcp", "config", "checkpoint_bytes", "block_size", "fuse_allreduce_rms", "unheard_of"),
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


SIZES = st.sampled_from([1, 1, 2, 3, 4, 8])
ENGINES = st.fixed_dictionaries(
    {
        "model": st.sampled_from([entry.name for entry in SHAPES.entries]),
        "gpu": st.sampled_from(sorted({product.title for product in GPUS.products_by_name.values()})),
        "vllm_version": st.sampled_from(["0.5.3", "0.8.5", "0.10.2", "0.14.1", "0.19.2rc1.dev134", "0.20.1", "0.26.0", "0.29.0", "0.33.0"]),
        "tp": SIZES,
        "pp": SIZES,
        "dp": SIZES,
        "ep": st.booleans(),
        "quantization": st.sampled_from(["", "fp8", "fp8_block", "awq", "nvfp4", "mxfp4", "int8", "4-bit"]),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8", "nvfp4", "int8_per_token_head", "turboquant"]),
        "max_model_len": st.sampled_from([None, "auto", 1, 100, 8192, 131_072, 1_000_000]),
        "max_num_seqs": st.sampled_from([None, 1, 256, 4096]),
        "max_num_batched_tokens": st.sampled_from([None, 1, 2048, 65_536]),
        "gpu_memory_utilization": st.sampled_from([None, 0.05, 0.5, 0.95, 1.0]),
        "enforce_eager": st.booleans(),
        "spec": st.sampled_from([None, "mtp 3", "eagle3", "dflash", "ngram 5"]),
        "dcp": st.sampled_from([None, 2]),
        "block_size": st.sampled_from([None, 32, 256]),
    }
)


@pytest.mark.hypothesis
@given(ENGINES)
def test_the_parts_of_an_estimate_agree(engine: dict[str, Any]) -> None:
    made = predict(engine, SHAPES, GPUS, FACTS)
    assert (made.limit == "") == (made.prediction == "started")
    assert all(part is None or part >= 0 for part in (made.weights, made.activation, made.other, made.graphs))
    if made.prediction == "started":
        assert (made.kv_cache or 0) >= (made.kv_needed or 0) > 0
        assert (made.tokens or 0) > 0
        assert (made.concurrency or 0) >= 1
        assert made.max_length is not None
        assert (made.longest or 0) >= made.max_length


@pytest.mark.hypothesis
@given(ENGINES, st.sampled_from([100, 8192, 131_072]))
def test_a_longer_context_needs_no_less_memory(engine: dict[str, Any], length: int) -> None:
    shorter, longer = (
        predict({**engine, "vllm_version": "0.20.1", "max_model_len": tokens}, SHAPES, GPUS, FACTS) for tokens in (length, 2 * length)
    )
    if shorter.kv_cache is None or longer.kv_cache is None:
        return
    assert longer.kv_cache <= shorter.kv_cache
    assert (longer.kv_needed or 0) >= (shorter.kv_needed or 0)
    assert (longer.concurrency or 0) <= (shorter.concurrency or 0)
    assert shorter.prediction != "refused" or longer.prediction != "started"


@pytest.mark.hypothesis
@given(st.text(max_size=60))
def test_no_text_instead_of_a_case_raises_an_error(text: str) -> None:
    for made in estimate_lines([text], ESTIMATE):
        assert made["outcome"] == "unknown"


@pytest.mark.parametrize(("label", "weights"), [("deepseek_v4_fp8", 146.0), ("DeepSeek_V4_FP8", 146.0), ("", 146.0), ("fp8", 267.0)])
def test_a_method_of_vllm_is_read_as_a_whole(label: str, weights: float) -> None:
    """vLLM logs checkpoints of DeepSeek V4 as `deepseek_v4_fp8`, whatever format their experts have."""
    line = {"gpu": "B300", "model": "deepseek-ai/DeepSeek-V4-Flash", "quantization": label, "kv_cache_dtype": "fp8", "max_model_len": 65536}
    made = predict({**line, "vllm_version": "0.26.0", "gpu_memory_gib": 267.7}, SHAPES, GPUS, FACTS)
    assert made.weights == pytest.approx(weights, rel=0.02)
