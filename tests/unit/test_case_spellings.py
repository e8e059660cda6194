"""What people and logs write in the fields of a case: names of GPUs, formats, versions, flags in a note."""

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
from vllm_operator.catalog.versions import Release
from vllm_operator.sizing.cases import NEWEST, OLDEST_TYPICAL, predict, read_cache_type, read_options, read_releases
from vllm_operator.sizing.estimate import Estimate, Prediction
from vllm_operator.sizing.resolve import resolve_model, smallest_named, stated_mebibytes
from vllm_operator.sizing.weights import weigh

GIB = 1 << 30
FACTS, SHAPES, GPUS = load_memory(), load_shapes(), load_catalog().gpus


def made(**line: Any) -> Estimate:
    return predict({"model": "Qwen/Qwen3-8B", "gpu": "H100", "vllm_version": "0.20.1", **line}, SHAPES, GPUS, FACTS)


def loaded(name: str, label: str = "") -> float:
    """The weights of a model on one GPU in GiB."""
    model = resolve_model(name, SHAPES, label=label)
    assert model is not None
    return weigh(engine(model.shape, model.form, release=(0, 20, 0), checkpoint_bytes=model.checkpoint_bytes)) / GIB


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 80GB"),
        ("8xH100", "H100 80GB"),
        ("H100 x8", "H100 80GB"),
        ("2x H100 PCIe", "H100 PCIe 80GB"),
        ("4 x H200", "H200 141GB"),
        ("H100 SXM", "H100 80GB"),
        ("A100-SXM4-40GB", "A100 40GB"),
        ("A100 (80GB)", "A100 80GB"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("GH200 144G HBM3e", "GH200 144GB"),
        ("H20-3e", "H20-3e"),
        ("RTX5090", "GeForce RTX 5090"),
        ("5090 D", "RTX 5090 D"),
        ("4090", "GeForce RTX 4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Workstation"),
        ("RTX Pro 6000 96GB", "RTX PRO 6000 Server"),
        ("RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("DGX Spark (GB10)", "GB10"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100 32GB"),
        ("RTX 5070 Ti + RTX 5090 D", "RTX 5070 Ti"),
        ("RTX 5090 + a GPU that nobody knows", None),
        ("16GB", None),
        ("MI300X", None),
        ("a3-highgpu-8g", None),
        ("unknown", None),
    ],
)
def test_a_gpu_is_found_by_the_names_that_people_use(name: str, title: str | None) -> None:
    found = smallest_named(name, GPUS)
    assert (found.title if found else None) == title


@pytest.mark.parametrize(
    ("name", "gib"),
    [("24 GB class (inferred)", 24), ("80GB", 80), ("RTX 4090 48GB", 48), ("H100 80GB", None), ("GH200 480GB", None), ("L4", None)],
)
def test_the_memory_in_a_name_counts_unless_it_is_that_of_the_product(name: str, gib: int | None) -> None:
    stated = stated_mebibytes(name, smallest_named(name, GPUS))
    assert stated == (None if gib is None else gib * 1024)


@pytest.mark.parametrize(
    ("version", "releases"),
    [
        ("v0.19.0", ((0, 19, 0),)),
        ("0.11.1rc7", ((0, 11, 1),)),
        ("0.19.2rc1.dev134+gfe9c3d6c5", ((0, 19, 1),)),
        ("0.19.2rc1.dev500", ((0, 20, 0),)),
        ("0.20.0+cu130", ((0, 20, 0),)),
        ("main", (NEWEST,)),
        ("nightly", (NEWEST,)),
        ("0.1.dev1+g123", (OLDEST_TYPICAL, NEWEST)),
        ("25.09", (OLDEST_TYPICAL, NEWEST)),
        ("unknown", (OLDEST_TYPICAL, NEWEST)),
        ("", (OLDEST_TYPICAL, NEWEST)),
    ],
)
def test_a_version_that_does_not_say_its_release_is_unknown(version: str, releases: tuple[Release, ...]) -> None:
    assert read_releases(version) == releases


