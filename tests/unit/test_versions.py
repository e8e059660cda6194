"""What each version of vLLM knows, and which version an image holds."""

import json
from pathlib import Path

import pytest

from vllm_operator.api.conditions import Verdict
from vllm_operator.api.spec import Distribution, EngineSpec
from vllm_operator.catalog.entry import parse_entry
from vllm_operator.catalog.versions import VersionTable, build_versions, load_versions, normalize_flag
from vllm_operator.planning.engine.image import resolve_version

VERSIONS = load_versions()
TABLES = {table.version: table for table in VERSIONS.tables}

SAMPLED = [
    "0.11.0",
    "0.12.0",
    "0.13.0",
    "0.14.0",
    "0.15.0",
    "0.16.0",
    "0.17.1",
    "0.18.0",
    "0.19.0",
    "0.20.1",
    "0.22.0",
    "0.23.0",
    "0.24.0",
    "0.26.0",
    "0.28.0",
    "0.30.0",
    "0.31.0",
    "0.32.0",
    "0.33.0",
]


def test_each_file_is_named_after_its_version() -> None:
    releases = [table.release for table in VERSIONS.tables]
    assert releases == sorted(set(releases))


def test_every_sampled_version_has_a_table_with_plausible_content() -> None:
    assert set(SAMPLED) <= set(TABLES)
    for table in VERSIONS.tables:
        assert len(table.variables) > 150, table.version
        assert len(table.flags) > 150, table.version
        assert {"FLASH_ATTN", "FLASHINFER", "TRITON_MLA"} <= set(table.backends["attention"]), table.version
        assert {"auto", "fp8"} <= set(table.backends["kvCacheDtype"]), table.version
        assert table.bundle.cuda in ("12.8", "12.9", "13.0"), table.version
        assert {"--model", "--port", "--api-key", "--tensor-parallel-size", "--served-model-name"} <= table.flags, table.version


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("VLLM_ATTENTION_BACKEND", "0.11.0", "0.14.1"),
        ("VLLM_ALL2ALL_BACKEND", "0.11.0", "0.15.1"),
        ("VLLM_USE_FLASHINFER_MOE_FP8", "0.11.0", "0.23.0"),
        ("VLLM_FLASHINFER_MOE_BACKEND", "0.11.0", "0.23.0"),
        ("VLLM_NVFP4_GEMM_BACKEND", "0.11.1", "0.23.0"),
        ("VLLM_USE_DEEP_GEMM", "0.11.0", "0.33.0"),
        ("VLLM_USE_FLASHINFER_SAMPLER", "0.11.0", "0.33.0"),
        ("VLLM_ENABLE_STARTUP_PLAN", "0.26.0", "0.33.0"),
    ],
)
def test_variables_live_as_long_as_in_the_wheels(name: str, first: str, last: str) -> None:
    having = [table.version for table in VERSIONS.tables if table.knows_variable(name)]
    assert (having[0], having[-1]) == (first, last)


@pytest.mark.parametrize(
    ("flag", "first"),
    [
        ("--all2all-backend", "0.11.1"),
        ("--attention-backend", "0.13.0"),
        ("--kernel-config", "0.16.0"),
        ("--moe-backend", "0.17.0"),
        ("--fail-on-environ-validation", "0.17.0"),
        ("--linear-backend", "0.22.0"),
        ("--attention-config.mla_prefill_backend", "0.21.0"),
        ("--no-enable-prefix-caching", "0.11.0"),
    ],
)
def test_flags_exist_from_their_first_version_on(flag: str, first: str) -> None:
    having = [table.version for table in VERSIONS.tables if table.knows_flag(flag)]
    assert having[0] == first
    assert having[-1] == VERSIONS.newest.version


def test_a_removed_field_of_a_json_flag_is_not_known() -> None:
    assert TABLES["0.20.1"].knows_flag("--attention-config.use_cudnn_prefill")
    assert not TABLES["0.22.0"].knows_flag("--attention-config.use_cudnn_prefill")


@pytest.mark.parametrize(
    ("written", "want"),
    [
        ("moe-backend", "--moe-backend"),
        ("--moe_backend", "--moe-backend"),
        ("--attention-config.mla_prefill_backend", "--attention-config.mla_prefill_backend"),
        ("-tp", "-tp"),
    ],
)
def test_spellings_of_a_flag_are_one(written: str, want: str) -> None:
    assert normalize_flag(written) == want


@pytest.mark.parametrize(
    ("version", "table", "note"),
    [
        ("0.20.1", "0.20.1", None),
        ("0.19.0.post1", "0.19.0", "treats it like 0.19.0."),
        ("0.24.0rc2", "0.24.0", "treats it like 0.24.0."),
        ("0.20.1.dev12", "0.20.0", "treats it like 0.20.0."),
        ("v0.24.0", "0.24.0", None),
        ("0.22.2", "0.22.1", "treats it like 0.22.1, the next lower version"),
        ("0.20.3", "0.20.2", "treats it like 0.20.2"),
        ("0.99.0", "0.33.0", "newer than 0.33.0"),
        ("0.10.2", None, "older than 0.11.0"),
    ],
)
def test_versions_in_between_use_the_lower_table_and_say_so(version: str, table: str | None, note: str | None) -> None:
    resolution = VERSIONS.resolve(version)
    assert (resolution.table.version if resolution.table else None) == table
    assert resolution.note is None if note is None else note in (resolution.note or "")


