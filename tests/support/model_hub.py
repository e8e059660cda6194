"""A model hub on loopback: the parts of its API that a download uses."""

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "8f3f9f1f1c0d5f4a0f6f0c7b5d7b1d2f0a4b8e6d"


@dataclass
class Hub:
    """A hub with repositories. `tokens` are required by some of them, `gated` ones refuse every token."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    claimed_sizes: dict[str, int] = field(default_factory=dict)
    """Sizes that the list of files names instead of the real ones."""
    pause_seconds: float = 0.0
    """Pause between two pieces of a file."""
    downloads: list[str] = field(default_factory=list)
    """Each download of a file, with the range that was asked for."""
    url: str = ""

    def add(self, name: str, **files: bytes) -> None:
        """Add a repository; in names of files, `__` stands for a dot."""
        self.repositories[name] = {file.replace("__", "."): data for file, data in files.items()}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def _answer(self, *, body: bool) -> None:
        words = unquote(self.path.split("?")[0]).strip("/").split("/")
        is_api = words[:2] == ["api", "models"]
        name = "/".join(words[2:4] if is_api else words[:2])
        revision = words[5] if is_api and words[4:5] == ["revision"] else words[3] if not is_api and len(words) > 3 else "main"
        files, token = self.hub.repositories.get(name), self.hub.tokens.get(name)
        if files is None or (token is not None and self.headers.get("Authorization") != f"Bearer {token}"):
            return self._send(404 if files is None else 401, b"", {"X-Error-Code": "RepoNotFound"})
        if name in self.hub.gated:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."})
        if revision not in ("main", COMMIT):
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if is_api:
            return self._send(
                200, json.dumps(self._listed(name, files, tree="tree" in words)).encode(), {"Content-Type": "application/json"}
            )
        return self._file("/".join(words[4:]), files, body=body)

    def _listed(self, name: str, files: dict[str, bytes], *, tree: bool) -> Any:
        sizes = {file: self.hub.claimed_sizes.get(file, len(data)) for file, data in files.items()}
        if tree:
            return [{"type": "file", "path": file, "size": sizes[file], "oid": blob(data)} for file, data in files.items()]
        siblings = [{"rfilename": file, "size": sizes[file], "blobId": blob(data)} for file, data in files.items()]
        return {"id": name, "sha": COMMIT, "siblings": siblings}

    def _file(self, file: str, files: dict[str, bytes], *, body: bool) -> None:
        data = files[file]
        asked = self.headers.get("Range", "")
        begin = int(asked.removeprefix("bytes=").partition("-")[0] or 0) if asked else 0
        headers = {"ETag": f'"{blob(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if asked:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        if body:
            self.hub.downloads.append(f"{file} {asked}".strip())
        self._send(206 if asked else 200, data[begin:], headers, body=body)

    def _send(self, status: int, data: bytes, headers: dict[str, str], *, body: bool = True) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        step = 1 << 20
        with contextlib.suppress(ConnectionError):  # the client was killed
            for begin in range(0, len(data) if body else 0, step):
                self.wfile.write(data[begin : begin + step])
                time.sleep(self.hub.pause_seconds)


def blob(data: bytes) -> str:
    """The name of a file's content on the hub."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@contextmanager
def serve(hub: Hub, address: str = "127.0.0.1") -> Iterator[Hub]:
    """Serve a hub, and set its URL."""
    server = ThreadingHTTPServer((address, 0), type("Bound", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://{address}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
