"""The metrics that an engine of a version shows, as far as dashboards may ask for them.

Names and labels from vllm/v1/metrics/loggers.py and vllm/v1/metrics/prometheus.py in the wheels of 0.11.0 and 0.33.0.
`http_requests_total` is of prometheus-fastapi-instrumentator, which both use.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ALWAYS_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_ALWAYS_COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_preemptions_total",
    "prefix_cache_hits_total",
    "prefix_cache_queries_total",
)
_ALWAYS_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
)
_OF_VERSION = {
    "0.11.0": (
        ("gpu_cache_usage_perc",),
        ("gpu_prefix_cache_hits_total", "gpu_prefix_cache_queries_total"),
        ("time_per_output_token_seconds",),
    ),
    "0.33.0": (("engine_sleep_state",), ("external_prefix_cache_hits_total", "mm_cache_hits_total"), ()),
}
"""Gauges, counters and histograms that only one of the two has."""
VERSIONS = tuple(_OF_VERSION)
BUCKETS = ("0.1", "1.0", "+Inf")


PLACE = 'namespace="models",name="llama",pod="llama-x1"'
"""Labels that the PodMonitor of the chart adds."""


def series(version: str) -> Iterator[tuple[str, float]]:
    """The series of one engine, with the labels that the PodMonitor of the chart adds, and by how much each grows in a minute."""
    gauges, counters, histograms = _OF_VERSION[version]
    labels = f'{PLACE},engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"'
    for name in (*_ALWAYS_GAUGES, *gauges):
        yield f"vllm:{name}{{{labels}}}", 0
    for name in (*_ALWAYS_COUNTERS, *counters):
        yield f"vllm:{name}{{{labels}}}", 60
    for reason in ("stop", "length", "abort"):
        yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}}', 1
    for name in (*_ALWAYS_HISTOGRAMS, *histograms):
        for number, bucket in enumerate(BUCKETS, start=1):
            yield f'vllm:{name}_bucket{{{labels},le="{bucket}"}}', number
        yield f"vllm:{name}_sum{{{labels}}}", 2
        yield f"vllm:{name}_count{{{labels}}}", len(BUCKETS)
    for status in ("2xx", "4xx"):
        yield f'http_requests_total{{{PLACE},handler="/v1/chat/completions",method="POST",status="{status}"}}', 3


@contextmanager
def serve(version: str) -> Iterator[int]:
    """Serve the metrics of an engine of this version, which grow with time, as vLLM exposes them; yield the port."""
    since = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            minutes = 1 + (time.monotonic() - since) / 60
            shown = (f"{_without_place(name)} {1 + growth * minutes}\n" for name, growth in series(version))
            body = "".join(shown).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def _without_place(name: str) -> str:
    """A series without the labels that the PodMonitor adds."""
    return name.replace(f"{PLACE},", "")
