"""The programs that publish and fetch caches, as they run in Pods, against a real registry with TLS and an account."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.artifacts import EXCLUDED, FILES, FOLDERS, fill
from testenv import Environment
from testenv.registry import Registry
from vllm_operator.caches.artifacts import load_program

REPOSITORY = "team/caches"
LEFT_OUT = ("cache_key_factors.json", ".lock", "grammar.db")


@pytest.fixture(scope="module")
def registry(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    control_plane = environment.control_plane
    running = Registry(tmp_path_factory.mktemp("registry"), control_plane.authority, control_plane.authority_key)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    root = fill(tmp_path / "filled")
    for path in root.rglob("*"):
        os.utime(path, (time.time() - 100, time.time() - 100.5))
    return root


class Programs:
    """Runs the programs in processes of their own, with nothing but their settings."""

    def __init__(self, registry: Registry, folder: Path) -> None:
        self.registry, self._folder = registry, folder
        self.log_in(registry.account())

    def log_in(self, secret: dict[str, str]) -> None:
        (self._folder / "secret").mkdir(exist_ok=True)
        for name in (".dockerconfigjson", "ca.crt"):
            (self._folder / "secret" / name).unlink(missing_ok=True)
        for name, content in secret.items():
            (self._folder / "secret" / name).write_text(content)

    def run(self, name: str, root: Path, *, settings: str, **more: Any) -> tuple[int, dict[str, Any]]:
        root.mkdir(exist_ok=True)
        given = {
            "repository": f"{self.registry.host}/{REPOSITORY}",
            "readable": "v0.20.1-sm90",
            "parts": {"product": "H200"},
            "settings": settings,
            "folders": list(FOLDERS),
            "secret": str(self._folder / "secret"),
            "root": str(root),
            "excluded": list(EXCLUDED),
            "whole": ["bytecode"],
            "architecture": "sm_90",
            "mounts": [],
            **more,
        }
        variable = {"fetch": "CACHE_ARTIFACT", "publish": "PUBLISH_ARTIFACT"}[name]
        environment = {variable: json.dumps(given), "ARTIFACT_REPORT": str(self._folder / "report")}
        command = [sys.executable, "-I", "-B", "-c", load_program(name)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
        return done.returncode, json.loads((self._folder / "report").read_text())


@pytest.fixture
def programs(registry: Registry, tmp_path: Path) -> Programs:
    return Programs(registry, tmp_path)


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.parent != root}


def test_caches_go_through_a_registry_with_their_times(programs: Programs, filled: Path, tmp_path: Path) -> None:
    status, published = programs.run("publish", filled, settings="one")
    assert (status, published["result"]) == (0, "Published"), published
    assert published["tag"] in programs.registry.tags(REPOSITORY)
    status, fetched = programs.run("fetch", tmp_path / "cache", settings="one")
    assert (status, fetched["result"], fetched["digest"]) == (0, "Fetched", published["digest"]), fetched
    assert files_of(tmp_path / "cache") == {name: content for name, content in FILES.items() if not name.endswith(LEFT_OUT)}
    for name in files_of(tmp_path / "cache"):
        assert (tmp_path / "cache" / name).stat().st_mtime_ns == (filled / name).stat().st_mtime_ns // 10**9 * 10**9
    assert programs.run("publish", filled, settings="one")[1]["result"] == "AlreadyPublished"
    assert programs.run("fetch", tmp_path / "other", settings="two")[1]["result"] == "PartlyFetched"
    reference = f"{programs.registry.host}/{REPOSITORY}@{published['digest']}"
    assert programs.run("fetch", tmp_path / "pinned", settings="one", reference=reference)[1]["result"] == "Fetched"


def test_what_the_registry_refuses_is_named(programs: Programs, filled: Path, tmp_path: Path) -> None:
    account = programs.registry.account()
    assert (
        programs.run("fetch", tmp_path / "cache", settings="x", repository=f"{programs.registry.host}/team/none")[1]["result"] == "NotFound"
    )
    programs.log_in(programs.registry.account("wrong"))
    assert programs.run("fetch", tmp_path / "cache", settings="x")[1]["result"] == "Denied"
    assert programs.run("publish", filled, settings="x")[1]["result"] == "Denied"
    programs.log_in({})
    assert programs.run("fetch", tmp_path / "cache", settings="x")[1]["result"] == "SecretMissing"
    programs.log_in({"ca.crt": account["ca.crt"]})
    assert programs.run("fetch", tmp_path / "cache", settings="x")[1]["result"] == "SecretMissing"
    programs.log_in({".dockerconfigjson": account[".dockerconfigjson"]})
    status, untrusted = programs.run("fetch", tmp_path / "cache", settings="x")
    assert (status, untrusted["result"]) == (0, "Unreachable")
    assert "certificate" in untrusted["message"]
    assert files_of(tmp_path / "cache") == {}
