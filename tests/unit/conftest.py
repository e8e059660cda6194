"""Fixtures of the tests on a cluster in memory, and of those on a registry in memory."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.artifacts import fill, pack_all
from support.fleet import Fleet
from support.operators import Bench
from support.registries import BASE, TAG, ArtifactBench, FakeRegistry, run_registry
from vllm_operator.tools.pack import Packed


@pytest.fixture
def bench() -> Bench:
    """The operator's inside, everything real but the API server."""
    return Bench()


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    """What the controllers of that cluster would do, by hand."""
    return Fleet(bench)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    """A registry in memory."""
    with run_registry() as running:
        yield running


@pytest.fixture
def packed(registry: FakeRegistry, tmp_path: Path) -> Packed:
    """An artifact in the registry."""
    layer = io.BytesIO()
    made = pack_all(fill(tmp_path / "made"), layer, base=BASE, tag=TAG)
    registry.add(made, layer.getvalue(), TAG, BASE)
    return made


@pytest.fixture
def artifact_bench(registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactBench:
    """The programs that fetch and publish, on a cache directory that belongs to the operator and is empty."""
    root = tmp_path / "cache"
    root.mkdir()
    (root / ".vllm-operator-key").touch()
    return ArtifactBench(registry, root, tmp_path, monkeypatch)
