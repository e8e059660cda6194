"""Watches on the objects of the cluster, by kopf. This is the only module that uses kopf.

kopf provides list and watch, bookmarks, reconnection and the detection of dead connections. The operator uses this part alone
(`infinite_watch`), in its own event loop:

* Not kopf's handlers. A task and a queue for each object, and what they prepare for handlers, take four times as much CPU time as the
  watch itself, and events pile up in memory if they are handled more slowly than they arrive. Here, the next event is read from the
  connection when the last one has been handled. `infinite_watch` is not in kopf's public interface, so the minor version is pinned, and
  the tests cover what is used. The rest of kopf is not imported (`cluster/library.py`).
* With an HTTP session of its own, which adds to each of kopf's lists a selector that matches nothing. The mirror has listed the objects
  already, page by page, and kopf does not report those that were deleted while a watch was interrupted. The first list is as of the
  version of the mirror's, so the watch begins there. Later, when a watch has lost its place, the mirror lists again
  (`runtime/mirroring.py`).

Nodes are not watched, because they are large and change with every heartbeat.
"""

import asyncio
import contextvars
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import cast
from urllib.parse import urlsplit

# before kopf, which would otherwise be imported as a whole
from vllm_operator.cluster.library import Configuration  # isort: split

import aiohttp
from kopf._cogs.clients import auth, watching
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs import references
from kopf._cogs.structs.credentials import AiohttpSession, ConnectionInfo, Vault

from vllm_operator.cluster.client import Kind, Manifest, selector_of
from vllm_operator.cluster.sockets import check_socket
from vllm_operator.runtime.log_output import describe_end

log = logging.getLogger(__name__)

NOTHING = "metadata.name=none,metadata.name!=none"
"""A field selector that matches no object."""
RECONNECT_SECONDS = (0.5, 0.5, 1.0, 1.0, *(2.0,) * 30)
"""Delays between attempts to reach the API server. They are short, because a longer one delays the first event after an outage."""
SESSION_SECONDS = 1.0
"""Delay before another session, if the API server has refused the last one as soon as it was opened."""
CHANGES = ("ADDED", "MODIFIED", "DELETED")
"""Types of events about an object."""


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
            notice: Called with the kind, type and object of each watch event.
            outdated: Called with a kind of which events may have been missed.
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
        self._lists = {kind.path(namespace): kind for kind in kinds for namespace in self._namespaces_of(kind)}

    async def run(self) -> None:
        """Watch until cancelled, or until kopf gives up.

        Raises:
            Exception: The error of the first watch that kopf gave up.
        """
        vault, context = Vault(), contextvars.copy_context()
        context.run(auth.vault_var.set, vault)  # where kopf looks for the session
        settings = self._make_settings()
        tasks = [asyncio.create_task(self._authenticate(vault), name="session of the watches")]
        for kind in self._kinds:
            for namespace in self._namespaces_of(kind):
                watch = self._watch(kind, namespace, settings)
                tasks.append(asyncio.create_task(watch, name=f"watch of {kind.plural}", context=context))
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            first = next(iter(ended))
            raise (None if first.cancelled() else first.exception()) or RuntimeError(f"{first.get_name()} {describe_end(first)}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await vault.close()

    def _namespaces_of(self, kind: Kind) -> Sequence[str | None]:
        return self._namespaces if self._namespaces and kind.namespaced else (None,)

    async def _authenticate(self, vault: Vault) -> None:
        """Open a session at first, and another one after each 401. While all are refused, open one a second."""
        clock = asyncio.get_running_loop().time
        while True:
            opened_at = clock()
            await vault.populate({"session": self._open_session()})
            await vault.wait_for_emptiness()
            if clock() - opened_at < SESSION_SECONDS:
                await asyncio.sleep(SESSION_SECONDS)

    async def _watch(self, kind: Kind, namespace: str | None, settings: OperatorSettings) -> None:
        resource = references.Resource(kind.group, kind.version, kind.plural, namespaced=kind.namespaced)
        where = cast(references.Namespace, namespace)
        async for event in watching.infinite_watch(settings=settings, resource=resource, namespace=where):
            if not isinstance(event, watching.Bookmark) and event["type"] in CHANGES:
                self._pass_on(kind, event["type"], cast(Manifest, event["object"]))

    def _pass_on(self, kind: Kind, type: str, manifest: Manifest) -> None:
        try:
            self._notice(kind, type, manifest)
        except Exception:  # one event must not end the watches
            log.exception("a watch event about an object of kind %s could not be handled", kind.kind)

    def _open_session(self) -> AiohttpSession:
        """Open connections as the operator's client does."""
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
                self._outdated(kind)
            return response

        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            proxy=info.proxy_url,
            middlewares=(list_nothing, check_socket),
        )
        return AiohttpSession(server=info.server, aiohttp_session=session)

    def _make_settings(self) -> OperatorSettings:
        settings = OperatorSettings()
        settings.networking.request_timeout = self._timeout
        settings.networking.connect_timeout = self._timeout
        settings.networking.error_backoffs = RECONNECT_SECONDS
        for kind in self._kinds:
            if selector := selector_of(kind):
                text = ",".join(f"{label}={value}" for label, value in selector.items())
                settings.watching.label_selectors[kind.group, kind.version, kind.plural] = text
        return settings


class _ConnectionInfo(ConnectionInfo):
    def as_ssl_context(self) -> ssl.SSLContext:
        """Verify certificates as the operator's client does (`cluster/connection.py`), which Python 3.13 does not by default."""
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


def connection_info(configuration: Configuration) -> ConnectionInfo:
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
