"""One rank of an engine on several nodes: prints what a recorded one printed, and meets the others where the arguments say.

ENGINE_RANKS    the recording: a log of each rank (h100-good)
ENGINE_EXIT     how it ends after the last line of a log that does not serve; otherwise it lives on, in silence
ENGINE_ORDERS   folder with orders for Pods, each in a file with its name: `ENGINE_EXIT=1`, read at the start. At any time, a file
                POD-exit-STATUS ends the engine of a Pod once, and while there is POD-hang, it has requests and its core is stopped
"""

import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from engine.recording import find_recording
from engine.start import write
from testenv.replay import SERVING, read_recording

MEETS = b"distributed_init_method="
RUNS = b"Kernel JIT monitor activated"
"""The last line of a follower that is about its start."""


def take_part(rank: int, size: int, address: tuple[str, int]) -> list[socket.socket]:
    """Start; return the connections to followers when a leader would serve, and never in a follower or if nothing serves."""
    read_orders(Path(os.environ.get("ENGINE_ORDERS", "/nonexistent")), socket.gethostname())
    path = find_recording(f"{os.environ.get('ENGINE_RANKS', 'h100-good')}-rank{rank}")
    lines = read_recording(path, until=b"")
    speed, due, before = float(os.environ.get("ENGINE_SPEED", "20")), time.monotonic(), 0.0
    peers: list[socket.socket] = []
    for line in lines:
        due, before = due + (line.seconds - before) / speed, line.seconds
        time.sleep(max(0.0, due - time.monotonic()))
        write(line.data)
        if MEETS in line.data:
            peers = await_followers(size, address[1]) if rank == 0 else [await_leader(address)]
            due = time.monotonic()
        if SERVING in line.data:
            return peers
        if RUNS in line.data and rank:
            peers[0].recv(1)  # until the leader is gone; a leader does not notice that a follower is
    if status := os.environ.get("ENGINE_EXIT"):
        os._exit(int(status))
    while True:
        threading.Event().wait()


def await_followers(size: int, port: int) -> list[socket.socket]:
    with socket.create_server(("", port)) as server:
        peers = [server.accept()[0] for _ in range(size - 1)]
    for peer in peers:
        peer.send(b".")
    return peers


def await_leader(address: tuple[str, int]) -> socket.socket:
    while True:
        with suppress(OSError):
            leader = socket.create_connection(address, timeout=5)
            leader.settimeout(None)
            if leader.recv(1):
                return leader
        time.sleep(0.2)


def read_orders(folder: Path, pod: str) -> None:
    with suppress(FileNotFoundError):
        os.environ.update(dict(line.split("=", 1) for line in (folder / pod).read_text().splitlines()))
    threading.Thread(target=_end_on_order, args=(folder, f"{pod}-exit-*"), daemon=True).start()


def _end_on_order(folder: Path, pattern: str) -> None:
    while True:
        for order in folder.glob(pattern):
            order.unlink()
            os._exit(int(order.name.rpartition("-")[2]))
        time.sleep(0.1)


def hangs() -> bool:
    is_told = os.path.exists(f"{os.environ.get('ENGINE_ORDERS')}/{socket.gethostname()}-hang")
    return is_told and bool(_stopped_core())


@cache
def _stopped_core() -> subprocess.Popen[bytes]:
    core = subprocess.Popen(["VLLM::EngineCore", "infinity"], executable="sleep")
    core.send_signal(signal.SIGSTOP)
    return core
