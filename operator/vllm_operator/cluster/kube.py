"""The client for a real API server, on the low-level client of the `kubernetes` package.

Only its transport is used: typed models cost 13 times the time of `json.loads` and drop fields that they
do not know. Raw `aiohttp` errors and HTTP statuses become the errors of `vllm_operator.cluster.client` here.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject, RESTResponse
from kubernetes.aio.config.config_exception import ConfigException

from vllm_operator import __version__
from vllm_operator.cluster.answers import PIECE, REJECTED, error_of, read_body, read_pieces, watch_lines, words_of
from vllm_operator.cluster.client import (
    ACCESS_REVIEW,
    POD,
    ClusterError,
    Conflict,
    Invalid,
    Kind,
    LogRequest,
    Manifest,
    NotFound,
    Unauthorized,
    Unavailable,
    kind_of,
)
from vllm_operator.cluster.connection import MissingConnectionError
from vllm_operator.cluster.fence import Fence

PAGE = 500
RELOAD_SECONDS = 10.0
RETURNING_SECONDS = 10.0
"""For how long after an outage a refusal says nothing: an API server that has just started answers before it knows roles and accounts."""
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


class KubeClient:
    """A `ClusterClient` for a real API server. Make it inside of the event loop; close it there."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        timeout_seconds: float = 15.0,
        reload: Callable[[], Awaitable[Configuration]] | None = None,
        fence: Fence | None = None,
    ) -> None:
        """`reload` reads the credentials anew, after a 401. `fence` says until when something may be written; always without one."""
        self.refused: Callable[[], None] = lambda: None
        """Called whenever the API server says that something is not allowed, or does not accept the credentials."""
        self.configuration = configuration
        self.fence = fence
        self._before_sending: ContextVar[Callable[[], object] | None] = ContextVar("before sending", default=None)
        if fence is not None:
            configuration.trace_configs = [self._trace()]
        self._timeout = timeout_seconds
        self._reload = reload
        self._reloading = asyncio.Lock()
        self._lost_at = -RETURNING_SECONDS
        self._reloaded_at = -RELOAD_SECONDS
        # Streams hold a connection each, and are bounded by whoever opens them.
        configuration.connection_pool_maxsize = 0
        # aiohttp buffers twice this much of a stream that is not read; lines are split elsewhere.
        # With `trust_env` it looks for a proxy and a .netrc file before each request, in a thread.
        configuration.client_session_kwargs = {"read_bufsize": PIECE, "trust_env": False}
        self._rest = RESTClientObject(configuration)

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        """Read one object."""
        return await self._call("GET", kind.path(namespace, name), kind)

    async def get_path(self, path: str) -> Manifest:
        """Read a JSON document of the API server that is no object, for example `/version`."""
        return await self._call("GET", path, None)

    async def find(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        cached: bool = False,
    ) -> Sequence[Manifest]:
        """List objects, page by page."""
        query: dict[str, Any] = {"limit": PAGE}
        if cached:
            query = {"resourceVersion": "0"}  # pages are not served from the watch cache
        if labels:
            query["labelSelector"] = ",".join(f"{key}={value}" for key, value in labels.items())
        if fields:
            query["fieldSelector"] = ",".join(f"{key}={value}" for key, value in fields.items())
        items: list[Manifest] = []
        while True:
            page = await self._call("GET", kind.path(namespace), kind, query=query, verb="list")
            items += page.get("items") or []
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                break
            query["continue"] = token
        for item in items:  # lists leave these out
            item.setdefault("apiVersion", kind.api_version)
            item.setdefault("kind", kind.kind)
        return items

    async def apply(self, manifest: Manifest, *, manager: str, force: bool = True) -> Manifest:
        """Server-side apply."""
        kind, metadata = kind_of(manifest), manifest["metadata"]
        return await self._apply(kind, kind.path(metadata.get("namespace"), metadata["name"]), manifest, manager, force=force)

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """Server-side apply to the status subresource."""
        kind, metadata = kind_of(manifest), manifest["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"], "status")
        return await self._apply(kind, path, manifest, manager, force=True)

    async def patch(self, kind: Kind, name: str, namespace: str | None, operations: Sequence[Manifest], *, manager: str) -> Manifest:
        """JSON patch."""
        query = {"fieldManager": manager}
        path = kind.path(namespace, name)
        try:
            return await self._call("PATCH", path, kind, body=list(operations), content_type="application/json-patch+json", query=query)
        except Invalid as error:
            # a failed `test` is answered by a 422 without causes, in the server's most general words
            if not error.causes and any(operation["op"] == "test" for operation in operations):
                raise Conflict(str(error)) from error
            raise

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object."""
        kind = kind_of(manifest)
        return await self._call("POST", kind.path(manifest["metadata"].get("namespace")), kind, body=manifest)

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, *, uid: str | None = None) -> None:
        """Delete an object in the background."""
        options: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._call("DELETE", kind.path(namespace, name), kind, body=options)
        except NotFound:
            return
        except Conflict:
            return  # another object has this name by now

    @asynccontextmanager
    async def stream_log(self, request: LogRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a log."""
        query: dict[str, Any] = {"container": request.container, "timestamps": "true"}
        for name, value in (("follow", request.follow), ("previous", request.previous)):
            if value:
                query[name] = "true"
        if request.since:
            query["sinceTime"] = request.since
        if request.limit_bytes:
            query["limitBytes"] = request.limit_bytes
        # No total time-out: a quiet engine may say nothing for minutes.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=None)
        async with self._stream(POD.path(request.namespace, request.pod, "log"), query, timeout, "get", "pods/log") as pieces:
            yield pieces

    @asynccontextmanager
    async def watch(self, kind: Kind, name: str, namespace: str | None = None, *, seconds: float) -> AsyncIterator[AsyncIterator[None]]:
        """Watch one object. The selector by its name lets a Role allow this object alone (`resourceNames`)."""
        query = {"watch": "true", "fieldSelector": f"metadata.name={name}", "timeoutSeconds": max(1, int(seconds))}
        # The server ends it; a connection that died silently ends here.
        timeout = aiohttp.ClientTimeout(total=seconds + self._timeout, sock_connect=self._timeout)
        async with self._stream(kind.path(namespace), query, timeout, "watch", kind.plural) as pieces:
            yield watch_lines(pieces)

    @asynccontextmanager
    async def _stream(
        self, path: str, query: Mapping[str, Any], limit: aiohttp.ClientTimeout, verb: str, resource: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open an answer that is read while it comes, once more after a 401 with credentials read anew."""
        for attempt in (1, 2):
            credentials = await self._credentials()
            try:
                async with asyncio.timeout(self._timeout):
                    response = await self._send("GET", path, credentials, query=query, limit=limit)
            except TimeoutError as error:
                raise Unavailable(f"{words_of(error)} (GET {self.configuration.host}{path})") from error
            if response.status == 401 and attempt == 1:
                await read_body(response)  # which gives the connection back
                if await self._refresh(credentials):
                    continue
            break
        try:
            if response.status >= 400:
                raise self._error(response, await read_body(response), verb, resource)
            yield read_pieces(response.response)
        finally:
            response.response.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._rest.close()

    async def _apply(self, kind: Kind, path: str, manifest: Manifest, manager: str, *, force: bool) -> Manifest:
        query = {"fieldManager": manager, "force": "true" if force else "false", "fieldValidation": "Ignore"}
        return await self._call("PATCH", path, kind, body=manifest, content_type="application/apply-patch+yaml", query=query)

    async def _call(
        self,
        method: str,
        path: str,
        kind: Kind | None,
        *,
        body: Any = None,
        content_type: str = "application/json",
        query: Mapping[str, Any] | None = None,
        verb: str | None = None,
    ) -> Manifest:
        """Send a request, once more after a 401 with credentials read anew, and return the JSON answer."""
        for attempt in (1, 2):
            credentials = await self._credentials()
            check = self._check_of(method, kind)
            seconds = self._timeout if check is None else min(self._timeout, check())
            sending = self._before_sending.set(check)
            try:
                response = await self._send(method, path, credentials, body=body, content_type=content_type, query=query, limit=seconds)
            finally:
                self._before_sending.reset(sending)
            data = await read_body(response)
            if response.status == 401 and attempt == 1 and await self._refresh(credentials):
                continue
            break
        if response.status >= 400:
            resource = f"{kind.plural}{'.' + kind.group if kind.group else ''}" if kind else path
            raise self._error(response, data, verb or VERBS[method], resource)
        try:
            answer = json.loads(data)
        except ValueError as error:
            raise Unavailable(f"The API server's answer to {method} {path} is not JSON: a proxy in between?") from error
        return answer if isinstance(answer, dict) else {"items": answer}

    def _check_of(self, method: str, kind: Kind | None) -> Callable[[], float] | None:
        """What must be asked before a request is sent: for how long it may be. A review of access changes nothing."""
        if self.fence is None or method == "GET" or kind == ACCESS_REVIEW:
            return None
        return partial(self.fence.seconds_left, kind)

    def _trace(self) -> aiohttp.TraceConfig:
        """Ask the fence again when a connection was found and the request is handed to it, headers and body: that may take a while."""

        async def check(*_: object) -> None:
            if (ask := self._before_sending.get()) is not None:
                ask()

        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(check)
        trace.on_request_chunk_sent.append(check)
        return trace

    async def _send(
        self,
        method: str,
        path: str,
        credentials: str | None,
        *,
        body: Any = None,
        content_type: str = "application/json",
        query: Mapping[str, Any] | None = None,
        limit: Any,
    ) -> RESTResponse:
        headers = {
            "Content-Type": content_type,
            "Accept": "application/json" if not path.endswith("/log") else "*/*",
            "User-Agent": f"vllm-operator/{__version__}",
        }
        if credentials:
            headers["Authorization"] = credentials
        url = self.configuration.host.rstrip("/") + path + (_encoded(tuple(query.items())) if query else "")
        try:
            return await self._rest.request(method, url, headers=headers, body=body, _request_timeout=limit)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._lost_at = time.monotonic()
            raise Unavailable(f"{words_of(error)} ({method} {self.configuration.host}{path})") from error

    async def _credentials(self) -> str | None:
        """The Authorization header; None where a certificate, or nothing, tells who we are.

        Raises:
            Unauthorized: The token of the service account cannot be read.
        """
        try:
            token: str | None = await self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except (ConfigException, OSError, ValueError) as error:
            raise Unauthorized(f"The token of the service account cannot be read: {words_of(error)}") from error
        if token or not self.configuration.username:
            return token
        return str(self.configuration.get_basic_auth_token())

    async def _refresh(self, refused: str | None) -> bool:
        """Read the credentials anew, at most every ten seconds; True if there is something new to try."""
        if self._reload is None:
            return False
        async with self._reloading:  # all requests under way are refused together, and one of them reads
            if await self._credentials() != refused:
                return True
            if time.monotonic() - self._reloaded_at < RELOAD_SECONDS:
                return False
            self._reloaded_at = time.monotonic()
            try:
                async with asyncio.timeout(self._timeout):  # a kubeconfig may name a program that prints a token
                    fresh = await self._reload()
            except (MissingConnectionError, TimeoutError) as error:
                self.refused()
                raise Unauthorized(f"{REJECTED} They cannot be read anew: {error or 'it takes too long'}") from error
            self.configuration.api_key = fresh.api_key
            self.configuration.refresh_api_key_hook = fresh.refresh_api_key_hook
            return True

    def _error(self, response: RESTResponse, data: bytes, verb: str, resource: str) -> ClusterError:
        if response.status in (401, 403):
            if time.monotonic() - self._lost_at < RETURNING_SECONDS:
                return Unavailable(f"The API server is back after an outage, and refuses to {verb} {resource} so far")
            self.refused()
        return error_of(response, data, verb, resource)


@lru_cache(maxsize=64)
def _encoded(query: tuple[tuple[str, Any], ...]) -> str:
    """The query as it stands behind the path. Most requests have one of a few."""
    return "?" + urlencode(query)