@pytest.mark.parametrize(
    ("image", "want"),
    [
        ("vllm/vllm-openai:v0.20.1", "0.20.1"),
        ("vllm/vllm-openai:v0.24.0-cu129", "0.24.0"),
        ("vllm/vllm-openai:v0.24.0-aarch64", "0.24.0"),
        ("registry:5000/mirror/vllm-openai:0.19.0.post1", "0.19.0.post1"),
        ("vllm/vllm-openai:v0.20.1@sha256:0123456789abcdef", "0.20.1"),
        ("registry.example/vllm:0.33.0rc1", "0.33.0rc1"),
        # tags that count another product
        ("nvcr.io/nvidia/vllm:25.10-py3", "0.10.2"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.7.1-cuda13", "0.11.0"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.7.0.post2", "0.11.2"),
        ("registry:5000/mirror/ai-dynamo-vllm-runtime:1.2.0", "0.20.1"),
        ("ghcr.io/llm-d/llm-d-cuda:v0.8.1", "0.23.0"),
        ("registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.2.2-1756225581", "0.10.1.1"),
        ("vllm/vllm-openai:v0.10.1.1", "0.10.1.1"),
        ("kserve/huggingfaceserver:v0.15.2-gpu", "0.8.5"),
        ("lmcache/vllm-openai:v0.4.3", "0.19.0"),
    ],
)
def test_the_version_is_read_from_the_tag(image: str, want: str) -> None:
    resolved = resolve_version(EngineSpec(image=image), VERSIONS)
    assert not isinstance(resolved, Verdict)
    assert (resolved.version, resolved.image) == (want, image)


@pytest.mark.parametrize(
    "image",
    [
        "vllm/vllm-openai",
        "vllm/vllm-openai:latest",
        "vllm/vllm-openai:nightly",
        "vllm/vllm-openai:nightly-0.20.1",
        "vllm/vllm-openai@sha256:0123456789abcdef",
        "registry:5000/vllm",
        "nvcr.io/nvidia/vllm:26.01-py3",
        "registry.example/vllm:25.10-py3",
        "registry.example/our-serving:v0.20.1",
        "ghcr.io/navi-ai-lab/nvllm:v0.3.0",
        "lmcache/vllm-openai:v0.4.2",
        "registry:5000/mirror/lmcache/vllm-openai:v0.4.2",
        "nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.90.0",
        "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.3.0-nemotron-super-dev.1",
        "ghcr.io/llm-d/llm-d-cuda:latest",
        "ghcr.io/llm-d/llm-d-inference-sim:v0.6.1",
        "registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.2.0",
    ],
)
def test_a_tag_that_does_not_tell_needs_the_version_in_the_spec(image: str) -> None:
    refused = resolve_version(EngineSpec(image=image), VERSIONS)
    assert isinstance(refused, Verdict)
    assert refused.reason == "VersionUnknown"
    assert "Set spec.engine.version" in refused.message
    given = resolve_version(EngineSpec(image=image, version="v0.20.1"), VERSIONS)
    assert not isinstance(given, Verdict)
    assert (given.version, given.notes) == ("0.20.1", ())


def test_the_version_in_the_spec_beats_the_tag_and_the_plan_says_so() -> None:
    resolved = resolve_version(EngineSpec(image="vllm/vllm-openai:v0.24.0", version="0.20.1"), VERSIONS)
    assert not isinstance(resolved, Verdict)
    assert resolved.version == "0.20.1"
    assert "image tag is 0.24.0" in resolved.notes[0].text


def test_without_image_and_version_the_newest_known_is_used() -> None:
    resolved = resolve_version(None, VERSIONS)
    assert not isinstance(resolved, Verdict)
    assert resolved.image == f"vllm/vllm-openai:v{VERSIONS.newest.version}"
    assert "newest version" in resolved.notes[0].text


def test_nvllm_needs_the_vllm_version() -> None:
    refused = resolve_version(EngineSpec(distribution=Distribution.NVLLM), VERSIONS)
    assert isinstance(refused, Verdict)
    assert "nvLLM" in refused.message
    resolved = resolve_version(EngineSpec(distribution=Distribution.NVLLM, version="0.19.0"), VERSIONS)
    assert not isinstance(resolved, Verdict)
    assert resolved.image == "ghcr.io/navi-ai-lab/nvllm:latest"


def test_two_tables_of_one_release_are_refused() -> None:
    with pytest.raises(ValueError, match="two tables"):
        build_versions([TABLES["0.20.1"], TABLES["0.20.1"]])


def test_no_table_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="no vLLM version"):
        build_versions([])


def test_a_table_is_named_after_its_version() -> None:
    folder = Path(__file__).parents[2] / "operator/vllm_operator/catalog/data/versions"
    for path in sorted(folder.iterdir()):
        assert parse_entry(VersionTable, json.loads(path.read_text())).version == path.stem
