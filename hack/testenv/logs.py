"""The log endpoint of the simulated kubelets: what `kubectl logs` reaches through the API server.

Logs are files, `ROOT/NAMESPACE/POD/CONTAINER/N.log`, N being the number of restarts before that run, in the format of
`cri`. Streams behave as a kubelet's do, which is what makes following logs hard:

- The stream of a run ends when the run does: `N.exit` exists, or N+1.log does, or the folder is gone. It does not go on
  with the next run.
- All ends look the same, a failing kubelet's too.
- The response to a request that follows begins with the first line. Before, there are not even headers.
- `previous` is the run before the last one, or the only one if it is over; without one there is an error, as there is before the
  container runs.
- `sinceTime` is cut to whole seconds, inclusively; `tailLines` counts records, not lines; `limitBytes` counts timestamps.

A file FAULT in a container's folder makes its requests fail, one named FAULT-PREVIOUS only those for the previous run:
`500` (the kubelet fails), `reset` (the connection breaks after the headers), `hang` (nothing comes after the headers),
`unavailable` (status 200 and a sentence instead of the log, as between a crash and the next run).
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web

from testenv.api import ApiClient, ApiError, client_of
from testenv.cri import Record, parse_record

# How often the files of open streams are looked at, in seconds. A real kubelet is told by the kernel and takes a millisecond.
_LOOK_EVERY = 0.02
_READ_SIZE = 1 << 20


class LogError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    namespace: str
    pod: str
    container: str
    previous: bool
    follow: bool
    timestamps: bool
    tail_lines: int | None
    limit_bytes: int | None
    since: datetime | None

    @classmethod
    def parse(cls, target: str) -> "LogRequest":
        """Reads the request's target, `/containerLogs/NAMESPACE/POD/CONTAINER?...`. Raises LogError."""
        address = urlsplit(target)
        parts = address.path.strip("/").split("/")
        if len(parts) != 4 or parts[0] != "containerLogs" or ".." in parts:
            raise LogError(404, "the server could not find the requested resource")
        query = dict(parse_qsl(address.query))
        try:
            return cls(
                namespace=parts[1],
                pod=parts[2],
                container=parts[3],
                **{name: query.get(name, "").lower() in ("true", "1") for name in ("previous", "follow", "timestamps")},
                tail_lines=int(query["tailLines"]) if "tailLines" in query else None,
                limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
                since=_since(query),
            )
        except ValueError as error:
            raise LogError(400, str(error)) from None


def _since(query: dict[str, str]) -> datetime | None:
    moment = query.get("sinceTime")
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).replace(microsecond=0) if moment else None


class ContainerLogs:
    def __init__(self, root: Path, namespace: str, pod: str, container: str) -> None:
        self._folder = root / namespace / pod / container

    def runs(self) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(int(name[:-4]) for name in os.listdir(self._folder) if name.endswith(".log") and name[:-4].isdigit())
        return []

    def path(self, run: int) -> Path:
        return self._folder / f"{run}.log"

    def is_over(self, run: int) -> bool:
        runs = self.runs()
        return run not in runs or runs[-1] > run or (self._folder / f"{run}.exit").exists()

    def fault(self, *, previous: bool) -> str:
        for name in ("FAULT-PREVIOUS", "FAULT") if previous else ("FAULT",):
            with contextlib.suppress(FileNotFoundError):
                return (self._folder / name).read_text().strip()
        return ""

    def choose(self, request: LogRequest) -> int:
        """Returns the run that a request means. Raises LogError."""
        runs = self.runs()
        if request.previous:
            if len(runs) == 1 and self.is_over(runs[0]):
                return runs[0]  # the next run has written nothing yet
            if len(runs) < 2:
                raise LogError(400, f'previous terminated container "{request.container}" in pod "{request.pod}" not found')
            return runs[-2]
        if not runs:
            raise LogError(400, f'container "{request.container}" in pod "{request.pod}" is waiting to start: ContainerCreating')
        return runs[-1]


