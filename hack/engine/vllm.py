#!/usr/bin/env python3
"""An engine without a GPU: prints what a recorded engine printed, keeps caches as it does, and serves.

It starts warm if every cache directory that its environment names holds something, cold otherwise, and fills them
once it has started. What it does is set by variables, so that a VLLMDeployment can say it in `engine.env`:

    ENGINE_SPEED      how many times faster than the recording (20)
    ENGINE_RECORDING  another recording than `cold` or `warm`; one that does not end with serving ends with status 1
    ENGINE_EXIT       end after so many seconds, with status 1 and without a word
    ENGINE_EAT        take memory without end after so many seconds
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from testenv.replay import SERVING, read_recording

RECORDINGS = Path(__file__).resolve().parent / "recordings"
CACHES = (
    "VLLM_CACHE_ROOT",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "DG_JIT_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
    "CUDA_CACHE_PATH",
)
COMPILED = b"compiled\n" * 100


class Handler(BaseHTTPRequestHandler):
    """The few paths that probes and users ask for."""

    def do_GET(self) -> None:
        answers = {
            "/health": b"",
            "/v1/models": json.dumps({"object": "list", "data": [{"id": sys.argv[2], "object": "model"}]}).encode(),
            "/metrics": b"vllm:num_requests_running 0\n",
        }
        body = answers.get(self.path)
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")


def main() -> int:
    if len(sys.argv) < 3 or sys.argv[1] != "serve":
        print("usage: vllm serve MODEL [--port PORT]", file=sys.stderr)
        return 2
    for name, act in (("ENGINE_EXIT", lambda: os._exit(1)), ("ENGINE_EAT", eat)):
        if seconds := os.environ.get(name):
            threading.Timer(float(seconds), act).start()
    folders = [Path(os.environ[name]) for name in CACHES if os.environ.get(name)]
    warm = len(folders) == len(CACHES) and all(is_filled(folder) for folder in folders)
    name = os.environ.get("ENGINE_RECORDING") or ("warm" if warm else "cold")
    if not play(RECORDINGS / f"{name}.log", float(os.environ.get("ENGINE_SPEED", "20"))):
        return 1
    for folder in folders:
        fill(folder)
    ThreadingHTTPServer(("", port()), Handler).serve_forever()
    return 0


def play(path: Path, speed: float) -> bool:
    """Print a recording; return whether it ends with serving."""
    begun = time.monotonic()
    serving = False
    for output in read_recording(path):
        time.sleep(max(0.0, begun + output.seconds / speed - time.monotonic()))
        sys.stdout.buffer.write(output.data)
        sys.stdout.buffer.flush()
        serving = serving or SERVING in output.data
    return serving


def is_filled(folder: Path) -> bool:
    return any(path.is_file() and path.stat().st_size for path in folder.rglob("*"))


def fill(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernels.bin").write_bytes(COMPILED)


def eat() -> None:
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1 << 20) * 16))


def port() -> int:
    arguments = sys.argv[3:]
    given = [value for name, value in itertools.pairwise(arguments) if name == "--port"]
    given += [argument.partition("=")[2] for argument in arguments if argument.startswith("--port=")]
    return int(given[-1]) if given else 8000


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.exit(main())
