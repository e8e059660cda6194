"""A server that speaks HTTP/2 over TLS, and does what a test tells it: the API server as `cluster/http2.py` sees it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trustme
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamReset
from h2.settings import SettingCodes, Settings


class Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, server: "Http2Server") -> None:
        self.server = server
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.append(self)
        if not self.server.speaks_http2:
            return
        self.h2.local_settings = Settings(client=False, initial_values={SettingCodes.MAX_CONCURRENT_STREAMS: self.server.max_open})
        self.h2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        if not self.server.speaks_http2 or self.server.is_deaf:
            return
        for event in self.h2.receive_data(data):
            if isinstance(event, RequestReceived):
                headers = {str(name): str(value) for name, value in event.headers}
                self.server.requests.append(headers)
                self.server.answer(self, event.stream_id, headers)
            elif isinstance(event, StreamReset):
                self.server.cancelled.append(event.stream_id)
        self.flush()
        self.server.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.server.news.set()

    def begin(self, stream: int, status: int = 200, **headers: str) -> None:
        """Send the headers of a response."""
        self.h2.send_headers(stream, [(":status", str(status)), *((name.replace("_", "-"), text) for name, text in headers.items())])
        self.flush()

    def send(self, stream: int, data: bytes) -> None:
        """Send as much as the windows allow, in one frame."""
        self.h2.send_data(stream, data[: min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)])
        self.flush()

    def end(self, stream: int) -> None:
        self.h2.end_stream(stream)
        self.flush()

    def flush(self) -> None:
        if self.transport is not None and (data := self.h2.data_to_send()):
            self.transport.write(data)


class Http2Server:
    """Waits for requests. By default, each gets the status 200, and its body stays open."""

    def __init__(self) -> None:
        self.url = ""
        self.authority = Path()
        self.max_open = 100
        self.speaks_http2 = True
        self.is_deaf = False
        self.answer: Callable[[Connection, int, dict[str, str]], None] = lambda connection, stream, headers: connection.begin(stream)
        self.connections: list[Connection] = []
        self.requests: list[dict[str, str]] = []
        self.cancelled: list[int] = []
        self.news = asyncio.Event()

    def context(self) -> ssl.SSLContext:
        """What a client needs to trust it."""
        return ssl.create_default_context(cafile=str(self.authority))

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until something that it has received makes this true."""
        async with asyncio.timeout(10):
            while not done():
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def http2_server(folder: Path, *, protocols: tuple[str, ...] = ("h2", "http/1.1")) -> AsyncIterator[Http2Server]:
    """Run a server that offers these protocols on a free port of 127.0.0.1."""
    server, authority = Http2Server(), trustme.CA()
    server.speaks_http2 = "h2" in protocols
    server.authority = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(server.authority))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols(list(protocols))
    listening = await asyncio.get_running_loop().create_server(lambda: Connection(server), "127.0.0.1", 0, ssl=context)
    server.url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        for connection in server.connections:
            if connection.transport is not None:
                connection.transport.abort()
