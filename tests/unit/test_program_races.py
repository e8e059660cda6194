"""An engine that changes its caches while they are packed or fetched reaches nothing outside of its own directory."""

import ctypes
import gzip
import io
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.artifacts import FOLDERS, fill
from support.registries import ACCOUNT, TAG, ArtifactBench, FakeRegistry
from vllm_operator.tools import fetch, pack
from vllm_operator.tools.artifact import ArtifactError
from vllm_operator.tools.pack import Packed, pack_unchanged

SECRET = b"cHVzaGVyOnMzY3JldA=="
RENAME_EXCHANGE = 2
AT_FDCWD = -100


class Race:
    """A cache directory in which a directory, or a file, is exchanged for a link to a Secret as fast as possible."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.root, outside = folder / "cache", folder / "outside"
        fill(self.root, {"triton/x/key": b"k" * len(SECRET), "vllm/graph": b"graph"})
        fill(outside, {"key": SECRET, "triton/x/key": SECRET})
        self.one = self.root / {"directory": "triton/x", "top": "triton", "file": "triton/x/key"}[kind]
        self.other = self.root / ".link"
        self.other.symlink_to({"directory": outside, "top": outside / "triton", "file": outside / "key"}[kind])
        for path in (self.root, *self.root.rglob("*"), outside, *outside.rglob("*")):
            os.utime(path, ns=(10**18, 10**18), follow_symlinks=False)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Exchange them in a thread. The times of the directory above stay as they are."""
        libc, stops = ctypes.CDLL(None, use_errno=True), threading.Event()
        names = [os.fsencode(path) for path in (self.one, self.other)]
        above = {path.parent for path in (self.one, self.other)}

        def exchange() -> None:
            while not stops.is_set():
                libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)
                for path in above:
                    os.utime(path, ns=(10**18, 10**18))

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        thread = threading.Thread(target=exchange)
        thread.start()
        try:
            yield
        finally:
            stops.set()
            thread.join()
            sys.setswitchinterval(interval)


@pytest.mark.parametrize("attempts", [300, pytest.param(10_000, marks=pytest.mark.extended)])
@pytest.mark.parametrize("kind", ["directory", "top", "file"])
def test_a_link_that_the_engine_exchanges_in_between_is_never_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, attempts: int
) -> None:
    monkeypatch.setattr(pack, "PACK_ATTEMPTS", 1)
    race = Race(tmp_path, kind)
    settings = {"root": str(race.root), "folders": list(FOLDERS), "excluded": [], "whole": [], "architecture": "", "mounts": [], "pause": 0}
    packed = 0
    with race.running():
        for _ in range(attempts):
            layer = io.BytesIO()
            with suppress(ArtifactError):  # Changing
                pack_unchanged(settings, layer, {})
                packed += 1
                assert SECRET not in gzip.decompress(layer.getvalue())
    assert packed, "the race was never missed, so the test says nothing"


