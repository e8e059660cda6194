"""Watches on the objects of the cluster, by kopf. This is the only module that uses kopf.

kopf provides discovery, list and watch, bookmarks, reconnection and the detection of dead connections. The operator embeds it:

* In a thread with an event loop of its own. When kopf ends, it cancels all tasks of its loop, and reconciliations must go on.
* With `on.event` handlers only, which hand the event over to the operator's loop. kopf's other handlers would write annotations or
  finalizers to objects of users.
* With storages that store nothing (`NoDifferences`, `NoProgress`, `NoMemories`). kopf would otherwise copy each object twice for each
  event, to find out what changed for handlers that do not exist here, and remember each object.
* With an HTTP session of its own, which adds to each of kopf's lists a selector that matches nothing. The mirror has listed the objects
  already, page by page. kopf would hold all of them in memory at the same time, with a task for each, and does not report those that were
  deleted while a watch was interrupted. The first list is as of the version of the mirror's, so the watch begins there. Later, when a watch
  has lost its place, the mirror lists again (`runtime/mirroring.py`).

Measured with 20,000 events about 2,000 Pods of 3 KiB on one core: kopf takes 0.32 ms of CPU time per event, with its default storages
0.51 ms. A plain list and watch on aiohttp takes 0.02 ms. A backlog of 20,000 events takes 230 MiB, because kopf accepts events faster than
it handles them; a plain loop has no backlog. At rest kopf takes 3 MiB. The alternative is about 150 lines that have to reproduce what is
listed first, with tests against an API server that fails. It pays as soon as a cluster has hundreds of events per second.

Nodes are not watched, because they are large and change with every heartbeat.
"""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

# before kopf, which would otherwise import the whole package `kubernetes`
from vllm_operator.cluster.library import Configuration  # isort: split

import aiohttp
import kopf
import uvloop
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory  # the type of a public argument, which has no public name

from vllm_operator.api import labels
from vllm_operator.cluster.client import Kind, Manifest, selector_of
from vllm_operator.runtime.log_output import handle_loop_error

NOTHING = "metadata.name=none,metadata.name!=none"
"""A field selector that matches no object."""
WORKER_SECONDS = 0.5
"""How long kopf keeps a task for an object without events. By default it is 5 s, which keeps the objects of a burst in memory."""
EXIT_SECONDS = 1.5
"""Maximum time to wait for the end of kopf."""
RECONNECT_SECONDS = (0.5, 0.5, 1.0, 1.0, *(2.0,) * 30)
"""Delays between attempts to reach the API server. They are short, because a longer one delays the first event after an outage."""


