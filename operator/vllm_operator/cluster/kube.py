"""The client for a real API server, on the low-level client of the `kubernetes` package.

Only its transport is used: typed models cost 13 times the time of `json.loads` and drop fields that they
do not know. Raw `aiohttp` errors and HTTP statuses become the errors of `vllm_operator.cluster.client` here.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject, RESTResponse
from kubernetes.aio.config.config_exception import ConfigException

from vllm_operator import __version__
from vllm_operator.cluster.client import (
    POD,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
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

PIECE = 64 * 1024
PAGE = 500
RELOAD_SECONDS = 10.0
_MALFORMED = ("failed to create typed patch object", "failed to convert new object", "unable to convert unstructured object")
"""How a server-side apply is refused whose object does not fit its kind's schema: with a 500, as if it were the server's fault."""
_AT_PLACE = re.compile(r"^failed to [a-z ]+ \([^)]*\)(?: to proper version)?: (?:unable to convert [^:]*: )?")
"""What such a refusal says before the field that is wrong: which object it is, which is said anyway."""
REJECTED = (
    "The API server does not accept the credentials (HTTP 401): they were revoked or have expired, or the ServiceAccount is"
    " gone. Restore the ServiceAccount, or renew the credentials in the kubeconfig."
)
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
    ) -> None:
        """`reload` reads the credentials anew, after a 401."""
        self.refused: Callable[[], None] = lambda: None
        """Called whenever the API server says that something is not allowed, or does not accept the credentials."""
        self.configuration = configuration
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
            yield _watch_lines(pieces)

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
                raise Unavailable(f"{_words(error)} (GET {self.configuration.host}{path})") from error
            if response.status == 401 and attempt == 1:
                await _body(response)  # which gives the connection back
                if await self._refresh(credentials):
                    continue
            break
        try:
            if response.status >= 400:
                raise self._error(response, await _body(response), verb, resource)
            yield _pieces(response.response)
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
            response = await self._send(method, path, credentials, body=body, content_type=content_type, query=query, limit=self._timeout)
            data = await _body(response)
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
            raise Unavailable(f"{_words(error)} ({method} {self.configuration.host}{path})") from error

    async def _credentials(self) -> str | None:
        """The Authorization header; None where a certificate, or nothing, tells who we are.

        Raises:
            Unauthorized: The token of the service account cannot be read.
        """
        try:
            token: str | None = await self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except (ConfigException, OSError, ValueError) as error:
            raise Unauthorized(f"The token of the service account cannot be read: {_words(error)}") from error
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
        return _error(response, data, verb, resource)


@lru_cache(maxsize=64)
def _encoded(query: tuple[tuple[str, Any], ...]) -> str:
    """The query as it stands behind the path. Most requests have one of a few."""
    return "?" + urlencode(query)


async def _body(response: RESTResponse) -> bytes:
    try:
        data: bytes = await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unavailable(_words(error)) from error
    return data


async def _pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        while piece := await response.content.read(PIECE):
            yield piece
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unavailable(_words(error)) from error


async def _watch_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[None]:
    """One item for each line of a watch."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b'{"type":"ERROR"'):
                raise Unavailable(f"The watch broke: {line[:512].decode('utf-8', 'replace')}")
            yield


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "The API server did not answer in time"
    return str(error) or type(error).__name__


def _error(response: RESTResponse, data: bytes, verb: str, resource: str) -> ClusterError:
    """Turn an answer that is no success into an error."""
    status: Manifest = {}
    try:
        parsed = json.loads(data)
        status = parsed if isinstance(parsed, dict) else {}
    except ValueError:
        pass  # the kubelet and proxies answer in plain text
    message = status.get("message") or data.decode("utf-8", "replace").strip()[:512] or f"HTTP {response.status}"
    details = status.get("details") or {}
    match response.status:
        case 404:
            return NotFound(message)
        case 409:
            return Conflict(message)
        case 401:
            return Unauthorized(f"{REJECTED} It says: {message}")
        case 403:
            return Forbidden(message, verb=verb, resource=resource)
        case 410:
            return Gone(message)
        case 400 | 405 | 413 | 415 | 422:
            causes = tuple((cause.get("field") or "", cause.get("message") or "") for cause in details.get("causes") or [])
            return Invalid(message, causes=causes)
        case 500 if message.startswith(_MALFORMED):
            return Invalid(_AT_PLACE.sub("", message))
        case _:
            after = response.headers.get("Retry-After") or ""
            return Unavailable(message, retry_after=float(after) if after.isdigit() else None)
