"""The program of the Job `fetch-weights`, with the real client of the hub and a hub on loopback."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.model_hub import COMMIT, Hub, blob, serve
from support.tools import command
from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.progress import read_bar
from vllm_operator.tools.hub import SMALL_BYTES, files_to_fetch

MODEL = "acme/llama"
FILES = {"config.json": b"{}", "tokenizer.json": b"[]", "model.safetensors": b"weights"}
PIECES = 40


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve(Hub({MODEL: dict(FILES)})) as served:
        yield served


def start(folder: Path, url: str, **more: str) -> subprocess.Popen[str]:
    variables = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "FETCH_WEIGHTS": json.dumps({"repository": MODEL} | {name: value for name, value in more.items() if name == "revision"}),
        "FETCH_REPORT": str(folder / "report"),
        "PATH": os.environ["PATH"],
        **{name: value for name, value in more.items() if name.isupper()},
    }
    return subprocess.Popen(command("fetch-weights"), env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(folder: Path, url: str, **more: str) -> tuple[int, dict[str, Any], str]:
    """Run the program; return its exit status, its result and its output."""
    process = start(folder, url, **more)
    output, _ = process.communicate(timeout=60)
    return process.returncode, json.loads((folder / "report").read_text()), output


def snapshot(folder: Path) -> Path:
    return folder / "home" / "hub" / "models--acme--llama" / "snapshots" / COMMIT


def test_a_model_is_downloaded_once_and_its_commit_is_reported(hub: Hub, tmp_path: Path) -> None:
    for _ in range(2):
        status, result, output = run(tmp_path, hub.url)
        assert (status, result["result"], result["commit"]) == (0, "Fetched", COMMIT), output
    assert sorted(path.name for path in snapshot(tmp_path).iterdir()) == sorted(FILES)
    assert sorted(hub.downloads) == sorted(FILES)


def test_weights_in_formats_that_vllm_would_not_read_are_not_downloaded() -> None:
    large = SMALL_BYTES + 1
    sizes = {
        "config.json": 1,
        "model-00001-of-00002.safetensors": large,
        "pytorch_model.bin": large,
        "original/consolidated.00.pth": large,
        "onnx/model.onnx": large,
        "2_Dense/pytorch_model.bin": 1,
        "tokenizer.json": large,
    }
    assert sorted(files_to_fetch(sizes)) == [
        "2_Dense/pytorch_model.bin",
        "config.json",
        "model-00001-of-00002.safetensors",
        "tokenizer.json",
    ]
    assert "pytorch_model.bin" in files_to_fetch({name: size for name, size in sizes.items() if "safetensors" not in name})


def partial_files(folder: Path, of: str = "") -> list[Path]:
    return sorted((folder / "home" / "hub" / "models--acme--llama" / "blobs").glob(f"{of}*.incomplete"))


def start_until_half(hub: Hub, folder: Path) -> subprocess.Popen[str]:
    """Start a download, and wait until the small files are there and the weights are there in part.

    The client creates the partial file before it asks for the content, and the entry of a snapshot after the blob.
    """
    weights = hub.repositories[MODEL]["model.safetensors"] = os.urandom(PIECES << 20)
    hub.pause_seconds = 0.2
    process = start(folder, hub.url)
    assert process.stdout is not None
    small = [snapshot(folder) / name for name in ("config.json", "tokenizer.json")]
    while not (any(path.stat().st_size for path in partial_files(folder, of=blob(weights))) and all(path.exists() for path in small)):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    return process


def test_a_download_that_was_killed_is_continued_and_leaves_nothing_behind(hub: Hub, tmp_path: Path) -> None:
    process = start_until_half(hub, tmp_path)
    process.kill()
    process.communicate()
    [leftover] = partial_files(tmp_path)
    os.utime(leftover, (0, 0))
    hub.pause_seconds = 0.0
    status, result, output = run(tmp_path, hub.url)
    assert (status, result["result"]) == (0, "Fetched"), output
    assert (snapshot(tmp_path) / "model.safetensors").read_bytes() == hub.repositories[MODEL]["model.safetensors"]
    assert sorted(each.partition(" ")[0] for each in hub.downloads) == sorted([*FILES, "model.safetensors"])
    assert partial_files(tmp_path) == []


def test_the_program_stops_at_once_when_its_pod_is_deleted(hub: Hub, tmp_path: Path) -> None:
    process = start_until_half(hub, tmp_path)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 143
    assert partial_files(tmp_path) == []


def test_a_partial_file_that_another_process_may_be_writing_is_left_alone(hub: Hub, tmp_path: Path) -> None:
    blobs = tmp_path / "home" / "hub" / "models--acme--llama" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.01234567.incomplete").write_bytes(b"1")
    assert run(tmp_path, hub.url)[0] == 0
    assert [path.name for path in partial_files(tmp_path)] == ["abc.01234567.incomplete"]


def test_progress_is_a_bar_with_bytes_that_the_operator_reads(hub: Hub, tmp_path: Path) -> None:
    size = 3 << 20
    hub.repositories[MODEL]["model.safetensors"] = b"w" * size
    _, _, output = run(tmp_path, hub.url)
    bars = [line for line in output.splitlines() if line.startswith("Downloading weights")]
    read = read_bar(load_startup().stages.bars, bars[0])
    assert read is not None
    stage, progress, _ = read
    assert stage == "WeightDownload"
    assert progress is not None
    assert progress.total == pytest.approx(size, rel=0.05)


def test_a_volume_with_too_little_space_is_found_before_the_download(hub: Hub, tmp_path: Path) -> None:
    hub.claimed_sizes["model.safetensors"] = 1 << 60
    status, result, _ = run(tmp_path, hub.url)
    assert (status, result["result"]) == (1, "NoSpace")
    assert result["needed"] > 1 << 60
    assert 0 < result["free"] < 1 << 60
    assert hub.downloads == []


@pytest.mark.parametrize(
    ("change", "more", "want"),
    [
        ({"tokens": {MODEL: "hf_of_acme"}}, {"HF_TOKEN": "hf_wrong_token"}, "Denied"),
        ({"gated": {MODEL}}, {"HF_TOKEN": "hf_wrong_token"}, "Denied"),
        ({"repositories": {}}, {}, "NotFound"),
        ({}, {"revision": "v9"}, "NotFound"),
        ({}, {"HF_ENDPOINT": "http://127.0.0.1:9"}, "Unreachable"),
        ({}, {"HF_HUB_OFFLINE": "1"}, "Unreachable"),
    ],
    ids=["a wrong token", "a licence that was not accepted", "no such model", "no such revision", "no hub", "offline"],
)
def test_each_failure_has_a_word_and_no_token(hub: Hub, tmp_path: Path, change: dict[str, Any], more: dict[str, str], want: str) -> None:
    for name, value in change.items():
        setattr(hub, name, value)
    status, result, output = run(tmp_path, hub.url, **more)
    assert (status, result["result"]) == (1, want), output
    assert "hf_" not in (output + json.dumps(result)).replace("huggingface", "")


def test_the_token_of_the_secret_is_used(hub: Hub, tmp_path: Path) -> None:
    hub.tokens[MODEL] = "hf_of_acme"
    token = tmp_path / "token"
    token.write_text("hf_of_acme\n")
    status, _, output = run(tmp_path, hub.url, HF_TOKEN_PATH=str(token))
    assert status == 0, output
    assert "hf_of_acme" not in output


def test_names_of_files_are_taken_literally(hub: Hub, tmp_path: Path) -> None:
    hub.repositories[MODEL]["a[1].json"] = b"1"
    assert run(tmp_path, hub.url)[0] == 0
    assert (snapshot(tmp_path) / "a[1].json").resolve().name == blob(b"1")
