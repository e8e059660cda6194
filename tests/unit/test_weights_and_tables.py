"""What vLLM keeps on a GPU besides the tensors of a checkpoint: rotary tables, buffers, copies. And which rules a version has."""

from typing import Any

import pytest

from support.estimates import engine
from vllm_operator.catalog.models import load_shapes
from vllm_operator.catalog.versions import Release
from vllm_operator.sizing.cases import read_releases
from vllm_operator.sizing.model_shape import read_shape
from vllm_operator.sizing.parallelism import ParallelShape
from vllm_operator.sizing.resolve import SizedModel, resolve_model
from vllm_operator.sizing.weights import buffer_bytes, weigh

GIB, MIB = 1 << 30, 1 << 20
SHAPES = load_shapes()


def known(name: str, label: str = "") -> SizedModel:
    model = resolve_model(name, SHAPES, label=label)
    assert model is not None
    return model


def weights(name: str, release: Release, label: str = "", tensor: int = 1) -> float:
    model = known(name, label)
    size, parallel = model.checkpoint_bytes, ParallelShape(tensor)
    return weigh(engine(model.shape, model.form, parallel, release, architecture="sm_90", checkpoint_bytes=size)) / GIB


@pytest.mark.parametrize(
    ("name", "tensor", "logged"),
    [
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", 2, 29.31),
        ("Qwen/Qwen3.5-27B", 4, 13.01),
        ("Qwen/Qwen3.5-9B", 4, 4.52),
        ("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", 1, 7.43),
    ],
)
def test_weights_are_those_that_the_engine_logged(name: str, tensor: int, logged: float) -> None:
    assert weights(name, (0, 19, 0), tensor=tensor) == pytest.approx(logged, rel=0.013)


@pytest.mark.parametrize(
    ("name", "logged", "tensor"),
    [
        ("Qwen/Qwen2.5-32B-Instruct", 18.14, 1),
        ("Qwen/Qwen2.5-14B-Instruct", 9.38, 1),
        ("meta-llama/Llama-3.1-405B-Instruct", 51.15, 4),
    ],
)
def test_weights_in_int4_take_a_little_more_after_they_were_ordered_anew(name: str, logged: float, tensor: int) -> None:
    assert weights(name, (0, 20, 0), "awq", tensor) == pytest.approx(logged, rel=0.006)


@pytest.mark.parametrize(("release", "factor"), [((0, 11, 0), 4), ((0, 32, 0), 4), ((0, 33, 0), 1)])
def test_positions_of_images_and_videos_have_a_longer_rotary_table(release: Release, factor: int) -> None:
    shape = known("Qwen/Qwen3-VL-8B-Instruct").shape
    table = (shape.max_length or 0) * 128 * 2
    model = known("Qwen/Qwen3-VL-8B-Instruct")
    plain = sum(model.form.bytes_of(module) for module in shape.modules)
    assert weigh(engine(shape, model.form, release=release)) - plain == pytest.approx(factor * table, rel=0.01)


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"mrope_section": [16, 24, 24]}, True),
        ({"mrope_section": []}, False),
        ({"rope_type": "default"}, False),
        (["mrope_section"], False),
        (None, False),
    ],
)
def test_a_config_says_whether_positions_have_sections(rope: Any, expected: bool) -> None:
    base = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "intermediate_size": 128}
    shape = read_shape({**base, "architectures": ["Glm4vForConditionalGeneration"], "rope_scaling": rope})
    assert shape is not None
    assert shape.sections is expected


@pytest.mark.parametrize(
    ("config", "width"),
    [
        ({"partial_rotary_factor": 0.25}, 16),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, 32),
        ({"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}}, 32),
        ({"rope_parameters": {"partial_rotary_factor": -1}}, 64),
        ({"rope_parameters": {"partial_rotary_factor": "1"}}, 64),
        ({"rope_parameters": {"partial_rotary_factor": True}}, 64),
        ({}, 64),
    ],
)
def test_a_part_of_a_head_may_be_rotated(config: dict[str, Any], width: int) -> None:
    base = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "intermediate_size": 128}
    shape = read_shape({**base, **config})
    assert shape is not None
    assert shape.rotary == width


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V4-Flash-0731", "deepseek-ai/DeepSeek-V4-Pro"])
def test_the_modules_of_deepseek_v4_are_as_large_as_its_repository(name: str) -> None:
    model = known(name)
    size = sum(model.form.bytes_of(module) for module in (*model.shape.modules, *model.shape.drafts)) / GIB
    assert model.known is not None
    assert size == pytest.approx(model.known.checkpoint_gib, rel=0.0005)


def test_deepseek_v4_has_two_rotary_tables_in_32_bits() -> None:
    assert known("deepseek-ai/DeepSeek-V4-Flash").shape.rotary * 2 == 2 * 64 * 4


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", 8192 * (512 * 4 + 4 * 4096 * 2)),
        ("zai-org/GLM-5", 8192 * 2048 * 4),
        ("Qwen/Qwen3-8B", 0),
    ],
)
def test_some_models_have_buffers_for_the_tokens_of_a_step(name: str, expected: int) -> None:
    assert buffer_bytes(known(name).shape, 8192) == expected


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("acme/DeepSeek-V4-Flash-0801", "deepseek-ai/DeepSeek-V4-Flash"),
        ("nvidia/DeepSeek-V4-Flash-NVFP4", "nvidia/DeepSeek-V4-Flash-NVFP4"),
        ("acme/DeepSeek-V4-Flash-NVFP4-0801", "nvidia/DeepSeek-V4-Flash-NVFP4"),
        ("acme/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3"),
    ],
)
def test_a_model_has_its_own_entry_before_that_of_another_format(name: str, entry: str) -> None:
    found = SHAPES.find(name)
    assert found is not None
    assert found.name == entry


def test_layers_may_have_different_numbers_of_heads() -> None:
    config = {
        "architectures": ["LagunaForCausalLM"],
        "num_hidden_layers": 4,
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "num_attention_heads": 48,
        "num_attention_heads_per_layer": [48, 72, 72, 72],
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 100352,
        "num_experts": 256,
        "moe_intermediate_size": 1024,
        "mlp_only_layers": [0],
        "sliding_window": 512,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
    }
    shape = read_shape(config)
    assert shape is not None
    queries = sum(module.total for module in shape.modules if module.name == "self_attn.q_proj")
    assert queries == 3072 * 128 * (48 + 3 * 72)
    assert [module.layers for module in shape.modules if module.name == "mlp.experts"] == [(1, 2, 3)]
    for hostile in ([48], ["x"] * 4, [-1, 0, 10**12, None], {"0": 48}):
        assert read_shape({**config, "num_attention_heads_per_layer": hostile}) is not None


@pytest.mark.parametrize(
    ("version", "releases"),
    [
        ("0.20.1", ((0, 20, 1),)),
        ("0.19.2rc1.dev134+gfe9c3d6c5", ((0, 19, 1),)),
        ("0.23.1rc1.dev1201+gd08eebad1", ((0, 24, 0),)),
        ("0.20.1.dev0+g101584af0.d20260424", ((0, 20, 0),)),
        ("0.20.0rc1", ((0, 20, 0),)),
        ("0.15.2", ((0, 15, 2),)),
    ],
)
def test_a_development_version_has_the_rules_of_the_release_that_is_nearer(version: str, releases: tuple[Release, ...]) -> None:
    assert read_releases(version) == releases
