"""Caches as one packed file on a volume: the programs that unpack and pack, on folders of this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.artifacts import EXCLUDED, FILES, FOLDERS, fill
from vllm_operator.caches.artifacts import load_program
from vllm_operator.caches.scripts import packed
from vllm_operator.caches.scripts.folder import Folder

LEFT_OUT = ("cache_key_factors.json", ".lock", "grammar.db")
PACKED_FILES = {name: content for name, content in FILES.items() if not name.endswith(LEFT_OUT)}


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.parent != root}


def make_old(root: Path) -> Path:
    for path in root.rglob("*"):
        os.utime(path, (1e9, 1e9 + 0.5))
    return root


class Pods:
    """Pods that share a volume: each has a cache directory of its own."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.volume, self._tmp, self._monkeypatch = tmp_path / "volume", tmp_path, monkeypatch
        self.volume.mkdir()
        for module in (packed,):
            monkeypatch.setattr(module, "build_fingerprint", lambda image: "fingerprint")

    def settings(self, name: str, **more: Any) -> dict[str, Any]:
        root = self._tmp / name
        root.mkdir(exist_ok=True)
        return {
            "readable": "v0.20.1-sm90",
            "parts": {"product": "H200"},
            "settings": "a" * 12,
            "root": str(root),
            "work": str(root),
            "store": str(self.volume),
            "folders": list(FOLDERS),
            "excluded": list(EXCLUDED),
            "whole": ["bytecode"],
            "architecture": "sm_90",
            "mounts": [],
            "scans": False,
            "deadline": 20,
            "pause": 0,
            **more,
        }

    def unpack(self, name: str, **more: Any) -> dict[str, Any]:
        """Run the init container of a Pod."""
        report = self._tmp / "report"
        self._monkeypatch.setenv("PACKED_CACHES", json.dumps(self.settings(name, **more)))
        self._monkeypatch.setenv("ARTIFACT_REPORT", str(report))
        assert packed.run_unpack() == 0
        return dict(json.loads(report.read_text()))

    def pack(self, name: str, **more: Any) -> dict[str, Any]:
        """Pack the directory of a Pod whose engine is ready."""
        given = self.settings(name, **more)
        make_old(Path(given["root"]))
        folder = self.folder
        with packed.working(folder):
            return packed.pack_into(folder, given, packed.keys_of(given))

    @property
    def folder(self) -> Folder:
        return Folder(str(self.volume / "packed"))

    def tags(self) -> list[str]:
        return sorted(os.listdir(self.volume / "packed" / "tags"))

    def blobs(self) -> list[Path]:
        return sorted((self.volume / "packed" / "blobs").iterdir(), key=lambda path: path.stat().st_size)


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pods:
    return Pods(tmp_path, monkeypatch)


def test_what_one_pod_has_compiled_the_next_one_unpacks_with_its_times(pods: Pods, tmp_path: Path) -> None:
    assert pods.unpack("first")["result"] == "NotFound"
    fill(tmp_path / "first")
    assert pods.pack("first")["result"] == "Packed"
    result = pods.unpack("second")
    assert (result["result"], result["files"]) == ("Fetched", len(PACKED_FILES))
    assert files_of(tmp_path / "second") == PACKED_FILES
    assert {path.stat().st_mtime for path in (tmp_path / "second").glob("*/**/*") if path.is_file()} == {1e9}
    assert pods.unpack("second")["result"] == "Present"


def test_a_start_that_added_nothing_writes_nothing(pods: Pods, tmp_path: Path) -> None:
    fill(tmp_path / "first")
    pods.pack("first")
    before = {path: path.stat().st_mtime_ns for path in pods.volume.rglob("*") if path.is_file()}
    pods.unpack("second")
    assert packed.pack_into(pods.folder, pods.settings("second"), packed.keys_of(pods.settings("second"))) == {"result": "Unchanged"}
    assert {path: path.stat().st_mtime_ns for path in pods.volume.rglob("*") if path.is_file()} == before


