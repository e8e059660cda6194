"""Archives that somebody else has made: none writes outside of its folder, and of none that is refused anything is installed."""

import contextlib
import gzip
import io
import json
import os
import random
import tarfile
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.artifacts import archive, header, unpack
from support.registries import TAG, ArtifactBench, FakeRegistry, image_of
from vllm_operator.tools.artifact import ArtifactError, opened_root, sha256_of
from vllm_operator.tools.fetch import unpack_layer
from vllm_operator.tools.pack import Packed

TOP = header("io.vllm.cache", tarfile.DIRTYPE)
GOOD = ("io.vllm.cache/kernel", b"good")
LINK = header("io.vllm.cache/link", tarfile.SYMTYPE, link="/")
FOLDER = header("io.vllm.cache/a", tarfile.DIRTYPE)


def raw(name: bytes, *, size: bytes = b"00000000000\0", kind: bytes = b"0", magic: bytes = b"ustar  \0") -> bytes:
    """A block with a valid checksum and any content."""
    block = bytearray(512)
    block[:100] = name.ljust(100, b"\0")[:100]
    block[100:108], block[124:136], block[136:148], block[156:157], block[257:265] = b"0000644\0", size, b"00000000000\0", kind, magic
    block[148:156] = b"%06o\0 " % (sum(block) + 8 * 32)
    return bytes(block)


def blocks(*parts: bytes) -> bytes:
    return gzip.compress(b"".join(parts) + bytes(1024), mtime=0)


