"""Binaries are found where they are, and built once where they are not."""

import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from testenv.binaries import BINARIES, BuildError, cache_root, ensure_binaries, find_binary, kubernetes_version
from testenv.toolchain import find_go

GO = """\
#!/bin/sh
case "$1" in
  version) echo "go version go1.26.0 linux/amd64" ;;
  build) while [ "$1" != -o ]; do shift; done; {action} ;;
esac
"""


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache and nothing on PATH but a shell's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("KUBEBUILDER_ASSETS", "TESTENV_KUBERNETES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TESTENV_RELEASES", "none")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path


def test_ready_made_ones_come_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = executable(machine / "assets" / "etcd").parent
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert find_binary("etcd") == assets / "etcd"
    assert find_binary("kube-apiserver") is None


def test_a_server_from_path_is_not_taken_a_client_is(machine: Path) -> None:
    executable(machine / "bin" / "etcd")
    client = executable(machine / "bin" / "kubectl")
    assert find_binary("etcd") is None
    assert find_binary("kubectl") == client


def test_what_is_missing_is_built_once_and_shown(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    executable(machine / "bin" / "go", GO.format(action='printf "#!/bin/sh\\n" > "$2"; chmod +x "$2"'))
    first = ensure_binaries(["etcd", "kwok"])
    assert "building etcd (1 of 2)" in capsys.readouterr().err
    assert all(path.is_relative_to(cache_root()) for path in first.values())
    assert ensure_binaries(["etcd", "kwok"]) == first
    assert capsys.readouterr().err == ""


def test_another_kubernetes_is_built_beside_the_usual_one_and_says_its_version(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    executable(machine / "bin" / "go", GO.format(action='(pwd; echo "$all") > "$2"; chmod +x "$2"').replace("while", "all=$*; while"))
    executable(machine / "bin" / "kubectl")
    monkeypatch.setenv("TESTENV_RELEASES", "http://127.0.0.1:1")  # nothing may be downloaded: releases are of the usual version
    names = ["kube-apiserver", "kubectl"]
    monkeypatch.setenv("TESTENV_KUBERNETES", "1.30")
    other = ensure_binaries(names)
    assert "download" not in capsys.readouterr().err
    folder, command = other["kube-apiserver"].read_text().splitlines()
    assert folder.endswith("/kubernetes-1.30")
    assert f"gitVersion=v{kubernetes_version()} " in command
    monkeypatch.setenv("TESTENV_RELEASES", "none")
    for usual in ("", kubernetes_version(minor="").rpartition(".")[0]):
        monkeypatch.setenv("TESTENV_KUBERNETES", usual)
        usual_one = ensure_binaries(names)
        assert usual_one["kube-apiserver"].read_text().splitlines()[0].endswith("/kubernetes")
        assert usual_one["kubectl"] == other["kubectl"]
    monkeypatch.setenv("TESTENV_KUBERNETES", "1.3")
    with pytest.raises(BuildError, match=r"^TESTENV_KUBERNETES is 1\.3; there are 1\.30\.\d+, .*\.$"):
        ensure_binaries(names)


def test_a_failed_build_says_why_and_leaves_nothing(machine: Path) -> None:
    executable(machine / "bin" / "go", GO.format(action='echo "etcd.go:1: no such thing" >&2; exit 1'))
    with pytest.raises(BuildError, match=r"^etcd could not be built:\netcd\.go:1: no such thing$"):
        ensure_binaries(["etcd"])
    assert find_binary("etcd") is None
    assert not list(cache_root().rglob(".building-*"))


def test_what_a_killed_build_left_is_removed_by_the_next_one(machine: Path) -> None:
    executable(machine / "bin" / "go", GO.format(action='printf "#!/bin/sh\\n" > "$2"; chmod +x "$2"'))
    [path] = ensure_binaries(["etcd"]).values()
    path.unlink()
    executable(path.parent / ".building-abc" / "etcd")
    ensure_binaries(["etcd"])
    assert [each.name for each in path.parent.iterdir()] == ["etcd"]


def test_a_toolchain_whose_installation_was_killed_is_installed_anew(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip moves one folder after the other; half of them say their version and build nothing."""
    monkeypatch.setenv("PATH", "/nonexistent")
    go = '#!/bin/sh\necho "go version go1.26.6 linux/amd64"\n'

    def killed(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if command[1:] == ["version"]:
            return real(command, **_)
        executable(Path(command[command.index("--target") + 1]) / "bin" / "go", go)
        raise KeyboardInterrupt

    real = subprocess.run
    monkeypatch.setattr("testenv.toolchain.subprocess.run", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            find_go(machine / "cache" / "go")

    def installs(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if command[1:] == ["version"]:
            return real(command, **_)
        executable(Path(command[command.index("--target") + 1]) / "bin" / "go", go)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("testenv.toolchain.subprocess.run", installs)
    found = find_go(machine / "cache" / "go")
    assert found.is_relative_to(machine / "cache" / "go")
    assert found.exists()
    assert len(list((machine / "cache" / "go").iterdir())) == 1


def test_every_binary_has_a_module_that_pins_it() -> None:
    tools = Path(__file__).parents[2] / "hack" / "testenv" / "tools"
    for name, binary in BINARIES.items():
        assert binary.package in (tools / binary.module / "go.mod").read_text(), name
