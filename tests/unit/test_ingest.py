"""A version's table is read from its wheel as text, and plans for that version without further work."""

import json
import zipfile
from pathlib import Path

import pytest

from ingest_vllm import ingest, main, render
from vllm_operator.catalog.entry import parse_entry
from vllm_operator.catalog.versions import VersionTable, build_versions, load_versions

FILES = {
    "vllm/envs.py": """
import os
from helpers import env_with_choices, deprecated_env
environment_variables = {
    "VLLM_MAIN_CUDA_VERSION": lambda: os.getenv("VLLM_MAIN_CUDA_VERSION", "").lower() or "14.1",
    "VLLM_USE_SOMETHING": lambda: bool(int(os.getenv("VLLM_USE_SOMETHING", "1"))),
    "VLLM_KIND": env_with_choices("VLLM_KIND", None, ["fast", "slow"]),
    "VLLM_OLD": deprecated_env("VLLM_OLD", "v9", lambda: os.getenv("VLLM_OLD", "0")),
    "VLLM_PLAIN": lambda: os.environ.get("VLLM_PLAIN", None),
}
raise RuntimeError("a wheel is never imported")
""",
    "vllm/engine/arg_utils.py": """
class EngineArgs:
    def add_cli_args(parser):
        group.add_argument("--moe-backend", **kwargs["moe_backend"])
        group.add_argument("--quantization", "-q", **kwargs["quantization"])
        group.add_argument("--attention-config", "-ac", **kwargs["attention_config"])
""",
    "vllm/entrypoints/openai/cli_args.py": """
class BaseFrontendArgs:
    api_key: list[str] | None = None
class FrontendArgs(BaseFrontendArgs):
    port: int = 8000
""",
    "vllm/v1/attention/backends/registry.py": """
class AttentionBackendEnum(Enum):
    FLASH_ATTN = "vllm.a"
    ROCM_ATTN = "vllm.b"
    TRITON_MLA = "vllm.c"
""",
    "vllm/config/kernel.py": """
MoEBackend = Literal["auto", "triton", "aiter"]
class KernelConfig:
    moe_backend: MoEBackend = "auto"
""",
    "vllm/config/attention.py": """
class AttentionConfig:
    backend: str | None = None
    mla_prefill_backend: str | None = None
""",
    "vllm/config/parallel.py": 'All2AllBackend = Literal["naive", "pplx"]',
    "vllm/config/cache.py": 'CacheDType = Literal["auto", "fp8"]',
    "vllm/model_executor/models/registry.py": """
_TEXT_MODELS = {"NewForCausalLM": ("new", "NewForCausalLM")}
_GONE = {"OldForCausalLM": "0.39"}
""",
    "vllm/third_party/deep_gemm/__init__.py": "",
    "vllm-0.40.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.40.0+cu141\nRequires-Dist: torch==2.20.0\n"
    "Requires-Dist: flashinfer-python==0.9.0\nRequires-Dist: flashinfer-cubin==0.9.0\n",
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "vllm-0.40.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    return path


def test_a_wheel_may_be_unpacked(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "unpacked")
    assert ingest(tmp_path / "unpacked") == ingest(wheel)


def test_everything_that_planning_needs_is_read(wheel: Path) -> None:
    content = ingest(wheel)
    assert content["version"] == "0.40.0"
    assert content["bundle"] == {"cuda": "14.1", "torch": "2.20.0", "flashinfer": "0.9.0", "flashinferCubins": True, "deepGemm": True}
    assert content["variables"] == {
        "VLLM_KIND": {"values": ["fast", "slow"]},
        "VLLM_MAIN_CUDA_VERSION": {"default": "14.1"},
        "VLLM_OLD": {"default": "0", "deprecated": True},
        "VLLM_PLAIN": {},
        "VLLM_USE_SOMETHING": {"default": "1"},
    }
    assert content["flags"] == {"--api-key": [], "--attention-config": ["-ac"], "--moe-backend": [], "--port": [], "--quantization": ["-q"]}
    assert content["backends"] == {
        "all2all": ["naive", "pplx"],
        "attention": ["FLASH_ATTN", "TRITON_MLA"],
        "kvCacheDtype": ["auto", "fp8"],
        "moe": ["auto", "triton"],
    }
    assert content["configs"] == {"attention-config": ["backend", "mla_prefill_backend"], "kernel-config": ["moe_backend"]}


def test_a_new_version_is_used_as_soon_as_its_table_is_there(wheel: Path) -> None:
    table = parse_entry(VersionTable, json.loads(render(ingest(wheel))))
    versions = build_versions([*load_versions().tables, table])
    assert versions.newest.version == "0.40.0"
    assert versions.resolve("0.40.0").note is None
    assert table.knows_flag("--attention-config.mla_prefill_backend")
    assert not table.knows_flag("--linear-backend")


def test_writing_then_checking_finds_no_difference_and_checking_finds_one(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = tmp_path / "data/versions"
    versions.mkdir(parents=True)
    assert main([str(wheel), "--check", "--output", str(versions)]) == 1
    assert main([str(wheel), "--output", str(versions)]) == 0
    assert json.loads((tmp_path / "data/model_classes.json").read_text()) == {"NewForCausalLM": "0.40.0"}
    assert main([str(wheel), "--check", "--output", str(versions)]) == 0
    (versions / "0.40.0.json").write_text("{}")
    assert main([str(wheel), "--check", "--output", str(versions)]) == 1
    assert "differs from what is committed" in capsys.readouterr().out


def test_a_file_that_is_no_vllm_wheel_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other-1.dist-info/METADATA", "Name: other\nVersion: 1\n")
    with pytest.raises(SystemExit, match="is this a vLLM wheel"):
        ingest(path)


@pytest.mark.parametrize("version", ["../../../../tmp/mine", "", "latest", "0.40.0/x"])
def test_a_version_that_is_none_becomes_no_file(version: str, tmp_path: Path) -> None:
    path = tmp_path / "vllm.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text.replace("0.40.0+cu141", version) if name.endswith("METADATA") else text)
    with pytest.raises(SystemExit, match="has no version that can be read"):
        ingest(path)
