"""The client of a real API server, with `aiohttp`. It uses only the configuration of the `kubernetes` package.

Its typed models are not used: they take 13 times as long as `json.loads`, and drop fields that they do not know. HTTP statuses
and errors of `aiohttp` become the errors of `vllm_operator.kube.client`.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException

from vllm_operator.api import reading
from vllm_operator.kube.client import (
    ACCESS_REVIEW,
    LEASE,
    POD,
    REVISION,
    ClusterError,
    Conflict,
    Invalid,
    InvalidName,
    Kind,
    LogRequest,
    Manifest,
    NotFound,
    Unauthorized,
    Unavailable,
    kind_of,
)
from vllm_operator.kube.connection import Connection, MissingConnectionError, authorization
from vllm_operator.kube.lease import Fence
from vllm_operator.kube.responses import REJECTED, describe, error_of, read_body, read_chunks

log = logging.getLogger(__name__)

PAGE = 50
"""Objects in one page of a list. A parsed page takes five to ten times the memory of its text, which has about 10 KB per object."""
RETURNING_SECONDS = 10.0
"""How long refusals are ignored after an outage: an API server that has just started responds before it knows roles and accounts."""
_VALUE = re.compile(r"[-A-Za-z0-9_.]*")
"""Values of labels, names and UIDs. A value with a comma would add a condition to the selector."""
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


class KubeClient:
    """A `ClusterClient` for a real API server. Create and close it in the event loop."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        timeout_seconds: float = 15.0,
        reload: Callable[[], Awaitable[Configuration]] | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Create without opening a connection.

        Args:
            configuration: How to connect.
            timeout_seconds: Timeout of each request.
            reload: Loads the configuration again after a 401.
            fence: Limits the time for which this process may write; no limit if None.
        """
        self.refused: Callable[[], None] = lambda: None
        """Called when the API server refuses a request because a permission or valid credentials are missing."""
        self.fence = fence
        self._timeout = timeout_seconds
        self._lost_at = -RETURNING_SECONDS
        self._connection = Connection(configuration, timeout_seconds=timeout_seconds, reload=reload, traces=(_checked_at_sending(),))

    @property
    def configuration(self) -> Configuration:
        """Current configuration of the connection."""
        return self._connection.configuration

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        """Read one object."""
        return _checked(await self._call("GET", kind.path(namespace, name), kind), kind, name, namespace)

    async def get_path(self, path: str) -> Manifest:
        """Read a JSON document that is not an object, for example `/version`."""
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
        """List objects."""
        return [item async for page in self.pages(kind, namespace, labels=labels, fields=fields, cached=cached) for item in page]

    async def pages(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        cached: bool = False,
    ) -> AsyncIterator[Sequence[Manifest]]:
        """List objects page by page. A list from the watch cache (`cached`) has one page."""
        query: dict[str, Any] = {"limit": PAGE}
        if cached:
            query = {"resourceVersion": "0"}  # the watch cache serves no pages
        if labels:
            query["labelSelector"] = _selector(labels)
        if fields:
            query["fieldSelector"] = _selector(fields)
        while True:
            page = await self._call("GET", kind.path(namespace), kind, query=query, verb="list")
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
            query["continue"] = token

    async def apply(self, manifest: Manifest, *, manager: str, force: bool = True) -> Manifest:
        """Server-side apply."""
        return await self._apply(kind_of(manifest), None, manifest, manager, force=force)

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """Server-side apply to the status subresource."""
        return await self._apply(kind_of(manifest), "status", manifest, manager, force=True)

    async def patch(self, kind: Kind, name: str, namespace: str | None, operations: Sequence[Manifest], *, manager: str) -> Manifest:
        """JSON patch."""
        query = {"fieldManager": manager}
        path = kind.path(namespace, name)
        try:
            patched = await self._call("PATCH", path, kind, body=list(operations), content_type="application/json-patch+json", query=query)
            return _checked(patched, kind, name, namespace)
        except Invalid as error:
            # the response to a failed `test` is a 422 without causes
            if not error.causes and any(operation["op"] == "test" for operation in operations):
                raise Conflict(str(error)) from error
            raise

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object."""
        kind = kind_of(manifest)
        path = kind.path(manifest["metadata"].get("namespace"))
        if kind == REVISION:
            # The API server keeps the data of a ControllerRevision byte by byte as it was sent, but rewrites it in Go's form (sorted keys,
            # Go's escapes) at each later change of the metadata, and then refuses the change because the data differs. Data sent as YAML is
            # converted to that form immediately.
            return await self._call("POST", path, kind, body=json.dumps(manifest), content_type="application/yaml")
        return await self._call("POST", path, kind, body=manifest)

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
            return  # another object has this name now

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
        if request.tail_lines:
            query["tailLines"] = request.tail_lines
        # no total timeout: an engine may log nothing for minutes, and a kubelet sends no headers before the first line
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=None)
        path, seconds = POD.path(request.namespace, request.pod, "log"), None if request.follow else self._timeout
        for attempt in (1, 2):
            credentials = await self._authorization()
            try:
                async with asyncio.timeout(seconds):
                    response = await self._send("GET", path, credentials, query=query, limit=limit)
            except TimeoutError as error:
                raise Unavailable(f"{describe(error)} (GET {self.configuration.host}{path})") from error
            try:
                if response.status == 401 and attempt == 1 and await self._refresh(credentials):
                    continue
                if response.status >= 400:
                    raise self._error(response, await read_body(response), "get", "pods/log")
                yield read_chunks(response)
                return
            finally:
                response.close()

    async def watch_connection(self) -> None:
        """Wait until the connection is outdated. Raises ConnectionOutdated."""
        await self._connection.watch()

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()

    async def _apply(self, kind: Kind, subresource: str | None, manifest: Manifest, manager: str, *, force: bool) -> Manifest:
        namespace, name = manifest["metadata"].get("namespace"), manifest["metadata"]["name"]
        path = kind.path(namespace, name, subresource)
        query = {"fieldManager": manager, "force": "true" if force else "false", "fieldValidation": "Ignore"}
        applied = await self._call("PATCH", path, kind, body=manifest, content_type="application/apply-patch+yaml", query=query)
        return _checked(applied, kind, name, namespace)

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
        """Send a request and return the JSON response. Retry once after a 401, with reloaded credentials."""
        for attempt in (1, 2):
            credentials = await self._authorization()
            check = self._check_of(method, kind)
            limit = aiohttp.ClientTimeout(total=self._timeout if check is None else min(self._timeout, check()))
            response = await self._send(
                method, path, credentials, body=body, content_type=content_type, query=query, limit=limit, check=check
            )
            data = await read_body(response)
            if response.status == 401 and attempt == 1 and await self._refresh(credentials):
                continue
            break
        if response.status >= 400:
            resource = f"{kind.plural}{'.' + kind.group if kind.group else ''}" if kind else path
            raise self._error(response, data, verb or VERBS[method], resource)
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"The response to {method} {path} is not JSON. Check whether a proxy sent it.") from error
        if not isinstance(content, dict):
            raise Unavailable(f"The response to {method} {path} is not a JSON object. Check whether a proxy sent it.")
        return content

    def _check_of(self, method: str, kind: Kind | None) -> Callable[[], float] | None:
        """Return the check to call before a request is sent, which returns the seconds for which it may be sent.

        None for reads, for access reviews, and for the Lease, which is written only if it has not changed since it was read.
        """
        if self.fence is None or method == "GET" or kind in (ACCESS_REVIEW, LEASE):
            return None
        return self.fence.seconds_left

    async def _send(
        self,
        method: str,
        path: str,
        credentials: str | None,
        *,
        body: Any = None,
        content_type: str = "",
        query: Mapping[str, Any] | None = None,
        limit: aiohttp.ClientTimeout,
        check: Callable[[], object] | None = None,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json" if not path.endswith("/log") else "*/*"}
        if body is not None:
            headers["Content-Type"] = content_type
        if credentials:
            headers["Authorization"] = credentials
        url = self.configuration.host.rstrip("/") + path + (_encoded(tuple(query.items())) if query else "")
        try:
            return await self._connection.session.request(
                method,
                url,
                headers=headers,
                data=body if body is None or isinstance(body, str) else json.dumps(body),
                timeout=limit,
                server_hostname=self.configuration.tls_server_name,
                trace_request_ctx=check,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._lost(error, method, path) from error

    def _lost(self, error: Exception, method: str, path: str) -> Unavailable:
        """Record that a request got no response, and return the error."""
        self._lost_at = time.monotonic()
        return Unavailable(f"{describe(error)} ({method} {self.configuration.host}{path})")

    async def _authorization(self) -> str | None:
        """Return the Authorization header. Raises Unauthorized if the token cannot be read."""
        try:
            return await authorization(self.configuration)
        except (ConfigException, OSError, ValueError) as error:
            raise Unauthorized(f"The token of the ServiceAccount cannot be read: {describe(error)}") from error

    async def _refresh(self, refused: str | None) -> bool:
        """Reload credentials that were refused; return whether they have changed. Raises Unauthorized."""
        try:
            return await self._connection.refresh(refused)
        except (MissingConnectionError, TimeoutError) as error:
            self.refused()
            raise Unauthorized(f"{REJECTED} They cannot be read again: {error or 'it takes too long'}") from error
        except (ConfigException, OSError, ValueError) as error:
            raise Unauthorized(f"{REJECTED} They cannot be read again: {describe(error)}") from error

    def _error(self, response: aiohttp.ClientResponse, data: bytes, verb: str, resource: str) -> ClusterError:
        if response.status in (401, 403):
            if time.monotonic() - self._lost_at < RETURNING_SECONDS:
                return Unavailable(f"The API server is back after an outage and still refuses to {verb} {resource}")
            self.refused()
        return error_of(response, data, verb, resource)


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
    """Return an object if it is the requested one, because later writes take their target from it. `name` is None for any name.

    Raises:
        Unavailable: It is another object.
    """
    metadata = reading.mapping(manifest, "metadata")
    if (name is not None and metadata.get("name") != name) or (kind.namespaced and metadata.get("namespace") != namespace):
        raise Unavailable(f"The response to a request for {kind.path(namespace, name)} is another object. Check whether a proxy sent it.")
    return manifest


def _selector(wanted: Mapping[str, str]) -> str:
    """Return a selector of equal values. Raises InvalidName for a value that would change the selector."""
    for key, value in wanted.items():
        if not _VALUE.fullmatch(value):
            raise InvalidName(key, value)
    return ",".join(f"{key}={value}" for key, value in wanted.items())


@lru_cache(maxsize=64)
def _encoded(query: tuple[tuple[str, Any], ...]) -> str:
    """Return the query string. Cached, because most requests have one of a few."""
    return "?" + urlencode(query)