def test_a_directory_that_becomes_a_link_when_it_is_listed_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decisive moment of each inventory: after the directory was found, and before it is opened. So all inventories are equal."""
    race, found, away = Race(tmp_path, "directory"), os.stat, tmp_path / "away"

    def stat(path: Any, **options: Any) -> os.stat_result:
        if path == "x" and race.one.is_symlink():
            race.one.rename(race.other)
            away.rename(race.one)
        result = found(path, **options)
        if path == "x":
            race.one.rename(away)
            race.other.rename(race.one)
        os.utime(race.one.parent, ns=(10**18, 10**18))
        os.utime(race.root, ns=(10**18, 10**18))
        return result

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(pack, "PACK_ATTEMPTS", 1)
    settings = {"root": str(race.root), "folders": list(FOLDERS), "excluded": [], "whole": [], "architecture": "", "mounts": [], "pause": 0}
    with pytest.raises(ArtifactError, match="kept changing"):
        pack_unchanged(settings, io.BytesIO(), {})


def test_directories_in_each_other_without_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "/".join(["triton", *["d"] * 200])).mkdir(parents=True)
    settings = {"root": str(tmp_path), "folders": list(FOLDERS), "excluded": [], "whole": [], "architecture": "", "mounts": [], "pause": 0}
    with pytest.raises(ArtifactError) as caught:
        pack_unchanged(settings, io.BytesIO(), {})
    assert caught.value.reason == "TooLarge"


def link_to_the_secret(name: str) -> Callable[[Path, Path], None]:
    def replace(packed: Path, secret: Path) -> None:
        (packed / name).unlink()
        (packed / name).symlink_to(secret)

    return replace


def without_end(packed: Path, _: Path) -> None:
    (packed / "layer").unlink()
    os.mkfifo(packed / "layer")


def text(content: str) -> Callable[[Path, Path], None]:
    def write(packed: Path, _: Path) -> None:
        (packed / "image.json").write_text(content)

    return write


def described(**changes: Any) -> Callable[[Path, Path], None]:
    def change(packed: Path, _: Path) -> None:
        path = packed / "image.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def with_labels(**labels: Any) -> Callable[[Path, Path], None]:
    def change(packed: Path, _: Path) -> None:
        path = packed / "image.json"
        found = json.loads(path.read_text())
        config = json.loads(found["config"])
        config["config"]["Labels"] |= labels
        path.write_text(json.dumps({**found, "config": json.dumps(config)}))

    return change


HOSTILE: dict[str, Callable[[Path, Path], None]] = {
    "a link to the Secret in place of the layer": link_to_the_secret("layer"),
    "a link to the Secret in place of the description": link_to_the_secret("image.json"),
    "a pipe in place of the layer": without_end,
    "no JSON": text("{"),
    "deep JSON": text("[" * 100_000),
    "a large description": text(" " * 3 * 2**20),
    "a number of files that is none": described(files="many"),
    "a configuration that is none": described(config="[]"),
    "the tag of another engine": with_labels(**{"vllm-operator.dev/tag": "another"}),
    "the base of another engine": with_labels(**{"vllm-operator.dev/base": "another"}),
    "a label that is no text": with_labels(x=1),
    "the fingerprint of another image": described(fingerprint="0" * 64),
    "a fingerprint that is none": described(fingerprint=["x"]),
}


@pytest.mark.parametrize("spoil", HOSTILE.values(), ids=HOSTILE)
def test_the_container_with_the_secret_trusts_nothing_that_was_packed(
    artifact_bench: ArtifactBench, registry: FakeRegistry, tmp_path: Path, spoil: Callable[[Path, Path], None]
) -> None:
    registry.account = ACCOUNT
    artifact_bench.log_in()
    assert artifact_bench.pack(fill(tmp_path / "filled"))[0] == 0
    spoil(artifact_bench.packed, tmp_path / "secret" / ".dockerconfigjson")
    status, result = artifact_bench.push(deadline=20)
    assert (status, result["result"]) in ((1, "Rejected"), (1, "Failed")), result
    assert ACCOUNT.removeprefix("Basic ") not in json.dumps(result)
    assert not registry.blobs
    assert TAG not in registry.manifests


def test_what_a_killed_container_has_left_is_packed_again(artifact_bench: ArtifactBench, registry: FakeRegistry, tmp_path: Path) -> None:
    artifact_bench.packed.mkdir()
    for name in ("layer", "image.json", "image.json.part"):
        (artifact_bench.packed / name).write_bytes(b"half of it")
    assert artifact_bench.publish(fill(tmp_path / "filled"))[1]["result"] == "Published"


def test_a_fetch_writes_nothing_through_a_link_that_an_engine_of_another_pod_puts_in_its_way(
    artifact_bench: ArtifactBench, packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two Pods share the directory: one fetches, and the engine of the other exchanges a directory of the staging folder for a link."""
    outside, write = tmp_path / "outside", fetch.write_file

    def exchange(*arguments: Any) -> None:
        (staging,) = artifact_bench.root.glob(f"{fetch.STAGING}*")
        for folder in staging.iterdir():
            if not folder.is_symlink():
                folder.rename(tmp_path / f"away-{folder.name}")
                shutil.copytree(tmp_path / f"away-{folder.name}", outside / folder.name, ignore=files_in)
                folder.symlink_to(outside / folder.name)
        write(*arguments)

    monkeypatch.setattr(fetch, "write_file", exchange)
    status, result = artifact_bench.fetch()
    assert [path for path in outside.rglob("*") if path.is_file()] == []
    assert (status, result["result"]) == (0, "Rejected")


def files_in(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if not os.path.isdir(os.path.join(folder, name))}


def test_a_fetch_uses_no_staging_folder_that_has_become_a_link(
    artifact_bench: ArtifactBench, packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, make = tmp_path / "outside", tempfile.mkdtemp
    outside.mkdir()

    def exchanged(**options: Any) -> str:
        made: str = make(**options)
        os.rmdir(made)
        os.symlink(outside, made)
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", exchanged)
    status, result = artifact_bench.fetch()
    assert (status, result["result"]) == (0, "Rejected")
    assert list(outside.iterdir()) == []


def test_a_state_that_is_a_link_is_not_read(artifact_bench: ArtifactBench, packed: Packed, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text(json.dumps({"state": "Installed", "digest": "of somebody else"}))
    (artifact_bench.root / fetch.STATE).symlink_to(tmp_path / "secret.json")
    assert artifact_bench.fetch()[1]["result"] == "Fetched"
