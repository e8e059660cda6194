"""The client of a real API server, with `aiohttp`. It uses only the configuration of the `kubernetes` package.

Its typed models are not used: they take 13 times as long as `json.loads`, and drop fields that they do not know. HTTP statuses
and errors of `aiohttp` become the errors of `vllm_operator.kube.client`.
"""

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from types import SimpleNamespace
from typing import Any, Unpack
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException

from vllm_operator.api import reading
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterError, Forbidden, Kind, Manifest, NotFound, Unavailable
from vllm_operator.kube.connection import CHUNK_BYTES, MissingConnectionError, authorization, open_session, read_certificates, ssl_context

log = logging.getLogger(__name__)

PAGE = 50
"""Objects in one page of a list. A parsed page takes five to ten times the memory of its text, which has about 10 KB per object."""
TIMEOUT_SECONDS = 15.0
"""Timeout of a request. It is below the 30 s that the liveness probe allows."""
RETURNING_SECONDS = 10.0
"""How long refusals are ignored after an outage: an API server that has just started responds before it knows roles and accounts."""
_VALUE = re.compile(r"[-A-Za-z0-9_.]*")
"""Values of labels, names and UIDs. A value with a comma would add a condition to the selector."""
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
RELOAD_SECONDS = 10.0
"""Minimum time between two reloads of refused credentials."""
CHECK_SECONDS = 10.0
"""Time between two checks of the certificates."""
LONGEST_RETRY_SECONDS = 60.0
"""Maximum accepted value of the header `Retry-After`."""
REJECTED = (
    "The API server does not accept the credentials (HTTP 401): they were revoked or have expired, or the ServiceAccount is"
    " gone. Restore the ServiceAccount, or renew the credentials in the kubeconfig."
)
_CONNECTION_FIELDS = ("host", "proxy", "ssl_ca_cert", "ca_cert_data", "cert_file", "key_file", "verify_ssl", "tls_server_name")
_MALFORMED = ("failed to create typed patch object", "failed to convert new object", "unable to convert unstructured object")
"""Messages of the API server for objects that do not match the schema of their kind. They have status 500."""
_OBJECT_NAME = re.compile(r"^failed to [a-z ]+ \([^)]*\)(?: to proper version)?: (?:unable to convert [^:]*: )?")
"""The beginning of such a message, which names the object. The rest names the field."""
_KUBELET = re.compile(r'^\w+ "https?://[^"]*/containerLogs/[^"]*": |^(?=no preferred addresses found)')
"""Beginning of messages about an unreachable kubelet (registry/generic/rest/streamer.go). The URL names the Pod, the rest the node."""


class ConnectionOutdated(Exception):  # noqa: N818 - named for the event
    """The certificates, or the address of the API server, have changed. This process must exit and be restarted."""


