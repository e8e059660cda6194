"""The memory of an engine: parameters from config.json, weights on a GPU, the layout of the KV cache, and what must not decrease."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.estimates import NEWEST, engine
from vllm_operator.catalog.models import load_shapes
from vllm_operator.sizing.estimate import Estimate, Prediction, estimate
from vllm_operator.sizing.formats import name_format, read_format
from vllm_operator.sizing.kv_cache import lay_out
from vllm_operator.sizing.model_shape import ModelShape, Module, Shard, read_shape
from vllm_operator.sizing.parallelism import ParallelShape, allowed
from vllm_operator.sizing.resolve import resolve_model
from vllm_operator.sizing.weights import weigh

GIB = 1 << 30
SHAPES = load_shapes()
DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}


def shape_of(config: dict[str, Any]) -> ModelShape:
    shape = read_shape(config)
    assert shape is not None
    return shape


def known(name: str) -> ModelShape:
    entry = SHAPES.find(name)
    assert entry is not None
    return shape_of(dict(entry.config))


def made(name: str, memory: float, tensor: int = 1, release: tuple[int, int, int] = NEWEST, **options: Any) -> Estimate:
    model = resolve_model(name, SHAPES)
    assert model is not None
    return estimate(engine(model.shape, model.form, ParallelShape(tensor), release, memory=memory, **options))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_257_152),
        ("Qwen/Qwen3-30B-A3B", 30_532_108_288),
        ("deepseek-ai/DeepSeek-V3", 671_026_397_184),
        ("google/gemma-3-27b-it", 27_431_908_432),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79_674_277_888),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31_577_743_232),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 108_629_364_480),
    ],
)
def test_parameters_follow_from_the_config(name: str, parameters: int) -> None:
    assert known(name).parameters == parameters


def test_the_published_size_of_a_checkpoint_is_that_of_its_modules() -> None:
    wrong: dict[str, float] = {}
    for entry in SHAPES.entries:
        shape = shape_of(dict(entry.config))
        form = read_format(entry.config, shape)
        if entry.checkpoint_gib and not form.assumed and form.name != "BF16":
            size = sum(form.bytes_of(module) for module in (*shape.modules, *shape.drafts)) / GIB
            wrong |= {entry.name: size / entry.checkpoint_gib} if abs(size / entry.checkpoint_gib - 1) > 0.05 else {}
    assert wrong == {}


def test_every_well_known_model_has_a_shape() -> None:
    assert [entry.name for entry in SHAPES.entries if read_shape(entry.config) is None] == []


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("qwen/qwen3-32b", "Qwen/Qwen3-32B"),
        ("acme/Qwen3-32B-AWQ", "Qwen/Qwen3-32B"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1"),
        ("acme/DeepSeek-R1-Distill-Unknown", None),
        ("acme/Qwen3-32B-pruned", None),
        ("", None),
    ],
)
def test_a_variant_has_the_shape_of_its_model(name: str, entry: str | None) -> None:
    found = SHAPES.find(name)
    assert (found.name if found else None) == entry


@pytest.mark.parametrize(
    ("excluded", "bytes_per_layer"),
    [
        ([], 1.0),
        (["lm_head"], 1.0),
        (["model.layers.*.self_attn*"], 2.0),
        (["re:.*self_attn.*"], 2.0),
        (["model.layers.0.self_attn*"], 1.5),
        (["model.language_model.layers.1.self_attn.q_proj", "model.layers.0.self_attn.q_proj"], 2.0),
        (["mlp"], 1.0),
        (["re:(a+)+$", "[", "x*" * 200, 3, None], 1.0),
    ],
)
def test_modules_that_a_checkpoint_leaves_out_have_16_bits(excluded: list[Any], bytes_per_layer: float) -> None:
    config = {**DENSE, "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": excluded}}
    module = Module("self_attn.q_proj", 100, Shard.TENSOR, (0, 1))
    assert read_format(config, shape_of(config)).bytes_of(module) == 200 * bytes_per_layer


def test_each_layer_of_a_mixed_checkpoint_has_its_own_format() -> None:
    layers = {"model.layers.0.mlp.down_proj": {"quant_algo": "NVFP4"}, "model.layers.1.mlp.down_proj": {"quant_algo": "FP8"}}
    config = {**DENSE, "quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    form = read_format(config, shape_of(config))
    assert form.bytes_of(Module("mlp.down_proj", 100, Shard.TENSOR, (0, 1, 2))) == pytest.approx(56.25 + 100 + 200)


def test_kv_heads_are_replicated_when_there_are_more_gpus() -> None:
    shape, form = shape_of(DENSE), read_format(DENSE, shape_of(DENSE))
    eight, sixteen = (weigh(engine(shape, form, ParallelShape(size))) for size in (8, 16))
    kv = sum(module.total for module in shape.modules if module.shard is Shard.KV_HEADS) * 2
    assert eight / 2 < sixteen
    assert sixteen - eight / 2 > kv / 16


def test_the_whole_vocabulary_is_padded() -> None:
    assert made("meta-llama/Llama-3.1-8B-Instruct", 79).weights == pytest.approx(14.99, abs=0.01)


@pytest.mark.parametrize(
    ("name", "tensor", "release", "memory", "length", "changes", "tokens"),
    [
        # As logged by engines: tokens with exactly this memory for the KV cache (docs/sizing-cases.jsonl).
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 1, (0, 10, 2), 8.68, 6144, {}, 94784),
        ("Qwen/Qwen3-32B", 8, (0, 10, 0), 55.62, 32768, {"cache_dtype": "fp8"}, 3644816),
        ("Qwen/Qwen3.5-27B", 4, (0, 19, 0), 7.0, 32768, {"in_flight": 2048}, 114464),
        ("Qwen/Qwen3.6-27B", 1, (0, 26, 0), 7.33, 196608, {"cache_dtype": "fp8", "in_flight": 2048, "prefix_caching": True}, 227886),
        ("google/gemma-4-26B-A4B-it", 1, (0, 20, 0), 44.03, 8192, {"in_flight": 4096}, 192368),
        ("google/gemma-4-26B-A4B-it", 1, (0, 25, 1), 84.68, 262144, {"in_flight": 2496}, 3912140),
        ("zai-org/GLM-5", 8, (0, 19, 0), 32.11, 202752, {"block": 64}, 344192),
        ("moonshotai/Kimi-K2-Thinking", 8, (0, 11, 1), 46.8, 131072, {"block": 64}, 715072),
        ("moonshotai/Kimi-K2-Thinking", 8, (0, 11, 1), 46.8, 131072, {"block": 64, "context_parallel": 8}, 5721088),
        ("MiniMaxAI/MiniMax-M2.5", 4, (0, 15, 1), 23.62, 196608, {}, 399424),
        ("deepseek-ai/DeepSeek-V4-Flash", 2, (0, 25, 0), 7.75, 131072, {"cache_dtype": "fp8"}, 301529),
    ],
)
def test_a_kv_cache_holds_as_many_tokens_as_the_engine_says(
    name: str, tensor: int, release: tuple[int, int, int], memory: float, length: int, changes: dict[str, Any], tokens: int
) -> None:
    flags = {key: value for key, value in changes.items() if key != "in_flight"}
    layout = lay_out(engine(known(name), parallel=ParallelShape(tensor), release=release, **flags), changes.get("in_flight", 8192))
    assert layout is not None
    assert layout.tokens(memory * GIB, length) == pytest.approx(tokens, rel=0.003)


def test_an_engine_with_a_draft_in_its_checkpoint_has_blocks_as_logged() -> None:
    drafting = engine(known("Qwen/Qwen3.6-27B"), release=(0, 25, 1), cache_dtype="fp8", speculative=3, own_draft_layers=True)
    layout = lay_out(drafting, 2048)
    assert layout is not None
    assert layout.concurrency(76.4 * GIB, 262144) == pytest.approx(8.36, abs=0.01)


def test_the_default_utilization_changed() -> None:
    shares = [(made("Qwen/Qwen3-8B", 100.0, release=release).budget or 0) for release in ((0, 19, 1), (0, 20, 0))]
    assert shares == pytest.approx([90, 92])


def test_a_context_that_does_not_fit_is_shortened_with_auto() -> None:
    refused, shortened = (made("meta-llama/Llama-3.1-8B-Instruct", 23.5, max_length=length) for length in (None, 0))
    assert refused.prediction is Prediction.REFUSED
    assert shortened.prediction is Prediction.STARTED
    assert shortened.max_length == shortened.longest == refused.longest


def test_more_utilization_than_is_free_is_refused() -> None:
    assert made("Qwen/Qwen3-8B", 79.18, utilization=0.999).prediction is Prediction.REFUSED


@pytest.mark.parametrize(
    ("name", "label", "parallel", "refused"),
    [
        ("Qwen/Qwen2.5-32B-Instruct", "", ParallelShape(3), "40 attention heads cannot be divided by 3"),
        ("Qwen/Qwen3-235B-A22B", "fp8_block", ParallelShape(8), "no multiple of 128"),
        ("Qwen/Qwen3-235B-A22B", "fp8_block", ParallelShape(8, expert=True), None),
        ("Qwen/Qwen3-235B-A22B", "fp8_per_block", ParallelShape(8), None),
        ("Qwen/Qwen3-32B", "", ParallelShape(8), None),
    ],
)
def test_sizes_that_vllm_refuses(name: str, label: str, parallel: ParallelShape, refused: str | None) -> None:
    shape = known(name)
    form = name_format(label, shape) or read_format({}, shape)
    why = allowed(shape, form, parallel)
    assert (why is None) if refused is None else (why is not None and refused in why)


SIZE: st.SearchStrategy[Any] = st.one_of(st.integers(-5, 10**13), st.sampled_from([None, "8", "x", 1.5, True, [], {}, "9" * 40]))
KEYS = st.sampled_from(
    [
        *DENSE,
        "n_routed_experts",
        "num_experts",
        "moe_intermediate_size",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "index_head_dim",
        "index_topk_freq",
        "layer_types",
        "sliding_window",
        "full_attention_interval",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "hybrid_override_pattern",
        "compress_ratios",
        "num_nextn_predict_layers",
        "vision_config",
        "text_config",
        "head_dim",
        "quantization_config",
        "interleave_moe_layer_step",
        "partial_rotary_factor",
        "attention_chunk_size",
    ]
)
VALUE = st.recursive(
    SIZE | st.text(max_size=8) | st.floats(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(KEYS | st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.hypothesis
@given(st.dictionaries(KEYS, VALUE, max_size=8), st.booleans(), st.sampled_from([1, 2, 8, 64]), st.sampled_from([(0, 9, 0), NEWEST]))
def test_no_config_raises_an_error(changes: dict[str, Any], whole: bool, tensor: int, release: tuple[int, int, int]) -> None:
    config = {**(DENSE if whole else {}), **changes}
    shape = read_shape(config)
    if shape is not None:
        form = read_format(config, shape)
        result = estimate(engine(shape, form, ParallelShape(tensor), release, memory=79.18))
        assert result.prediction in list(Prediction)


MODELS = st.sampled_from([entry.name for entry in SHAPES.entries])


@pytest.mark.hypothesis
@given(MODELS, st.floats(8, 300), st.floats(0.5, 50), st.sampled_from([(0, 11, 0), (0, 19, 0), (0, 25, 0), NEWEST]))
def test_more_memory_never_leaves_less_for_the_kv_cache(name: str, memory: float, more: float, release: tuple[int, int, int]) -> None:
    chosen: dict[str, Any] = {"sequences": 256, "batched_tokens": 2048, "utilization": 0.9, "max_length": 4096}
    small, large = (made(name, size, release=release, **chosen) for size in (max(memory, 41), max(memory, 41) + more))
    assert (large.kv_cache or 0) >= (small.kv_cache or 0)
    assert (large.tokens or 0) >= (small.tokens or 0)
    assert not (small.prediction is Prediction.STARTED and large.prediction in (Prediction.REFUSED, Prediction.OUT_OF_MEMORY))


@pytest.mark.hypothesis
@given(MODELS, st.integers(1, 100_000), st.integers(1, 100_000))
def test_a_longer_context_never_needs_less(name: str, length: int, more: int) -> None:
    layout = lay_out(engine(known(name)), 8192)
    if layout is not None:
        assert layout.need(length) <= layout.need(length + more)
        assert layout.longest(layout.need(length), 1 << 20) >= length


@pytest.mark.hypothesis
@given(MODELS, st.sampled_from([1, 2, 4]))
def test_more_gpus_never_hold_more_weights_each(name: str, tensor: int) -> None:
    shape = known(name)
    form = read_format({}, shape)
    small, large = (weigh(engine(shape, form, ParallelShape(size))) for size in (tensor, 2 * tensor))
    assert large <= small + 0.08 * GIB
