"""Publishing to a registry: the first writer wins, and neither secrets nor half of a cache get out."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.artifacts import FILES, fill
from support.registries import ACCOUNT, BASE, TAG, ArtifactBench, FakeRegistry, manifest_of, put_an_image_of_somebody_else
from support.tools import command
from vllm_operator.tools import pack as pack_program
from vllm_operator.tools.artifact import is_ready, sha256_of
from vllm_operator.tools.pack import Packed, pack


def test_what_was_published_is_fetched(artifact_bench: ArtifactBench, registry: FakeRegistry, tmp_path: Path) -> None:
    registry.account, registry.bearer = ACCOUNT, "t0ken"
    artifact_bench.log_in()
    status, result = artifact_bench.publish(fill(tmp_path / "filled"), coldSeconds=459)
    assert (status, result["result"], result["tag"]) == (0, "Published", TAG)
    assert set(registry.manifests) == {TAG, BASE}
    assert any("pull%2Cpush" in path for _, path, _ in registry.requests)
    fetched = artifact_bench.fetch()[1]
    assert (fetched["digest"], fetched["coldSeconds"]) == (result["digest"], 459)
    assert (artifact_bench.root / "flashinfer/.cache/flashinfer/90a/cached_ops/op/op.so").read_bytes() == FILES[
        "flashinfer/.cache/flashinfer/90a/cached_ops/op/op.so"
    ]


@contextmanager
def engine(statuses: list[int]) -> Iterator[int]:
    """An engine that answers its readiness probe with these statuses, then with 200; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name of the base class
            self.send_response(statuses.pop(0) if statuses else 200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_beside_an_engine_it_waits_until_the_engine_is_ready(artifact_bench: ArtifactBench, tmp_path: Path) -> None:
    statuses = [503, 500]
    with engine(statuses) as port:
        ready = {"scheme": "http", "port": port, "path": "/health"}
        status, result = artifact_bench.publish(fill(tmp_path / "filled"), ready=ready)
    assert (status, result["result"], statuses) == (0, "Published", [])


def test_beside_an_engine_it_waits_until_the_caches_are_packed(artifact_bench: ArtifactBench, tmp_path: Path) -> None:
    assert artifact_bench.pack(fill(tmp_path / "filled"))[0] == 0
    description, later = artifact_bench.packed / "image.json", artifact_bench.packed / "later"
    description.rename(later)

    class Statuses(list[int]):
        def pop(self, index: Any = -1) -> int:
            if len(self) == 1:  # the engine is about to be ready
                threading.Timer(0.3, later.rename, [description]).start()
            return super().pop(index)

    with engine(Statuses([503, 503])) as port:
        status, result = artifact_bench.push(ready={"scheme": "http", "port": port, "path": "/health"}, pause=0.01)
    assert (status, result["result"]) == (0, "Published")


def test_beside_an_engine_the_program_that_packs_stays_until_the_pod_ends(artifact_bench: ArtifactBench, tmp_path: Path) -> None:
    """The kubelet would start it again, and it would pack while the other container pushes."""
    root, output, report = fill(tmp_path / "filled"), tmp_path / "output", tmp_path / "end"
    output.mkdir()
    with engine([503]) as port:
        ready = {"scheme": "http", "port": port, "path": "/health"}
        settings = {**artifact_bench.common, "root": str(root), "output": str(output), "excluded": [], "whole": [], "architecture": ""}
        given = json.dumps({**settings, "mounts": [], "pause": 0.01, "quiet": 0, "ready": ready})
        environment = {"PACK_ARTIFACT": given, "ARTIFACT_REPORT": str(report)}
        process = subprocess.Popen(command("pack-caches"), env=environment, stdout=subprocess.PIPE)
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert (said["result"], {path.name for path in output.iterdir()}) == ("Packed", {"layer", "image.json"})
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)
        process.terminate()
        assert process.wait(timeout=30) == 0
        process.stdout.close()


def test_an_engine_that_does_not_listen_yet_is_not_ready() -> None:
    with engine([]) as port:
        pass
    with pytest.raises(ConnectionRefusedError):
        is_ready({"scheme": "http", "port": port, "path": "/health"})


def test_the_first_writer_of_a_tag_wins(artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry, tmp_path: Path) -> None:
    before = dict(registry.manifests)
    status, result = artifact_bench.publish(fill(tmp_path / "filled", {"vllm/another": b"one"}))
    assert (status, result["result"], result["digest"]) == (0, "AlreadyPublished", sha256_of(manifest_of(packed)))
    assert registry.manifests == before
    assert not [method for method, _, _ in registry.requests if method in ("POST", "PUT")]


def test_a_tag_with_something_else_is_not_overwritten(
    artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry, tmp_path: Path
) -> None:
    put_an_image_of_somebody_else(registry, packed)
    status, result = artifact_bench.publish(fill(tmp_path / "filled"))
    assert (status, result["result"]) == (1, "TagTaken")


def test_a_tag_of_the_first_half_stays_with_its_first_writer(
    artifact_bench: ArtifactBench, packed: Packed, registry: FakeRegistry, tmp_path: Path
) -> None:
    assert artifact_bench.publish(fill(tmp_path / "filled"), settings="b" * 12)[1]["result"] == "Published"
    assert registry.manifests[BASE] == manifest_of(packed)


@pytest.mark.parametrize(
    ("failing", "reason"),
    [({"/uploads/": [403]}, "Denied"), ({"/v2/": [500] * 20}, "Unreachable"), ({"/manifests/": [404, 404, 405]}, "Denied")],
)
def test_a_push_that_fails_is_reported(
    artifact_bench: ArtifactBench, registry: FakeRegistry, tmp_path: Path, failing: dict[str, list[int]], reason: str
) -> None:
    registry.failing = failing
    artifact_bench.log_in()
    status, result = artifact_bench.publish(fill(tmp_path / "filled"))
    assert (status, result["result"]) == (1, reason)
    assert TAG not in registry.manifests


def test_secrets_of_the_pod_are_not_published(
    artifact_bench: ArtifactBench, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_0", "correct horse\n")
    monkeypatch.setenv("SECRET_1", "x")  # too short to be looked for
    filled = fill(tmp_path / "filled", {"vllm/x": b"... correct horse ..."})
    status, result = artifact_bench.publish(filled)
    assert (status, result["result"]) == (1, "SecretsFound")
    assert "correct horse" not in json.dumps(result)
    assert registry.blobs == {}


def test_a_directory_that_keeps_changing_is_not_published(
    artifact_bench: ArtifactBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: FakeRegistry
) -> None:
    monkeypatch.setattr(pack_program, "is_quiet", lambda inventory, seconds: False)
    assert artifact_bench.publish(fill(tmp_path / "filled"))[1]["result"] == "Changing"


def test_a_directory_that_changed_while_it_was_packed_is_packed_again(
    artifact_bench: ArtifactBench, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled, packing, times = fill(tmp_path / "filled"), pack, []

    def slow(*arguments: Any, **options: Any) -> Packed:
        times.append(1)
        made = packing(*arguments, **options)
        if len(times) == 1:
            (filled / "vllm" / "late").write_bytes(b"late")
            os.utime(filled / "vllm" / "late", (0, 0))
            os.utime(filled / "vllm", (0, 0))
        return made

    monkeypatch.setattr(pack_program, "pack", slow)
    assert artifact_bench.publish(filled)[1]["files"] == 8
    assert len(times) == 2
