"""Where the node suite cannot run, it says why and what can be done."""

import os
import shutil
import subprocess
import sys

import pytest

from nodeenv import NodeEnvironment, missing_requirements
from support.sessions import require_node


@pytest.fixture(autouse=True)
def fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has everything."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr("nodeenv.configuration.CNI_PLUGINS", ("/",))
    monkeypatch.setattr("pathlib.Path.exists", lambda path: True)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, "", ""))


def test_a_machine_that_has_everything_is_fit() -> None:
    assert missing_requirements() == ""


def test_another_system_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert missing_requirements() == "Linux containers need Linux. Use a virtual machine."


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing_requirements() == "A kubelet needs root. Run it as root, for example with sudo."


def test_programs_that_are_missing_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None if program in ("containerd", "buildah") else "/usr/bin/x")
    monkeypatch.setattr("pathlib.Path.exists", lambda path: False)
    said = missing_requirements()
    assert said.startswith("Not installed: containerd, buildah, the CNI plugins. On Debian and Ubuntu: apt-get install containerd runc")


def test_a_root_without_rights_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "unshare: unshare failed: Operation not permitted"
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", words))
    assert missing_requirements() == f"Root may not make namespaces here ({words}). In a container: run it with --privileged."


def test_the_node_is_stopped_and_its_data_removed_though_the_control_plane_cannot_be_stopped() -> None:
    done: list[str] = []

    class Part:
        def __init__(self, name: str, *, fails: bool = False) -> None:
            self.name, self.fails = name, fails

        def stop(self) -> None:
            done.append(self.name)
            if self.fails:
                raise OSError("it is stuck")

        cleanup = stop

    environment = NodeEnvironment.__new__(NodeEnvironment)
    parts = {"control_plane": Part("control plane", fails=True), "node": Part("node"), "_temporary": Part("folder")}
    for name, part in parts.items():
        setattr(environment, name, part)
    with pytest.raises(OSError, match="stuck"):
        environment.stop()
    assert done == ["control plane", "node", "folder"]


def test_a_node_that_could_not_be_built_is_a_failure_and_no_skip() -> None:
    require_node("", "")
    with pytest.raises(pytest.skip.Exception, match="A kubelet needs root"):
        require_node("A kubelet needs root.", "")
    with pytest.raises(pytest.fail.Exception, match="debootstrap failed"):
        require_node("", "debootstrap failed: no network")
