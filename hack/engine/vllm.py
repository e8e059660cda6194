#!/usr/bin/env python3
"""`vllm serve` without a GPU: starts as `engine.start` does, ends as `engine.crash` is told, and serves what probes ask for.

On SIGTERM it ends as vLLM 0.18 and later do: requests in progress are aborted, or have as long as `--shutdown-timeout` says.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from engine.crash import read_crash, replay
from engine.ranks import hangs, take_part
from engine.start import Engine, log

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0.0
"""

STATS_SECONDS = 10
"""Interval between the lines of the log that say how many requests there are, as in vLLM."""

_LOCK = threading.Lock()


class Server(ThreadingHTTPServer):
    """Counts its answers in progress."""

    daemon_threads = True
    request_queue_size = 128
    answers = 0

    def log_stats(self) -> None:
        """Log the number of answers in progress for ever, unless there are and were none."""
        before = 0
        while True:
            time.sleep(STATS_SECONDS)
            now = self.answers
            if now or before:
                log("loggers.py:310", f"Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: {now} reqs, Waiting: 0 reqs")
            before = now

    def drain(self, seconds: float) -> None:
        """Refuse further requests, and end the process after the last answer or when the time is over."""
        until = time.monotonic() + seconds
        self.shutdown()
        self.server_close()
        while self.answers and time.monotonic() < until:
            time.sleep(0.05)
        os._exit(0)


class Handler(BaseHTTPRequestHandler):
    """The few paths that probes and users ask for, an answer that takes time, and the devices that the container was given."""

    server: Server

    def do_POST(self) -> None:
        """Answer `/v1/completions` with `max_tokens` words, ten a second or as `token_seconds` says, as a stream or at once."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with _LOCK:
            self.server.answers += 1
        try:
            self.send_response(200)
            self.end_headers()
            if request.get("stream"):
                for _ in range(request["max_tokens"]):
                    self.wfile.write(b'data: {"choices": [{"text": "word "}]}\n\n')
                    time.sleep(token_seconds())
                self.wfile.write(b"data: [DONE]\n\n")
            else:
                self.wfile.write(json.dumps({"choices": [{"text": "word " * request["max_tokens"]}]}).encode())
        finally:
            with _LOCK:
                self.server.answers -= 1

    def do_GET(self) -> None:
        model = served_name()
        answers = {
            "/health": "",
            "/v1/models": json.dumps({"object": "list", "data": [{"id": model, "object": "model", "owned_by": "vllm"}]}),
            "/metrics": METRICS.format(model=model, running=3.0 if hangs() else 0.0),
            "/devices": os.environ.get("NVIDIA_VISIBLE_DEVICES", ""),
        }
        body = answers.get(self.path)
        self.send_response(404 if body is None else 200)
        content = (body or "").encode()
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a recorded log has its own lines for this."""


def main() -> int:
    if len(sys.argv) < 3 or sys.argv[1] != "serve":
        print("usage: vllm serve MODEL [--port PORT]", file=sys.stderr)
        return 2
    crash = read_crash()
    if crash.recording:
        replay(crash.recording, float(os.environ.get("ENGINE_SPEED", "20")))
        return 1
    peers = []  # their connections end with this process
    if (size := int(argument("--nnodes") or 1)) > 1:
        peers = take_part(int(argument("--node-rank")), size, (argument("--master-addr"), int(argument("--master-port"))))
    elif status := Engine(crash.comes_before).start():
        return status
    crash.comes_while_serving()
    server = Server(("", int(argument("--port") or 8000)), Handler)
    drain = threading.Thread(target=server.drain, args=(float(argument("--shutdown-timeout") or 0),))
    signal.signal(signal.SIGTERM, lambda *_: drain.start())
    threading.Thread(target=server.log_stats, daemon=True).start()
    server.serve_forever()
    drain.join()
    del peers
    return 0


def served_name() -> str:
    return argument("--served-model-name") or sys.argv[2]


def token_seconds() -> float:
    chosen = os.environ.get(f"ENGINE_TOKEN_SECONDS_{argument('--attention-backend')}")
    return float(chosen or os.environ.get("ENGINE_TOKEN_SECONDS", "0.1"))


def argument(name: str) -> str:
    given = [value for before, value in itertools.pairwise(sys.argv) if before == name]
    given += [each.partition("=")[2] for each in sys.argv if each.startswith(f"{name}=")]
    return given[-1] if given else ""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.exit(main())
