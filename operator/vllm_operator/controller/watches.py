"""Watches on the objects of the cluster: a kopf operator whose only handlers are for raw events.

kopf provides list and watch, bookmarks, reconnection and the detection of dead connections. kopf's other handlers are not used: they write
annotations and finalizers, and retry independently of the queue. Two settings keep the CPU time of an event low (0.3 to 0.5 ms):
`_NoDiffBase`, and `IDLE_SECONDS` instead of kopf's 5 s.

Nodes are not watched, because they are large and change with every heartbeat.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import kopf
from kubernetes.aio.client.configuration import Configuration

from vllm_operator.kube.api_client import PAGE, TIMEOUT_SECONDS
from vllm_operator.kube.client import Kind, Manifest, watched_labels
from vllm_operator.kube.connection import authorization, open_session

RECONNECT_SECONDS = (0.5, 0.5, 1.0, 1.0, *(2.0,) * 30)
"""Delays between attempts to reach the API server. They are short, because a long one would delay the first event after an outage."""
SESSION_SECONDS = 1.0
"""Minimum time between two sessions, because the API server may refuse each immediately."""
IDLE_SECONDS = 0.05
"""Time for which kopf keeps the task and the last version of an object after an event."""


class _NoDiffBase(kopf.DiffBaseStorage):
    """Stores nothing. Otherwise kopf copies the object of each event."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        return kopf.BodyEssence({})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        pass


@dataclass(slots=True, kw_only=True)
class Watches:
    """A kopf operator that watches these kinds."""

    kinds: Sequence[Kind]
    configuration: Callable[[], Configuration]
    """Returns the current connection settings."""
    notice: Callable[[Kind, Manifest, bool], None]
    """Takes the kind and the object of each watch event, and whether the object was deleted."""
    listed: Callable[[Kind], None]
    """Called with a kind whenever kopf has listed it, just before its watch begins."""
    started: Callable[..., Awaitable[None]]
    """Called when kopf has started."""
    stopped: Callable[..., Awaitable[None]]
    """Called before kopf ends."""
    namespaces: Sequence[str] = ()
    """The watched namespaces; all if empty."""
    _session: aiohttp.ClientSession | None = None
    _opened_at: float = -SESSION_SECONDS

    async def run(self, stop: asyncio.Event) -> None:
        """Run kopf until `stop` is set. Raises any error of a watch."""
        registry = kopf.OperatorRegistry()
        for kind in self.kinds:
            self._register(registry, kind)
        kopf.on.login(registry=registry)(self._login)
        kopf.on.startup(registry=registry, id="start")(self.started)
        kopf.on.cleanup(registry=registry, id="stop")(self.stopped)
        try:
            await kopf.operator(
                registry=registry,
                settings=_settings(self.kinds),
                clusterwide=not self.namespaces,
                namespaces=self.namespaces,
                standalone=True,
                stop_flag=stop,
            )
        finally:
            await self._close()  # kopf closes its session only if it ends without an error

    def _register(self, registry: kopf.OperatorRegistry, kind: Kind) -> None:
        @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)
        async def changed(event: Mapping[str, Any], **_: object) -> None:
            if event["type"] is not None:  # None: from kopf's initial list; the cache lists objects itself
                self.notice(kind, dict(event["object"]), event["type"] == "DELETED")

    async def _login(self, **_: object) -> kopf.AiohttpSession:
        """Open a session with the configuration of the operator's client. kopf asks for one at its start and after each 401."""
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._opened_at + SESSION_SECONDS - clock()))
        self._opened_at = clock()
        await self._close()
        configuration = self.configuration()
        base = urlsplit(configuration.host).path.rstrip("/")
        lists = {
            base + kind.path(namespace): kind
            for kind in self.kinds
            for namespace in (self.namespaces if kind.namespaced else ()) or (None,)
        }

        async def report_list(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
            response = await send(request)
            kind = lists.get(request.url.path)
            if kind is not None and request.method == "GET" and response.ok and not {"watch", "continue"} & request.url.query.keys():
                self.listed(kind)
            return response

        token = await authorization(configuration)
        self._session = open_session(configuration, headers={"Authorization": token} if token else {}, middlewares=(report_list,))
        return kopf.AiohttpSession(server=configuration.host, aiohttp_session=self._session)

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _settings(kinds: Sequence[Kind]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.posting.enabled = False
    settings.scanning.disabled = True  # the existing kinds were checked before
    settings.process.ultimate_exiting_timeout = None  # the kubelet ends a process that does not end
    settings.networking.request_timeout = TIMEOUT_SECONDS
    settings.networking.connect_timeout = TIMEOUT_SECONDS
    settings.networking.error_backoffs = RECONNECT_SECONDS
    settings.watching.chunk_size = PAGE
    for kind in kinds:
        if selector := watched_labels(kind):
            text = ",".join(f"{label}={value}" for label, value in selector.items())
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = text
    return settings
