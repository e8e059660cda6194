"""What an engine takes besides weights and KV cache, by version: the profiling run, kernels that pad, stages of a pipeline."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.estimates import engine
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.models import load_shapes
from vllm_operator.catalog.versions import Release
from vllm_operator.sizing.cases import predict
from vllm_operator.sizing.engine import Options
from vllm_operator.sizing.estimate import Estimate, estimate
from vllm_operator.sizing.formats import WeightFormat
from vllm_operator.sizing.overhead import (
    Batch,
    Run,
    activation_bytes,
    default_batch,
    graph_bytes,
    has_shared_workspace,
    non_torch_bytes,
)
from vllm_operator.sizing.parallelism import ParallelShape
from vllm_operator.sizing.resolve import SizedModel, resolve_model
from vllm_operator.sizing.weights import stage_layers, weigh, weigh_stages

GIB = 1 << 30
FACTS, SHAPES, GPUS = load_memory(), load_shapes(), load_catalog().gpus
CASES = Path(__file__).parents[2] / "docs" / "sizing-cases.jsonl"


def model_of(name: str) -> SizedModel:
    model = resolve_model(name, SHAPES)
    assert model is not None
    return model


def peak(
    name: str,
    release: Release,
    *,
    tokens: int = 8192,
    sequences: int = 1024,
    tensor: int = 1,
    architecture: str | None = None,
    first: bool = True,
    last: bool = True,
    **flags: Any,
) -> float:
    model, run = model_of(name), Run(Batch(tokens, sequences), 16_000, first, last)
    return activation_bytes(engine(model.shape, model.form, ParallelShape(tensor), release, architecture=architecture, **flags), run) / GIB


@pytest.mark.parametrize(
    ("name", "tensor", "logged"),
    [("openai/gpt-oss-120b", 1, 7.38), ("meta-llama/Llama-3.1-8B-Instruct", 1, 4.76), ("meta-llama/Llama-3.3-70B-Instruct", 2, 4.84)],
)
def test_a_sort_of_the_vocabulary_is_the_peak_until_0_16_with_the_hidden_states_beside_it(name: str, tensor: int, logged: float) -> None:
    assert peak(name, (0, 11, 0), tensor=tensor) == pytest.approx(logged, abs=0.02)


def test_since_0_17_the_sampler_does_not_sort() -> None:
    old, new = (peak("meta-llama/Llama-3.1-8B-Instruct", release) for release in ((0, 16, 0), (0, 17, 0)))
    assert new < old / 2


def test_few_requests_leave_the_forward_pass_as_the_peak() -> None:
    few, fewer = (peak("meta-llama/Llama-3.1-8B-Instruct", (0, 20, 0), sequences=requests) for requests in (64, 8))
    assert few == fewer


def test_without_compilation_the_forward_pass_keeps_less() -> None:
    compiled, eager = (peak("Qwen/Qwen2.5-32B-Instruct", (0, 18, 1), sequences=1, eager=eager) for eager in (False, True))
    assert compiled - eager == pytest.approx(8192 * 2 * 2 * 5120 / GIB)


def test_a_draft_adds_the_logits_of_the_rejection_sampler_but_not_for_each_proposed_token() -> None:
    plain, drafted = (peak("Qwen/Qwen3-8B", (0, 25, 1), speculative=speculative) for speculative in (0, 1))
    assert plain < drafted < plain * 1.6


def test_the_encoder_is_profiled_with_as_many_images_as_the_budget_of_tokens_allows() -> None:
    one, also_one, four = (peak("Qwen/Qwen3.6-27B", (0, 26, 0), tokens=tokens, sequences=8) for tokens in (2048, 16384, 65536))
    assert one == pytest.approx(2.2, abs=0.05)  # logged: 2.22 GiB
    assert four > 3 * one
    assert also_one < four


def test_without_its_encoder_a_model_takes_less() -> None:
    assert peak("Qwen/Qwen3.6-27B", (0, 26, 0), tokens=2048, sequences=8, vision=False) < 1.5


def test_few_gpus_for_mla_need_room_for_what_it_projects_of_a_long_context() -> None:
    flags: dict[str, Any] = {"sequences": 8, "tokens": 512, "architecture": "sm_100"}  # where experts have no shared workspace
    one, eight = (peak("deepseek-ai/DeepSeek-V3", (0, 20, 0), tensor=tensor, **flags) for tensor in (1, 8))
    assert one == pytest.approx(4.0, abs=0.1)  # 65536 tokens x 128 heads x 256 x 2 bytes
    assert eight < one / 6


def test_layers_with_a_window_may_have_a_rotary_table_of_their_own() -> None:
    model = resolve_model("google/gemma-4-26B-A4B-it", SHAPES)
    assert model is not None
    assert model.shape.rotary == 256 + 512
    assert weigh(engine(model.shape, model.form, release=(0, 20, 0))) / GIB == pytest.approx(48.5, abs=0.15)  # logged


@pytest.mark.parametrize(
    ("written", "release", "tokens"),
    [
        ({"kv_cache_quant_algo": "FP8"}, (0, 25, 1), 2.0),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, (0, 25, 1), 2.0),
        ({"quantization": {"kv_cache_quant_algo": "FP8"}}, (0, 25, 1), 2.0),
        ({"kv_cache_quant_algo": "FP8"}, (0, 13, 0), 1.0),
        ({"kv_cache_quant_algo": None}, (0, 25, 1), 1.0),
        ({"kv_cache_scheme": [8]}, (0, 25, 1), 1.0),
        ({}, (0, 25, 1), 1.0),
    ],
)
def test_the_type_of_the_kv_cache_may_come_from_the_checkpoint(written: dict[str, Any], release: Release, tokens: float) -> None:
    known = SHAPES.find("Qwen/Qwen3-8B")
    assert known is not None
    found = []
    for extra in (written, {}):
        config = {**known.config, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", **extra}}
        model = resolve_model("acme/Qwen3-8B-NVFP4", SHAPES, config=config)
        assert model is not None
        sized = engine(model.shape, model.form, release=release, memory=79.2, architecture="sm_90", cache_bytes=20 * GIB)
        found.append(estimate(sized).tokens or 0)
    assert found[0] / found[1] == pytest.approx(tokens, rel=0.01)


def test_layers_for_multi_token_prediction_of_a_4_bit_checkpoint_have_16_bits() -> None:
    made = case("fe9309de5d")
    assert made.weights == pytest.approx(22.13, rel=0.01)  # logged
    assert made.kv_cache == pytest.approx(76.4, abs=0.5)


def test_an_eagle_draft_takes_weights_and_a_layer_of_the_cache() -> None:
    plain, drafted = (case("llmd-3", spec=spec) for spec in (None, "eagle3"))
    assert drafted.weights is not None
    assert plain.weights is not None
    assert drafted.weights - plain.weights == pytest.approx(0.8, abs=0.1)
    assert drafted.kv_needed == pytest.approx((plain.kv_needed or 0) * 33 / 32, rel=0.01)


def test_nvidias_checkpoints_with_attention_in_fp8_have_the_cache_in_fp8_too() -> None:
    assert case("fe9309de5d").concurrency == pytest.approx(8.36, abs=0.1)  # logged
    assert case("fe9309de5d", kv_cache_dtype="bfloat16").concurrency == pytest.approx(4.3, abs=0.1)


@pytest.mark.parametrize(
    ("name", "cache_dtype", "bytes_of_token"),
    [
        ("Qwen/Qwen3-8B", "auto", 36 * 8 * 2 * 128 * 2),
        ("Qwen/Qwen3-8B", "bfloat16", 36 * 8 * 2 * 128 * 2),
        ("Qwen/Qwen3-8B", "FP8_E4M3", 36 * 8 * 2 * 128),
        ("Qwen/Qwen3-8B", "fp8_per_token_head", 36 * 8 * (2 * 128 + 8)),
        ("Qwen/Qwen3-8B", "int4_per_token_head", 36 * 8 * (128 + 8)),
        ("Qwen/Qwen3-8B", "nvfp4", 36 * 8 * 2 * (64 + 8)),
        ("Qwen/Qwen3-8B", "turboquant_k8v4", 8 * (32 * (128 + 64 + 4) + 4 * 2 * 128 * 2)),  # two layers at each end have 16 bits
        ("Qwen/Qwen3-8B", "turboquant_3bit_nc", 8 * (32 * (48 + 2 + 48 + 4) + 4 * 2 * 128 * 2)),
        ("deepseek-ai/DeepSeek-V3.2", "fp8_ds_mla", 61 * (656 + 132)),
        ("deepseek-ai/DeepSeek-V3.2", "nvfp4_ds_mla", 61 * (352 + 132)),
    ],
)
def test_the_type_of_the_kv_cache_decides_how_many_tokens_it_holds(name: str, cache_dtype: str, bytes_of_token: int) -> None:
    model = resolve_model(name, SHAPES)
    assert model is not None
    flags: dict[str, Any] = {"cache_dtype": cache_dtype, "cache_bytes": 20 * GIB}
    made = estimate(engine(model.shape, model.form, memory=1000, architecture="sm_90", **flags))
    assert made.tokens == pytest.approx(20 * GIB / bytes_of_token, rel=0.01)


def test_a_type_of_the_kv_cache_that_is_not_modelled_makes_the_engine_unknown() -> None:
    model = resolve_model("Qwen/Qwen3-8B", SHAPES)
    assert model is not None
    made = estimate(engine(model.shape, model.form, release=(0, 26, 0), memory=79.2, architecture="sm_90", cache_dtype="ultraquant"))
    assert (made.prediction, made.tokens) == ("unknown", None)
    assert made.weights is not None


def test_a_type_for_full_attention_makes_models_with_windows_unknown() -> None:
    model = resolve_model("google/gemma-3-27b-it", SHAPES)
    assert model is not None
    made = estimate(engine(model.shape, model.form, release=(0, 26, 0), memory=139.8, architecture="sm_90", cache_dtype="turboquant_k8v4"))
    assert (made.prediction, made.tokens) == ("unknown", None)


def test_only_the_last_stage_samples_and_only_the_first_encodes() -> None:
    first, last = peak("Qwen/Qwen3-8B", (0, 15, 0), last=False), peak("Qwen/Qwen3-8B", (0, 15, 0), first=False)
    assert first < last / 3


@pytest.mark.parametrize(
    ("architecture", "release", "expected"),
    [
        ("sm_121", (0, 20, 0), Batch(2048, 256)),  # NVML does not tell the memory of GB10
        ("sm_121", (0, 33, 0), Batch(2048, 256)),
        ("sm_110", (0, 32, 0), Batch(2048, 256)),
        ("sm_110", (0, 33, 0), Batch(8192, 1024)),
        ("sm_90", (0, 20, 0), Batch(8192, 1024)),
    ],
)
def test_gpus_with_unified_memory_have_the_smallest_defaults(architecture: str, release: Release, expected: Batch) -> None:
    assert default_batch(engine(model_of("Qwen/Qwen3-8B").shape, release=release, memory=121.6, architecture=architecture)) == expected


@pytest.mark.parametrize(
    ("model", "release", "length", "tokens"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "0.7.3", 16_384, 16_384),
        ("meta-llama/Llama-3.1-8B-Instruct", "0.7.3", 1024, 2048),
        ("meta-llama/Llama-3.1-8B-Instruct", "0.7.3", 131_072, 2048),
        ("meta-llama/Llama-3.1-8B-Instruct", "0.6.0", 131_072, 512),
        ("meta-llama/Llama-3.1-8B-Instruct", "0.5.3", 131_072, 131_072),
        ("google/gemma-3-4b-it", "0.7.3", 131_072, 131_072),
        ("meta-llama/Llama-3.1-8B-Instruct", "0.8.0", 16_384, 8192),
    ],
)
def test_the_engine_v0_computes_a_prompt_at_once_unless_the_context_is_long(model: str, release: str, length: int, tokens: int) -> None:
    changes = {"model": model, "vllm_version": release, "max_model_len": length, "max_num_seqs": 256}
    usual, given = (case("llmd-3", **changes, max_num_batched_tokens=number) for number in (None, tokens))
    assert usual.activation == given.activation


def test_the_engine_v0_keeps_less_because_it_is_not_compiled() -> None:
    compiled, not_compiled = (peak("Qwen/Qwen2.5-32B-Instruct", release, sequences=1) for release in ((0, 8, 0), (0, 7, 0)))
    assert not_compiled < compiled


def test_the_cuda_context_was_part_of_the_budget_before_0_9_1() -> None:
    shape = model_of("Qwen/Qwen3-8B").shape
    old, new = (non_torch_bytes(engine(shape, release=release), 79.2) for release in ((0, 9, 0), (0, 9, 1)))
    assert old - new == pytest.approx(FACTS.context_gib * GIB)


@pytest.mark.parametrize(
    ("name", "layers", "sequences", "architecture", "logged"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 22, 64, "sm_90", 0.15),
        ("google/gemma-4-26B-A4B-it", 30, 32, "sm_121", 0.13),
        ("Qwen/Qwen3.6-35B-A3B", 40, 256, "sm_121", 0.93),
        ("Qwen/Qwen2.5-32B-Instruct", 64, 256, "sm_89", 1.59),
        ("zai-org/GLM-5", 78, 1, "sm_90", 0.06),
        ("Qwen/Qwen3-30B-A3B", 48, 1024, "sm_90", 0.64),
        ("openai/gpt-oss-20b", 24, 1024, "sm_90", 0.58),
    ],
)
def test_graphs_are_captured_in_pieces_for_all_sizes_and_whole_for_up_to_the_requests(
    name: str, layers: int, sequences: int, architecture: str, logged: float
) -> None:
    sized = engine(model_of(name).shape, release=(0, 20, 1), architecture=architecture)
    made = graph_bytes(sized, layers, Batch(8192, sequences)) / GIB
    assert made == pytest.approx(logged, rel=0.2) or made == pytest.approx(logged, abs=0.05)


@pytest.mark.parametrize(
    ("release", "architecture", "sequences", "expected"),
    [
        ((0, 26, 0), "sm_100", 1024, 1.0),
        ((0, 28, 0), "sm_100", 1024, 1.6),
        ((0, 28, 0), "sm_90", 1024, 1.0),
        ((0, 28, 0), "sm_100", 256, 1.0),
    ],
)
def test_datacenter_blackwell_has_graphs_of_larger_batches_since_0_28(
    release: Release, architecture: str, sequences: int, expected: float
) -> None:
    shape = model_of("Qwen/Qwen3-8B").shape
    usual, made = (
        graph_bytes(engine(shape, release=each, architecture=architecture), 36, Batch(8192, sequences)) for each in ((0, 20, 0), release)
    )
    assert made / usual == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(
    ("name", "tokens", "sequences", "logged"),
    [
        ("Qwen/Qwen3-30B-A3B", 8192, 1024, 2.68),
        ("openai/gpt-oss-20b", 8192, 1024, 2.87),
    ],
)
def test_the_buffers_of_the_experts_stay_while_the_sampler_runs(name: str, tokens: int, sequences: int, logged: float) -> None:
    found = peak(name, (0, 26, 0), tokens=tokens, sequences=sequences, architecture="sm_90")
    assert found == pytest.approx(logged, abs=0.03)  # kernels of gpt-oss have separate buffers


@pytest.mark.parametrize(
    ("form", "architecture", "release", "expected"),
    [
        (WeightFormat("BF16", 2.0), "sm_90", (0, 26, 0), True),
        (WeightFormat("BF16", 2.0), "sm_90", (0, 14, 0), False),
        (WeightFormat("FP8Block", 1.0), "sm_90", (0, 14, 0), True),
        (WeightFormat("FP8Block", 1.0), "sm_100", (0, 26, 0), False),
        (WeightFormat("NVFP4", 0.56), "sm_100", (0, 26, 0), False),
        (WeightFormat("NVFP4", 0.56), "sm_90", (0, 26, 0), True),
        (WeightFormat("MXFP4", 0.53, experts_only=True), "sm_90", (0, 26, 0), False),
        (WeightFormat("MXFP4", 1.0), "sm_90", (0, 26, 0), True),
        (WeightFormat("unheard of", 1.0), "sm_90", (0, 26, 0), False),
        (WeightFormat("BF16", 2.0), None, (0, 26, 0), True),
    ],
)
def test_the_format_the_gpu_and_the_version_decide_where_experts_have_their_buffers(
    form: WeightFormat, architecture: str | None, release: Release, expected: bool
) -> None:
    shape = model_of("Qwen/Qwen3-30B-A3B").shape
    assert has_shared_workspace(engine(shape, form, release=release, architecture=architecture)) == expected


def test_attention_of_deepseek_v4_is_computed_with_at_least_64_heads() -> None:
    half, quarter = (
        peak("deepseek-ai/DeepSeek-V4-Flash", (0, 25, 0), sequences=8, tensor=tensor, architecture="sm_90") for tensor in (2, 4)
    )
    assert half - quarter < 0.2  # half the heads, but as many after padding


@pytest.mark.parametrize(
    ("release", "architecture", "logged"),
    [((0, 10, 1), "sm_90", 65.97), ((0, 20, 0), "sm_90", 64.38)],
)
def test_the_kernel_of_the_version_decides_how_mxfp4_experts_are_padded(release: Release, architecture: str, logged: float) -> None:
    model = resolve_model("openai/gpt-oss-120b", SHAPES)
    assert model is not None
    sized = engine(model.shape, model.form, release=release, architecture=architecture, checkpoint_bytes=model.checkpoint_bytes)
    assert weigh(sized) / GIB == pytest.approx(logged, rel=0.003)


@pytest.mark.parametrize(
    ("layers", "stages", "partition", "expected"),
    [
        (48, 2, (), [24, 24]),
        (61, 4, (), [15, 15, 16, 15]),
        (5, 3, (), [2, 2, 1]),
        (48, 2, (16, 32), [16, 32]),
        (48, 2, (16, 31), [24, 24]),
        (2, 4, (), [0, 1, 1, 0]),
    ],
)
def test_layers_are_divided_over_stages_as_vllm_does_it(layers: int, stages: int, partition: tuple[int, ...], expected: list[int]) -> None:
    assert stage_layers(layers, stages, partition) == expected


def test_each_stage_holds_the_weights_of_its_layers() -> None:
    model = resolve_model("Qwen/Qwen3-30B-A3B", SHAPES)
    assert model is not None
    sized = engine(model.shape, model.form, ParallelShape(pipeline=2), (0, 15, 0))
    small, large = weigh_stages(replace(sized, options=Options(partition=(16, 32))))
    assert 1.7 < large / small < 2.0
    assert max(small, large) > weigh(sized)


def case(name: str, **changes: Any) -> Estimate:
    line = next(line for line in map(json.loads, CASES.read_text("utf-8").splitlines()) if line["id"] == name)
    return predict({**line, **changes}, SHAPES, GPUS, FACTS)


def test_the_smaller_gpu_of_two_stages_may_hold_fewer_layers() -> None:
    uneven, even = case("vllm-34076"), case("vllm-34076", note="")
    assert uneven.kv_cache == pytest.approx(3.2, abs=0.5)
    assert even.kv_cache is not None
    assert even.kv_cache < 0


def test_a_draft_that_a_log_shows_explains_its_blocks() -> None:
    """The log of this engine has blocks of 8432 tokens in six groups: a layer and three tokens of a draft, which its record omits."""
    made = case("0a095180b5", spec="mtp 3")
    assert made.kv_cache == pytest.approx(36.2, abs=2.5)
    assert made.concurrency == pytest.approx(27.81, rel=0.07)