def boot_time() -> float:
    """Return the seconds since the machine started. On Linux this includes suspended time."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Fence:
    """Limits how long this process may write. Its clock includes the time for which the process or the machine was suspended."""

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self.clock = clock
        self.writes_until = -math.inf

    def close(self) -> None:
        """Forbid all further writes."""
        self.writes_until = -math.inf

    def is_open(self) -> bool:
        """Return whether the operator may write now."""
        return self.clock() < self.writes_until

    def seconds_left(self) -> float:
        """Return the seconds for which the operator may still write. Raises NotLeading if it may not write."""
        left = self.writes_until - self.clock()
        if left <= 0:
            raise kube.NotLeading("This operator does not hold its Lease now, so it writes nothing.")
        return left


class KubeClient:
    """A `ClusterClient` for a real API server. Create and close it in the event loop."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        reload: Callable[[], Awaitable[Configuration]] | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Create without opening a connection. `timeout_seconds` limits each request, and each `reload` of the configuration after a 401.

        A reload may take long, because a kubeconfig may name a program that prints a token.
        """
        self.configuration = configuration
        self.refused: Callable[[], None] = lambda: None
        """Called when the API server refuses a request because a permission or valid credentials are missing."""
        self.fence = fence
        self._timeout = timeout_seconds
        self._lost_at = -RETURNING_SECONDS
        self._session = open_session(configuration, traces=(_checked_at_sending(),))
        self._reload = reload
        self._reloading = asyncio.Lock()
        self._reloaded_at = -RELOAD_SECONDS
        self._certificates = read_certificates(configuration)
        self._is_outdated = False

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        """Read one object."""
        return _checked(await self._call("GET", kind.path(namespace, name), kind), kind, name, namespace)

    async def get_path(self, path: str) -> Manifest:
        """Read a JSON document that is not an object, for example `/version`."""
        return await self._call("GET", path, path)

    async def find(self, kind: Kind, namespace: str | None = None, **query: Unpack[kube.Query]) -> Sequence[Manifest]:
        """List objects."""
        return [item async for page in self.pages(kind, namespace, **query) for item in page]

    async def pages(self, kind: Kind, namespace: str | None = None, **query: Unpack[kube.Query]) -> AsyncIterator[Sequence[Manifest]]:
        """List objects page by page."""
        options: dict[str, Any] = {"resourceVersion": "0"} if query.get("cached") else {"limit": PAGE}  # the watch cache serves no pages
        if labels := query.get("labels"):
            options["labelSelector"] = _selector(labels)
        if fields := query.get("fields"):
            options["fieldSelector"] = _selector(fields)
        while True:
            page = await self._call("GET", kind.path(namespace), kind, query=options, verb="list")
            found, metadata = page.get("items") or [], page.get("metadata") or {}
            token = metadata.get("continue") or "" if isinstance(metadata, dict) else None
            if not (isinstance(token, str) and isinstance(found, list) and all(isinstance(item, dict) for item in found)):
                raise Unavailable(f"The response to GET {kind.path(namespace)} is not a list of objects. Check whether a proxy sent it.")
            for item in found:
                if namespace is not None and kind.namespaced:
                    _checked(item, kind, None, namespace)
                # lists leave these out
                item.setdefault("apiVersion", kind.api_version)
                item.setdefault("kind", kind.kind)
            yield found
            found.clear()  # at most one page is in memory, even if the reader still holds it
            if not token:
                return
            options["continue"] = token

    async def apply(self, manifest: Manifest, *, manager: str, force: bool = True) -> Manifest:
        """Server-side apply."""
        return await self._apply(kube.kind_of(manifest), None, manifest, manager, force=force)

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """Server-side apply to the status subresource."""
        return await self._apply(kube.kind_of(manifest), "status", manifest, manager, force=True)

    async def patch(self, kind: Kind, name: str, namespace: str | None, operations: Sequence[Manifest], *, manager: str) -> Manifest:
        """JSON patch."""
        query = {"fieldManager": manager}
        path = kind.path(namespace, name)
        try:
            patched = await self._call("PATCH", path, kind, body=list(operations), content_type="application/json-patch+json", query=query)
            return _checked(patched, kind, name, namespace)
        except kube.Invalid as error:
            # the response to a failed `test` is a 422 without causes
            if not error.causes and any(operation["op"] == "test" for operation in operations):
                raise kube.Conflict(str(error)) from error
            raise

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object."""
        kind = kube.kind_of(manifest)
        # The API server keeps the data of a ControllerRevision byte by byte as it was sent, but rewrites it in Go's form (sorted keys,
        # Go's escapes) at each later change of the metadata, and then refuses the change because the data differs. Data sent as YAML is
        # converted to that form immediately.
        content_type = "application/yaml" if kind == kube.REVISION else "application/json"
        return await self._call("POST", kind.path(manifest["metadata"].get("namespace")), kind, body=manifest, content_type=content_type)

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, *, uid: str | None = None) -> None:
        """Delete an object in the background."""
        options: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        with suppress(NotFound, kube.Conflict):  # it is gone, or another object has this name now
            await self._call("DELETE", kind.path(namespace, name), kind, body=options)

    @asynccontextmanager
    async def stream_log(self, request: kube.LogRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a log."""
        options = {
            "container": request.container,
            "timestamps": "true",
            "follow": "true" if request.follow else None,
            "previous": "true" if request.previous else None,
            "sinceTime": request.since,
            "limitBytes": request.limit_bytes,
            "tailLines": request.tail_lines,
        }
        query = {name: value for name, value in options.items() if value}
        # no total timeout: an engine may log nothing for minutes, and a kubelet sends no headers before the first line
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=None if request.follow else self._timeout)
        path = kube.POD.path(request.namespace, request.pod, "log")
        async with self._open("GET", path, "pods/log", query=query, limit=limit) as response:
            yield _chunks(response)

    async def watch_connection(self) -> None:
        """Check the certificates every ten seconds. Raises ConnectionOutdated to restart. Unusable ones may be half-written."""
        while not self._is_outdated:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                if await asyncio.to_thread(read_certificates, self.configuration) != self._certificates:
                    await asyncio.to_thread(ssl_context, self.configuration)
                    self._is_outdated = True
            except (OSError, ValueError) as error:
                log.warning("the certificates of the connection have changed and cannot be used: %s", error)
        raise ConnectionOutdated("The certificates of the connection, or the address of the API server, have changed")

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _apply(self, kind: Kind, subresource: str | None, manifest: Manifest, manager: str, *, force: bool) -> Manifest:
        namespace, name = manifest["metadata"].get("namespace"), manifest["metadata"]["name"]
        path = kind.path(namespace, name, subresource)
        query = {"fieldManager": manager, "force": "true" if force else "false", "fieldValidation": "Ignore"}
        applied = await self._call("PATCH", path, kind, body=manifest, content_type="application/apply-patch+yaml", query=query)
        return _checked(applied, kind, name, namespace)

    async def _call(self, method: str, path: str, what: Kind | str, **options: Any) -> Manifest:
        """Send a request and return the JSON response. `options` are those of `_open`."""
        async with self._open(method, path, what, **options) as response:
            with _connected():
                data = await response.read()
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"The response to {method} {path} is not JSON. Check whether a proxy sent it.") from error
        if not isinstance(content, dict):
            raise Unavailable(f"The response to {method} {path} is not a JSON object. Check whether a proxy sent it.")
        return content

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        what: Kind | str,
        *,
        verb: str | None = None,
        body: Any = None,
        content_type: str = "application/json",
        query: Mapping[str, Any] | None = None,
        limit: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request about a kind, or about a resource as messages name it, and yield a successful response. Raises ClusterError.

        After a 401, this tries once more with reloaded credentials.
        """
        headers = {"Accept": "*/*" if path.endswith("/log") else "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        url = self.configuration.host.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        # the Lease is written only if it has not changed since it was read
        is_fenced = method != "GET" and what not in (kube.ACCESS_REVIEW, kube.LEASE)
        check = self.fence.seconds_left if self.fence is not None and is_fenced else None
        for attempt in (1, 2):
            try:
                credentials = await authorization(self.configuration)
            except (ConfigException, OSError, ValueError) as error:
                raise kube.Unauthorized(f"The token of the ServiceAccount cannot be read: {_describe(error)}") from error
            try:
                response = await self._session.request(
                    method,
                    url,
                    headers=headers | ({"Authorization": credentials} if credentials else {}),
                    data=None if body is None else json.dumps(body),
                    timeout=limit or aiohttp.ClientTimeout(total=min(self._timeout, check()) if check else self._timeout),
                    server_hostname=self.configuration.tls_server_name,
                    trace_request_ctx=check,
                )
            except (aiohttp.ClientError, OSError) as error:
                self._lost_at = time.monotonic()
                raise Unavailable(f"{_describe(error)} ({method} {self.configuration.host}{path})") from error
            try:
                if response.status == 401 and attempt == 1 and await self._refresh(credentials):
                    continue
                if response.status >= 400:
                    with _connected():
                        data = await response.read()
                    resource = what if isinstance(what, str) else ".".join(filter(None, (what.plural, what.group)))
                    raise self._error(response, data, verb or VERBS[method], resource)
                yield response
                return
            finally:
                response.close()

    async def _refresh(self, refused: str | None) -> bool:
        """Reload credentials that were refused, at most every ten seconds; return whether they have changed. Raises Unauthorized."""
        if self._reload is None:
            return False
        try:
            async with self._reloading:  # concurrent refusals cause one reload
                if await authorization(self.configuration) != refused:
                    return True
                if time.monotonic() - self._reloaded_at < RELOAD_SECONDS:
                    return False
                self._reloaded_at = time.monotonic()
                async with asyncio.timeout(self._timeout):
                    fresh = await self._reload()
        except (MissingConnectionError, ConfigException, OSError, ValueError) as error:
            self.refused()
            raise kube.Unauthorized(f"{REJECTED} They cannot be read again: {str(error) or 'it takes too long'}") from error
        if any(getattr(fresh, name) != getattr(self.configuration, name) for name in _CONNECTION_FIELDS):
            self._is_outdated = True
            return False
        self.configuration = fresh
        return True

    def _error(self, response: aiohttp.ClientResponse, data: bytes, verb: str, resource: str) -> ClusterError:
        if response.status in (401, 403):
            if time.monotonic() - self._lost_at < RETURNING_SECONDS:
                return Unavailable(f"The API server is back after an outage and still refuses to {verb} {resource}")
            self.refused()
        try:
            status = json.loads(data)
        except (ValueError, RecursionError):
            status = {}  # the kubelet and proxies respond with plain text
        message = reading.text(status, "message") or data.decode("utf-8", "replace").strip()[:512] or f"HTTP {response.status}"
        match response.status:
            case 404:
                return NotFound(message)
            case 409:
                return kube.Conflict(message)
            case 401:
                return kube.Unauthorized(f"{REJECTED} It says: {message}")
            case 403:
                return Forbidden(message, verb=verb, resource=resource)
            case 400 | 405 | 413 | 415 | 422:
                causes = reading.objects(status, "details", "causes")
                return kube.Invalid(
                    message, causes=tuple((reading.text(cause, "field"), reading.text(cause, "message")) for cause in causes)
                )
            case 500 if message.startswith(_MALFORMED):
                return kube.Invalid(_OBJECT_NAME.sub("", message))
            case _ if found := _KUBELET.match(message):
                return Unavailable(message[found.end() :])
            case _:
                after = response.headers.get("Retry-After") or ""
                is_seconds = re.fullmatch(r"[0-9]{1,9}", after)
                return Unavailable(message, retry_after=min(float(after), LONGEST_RETRY_SECONDS) if is_seconds else None)


@contextmanager
def _connected() -> Iterator[None]:
    """Convert the errors of a connection. Raises Unavailable."""
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(_describe(error)) from error


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    with _connected():
        while chunk := await response.content.read(CHUNK_BYTES):
            yield chunk


def _describe(error: Exception) -> str:
    return "The API server did not answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def _checked_at_sending() -> aiohttp.TraceConfig:
    """Check the fence again when headers and body are sent, because the process may be suspended while it waits for a connection."""

    async def check(_: object, context: SimpleNamespace, __: object) -> None:
        if (ask := context.trace_request_ctx) is not None:
            ask()

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(check)
    trace.on_request_chunk_sent.append(check)
    return trace


def _checked(manifest: Manifest, kind: Kind, name: str | None, namespace: str | None) -> Manifest:
    """Return an object. Raises Unavailable if another one was requested (`name` None: any), because it is the target of later writes."""
    metadata = reading.mapping(manifest, "metadata")
    if (name is not None and metadata.get("name") != name) or (kind.namespaced and metadata.get("namespace") != namespace):
        raise Unavailable(f"The response to a request for {kind.path(namespace, name)} is another object. Check whether a proxy sent it.")
    return manifest


def _selector(wanted: Mapping[str, str]) -> str:
    """Return a selector of equal values. Raises InvalidName for a value that would change the selector."""
    for key, value in wanted.items():
        if not _VALUE.fullmatch(value):
            raise kube.InvalidName(key, value)
    return ",".join(f"{key}={value}" for key, value in wanted.items())
