"""Watches by kopf, on a server that answers as an API server does: what reaches the operator, over which connection, and their end."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from vllm_operator.cluster.client import POD, Kind, Manifest
from vllm_operator.cluster.library import Configuration
from vllm_operator.runtime import watches
from vllm_operator.runtime.watches import NOTHING, Watches, connection_info


def pod(name: str, version: int) -> Manifest:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


class Server:
    """Has one Pod, and tells of `events`. It has forgotten the version 7."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.hosts: set[str] = set()
        self.lists: list[dict[str, str]] = []
        self.watched: list[str] = []
        self.prefix = ""
        self.url = ""
        self.token = "t"
        self.tokens_read = 0
        self.refusals = 0
        self.refused = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.hosts.add(request.host)
        path = request.path.removeprefix(self.prefix)
        assert path == "/api/v1/pods"
        if request.headers["Authorization"] != f"Bearer {self.token}":
            self.refusals += 1
            self.refused.set()
            return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)
        if "watch" not in request.query:
            self.lists.append({name: value for name, value in request.query.items() if name != "labelSelector"})
            if request.query.get("resourceVersion") == "7":
                return web.json_response({"kind": "Status", "code": 410, "reason": "Expired"}, status=410)
            version = request.query.get("resourceVersion", "10")
            items = [] if request.query.get("fieldSelector") == NOTHING else [pod("listed", 5)]
            return web.json_response({"kind": "PodList", "metadata": {"resourceVersion": version}, "items": items})
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
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.outdated: list[Kind] = []
        self.changed = asyncio.Event()

    def __call__(self, kind: Kind, type: str, manifest: Manifest) -> None:
        self.events.append((kind.kind, type, manifest["metadata"]["name"]))
        self.changed.set()

    def watches(self, configuration: Configuration, version: str = "9") -> Watches:
        return Watches(configuration, notice=self, outdated=self.outdated.append, kinds=[POD], versions={(POD, None): version})

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
async def test_events_arrive_over_the_clients_connection(server: Server, by_proxy: bool) -> None:
    configuration = configuration_for("http://api.invalid", proxy=server.url) if by_proxy else configuration_for(server.url)
    seen = Seen()
    task = asyncio.create_task(seen.watches(configuration).run())
    server.events.put_nowait({"type": "ADDED", "object": pod("new", 11)})
    await seen.until(1)
    server.events.put_nowait({"type": "DELETED", "object": pod("new", 12)})
    await seen.until(2)
    assert seen.events == [("Pod", "ADDED", "new"), ("Pod", "DELETED", "new")]
    assert server.hosts == ({"api.invalid"} if by_proxy else {server.url.removeprefix("http://")})
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("prefix", ["", "/k8s/clusters/c-1"])
async def test_watches_begin_where_the_mirror_has_listed_and_list_nothing_themselves(server: Server, prefix: str) -> None:
    server.prefix = prefix
    seen = Seen()
    task = asyncio.create_task(seen.watches(configuration_for(server.url + prefix)).run())
    server.events.put_nowait({"type": "ADDED", "object": pod("new", 11)})
    await seen.until(1)
    assert server.lists == [{"fieldSelector": NOTHING, "resourceVersion": "9", "resourceVersionMatch": "Exact"}]
    assert (server.watched, seen.outdated) == (["9"], [])
    server.events.put_nowait({"type": "ERROR", "object": {"kind": "Status", "code": 410}})
    server.events.put_nowait({"type": "END"})
    server.events.put_nowait({"type": "ADDED", "object": pod("newer", 13)})
    await seen.until(2)
    assert server.lists[1:] == [{"fieldSelector": NOTHING}]
    assert (server.watched, seen.outdated) == (["9", "10"], [POD])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_where_the_version_of_the_list_is_forgotten_already_the_mirror_lists_again(server: Server) -> None:
    seen = Seen()
    task = asyncio.create_task(seen.watches(configuration_for(server.url), version="7").run())
    server.events.put_nowait({"type": "ADDED", "object": pod("new", 11)})
    await seen.until(1)
    assert [query.get("resourceVersion") for query in server.lists] == ["7", None]
    assert (server.watched, seen.outdated) == (["10"], [POD])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_certificates_are_verified_as_by_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 verifies strictly by default, which the certificate authorities of some clusters do not satisfy."""

    def strict(*_: object, **__: object) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    context = connection_info(configuration_for("https://api.invalid")).as_ssl_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT


async def test_an_event_that_cannot_be_handled_costs_no_other(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()
    task = asyncio.create_task(seen.watches(configuration_for(server.url)).run())
    server.events.put_nowait({"type": "ADDED", "object": {"kind": "Pod", "metadata": {}}})
    server.events.put_nowait({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "11"}}})
    server.events.put_nowait({"type": "ADDED", "object": pod("new", 12)})
    await seen.until(1)
    assert seen.events == [("Pod", "ADDED", "new")]
    assert "a watch event about an object of kind Pod could not be handled" in caplog.text
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_watch_survives_a_socket_that_uvloop_takes_for_another_one(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/MagicStack/uvloop/issues/653"""
    connect, failures = aiohttp.TCPConnector.connect, iter(range(2))

    async def fail_at_first(*args: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise RuntimeError("File descriptor 17 is used by transport <TCPTransport closed=False reading=True 0x55966af61ad0>")
        return await connect(*args, **options)

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", fail_at_first)
    seen = Seen()
    task = asyncio.create_task(seen.watches(configuration_for(server.url)).run())
    server.events.put_nowait({"type": "ADDED", "object": pod("new", 11)})
    await seen.until(1)
    assert seen.events == [("Pod", "ADDED", "new")]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_session_that_is_refused_is_replaced(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens expire. The next session has the one that the kubelet has written meanwhile."""
    server.token, configuration, seen = "u", configuration_for(server.url), Seen()

    def read_token(configuration: Configuration) -> None:
        server.tokens_read += 1
        configuration.api_key = {"BearerToken": f"Bearer {'t' if server.tokens_read == 1 else 'u'}"}

    monkeypatch.setattr(watches, "SESSION_SECONDS", 0.05)
    configuration.refresh_api_key_hook = read_token
    task = asyncio.create_task(seen.watches(configuration).run())
    server.events.put_nowait({"type": "ADDED", "object": pod("new", 11)})
    await seen.until(1)
    assert (seen.events, server.tokens_read) == ([("Pod", "ADDED", "new")], 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_while_all_sessions_are_refused_the_api_server_is_not_asked_all_the_time(server: Server) -> None:
    server.token = "another"
    task = asyncio.create_task(Seen().watches(configuration_for(server.url)).run())
    await server.refused.wait()
    await asyncio.sleep(0.2)
    assert server.refusals == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_error_of_one_watch_ends_all(server: Server) -> None:
    """The supervisor starts them again, after a new list."""
    seen = Seen()
    task = asyncio.create_task(seen.watches(configuration_for(server.url)).run())
    server.events.put_nowait({"type": "ERROR", "object": {"kind": "Status", "code": 500}})
    with pytest.raises(Exception, match="Error in the watch-stream"):
        await task
    assert not [task for task in asyncio.all_tasks() if "watch" in task.get_name()]