class Watches:
    """Watches on some kinds, for as long as `run` runs."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        notice: Callable[[Kind, str, Manifest], None],
        outdated: Callable[[Kind], None],
        kinds: Sequence[Kind],
        versions: Mapping[tuple[Kind, str | None], str],
        namespaces: Sequence[str] = (),
        request_timeout_seconds: float = 15.0,
    ) -> None:
        """Prepare the watches.

        Args:
            configuration: The connection to the API server.
            notice: Called in the event loop of `run` with the kind, type and object of each watch event.
            outdated: Called there with a kind of which events may have been missed.
            kinds: The kinds to watch.
            versions: The resourceVersion after which the events of a kind in a namespace (None: in all) are wanted.
            namespaces: The namespaces to watch; all if empty.
            request_timeout_seconds: Timeout of connections and of requests other than watches.
        """
        self._configuration = configuration
        self._notice = notice
        self._outdated = outdated
        self._kinds = tuple(kinds)
        self._namespaces = tuple(namespaces)
        self._timeout = request_timeout_seconds
        self._versions = {kind.path(namespace): version for (kind, namespace), version in versions.items()}
        self._lists = {kind.path(namespace): kind for kind in kinds for namespace in namespaces or (None,)}
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled, or until kopf gives up.

        Raises:
            Exception: The error that ended kopf.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = loop.create_future()

        def serve() -> None:
            error: BaseException | None = None
            try:
                uvloop.run(self._serve(loop))
            except BaseException as raised:  # it would be lost with the thread
                error = raised
            _call(loop, lambda: None if ended.done() else ended.set_result(error))

        thread = threading.Thread(target=serve, name="watches", daemon=True)
        thread.start()
        try:
            error = await asyncio.shield(ended)
        finally:
            self._stop.set()
            await asyncio.wait({ended}, timeout=EXIT_SECONDS)
            if ended.done():
                thread.join()
        if error is not None:
            raise error if isinstance(error, Exception) else RuntimeError(f"the watches ended with {error!r}")

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.get_running_loop().set_exception_handler(handle_loop_error)
        await kopf.operator(
            registry=self._make_registry(loop),
            settings=self._make_settings(),
            memories=NoMemories(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=self._stop,
        )

    def _make_registry(self, loop: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.AiohttpSession:
            return self._open_session(loop)

        for kind in self._kinds:
            self._watch(registry, loop, kind)
        return registry

    def _watch(self, registry: kopf.OperatorRegistry, loop: asyncio.AbstractEventLoop, kind: Kind) -> None:
        async def handle(event: kopf.RawEvent, **_: Any) -> None:
            if event["type"] is not None:
                type, manifest = event["type"], cast(Manifest, event["object"])
                _call(loop, lambda: self._pass_on(kind, type, manifest))

        kopf.on.event(kind.group, kind.api_version.rpartition("/")[2], kind.plural, id=kind.plural, registry=registry)(handle)

    def _open_session(self, loop: asyncio.AbstractEventLoop) -> kopf.AiohttpSession:
        """Open connections as the operator's client does. kopf asks again after each 401."""
        info = connection_info(self._configuration)
        base = urlsplit(info.server).path.rstrip("/")

        async def list_nothing(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
            path = request.url.path.removeprefix(base)
            kind = self._lists.get(path)
            if request.method != "GET" or kind is None or "watch" in request.url.query:
                return await send(request)
            empty = request.url.update_query(fieldSelector=NOTHING)
            if version := self._versions.get(path):
                request.url = empty.update_query(resourceVersion=version, resourceVersionMatch="Exact")
                response = await send(request)
                if response.status not in (400, 410):
                    if response.ok:
                        del self._versions[path]
                    return response
                response.release()
            request.url = empty
            response = await send(request)
            if response.ok:
                _call(loop, lambda: None if self._stop.is_set() else self._outdated(kind))
            return response

        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            proxy=info.proxy_url,
            middlewares=(list_nothing,),
        )
        return kopf.AiohttpSession(server=info.server, aiohttp_session=session)

    def _pass_on(self, kind: Kind, type: str, manifest: Manifest) -> None:
        if not self._stop.is_set():  # later events would mix with those of the watches that replace these
            self._notice(kind, type, manifest)

    def _make_settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True  # the CRD exists already, and watching all CRDs would need a permission
        settings.queueing.idle_timeout = WORKER_SECONDS
        settings.networking.request_timeout = self._timeout
        settings.networking.connect_timeout = self._timeout
        settings.networking.error_backoffs = RECONNECT_SECONDS
        settings.process.ultimate_exiting_timeout = None  # it would end the process instead of the thread
        settings.persistence.finalizer = f"{labels.GROUP}/finalizer"  # not used; the default has kopf's domain
        settings.persistence.progress_storage = NoProgress()
        settings.persistence.diffbase_storage = NoDifferences()
        for kind in self._kinds:
            if selector := selector_of(kind):
                text = ",".join(f"{label}={value}" for label, value in selector.items())
                settings.watching.label_selectors[kind.group, kind.api_version.rpartition("/")[2], kind.plural] = text
        return settings


class _ConnectionInfo(kopf.ConnectionInfo):
    def as_ssl_context(self) -> ssl.SSLContext:
        """Verify certificates as the operator's client does (`cluster/connection.py`), which Python 3.13 does not by default."""
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """Return the connection of the operator's client in kopf's form."""
    if configuration.refresh_api_key_hook is not None:
        configuration.refresh_api_key_hook(configuration)
    scheme, _, token = str(configuration.api_key.get("BearerToken") or "").rpartition(" ")
    return _ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=None if configuration.ssl_ca_cert else configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        username=configuration.username or None,
        password=configuration.password or None,
        scheme=(scheme or "Bearer").capitalize() if token else None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )


_NOTHING = cast(kopf.BodyEssence, {})


class NoDifferences(kopf.DiffBaseStorage):
    """Stores no earlier state of an object, so that kopf computes no differences."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return nothing to compare."""
        return _NOTHING

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Return nothing."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""


class NoProgress(kopf.ProgressStorage):
    """Stores no progress of handlers."""

    def fetch(self, **_: Any) -> Any:
        """Return nothing."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""

    def purge(self, **_: Any) -> None:
        """Store nothing."""

    def touch(self, **_: Any) -> None:
        """Store nothing."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Return the object's essence as it is."""
        return essence


class NoMemories(ResourceMemories):
    """Remembers no object. kopf would keep 1 KiB for each, for handlers that do not exist here."""

    async def recall(
        self, raw_body: kopf.RawBody, *, memobase: Any = None, noticed_by_listing: bool = False, ephemeral: bool = False
    ) -> ResourceMemory:
        """Return a new memory each time."""
        return await super().recall(raw_body, memobase=memobase, noticed_by_listing=noticed_by_listing, ephemeral=True)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the operator's loop is closed
        loop.call_soon_threadsafe(function)
