"""Responses over HTTP/2, from a server over TLS on this machine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.http2_server import Connection, Http2Server, http2_server
from vllm_operator.cluster import http2_connection
from vllm_operator.cluster.client import LogRequest, NotFound, Unavailable
from vllm_operator.cluster.http2 import Http2
from vllm_operator.cluster.http2_connection import WINDOW_BYTES, Http2Connection, Http2Response
from vllm_operator.cluster.kube import KubeClient
from vllm_operator.cluster.library import Configuration


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Http2Server]:
    async with http2_server(tmp_path) as made:
        yield made


def client_of(server: Http2Server, *, timeout_seconds: float = 5.0, path: str = "") -> Http2:
    return Http2(server.url + path, server.context(), server_hostname=None, timeout_seconds=timeout_seconds)


@pytest.fixture
async def client(server: Http2Server) -> AsyncIterator[Http2]:
    made = client_of(server)
    yield made
    made.close()


async def opened(client: Http2, path: str = "/log") -> Http2Response:
    response = await client.request(path, [("accept", "*/*")])
    assert response is not None
    return response


async def test_responses_share_a_connection_and_are_read_as_they_arrive(server: Http2Server, client: Http2) -> None:
    first, second = await asyncio.gather(opened(client, "/a"), opened(client, "/b?follow=true"))
    [connection] = server.connections
    connection.send(second.number, b"b\n")
    connection.send(first.number, b"a\n")
    assert (await first.read(), await second.read()) == (b"a\n", b"b\n")
    connection.end(first.number)
    assert await first.read() == b""
    assert first.status == 200
    assert sorted(request[":path"] for request in server.requests) == ["/a", "/b?follow=true"]


async def test_a_server_below_a_path_is_asked_there(server: Http2Server) -> None:
    client = client_of(server, path="/clusters/one/")
    await opened(client, "/api")
    assert server.requests[0][":path"] == "/clusters/one/api"
    assert server.requests[0][":authority"] == server.url.removeprefix("https://")
    client.close()


async def test_another_connection_is_opened_where_the_server_allows_no_more_responses(server: Http2Server, client: Http2) -> None:
    server.max_open = 2
    found = await asyncio.gather(*(opened(client) for _ in range(5)))
    assert len(server.connections) == 3
    found[0].close()
    await server.until(lambda: bool(server.cancelled))
    await opened(client)
    assert len(server.connections) == 3


async def test_a_server_that_allows_no_responses_is_an_error(server: Http2Server, client: Http2) -> None:
    server.max_open = 0
    with pytest.raises(OSError, match="takes no request"):
        await opened(client)
    [connection] = server.connections
    await server.until(lambda: connection.transport is None)


async def test_a_reader_that_pauses_holds_back_one_window_and_no_other_reader(server: Http2Server, client: Http2) -> None:
    paused, other = await opened(client), await opened(client)
    [connection] = server.connections
    flood = b"x" * WINDOW_BYTES
    while connection.h2.local_flow_control_window(paused.number):
        connection.send(paused.number, flood)
    read = 0
    while read < 100 * WINDOW_BYTES:
        connection.send(other.number, flood)
        read += len(await other.read())
        await server.until(lambda: connection.h2.local_flow_control_window(other.number) > 0)
    assert connection.h2.local_flow_control_window(paused.number) == 0
    assert await paused.read() == flood
    await server.until(lambda: connection.h2.local_flow_control_window(paused.number) == WINDOW_BYTES)


async def test_a_response_that_is_closed_is_cancelled_at_the_server(server: Http2Server, client: Http2) -> None:
    response = await opened(client)
    response.close()
    response.close()
    await server.until(lambda: server.cancelled == [response.number])
    with pytest.raises(OSError, match="closed"):
        await response.read()
    [connection] = server.connections
    again = await opened(client)
    connection.send(again.number, b"still there")
    assert await again.read() == b"still there"


async def test_a_request_that_is_given_up_is_cancelled_at_the_server(server: Http2Server, client: Http2) -> None:
    server.answer = lambda *_: None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await opened(client)
    await server.until(lambda: bool(server.cancelled))


async def test_a_server_without_http2_is_noticed_once(tmp_path: Path) -> None:
    async with http2_server(tmp_path, protocols=("http/1.1",)) as server:
        client = client_of(server)
        assert await asyncio.gather(*(client.request("/", []) for _ in range(3))) == [None] * 3
        assert await client.request("/", []) is None
        assert len(server.connections) == 1
        client.close()


@pytest.mark.parametrize("way", ["closed", "GOAWAY", "reset", "nonsense"])
async def test_the_end_of_a_connection_or_a_stream_is_an_error_of_its_readers(server: Http2Server, client: Http2, way: str) -> None:
    response = await opened(client)
    [connection] = server.connections
    assert connection.transport is not None
    match way:
        case "closed":
            connection.transport.close()
        case "GOAWAY":
            connection.h2.close_connection()
        case "reset":
            connection.h2.reset_stream(response.number)
        case "nonsense":
            connection.transport.write(bytes(9))  # data of no stream
    connection.flush()
    with pytest.raises(OSError, match=r"closed|GOAWAY|ended the response|does not keep to HTTP/2"):
        await response.read()
    again = await opened(client)
    assert again.status == 200
    assert len(server.connections) == (1 if way == "reset" else 2)


async def test_what_was_read_before_the_end_is_not_lost(server: Http2Server, client: Http2) -> None:
    response = await opened(client)
    [connection] = server.connections
    connection.send(response.number, b"last words")
    connection.h2.close_connection()
    connection.flush()
    assert await response.read() == b"last words"
    with pytest.raises(OSError, match="GOAWAY"):
        await response.read()


async def test_those_that_wait_for_a_server_that_is_away_share_one_attempt(server: Http2Server, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Http2("https://127.0.0.1:1", server.context(), server_hostname=None, timeout_seconds=5)
    attempts = 0
    loop = asyncio.get_running_loop()
    create = loop.create_connection

    def counted(*arguments: object, **options: object) -> object:
        nonlocal attempts
        attempts += 1
        return create(*arguments, **options)  # type: ignore[call-overload]  # passed on as they are

    monkeypatch.setattr(loop, "create_connection", counted)
    errors = await asyncio.gather(*(client.request("/", []) for _ in range(20)), return_exceptions=True)
    assert all(isinstance(error, OSError) for error in errors)
    assert attempts == 1


async def test_a_silent_connection_is_checked_and_a_dead_one_ends(
    server: Http2Server, client: Http2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2_connection, "PING_SECONDS", 0.05)
    response = await opened(client)
    with pytest.raises(TimeoutError):  # it is silent, and not dead
        async with asyncio.timeout(0.5):
            await response.read()
    server.connections[0].send(response.number, b"alive")
    assert await response.read() == b"alive"
    server.is_deaf = True
    with pytest.raises(TimeoutError, match="ping"):
        await response.read()


async def test_a_connection_without_responses_is_closed_after_a_while(
    server: Http2Server, client: Http2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2_connection, "IDLE_SECONDS", 0.02)
    response = await opened(client)
    [connection] = server.connections
    connection.end(response.number)
    await server.until(lambda: connection.transport is None)


async def test_a_connection_takes_a_limited_number_of_requests(server: Http2Server, client: Http2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_connection, "MAX_REQUESTS", 2)
    found = [await opened(client) for _ in range(3)]
    assert len(server.connections) == 2
    server.connections[0].send(found[0].number, b"goes on")
    assert await found[0].read() == b"goes on"


class Wire(asyncio.Transport):
    """A transport that leads nowhere."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self

    def selected_alpn_protocol(self) -> str:
        return "h2"

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_no_bytes_of_a_server_raise(pieces: list[bytes]) -> None:
    async def receive() -> None:
        connection = Http2Connection()
        connection.connection_made(Wire())
        response = connection.request([(":method", "GET"), (":path", "/")])
        for piece in pieces:
            connection.data_received(piece)
        connection.connection_lost(None)
        with pytest.raises(OSError, match=r"closed|HTTP/2"):
            await response.read()

    asyncio.run(receive())


