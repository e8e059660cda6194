"""Measure what it costs to follow logs: memory and CPU for each stream, against a server that speaks TLS as an API server does.

    python hack/bench/streams.py --streams 200
    python hack/bench/streams.py --streams 200 --flood 1000 --seconds 60

Each log begins with a recorded start (`--replay` KiB of it), then is silent, as that of an engine that loads weights. The
server is another process. Nothing else of the operator runs.

With `--flood`, each log grows by so many KB a second without end, in distinct errors, which are the slowest to parse. Printed is by how
much a timer of 50 ms is late, what is read of the logs, and how long the log of one start takes meanwhile, in the same namespace and in
another one.
"""

import argparse
import asyncio
import contextlib
import gc
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.load import memory

ROOT = Path(__file__).parent.parent.parent


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes, kilobytes: int) -> None:
    """Send a log that grows without end, unless it is that of the Pod `start`: then send this text, and end."""
    request = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
    if b"/pods/start/" in request:
        writer.write(b"%x\r\n%s\r\n" % (len(text), text))
        await reader.read()
    line = b"%sZ RuntimeError: %d Xid %d NCCL WARN out of memory\n"
    number = 0
    with contextlib.suppress(OSError):
        while not reader.at_eof():
            now = datetime.now(UTC).isoformat().removesuffix("+00:00").encode()
            number += 1
            piece = b"".join(line % (now, n, n) for n in range(number * 1000, number * 1000 + 125))  # about 10 KB
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(10 / kilobytes)
    writer.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> None:
    """Send a log that does not end."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
    for begin in range(0, len(text), 4096):
        piece = text[begin : begin + 4096]
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
    await writer.drain()
    await reader.read()
    writer.close()


async def serve(folder: Path, port: int, text: bytes, *, kilobytes: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    given = partial(flood, kilobytes=kilobytes) if kilobytes else answer
    server = await asyncio.start_server(lambda reader, writer: given(reader, writer, text), "127.0.0.1", port, ssl=context, backlog=1000)
    print("ready", flush=True)
    await server.serve_forever()


def make_certificate(folder: Path) -> None:
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    command = f"{request} -keyout tls.key -out tls.crt"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)


def make_followers(folder: Path, port: int, streams: int, **observers: Any) -> tuple[Any, Any]:
    """A client of the server, and followers with so many streams. What the operator imports is not a part of a stream."""
    from kubernetes.aio.client.configuration import Configuration

    from vllm_operator.catalog.startup import load_startup
    from vllm_operator.controller.app import Operator  # noqa: F401
    from vllm_operator.controller.log_followers import Followers
    from vllm_operator.controller.user_data import KnownCrashes
    from vllm_operator.kube.api_client import KubeClient

    configuration = Configuration()
    configuration.host, configuration.ssl_ca_cert = f"https://127.0.0.1:{port}", str(folder / "tls.crt")
    client, crashes = KubeClient(configuration), KnownCrashes.of(load_startup())
    return client, Followers(client, make_parser=crashes.make_parser, changed=lambda key: None, streams=streams, **observers)


def pod(name: str, namespace: str) -> dict[str, Any]:
    status = {"name": "vllm", "restartCount": 0, "state": {"running": {"startedAt": "2026-11-21T12:00:00Z"}}}
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "labels": {}}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running", "containerStatuses": [status]}}


async def until_read(followers: Any, key: tuple[str, str], number: int) -> int:
    """Wait until the logs of so many Pods were begun to be read; return the lines of them all."""
    while sum(state is not None and state.lines > 0 for state in followers.states(key).values()) < number:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return sum(state.lines for state in followers.states(key).values() if state is not None)


async def follow(folder: Path, port: int, streams: int) -> None:
    client, followers = make_followers(folder, port, streams + 1)

    async def start(name: str, number: int) -> tuple[dict[str, float], float]:
        followers.sync(("bench", name), [pod(f"{name}-{index}", "bench") for index in range(number)])
        await until_read(followers, ("bench", name), number)
        await asyncio.sleep(2)
        gc.collect()
        return memory(), time.process_time()

    before, began = await start("first", 1)
    after, ended = await start("others", streams)
    for name in ("Rss", "Private_Dirty"):
        each = (after[name] - before[name]) * 1024 / streams
        print(f"{name:<14} {before[name]:6.1f} MiB -> {after[name]:6.1f} MiB: {each:.0f} KiB a stream")
    print(f"{'peak':<14} {after['Peak']:6.1f} MiB; CPU {(ended - began) / streams * 1000:.1f} ms a stream")
    await followers.close()
    await client.close()


async def withstand(folder: Path, port: int, streams: int, seconds: float) -> None:
    from vllm_operator.controller.log_share import LogShare

    parsed: list[float] = []
    skipped: list[float] = []
    observers = {"share": LogShare(parsed=parsed.append), "skipped": lambda namespace, gap: skipped.append(gap)}
    client, followers = make_followers(folder, port, streams + 2, **observers)

    async def start(namespace: str) -> None:
        await asyncio.sleep(seconds / 2)
        began, key = time.monotonic(), (namespace, "start")
        followers.sync(key, [pod("start", namespace)])
        lines = await until_read(followers, key, 1)
        print(f"the log of a start in namespace {namespace} was read after {time.monotonic() - began:.2f} s ({lines} lines)")

    followers.sync(("noisy", "x"), [pod(f"p{number}", "noisy") for number in range(streams)])
    starts = [asyncio.create_task(start(namespace)) for namespace in ("noisy", "other")]
    began, cpu, late = time.monotonic(), time.process_time(), []
    while time.monotonic() - began < seconds:
        before = time.monotonic()
        await asyncio.sleep(0.05)
        late.append(time.monotonic() - before - 0.05)
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    late.sort()
    print(f"{streams} logs: a timer of 0.05 s was late by {late[len(late) // 2]:.3f} s (median), {late[-1]:.3f} s (worst)")
    print(f"longest step {max(parsed) * 1000:.0f} ms, {sum(parsed) / took:.0%} of the time; the process used {cpu / took:.0%} of a CPU")
    print(f"{sum(skipped) / streams:.0f} s of each log were skipped, of {took:.0f} s")
    for task in starts:
        task.cancel()
    await asyncio.gather(followers.close(), *starts, return_exceptions=True)
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--replay", type=int, default=64, help="KiB of a start that each log has")
    parser.add_argument("--flood", type=int, default=0, help="KB that each log grows in a second; 0 for logs that are silent")
    parser.add_argument("--seconds", type=float, default=60, help="duration of the flood")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        recorded = next(iter(sorted((ROOT / "hack/demo/recordings").glob("*.log")))).read_bytes()
        lines = [b"2026-11-21T12:00:00.%09dZ %s\n" % (number, line) for number, line in enumerate(recorded.splitlines())]
        text, limit = b"", options.replay * 1024
        for line in lines:
            if len(text) + len(line) <= limit:
                text += line
        asyncio.run(serve(Path(options.serve), options.port, text, kilobytes=options.flood))
        return
    import uvloop

    with tempfile.TemporaryDirectory() as folder, socket.socket() as reserved:
        make_certificate(Path(folder))
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        reserved.close()
        command = [sys.executable, __file__, "--serve", folder, "--port", str(port), "--replay", str(options.replay)]
        command += ["--flood", str(options.flood)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert server.stdout
            server.stdout.readline()
            if options.flood:
                uvloop.run(withstand(Path(folder), port, options.streams, options.seconds))
            else:
                uvloop.run(follow(Path(folder), port, options.streams))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
