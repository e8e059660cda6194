"""What Python itself does with its bytecode on a volume: the operator relies on it, and names the one thing that is fatal."""

import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser

MODULES = 12
HEADER = 16
PROGRAM = "import package; print(package.total)"


class Container:
    """Runs programs that import a package, with the variables that a container has."""

    def __init__(self, folder: Path) -> None:
        self.sources = folder / "image" / "package"
        self.prefix = folder / "volume" / "bytecode"
        self.sources.mkdir(parents=True)
        for number in range(MODULES):
            functions = "\n".join(f"def function_{each}(value):\n    return value + {each} * {number}" for each in range(100))
            (self.sources / f"module{number}.py").write_text(functions + f"\nvalue = {number}\n")
        imports = "\n".join(f"from package.module{number} import value as value{number}" for number in range(MODULES))
        total = " + ".join(f"value{number}" for number in range(MODULES))
        (self.sources / "__init__.py").write_text(f"{imports}\ntotal = {total}\n")

    def start(self, variables: Mapping[str, str] | None = None, before: Callable[[], None] | None = None) -> "subprocess.Popen[str]":
        environment = {"PYTHONPATH": str(self.sources.parent), "PYTHONPYCACHEPREFIX": str(self.prefix), "PYTHONVERBOSE": "1"}
        environment |= dict(variables or {})
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
            preexec_fn=before,
            cwd=self.sources.parent,
        )

    def run(self, variables: Mapping[str, str] | None = None, before: Callable[[], None] | None = None) -> tuple[int, str, str]:
        """Exit status, output, and what Python says of its imports."""
        with self.start(variables, before) as process:
            output, said = process.communicate(timeout=60)
        return process.returncode, output.strip(), said

    def kept(self, module: str = "module1") -> Path:
        """The file of a module's bytecode on the volume."""
        [path] = self.prefix.rglob(f"{module}.*.pyc")
        return path


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


WANT = str(sum(range(MODULES)))


def loaded(said: str) -> int:
    """How many modules of the package came from bytecode."""
    return sum("matches" in line and f"{os.sep}package{os.sep}" in line for line in said.splitlines())


def test_the_second_start_compiles_nothing_and_leaves_the_image_alone(container: Container) -> None:
    (first, second) = container.run(), container.run()
    assert (first[:2], second[:2]) == ((0, WANT), (0, WANT))
    assert (loaded(first[2]), loaded(second[2])) == (0, MODULES + 1)
    assert "# created" not in second[2]
    assert list(container.sources.rglob("__pycache__")) == []


def test_an_image_that_forbids_bytecode_is_overruled_by_the_empty_value(container: Container) -> None:
    container.run({"PYTHONDONTWRITEBYTECODE": "1"})
    assert not container.prefix.exists()
    container.run({"PYTHONDONTWRITEBYTECODE": ""})
    assert loaded(container.run()[2]) == MODULES + 1


def test_bytecode_of_the_image_is_hidden_by_the_prefix_and_used_where_the_prefix_is_empty(container: Container) -> None:
    container.run({"PYTHONPYCACHEPREFIX": ""})
    assert len(list(container.sources.rglob("*.pyc"))) == MODULES + 1
    assert loaded(container.run()[2]) == 0
    assert loaded(container.run({"PYTHONPYCACHEPREFIX": ""})[2]) == MODULES + 1
    # hidden only once: then the volume has it
    assert loaded(container.run()[2]) == MODULES + 1


def test_another_image_behind_the_same_key_is_compiled_again(container: Container) -> None:
    container.run()
    source = container.sources / "module1.py"
    source.write_text(source.read_text().replace("value = 1\n", "value = 21\n"))
    assert container.run()[:2] == (0, str(int(WANT) + 20))


def test_many_processes_fill_an_empty_volume_at_once(container: Container) -> None:
    started = [container.start() for _ in range(8)]
    results = [(process.communicate(timeout=60)[0].strip(), process.returncode) for process in started]
    assert results == [(WANT, 0)] * 8
    assert loaded(container.run()[2]) == MODULES + 1


def limit_files() -> None:
    """Files end after some bytes, as on a full volume."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))


def test_a_volume_that_is_full_is_not_fatal(container: Container) -> None:
    assert container.run(before=limit_files)[:2] == (0, WANT)
    status, _, said = container.run()
    # Python before 3.12.8 keeps what it has written of a file (python/cpython#126606): fatal at the next start, and known by name
    assert status == 0 or crash_of(said) == "BytecodeCorrupt"


def test_a_volume_that_cannot_be_written_is_not_fatal(container: Container) -> None:
    container.prefix.parent.mkdir()
    container.prefix.write_text("a file, so that no directory can be made, not even by root")
    assert container.run()[:2] == (0, WANT)


def crash_of(said: str) -> str | None:
    """The name of a crash that a log ends with."""
    parser = StartupParser(load_startup())
    parser.feed("".join(f"{line}\n" for line in said.splitlines() if not line.startswith(("#", "import "))))
    parser.end()
    crash = parser.final_state.crash
    return crash.signature if crash else None


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], bool]] = {
    "it is empty, as after a loss of power": (lambda data: b"", False),
    "not even its header is whole": (lambda data: data[:10], False),
    "all of it is zero": (lambda data: bytes(len(data)), False),
    "it is of another Python": (lambda data: struct.pack("<H", 1) + data[2:], False),
    "it ends after its header": (lambda data: data[:HEADER], True),
    "it ends early": (lambda data: data[: len(data) // 2], True),
    "its end is zero": (lambda data: data[:1000] + bytes(len(data) - 1000), True),
    "it holds no code": (lambda data: data[:HEADER] + b"N", True),
}


@pytest.mark.parametrize(("damage", "fatal"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_bytecode_is_replaced_or_a_crash_that_is_known_by_name(
    container: Container, damage: Callable[[bytes], bytes], fatal: bool
) -> None:
    container.run()
    path = container.kept()
    whole = path.read_bytes()
    assert whole.startswith(MAGIC_NUMBER)
    path.write_bytes(damage(whole))
    status, output, said = container.run()
    assert (status, output) == ((1, "") if fatal else (0, WANT))
    assert crash_of(said) == ("BytecodeCorrupt" if fatal else None)
    # what is fatal once is fatal at each start, until somebody takes the file away
    assert container.run()[0] == status
