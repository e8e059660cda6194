"""Versions x GPUs x models x sizes: each is estimated without an error, and no size is chosen that vLLM refuses to divide.

What vLLM refuses is written here once more, from config.json alone: vllm/config/model.py verify_with_parallel_config,
vllm/model_executor/layers/linear.py (QKVParallelLinear, `divide`), mamba/mamba_mixer2.py, mamba/gdn/qwen_gdn_linear_attn.py and
quantization/utils/fp8_utils.py validate_fp8_block_shape and validate_fp8_block_shape_moe, 0.33.0.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import astuple, replace
from typing import Any

import pytest

from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.models import load_shapes
from vllm_operator.catalog.versions import Release, parse_release
from vllm_operator.sizing.engine import Device, Options
from vllm_operator.sizing.estimate import Estimate, Prediction
from vllm_operator.sizing.parallelism import ParallelShape, allowed, smallest_sizes
from vllm_operator.sizing.resolve import device_of, predict_model, resolve_model

SHAPES, GPUS, FACTS = load_shapes(), load_catalog().gpus, load_memory()
RELEASES = sorted({release for table in load_catalog().versions.tables if (release := parse_release(table.version)) is not None})
MODELS = [entry.name for entry in SHAPES.entries]
LABELS = ("", "fp8", "fp8_block", "awq", "nvfp4", "mxfp4", "int4 (experts, group 32)", "unheard of")
PARALLEL = [
    ParallelShape(tensor, pipeline, data, expert)
    for tensor, pipeline, data, expert in itertools.product((1, 2, 3, 4, 8, 16), (1, 2, 5), (1, 8), (False, True))
]
OPTIONS = [
    Options(),
    Options(max_length=0, eager=True),
    Options(max_length=4096, sequences=8, batched_tokens=512, prefix_caching=True),
    Options(utilization=0.5, cache_dtype="fp8", speculative=3, own_draft_layers=True),
    Options(offload_gib=20.0, block=64, context_parallel=8),
    Options(max_length=10**7, sequences=4096, speculative=15, separate_draft_layers=8, vision=False, runner_v2=True),
    Options(cache_bytes=1 << 30, eagle=True, speculative=5, checkpoint_bytes=10**11),
]
SAMPLES = 4000


def combinations() -> Iterator[tuple[Any, ...]]:
    """A sample of all combinations; the same in each run."""
    chosen = random.Random(18)
    products = list(GPUS.products_by_name.values())
    for _ in range(SAMPLES):
        places = (RELEASES, products, MODELS, LABELS, PARALLEL, OPTIONS)
        yield tuple(chosen.choice(place) for place in places)


def test_no_combination_raises_an_error_or_has_a_figure_that_is_none() -> None:
    seen: set[Prediction] = set()
    for release, product, name, label, parallel, options in combinations():
        model = resolve_model(name, SHAPES, label=label)
        if model is None:
            continue
        device = device_of(product, product.architecture, None, GPUS, FACTS)
        made = predict_model(model, parallel, device, options, FACTS, release)
        assert_sound(made)
        allowed(model.shape, model.form, parallel)
        seen.add(made.prediction)
    assert seen == set(Prediction)


def assert_sound(made: Estimate) -> None:
    numbers = [value for value in astuple(made) if isinstance(value, int | float)]
    assert all(math.isfinite(number) for number in numbers), made
    for part in (made.weights, made.activation, made.other, made.graphs, made.tokens, made.longest, made.concurrency):
        assert part is None or part >= 0, made
    if made.prediction is Prediction.STARTED:
        assert made.kv_cache is not None
        assert made.kv_cache > 0
        assert made.kv_needed is None or made.kv_cache >= made.kv_needed
    if made.prediction not in (Prediction.STARTED,):
        assert made.limit, made


def divides(config: Mapping[str, Any], blocks: int, tensor: int, expert: bool) -> bool:
    """Whether vLLM divides a model by this number of GPUs."""

    def size(*keys: str) -> int:
        return next((value for key in keys if isinstance(value := config.get(key), int) and not isinstance(value, bool) and value), 0)

    heads, kv_heads = size("num_attention_heads"), size("num_key_value_heads") or size("num_attention_heads")
    latent, experts = size("kv_lora_rank"), size("num_experts", "n_routed_experts", "num_local_experts")
    if heads % tensor or (not latent and kv_heads % tensor and tensor % kv_heads):
        return False
    recurrent = [size("linear_num_key_heads"), size("linear_num_value_heads"), size("mamba_num_heads")]
    if any(number % tensor for number in recurrent):
        return False
    width, own = size("intermediate_size", "ffn_dim"), size("moe_intermediate_size") or size("intermediate_size")
    divided = [] if experts else [width]
    if experts and size("first_k_dense_replace"):
        divided.append(width)
    shared = size("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size") or size("n_shared_experts") * own
    divided += [shared] if experts and shared else []
    divided += [own] if experts and not expert else []
    if any(each % tensor for each in divided):
        return False
    return tensor == 1 or not blocks or not any(each // tensor % blocks for each in divided)


@pytest.mark.parametrize("label", ["", "fp8_block"])
def test_no_size_is_chosen_that_vllm_refuses_to_divide(label: str) -> None:
    chosen, refused = 0, 0
    for entry in SHAPES.entries:
        model = resolve_model(entry.name, SHAPES, label=label)
        if model is None:
            continue
        sizes = smallest_sizes(model.shape, model.form, 8)
        assert sizes[0] == ParallelShape()
        for parallel in sizes:
            assert divides(entry.config, model.form.blocks, parallel.tensor, parallel.expert), (entry.name, parallel)
        chosen += len(sizes)
        for tensor in (2, 4, 8):
            if tensor not in {parallel.tensor for parallel in sizes}:
                refused += 1
                assert allowed(model.shape, model.form, ParallelShape(tensor)), (entry.name, tensor)
    assert chosen > 200
    assert refused > 10


OLD_AND_NEW: list[Release] = [(0, 8, 0), (0, 11, 0), (0, 17, 0), (0, 26, 0), (0, 33, 0)]
KINDS = [
    Device(39.4, "sm_80"),
    Device(79.2, "sm_90"),
    Device(178.3, "sm_100"),
    Device(121.6, "sm_121", unified=True),
    Device(22.0, "sm_89"),
]


@pytest.mark.parametrize("release", OLD_AND_NEW, ids=str)
def test_more_gpus_never_hold_more_weights_each(release: Release) -> None:
    for name, device in itertools.product(MODELS, KINDS):
        model = resolve_model(name, SHAPES)
        assert model is not None
        held = math.inf
        for tensor in (1, 2, 4, 8, 16):
            if allowed(model.shape, model.form, ParallelShape(tensor)) is None:
                made = predict_model(model, ParallelShape(tensor), device, Options(), FACTS, release)
                assert_sound(made)
                assert made.weights is not None
                assert made.weights <= held * 1.0005, (name, device, tensor)
                held = made.weights


@pytest.mark.parametrize("release", OLD_AND_NEW, ids=str)
def test_a_larger_gpu_never_has_a_smaller_kv_cache(release: Release) -> None:
    """With the same requests and tokens, which vLLM chooses by the memory, and above the memory of GPUs without links to each other."""
    options = Options(sequences=256, batched_tokens=4096)
    for name, kind in itertools.product(MODELS, KINDS):
        model = resolve_model(name, SHAPES)
        assert model is not None
        before = None
        for memory in (41.0, 75.0, 159.0, 300.0):
            made = predict_model(model, ParallelShape(), replace(kind, memory_gib=memory), options, FACTS, release)
            if before is not None:
                assert (made.kv_cache or 0) >= (before.kv_cache or 0), (name, kind, memory)
                assert (made.tokens or 0) >= (before.tokens or 0), (name, kind, memory)
                assert not (before.prediction is Prediction.STARTED and made.prediction is not Prediction.STARTED), (name, kind, memory)
            before = made
