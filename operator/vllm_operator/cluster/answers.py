"""Answers of an API server: their bytes as they come, and what those say that are no success."""

import json
import re
from collections.abc import AsyncIterator

import aiohttp
from kubernetes.aio.client.rest import RESTResponse

from vllm_operator.cluster.client import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    Manifest,
    NotFound,
    Unauthorized,
    Unavailable,
)

PIECE = 64 * 1024
LONGEST_RETRY_SECONDS = 60.0
"""A server that asks to be left alone for longer is asked again all the same."""
_MALFORMED = ("failed to create typed patch object", "failed to convert new object", "unable to convert unstructured object")
"""How a server-side apply is refused whose object does not fit its kind's schema: with a 500, as if it were the server's fault."""
_AT_PLACE = re.compile(r"^failed to [a-z ]+ \([^)]*\)(?: to proper version)?: (?:unable to convert [^:]*: )?")
"""What such a refusal says before the field that is wrong: which object it is, which is said anyway."""
REJECTED = (
    "The API server does not accept the credentials (HTTP 401): they were revoked or have expired, or the ServiceAccount is"
    " gone. Restore the ServiceAccount, or renew the credentials in the kubeconfig."
)


async def read_body(response: RESTResponse) -> bytes:
    """The whole answer. Raises Unavailable."""
    try:
        data: bytes = await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unavailable(words_of(error)) from error
    return data


async def read_pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """An answer in pieces of at most `PIECE` bytes, as it comes. Raises Unavailable."""
    try:
        while piece := await response.content.read(PIECE):
            yield piece
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unavailable(words_of(error)) from error


async def watch_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[None]:
    """One item for each line of a watch."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b'{"type":"ERROR"'):
                raise Unavailable(f"The watch broke: {line[:512].decode('utf-8', 'replace')}")
            yield


def words_of(error: BaseException) -> str:
    """What went wrong with a connection, in words."""
    if isinstance(error, TimeoutError):
        return "The API server did not answer in time"
    return str(error) or type(error).__name__


def error_of(response: RESTResponse, data: bytes, verb: str, resource: str) -> ClusterError:
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
            return Unavailable(message, retry_after=_seconds(response.headers.get("Retry-After") or ""))


def _seconds(after: str) -> float | None:
    """What a Retry-After header asks for; a proxy may put anything there."""
    return min(float(after), LONGEST_RETRY_SECONDS) if re.fullmatch(r"[0-9]{1,9}", after) else None
