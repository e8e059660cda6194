"""Responses that stay open, over HTTP/2: many on one connection to the API server.

A log that is followed and a watch are responses that last for minutes. Over HTTP/1.1 each takes a connection of its own, with a TLS
handshake (1.7 ms of CPU time) and 70 to 140 KiB of buffers. Over HTTP/2 they share connections (`http2_connection.py`).

`Http2.request` returns None if the API server, or what stands before it, does not speak HTTP/2. The TLS handshake tells.
"""

import asyncio
import ssl
from urllib.parse import urlsplit

from vllm_operator.cluster.http2_connection import ALPN, Headers, Http2Connection, Http2Response


class Http2:
    """Connections to one server, opened as they are needed."""

    def __init__(self, server: str, context: ssl.SSLContext, *, server_hostname: str | None, timeout_seconds: float) -> None:
        """Open no connection yet.

        Args:
            server: URL of the server, with https; its path comes before that of each request.
            context: For TLS, and for nothing else: it offers HTTP/2 from now on.
            server_hostname: The name in the certificate of the server; by default its host.
            timeout_seconds: For the opening of a connection.
        """
        self._parts = urlsplit(server)
        self._host = self._parts.hostname or ""
        self._context = context
        self._context.set_alpn_protocols([ALPN, "http/1.1"])
        self._hostname = server_hostname or self._host
        self._timeout = timeout_seconds
        self._connections: list[Http2Connection] = []
        self._opening: asyncio.Task[None] | None = None
        self._is_refused = False

    async def request(self, path: str, headers: Headers) -> Http2Response | None:
        """Send a GET request, and wait for the headers of the response; None if the server does not speak HTTP/2.

        Raises:
            OSError: There is no connection, or it ended. ssl.SSLError is one of them.
            TimeoutError: No connection could be opened in time.
        """
        connection = await self._find_connection()
        if connection is None:
            return None
        target = self._parts.path.rstrip("/") + path
        pseudo = [(":method", "GET"), (":scheme", "https"), (":authority", self._parts.netloc.rpartition("@")[2]), (":path", target)]
        response = connection.request([*pseudo, *headers])
        try:
            await response.begun()
        except BaseException:
            response.close()
            raise
        return response

    def close(self) -> None:
        """Close all connections."""
        if self._opening is not None:
            self._opening.cancel()
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    async def _find_connection(self) -> Http2Connection | None:
        """A connection that takes a request. The first ones are used most, so that others become idle."""
        while not self._is_refused:
            for connection in self._connections:
                if connection.has_room:
                    return connection
            if self._opening is None:
                self._opening = asyncio.create_task(self._open(), name="HTTP/2 connection")
                self._opening.add_done_callback(self._note_opened)
            await asyncio.shield(self._opening)  # all that wait share what it opens, and its error
        return None

    def _note_opened(self, task: asyncio.Task[None]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # those that wait for it raise it; there may be none left

    async def _open(self) -> None:
        self._connections = [connection for connection in self._connections if not connection.is_over]
        create = asyncio.get_running_loop().create_connection
        port, hostname = self._parts.port or 443, self._hostname
        async with asyncio.timeout(self._timeout):
            try:
                _, connection = await create(Http2Connection, self._host, port, ssl=self._context, server_hostname=hostname)
            except RuntimeError as error:  # a bug of uvloop; see `check_socket`
                raise ConnectionError(str(error)) from error
            try:
                self._is_refused = not connection.speaks_http2
                if connection.speaks_http2:
                    await connection.settled
            finally:
                if not connection.settled.done():
                    connection.close()
        if connection.has_room:
            self._connections.append(connection)
        elif not self._is_refused:
            connection.close()
            raise ConnectionResetError("the server takes no request on the connection that was opened")
