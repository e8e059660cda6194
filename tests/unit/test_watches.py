"""Watches by kopf, on a server that answers as an API server does: what reaches the operator, over which connection, and their end."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from vllm_operator.controller import watches
from vllm_operator.kube.client import POD, Kind, Manifest
from vllm_operator.kube.connection import ssl_context


def pod(name: str, version: int) -> Manifest:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def discovered(plural: str, kind: str, *, namespaced: bool = True) -> dict[str, Any]:
    return {"name": plural, "kind": kind, "singularName": kind.lower(), "namespaced": namespaced, "verbs": ["list", "watch", "patch"]}


DISCOVERY: dict[str, Any] = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {
        "resources": [discovered("pods", "Pod"), discovered("events", "Event"), discovered("namespaces", "Namespace", namespaced=False)]
    },
    "/apis": {"groups": [{"name": "apiextensions.k8s.io", "preferredVersion": {"version": "v1"}, "versions": [{"version": "v1"}]}]},
    "/apis/apiextensions.k8s.io/v1": {"resources": [discovered("customresourcedefinitions", "CustomResourceDefinition", namespaced=False)]},
}
"""What kopf looks up before it watches."""


class Server:
    """Has one Pod, and tells of `events`."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.hosts: set[str] = set()
        self.lists = 0
        self.writes = 0
        self.watched: list[str] = []
        self.prefix = ""
        self.url = ""
        self.token = "t"
        self.tokens_read = 0
        self.refusals = 0
        self.refused = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.hosts.add(request.host)
        self.writes += request.method != "GET"
        path = request.path.removeprefix(self.prefix)
        if request.headers["Authorization"] != f"Bearer {self.token}":
            self.refusals += 1
            self.refused.set()
            return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)
        if path in DISCOVERY:
            return web.json_response(DISCOVERY[path])
        assert path == "/api/v1/pods"
        assert request.query["labelSelector"] == "app.kubernetes.io/name=vllm"
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response({"kind": "PodList", "metadata": {"resourceVersion": "10"}, "items": [pod("listed", 5)]})
        self.watched.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await self.events.get())["type"] != "END":
            await response.write(json.dumps(event).encode() + b"\n")
        return response


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made, app = Server(), web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


class Seen:
    """What an operator notices. It runs in a thread, because kopf waits at its end for all tasks of its event loop."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, bool]] = []
        self.listed: list[Kind] = []
        self.changed = asyncio.Event()
        self._stop: Callable[[], object] = lambda: None
        self._loop = asyncio.get_running_loop()

    def __call__(self, kind: Kind, manifest: Manifest, deleted: bool) -> None:
        self.events.append((kind.kind, manifest["metadata"]["name"], deleted))
        self._loop.call_soon_threadsafe(self.changed.set)

    async def operate(self, configuration: Configuration) -> None:
        """Run kopf with the handlers of the operator."""
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        called: dict[str, Any] = {"notice": self, "listed": self.listed.append, "started": AsyncMock(), "stopped": AsyncMock()}
        await watches.Watches(kinds=[POD], configuration=lambda: configuration, **called).run(stop)

    @asynccontextmanager
    async def watching(self, configuration: Configuration) -> AsyncIterator[None]:
        running = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(self.operate(configuration))))
        try:
            yield
        finally:
            self._stop()
            await running

    async def until(self, number: int) -> None:
        async with asyncio.timeout(20):
            while len(self.events) < number:
                self.changed.clear()
                await self.changed.wait()


def configuration_for(url: str, proxy: str | None = None) -> Configuration:
    configuration = Configuration()
    configuration.host, configuration.proxy = url, proxy
    configuration.api_key = {"BearerToken": "Bearer t"}
    return configuration


@pytest.mark.parametrize("by_proxy", [False, True])
async def test_events_arrive_over_the_connection_of_the_client_and_nothing_is_written(server: Server, by_proxy: bool) -> None:
    configuration = configuration_for("http://api.invalid", proxy=server.url) if by_proxy else configuration_for(server.url)
    seen = Seen()
    async with seen.watching(configuration):
        server.events.put_nowait({"type": "ADDED", "object": pod("new", 11)})
        await seen.until(1)
        server.events.put_nowait({"type": "DELETED", "object": pod("new", 12)})
        await seen.until(2)
    assert seen.events == [("Pod", "new", False), ("Pod", "new", True)], "the objects of kopf's list are not events"
    assert server.hosts == ({"api.invalid"} if by_proxy else {server.url.removeprefix("http://")})
    assert server.writes == 0


@pytest.mark.parametrize("prefix", ["", "/k8s/clusters/c-1"])
async def test_each_list_with_which_a_watch_begins_is_reported(server: Server, prefix: str) -> None:
    server.prefix = prefix
    seen = Seen()
    async with seen.watching(configuration_for(server.url + prefix)):
        server.events.put_nowait({"type": "ADDED", "object": pod("new", 11)})
        await seen.until(1)
        assert (server.lists, server.watched, seen.listed) == (1, ["10"], [POD])
        server.events.put_nowait({"type": "ERROR", "object": {"kind": "Status", "code": 410}})
        server.events.put_nowait({"type": "END"})
        server.events.put_nowait({"type": "ADDED", "object": pod("newer", 13)})
        await seen.until(2)
    assert (server.lists, server.watched, seen.listed) == (2, ["10", "10"], [POD, POD])


def test_certificates_are_verified_without_the_strict_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 verifies strictly by default, which the certificate authorities of some clusters do not satisfy."""

    def strict(*_: object, **__: object) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    context = ssl_context(configuration_for("https://api.invalid"))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT


