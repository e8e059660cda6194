"""Responses of an API server: bodies, and errors derived from them."""

import json
import re
from collections.abc import AsyncIterator

import aiohttp

from vllm_operator.api import reading
from vllm_operator.kube.client import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Unauthorized,
    Unavailable,
    Unreachable,
)

CHUNK_BYTES = 64 * 1024
LONGEST_RETRY_SECONDS = 60.0
"""Maximum accepted value of the header `Retry-After`."""
_MALFORMED = ("failed to create typed patch object", "failed to convert new object", "unable to convert unstructured object")
"""Messages of the API server for objects that do not match the schema of their kind. They have status 500."""
_OBJECT_NAME = re.compile(r"^failed to [a-z ]+ \([^)]*\)(?: to proper version)?: (?:unable to convert [^:]*: )?")
"""The beginning of such a message, which names the object. The rest names the field."""
REJECTED = (
    "The API server does not accept the credentials (HTTP 401): they were revoked or have expired, or the ServiceAccount is"
    " gone. Restore the ServiceAccount, or renew the credentials in the kubeconfig."
)
_KUBELET = re.compile(r'^\w+ "https?://[^"]*/containerLogs/[^"]*": |^(?=no preferred addresses found)')
"""Beginning of messages about a kubelet that the API server cannot reach (registry/generic/rest/streamer.go, kubelet/client). The URL
names the Pod, but the rest is about the node.
"""


async def read_body(response: aiohttp.ClientResponse) -> bytes:
    """Read the whole body. Raises Unavailable."""
    try:
        return await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unavailable(describe(error)) from error


async def read_chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Read a body as it arrives, in chunks of at most `CHUNK_BYTES`. Raises Unavailable."""
    try:
        while chunk := await response.content.read(CHUNK_BYTES):
            yield chunk
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unavailable(describe(error)) from error


def describe(error: BaseException) -> str:
    """Describe an error of a connection."""
    if isinstance(error, TimeoutError):
        return "The API server did not answer in time"
    return str(error) or type(error).__name__


def error_of(response: aiohttp.ClientResponse, data: bytes, verb: str, resource: str) -> ClusterError:
    """Return the error for an unsuccessful response."""
    try:
        status = json.loads(data)
    except (ValueError, RecursionError):
        status = {}  # the kubelet and proxies respond with plain text
    message = reading.text(status, "message") or data.decode("utf-8", "replace").strip()[:512] or f"HTTP {response.status}"
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
            causes = reading.objects(status, "details", "causes")
            return Invalid(message, causes=tuple((reading.text(cause, "field"), reading.text(cause, "message")) for cause in causes))
        case 500 if message.startswith(_MALFORMED):
            return Invalid(_OBJECT_NAME.sub("", message))
        case _ if found := _KUBELET.match(message):
            return Unreachable(message[found.end() :])
        case _:
            return Unavailable(message, retry_after=_seconds(response.headers.get("Retry-After") or ""))


def _seconds(after: str) -> float | None:
    """Return the seconds of a `Retry-After` header; None for other formats."""
    return min(float(after), LONGEST_RETRY_SECONDS) if re.fullmatch(r"[0-9]{1,9}", after) else None
