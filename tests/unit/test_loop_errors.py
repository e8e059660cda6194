"""What the event loop reports outside of any task: a cancelled connection is no error of the operator, all else is."""

import asyncio
import itertools
import logging
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from vllm_operator.controller.log_output import handle_loop_error


@pytest.fixture
def server(tmp_path: Path) -> Iterator[int]:
    """The port of a server that speaks TLS, in a thread of its own."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run([*command, "-subj", "/CN=test", "-keyout", "key.pem", "-out", "test.pem"], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "test.pem", tmp_path / "key.pem")
    ports: list[int] = []
    ready, done = threading.Event(), threading.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
            ports.append(server.sockets[0].getsockname()[1])
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait(timeout=10)
    yield ports[0]
    done.set()
    thread.join(timeout=10)


async def cancel_between_connection_and_handshake(port: int, told: Callable[[], bool]) -> None:
    """Cancel connections when TCP is there, and let their handshakes complete before they learn of it, until that is told."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(handle_loop_error)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for pause, turns in itertools.product((0.05, 0.2, 1.0, 3.0), (1, 2, 3, 4)):  # of the loop, until TCP is there
        if told():
            return
        sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        tasks = []
        for connected in sockets:
            connected.setblocking(False)
            connect = loop.create_connection(asyncio.Protocol, sock=connected, ssl=context, server_hostname="test")
            tasks.append(asyncio.ensure_future(connect))
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        time.sleep(pause)  # noqa: ASYNC251 - holds up the loop: the server's answer must be there when it goes on
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.05)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate with")
def test_a_connection_that_is_cancelled_in_its_handshake_is_reported_at_the_level_of_debug_only(
    server: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def told() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "Fatal error on SSL protocol" in record.getMessage()]

    uvloop.run(cancel_between_connection_and_handshake(server, lambda: bool(told())))
    assert told(), "uvloop has mended it: handle_loop_error is no longer needed"
    assert {record.levelno for record in told()} == {logging.DEBUG}


async def test_a_handshake_that_nobody_awaits_and_the_peer_ends_is_reported_at_the_level_of_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    names: dict[str, object] = {"ConnectionResetError": ConnectionResetError}
    with pytest.raises(ConnectionResetError) as found:
        exec(compile("raise ConnectionResetError", "uvloop/sslproto.pyx", "exec"), names)
    context = {"message": "Future exception was never retrieved", "exception": found.value}
    handle_loop_error(asyncio.get_running_loop(), context)
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]


@pytest.mark.parametrize(
    "context",
    [
        {"message": "Fatal error on SSL protocol", "exception": ValueError("the handler is closed")},
        {"message": "Fatal error on SSL protocol", "exception": RuntimeError("something else")},
        {"message": "Task exception was never retrieved", "exception": RuntimeError("the handler is closed")},
        {"message": "Future exception was never retrieved", "exception": ConnectionResetError()},
        {"message": "no exception at all"},
    ],
    ids=["another class", "other words", "not of TLS", "another future", "no exception"],
)
async def test_all_else_is_an_error(context: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    handle_loop_error(asyncio.get_running_loop(), context)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert str(context["message"]) in record.getMessage()
