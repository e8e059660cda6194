"""The program of the init container `fetch-adapters`, with the real client of the hub and a hub on loopback."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.model_hub import Hub, serve
from support.tools import command

CONFIG = {"r": 16}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve(Hub()) as made:
        yield made


def run(folder: Path, url: str, *adapters: dict[str, str]) -> subprocess.CompletedProcess[str]:
    variables = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "ADAPTERS": json.dumps(adapters),
        "PATH": os.environ["PATH"],
    }
    return subprocess.run(command("fetch-adapters"), env=variables, capture_output=True, text=True, timeout=60, check=False)


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
