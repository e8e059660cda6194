"""The table of a version or of any other build of vLLM is read as text, from a wheel or an image, and plans follow from it."""

import base64
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest_vllm import main, render
from support.builds import pack
from support.gpus import inventory_of, real_node
from support.plans import deployment, known, made
from support.wheels import FILES, VERSION, write_wheel
from vllm_operator.__main__ import main as command_line
from vllm_operator.api.labels import API_VERSION, KIND
from vllm_operator.catalog import builds
from vllm_operator.catalog.builds import MARK, PACKED_LIMIT, TABLE_LIMIT, find_packed
from vllm_operator.catalog.entry import EntryError, parse_entry
from vllm_operator.catalog.notes import note
from vllm_operator.catalog.versions import VersionTable, build_versions, load_versions, parse_release
from vllm_operator.planning.planner import plan
from vllm_operator.tools.vllm_build import read_table


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return write_wheel(tmp_path / "vllm-0.40.0-cp38-abi3-manylinux_2_28_x86_64.whl")


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
    wheel = write_wheel(tmp_path / "vllm.whl", version)
    with pytest.raises(ValueError, match="has no version that can be read"):
        read_table(str(wheel))


def write(folder: Path, **changes: str) -> Path:
    for name, text in {**FILES, **changes}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_nightly_in_an_image_is_planned_by_its_own_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metadata = {"vllm-0.40.0.dist-info/METADATA": FILES["vllm-0.40.0.dist-info/METADATA"].replace(VERSION, "0.33.1.dev7+gabc")}
    write(tmp_path / "image/usr/local/lib/python3.12/dist-packages", **metadata)
    assert command_line(["catalog", "ingest", str(tmp_path / "image")]) == 0
    (tmp_path / "table.json").write_text(capsys.readouterr().out)
    engine = {"image": "registry.example/vllm:nightly", "args": [{"name": "--max-model-len", "value": "4096"}]}
    nightly = {"metadata": {"name": "demo"}, "spec": {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "engine": engine}}
    (tmp_path / "model.yaml").write_text(json.dumps({"apiVersion": API_VERSION, "kind": KIND, **nightly}))
    (tmp_path / "nodes.yaml").write_text(json.dumps({"kind": "NodeList", "items": [real_node("h200")]}))
    files = ["-f", str(tmp_path / "model.yaml"), "--nodes", str(tmp_path / "nodes.yaml"), "-o", "json"]
    assert command_line(["plan", *files]) == 1
    assert json.loads(capsys.readouterr().out)["result"]["reason"] == "VersionUnknown"
    assert command_line(["plan", *files, "--version-table", str(tmp_path / "table.json")]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["engineVersion"] == "0.33.1.dev7"
    assert "vLLM 0.33.0 does not know the flag --max-model-len" in plan["notes"][0], "no flag that the image lacks is taken for known"
    assert any("were read from the image, which contains vLLM 0.33.1.dev7. Rules are those for vLLM 0.33.0." in it for it in plan["notes"])
    arguments = ["fit", "Qwen/Qwen3-8B", "--gpu", "H100", "-o", "json", "--version-table", str(tmp_path / "table.json")]
    assert command_line(arguments) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "0.33.1.dev7"


@pytest.mark.parametrize(
    ("version", "like", "planned", "counted"),
    [
        ("0.33.0", "0.33.0", "0.33.0", "0.33.0"),
        ("0.33.1.dev345", "0.33.0", "0.33.1.dev345", "0.33.0"),
        ("0.34.0rc1.dev3", "0.33.0", "0.34.0rc1.dev3", "0.33.0"),
        ("0.20.1.post1", "0.20.1", "0.20.1.post1", "0.20.1"),
        ("0.35.0", "0.33.0", "0.35.0", "0.35.0"),
        ("0.1.dev1", "0.24.0", "0.24.0", "0.24.0"),
        ("0.0.0", "0.17.1", "0.17.1", "0.17.1"),
        ("1.3.1", "0.24.0", "0.24.0", "0.24.0"),
    ],
)
def test_rules_count_a_build_as_the_release_that_it_was_made_after_or_is_most_like(
    version: str, like: str, planned: str, counted: str
) -> None:
    table = next(table for table in known().versions.tables if table.version == like)
    written = {**table.model_dump(mode="json", by_alias=True, exclude_none=True), "version": version}
    versions = replace(known().versions, build=parse_entry(VersionTable, written))
    assert versions.built == planned
    found = versions.resolve(planned).table
    assert found is not None
    assert (found.version, found.release, found.flags) == (counted, parse_release(counted), table.flags)


def test_the_plan_of_a_known_release_is_the_same_with_the_table_that_was_read() -> None:
    versions = replace(known().versions, build=known().versions.resolve("0.20.1").table)
    usual = made(deployment(), real_node("h200"))
    read = plan(deployment(), inventory_of(real_node("h200")), replace(known(), versions=versions)).plan
    assert read is not None
    assert [note for note in read.notes if note not in usual.notes] == [note("version.read", build="0.20.1", version="0.20.1").text]
    assert (read.env, read.args, read.backends, read.cache_key) == (usual.env, usual.args, usual.backends, usual.cache_key)


@pytest.mark.parametrize(
    ("module", "cls"),
    [
        ("vllm/platforms/interface.py", "_Backend"),
        ("vllm/attention/backends/registry.py", "_Backend"),
        ("vllm/attention/backends/registry.py", "AttentionBackendEnum"),
    ],
)
def test_backends_are_read_where_older_releases_have_them(module: str, cls: str, tmp_path: Path) -> None:
    older = {
        "vllm/v1/attention/backends/registry.py": "",
        module: f"class {cls}(enum.Enum):\n    FLASH_ATTN = enum.auto()\n    PALLAS = enum.auto()\n",
        "vllm/config/parallel.py": 'class ParallelConfig:\n    all2all_backend: Literal["naive", "pplx"] | None = None\n',
    }
    backends = read_table(str(write(tmp_path, **older)))["backends"]
    assert (backends["attention"], backends["all2all"]) == (["FLASH_ATTN"], ["naive", "pplx"])


PAIRED = {
    "vllm/engine/arg_utils.py": """
group.add_argument("--enable-lora", **kwargs["enable_lora"])
group.add_argument("--disable-cascade-attn", action=argparse.BooleanOptionalAction)
group.add_argument("--disable-log-stats", action="store_true")
""",
    "vllm/entrypoints/openai/cli_args.py": """
class FrontendArgs:
    enable_offline_docs: bool = False
    disable_access_log_for_endpoints: str | None = None
""",
}


def test_a_parser_that_pairs_flags_knows_the_opposite_of_each_flag_for_a_bool(tmp_path: Path) -> None:
    parser = {"vllm/utils/argparse_utils.py": "class EnableDisableAction(BooleanOptionalAction): pass"}
    assert read_table(str(write(tmp_path / "paired", **PAIRED, **parser)))["flags"] == {
        "--disable-access-log-for-endpoints": [],
        "--disable-cascade-attn": ["--enable-cascade-attn"],
        "--disable-log-stats": [],
        "--enable-lora": ["--disable-lora"],
        "--enable-offline-docs": ["--disable-offline-docs"],
    }
    assert set(map(len, read_table(str(write(tmp_path / "before", **PAIRED)))["flags"].values())) == {0}


PACKAGES = "usr/local/lib/python3.12/dist-packages"
OTHER = {"vllm/envs.py": FILES["vllm/envs.py"] + "\n"}
METADATA = "vllm-0.40.0.dist-info/METADATA"


def installed(folder: Path, prefix: str, packages: str = "lib/python3.12/site-packages", **changes: str) -> Path:
    """A build as an installer leaves it in an environment, with the command `vllm`."""
    script(folder / prefix)
    return write(folder / prefix / packages, **changes)


def script(environment: Path) -> int:
    (environment / "bin").mkdir(parents=True)
    return (environment / "bin/vllm").write_text("#!/usr/bin/python3\n")


def checked_out(folder: Path) -> Path:
    """A source tree that an editable install uses; its version is in a module, and its metadata elsewhere."""
    write(folder, **{"vllm/_version.py": "__version__ = version = '0.40.0'\n"})
    (folder / METADATA).unlink()
    return folder


LAYOUTS: dict[str, Callable[[Path], object]] = {
    "the root environment": lambda root: installed(root, "usr/local", "lib/python3.12/dist-packages"),
    "an environment of an application": lambda root: installed(root, "app/.venv"),
    "another build without a command beside it": lambda root: (installed(root, "opt/venv"), write(root / "opt/vllm", **OTHER)),
    "the same build twice": lambda root: (write(root / PACKAGES), write(root / "opt/copy")),
    "an editable install": lambda root: (script(root / "opt/venv"), checked_out(root / "src/vllm")),
    "a part of vLLM in another package": lambda root: (write(root / PACKAGES), vendored(root / PACKAGES / "other/_vendor")),
}


def vendored(folder: Path) -> int:
    (folder / "vllm").mkdir(parents=True)
    return (folder / "vllm/envs.py").write_text("environment_variables = {'VLLM_OF_ANOTHER_TIME': 1}\n")


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_vllm_is_found_where_images_have_it(make: Callable[[Path], object], wheel: Path, tmp_path: Path) -> None:
    make(tmp_path / "image")
    found, usual = read_table(str(tmp_path / "image")), read_table(str(wheel))
    assert {**found, "bundle": {}} == {**usual, "bundle": {}}


def test_the_package_itself_may_be_named(tmp_path: Path) -> None:
    assert read_table(f"{write(tmp_path)}/vllm/")["version"] == "0.40.0"


def test_two_different_builds_are_named_instead_of_guessing(tmp_path: Path) -> None:
    installed(tmp_path, "opt/one")
    installed(tmp_path, "opt/two", **OTHER)
    with pytest.raises(ValueError, match=r"several different builds of vLLM: .*opt/one/.*, .*opt/two/"):
        read_table(str(tmp_path))


def test_files_may_be_links_within_the_image_as_uv_makes_them(tmp_path: Path) -> None:
    store = write(tmp_path / "root/.cache/uv/archive-v0/a1")
    for path in [path for path in store.rglob("*") if path.is_file()]:
        place = tmp_path / PACKAGES / path.relative_to(store)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path)
    assert read_table(str(tmp_path))["version"] == "0.40.0"


