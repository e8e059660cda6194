"""A registry in memory, and the programs that fetch and publish caches, run against it as the Pods run them."""

import base64
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from support.artifacts import EXCLUDED, FOLDERS
from vllm_operator.tools import fetch, pack, publish
from vllm_operator.tools.artifact import describe_image, encode_manifest, portability_key, sha256_of
from vllm_operator.tools.pack import Packed

REPOSITORY = "team/caches"
ACCOUNT = "Basic " + base64.b64encode(b"robot:secret").decode()
FINGERPRINT = "f" * 64
KEY = {"readable": "v0.20.1-sm90", "parts": {"product": "H200"}, "settings": "a" * 12}
BASE, TAG = portability_key(KEY, FINGERPRINT)


def manifest_of(packed: Packed) -> bytes:
    """Return the manifest that the publisher makes of a packed directory."""
    return encode_manifest(packed.config, packed.layer_digest, packed.layer_size)


def image_of(labels: dict[str, str], *, layer: tuple[str, int, str]) -> tuple[bytes, bytes]:
    """Return the configuration and the manifest of an image with one layer (digest, size, digest of the archive)."""
    config = describe_image(labels, plain_digest=layer[2], machine="x86_64")
    return config, encode_manifest(config, *layer[:2])


@dataclass
class FakeRegistry:
    """A registry in memory: blobs, manifests, and how it misbehaves."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    host: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and Authorization of each request."""
    account: str = ""
    """`Basic ...` that is needed; empty for anonymous access."""
    bearer: str = ""
    """Token that is needed instead, and is given for the account."""
    is_bearer_short: bool = False
    """Whether a token is good for one request only."""
    failing: dict[str, list[int]] = field(default_factory=dict)
    """Statuses of the next answers to paths that contain a text."""
    cut: int | None = None
    """Bytes of a blob after which the connection is closed."""
    redirect: str = ""
    """Origin to which requests for blobs are redirected."""
    retry_after: str = "0"

    def add(self, packed: Packed, layer: bytes, *tags: str) -> None:
        """Add an artifact."""
        for content in (packed.config, layer):
            self.blobs[f"sha256:{hashlib.sha256(content).hexdigest()}"] = content
        for name in (*tags, sha256_of(manifest_of(packed))):
            self.manifests[name] = manifest_of(packed)


class _Handler(BaseHTTPRequestHandler):
    registry: ClassVar[FakeRegistry]
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        registry, path = self.registry, self.path
        authorization = self.headers.get("Authorization", "")
        registry.requests.append((self.command, path, authorization))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        for text, statuses in registry.failing.items():
            if text in path and statuses:
                return self._send(statuses.pop(0), b"", {"Retry-After": registry.retry_after})
        if path.startswith("/token"):
            given = authorization == registry.account
            return self._send(200 if given else 401, json.dumps({"token": registry.bearer}).encode() if given else b"")
        needed = f"Bearer {registry.bearer}" if registry.bearer else registry.account
        if needed and authorization != needed:
            realm = f'Bearer realm="http://{registry.host}/token",service="it"' if registry.bearer else 'Basic realm="it"'
            return self._send(401, b"", {"WWW-Authenticate": realm})
        if registry.is_bearer_short:
            registry.bearer += "x"
        return self._serve(path, body)

    def _serve(self, path: str, body: bytes) -> None:
        registry = self.registry
        found = re.fullmatch(r"/v2/[^?]+?/(manifests|blobs)/([^/?]+)/?(?:\?digest=(.*))?", path)
        kind, name, digest = (found[1], found[2], found[3]) if found else ("", "", "")
        if self.command == "POST" and name == "uploads":
            return self._send(202, b"", {"Location": f"{path}?digest=".removesuffix("?digest=")})
        if self.command == "PUT" and kind == "blobs":
            registry.blobs[digest.replace("%3A", ":")] = body
            return self._send(201)
        if self.command == "PUT":
            registry.manifests[name] = body
            return self._send(201)
        content = (registry.manifests if kind == "manifests" else registry.blobs).get(name)
        if content is None:
            return self._send(404)
        if kind == "blobs" and registry.redirect and self.command == "GET":
            return self._send(307, b"", {"Location": f"{registry.redirect}{path}"})
        return self._send(200, content, cut=registry.cut if kind == "blobs" else None)

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])
        if cut is not None and cut < len(body):
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = _answer  # noqa: N815  # the names of the base class

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def run_registry() -> Iterator[FakeRegistry]:
    """Run a registry without TLS."""
    registry = FakeRegistry()
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    registry.host = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run(
    program: Any, variable: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, dict[str, Any]]:
    monkeypatch.setenv(variable, json.dumps(settings))
    monkeypatch.setenv("ARTIFACT_REPORT", str(tmp_path / "report"))
    status = program()
    result = json.loads((tmp_path / "report").read_text())
    assert len((tmp_path / "report").read_text()) < 4096
    return status, result


class ArtifactBench:
    """Runs the programs as the Pods do."""

    def __init__(self, registry: FakeRegistry, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.registry, self.root, self._tmp, self._monkeypatch = registry, root, tmp_path, monkeypatch
        self.packed = tmp_path / "packed"
        for module in (fetch, pack):
            monkeypatch.setattr(module, "build_fingerprint", lambda image: FINGERPRINT)
        self.common = {
            "repository": f"{registry.host}/{REPOSITORY}",
            "scheme": "http",
            "readable": "v0.20.1-sm90",
            "parts": {"product": "H200"},
            "settings": "a" * 12,
            "folders": list(FOLDERS),
            "secret": str(tmp_path / "secret"),
        }

    def fetch(self, **more: Any) -> tuple[int, dict[str, Any]]:
        settings = {**self.common, "root": str(self.root), "deadline": 10, **more}
        return run(fetch.main, "CACHE_ARTIFACT", settings, self._tmp, self._monkeypatch)

    def publish(self, root: Path, **more: Any) -> tuple[int, dict[str, Any]]:
        status, result = self.pack(root, **more)
        return self.push(**more) if status == 0 else (status, result)

    def pack(self, root: Path, **more: Any) -> tuple[int, dict[str, Any]]:
        old = time.time() - 100
        for path in root.rglob("*"):
            os.utime(path, (old, old), follow_symlinks=False)
        self.packed.mkdir(exist_ok=True)
        settings = {**self.common, "root": str(root), "excluded": list(EXCLUDED), "whole": [], "architecture": "sm_90", "mounts": []}
        given = {**settings, "output": str(self.packed), "pause": 0, **more, "ready": None}
        return run(pack.main, "PACK_ARTIFACT", given, self._tmp, self._monkeypatch)

    def push(self, **more: Any) -> tuple[int, dict[str, Any]]:
        given = {**self.common, "output": str(self.packed), "pause": 0, **more}
        return run(publish.main, "PUBLISH_ARTIFACT", given, self._tmp, self._monkeypatch)

    def log_in(self, auths: Any = None) -> None:
        (self._tmp / "secret").mkdir(exist_ok=True)
        auths = auths or {self.registry.host: {"auth": ACCOUNT.removeprefix("Basic ")}}
        (self._tmp / "secret" / ".dockerconfigjson").write_text(json.dumps({"auths": auths}))

    def left(self) -> set[str]:
        return {path.name for path in self.root.iterdir()}


def put_an_image_of_somebody_else(registry: FakeRegistry, packed: Packed) -> None:
    config, manifest = image_of({}, layer=(packed.layer_digest, packed.layer_size, "sha256:0"))
    registry.blobs[sha256_of(config)] = config
    registry.manifests[TAG] = manifest