async def test_an_event_that_cannot_be_handled_costs_no_other(server: Server) -> None:
    seen = Seen()
    async with seen.watching(configuration_for(server.url)):
        server.events.put_nowait({"type": "ADDED", "object": {"kind": "Pod", "metadata": {"uid": "1"}}})
        server.events.put_nowait({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "11"}}})
        server.events.put_nowait({"type": "ADDED", "object": pod("new", 12)})
        await seen.until(1)
    assert seen.events == [("Pod", "new", False)]


async def test_a_watch_survives_a_socket_that_uvloop_takes_for_another_one(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/MagicStack/uvloop/issues/653"""
    connect, failures = aiohttp.TCPConnector.connect, iter(range(2))

    async def fail_at_first(*args: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise RuntimeError("File descriptor 17 is used by transport <TCPTransport closed=False reading=True 0x55966af61ad0>")
        return await connect(*args, **options)

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", fail_at_first)
    seen = Seen()
    async with seen.watching(configuration_for(server.url)):
        server.events.put_nowait({"type": "ADDED", "object": pod("new", 11)})
        await seen.until(1)
    assert seen.events == [("Pod", "new", False)]


async def test_a_session_that_is_refused_is_replaced(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens expire. The next session has the one that the kubelet has written meanwhile."""
    server.token, configuration, seen = "u", configuration_for(server.url), Seen()

    def read_token(configuration: Configuration) -> None:
        server.tokens_read += 1
        configuration.api_key = {"BearerToken": f"Bearer {'t' if server.tokens_read == 1 else 'u'}"}

    monkeypatch.setattr(watches, "SESSION_SECONDS", 0.05)
    configuration.refresh_api_key_hook = read_token
    async with seen.watching(configuration):
        server.events.put_nowait({"type": "ADDED", "object": pod("new", 11)})
        await seen.until(1)
    assert (seen.events, server.tokens_read) == ([("Pod", "new", False)], 2)


async def test_while_all_sessions_are_refused_the_api_server_is_not_asked_all_the_time(server: Server) -> None:
    server.token = "another"
    async with Seen().watching(configuration_for(server.url)):
        await server.refused.wait()
        await asyncio.sleep(0.2)
        assert server.refusals <= 4, "one for each request of the discovery"


async def test_the_error_of_one_watch_ends_the_operator(server: Server) -> None:
    """The kubelet starts it again."""
    server.events.put_nowait({"type": "ERROR", "object": {"kind": "Status", "code": 500}})
    seen = Seen()
    with pytest.raises(Exception, match="Error in the watch-stream"):
        await asyncio.to_thread(lambda: asyncio.run(seen.operate(configuration_for(server.url))))
