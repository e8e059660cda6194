"""Processes that tests start are certainly ours, and certainly end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testenv.processes import ProcessGroup, ProcessIdentity, end, start_moment

HACK = Path(__file__).parents[2] / "hack"


def wait_until_gone(identity: ProcessIdentity) -> None:
    deadline = time.monotonic() + 10
    while identity.is_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not identity.is_alive()


def test_a_process_is_known_by_its_start_not_by_its_pid_alone() -> None:
    ours = ProcessIdentity(os.getpid(), start_moment(os.getpid()))
    assert ours.is_alive()
    assert not ProcessIdentity(os.getpid(), "another moment").is_alive()
    assert not ProcessIdentity(os.getpid(), "").is_alive()


def test_a_process_that_will_not_end_is_killed(tmp_path: Path) -> None:
    group = ProcessGroup(tmp_path, keep=True)
    group.start(
        "stubborn",
        [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"],
    )
    deadline = time.monotonic() + 10
    while not group.log_tail("stubborn") and time.monotonic() < deadline:
        time.sleep(0.02)
    identity = ProcessIdentity(group.pid("stubborn"), start_moment(group.pid("stubborn")))
    end([identity], grace=0.1)
    group.stop("stubborn")
    assert not identity.is_alive()


@pytest.mark.parametrize("disposable", [True, False])
def test_what_a_killed_starter_leaves_is_ended_by_its_guard(tmp_path: Path, disposable: bool) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    script = (
        f"import sys, time; sys.path.insert(0, {str(HACK)!r})\n"
        "from pathlib import Path; from testenv.processes import ProcessGroup\n"
        f"group = ProcessGroup(Path({str(folder)!r}), disposable={disposable})\n"
        "group.start('child', ['sleep', '60']); print('up', flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    with starter.stdout:
        assert starter.stdout.readline() == b"up\n"
        (identity,) = ProcessGroup(folder).leftovers().values()
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    wait_until_gone(identity)
    assert ProcessGroup(folder).leftovers() == {}
    deadline = time.monotonic() + 10
    while folder.exists() == disposable and time.monotonic() < deadline:
        time.sleep(0.02)
    assert folder.exists() != disposable


def test_what_is_kept_outlives_its_starter_until_the_folder_is_stopped(tmp_path: Path) -> None:
    group = ProcessGroup(tmp_path, keep=True)
    child = group.start("child", ["sleep", "60"])
    later = ProcessGroup(tmp_path)
    assert list(later.leftovers()) == ["child"]
    assert later.stop_leftovers() == ["child"]
    assert child.wait() == -signal.SIGTERM
    assert later.stop_leftovers() == []


@pytest.mark.parametrize("register", ["", "[]", "{", '{"a": 1}', '{"a": {"pid": "x", "started": "y"}}'])
def test_a_damaged_register_is_no_process(tmp_path: Path, register: str) -> None:
    (tmp_path / "processes.json").write_text(register)
    assert ProcessGroup(tmp_path).leftovers() == {}


def test_a_register_of_strangers_ends_nobody(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / "processes.json").write_text(json.dumps({"etcd": {"pid": stranger.pid, "started": "another boot/1"}}))
        assert ProcessGroup(tmp_path).stop_leftovers() == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
