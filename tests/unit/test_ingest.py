"""The table of a version or of any other build of vLLM is read as text, from a wheel or an image, and plans follow from it."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ingest_vllm import main, render
from vllm_operator.__main__ import main as command_line
from vllm_operator.catalog.entry import parse_entry
from vllm_operator.catalog.versions import VersionTable, build_versions, load_versions
from vllm_operator.tools.vllm_build import read_table

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
    assert read_table(str(tmp_path / "unpacked")) == read_table(str(wheel))


def test_everything_that_planning_needs_is_read(wheel: Path) -> None:
    content = read_table(str(wheel))
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
    table = parse_entry(VersionTable, json.loads(render(read_table(str(wheel)))))
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
    with pytest.raises(ValueError, match="is this a vLLM wheel"):
        read_table(str(path))


@pytest.mark.parametrize("version", ["../../../../tmp/mine", "", "latest", "0.40.0/x"])
def test_a_version_that_is_none_becomes_no_file(version: str, tmp_path: Path) -> None:
    path = tmp_path / "vllm.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text.replace("0.40.0+cu141", version) if name.endswith("METADATA") else text)
    with pytest.raises(ValueError, match="has no version that can be read"):
        read_table(str(path))


def write(folder: Path, **changes: str) -> Path:
    for name, text in {**FILES, **changes}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_nightly_in_an_image_is_read_by_another_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metadata = {"vllm-0.40.0.dist-info/METADATA": FILES["vllm-0.40.0.dist-info/METADATA"].replace("0.40.0+cu141", "0.33.1.dev7+gabc")}
    folder = write(tmp_path / "image/usr/local/lib/python3.12/dist-packages", **metadata)
    assert command_line(["catalog", "ingest", str(tmp_path / "image")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed, printed["version"]) == (read_table(str(folder)), "0.33.1.dev7")


HUGE = "x = '" + "a" * 3_000_000 + "'"
CHAIN = "A0 = Literal['a', 'b']\n" + "".join(f"A{n + 1} = Union[A{n}, A{n}]\n" for n in range(60))
COSTS_ITSELF = {
    "too large": HUGE,
    "nested too deeply": "x = " + "(" * 5000 + ")" * 5000,
    "a long chain of operators": "x = " + "-" * 100_000 + "1",
    "a long chain of calls": "x = f" + "()" * 20_000,
    "values that grow exponentially": CHAIN,
    "a zero byte": "MoEBackend = Literal['a']\0",
    "no Python": "this is } no Python",
}


@pytest.mark.parametrize("text", COSTS_ITSELF.values(), ids=COSTS_ITSELF)
def test_a_hostile_file_costs_itself(text: str, wheel: Path, tmp_path: Path) -> None:
    usual = read_table(str(wheel))
    hostile = {"vllm/config/kernel.py": text}
    found = read_table(str(write(tmp_path / "folder", **hostile)))
    assert found == {
        **usual,
        "backends": {kind: names for kind, names in usual["backends"].items() if kind != "moe"},
        "configs": {"attention-config": usual["configs"]["attention-config"]},
    }
    with zipfile.ZipFile(tmp_path / "bomb.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**FILES, **hostile}.items():
            archive.writestr(name, content)
    assert read_table(str(tmp_path / "bomb.whl")) == found


def link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


@pytest.mark.parametrize("replace_by", [link, os.mkfifo, Path.mkdir], ids=["link out of the folder", "pipe", "folder"])
def test_only_files_of_the_folder_are_read(replace_by: Callable[[Path], None], tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "vllm/envs.py").unlink()
    replace_by(folder / "vllm/envs.py")
    with pytest.raises(ValueError, match="is this a vLLM wheel"):
        read_table(str(folder))


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"PK\x05\x06" + b"\xff" * 18, bytes(range(64))],
    ids=["empty", "only a beginning", "a wrong end", "something else"],
)
def test_a_file_that_is_no_wheel_is_refused_in_words(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.whl").write_bytes(content)
    assert command_line(["catalog", "ingest", str(tmp_path / "bad.whl")]) == 2
    assert "is no wheel of vLLM" in capsys.readouterr().err