class _Formatter:
    """Turns records into the bytes of a stream: pieces of a line are joined, and only the first one is stamped."""

    def __init__(self, request: LogRequest) -> None:
        self._timestamps = request.timestamps
        self._at_line_start = True
        self._left = request.limit_bytes
        self._since = request.since

    @property
    def is_full(self) -> bool:
        return self._left is not None and self._left <= 0

    def format(self, record: Record) -> bytes:
        if self._since is not None:
            if record.time < self._since:
                return b""
            self._since = None  # what follows is later; reading its times would cost half of all
        text = record.text if record.partial else record.text + b"\n"
        if self._timestamps and self._at_line_start:
            text = shorten_timestamp(record.timestamp).encode() + b" " + text
        self._at_line_start = not record.partial
        if self._left is not None:
            text = text[: self._left]
            self._left -= len(text)
        return text


def shorten_timestamp(timestamp: str) -> str:
    """Cuts the trailing zeros of the fraction, as Go's RFC3339Nano does; the width varies, so these do not sort as text."""
    whole, point, rest = timestamp.partition(".")
    if not point:
        return timestamp
    digits = rest.rstrip("Z").rstrip("0")
    return f"{whole}.{digits}Z" if digits else f"{whole}Z"


class Changes:
    """Tells the streams that have shown everything when there is something new.

    All of them are looked at in one go: a task that wakes up for each would take half a core for a hundred streams.
    """

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], tuple[Path, _Standing]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def after(self, path: Path, standing: "_Standing") -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = (path, standing)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    async def _look(self) -> None:
        while self._waiting:
            for waiter, (path, standing) in self._waiting.items():
                if not waiter.done() and standing_of(path) != standing:
                    waiter.set_result(None)
            await asyncio.sleep(_LOOK_EVERY)


_Standing = tuple[int, int, int, int]


def standing_of(path: Path) -> _Standing:
    """Returns what changes with a log: a line more, another file under its name, a file beside it."""
    try:
        folder, file = os.stat(path.parent), os.stat(path)
    except FileNotFoundError:
        return 0, 0, 0, 0
    return folder.st_mtime_ns, file.st_ino, file.st_size, file.st_mtime_ns


async def read_log(logs: ContainerLogs, run: int, request: LogRequest, changes: Changes) -> AsyncIterator[bytes]:
    """Yields the stream of one run, as far as the request goes."""
    formatter = _Formatter(request)
    with contextlib.ExitStack() as open_files:
        file: BinaryIO = open_files.enter_context(logs.path(run).open("rb"))
        if request.tail_lines is not None:
            _seek_tail(file, request.tail_lines)
        unfinished = b""
        while not formatter.is_full:
            # looked at before the file is read: what was written before the end is never missed
            standing = standing_of(logs.path(run))
            over = not request.follow or logs.is_over(run)
            data = file.read(_READ_SIZE)
            *lines, unfinished = (unfinished + data).split(b"\n")
            if lines:
                records = [record for line in lines if (record := parse_record(line))]
                yield b"".join(formatter.format(record) for record in records)
            elif not data:
                following = _after_rotation(file, logs.path(run), open_files)
                if following is file and over:
                    return
                if following is file:
                    await changes.after(logs.path(run), standing)
                file = following


def _seek_tail(file: BinaryIO, records: int) -> None:
    content = file.read()
    lines = content.splitlines(keepends=True)
    file.seek(sum(len(line) for line in lines[: max(len(lines) - records, 0)]))


def _after_rotation(file: BinaryIO, path: Path, open_files: contextlib.ExitStack) -> BinaryIO:
    """Returns the file to go on with: the new one if the log was rotated, from its start if it was truncated."""
    with contextlib.suppress(FileNotFoundError):
        there, here = path.stat(), os.fstat(file.fileno())
        if there.st_ino != here.st_ino:
            return open_files.enter_context(path.open("rb"))
        if there.st_size < file.tell():
            file.seek(0)
    return file