@pytest.mark.parametrize(("written", "read"), [("", "auto"), ("unknown", "auto"), ("FP8_E4M3", "fp8_e4m3"), ("fp8_ds_mla", "fp8_ds_mla")])
def test_no_type_of_the_kv_cache_is_the_default(written: str, read: str) -> None:
    assert read_cache_type(written) == read


def test_flags_and_variables_in_a_note_count() -> None:
    flags = read_options(
        {"note": "started with --language-model-only, --max-num-seqs 64 --no-enable-prefix-caching; VLLM_USE_V2_MODEL_RUNNER=0"}
    )
    assert (flags.vision, flags.sequences, flags.prefix_caching, flags.runner_v2) == (False, 64, False, False)
    assert read_options({"note": "version from the date -- no flags"}) == read_options({"note": ""})


@pytest.mark.parametrize(
    ("label", "gib"),
    [
        ("none", 15.26),
        ("not stated", 15.26),
        ("bitsandbytes", 5.96),
        ("gguf Q4_K_M", 4.67),
        ("Q8_0", 8.1),
        ("auto-round", 5.66),
        ("modelopt", 8.8),
        ("8-bit", 8.8),
    ],
)
def test_a_format_is_known_by_the_names_that_people_use(label: str, gib: float) -> None:
    assert loaded("Qwen/Qwen3-8B", label) == pytest.approx(gib, rel=0.03)


@pytest.mark.parametrize("label", ["gguf", "exl2", "quark", "something new"])
def test_a_format_that_is_not_known_never_counts_as_fitting(label: str) -> None:
    assert made(quantization=label).prediction is Prediction.UNKNOWN
    assert made(quantization=label, model="openai/gpt-oss-20b").prediction is not Prediction.UNKNOWN, "its config.json states its format"


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("Qwen/Qwen3-8B-AWQ", 5.68),  # size of the repository, kaito-project/kaito model_catalog.yaml
        ("Qwen/Qwen2.5-Coder-7B-Instruct", 14.19),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", 61.03),
        ("mistralai/Mistral-Large-3-675B-Instruct-2512", 634.7),
        ("mistralai/Mistral-Small-4-119B-2603", 112.63),
        ("mistralai/Mistral-Small-4-119B-2603-NVFP4", 65.95),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", 16.56),
        ("nvidia/NVIDIA-Nemotron-Nano-12B-v2-VL-BF16", 24.55),
        ("google/gemma-4-E4B-it", 14.89),
        ("google/gemma-4-E2B-it", 9.54),
        ("google/gemma-4-12B-it", 22.28),
        ("Qwen/Qwen3.6-35B-A3B-FP8", 34.9),
    ],
)
def test_the_weights_of_a_checkpoint_that_is_not_read_are_those_of_its_repository(name: str, gib: float) -> None:
    assert loaded(name) == pytest.approx(gib, rel=0.03)


def test_layers_that_share_keys_and_values_keep_none() -> None:
    model = resolve_model("google/gemma-4-E4B-it", SHAPES)
    assert model is not None
    assert [(each.count, each.width) for each in model.shape.cached] == [(20, 512), (4, 1024)]
    assert made(model="google/gemma-4-E4B-it", max_model_len=8192).prediction is Prediction.STARTED


WORD = st.one_of(st.none(), st.integers(-2, 1 << 41), st.text(max_size=40), st.booleans(), st.floats(), st.lists(st.integers(), max_size=2))


@given(
    st.dictionaries(
        st.sampled_from(
            ["gpu", "quantization", "vllm_version", "kv_cache_dtype", "max_model_len", "note", "spec", "tp", "block_size", "model"]
        ),
        WORD,
    )
)
def test_nothing_that_a_field_may_hold_raises(line: dict[str, Any]) -> None:
    assert made(**line).prediction in Prediction


def test_the_table_names_each_model_once() -> None:
    lines = (Path(__file__).parents[2] / "operator/vllm_operator/catalog/data/shapes.json").read_text("utf-8")
    names = [entry["name"] for entry in json.loads(lines)]
    assert names == sorted(set(names), key=str.lower)
