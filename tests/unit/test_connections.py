"""Which clients wait for an answer, from real connections."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from vllm_operator.tools.connections import TLS_SEGMENTS, read_waits

Connect = Callable[[], tuple[socket.socket, socket.socket]]


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    try:
        made = socket.create_server(("::1" if request.param == socket.AF_INET6 else "127.0.0.1", 0), family=request.param)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with made:
        yield made


@pytest.fixture
def connect(listener: socket.socket) -> Iterator[Connect]:
    opened: list[socket.socket] = []

    def make() -> tuple[socket.socket, socket.socket]:
        client = socket.create_connection(listener.getsockname()[:2])
        server, _ = listener.accept()
        opened.extend((client, server))
        return client, server

    yield make
    for each in opened:
        each.close()


def waits(listener: socket.socket, *, closes: bool = False) -> list[float]:
    found = read_waits(listener.getsockname()[1], closes=closes)
    if found is None:
        pytest.skip("this kernel does not show the times of connections")
    return found


def arrives(server: socket.socket) -> bytes:
    time.sleep(0.02)  # the kernel counts milliseconds
    return server.recv(100)


def test_nobody_waits_on_idle_connections(listener: socket.socket, connect: Connect) -> None:
    assert waits(listener) == []
    connect()  # never used
    client, server = connect()
    client.sendall(b"GET /")
    arrives(server)
    server.sendall(b"200 OK")
    assert waits(listener) == []
    server.close()
    assert waits(listener) == []


def test_a_client_waits_from_its_request_to_the_answer(listener: socket.socket, connect: Connect) -> None:
    client, server = connect()
    for _ in range(2):
        client.sendall(b"GET /")
        arrives(server)
        (wait,) = waits(listener)
        assert 0 < wait < 10
        assert waits(listener)[0] >= wait
        server.sendall(b"200 OK")
        assert waits(listener) == []
        time.sleep(0.02)


def test_a_client_that_asks_again_at_once_waits_if_the_server_closes_idle_connections(listener: socket.socket, connect: Connect) -> None:
    for _ in range(20):  # within one tick of the clock, or not
        client, server = connect()
        client.sendall(b"GET /")
        server.recv(100)
        time.sleep(0.02)
        server.sendall(b"200 OK")
        client.recv(100)
        client.sendall(b"GET /")
    assert len(waits(listener, closes=True)) == 20
    assert len(waits(listener)) <= 20
    for _ in range(5):
        client, server = connect()  # never used
    assert len(waits(listener, closes=True)) == 20


def test_a_connection_that_has_received_no_more_than_a_handshake_does_not_wait(listener: socket.socket, connect: Connect) -> None:
    for requests in (3, 20):  # of a connection of its own
        client, server = connect()
        for _ in range(requests):
            client.sendall(b"GET /")
            server.recv(100)
            server.sendall(b"200 OK")
            client.recv(100)
        client.sendall(b"GET /")
        server.recv(100)
        time.sleep(0.02)
        server.sendall(b"200 OK")
        client.recv(100)
        client.sendall(b"GET /")  # within one tick of the clock, or not
    found = read_waits(listener.getsockname()[1], closes=True, handshake=TLS_SEGMENTS)
    if found is None:
        pytest.skip("this kernel does not show the times of connections")
    assert 1 <= len(found) <= 2
    assert len(waits(listener, closes=True)) == 2


def test_a_client_that_does_not_read_its_stream_does_not_wait(listener: socket.socket, connect: Connect) -> None:
    client, server = connect()
    client.sendall(b"GET /")
    arrives(server)
    server.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while server.send(b"x" * 65536):
            pass
    assert waits(listener) == []


def test_many_connections_are_read(listener: socket.socket, connect: Connect) -> None:
    for _ in range(300):
        client, server = connect()
        client.sendall(b"GET /")
        server.recv(100)
    assert len(waits(listener)) == 300


def test_nothing_is_known_where_the_kernel_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Address family not supported by protocol")

    monkeypatch.setattr("vllm_operator.tools.connections.socket.socket", refuse)
    assert read_waits(80, closes=True) is None
