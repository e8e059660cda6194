"""The form of an artifact: what is packed, byte for byte the same, with the labels that GKM and KServe read; and back."""

import gzip
import io
import json
import os
import tarfile
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.artifacts import EXCLUDED, FILES, FOLDERS, GRAPH, MODEL, fill, pack_all, unpack
from support.registries import manifest_of
from vllm_operator.tools.artifact import ArtifactError, portability_key
from vllm_operator.tools.pack import take_inventory

LEFT_OUT = {name for name in FILES if name.endswith(("cache_key_factors.json", ".lock")) or name.startswith("outlines")}


def layer_of(root: Path, **options: str) -> bytes:
    file = io.BytesIO()
    pack_all(root, file, **options)  # type: ignore[arg-type]  # only texts are given
    return file.getvalue()


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_what_was_packed_is_unpacked_without_what_must_not_travel(tmp_path: Path) -> None:
    unpack(layer_of(fill(tmp_path / "root")), tmp_path / "staging")
    assert files_of(tmp_path / "staging") == {name: content for name, content in FILES.items() if name not in LEFT_OUT}


def test_equal_files_give_equal_bytes_whoever_owns_them_and_in_whatever_order_they_were_written(tmp_path: Path) -> None:
    one, other = fill(tmp_path / "one"), fill(tmp_path / "other", dict(reversed(FILES.items())))
    for root, fraction in ((one, 0), (other, 999_999_999)):
        for path in (*root.rglob("*"), root):
            os.utime(path, ns=(0, 1_700_000_000 * 10**9 + fraction))
    for path in other.rglob("*.so"):
        path.chmod(0o640)
    assert layer_of(one) == layer_of(other)
    assert pack_all(one) == pack_all(other)


def test_times_are_rounded_down_and_restored(tmp_path: Path) -> None:
    root = fill(tmp_path / "root")
    os.utime(root / GRAPH, ns=(0, 1_700_000_001_999_999_999))
    unpack(layer_of(root), tmp_path / "staging")
    assert (tmp_path / "staging" / GRAPH).stat().st_mtime_ns == 1_700_000_001 * 10**9


def test_links_and_everything_that_is_no_file_stay_behind(tmp_path: Path) -> None:
    root = fill(tmp_path / "root")
    (tmp_path / "secret").write_text("of somebody else")
    (root / "triton" / "link").symlink_to(tmp_path / "secret")
    (root / "triton" / "folder").symlink_to(tmp_path)
    os.mkfifo(root / "triton" / "fifo")
    (root / "flashinfer2").symlink_to(tmp_path)
    names = {entry.path for entry in take_inventory(str(root), [*FOLDERS, "flashinfer2", "absent"], ()) if not entry.is_folder}
    assert names == {name for name in FILES if not name.startswith("outlines")}


def test_bytecode_of_modules_that_are_named_like_rubbish_is_kept(tmp_path: Path) -> None:
    """On an H200, 2,868 of 7,156 files were lost in this way, because the packages lay below /tmp, and the start took 4 s longer."""
    for folder in ("triton", "bytecode"):
        for name in ("tmp/site/module.pyc", "usr/lib/lock/__init__.pyc", "usr/lib/kept.pyc"):
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"code")
    found = take_inventory(str(tmp_path), ["bytecode", "triton"], ("tmp", "lock"), ("bytecode",))
    names = {entry.path for entry in found if not entry.is_folder}
    assert names == {
        "bytecode/tmp/site/module.pyc",
        "bytecode/usr/lib/lock/__init__.pyc",
        "bytecode/usr/lib/kept.pyc",
        "triton/usr/lib/kept.pyc",
    }