def test_a_start_that_added_something_replaces_the_file_and_removes_the_old_one_later(pods: Pods, tmp_path: Path) -> None:
    fill(tmp_path / "first")
    pods.pack("first")
    old = pods.blobs()
    pods.unpack("second")
    fill(tmp_path / "second", {"triton/BBBB/kernel.json": b"{}"})
    assert pods.pack("second")["result"] == "Packed"
    assert all(path.exists() for path in old)  # the base tag has them, and a Pod may read them
    pods.unpack("third")
    assert set(files_of(tmp_path / "third")) == {*PACKED_FILES, "triton/BBBB/kernel.json"}
    stale = pods.volume / "packed" / "blobs" / f"sha256-{'0' * 64}"
    stale.write_bytes(b"of a Pod that was killed")
    os.utime(stale, (1e9, 1e9))
    fill(tmp_path / "third", {"triton/CCCC/kernel.json": b"{}"})
    pods.pack("third")
    assert not stale.exists()


def test_files_from_before_are_packed_at_the_first_start_and_stay(pods: Pods, tmp_path: Path) -> None:
    make_old(fill(pods.volume))
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in pods.volume.rglob("*") if path.is_file()}
    result = pods.unpack("first")
    assert (result["result"], len(pods.tags())) == ("Fetched", 2)
    assert files_of(tmp_path / "first") == PACKED_FILES
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before


def test_files_that_still_change_are_not_packed_and_the_engine_starts_cold(pods: Pods, tmp_path: Path) -> None:
    fill(pods.volume)
    result = pods.unpack("first", deadline=2, pause=0.1)
    assert result["result"] in ("Changing", "DeadlineExceeded")
    assert files_of(tmp_path / "first") == {}
    assert pods.tags() == []


def test_caches_of_another_model_fit_partly(pods: Pods, tmp_path: Path) -> None:
    fill(tmp_path / "first")
    pods.pack("first")
    assert pods.unpack("second", settings="b" * 12)["result"] == "PartlyFetched"
    assert pods.pack("second", settings="b" * 12)["result"] == "Packed"
    assert len(pods.tags()) == 3


@pytest.mark.parametrize("damage", ["damaged", "truncated", "missing"])
def test_a_packed_file_that_is_damaged_is_not_used_and_packed_again(pods: Pods, tmp_path: Path, damage: str) -> None:
    fill(tmp_path / "first")
    pods.pack("first")
    layer = max(pods.blobs(), key=lambda path: path.read_bytes()[:2] == b"\x1f\x8b")
    content = layer.read_bytes()
    match damage:
        case "damaged":
            layer.write_bytes(content[:-40] + bytes(40))
        case "truncated":
            layer.write_bytes(content[:100])
        case _:
            layer.unlink()
    result = pods.unpack("second")
    assert result["result"] in ("Rejected", "Unreachable", "NotFound"), result
    assert files_of(tmp_path / "second") == {}
    shutil.rmtree(tmp_path / "second")
    fill(tmp_path / "third", {"triton/own": b"own"})
    pods.unpack("third")
    assert pods.pack("third")["result"] == "Packed"
    assert pods.unpack("fourth")["result"] == "Fetched"
    assert files_of(tmp_path / "fourth") == {"triton/own": b"own"}


def test_a_full_volume_keeps_what_was_packed_before(pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "first")
    pods.pack("first")
    fill(tmp_path / "first", {"triton/more": b"more"})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("vllm_operator.caches.scripts.folder.shutil.copyfileobj", full)
        with pytest.raises(OSError, match="No space left"):
            pods.pack("first")
    assert "No space left on device" in (pods.volume / "packed" / "problem").read_text()
    assert [name for name in os.listdir(pods.volume / "packed") if name.startswith(("tmp-", "working-"))] == []
    assert pods.unpack("second")["result"] == "Fetched"
    pods.pack("first")
    assert not (pods.volume / "packed" / "problem").exists()


