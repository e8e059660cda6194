"""Readiness probe of the engine: fails if the server does not answer, or if the engine hangs (`progress.py`). Runs in its container.

    check-engine URL FILE FOLDER STACKS Restart|Report

URL is that of the server, FILE keeps the state between probes, FOLDER the evidence of the last hangs, and the engine writes its stacks to
STACKS if it can (vLLM 0.33 and later). The program sends only requests that the server answers without the engine and without a key, and
connects only to its own container. When a hang is found, it keeps metrics, states of processes, and the engine's stacks. With `Restart` it
ends the engine's processes 75 seconds later, by SIGABRT, so that Python writes the stacks of all threads into the log (the operator sets
PYTHONFAULTHANDLER), and then by SIGKILL. A server that does not exit when its engine has ended is ended too, and the kubelet restarts the
container. The termination message says what hung. A server that stays and listens no longer after its engine has ended by itself is ended
after three probes.
"""

import os
import socket
import time
from collections.abc import Callable
from functools import cache

from vllm_operator.tools import progress
from vllm_operator.tools.progress import Sample, State

TIMEOUT_SECONDS = 3.0
"""Limit of all requests of a probe: what `hang.py` does next must fit into its time, too. A busy server answers within a second."""
MAX_FAILURES = 3
"""Requests in a row without an answer until the probe fails. A closed port or another status fails at once."""
KEEP_ALIVE = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
"""Seconds after which the server closes an idle connection; 5 if it is not set."""
UNREACHABLE = "The server cannot be reached: "
MAX_BYTES = 4 * 1024 * 1024
SUSPICIOUS_SECONDS = 60
"""Silence after which the program looks for reasons for it, which costs more than a usual probe."""


def run(url: str, file: str, folder: str, stacks: str, *, restarts: bool) -> int:
    """Run the probe; return its exit status."""
    try:
        with open(file) as opened:
            text = opened.read(MAX_BYTES)
    except OSError:  # the first probe
        text = ""
    state, failure = check(progress.parse_state(text), url, folder, stacks)
    is_due = restarts and bool(failure) and progress.needs_restart(state)
    if is_due:
        state.ranks.clear()  # of the engine that ends, and this program with it: the state is written before
    try:
        with open(f"{file}.new", "w") as opened:
            opened.write(progress.format_state(state))
        os.replace(f"{file}.new", file)
    except OSError as error:  # without a state, an engine never hangs
        print(f"{file} cannot be written: {error}")
    if failure:
        print(failure, flush=True)
    is_gone = restarts and failure.startswith(UNREACHABLE) and state.failures >= MAX_FAILURES
    if is_due or is_gone:
        from vllm_operator.tools import hang

        hang.end_engine(failure) if is_due else hang.end_abandoned_server()
    return 1 if failure else 0


def check(state: State, url: str, folder: str, stacks: str) -> tuple[State, str]:
    """Return the new state, and why the probe fails; empty if it does not. `state` is changed and must not be used afterwards."""
    end = time.monotonic() + TIMEOUT_SECONDS
    try:
        status = ask(url, "/health", end)[0]
    except TimeoutError:
        state.failures += 1
        return state, "The server does not answer /health" if state.failures >= MAX_FAILURES else ""
    except OSError as error:
        state.failures += 1
        return state, f"{UNREACHABLE}{error}"
    if status != 200:
        return state, f"/health answers {status}"
    state.failures = 0
    try:
        metrics = ask(url, "/metrics", end)[1]
        sample = Sample(time.monotonic(), time.time(), progress.read_metrics(metrics), read_load(url, metrics, end))
    except OSError:
        return state, ""
    if sample.load and not sample.has_work():  # then a request may be stuck before the engine
        from vllm_operator.tools import connections

        is_plain = url.startswith("http:")  # the last bytes of a TLS handshake may be later than a request
        handshake = 0 if is_plain else connections.TLS_SEGMENTS
        waits = connections.read_waits(int(url.rpartition(":")[2]), closes=KEEP_ALIVE not in os.environ, handshake=handshake)
        sample.waits = waits if is_plain else waits or None
    judged = progress.judge(state, sample)
    if progress.silence(judged) < SUSPICIOUS_SECONDS:
        judged.description = ""
        return judged, ""
    from vllm_operator.tools import hang  # only needed now: it takes time to import

    sample.is_paused, sample.is_compiling, sample.is_preparing = is_paused(url, end), hang.is_compiling(folder), hang.is_preparing()
    judged = progress.judge(state, sample)
    if not progress.hangs(judged):
        judged.description = ""
        return judged, ""
    if not judged.description:
        judged.description = hang.record(folder, stacks, progress.describe(judged, sample), metrics)
    return judged, judged.description


def ask(url: str, path: str, end: float) -> tuple[int, str]:
    """Return the status and the body of a response. Raises OSError, and TimeoutError if there is none by `end` (of a monotonic clock)."""
    scheme, _, address = url.partition("://")
    host, _, port = address.rpartition(":")
    content, connection = b"", socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.settimeout(max(0.01, end - time.monotonic()))
        connection.connect((host, int(port)))
        if scheme == "https":
            connection = encrypted(connection)
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        while len(content) < MAX_BYTES and (piece := connection.recv(65536)):
            content += piece
            connection.settimeout(max(0.01, end - time.monotonic()))
    finally:
        connection.close()
    head, _, body = content.partition(b"\r\n\r\n")
    status = head[9:12]
    return int(status) if status.isdigit() else 0, body.decode("utf-8", "replace")


def encrypted(plain: socket.socket) -> socket.socket:
    """Return the TLS connection over another one. The certificate names the service and not this container, so it is not checked."""
    seconds, whole = plain.gettimeout(), socket.socket(fileno=plain.detach())
    whole.settimeout(seconds)
    return _encryption()(whole)


@cache
def _encryption() -> Callable[[socket.socket], socket.socket]:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket


def read_load(url: str, metrics: str, end: float) -> int | None:
    """Return the requests that the server counts; None if it does not, or if several servers share the port, each with its count."""
    if "\nprocess_start_time_seconds " not in metrics:  # absent if the metrics of several processes are merged
        return None
    number = ask(url, "/load", end)[1].partition(":")[2].strip(" }\n")
    return int(number) if number.removeprefix("-").isdigit() else None


def is_paused(url: str, end: float) -> bool:
    """Return whether the engine was told to pause or to sleep. These paths exist only in the development mode of the server."""
    for path in ("/is_paused", "/is_sleeping"):
        try:
            status, body = ask(url, path, end)
        except OSError:
            continue
        if status == 200 and "true" in body:
            return True
    return False
