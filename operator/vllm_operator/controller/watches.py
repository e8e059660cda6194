"""Watches on the objects of the cluster: a kopf operator whose only handlers are for raw events.

kopf provides list and watch, bookmarks, reconnection and the detection of dead connections. Its event handlers put each object into the
object cache, and its key into the operator's queue. kopf's other handlers are not used: they write annotations and finalizers, and retry
independently of the queue.

Two settings keep the CPU time of an event low (0.3 to 0.5 ms): `NoDiffBase` stores nothing, because event handlers need no diff, and an
object's task ends soon after its last event instead of keeping the object for 5 s.

Nodes are not watched, because they are large and change with every heartbeat.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import kopf
from kubernetes.aio.client.configuration import Configuration

from vllm_operator.kube.api_client import TIMEOUT_SECONDS
from vllm_operator.kube.client import Kind, Manifest, selector_of
from vllm_operator.kube.connection import authorization, open_session

RECONNECT_SECONDS = (0.5, 0.5, 1.0, 1.0, *(2.0,) * 30)
"""Delays between attempts to reach the API server. They are short, because a long one would delay the first event after an outage."""
SESSION_SECONDS = 1.0
"""Minimum time between two sessions, because the API server may refuse each immediately."""
IDLE_SECONDS = 0.05
"""Time for which kopf keeps the task and the last version of an object after an event."""
PAGE = 50
"""Page size of a list, in objects."""

Notice = Callable[[Kind, Manifest, bool], None]
"""Takes the kind and the object of a watch event, and whether the object was deleted."""


class NoDiffBase(kopf.DiffBaseStorage):
    """Stores nothing. Otherwise kopf copies the object of each event."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        """Return an empty essence."""
        return kopf.BodyEssence({})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Return None: nothing is stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Store nothing."""


def register_events(registry: kopf.OperatorRegistry, kinds: Collection[Kind], notice: Notice) -> None:
    """Register a handler for the events of each kind."""

    def register(kind: Kind) -> None:
        @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)
        async def changed(event: Mapping[str, Any], **_: object) -> None:
            if event["type"] is not None:  # None: from kopf's initial list; the cache lists objects itself
                notice(kind, dict(event["object"]), event["type"] == "DELETED")

    for kind in kinds:
        register(kind)


def make_settings(kinds: Collection[Kind]) -> kopf.OperatorSettings:
    """Return settings with which kopf watches and writes nothing."""
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.posting.enabled = False
    settings.scanning.disabled = True  # the existing kinds were checked before
    settings.process.ultimate_exiting_timeout = None  # the kubelet ends a process that does not end
    settings.networking.request_timeout = TIMEOUT_SECONDS
    settings.networking.connect_timeout = TIMEOUT_SECONDS
    settings.networking.error_backoffs = RECONNECT_SECONDS
    settings.watching.chunk_size = PAGE
    for kind in kinds:
        if selector := selector_of(kind):
            text = ",".join(f"{label}={value}" for label, value in selector.items())
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = text
    return settings


class Sessions:
    """Opens kopf's connections to the API server with the configuration of the operator's client, and reports each list."""

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        kinds: Sequence[Kind],
        *,
        namespaces: Sequence[str] = (),
        listed: Callable[[Kind], None],
    ) -> None:
        """Initialize without a session. `listed` is called with the kind of each list, which starts a watch."""
        self._configuration = configuration
        self._listed = listed
        self._lists = {kind.path(namespace): kind for kind in kinds for namespace in (namespaces if kind.namespaced else ()) or (None,)}
        self._opened_at = -SESSION_SECONDS
        self._session: aiohttp.ClientSession | None = None

    async def login(self, **_: object) -> kopf.AiohttpSession:
        """Open a session. kopf asks for one at its start and after each 401."""
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._opened_at + SESSION_SECONDS - clock()))
        self._opened_at = clock()
        await self.close()
        configuration = self._configuration()
        base = urlsplit(configuration.host).path.rstrip("/")

        async def report_list(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
            response = await send(request)
            query = request.url.query
            kind = self._lists.get(request.url.path.removeprefix(base))
            if kind is not None and request.method == "GET" and response.ok and not {"watch", "continue"} & query.keys():
                self._listed(kind)
            return response

        token = await authorization(configuration)
        self._session = open_session(configuration, headers={"Authorization": token} if token else {}, middlewares=(report_list,))
        return kopf.AiohttpSession(server=configuration.host, aiohttp_session=self._session)

    async def close(self) -> None:
        """Close the session. kopf closes it only if it ends without an error."""
        if self._session is not None:
            await self._session.close()
