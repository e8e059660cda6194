"""Headers of safetensors files: what they say about the weights, and what a hostile one costs."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.estimates import engine
from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.models import KnownShapes
from vllm_operator.cli.documents import read_model_files
from vllm_operator.cli.inputs import InputError
from vllm_operator.sizing.formats import (
    DRAFTS,
    ENCODER,
    HEADER_LIMIT,
    OUTSIDE,
    TensorSizes,
    add_up,
    header_length,
    read_header,
)
from vllm_operator.sizing.resolve import SizedModel, resolve_model
from vllm_operator.sizing.weights import weigh

FACTS, NEWEST = load_memory(), (0, 26, 0)
NOTHING_KNOWN = KnownShapes(())
HIDDEN, WIDTH, EXPERTS, VOCABULARY = 256, 128, 4, 1024
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": HIDDEN,
    "moe_intermediate_size": WIDTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}
Tensor = dict[str, Any]


def tensors(*, attention: str, expert: str) -> dict[str, Tensor]:
    """The header of a checkpoint with this type of attention (BF16, FP8) and of experts (BF16, FP8, NVFP4)."""
    named: dict[str, tuple[str, int]] = {}
    bytes_of = {"BF16": 2.0, "FP8": 1.0, "NVFP4": 0.5}
    for layer in (0, 1):
        for name, elements in (("q", 256), ("k", 128), ("v", 128), ("o", 256)):
            named[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = attention, int(HIDDEN * elements * bytes_of[attention])
        named[f"model.layers.{layer}.mlp.gate.weight"] = "BF16", HIDDEN * EXPERTS * 2
        named[f"model.layers.{layer}.input_layernorm.weight"] = "BF16", HIDDEN * 2
        for number in range(EXPERTS):
            for part in ("gate_proj", "up_proj", "down_proj"):
                path = f"model.layers.{layer}.mlp.experts.{number}.{part}"
                named[f"{path}.weight"] = expert, int(HIDDEN * WIDTH * bytes_of[expert])
                if expert == "NVFP4":
                    named[f"{path}.weight_scale"] = "F8_E4M3", HIDDEN * WIDTH // 16
    named |= dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), ("BF16", VOCABULARY * HIDDEN * 2))
    found, at = {}, 0
    for name, (dtype, size) in named.items():
        found[name] = {"dtype": dtype, "shape": [size], "data_offsets": [at, at + size]}
        at += size
    return found


def as_file(header: dict[str, Any]) -> bytes:
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return len(text).to_bytes(8, "little") + text


def sizes(header: dict[str, Any]) -> TensorSizes:
    found = read_header(json.dumps(header).encode())
    assert found is not None
    return add_up(found)


def model(found: TensorSizes | None, **changes: Any) -> SizedModel:
    resolved = resolve_model("acme/new", NOTHING_KNOWN, config={**CONFIG, **changes}, tensors=found)
    assert resolved is not None
    return resolved


def weights(found: TensorSizes | None, **changes: Any) -> float:
    resolved = model(found, **changes)
    return weigh(engine(resolved.shape, resolved.form, checkpoint_bytes=resolved.checkpoint_bytes))


@pytest.mark.parametrize("attention", ["BF16", "FP8"])
@pytest.mark.parametrize("expert", ["BF16", "FP8", "NVFP4"])
def test_the_weights_are_as_large_as_the_tensors_whatever_config_json_says(attention: str, expert: str) -> None:
    header = tensors(attention=attention, expert=expert)
    stored = max(about["data_offsets"][1] for about in header.values())
    assert weights(sizes(header)) == pytest.approx(stored, rel=0.02)


def test_an_assumed_format_is_known_from_the_tensors() -> None:
    mixed = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}}
    assert model(None, **mixed).form.assumed
    known = model(sizes(tensors(attention="FP8", expert="NVFP4")), **mixed).form
    assert not known.assumed
    assert known.quantized
    assert [(each.pattern, each.size) for each in known.measured] == [("self_attn", 1.0), ("experts", 0.5625)]


def test_a_layer_may_have_a_format_of_its_own() -> None:
    header = tensors(attention="BF16", expert="NVFP4")
    wide = tensors(attention="BF16", expert="BF16")
    header |= {name: about for name, about in wide.items() if ".layers.0.mlp.experts." in name}
    form = model(sizes(header)).form
    assert {(each.pattern, tuple(each.layers or ()), round(each.size or 0, 2)) for each in form.measured if each.pattern == "experts"} == {
        ("experts", (0,), 2.06),  # the scales of the other file are still there
        ("experts", (1,), 0.56),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 3},  # a layer has no tensors
        {"moe_intermediate_size": 16},  # eight times as many bytes as elements
        {"kv_lora_rank": 64, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_hidden_layers": 4},
    ],
)
def test_tensors_of_another_model_do_not_count(changes: dict[str, Any]) -> None:
    found = sizes(tensors(attention="BF16", expert="BF16"))
    assert model(found, **changes).form.measured == ()


def test_a_format_that_the_user_names_counts_before_the_tensors() -> None:
    found = sizes(tensors(attention="BF16", expert="BF16"))
    resolved = resolve_model("acme/new", NOTHING_KNOWN, config=CONFIG, label="fp8", tensors=found)
    assert resolved is not None
    assert resolved.form.measured == ()


def test_files_add_up() -> None:
    header = tensors(attention="FP8", expert="NVFP4")
    names = list(header)
    parts = [{name: header[name] for name in names[start::3]} for start in range(3)]
    assert sum(map(sizes, parts), TensorSizes()) == sizes(header)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("model.layers.3.block_sparse_moe.experts.7.w1.weight", ("experts", 3)),
        ("model.layers.3.mlp.shared_expert.up_proj.weight", ("shared_experts", 3)),
        ("layers.5.ffn.shared_experts.w2.weight", ("shared_experts", 5)),
        ("model.language_model.layers.1.linear_attn.in_proj_qkv.weight", ("linear_attn", 1)),
        ("layers.5.attn.wq_a.weight", ("self_attn", 5)),
        ("backbone.layers.2.mixer.in_proj.weight", ("mixer", 2)),
        ("model.layers.0.self_attn.q_norm.weight", None),
        ("model.layers.0.self_attn.q_proj.bias", None),
        ("model.layers.0.mlp.router.weight", None),
        ("model.layers.0.self_attn.q_proj.g_idx", None),
        ("model.norm.weight", None),
    ],
)
def test_the_name_of_a_tensor_says_what_it_belongs_to(name: str, family: tuple[str, int] | None) -> None:
    assert add_up({name: 8}) == ({family: 8} if family else {})


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("model.visual.blocks.3.attn.qkv.weight", ENCODER),
        ("vision_tower.transformer.layers.3.feed_forward.w1.weight", ENCODER),
        ("multi_modal_projector.linear_1.weight", ENCODER),
        ("mtp.layers.0.mlp.experts.3.up_proj.weight", DRAFTS),
    ],
)
def test_encoders_and_drafts_are_counted_apart(name: str, where: str) -> None:
    assert add_up({name: 8}) == {(where, OUTSIDE): 8}


def test_weights_in_32_bits_are_loaded_in_16() -> None:
    header = {"a.weight": {"dtype": "F32", "data_offsets": [0, 8]}, "a.weight_scale_inv": {"dtype": "F32", "data_offsets": [8, 16]}}
    assert read_header(json.dumps(header).encode()) == {"a.weight": 4, "a.weight_scale_inv": 8}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a": {"data_offsets": "0,8"}}',
        b'{"a": {"data_offsets": [0]}}',
        b'{"a": {"data_offsets": [8, 0]}}',
        b'{"a": {"data_offsets": [-1, 8]}}',
        b'{"a": {"data_offsets": [0, 1e400]}}',
        b'{"a": {"data_offsets": [0, ' + b"9" * 4000 + b"]}}",
        b'{"a": {"data_offsets": [true, "x"]}}',
        b'{"' + b"a" * 1000 + b'": {"data_offsets": [0, 8]}}',
        b'{"a": 8}',
    ],
)
def test_a_hostile_header_says_nothing(header: bytes) -> None:
    assert not read_header(header)


@pytest.mark.parametrize("beginning", [b"", b"1234567", bytes(8), (HEADER_LIMIT + 1).to_bytes(8, "little"), b"\xff" * 8])
def test_a_header_of_an_unlikely_length_is_not_read(beginning: bytes) -> None:
    assert header_length(beginning) is None


NAMES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["model.layers.0.mlp.experts.0.up_proj.weight", "layers.9999.self_attn.q_proj.weight", "layers.1.", "lm_head.weight"]),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.fixed_dictionaries({"dtype": inner, "data_offsets": inner}),
    max_leaves=6,
)


@pytest.mark.hypothesis
@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_no_header_raises_an_error(header: dict[str, Any]) -> None:
    found = read_header(json.dumps(header).encode())
    if found is not None:
        assert weights(add_up(found)) > 0


def checkpoint(folder: Path, *headers: bytes, config: Any = CONFIG) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    for number, header in enumerate(headers):
        (folder / f"model-{number:05}.safetensors").write_bytes(header)
    return str(folder)


def test_a_folder_has_the_config_and_the_tensors(tmp_path: Path) -> None:
    header = tensors(attention="FP8", expert="NVFP4")
    (tmp_path / "consolidated.safetensors").write_bytes(b"another copy of the weights")
    plain = {key: value for key, value in CONFIG.items() if key != "quantization_config"}
    path = checkpoint(tmp_path, as_file(header), config=plain)
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    files = read_model_files(path)
    assert files.config == {**plain, "quantization_config": {"quantization": {"quant_algo": "NVFP4"}}}
    assert files.tensors == sizes(header)
    assert files.weight_bytes == sizes(header).total()


@pytest.mark.parametrize("second", [b"PK\x03\x04", b"", (900).to_bytes(8, "little") + b"{}"])
def test_a_damaged_file_in_a_folder_costs_the_tensors_only(tmp_path: Path, second: bytes) -> None:
    files = read_model_files(checkpoint(tmp_path, as_file(tensors(attention="BF16", expert="FP8")), second))
    assert files.config == CONFIG
    assert files.tensors is None


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_model_files(str(tmp_path))


def test_a_list_of_thousands_of_paths_does_not_make_an_estimate_slow() -> None:
    names = [f"model.layers.{number % 2}.odd{number}" for number in range(20_000)]
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.*.self_attn*", *names]}}
    form = model(None, **config).form
    assert len(form.rules) <= 256
    assert form.rules[0].pattern == "self_attn*"
