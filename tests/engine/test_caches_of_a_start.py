"""A process that pays for every cache it does not find shows that none is forgotten."""

import os
import shutil
from pathlib import Path

import pytest

from engine.caches import BYTECODE, CACHES
from support.engine import Node
from vllm_operator.api.spec import Distribution
from vllm_operator.catalog.loader import load_catalog

VARIABLES = {v.name: v.value for v in load_catalog().caches.variables_of("0.20.1", Distribution.VLLM)}
COLD = sum(cache.seconds for cache in CACHES)
READ = sorted({name for cache in CACHES for name in (cache.variable, cache.switch) if name})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "volume")


def test_the_prices_are_those_measured() -> None:
    bytecode = (41.68 + 42.66) / 2 - (26.13 + 28.44 + 31.12) / 3
    assert pytest.approx(458.8 - 34.9 + bytecode, abs=0.1) == COLD


def test_a_second_start_pays_for_nothing(node: Node) -> None:
    first, second = node.run(VARIABLES), node.run(VARIABLES)
    assert (first.status, second.status) == (0, 0)
    assert first.seconds == pytest.approx(COLD)
    assert {name: seconds for name, seconds in second.paid.items() if seconds} == {}


def test_without_the_operator_every_start_pays_for_all(node: Node) -> None:
    assert [node.run({}).seconds for _ in range(2)] == pytest.approx([COLD, COLD])


@pytest.mark.parametrize("variable", READ)
def test_each_variable_is_needed(node: Node, variable: str) -> None:
    """Were one forgotten, the second start would pay again, unless the cache is then in a home that is kept."""
    forgotten = {name: value for name, value in VARIABLES.items() if name != variable}
    node.run(forgotten)
    paid = {name for name, seconds in node.run(forgotten).paid.items() if seconds}
    caught = {cache.name for cache in CACHES if cache.default.startswith(("~", "$VLLM_CACHE_ROOT")) and not cache.switch}
    lost = {cache.name for cache in CACHES if variable in (cache.variable, cache.switch)}
    assert paid == (lost if variable == "HOME" else lost - caught)


def test_a_start_that_is_killed_goes_on_where_it_was(node: Node) -> None:
    killed = node.run(VARIABLES, kill_at="DeepGEMM warmup:  43%")
    assert killed.status < 0
    assert killed.seconds > 0
    rest = node.run(VARIABLES)
    assert rest.status == 0
    assert 0 < rest.seconds <= COLD - killed.seconds + max(cache.seconds / cache.units for cache in CACHES)


def test_another_key_is_another_cache(node: Node) -> None:
    node.run(VARIABLES, "one")
    assert node.run(VARIABLES, "two").seconds == pytest.approx(COLD)
    assert node.run(VARIABLES, "one").seconds == 0


def test_nothing_but_the_volume_is_needed(node: Node, tmp_path: Path) -> None:
    """The volume moves to another node: all that is kept goes with it."""
    node.run(VARIABLES)
    shutil.move(node.volume, tmp_path / "moved")
    assert Node(tmp_path / "moved").run(VARIABLES).seconds == 0


def test_bytecode_that_cannot_be_written_is_compiled_at_each_start(node: Node) -> None:
    """The user forbids it; everything else is as warm as ever."""
    forbidden = VARIABLES | {"PYTHONDONTWRITEBYTECODE": "1"}
    node.run(forbidden)
    assert {name for name, seconds in node.run(forbidden).paid.items() if seconds} == {BYTECODE}


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_volume_that_cannot_be_written_is_fatal(node: Node) -> None:
    node.run(VARIABLES)
    for path in (node.volume, *node.volume.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert "Permission denied" in node.run(VARIABLES).log