def test_folders_that_may_not_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(top: str, onerror: Callable[[OSError], None]) -> list[tuple[str, list[str], list[str]]]:
        onerror(PermissionError(13, "Permission denied", f"{top}/root"))
        return [(top, [], [])]

    monkeypatch.setattr(os, "walk", walk)
    with pytest.raises(ValueError, match=r"contains no vLLM.* may not read .*/root\."):
        read_table(str(tmp_path))


def test_a_build_whose_engine_flags_cannot_be_read_has_no_table(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no vllm/engine/arg_utils\.py with flags"):
        read_table(str(write(tmp_path, **{"vllm/engine/arg_utils.py": "this is } no Python"})))


def test_metadata_is_that_of_the_package_which_contains_vllm(tmp_path: Path) -> None:
    of_plugin = {"vllm_plugin-0.9.dist-info/METADATA": "Name: vllm-plugin\nVersion: 0.9\n", "vllm_plugin-0.9.dist-info/RECORD": "x.py,,\n"}
    own = {
        "acme_llm-0.40.0.dist-info/METADATA": FILES[METADATA],
        "acme_llm-0.40.0.dist-info/RECORD": "vllm/__init__.py,,\nvllm/envs.py,,\n",
    }
    renamed = write(tmp_path / "renamed", **of_plugin, **own)
    shutil.rmtree((renamed / METADATA).parent)
    assert read_table(str(renamed)) == read_table(str(write(tmp_path / "usual")))
    left = {"vllm-0.9.2.dist-info/METADATA": "Name: vllm\nVersion: 0.9.2\n", "vllm/_version.py": f"__version__ = version = '{VERSION}'\n"}
    assert read_table(str(write(tmp_path / "with remains", **left)))["version"] == "0.40.0"


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


VALID = known().versions.newest.model_dump(mode="json", by_alias=True, exclude_none=True)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {**VALID, "version": "latest"},
        {**VALID, "more": 1},
        {**VALID, "flags": {"--a\nb": []}},
        {**VALID, "flags": {"--" + "a" * 600: []}},
        {**VALID, "variables": {"VLLM_A": {"default": "\x1b[2J"}}},
        {**VALID, "variables": {"VLLM_A": {"default": {}}}},
        {**VALID, "backends": {"moe": "triton"}},
        {**VALID, "flags": {f"--flag-{number}": [] for number in range(TABLE_LIMIT // 8)}},
    ],
)
def test_a_table_with_anything_else_is_refused(content: Any) -> None:
    with pytest.raises(EntryError):
        builds.read_table(builds.unpack(pack(content)))


@given(
    st.text()
    | st.binary().map(lambda data: base64.b64encode(data).decode())
    | st.binary().map(zlib.compress).map(base64.b64encode).map(bytes.decode)
)
def test_any_output_of_the_program_is_a_table_or_refused(text: str) -> None:
    for output in (text, f"2026-01-01T00:00:00Z {MARK}{text}\nmore"):
        with pytest.raises(EntryError):
            builds.read_table(builds.unpack(find_packed(output)))


def test_a_table_is_unpacked_up_to_its_limit() -> None:
    for content in (b"[" * TABLE_LIMIT, b"[" * 100_000, b" " * 100_000_000):
        packed = base64.b64encode(zlib.compress(content)).decode()
        with pytest.raises(EntryError):
            builds.read_table(builds.unpack(find_packed(MARK + packed)))
    with pytest.raises(EntryError, match="wrote no table"):
        find_packed(MARK + "a" * (PACKED_LIMIT + 1))
