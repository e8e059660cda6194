#!/usr/bin/env python3
"""`vllm serve` without a GPU: starts as `engine.start` does, ends as `engine.crash` is told, and serves what probes ask for."""

import itertools
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from engine.crash import read_crash, replay
from engine.start import Engine

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} 0.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0.0
"""


class Handler(BaseHTTPRequestHandler):
    """The few paths that probes and users ask for, and the devices that the container was given."""

    def do_GET(self) -> None:
        model = served_name()
        answers = {
            "/health": "",
            "/v1/models": json.dumps({"object": "list", "data": [{"id": model, "object": "model", "owned_by": "vllm"}]}),
            "/metrics": METRICS.format(model=model),
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
    if status := Engine(crash.comes_before).start():
        return status
    crash.comes_while_serving()
    ThreadingHTTPServer(("", int(argument("--port") or 8000)), Handler).serve_forever()
    return 0


def served_name() -> str:
    return argument("--served-model-name") or sys.argv[2]


def argument(name: str) -> str:
    """The value of an argument, as `--name value` or `--name=value`; the last one counts."""
    given = [value for before, value in itertools.pairwise(sys.argv) if before == name]
    given += [each.partition("=")[2] for each in sys.argv if each.startswith(f"{name}=")]
    return given[-1] if given else ""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.exit(main())
