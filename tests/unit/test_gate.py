"""The gate runs every part whatever became of the others, and says at the end what passed, failed and was skipped."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("install", "testenv", "check", "docs", "test", "test-extended", "test-node")
PYTHON = """\
#!/bin/sh
case "$3" in
  packages) echo "containerd runc" ;;
  check) if [ -e ../node ]; then echo yes; else echo "Not installed: containerd."; exit 1; fi ;;
esac
"""


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Machine:
    """A checkout with parts that do nothing but say so, on a machine with an apt-get that installs a node, or does not."""

    def __init__(self, folder: Path, *, user: int = 0, apt: str = "touch ../node") -> None:
        self.folder = folder
        checkout = folder / "checkout"
        (checkout / ".ci").mkdir(parents=True)
        self.gate = Path(shutil.copy(ROOT / ".ci" / "run", checkout / ".ci"))
        script(checkout / ".venv" / "bin" / "python", PYTHON)
        script(folder / "bin" / "id", f"#!/bin/sh\necho {user}\n")
        script(folder / "bin" / "apt-get", f'#!/bin/sh\necho "apt-get $*" >>../calls\n[ "$1" = update ] || {{ {apt}; }}\n')
        self.fail()

    def fail(self, *failing: str) -> None:
        """Let parts fail from now on."""
        lines = [f"{part}:\n\t@echo {part} >>../calls; echo words of {part}; {'exit 3' if part in failing else ':'}\n" for part in PARTS]
        (self.folder / "checkout" / "Makefile").write_text(f".PHONY: {' '.join(PARTS)}\n" + "".join(lines))

    def run(self) -> tuple[int, str]:
        path = f"{self.folder / 'bin'}:/usr/bin:/bin"
        done = subprocess.run([str(self.gate)], env={"PATH": path, "HOME": "/"}, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


def end_of(output: str) -> list[str]:
    return output.partition("==> all parts\n")[2].splitlines()


def test_on_a_fresh_machine_it_installs_what_a_node_needs_and_runs_everything(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    status, output = machine.run()
    assert status == 0
    assert sorted(machine.calls()) == sorted(
        [*PARTS, "apt-get update", "apt-get -o DPkg::Lock::Timeout=120 install --yes --no-remove --no-install-recommends containerd runc"]
    )
    assert [line.split()[1:3] for line in end_of(output)] == [[part, "passed"] for part in PARTS]
    assert all(f"words of {part}\n" in output for part in PARTS)


@pytest.mark.parametrize("failing", [("check",), ("test-node",), ("install", "testenv", "test", "test-extended")])
def test_a_part_that_fails_keeps_no_other_from_running(failing: tuple[str, ...], tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.fail(*failing)
    status, output = machine.run()
    assert status == 1
    assert set(PARTS) <= set(machine.calls())
    assert {line.split()[1] for line in end_of(output) if "FAILED with status 2" in line} == set(failing)
    assert len(end_of(output)) == len(PARTS)


@pytest.mark.parametrize(("user", "apt"), [(1000, "touch ../node"), (0, "echo 'E: Unable to locate package runc'; exit 100")])
def test_what_cannot_run_is_skipped_aloud(user: int, apt: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, user=user, apt=apt)
    status, output = machine.run()
    assert status == 0
    assert "test-node" not in machine.calls()
    assert "==> SKIPPED make test-node: Not installed: containerd." in output
    assert "make test-node       SKIPPED: Not installed: containerd." in end_of(output)
    assert ("E: Unable to locate package runc" in output) == (user == 0)


def test_a_machine_that_has_all_is_left_as_it_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "node").touch()
    assert machine.run()[0] == 0
    assert sorted(machine.calls()) == sorted(PARTS)


def test_the_gate_runs_every_target_that_checks_or_tests_and_the_readme_says_what_each_covers() -> None:
    gate = (ROOT / ".ci" / "run").read_text()
    readme = (ROOT / "README.md").read_text()
    for target in ("check", "docs", "test", "test-extended", "test-node"):
        assert f"make {target}" in gate, target
        assert f"make {target} " in readme, target
    assert ".ci/run " in readme
