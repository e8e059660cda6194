"""The client of the test environment: what a server that goes away in the middle of an answer looks like."""

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from testenv.api import ApiClient

CUT = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"items":'
ANSWERS = {
    "it is cut off": CUT,
    "it is a refusal that is cut off": CUT.replace(b"200 OK", b"500 Internal Server Error"),
    "it is none": b"what?\r\n\r\n",
}

Serve = Callable[[bytes], ApiClient]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Returns a client, without TLS, of a server that answers each request with these bytes and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answering(answer: bytes) -> ApiClient:
            def run() -> None:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

            threading.Thread(target=run, daemon=True).start()
            client = ApiClient.__new__(ApiClient)
            client._server, client._token = f"http://127.0.0.1:{server.getsockname()[1]}", "token"
            client._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            return client

        yield answering


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_breaks_off_is_an_error_of_the_connection(serve: Serve, name: str) -> None:
    """Whoever watches for ever goes on after such an error, and after no other."""
    with pytest.raises(OSError, match=r"broke off|no answer"):
        serve(ANSWERS[name]).request("GET", "/api/v1/pods")