HOSTILE = {
    "an absolute path": archive(TOP, ("/etc/passwd", b"x")),
    "an absolute path below the root": archive(TOP, ("/io.vllm.cache/x", b"x")),
    "a path upwards": archive(TOP, ("io.vllm.cache/../../x", b"x")),
    "a path upwards into another folder": archive(TOP, ("io.vllm.cache/vllm-operator/triton/../../../x", b"x")),
    "a path to itself": archive(TOP, ("io.vllm.cache/./x", b"x")),
    "an empty part": archive(TOP, ("io.vllm.cache//x", b"x")),
    "a folder that is not one of the caches": archive(TOP, ("io.vllm.cache/vllm-operator/.ssh/authorized_keys", b"x")),
    "a file in place of a folder of the caches": archive(TOP, ("io.vllm.cache/vllm-operator/triton", b"x")),
    "a file beside the caches": archive(TOP, ("bin/sh", b"x")),
    "a name that begins as the folder does": archive(TOP, ("io.vllm.cachex/x", b"x")),
    "a symbolic link": archive(TOP, LINK),
    "a file below a symbolic link": archive(TOP, LINK, ("io.vllm.cache/link/tmp/x", b"x")),
    "a hard link": archive(TOP, GOOD, header("io.vllm.cache/hard", tarfile.LNKTYPE, link="/etc/passwd")),
    "a character device": archive(TOP, header("io.vllm.cache/null", tarfile.CHRTYPE)),
    "a block device": archive(TOP, header("io.vllm.cache/sda", tarfile.BLKTYPE)),
    "a fifo": archive(TOP, header("io.vllm.cache/fifo", tarfile.FIFOTYPE)),
    "a sparse file": archive(TOP, header("io.vllm.cache/sparse", tarfile.GNUTYPE_SPARSE)),
    "an extended header that renames the next entry": archive(TOP, ("io.vllm.cache/" + "n" * 300, b"x"), format=tarfile.PAX_FORMAT),
    "a file twice": archive(TOP, GOOD, GOOD),
    "a file and a directory of one name": archive(TOP, ("io.vllm.cache/a", b"x"), FOLDER, ("io.vllm.cache/a/b", b"x")),
    "a file below a file": archive(TOP, GOOD, ("io.vllm.cache/kernel/x", b"x")),
    "a file without its directory": archive(TOP, ("io.vllm.cache/a/b", b"x")),
    "a depth without end": archive(TOP, ("io.vllm.cache/" + "/".join("d" * 100), b"x")),
    "a long name": archive(TOP, ("io.vllm.cache/" + "n" * 2000, b"x")),
    "a part that no file system takes": archive(TOP, ("io.vllm.cache/" + "n" * 256, b"x")),
    "a control character": archive(TOP, ("io.vllm.cache/a\nb", b"x")),
    "a name that is not UTF-8": blocks(raw(b"io.vllm.cache/\xff\xfe")),
    "a name of gibibytes": blocks(raw(b"././@LongLink", size=b"77777777777\0", kind=b"L")),
    "two long names in a row": blocks(*[raw(b"././@LongLink", size=b"00000000001\0", kind=b"L") + bytes(512)] * 2),
    "a size in base 256": blocks(raw(b"io.vllm.cache/x", size=b"\x80" + b"\xff" * 11)),
    "a negative size": blocks(raw(b"io.vllm.cache/x", size=b"-0000000001\0")),
    "a directory with content": blocks(raw(b"io.vllm.cache/a", size=b"00000001000\0", kind=b"5"), bytes(512)),
    "no magic": blocks(raw(b"io.vllm.cache/x", magic=bytes(8))),
    "a wrong checksum": blocks(raw(b"io.vllm.cache/x").replace(b"0000644", b"0000777")),
    "a file longer than the archive": blocks(raw(b"io.vllm.cache/x", size=b"00000100000\0")),
    "something after the end": blocks(raw(b"io.vllm.cache/x"), bytes(1024), raw(b"io.vllm.cache/y")),
    "no end": gzip.compress(raw(b"io.vllm.cache/x")),
    "a second gzip member": archive(TOP, GOOD) + archive(TOP, GOOD),
    "bytes after the gzip file": archive(TOP, GOOD) + b"more",
    "no gzip file": b"\0" * 4096,
    "nothing": b"",
    "half of a gzip file": archive(TOP, ("io.vllm.cache/random", random.Random(1).randbytes(100_000)))[:50_000],
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_it_is_refused_and_nothing_is_outside_of_its_folder(tmp_path: Path, content: bytes) -> None:
    staging = tmp_path / "volume" / "staging"
    staging.mkdir(parents=True)
    with pytest.raises((ArtifactError, FileExistsError, NotADirectoryError)) as caught:
        unpack(content, staging)
    if isinstance(caught.value, ArtifactError):
        assert caught.value.reason in ("Rejected", "TooLarge")
    assert [path.name for path in tmp_path.iterdir()] == ["volume"]
    assert [path.name for path in (tmp_path / "volume").iterdir()] == ["staging"]
    assert not [path for path in staging.rglob("*") if path.is_symlink() or not (path.is_file() or path.is_dir())]


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_start_that_fetches_it_is_cold_and_nothing_is_left_on_the_volume(
    artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry, content: bytes
) -> None:
    plain = packed.layer_digest
    with contextlib.suppress(EOFError, OSError, zlib.error):
        plain = sha256_of(gzip.decompress(content))
    labels = json.loads(packed.config)["config"]["Labels"]
    layer = (sha256_of(content), len(content), plain)
    config, manifest = image_of(labels, layer=layer)
    registry.blobs |= {sha256_of(content): content, sha256_of(config): config}
    registry.manifests[TAG] = manifest
    status, result = artifact_bench.fetch()
    assert (status, result["result"]) == (0, "Rejected"), result
    assert artifact_bench.left() == {".vllm-operator-key"}


def test_a_good_archive_is_unpacked(tmp_path: Path) -> None:
    assert unpack(archive(TOP, GOOD), tmp_path) == (1, 4)
    assert (tmp_path / "vllm" / "kernel").read_bytes() == b"good"


@pytest.mark.parametrize(("option", "value"), [("digest", "sha256:" + "0" * 64), ("plain", "sha256:" + "0" * 64), ("size", 10)])
def test_other_content_than_the_manifest_says_is_refused(tmp_path: Path, option: str, value: object) -> None:
    with pytest.raises(ArtifactError) as caught:
        unpack(archive(TOP, GOOD), tmp_path, **{option: value})  # type: ignore[arg-type]  # each has its type
    assert caught.value.reason == "Rejected"


def test_a_bomb_is_stopped_long_before_its_end(tmp_path: Path) -> None:
    bomb = archive(TOP, ("io.vllm.cache/zeros", bytes(80 * 2**20)))
    assert len(bomb) < 2**20
    with pytest.raises(ArtifactError) as caught:
        unpack(bomb, tmp_path)
    assert caught.value.reason == "TooLarge"
    assert (tmp_path / "vllm" / "zeros").stat().st_size < 70 * 2**20


def test_more_bytes_than_allowed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as caught:
        unpack(archive(TOP, ("io.vllm.cache/x", bytes(2000))), tmp_path, max_bytes=1000)
    assert caught.value.reason == "TooLarge"


def test_more_entries_than_allowed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_operator.tools.artifact.MAX_FILES", 10)
    with pytest.raises(ArtifactError) as caught:
        unpack(archive(TOP, *[(f"io.vllm.cache/{number}", b"") for number in range(11)]), tmp_path)
    assert caught.value.reason == "TooLarge"


@given(st.binary(max_size=3000))
def test_any_bytes_are_refused_or_unpacked_in_place(content: bytes) -> None:
    _try(gzip.compress(content, mtime=0))


@given(st.data())
def test_any_changed_archive_is_refused_or_unpacked_in_place(data: st.DataObject) -> None:
    plain = bytearray(gzip.decompress(archive(TOP, FOLDER, GOOD, ("io.vllm.cache/a/b", b"x" * 700))))
    for _ in range(data.draw(st.integers(1, 4))):
        plain[data.draw(st.integers(0, 4096 - 1))] = data.draw(st.integers(0, 255))
    # with a right checksum, so that more than this is tried
    at = data.draw(st.sampled_from([0, 512, 1024, 2048]))
    plain[at + 148 : at + 156] = b" " * 8
    plain[at + 148 : at + 156] = b"%06o\0 " % sum(plain[at : at + 512])
    _try(gzip.compress(bytes(plain), mtime=0))


def _try(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        staging = Path(folder) / "staging"
        staging.mkdir()
        with contextlib.suppress(ArtifactError, FileExistsError, NotADirectoryError):
            unpack(content, staging)
        assert os.listdir(folder) == ["staging"]
        assert not [path for path in staging.rglob("*") if path.is_symlink()]


def test_a_source_that_never_ends_is_read_no_further_than_the_manifest_says(tmp_path: Path) -> None:
    class Endless(io.RawIOBase):
        count = 0

        def read(self, size: int = -1) -> bytes:
            self.count += size
            return random.Random(self.count).randbytes(size)

    source = Endless()
    with opened_root(str(tmp_path)) as staging, pytest.raises(ArtifactError):
        unpack_layer(source, staging, {"vllm"}, digest="", plain_digest="", size=1000)
    assert source.count < 2**20
