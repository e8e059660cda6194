"""Watches by kopf, on a server that answers as an API server does: what reaches the operator, over which connection, and their end."""

import asyncio
import gc
import json
import logging
import ssl
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import kopf
import pytest
from aiohttp import web

from vllm_operator.cluster.client import POD, Kind, Manifest
from vllm_operator.cluster.library import Configuration
from vllm_operator.runtime.watches import NOTHING, NoMemories, Watches, connection_info

CORE = {
    "kind": "APIResourceList",
    "groupVersion": "v1",
    "resources": [
        {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list", "watch"]},
        {"name": "namespaces", "singularName": "namespace", "namespaced": False, "kind": "Namespace", "verbs": ["get", "list", "watch"]},
    ],
}
ANSWERS = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "groups": []},
    "/api/v1": CORE,
}


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

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.hosts.add(request.host)
        path = request.path.removeprefix(self.prefix)
        if path != "/api/v1/pods":
            return web.json_response(ANSWERS[path])
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

    def watches(self, configuration: Configuration, version: str = "9", of: "type[Watches] | None" = None) -> Watches:
        return (of or Watches)(configuration, notice=self, outdated=self.outdated.append, kinds=[POD], versions={(POD, None): version})

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


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "watches"]


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
    assert threads() == []


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


async def test_no_object_is_remembered() -> None:
    memories = NoMemories()
    await memories.recall(cast(kopf.RawBody, pod("a", 1)))
    assert list(memories.iter_all_memories()) == []


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


class Stubborn(Watches):
    """Its thread ends a while after it was told to, with an error."""

    ended = False

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        await asyncio.to_thread(self._stop.wait)
        await asyncio.sleep(0.2)  # so that whoever does not wait for the end goes on before it
        loop.call_soon_threadsafe(lambda: self._pass_on(POD, "ADDED", pod("late", 1)))
        self.ended = True
        raise kopf.LoginError("no credentials")


async def test_the_end_of_watches_is_awaited_and_what_comes_late_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()
    watches = seen.watches(configuration_for("http://api.invalid"), of=Stubborn)
    assert isinstance(watches, Stubborn)
    task = asyncio.create_task(watches.run())
    await asyncio.sleep(0)
    with caplog.at_level(logging.DEBUG):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert watches.ended
        await asyncio.sleep(0)
        del task
        gc.collect()
    assert seen.events == []
    assert "never retrieved" not in caplog.text


async def test_the_error_that_ends_kopf_ends_the_watches() -> None:
    watches = Seen().watches(configuration_for("http://api.invalid"), of=Stubborn)
    watches._stop.set()
    with pytest.raises(kopf.LoginError):
        await watches.run()