def test_a_pod_waits_while_another_one_packs_what_it_would_compile(pods: Pods, tmp_path: Path) -> None:
    make_old(fill(tmp_path / "first"))
    folder, given = pods.folder, pods.settings("first")
    entered = threading.Event()

    def pack() -> None:
        with packed.working(folder):
            entered.set()
            packed.pack_into(folder, given, packed.keys_of(given))

    thread = threading.Thread(target=pack)
    thread.start()
    entered.wait()
    assert pods.unpack("second")["result"] == "Fetched"
    thread.join()


def test_a_pod_that_was_killed_while_it_packed_delays_nobody(pods: Pods) -> None:
    left = pods.volume / "packed" / "working-killed"
    assert pods.folder
    left.touch()
    os.utime(left, (time.time() - 121,) * 2)
    begun = time.monotonic()
    assert pods.unpack("first")["result"] == "NotFound"
    assert time.monotonic() - begun < 10


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_content_of_the_volume_lets_the_engine_start(pods: Pods, tmp_path: Path, data: st.DataObject) -> None:
    for name in ("first", "second", "volume"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    pods.volume.mkdir()
    fill(tmp_path / "first")
    pods.pack("first")
    places = [path for path in pods.volume.rglob("*") if path.is_file()]
    place = data.draw(st.sampled_from(places))
    content = bytearray(place.read_bytes())
    if data.draw(st.booleans()):
        content = bytearray(data.draw(st.binary(max_size=200)))
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    place.write_bytes(content)
    outside = {path for path in tmp_path.iterdir() if path.name != "second"} | {tmp_path / "report"}
    result = pods.unpack("second")
    assert files_of(tmp_path / "second") == (PACKED_FILES if result["result"] in ("Fetched", "PartlyFetched") else {})
    assert {path for path in tmp_path.iterdir() if path.name != "second"} == outside


class _Ready(BaseHTTPRequestHandler):
    status: ClassVar[list[int]]

    def do_GET(self) -> None:
        self.send_response(self.status[0])
        self.status.append(0)  # counts the requests
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def engine() -> Iterator[tuple[int, list[int]]]:
    """The port of an engine, and a list of the status that it answers with and of an entry for each request."""
    status = [503]
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Ready,), {"status": status}))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server.server_address[1], status
    server.shutdown()
    server.server_close()


@contextmanager
def keeping(pods: Pods, port: int) -> "Iterator[subprocess.Popen[str]]":
    """The container beside an engine."""
    given = pods.settings("first", ready={"scheme": "http", "port": port, "path": "/health"}, image="image:1")
    environment = {"PACKED_CACHES": json.dumps(given), "ARTIFACT_REPORT": "/dev/null"}
    command = [sys.executable, "-I", "-B", "-c", load_program("keep")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def report_of(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


def test_the_container_packs_when_the_engine_is_ready_and_ends_with_its_pod(
    pods: Pods, tmp_path: Path, engine: tuple[int, list[int]]
) -> None:
    port, status = engine
    make_old(fill(tmp_path / "first"))
    with keeping(pods, port) as process:
        status[0] = 200
        assert report_of(process)["result"] == "Packed"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert len(pods.tags()) == 2


def test_a_primer_that_ends_as_soon_as_it_is_ready_still_packs(pods: Pods, tmp_path: Path, engine: tuple[int, list[int]]) -> None:
    port, status = engine
    fill(tmp_path / "first")  # just written: without the signal, it would wait until they have not changed for a while
    with keeping(pods, port) as process:
        status[0] = 200
        while not (pods.volume / "packed").exists() or not packed.is_packing(pods.folder):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert report_of(process)["result"] == "Packed"
        assert process.wait(20) == 0


def test_caches_of_an_engine_that_was_never_ready_are_not_packed(pods: Pods, tmp_path: Path, engine: tuple[int, list[int]]) -> None:
    make_old(fill(tmp_path / "first"))
    port, asked = engine[0], engine[1]
    with keeping(pods, port) as process:
        while len(asked) < 3:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert report_of(process)["result"] == "Interrupted"
        assert process.wait(20) == 0
    assert not (pods.volume / "packed").exists()
