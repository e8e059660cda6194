"""One HTTP/2 connection, and the responses that are open on it. `h2` speaks the protocol; here its bytes are moved.

    Http2Connection  what the event loop calls
    Http2Response    what one reader awaits

* A reader that pauses stops no other one. At most `WINDOW_BYTES` of a response wait for its reader. The window of the connection is
  opened again as soon as bytes arrive.
* A connection that has gone dead is noticed by a ping, which is sent only while responses are open and nothing arrives.
* Errors are those of sockets (`OSError`), so that callers treat them as they treat errors of HTTP/1.1. After a GOAWAY, all responses of
  the connection end with one: followers and watches resume where they were.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, Event, RemoteSettingsChanged, ResponseReceived, StreamEnded, StreamReset
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from multidict import CIMultiDict

WINDOW_BYTES = 64 * 1024
"""Bytes of one response that may wait for its reader."""
CONNECTION_WINDOW_BYTES = 4 * 1024 * 1024
"""Bytes that may be on their way on one connection."""
MAX_OPEN = 250
"""Responses that are open on one connection, if the server allows as many. The API server allows 100."""
MAX_REQUESTS = 10_000
"""Requests after which a connection takes no more: h2 remembers each stream that was closed."""
PING_SECONDS = 30.0
"""Silence of a connection after which it is checked, and how long the answer may take. It is only checked while responses are open."""
IDLE_SECONDS = 30.0
"""How long a connection without responses is kept."""
ALPN = "h2"

Headers = Sequence[tuple[str, str]]


class Http2Response:
    """One response. It has one reader.

    Attributes:
        status: The HTTP status; 0 before the headers have arrived.
        headers: The headers, by name in any case.
    """

    __slots__ = ("_connection", "_error", "_has_ended", "_pieces", "_reader", "_untold", "headers", "number", "status")

    def __init__(self, connection: "Http2Connection", number: int) -> None:
        """`number` identifies its stream on the connection."""
        self.number = number
        self.status = 0
        self.headers: Mapping[str, str] = CIMultiDict()
        self._connection = connection
        self._pieces: deque[bytes] = deque()
        self._untold = 0  # bytes that were read, and by which the window has not been opened yet
        self._has_ended = False
        self._error: OSError | None = None
        self._reader: asyncio.Future[None] | None = None

    async def begun(self) -> None:
        """Wait for the headers. Raises OSError if the connection ends before."""
        while not self.status:
            self._raise_if_over()
            await self._wait()

    async def read(self) -> bytes:
        """Wait for the next bytes; empty at the end of the response. Raises OSError if the connection ends before."""
        while not self._pieces:
            if self._has_ended:
                return b""
            self._raise_if_over()
            await self._wait()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._untold += len(data)
        if self._untold >= WINDOW_BYTES // 2 and not self._has_ended:
            self._connection.open_window(self.number, self._untold)
            self._untold = 0
        return data

    def close(self) -> None:
        """Want no more of it."""
        if not (self._has_ended or self._error):
            self._error = ConnectionAbortedError("the response was closed")
            self._connection.cancel(self.number)

    def begin(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The headers have arrived."""
        found = CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        status = found.pop(":status", "")
        self.headers, self.status = found, int(status) if status.isdecimal() else 502
        self._wake()

    def feed(self, data: bytes, padding: int) -> None:
        """Bytes have arrived, with some that are only padding."""
        self._untold += padding
        if data:
            self._pieces.append(data)
            self._wake()

    def end(self, error: OSError | None = None) -> None:
        """Nothing more will arrive."""
        self._has_ended, self._error = error is None, error
        self._wake()

    def _raise_if_over(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)  # all readers of a connection get the same object: its traceback would grow
        if self._has_ended:
            raise ConnectionResetError("the response ended without a status")

    async def _wait(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class Http2Connection(asyncio.Protocol):
    """One connection, with the responses that are open on it.

    Attributes:
        speaks_http2: Whether the server has agreed to speak HTTP/2.
        settled: Done when the server has told its limits, or the connection has ended.
        is_over: Whether the connection has ended.
    """

    def __init__(self) -> None:
        """The event loop calls it when a connection has been made."""
        self.speaks_http2 = self.is_over = False
        self.settled = asyncio.get_running_loop().create_future()
        self._h2 = H2Connection(H2Configuration(client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False))
        self._transport: asyncio.Transport | None = None
        self._responses: dict[int, Http2Response] = {}
        self._requests = 0
        self._untold = 0
        self._received_at = 0.0
        self._pinged_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_room(self) -> bool:
        """Whether it takes another request."""
        limit = min(MAX_OPEN, self._h2.remote_settings.max_concurrent_streams)
        return not self.is_over and self._requests < MAX_REQUESTS and len(self._responses) < limit

    def request(self, headers: Headers) -> Http2Response:
        """Send a request without a body. Raises OSError."""
        try:
            number = self._h2.get_next_available_stream_id()
            self._h2.send_headers(number, headers, end_stream=True)
        except H2Error as error:
            raise ConnectionError(f"HTTP/2: {error or type(error).__name__}") from error
        response = self._responses[number] = Http2Response(self, number)
        self._requests += 1
        if len(self._responses) == 1:
            self._received_at, self._pinged_at = time.monotonic(), None
            self._check_in(PING_SECONDS)
        self._flush()
        return response

    def cancel(self, number: int) -> None:
        """Ask for no more of a response."""
        if self._responses.pop(number, None) is not None and not self.is_over:
            with suppress(H2Error):
                self._h2.reset_stream(number, ErrorCodes.CANCEL)
            self._flush()
            self._note_end()

    def open_window(self, number: int, size: int) -> None:
        """Let the server send that many bytes more of a response."""
        if number in self._responses and not self.is_over:
            with suppress(H2Error):  # the server has ended the stream meanwhile
                self._h2.increment_flow_control_window(size, number)
            self._flush()

    def close(self) -> None:
        """Close the connection, and end its responses."""
        self._fail(ConnectionAbortedError("the connection was closed"))

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to speak HTTP/2."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop has classes of its own
        self.speaks_http2 = transport.get_extra_info("ssl_object").selected_alpn_protocol() == ALPN
        if not self.speaks_http2:
            return
        wanted = {SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES}
        self._h2.local_settings = Settings(client=True, initial_values=wanted)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - self._h2.inbound_flow_control_window)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        self._received_at, self._pinged_at = time.monotonic(), None
        try:
            events = self._h2.receive_data(data)
        except H2Error as error:
            self._fail(ConnectionError(f"the server does not keep to HTTP/2: {error or type(error).__name__}"))
            return
        for event in events:
            self._handle(event)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._fail(exc if isinstance(exc, OSError) else ConnectionResetError(str(exc or "the server closed the connection")))

    # ---- parts

    def _handle(self, event: Event) -> None:
        number: Any = getattr(event, "stream_id", None)
        response = self._responses.get(number)
        match event:
            case DataReceived():
                self._receive(event, response)
            case ResponseReceived() if response is not None:
                response.begin(event.headers or ())
            case StreamEnded() if response is not None:
                self._end(response)
            case StreamReset() if response is not None:
                self._end(response, ConnectionResetError(f"the server ended the response (HTTP/2 error {event.error_code})"))
            case RemoteSettingsChanged() if not self.settled.done():
                self.settled.set_result(None)
            case ConnectionTerminated():
                self._fail(ConnectionResetError("the server ends the connection (GOAWAY)"))
            case _:
                pass

    def _receive(self, event: DataReceived, response: Http2Response | None) -> None:
        size, data = event.flow_controlled_length or 0, event.data or b""
        self._untold += size
        if self._untold >= CONNECTION_WINDOW_BYTES // 2:
            with suppress(H2Error):  # a GOAWAY came with these bytes
                self._h2.increment_flow_control_window(self._untold)
            self._untold = 0
        if response is not None:
            response.feed(data, size - len(data))

    def _end(self, response: Http2Response, error: OSError | None = None) -> None:
        del self._responses[response.number]
        response.end(error)
        self._note_end()

    def _note_end(self) -> None:
        """A response has ended."""
        if not self._responses:
            self._check_in(IDLE_SECONDS)

    def _fail(self, error: OSError) -> None:
        """End the connection, and all its responses with this error."""
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.settled.done():
            self.settled.set_result(None)
        responses, self._responses = self._responses, {}
        for response in responses.values():
            response.end(error)
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def _check_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        """Close a connection that is not used, and send a ping on one that is silent."""
        now = time.monotonic()
        if not self._responses:
            self._fail(ConnectionAbortedError("the connection was not used"))
        elif self._pinged_at is not None:
            self._fail(TimeoutError("the connection is dead: a ping got no answer"))
        elif (left := self._received_at + PING_SECONDS - now) > 0:
            self._check_in(left)
        else:
            self._pinged_at = now
            self._h2.ping(b"liveness")
            self._flush()
            self._check_in(PING_SECONDS)

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
