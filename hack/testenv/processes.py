"""Child processes that are certainly ours, and that certainly end; and ports for them.

A process is known by its pid and the moment it started: a pid alone may by now belong to somebody else. Both are
written to `processes.json` in the data folder, so that a later run can tell a living process of ours from a stranger.

Whoever starts processes may be killed at any time. A guard, a small process in a session of its own, holds the reading
end of a pipe from the starter: when the starter is gone, however it went, the pipe closes and the guard ends what was
written into it. Nothing is ever looked up or ended by name.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# How long a process may take to end after it was asked to, before it is killed, in seconds. An API server would wait
# much longer for its open watches; what it holds is thrown away anyway.
GRACE = 2.0
_SPARE_THE_FOLDER = b"spare the folder\n"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that cannot be mistaken for another one."""

    pid: int
    started: str

    def is_alive(self) -> bool:
        return bool(self.started) and start_moment(self.pid) == self.started


def start_moment(pid: int) -> str:
    """Returns when the process started, in the system's own words; empty if there is none, or only its remains."""
    try:
        # the name, in parentheses, may hold anything; state is field 3 and the start time field 22
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return "" if Path("/proc/self/stat").exists() else _start_moment_by_ps(pid)
    return "" if fields[0] in "ZX" else f"{boot}/{fields[19]}"


def _start_moment_by_ps(pid: int) -> str:
    outcome = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = outcome.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else started.strip()


class ProcessGroup:
    """The processes of one data folder: starts them, remembers them, ends them.

    With `keep` they outlive this process and are ended by whoever opens the folder next; without, a guard ends them
    together with it. If the folder is `disposable`, the guard of a killed starter removes it too.
    """

    def __init__(self, folder: Path, *, keep: bool = False, disposable: bool = False) -> None:
        self._folder = folder
        self._keep = keep
        self._disposable = disposable
        self._register = folder / "processes.json"
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._identities: dict[str, ProcessIdentity] = {}
        self._started: set[str] = set()
        self._guard: subprocess.Popen[bytes] | None = None

    def leftovers(self) -> dict[str, ProcessIdentity]:
        """Returns what an earlier run on this folder left running. Dead processes and strangers are not among it."""
        try:
            recorded = json.loads(self._register.read_text())
            identities = {name: ProcessIdentity(int(entry["pid"]), str(entry["started"])) for name, entry in recorded.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
        return {name: identity for name, identity in identities.items() if identity.is_alive()}

    def start(self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Starts a process in a session of its own; its output goes to NAME.log in the data folder."""
        if not self._keep and self._guard is None:
            self._guard = _start_guard(self._folder if self._disposable else None)
        # one log for all runs of a process in this environment, none from an earlier environment in the same folder
        mode = "ab" if name in self._started else "wb"
        self._started.add(name)
        with (self._folder / f"{name}.log").open(mode) as log:
            child = subprocess.Popen(
                [str(part) for part in command],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(environment or {}),
                start_new_session=True,
            )
        self._children[name] = child
        self._identities[name] = ProcessIdentity(child.pid, start_moment(child.pid))
        self._record()
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.write(json.dumps(asdict(self._identities[name])).encode() + b"\n")
            self._guard.stdin.flush()
        return child

    def stop(self, name: str, *, kill: bool = False) -> None:
        """Ends one process and waits until it is gone. Does nothing if it already is."""
        identity = self._identities.pop(name, None)
        child = self._children.pop(name, None)
        if identity is not None:
            end([identity], grace=0.0 if kill else GRACE)
        if child is not None:
            child.wait()
        self._record()

    def send_signal(self, name: str, number: signal.Signals) -> None:
        _signal([self._identities[name]], number)

    def stop_all(self) -> None:
        end(list(self._identities.values()))
        for child in self._children.values():
            child.wait()
        self._children.clear()
        self._identities.clear()
        if self._guard is not None and self._guard.stdin is not None:
            # the folder is then for the starter to remove, who may want to start again in it
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(_SPARE_THE_FOLDER)
                self._guard.stdin.close()
            self._guard.wait()
            self._guard = None
        self._register.unlink(missing_ok=True)

    def stop_leftovers(self) -> list[str]:
        leftovers = self.leftovers()
        end(list(reversed(leftovers.values())))
        self._register.unlink(missing_ok=True)
        return list(leftovers)

    def is_alive(self, name: str) -> bool:
        child = self._children.get(name)
        return child is not None and child.poll() is None

    def pid(self, name: str) -> int:
        return self._identities[name].pid

    def log_tail(self, name: str, lines: int = 15) -> str:
        try:
            text = (self._folder / f"{name}.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _record(self) -> None:
        unfinished = self._register.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({name: asdict(identity) for name, identity in self._identities.items()}, indent=1))
        unfinished.replace(self._register)


def end(identities: Sequence[ProcessIdentity], *, grace: float = GRACE) -> None:
    """Asks processes to end, and kills those that have not after `grace` seconds. Returns when all are gone."""
    deadline = time.monotonic() + grace
    if grace:
        _signal(identities, signal.SIGTERM)
        while any(identity.is_alive() for identity in identities) and time.monotonic() < deadline:
            time.sleep(0.02)
    _signal(identities, signal.SIGKILL)
    while any(identity.is_alive() for identity in identities):
        time.sleep(0.02)


def _signal(identities: Sequence[ProcessIdentity], number: signal.Signals) -> None:
    for identity in identities:
        if identity.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(identity.pid, number)


def _start_guard(disposable: Path | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", __file__, *([str(disposable)] if disposable else [])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def guard(disposable: Path | None) -> None:
    """Reads identities until the starter closes the pipe or dies, then ends those that still live."""
    identities = []
    for line in sys.stdin.buffer:
        if line == _SPARE_THE_FOLDER:
            disposable = None
            continue
        with contextlib.suppress(ValueError):
            identities.append(ProcessIdentity(**json.loads(line)))
    end([identity for identity in identities if identity.is_alive()])
    if disposable:
        shutil.rmtree(disposable, ignore_errors=True)


# Below the range from which systems take ports for outgoing connections: a port of ours that is free for a moment,
# because its server restarts, is not snatched by somebody's client.
_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens on at this moment."""
    found: list[int] = []
    for port in random.sample(_PORTS, k=len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError("There is no free port left between 20000 and 32000.")


def accepts_connections(port: int, address: str = "127.0.0.1") -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


if __name__ == "__main__":
    guard(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
