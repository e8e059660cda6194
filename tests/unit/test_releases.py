"""Release binaries are downloaded, checked and used; what is wrong in any way is not, and the binary is built."""

import hashlib
import io
import re
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from testenv import binaries, releases
from testenv.binaries import BINARIES, TOOLS, BuildError, cache_root, ensure_binaries
from testenv.releases import DATA, Release, ReleaseError, download, releases_of

PROGRAM = b"#!/bin/sh\nexit 0\n" * 200_000


def archive(**members: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(f"etcd-v1/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


ARCHIVE = archive(README=b"read me", etcd=PROGRAM)


class Files(BaseHTTPRequestHandler):
    """Serves the archive: right, wrong, truncated, slow or not at all, as the path says."""

    def do_GET(self) -> None:
        kind = self.path.rpartition("/")[2]
        content = ARCHIVE[:-100] + b"x" * 100 if kind == "wrong" else ARCHIVE
        if kind == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if kind == "truncated":
            content = content[: len(content) // 2]
        step = 64 if kind == "slow" else len(content)
        try:
            for begin in range(0, len(content), step):
                self.wfile.write(content[begin : begin + step])
        except OSError:
            self.close_connection = True  # the client had enough

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("TESTENV_RELEASES", f"http://127.0.0.1:{running.server_address[1]}")
        yield "https://releases.example"
        running.shutdown()
        thread.join()


def release(url: str, content: bytes = ARCHIVE, member: str = "etcd-v1/etcd") -> Release:
    return Release("etcd", "v1", url, f"sha256:{hashlib.sha256(content).hexdigest()}", {"etcd": member})


def test_the_right_file_is_used(server: str, tmp_path: Path) -> None:
    download(release(f"{server}/right"), {"etcd": tmp_path / "bin" / "etcd"})
    assert (tmp_path / "bin" / "etcd").read_bytes() == PROGRAM
    assert (tmp_path / "bin" / "etcd").stat().st_mode & 0o111
    assert [each.name for each in (tmp_path / "bin").iterdir()] == ["etcd"]


def test_a_plain_file_is_the_binary(server: str, tmp_path: Path) -> None:
    download(release(f"{server}/right", member="."), {"etcd": tmp_path / "etcd"})
    assert (tmp_path / "etcd").read_bytes() == ARCHIVE


@pytest.mark.parametrize(
    ("kind", "why"), [("wrong", "is not the pinned one"), ("truncated", r"is not the pinned one|IncompleteRead"), ("missing", "404")]
)
def test_a_file_that_is_not_the_pinned_one_is_not_used(kind: str, why: str, server: str, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=why):
        download(release(f"{server}/{kind}"), {"etcd": tmp_path / "etcd"})
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_too_slow_is_given_up(server: str, tmp_path: Path) -> None:
    now = iter(range(0, 10**12, 10_000))
    with pytest.raises(ReleaseError, match="too slow"):
        download(release(f"{server}/slow"), {"etcd": tmp_path / "etcd"}, clock=lambda: float(next(now)))
    assert list(tmp_path.iterdir()) == []


def test_an_archive_without_the_binary_is_not_used(server: str, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="has no etcd-v1/kwok"):
        download(release(f"{server}/right", member="etcd-v1/kwok"), {"etcd": tmp_path / "etcd"})


def test_a_link_in_the_archive_is_not_the_binary(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        link = tarfile.TarInfo("etcd-v1/etcd")
        link.type, link.linkname = tarfile.SYMTYPE, "/bin/sh"
        tar.addfile(link)
    monkeypatch.setattr(sys.modules[__name__], "ARCHIVE", out.getvalue())
    with pytest.raises(ReleaseError, match="has no etcd-v1/etcd"):
        download(release(f"{server}/right", out.getvalue()), {"etcd": tmp_path / "etcd"})
    assert list(tmp_path.iterdir()) == []


def test_no_server_is_a_reason_to_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTENV_RELEASES", "http://127.0.0.1:1")
    with pytest.raises(ReleaseError, match="refused"):
        download(release("https://releases.example/right"), {"etcd": tmp_path / "etcd"})


@pytest.mark.parametrize(("kind", "downloaded"), [("right", True), ("wrong", False)])
def test_what_is_missing_is_downloaded_and_else_built(
    kind: str, downloaded: bool, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(binaries, "known_releases", lambda: [release(f"{server}/{kind}")])
    monkeypatch.setattr(binaries, "find_go", lambda cache: tmp_path / "go")
    (tmp_path / "go").write_text('#!/bin/sh\necho "compiled"; exit 1\n')
    (tmp_path / "go").chmod(0o755)
    if downloaded:
        assert ensure_binaries(["etcd"])["etcd"].is_relative_to(cache_root())
    else:
        with pytest.raises(BuildError, match="compiled"):
            ensure_binaries(["etcd"])
    said = capsys.readouterr().err
    assert "downloading etcd v1" in said
    assert ("not downloaded: " in said) is not downloaded


def test_releases_have_the_versions_of_the_modules() -> None:
    pinned = releases_of(yaml.safe_load(DATA.read_text("utf-8")), "Linux", "x86_64")
    assert {release.module for release in pinned} == {"kubernetes", "etcd", "kwok"}
    assert {release.module for release in releases_of(yaml.safe_load(DATA.read_text("utf-8")), "Linux", "aarch64")} == {
        release.module for release in pinned
    }
    for each in pinned:
        module = (TOOLS / each.module / "go.mod").read_text()
        assert f" {each.version} " in module or f" {each.version}\n" in module, each.module
        assert each.version in each.url
        assert re.fullmatch(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}", each.checksum)
        assert all(BINARIES[name].module == each.module for name in each.members)


def test_other_systems_build(monkeypatch: pytest.MonkeyPatch) -> None:
    document = yaml.safe_load(DATA.read_text("utf-8"))
    assert releases_of(document, "Darwin", "arm64") == []
    assert releases_of(document, "Linux", "riscv64") == []
    # a release without a checksum for the machine
    del document["releases"][-1]["checksums"]["arm64"]
    assert [each.module for each in releases_of(document, "Linux", "aarch64")] == ["kubernetes", "etcd"]
    monkeypatch.setenv("TESTENV_RELEASES", "none")
    assert releases.known_releases() == []
