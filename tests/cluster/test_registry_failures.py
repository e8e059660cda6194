"""What can go wrong between a real registry and a cache directory: each ends in time, says why, and leaves nothing."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.artifacts import fill
from support.proxies import Proxy
from support.registry import Registry
from support.registry_programs import REPOSITORY, Programs, files_of
from testenv import Environment

LARGE = 3 * 2**20
MIDDLE = 2**20


@pytest.fixture
def large(filled: Path) -> Path:
    """Caches whose transfer has a middle. They do not compress."""
    path = filled / "triton" / "large"
    path.write_bytes(os.urandom(LARGE))
    os.utime(path, (1e9, 1e9))
    return filled


def layer_of(registry: Registry, digest: str) -> Path:
    """The file of the layer of an artifact."""
    manifest = json.loads(registry.blob(digest).read_text())
    return registry.blob(manifest["layers"][0]["digest"])


def left_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


class Situation:
    """A published artifact, and what goes wrong with it."""

    def __init__(self, programs: Programs, layer: Path, until: ExitStack) -> None:
        self.programs, self.layer, self._until = programs, layer, until

    def behind(self, proxy: Proxy) -> dict[str, Any]:
        """Reach the registry through a proxy."""
        self._until.enter_context(proxy)
        self.programs.log_in_at(proxy.host)
        return {"repository": f"{proxy.host}/{REPOSITORY}"}

    def broken_off(self) -> dict[str, Any]:
        return self.behind(Proxy(self.programs.registry.host, cut_after=MIDDLE))

    def too_slow(self) -> dict[str, Any]:
        return {**self.behind(Proxy(self.programs.registry.host, hold_after=MIDDLE)), "deadline": 3}

    def truncated(self) -> dict[str, Any]:
        os.truncate(self.layer, MIDDLE)
        return {}

    def damaged(self) -> dict[str, Any]:
        content = bytearray(self.layer.read_bytes())
        content[MIDDLE : MIDDLE + 16] = bytes(16)
        self.layer.write_bytes(content)
        return {}

    def refused(self) -> dict[str, Any]:
        self.programs.log_in(self.programs.registry.account("wrong"))
        return {}

    def without_secret(self) -> dict[str, Any]:
        self.programs.log_in({})
        return {}


FAILURES: dict[str, tuple[Callable[[Situation], dict[str, Any]], str, str]] = {
    "the registry is down": (lambda _: {"repository": f"127.0.0.1:9/{REPOSITORY}"}, "Unreachable", "cannot be reached"),
    "the registry is too slow": (Situation.too_slow, "DeadlineExceeded", "longer than 3 s"),
    "the registry goes down in the middle": (Situation.broken_off, "Unreachable", "The transfer broke off"),
    "the account is wrong": (Situation.refused, "Denied", "HTTP 401"),
    "the Secret is missing": (Situation.without_secret, "SecretMissing", "The Secret does not exist"),
    "the layer is truncated": (Situation.truncated, "Unreachable", "The transfer broke off"),
    "the layer is damaged in the middle": (Situation.damaged, "Rejected", "The layer is damaged|The content of the layer is not|header"),
    "the files are above the limit": (lambda _: {"maxBytes": MIDDLE}, "TooLarge", f"more than {MIDDLE} bytes"),
    "the GPU is another one": (lambda _: {"parts": {"product": "H100"}}, "NotFound", "has neither the tag"),
    "the image is another one": (lambda _: {"readable": "v0.21.0-sm90"}, "NotFound", "has neither the tag v0.21.0"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_fetch_that_fails_leaves_nothing_and_stops_only_an_engine_that_requires_it(
    programs: Programs, large: Path, tmp_path: Path, failure: str
) -> None:
    spoil, reason, words = FAILURES[failure]
    settings = f"{list(FAILURES).index(failure):012x}"
    published = programs.run("publish", large, settings=settings)[1]
    with ExitStack() as until:
        situation = Situation(programs, layer_of(programs.registry, published["digest"]), until)
        for required, expected in ((False, 0), (True, 1)):
            change = {"deadline": 20, **spoil(situation)}
            status, result = programs.run("fetch", tmp_path / "cache", settings=settings, required=required, **change)
            assert (status, result["result"]) == (expected, reason), result
            assert any(word in result["message"] for word in words.split("|")), result
            assert result["message"].startswith("No caches could be fetched, and they are required: ") is required
            assert result["seconds"] < change["deadline"] + 10
            assert left_in(tmp_path / "cache") == []


def test_an_artifact_by_digest_of_another_gpu_is_refused_with_what_differs(programs: Programs, filled: Path, tmp_path: Path) -> None:
    digest = programs.run("publish", filled, settings="pinned", named={"model": "aaaaaaaa"})[1]["digest"]
    reference = f"{programs.registry.host}/{REPOSITORY}@{digest}"
    status, result = programs.run(
        "fetch", tmp_path / "cache", settings="pinned", reference=reference, parts={"product": "H100"}, named={"model": "bbbbbbbb"}
    )
    assert (status, result["result"]) == (0, "Mismatch")
    assert result["differs"] == "product H200 instead of H100; other values of model"
    assert left_in(tmp_path / "cache") == []


def test_settings_that_differ_are_named_after_a_fetch_that_fits_partly(programs: Programs, filled: Path, tmp_path: Path) -> None:
    named = {"model": "aaaaaaaa", "--max-num-seqs": "11111111"}
    programs.run("publish", filled, settings="p1", readable="partly", named=named)
    named = {"model": "aaaaaaaa", "--max-num-seqs": "22222222", "VLLM_USE_V2": "33333333"}
    result = programs.run("fetch", tmp_path / "cache", settings="p2", readable="partly", named=named)[1]
    assert (result["result"], result["differs"]) == ("PartlyFetched", "other values of --max-num-seqs, VLLM_USE_V2")


def test_a_volume_that_fills_up_in_the_middle_is_left_empty(programs: Programs, filled: Path, tmp_path: Path) -> None:
    prefix = ("unshare", "--map-root-user", "--mount")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode:
        pytest.skip("This machine lets nobody mount a volume.")
    fill(filled, {f"triton/small/{number}": b"x" for number in range(400)})
    os.utime(filled / "triton", (1e9, 1e9))
    for path in (filled / "triton").rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert programs.run("publish", filled, settings="full")[1]["result"] == "Published"
    volume = tmp_path / "volume"
    script = f'mount -t tmpfs -o size=800k none {volume} && "$@"; status=$?; ls -A {volume} > {tmp_path}/left; exit $status'
    status, result = programs.run("fetch", volume, settings="full", prefix=(*prefix, "sh", "-c", script, "sh"))
    assert (status, result["result"]) == (0, "NoSpace"), result
    assert "No space left on device" in result["message"]
    assert (tmp_path / "left").read_text() == ""


@pytest.mark.parametrize("kill", [subprocess.Popen.terminate, subprocess.Popen.kill], ids=["the Pod is stopped", "the node reboots"])
def test_what_an_interrupted_fetch_leaves_is_completed_and_removed(
    programs: Programs, large: Path, tmp_path: Path, kill: Callable[[Any], None]
) -> None:
    settings, root = kill.__name__, tmp_path / "cache"
    programs.run("publish", large, settings=settings)
    with Proxy(programs.registry.host, hold_after=MIDDLE) as proxy:
        programs.log_in_at(proxy.host)
        running = programs.start("fetch", root, settings=settings, repository=f"{proxy.host}/{REPOSITORY}")
        assert proxy.holding.wait(100)
        kill(running)
        result = programs.end(running)[1]
    was_told = kill is subprocess.Popen.terminate
    assert result.get("result") == ("Interrupted" if was_told else None)
    assert files_of(root) == {} or not was_told
    programs.log_in(programs.registry.account())
    assert programs.run("fetch", root, settings=settings)[1]["result"] == "Fetched"
    for path in root.iterdir():
        os.utime(path, (1e9, 1e9))
    assert programs.run("fetch", root, settings=settings)[1]["result"] == "Present"
    assert not [name for name in left_in(root) if "staging" in name]
    assert (root / "triton" / "large").stat().st_size == LARGE


def test_of_two_publications_at_once_the_first_wins(programs: Programs, large: Path, tmp_path: Path) -> None:
    with Proxy(programs.registry.host, hold_after=MIDDLE, is_upstream=True) as proxy:
        programs.log_in_at(proxy.host)
        second = programs.start("publish", large, settings="race", repository=f"{proxy.host}/{REPOSITORY}")
        assert proxy.holding.wait(100)
        programs.log_in(programs.registry.account())
        other = fill(tmp_path / "other", {"triton/own/kernel.json": b"{}"})
        for path in (other, *other.rglob("*")):
            os.utime(path, (1e9, 1e9))
        first = programs.run("publish", other, settings="race")[1]
        assert first["result"] == "Published"
        proxy.release()
        status, result = programs.end(second)
    assert (status, result["result"], result["digest"]) == (0, "AlreadyPublished", first["digest"])
    assert programs.run("fetch", tmp_path / "cache", settings="race")[1]["digest"] == first["digest"]


@pytest.mark.parametrize("kill", [subprocess.Popen.terminate, subprocess.Popen.kill], ids=["is stopped", "is killed"])
def test_a_publication_that_is_interrupted_tags_nothing(programs: Programs, large: Path, kill: Callable[[Any], None]) -> None:
    settings = f"half-{kill.__name__}"
    before = programs.registry.tags(REPOSITORY)
    with Proxy(programs.registry.host, hold_after=MIDDLE, is_upstream=True) as proxy:
        programs.log_in_at(proxy.host)
        running = programs.start("publish", large, settings=settings, repository=f"{proxy.host}/{REPOSITORY}", readable=settings)
        assert proxy.holding.wait(100)
        kill(running)
        status, result = programs.end(running)
    assert (status != 0, result.get("result")) == (True, "Interrupted" if kill is subprocess.Popen.terminate else None)
    assert programs.registry.tags(REPOSITORY) == before
    programs.log_in(programs.registry.account())
    assert programs.run("publish", large, settings=settings, readable=settings)[1]["result"] == "Published"


def test_a_registry_that_takes_no_pushes_is_named(environment: Environment, filled: Path, tmp_path: Path) -> None:
    control_plane = environment.control_plane
    registry = Registry(tmp_path / "registry", control_plane.authority, control_plane.authority_key, read_only=True)
    registry.start()
    try:
        status, result = Programs(registry, tmp_path).run("publish", filled, settings="read-only")
    finally:
        registry.stop()
    assert (status, result["result"]) == (1, "Denied")
    assert "does not accept it (HTTP 405)" in result["message"]
