"""The program of the init container `fetch-adapters`, with the real client of the hub and a hub on loopback."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from vllm_operator.rendering.adapters import load_program

COMMIT = "8f3f9f1f1c0d5f4a0f6f0c7b5d7b1d2f0a4b8e6d"
CONFIG = {"r": 16}


class Hub:
    """A hub with repositories; `tokens` are required by some of them."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.tokens: dict[str, str] = {}
        self.downloads: list[str] = []
        self.url = ""

    def add(self, name: str, **files: bytes) -> None:
        self.repositories[name] = {key.replace("__", "."): data for key, data in files.items()}


class Handler(BaseHTTPRequestHandler):
    """The parts of the hub's API that a download uses."""

    hub: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def _answer(self, *, body: bool) -> None:
        words = self.path.split("?")[0].strip("/").split("/")
        name = "/".join(words[2:4] if words[:2] == ["api", "models"] else words[:2])
        files, token = self.hub.repositories.get(name), self.hub.tokens.get(name)
        refused = token is not None and self.headers.get("Authorization") != f"Bearer {token}"
        if files is None or refused:
            self._send(401 if refused else 404, b"", {"X-Error-Code": "RepoNotFound"}, body=body)
        elif words[0] == "api":
            tree = [{"type": "file", "path": file, "size": len(data), "oid": file} for file, data in files.items()]
            listed = tree if "tree" in words else {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
            self._send(200, json.dumps(listed).encode(), {"Content-Type": "application/json"}, body=body)
        else:
            file = "/".join(words[4:])
            if body:
                self.hub.downloads.append(file)
            self._send(200, files[file], {"ETag": f'"{len(files[file])}-{file}"', "X-Repo-Commit": COMMIT}, body=body)

    def _send(self, status: int, data: bytes, headers: dict[str, str], *, body: bool) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": made}))
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


def run(folder: Path, url: str, *adapters: dict[str, str]) -> subprocess.CompletedProcess[str]:
    variables = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "ADAPTERS": json.dumps(adapters),
        "PATH": os.environ["PATH"],
    }
    command = [sys.executable, "-I", "-B", "-c", load_program()]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)


def adapter(folder: Path, name: str = "sql", **more: str) -> dict[str, str]:
    uri = f"hf://acme/{name}-lora"
    return {"name": name, "uri": uri, "repository": uri[5:], "path": str(folder / "home" / "adapters" / f"{name}-1"), **more}


def test_an_adapter_is_downloaded_once_without_the_checkpoints_of_its_training(hub: Hub, tmp_path: Path) -> None:
    hub.add("acme/sql-lora", adapter_config__json=json.dumps(CONFIG).encode(), adapter_model__safetensors=b"weights", README__md=b"text")
    hub.repositories["acme/sql-lora"]["checkpoint-1/optimizer.json"] = b"{}"
    for _ in range(2):
        done = run(tmp_path, hub.url, adapter(tmp_path))
        assert done.returncode == 0, done.stderr
        folder = tmp_path / "home" / "adapters" / "sql-1"
        assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
        assert json.loads((folder / "adapter_config.json").read_text()) == CONFIG
    assert sorted(hub.downloads) == ["adapter_config.json", "adapter_model.safetensors"]


def test_a_hub_that_is_away_is_not_needed_for_what_was_downloaded_before(hub: Hub, tmp_path: Path) -> None:
    hub.add("acme/sql-lora", adapter_config__json=b"{}", adapter_model__safetensors=b"weights")
    assert run(tmp_path, hub.url, adapter(tmp_path)).returncode == 0
    done = run(tmp_path, "http://127.0.0.1:9", adapter(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "home" / "adapters" / "sql-1" / "adapter_config.json").exists()


def test_an_adapter_with_a_token_of_its_own_gets_it_and_the_token_is_not_printed(hub: Hub, tmp_path: Path) -> None:
    hub.add("acme/sql-lora", adapter_config__json=b"{}", adapter_model__safetensors=b"weights")
    hub.tokens["acme/sql-lora"] = "hf_of_acme"
    token = tmp_path / "token"
    token.write_text("hf_of_acme\n")
    done = run(tmp_path, hub.url, adapter(tmp_path, token=str(token)))
    assert done.returncode == 0, done.stderr
    token.write_text("hf_wrong")
    other = run(tmp_path / "other", hub.url, adapter(tmp_path / "other", token=str(token)))
    assert other.returncode == 1
    assert "hf_" not in (done.stdout + done.stderr + other.stdout + other.stderr).replace("hf_of_acme/", "")


def test_each_adapter_that_fails_is_named_and_the_others_are_fetched(hub: Hub, tmp_path: Path) -> None:
    hub.add("acme/sql-lora", adapter_config__json=b"{}", adapter_model__safetensors=b"weights")
    hub.add("acme/odd-lora", model__safetensors=b"a model", README__md=b"text")
    done = run(tmp_path, hub.url, adapter(tmp_path, "gone", revision="v2"), adapter(tmp_path, "odd"), adapter(tmp_path))
    assert done.returncode == 1
    gone, odd = [line for line in done.stderr.splitlines() if "cannot be fetched" in line]
    assert gone.startswith("Adapter gone (hf://acme/gone-lora, revision v2) cannot be fetched: RepositoryNotFoundError: 404")
    assert odd.startswith("Adapter odd (hf://acme/odd-lora) cannot be fetched: FileNotFoundError: it has no adapter_config.json")
    assert (tmp_path / "home" / "adapters" / "sql-1" / "adapter_config.json").exists()


def test_what_is_at_the_path_of_the_adapter_and_is_no_link_is_left_as_it_is(hub: Hub, tmp_path: Path) -> None:
    hub.add("acme/sql-lora", adapter_config__json=b"{}", adapter_model__safetensors=b"weights")
    own = tmp_path / "home" / "adapters" / "sql-1"
    own.mkdir(parents=True)
    (own / "mine").touch()
    done = run(tmp_path, hub.url, adapter(tmp_path))
    assert done.returncode == 1
    assert "is not a link, and was left as it is" in done.stderr
    assert (own / "mine").exists()