def test_the_labels_are_those_of_gkm_and_kserve(tmp_path: Path) -> None:
    packed = pack_all(fill(tmp_path))
    config = json.loads(packed.config)
    size = sum(len(content) for name, content in FILES.items() if name not in LEFT_OUT)
    assert config["config"]["Labels"] == {
        "cache.vllm.image/cache-size-bytes": str(size),
        "cache.vllm.image/entry-count": "2",
        "cache.vllm.image/format": "aot_compile,binary",
        "cache.vllm.image/summary": '{"targets":[{"backend":"cuda","arch":"sm_90","warp_size":32}]}',
        "io.kserve.km/cache-hash": f"{'ab' * 32},0123456789",
        "io.kserve.km/cache-mount-subpath": "torch_compile_cache/torch_aot_compile",
        "io.kserve.km/cache-mounts": "[]",
        "io.kserve.km/cache-root-env": "VLLM_CACHE_ROOT=/cache/vllm",
        "io.kserve.km/cache-type": "torch-compile",
        "io.kserve.km/framework": "vllm",
        "io.kserve.km/split-cache-capture": "true",
        "vllm-operator.dev/base": "base",
        "vllm-operator.dev/format": "1",
        "vllm-operator.dev/tag": "base-s",
    }
    assert (config["architecture"], config["os"], len(config["rootfs"]["diff_ids"])) == ("amd64", "linux", 1)
    (layer,) = json.loads(manifest_of(packed))["layers"]
    assert layer["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"
    assert b"VLLM_API_KEY" not in packed.config + manifest_of(packed)


def test_a_reader_of_gkm_finds_its_folders_and_an_index_without_environment(tmp_path: Path) -> None:
    """As `extractCacheAndManifestDirectory` of GKM reads: by prefix, regular files and directories."""
    with tarfile.open(fileobj=io.BytesIO(layer_of(fill(tmp_path)))) as tar:
        names = {member.name for member in tar if member.isreg()}
        index = tar.extractfile("io.vllm.manifest/manifest.json")
        assert index is not None
        entries = json.load(index)["vllm"]
        size = sum(member.size for member in tar if member.isreg() and member.name.startswith("io.vllm.cache"))
        assert {(member.uid, member.gid, member.uname) for member in tar} == {(0, 0, "")}
    assert f"io.vllm.cache/{GRAPH.removeprefix('vllm/')}" in names
    assert "io.vllm.cache/vllm-operator/triton/AAAA/kernel.json" in names
    assert all(name.startswith(("io.vllm.cache/", "io.vllm.manifest/manifest.json")) for name in names)
    assert str(size) == json.loads(pack_all(tmp_path).config)["config"]["Labels"]["cache.vllm.image/cache-size-bytes"]
    assert [(entry["vllmHash"], entry["cacheFormat"]) for entry in entries] == [("ab" * 32, "aot_compile"), ("0123456789", "binary")]
    assert entries[0]["aot_compile"] == [
        {"hash": "ab" * 32, "rank": "rank_0_0", "model_file": "model", "file_size": len(FILES[MODEL])},
    ]
    assert "env" not in entries[1]["binary"][0]


@pytest.mark.parametrize("at", [0, 2**20 - 3, 3 * 2**20], ids=["at the start", "across two reads", "at the end"])
def test_a_value_of_a_secret_in_a_file_stops_it(tmp_path: Path, at: int) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "kernel").write_bytes(b"\0" * at + b"correct horse" + b"\0" * 10)
    with pytest.raises(ArtifactError, match=r"triton/kernel contains a secret") as caught:
        pack_all(tmp_path, secrets=(b"correct horse",))
    assert caught.value.reason == "SecretsFound"
    assert pack_all(tmp_path, secrets=(b"another value",)).files == 1


def test_what_looks_like_a_token_stops_it_except_in_bytecode(tmp_path: Path) -> None:
    token = b"x = 'hf_" + b"a1B2" * 8 + b"Zz' "
    fill(tmp_path, {"bytecode/example.pyc": token})
    assert pack_all(tmp_path).files == 1
    fill(tmp_path, {"vllm/modelinfos/model.json": token})
    with pytest.raises(ArtifactError, match="form of a token"):
        pack_all(tmp_path)


def test_a_file_that_changes_while_it_is_packed_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path)
    inventory = take_inventory(str(tmp_path), FOLDERS, ())
    (tmp_path / GRAPH).write_bytes(b"another one")
    assert take_inventory(str(tmp_path), FOLDERS, ()) != inventory


def test_a_directory_without_caches_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    with pytest.raises(ArtifactError) as caught:
        pack_all(tmp_path)
    assert caught.value.reason == "Empty"


def test_the_key_of_another_build_or_gpu_has_another_base_and_that_of_another_model_another_tag() -> None:
    parts = {"product": "H200"}

    def key_of(readable: str, parts: dict[str, str], settings: str, fingerprint: str) -> tuple[str, str]:
        return portability_key({"readable": readable, "parts": parts, "settings": settings}, fingerprint)

    base, tag = key_of("v0.20.1-sm90", parts, "a" * 64, "fingerprint")
    assert tag == f"{base}-{'a' * 12}"
    assert base.startswith("v0.20.1-sm90-")
    assert key_of("v0.20.1-sm90", parts, "b" * 64, "fingerprint")[0] == base
    assert key_of("v0.20.1-sm90", parts, "a" * 64, "another")[0] != base
    assert key_of("v0.20.1-sm90", {"product": "H100"}, "a" * 64, "fingerprint")[0] != base
    assert len(key_of("v" * 300, parts, "a" * 64, "f")[1]) <= 128


# printable characters, of up to four bytes each: names of up to 192 bytes; none that is left out (Hypothesis tries constants of the code)
NAMES = st.text(
    st.characters(codec="utf-8", include_characters=" ", exclude_characters="/\\", exclude_categories=("C", "Z")), min_size=1, max_size=48
).filter(lambda name: name not in (".", "..") and not any(fnmatchcase(name, pattern) for pattern in EXCLUDED))
TREES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=4).map("/".join), st.binary(max_size=2000), min_size=1, max_size=8)


@given(TREES, st.integers(0, 2**33 - 1))
def test_any_tree_comes_back_as_it_was(tree: dict[str, bytes], seconds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, staging = Path(folder) / "root", Path(folder) / "staging"
        for number, (name, content) in enumerate(tree.items()):
            path = root / FOLDERS[number % len(FOLDERS)] / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except OSError:  # a file where another one needs a directory
                continue
            os.utime(path, (seconds, seconds))
        content = layer_of(root)
        count, size = unpack(content, staging)
        files = files_of(root)
        assert files_of(staging) == files
        assert (count, size) == (len(files), sum(map(len, files.values())))
        for name in files:
            assert (staging / name).stat().st_mtime == (root / name).stat().st_mtime
        assert gzip.compress(gzip.decompress(content))  # an ordinary gzip file