# ---- with the client of the API server


def kube_client(server: Http2Server) -> KubeClient:
    configuration = Configuration()
    configuration.host = server.url
    configuration.ssl_ca_cert = str(server.authority)
    configuration.api_key = {"BearerToken": "bearer good"}
    return KubeClient(configuration, timeout_seconds=2)


REQUEST = LogRequest("default", "p", "vllm")


async def test_a_log_is_read_over_http2(server: Http2Server) -> None:
    def answer(connection: Connection, stream: int, headers: dict[str, str]) -> None:
        connection.begin(stream)
        connection.send(stream, b"a line\n")
        connection.end(stream)

    server.answer = answer
    client = kube_client(server)
    async with client.stream_log(REQUEST) as pieces:
        assert [piece async for piece in pieces] == [b"a line\n"]
    [request] = server.requests
    assert request["authorization"] == "bearer good"
    assert request["user-agent"].startswith("vllm-operator/")
    assert request[":path"] == "/api/v1/namespaces/default/pods/p/log?container=vllm&timestamps=true&follow=true"
    await client.close()


async def test_a_refusal_over_http2_is_the_same_error_as_over_http1(server: Http2Server) -> None:
    def answer(connection: Connection, stream: int, headers: dict[str, str]) -> None:
        is_missing = "container=vllm" in headers[":path"]
        connection.begin(stream, 404 if is_missing else 429, retry_after="7")
        connection.send(stream, b'{"kind": "Status", "message": "the server\'s words"}')
        connection.end(stream)

    server.answer = answer
    client = kube_client(server)
    with pytest.raises(NotFound, match="the server's words"):
        async with client.stream_log(REQUEST):
            pass
    with pytest.raises(Unavailable) as caught:
        async with client.stream_log(LogRequest("default", "p", "other")):
            pass
    assert caught.value.retry_after == 7
    await client.close()


async def test_a_log_is_read_over_http1_where_there_is_no_http2(tmp_path: Path) -> None:
    async with http2_server(tmp_path, protocols=("http/1.1",)) as server:
        client = kube_client(server)
        with pytest.raises(Unavailable):  # the server says nothing; what matters is the second connection
            async with client.stream_log(LogRequest("default", "p", "vllm", follow=False)):
                pass
        assert len(server.connections) == 2
        await client.close()
