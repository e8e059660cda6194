"""The client for a real API server, in front of a server that answers what a test says."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException

from vllm_operator.kube import api_client as kube
from vllm_operator.kube.api_client import Fence, KubeClient
from vllm_operator.kube.client import (
    ACCESS_REVIEW,
    CONFIG_MAP,
    POD,
    ClusterError,
    Forbidden,
    LogRequest,
    NotFound,
    NotLeading,
    Unauthorized,
    Unavailable,
)
from vllm_operator.kube.connection import MissingConnectionError

GOOD, OLD = "bearer good", "bearer old"
REFUSED = {"kind": "Status", "message": "Unauthorized"}


class Server:
    """An API server that accepts one token."""

    def __init__(self) -> None:
        self.accepted = GOOD
        self.seen: list[str] = []
        self.status = 200
        self.url = ""
        self.delay = 0.0
        self.headers: dict[str, str] = {}
        self.body = b'{"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}, "message": "the server\'s words"}'

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append(request.headers.get("Authorization", ""))
        await asyncio.sleep(self.delay)
        if self.seen[-1] != self.accepted:
            return web.json_response(REFUSED, status=401)
        if request.path.endswith("/log") and self.status == 200:
            return web.Response(text="a line\n")
        return web.Response(body=self.body, status=self.status, headers=self.headers)

    def configuration(self, token: str) -> Configuration:
        made = Configuration()
        made.host = self.url
        made.api_key = {"BearerToken": token}
        return made


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made, app = Server(), web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


Reload = Callable[[], Awaitable[Configuration]]


@pytest.fixture
async def connect(server: Server) -> AsyncIterator[Callable[[Reload | None], KubeClient]]:
    made: list[KubeClient] = []

    def connected(reload: Reload | None) -> KubeClient:
        made.append(KubeClient(server.configuration(OLD), reload=reload, timeout_seconds=2))
        return made[-1]

    yield connected
    for client in made:
        await client.close()


Connect = Callable[[Reload | None], KubeClient]


async def read(client: KubeClient) -> object:
    return await client.get(CONFIG_MAP, "c", "default")


async def read_log(client: KubeClient) -> object:
    async with client.stream_log(LogRequest("default", "p", "vllm")) as pieces:
        return [piece async for piece in pieces]


@pytest.mark.parametrize("ask", [read, read_log], ids=["an object", "a log"])
async def test_a_token_that_has_rotated_is_read_again_and_the_request_repeated(
    server: Server, connect: Connect, ask: Callable[[KubeClient], Awaitable[object]]
) -> None:
    async def reload() -> Configuration:
        return server.configuration(GOOD)

    assert await ask(connect(reload))
    assert server.seen == [OLD, GOOD]


async def test_requests_that_are_refused_together_read_the_credentials_once(server: Server, connect: Connect) -> None:
    reloads = 0

    async def reload() -> Configuration:
        nonlocal reloads
        reloads += 1
        await asyncio.sleep(0.05)
        return server.configuration(GOOD)

    client = connect(reload)
    await asyncio.gather(*(read(client) for _ in range(5)))
    assert reloads == 1


async def test_credentials_that_are_refused_again_are_reported_as_such_and_not_as_a_missing_permission(
    server: Server, connect: Connect
) -> None:
    async def reload() -> Configuration:
        return server.configuration(OLD)

    client = connect(reload)
    told: list[bool] = []
    client.refused = lambda: told.append(True)
    with pytest.raises(Unauthorized, match="does not accept the credentials") as caught:
        await read(client)
    assert not isinstance(caught.value, Forbidden)
    assert isinstance(caught.value, Unavailable)  # it is tried again
    assert told
    server.accepted = OLD  # they are valid again
    assert await read(client)


def missing() -> Exception:
    return MissingConnectionError("There is no kubeconfig")


@pytest.mark.parametrize("failure", [missing, TimeoutError], ids=["they are gone", "a program that prints them hangs"])
async def test_credentials_that_cannot_be_read_again_are_an_error_of_the_cluster(
    server: Server, connect: Connect, failure: Callable[[], Exception]
) -> None:
    async def reload() -> Configuration:
        raise failure()

    with pytest.raises(Unauthorized, match="cannot be read again"):
        await read(connect(reload))


@pytest.mark.parametrize("failure", [OSError("no such file"), ConfigException("Token file exists but empty.")])
async def test_a_token_file_that_cannot_be_read_is_an_error_of_the_cluster(server: Server, connect: Connect, failure: Exception) -> None:
    def refresh(configuration: Configuration) -> None:
        raise failure

    client = connect(None)
    client.configuration.refresh_api_key_hook = refresh
    with pytest.raises(Unauthorized, match="token of the ServiceAccount cannot be read"):
        await read(client)
    assert server.seen == []


@pytest.mark.parametrize(("status", "kind"), [(403, Forbidden), (404, NotFound), (503, Unavailable)])
async def test_not_allowed_not_there_and_not_now_are_distinguished(
    server: Server, connect: Connect, status: int, kind: type[ClusterError]
) -> None:
    server.accepted, server.status = OLD, status
    with pytest.raises(kind) as caught:
        await read(connect(None))
    assert type(caught.value) is kind


@pytest.mark.parametrize("status", [401, 403])
async def test_an_api_server_that_is_just_back_may_not_know_yet_who_may_do_what(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    client = connect(None)
    server.accepted = OLD if status == 403 else GOOD
    url, client.configuration.host = client.configuration.host, "http://127.0.0.1:1"
    with pytest.raises(Unavailable):
        await read(client)
    client.configuration.host, server.status = url, status
    with pytest.raises(Unavailable, match="is back after an outage"):
        await read(client)
    monkeypatch.setattr(kube, "RETURNING_SECONDS", 0.0)
    with pytest.raises(Forbidden if status == 403 else Unauthorized):
        await read(client)


async def test_a_log_that_may_not_be_read_is_reported_as_such(server: Server, connect: Connect) -> None:
    with pytest.raises(Unauthorized):
        async with connect(None).stream_log(LogRequest("default", POD.plural, "vllm")):
            pass


URL = "https://10.0.0.7:10250/containerLogs/default/p/vllm?follow=true&timestamps=true"


@pytest.mark.parametrize(
    ("message", "want"),
    [
        (
            f'Get "{URL}": dial tcp 10.0.0.7:10250: connect: connection refused',
            "dial tcp 10.0.0.7:10250: connect: connection refused",
        ),
        (f'Get "{URL}": No agent available', "No agent available"),
        (
            f'Get "{URL}": proxy error while dialing 10.0.0.7:10250, code 502: 502 Bad Gateway',
            "proxy error while dialing 10.0.0.7:10250, code 502: 502 Bad Gateway",
        ),
        ("no preferred addresses found; known addresses: []", "no preferred addresses found; known addresses: []"),
        (f"Internal error occurred: {URL}: is busy", f"Internal error occurred: {URL}: is busy"),
        ("etcdserver: request timed out", "etcdserver: request timed out"),
    ],
)
async def test_an_error_of_a_kubelet_that_cannot_be_reached_is_about_the_node(
    server: Server, connect: Connect, message: str, want: str
) -> None:
    server.accepted, server.status = OLD, 500
    server.body = json.dumps({"kind": "Status", "message": message, "code": 500}).encode()
    with pytest.raises(Unavailable) as caught:
        await read_log(connect(None))
    assert str(caught.value) == want


async def test_only_a_log_that_is_followed_may_be_silent_for_long(server: Server, connect: Connect) -> None:
    server.accepted, server.delay = OLD, 0.3
    client = KubeClient(server.configuration(OLD), timeout_seconds=0.1)
    async with client.stream_log(LogRequest("default", "p", "vllm")) as pieces:
        assert [piece async for piece in pieces] == [b"a line\n"]
    with pytest.raises(Unavailable, match="did not answer in time"):
        async with client.stream_log(LogRequest("default", "p", "vllm", follow=False)):
            pass
    await client.close()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def fenced(server: Server) -> AsyncIterator[KubeClient]:
    server.accepted = OLD
    client = KubeClient(server.configuration(OLD), fence=Fence(Clock()), timeout_seconds=2)
    yield client
    await client.close()


ANY = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}}
WRITES: dict[str, Callable[[KubeClient], Awaitable[object]]] = {
    "apply": lambda client: client.apply(ANY, manager="m"),
    "apply_status": lambda client: client.apply_status(ANY, manager="m"),
    "patch": lambda client: client.patch(CONFIG_MAP, "c", "default", [], manager="m"),
    "create": lambda client: client.create(ANY),
    "delete": lambda client: client.delete(CONFIG_MAP, "c", "default"),
}


def test_every_verb_that_writes_is_tried_at_the_fence() -> None:
    reads = {"get", "get_path", "find", "pages", "stream_log", "watch_connection", "close"}
    verbs = {name for name, member in vars(KubeClient).items() if callable(member) and not name.startswith("_")}
    assert verbs == {*WRITES, *reads}


@pytest.mark.parametrize("verb", WRITES)
async def test_nothing_is_written_without_the_lease(server: Server, fenced: KubeClient, verb: str) -> None:
    with pytest.raises(NotLeading):
        await WRITES[verb](fenced)
    assert server.seen == []
    assert await read(fenced)  # which reads all the same
    assert fenced.fence is not None
    fenced.fence.writes_until = 101.0
    await WRITES[verb](fenced)
    assert len(server.seen) == 2


@pytest.mark.parametrize("verb", WRITES)
async def test_a_process_that_stands_still_with_a_request_in_its_hands_does_not_send_it(server: Server, verb: str) -> None:
    clock, server.accepted = Clock(), OLD
    fence = Fence(clock)
    fence.writes_until = 101.0
    frozen = aiohttp.TraceConfig()

    async def stand_still(*_: object) -> None:
        clock.now += 60

    frozen.on_connection_create_end.append(stand_still)
    configuration = server.configuration(OLD)
    configuration.trace_configs = [frozen]
    client = KubeClient(configuration, fence=fence, timeout_seconds=2)
    with pytest.raises(Unavailable):
        await WRITES[verb](client)
    await client.close()
    assert server.seen == []


async def test_a_body_that_waits_is_not_sent_either(server: Server) -> None:
    clock, server.accepted = Clock(), OLD
    fence = Fence(clock)
    fence.writes_until = 101.0
    frozen = aiohttp.TraceConfig()

    async def stand_still(*_: object) -> None:
        clock.now += 60

    frozen.on_request_headers_sent.append(stand_still)  # they are kept until the body is there
    configuration = server.configuration(OLD)
    configuration.trace_configs = [frozen]
    client = KubeClient(configuration, fence=fence, timeout_seconds=2)
    with pytest.raises(Unavailable):
        await client.create(ANY)
    await client.close()
    assert server.seen == []


async def test_a_write_is_not_waited_for_longer_than_it_may_be_sent(server: Server, fenced: KubeClient) -> None:
    assert fenced.fence is not None
    fenced.fence.writes_until = 100.3
    server.delay = 1.0
    started = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable):
        await fenced.create(ANY)
    assert asyncio.get_running_loop().time() - started < 0.9


async def test_asking_for_a_permission_is_no_write(server: Server, fenced: KubeClient) -> None:
    review = {"apiVersion": ACCESS_REVIEW.api_version, "kind": ACCESS_REVIEW.kind, "metadata": {}, "spec": {}}
    assert await fenced.create(review)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None), ("\u00b2", None), ("9" * 9, 60.0), ("9" * 400, None)],
)
async def test_how_long_a_server_asks_to_be_left_alone(server: Server, connect: Connect, header: str, seconds: float | None) -> None:
    server.accepted, server.status, server.headers = OLD, 503, {"Retry-After": header}
    with pytest.raises(Unavailable) as caught:
        await read(connect(None))
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422, 500, 503])
@pytest.mark.parametrize(
    "body",
    [
        b"5",
        b'{"message": 5, "details": "none"}',
        b'{"message": {"a": 1}, "details": {"causes": "none"}}',
        b'{"message": ["a"], "details": {"causes": ["none", {"field": 5, "message": 6}]}}',
        b"[" * 100_000,
        b"\xff",
    ],
    ids=["a number", "texts", "maps", "lists", "deep", "no UTF-8"],
)
async def test_an_error_in_any_form_is_an_error_of_the_cluster(server: Server, connect: Connect, status: int, body: bytes) -> None:
    server.accepted, server.status, server.body = OLD, status, body
    with pytest.raises(ClusterError) as caught:
        await read(connect(None))
    assert str(caught.value)


@pytest.mark.parametrize(
    "body",
    [b'{"items": "none"}', b'{"items": [1]}', b'{"metadata": "none"}', b'{"items": [{}], "metadata": {"continue": 5}}', b"[1]", b"5"],
)
async def test_a_list_that_is_none_is_an_error_of_the_cluster(server: Server, connect: Connect, body: bytes) -> None:
    """A proxy may send anything."""
    server.accepted, server.body = OLD, body
    with pytest.raises(Unavailable, match="is not"):
        await connect(None).find(CONFIG_MAP)


async def test_at_most_one_page_of_a_list_is_in_memory(server: Server, connect: Connect) -> None:
    """Also if the reader still has the page before. One without a token is the last."""
    server.accepted, server.body = OLD, b'{"items": [{}, {}], "metadata": {"continue": "more"}}'
    pages = aiter(connect(None).pages(CONFIG_MAP))
    first = await anext(pages)
    assert len(first) == 2
    server.body = b'{"items": [{}]}'
    second = await anext(pages)
    assert (len(first), len(second)) == (0, 1)
    with pytest.raises(StopAsyncIteration):
        await anext(pages)