class LogServer:
    """Serves logs over HTTPS. A stream ends at once when its client leaves."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._changes = Changes()

    async def serve(self, *, certificate: Path, key: Path, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        runner = web.ServerRunner(web.Server(self._answer, handler_cancellation=True, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context, backlog=1024).start()
        await asyncio.Event().wait()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._stream(request, LogRequest.parse(request.raw_path))
        except LogError as error:
            return web.Response(status=error.status, text=str(error))

    async def _stream(self, http: web.BaseRequest, request: LogRequest) -> web.StreamResponse:
        logs = ContainerLogs(self._root, request.namespace, request.pod, request.container)
        fault = logs.fault(previous=request.previous)
        if fault == "500":
            raise LogError(500, "the simulated kubelet fails")
        if fault == "unavailable":
            return web.Response(text="unable to retrieve container logs for containerd://0123456789abcdef")
        run = logs.choose(request)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        if fault or not request.follow:
            await response.prepare(http)
        if fault == "reset" and http.transport is not None:
            http.transport.abort()
        elif fault == "hang":
            await asyncio.Event().wait()
        async for data in read_log(logs, run, request, self._changes):
            if data:
                await response.prepare(http)  # the first line brings the headers; later calls do nothing
                await response.write(data)
        await response.prepare(http)
        await response.write_eof()
        return response


_PODS = "/api/v1/pods"
_RETRY_AFTER = 0.2


class ContainerWatch:
    """Watches the Pods of one API server, and does with their log files what a kubelet's container runtime does.

    The log of a container that runs exists, a run that has ended is marked as ended, and the logs of a deleted Pod go with it. So open log
    streams end when their containers do, whoever ended them.
    """

    def __init__(self, client: ApiClient, root: Path) -> None:
        self._client = client
        self._root = root

    def run(self) -> None:
        while True:
            try:
                self._watch_once()
            except (OSError, ApiError, ValueError) as error:
                print(f"watching Pods: {error}", file=sys.stderr, flush=True)
            time.sleep(_RETRY_AFTER)

    def _watch_once(self) -> None:
        listing = self._client.request("GET", _PODS)
        for pod in listing["items"]:
            self.pod_changed(pod)
        version = listing["metadata"]["resourceVersion"]
        for line in self._client.stream(f"{_PODS}?watch=1&resourceVersion={version}"):
            event = json.loads(line)
            if event["type"] == "DELETED":
                self.pod_gone(event["object"])
            elif event["type"] in ("ADDED", "MODIFIED"):
                self.pod_changed(event["object"])
            else:
                return

    def pod_changed(self, pod: dict[str, Any]) -> None:
        for container in pod.get("status", {}).get("containerStatuses", []):
            folder = self._folder(pod) / str(container["name"])
            if "running" in container["state"] and container["restartCount"] == 0:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "0.log").touch()
            log = folder / f"{_last_ended_run(container)}.log"
            if log.exists():
                log.with_suffix(".exit").touch()

    def pod_gone(self, pod: dict[str, Any]) -> None:
        shutil.rmtree(self._folder(pod), ignore_errors=True)

    def _folder(self, pod: dict[str, Any]) -> Path:
        return self._root / str(pod["metadata"]["namespace"]) / str(pod["metadata"]["name"])


def _last_ended_run(container: dict[str, Any]) -> int:
    """The number of the newest run that is over; -1 if none is. A container that backs off counts the run that died."""
    state, restarts = container["state"], int(container["restartCount"])
    has_ended = "terminated" in state or state.get("waiting", {}).get("reason") == "CrashLoopBackOff"
    return restarts if has_ended else restarts - 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Log endpoint of simulated kubelets")
    parser.add_argument("--root", type=Path, required=True, help="folder of the log files")
    parser.add_argument("--certificate", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="for the API server whose Pods these are")
    arguments = parser.parse_args()
    arguments.root.mkdir(parents=True, exist_ok=True)
    watch = ContainerWatch(client_of(arguments.kubeconfig), arguments.root)
    threading.Thread(target=watch.run, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(LogServer(arguments.root).serve(certificate=arguments.certificate, key=arguments.key, port=arguments.port))


if __name__ == "__main__":
    main()
