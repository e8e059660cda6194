"""Engines of a known speed: a server that answers like vLLM's, and figures of runs with noise."""

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from vllm_operator.caches.measurement import LoadFigures, Measurement

METRICS = 'vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="16000",num_gpu_blocks="250"} 1.0\n'


@contextmanager
def serving(
    *, seconds_per_token: float = 0.002, prefill: float = 0.0, fails_at: int | None = None, key: str = "", answer: str = "Paris."
) -> Iterator[int]:
    """Serve completions after `prefill` seconds; yield the port. With `fails_at` requests at a time, the engine dies."""
    lock, active = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._send(200, METRICS if self.path == "/metrics" else "")

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if key and self.headers["Authorization"] != f"Bearer {key}":
                self._send(401, '{"error": "Unauthorized"}')
            elif len(request["prompt"]) > 4096:
                self._send(400, '{"error": {"message": "This model\'s maximum context length is 4096 tokens."}}')
            elif request.get("stream"):
                with lock:
                    active[0] += 1
                try:
                    self._stream(request["max_tokens"])
                finally:
                    with lock:
                        active[0] -= 1
            else:
                self._send(200, json.dumps({"choices": [{"text": answer}]}))

        def _stream(self, tokens: int) -> None:
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            time.sleep(prefill)
            for _ in range(tokens):
                time.sleep(seconds_per_token)
                if fails_at is not None and active[0] >= fails_at:
                    error = {"error": {"message": "EngineCore encountered an issue.", "code": 500}}
                    self.wfile.write(f"data: {json.dumps(error)}\n\n".encode())
                    return
                self.wfile.write(b'data: {"choices": [{"text": "x"}]}\n\n')
            self.wfile.write(b"data: [DONE]\n\n")

        def _send(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run(
    chosen: random.Random, *, speed: float = 1.0, noise: float = 0.05, start: float = 30.0, kv_tokens: int = 100_000, answers: str = ""
) -> Measurement:
    """Return the figures of one run of an engine. Each figure differs from its mean by up to `noise`, as a part of it."""

    def noisy(value: float) -> float:
        return value * chosen.uniform(1 - noise, 1 + noise)

    start_seconds = noisy(start)
    loads = tuple(
        LoadFigures(clients=clients, first_token_ms=noisy(60 / speed), token_ms=noisy(8 / speed), rate=noisy(120 * clients**0.7 * speed))
        for clients in (1, 32)
    )
    return Measurement(start_seconds=start_seconds, kv_tokens=kv_tokens, loads=loads, answers=answers or "0123456789abcdef" * 12)
