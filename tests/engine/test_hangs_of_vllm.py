"""Hangs of the real vLLM on CPUs, found and ended by the readiness probe as the kubelet runs it, every 15 seconds.

A start takes half a minute or more, and each hang three minutes.
"""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.vllm_on_cpus import MODEL, NEEDED, Server, free_port, wait_until

pytestmark = NEEDED
FLAGS = (
    *("--enforce-eager", "--dtype", "float32", "--max-model-len", "32768", "--max-num-seqs", "2", "--kv-cache-memory-bytes", "67108864"),
    "--enable-server-load-tracking",
)
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


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    (tmp_path / "hang").touch()
    variables = {"PYTHONPATH": str(tmp_path), "HANG_FILE": str(tmp_path / "hang"), "VLLM_SERVER_DEV_MODE": "1"}
    port = free_port()
    made = Server(tmp_path, [MODEL, *FLAGS, "--port", str(port)], variables, port=port)
    try:
        wait_until(lambda: made.answers("/health") is not None or made.ended.is_set())
        assert not made.ended.is_set(), made.log[-4000:]
        made.send(8).join()
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("title", ["::EngineCore", "::Worker"])
def test_a_stopped_process_of_a_busy_engine_is_found_named_and_ended(engine: Server, title: str) -> None:
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


def test_a_hang_that_begins_while_the_engine_is_idle_is_found(engine: Server) -> None:
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


def test_a_blocked_scheduler_and_blocked_tokenizers_are_found_and_named(engine: Server) -> None:
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
    os.kill(engine.pid, signal.SIGUSR2)
    engine.send(8)
    failed = engine.probe_until(200, action="Report")
    assert failed is not None
    assert failed[0] <= 112
    assert "1 request arrived, and nothing has reached the engine" in failed[1]


def test_stacks_of_an_engine_that_waits_are_in_its_log(engine: Server) -> None:
    engine.send(20000)
    worker = engine.pid_of("::Worker")
    assert engine.probe() == (0, "")
    os.kill(worker, signal.SIGSTOP)  # the engine core waits for it, and can write its stacks
    engine.probe_until(260)
    engine.process.wait(15)
    log = engine.log
    assert "Fatal Python error: Aborted" in log
    assert "run_busy_loop" in log.partition("Fatal Python error: Aborted")[2]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT], ids=lambda number: number.name)
def test_a_server_whose_engine_has_ended_ends_too(engine: Server, number: signal.Signals) -> None:
    engine.send(20000)
    assert engine.probe() == (0, "")
    for pid in [engine.pid_of(title) for title in ("::EngineCore", "::Worker")]:
        os.kill(pid, number)
    failed = engine.probe_until(90)
    assert failed is None or failed[1].startswith(("The server cannot be reached: ", "/health answers 503"))
    engine.process.wait(15)


def test_clients_that_leave_a_paused_and_a_busy_engine_are_no_hang(engine: Server) -> None:
    engine.send(30000, seconds=2).join()  # the client leaves, and the engine is idle
    assert engine.probe_until(150, action="Report") is None
    assert engine.answers("/pause", post=True) is not None
    engine.send(8)
    assert engine.probe_until(150, action="Report") is None
    assert engine.answers("/resume", post=True) is not None
    assert engine.answers("/sleep?level=1", post=True) is not None
    engine.send(8)
    assert engine.probe_until(150, action="Report") is None
