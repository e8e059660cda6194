"""The model hub: reads the config.json of a model, the size of its weights, and the headers of quantized ones.

The content is untrusted: its size is limited, and long or deep values are dropped. A token is sent only to the hub, not to hosts of its
redirects, and never appears in a message.
"""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import aiohttp

from vllm_operator import __version__
from vllm_operator.api.reading import mapping
from vllm_operator.kube.connection import check_socket
from vllm_operator.sizing.formats import HEADER_LIMIT, LENGTH_BYTES, TensorSizes, add_up, header_length, read_header
from vllm_operator.sizing.model_facts import ModelFiles

SIZE_LIMIT = 2 * 1024 * 1024
"""Maximum size of a file in bytes. The largest files of well-known models, with lists of unquantized layers, have less than 1 MiB."""
MAX_REDIRECTS = 3
INDEX, SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"
INDEX_BYTES = 4096
"""Bytes to read of an index. Its first lines contain the total size. Its list of tensors takes many MiB for a large model."""
WEIGHTS_SECONDS, HEADERS_SECONDS = 2.0, 2.4
"""Timeouts of optional reads, in seconds: for the size of the weights, and for the headers of their files since the start of the read."""
HEADERS_LIMIT, HEADERS_AT_ONCE = 32, 8
"""Maximum number of files whose headers are read, and of concurrent reads. Larger checkpoints are estimated from config.json."""
REFUSALS = (401, 403, 404)
"""HTTP statuses that concern the model, not the hub."""
ENTRIES_LIMIT, TEXT_LIMIT, DEPTH_LIMIT = 512, 256, 8
"""Limits of values. Longer or deeper values do not affect the choice of kernels, and are dropped."""
QUANTIZATION_KEYS, NAMES_LIMIT = ("quantization_config", "compression_config", "quantization"), 20_000
"""Keys below which lists of layers may be longer: layers that are not quantized, or tables of quantized layers."""


@dataclass(frozen=True, slots=True)
class HubAnswer(ModelFiles):
    """The result of reading."""

    failed: bool = False
    """The hub was slow or failed. This may concern only this model, because a mirror is slow for models that it does not have."""
    unreachable: bool = False
    """There is no connection to the hub, so reading another model now would fail too."""


class HttpHub:
    """A hub with the API of huggingface.co: `ENDPOINT/organization/name/resolve/REVISION/FILE`."""

    def __init__(self, endpoint: str) -> None:
        """Create a client for `endpoint`, an address without a path. Close it in the event loop."""
        self._endpoint = endpoint.rstrip("/")
        self._opened: aiohttp.ClientSession | None = None

    async def read(self, repository: str, revision: str, token: str | None) -> HubAnswer:
        """Read config.json, the size of the weights and, for quantized weights, hf_quant_config.json and the headers."""
        until = asyncio.get_running_loop().time() + HEADERS_SECONDS
        answer = await self._file(repository, revision, "config.json", token)
        if (config := answer.config) is None:
            return answer
        quantization, (size, files) = await asyncio.gather(
            self._quantization(config, repository, revision, token), self._weights(repository, revision, token)
        )
        whole = {**config, "quantization_config": quantization} if quantization else config
        quantized = any("quantization_config" in part for part in (whole, mapping(whole, "text_config")))
        tensors = await self._tensors(repository, revision, files, token, until) if quantized else None
        return HubAnswer(whole, size, tensors=tensors)

    async def read_adapter(self, repository: str, revision: str, token: str | None) -> HubAnswer:
        """Read adapter_config.json."""
        return await self._file(repository, revision, "adapter_config.json", token)

    async def close(self) -> None:
        """Close all connections."""
        if self._opened is not None:
            await self._opened.close()

    async def _quantization(self, config: Mapping[str, Any], repository: str, revision: str, token: str | None) -> Mapping[str, Any] | None:
        """Return hf_quant_config.json of a model whose config.json does not describe its quantization; None if there is none."""
        if "quantization_config" in config or "text_config" in config:
            return None
        return (await self._file(repository, revision, "hf_quant_config.json", token)).config

    async def _weights(self, repository: str, revision: str, token: str | None) -> tuple[int | None, list[str]]:
        """Return the total size of the weights in bytes (None if it cannot be read in time) and the known names of their files."""
        try:
            async with asyncio.timeout(WEIGHTS_SECONDS):
                try:
                    async with self._open(self._url(repository, revision, INDEX), INDEX, token) as response:
                        index = await _beginning(response, INDEX_BYTES)
                    size = re.search(rb'"total_size"\s*:\s*([0-9]{1,18})[.,\s}]', index)  # some tools write it as a float
                    return int(size[1]) if size else None, _file_names(index)
                except _ReadError:
                    return await self._length(self._url(repository, revision, SINGLE_FILE), token), [SINGLE_FILE]
        except (aiohttp.ClientError, OSError, ValueError, _ReadError):
            return None, []

    async def _tensors(self, repository: str, revision: str, files: list[str], token: str | None, until: float) -> TensorSizes | None:
        """Return the sizes of all tensors; None if there are too many files, or not all headers can be read in time."""
        if not 0 < len(files) <= HEADERS_LIMIT:
            return None
        places = asyncio.Semaphore(HEADERS_AT_ONCE)

        async def read(name: str) -> TensorSizes:
            async with places, self._open(self._url(repository, revision, name), name, token, ranged=True) as response:
                length = header_length(await _beginning(response, LENGTH_BYTES)) or 0
                data = await _beginning(response, length)
            header = read_header(data)
            if header is None or len(data) < length:
                raise _ReadError(f"{name} has no whole header.")
            return add_up(header)

        tasks: list[asyncio.Task[TensorSizes]] = []
        try:
            async with asyncio.timeout_at(until), asyncio.TaskGroup() as group:
                tasks += [group.create_task(read(name)) for name in files]
        except* (aiohttp.ClientError, OSError, ValueError, _ReadError):
            tasks = []
        return sum((task.result() for task in tasks), TensorSizes()) if tasks else None

    async def _length(self, url: str, token: str | None) -> int | None:
        """Return the size of a file in bytes, which the hub sends with the redirect; None if it is unknown."""
        async with self._session().head(url, headers=self._authorization(url, token), allow_redirects=False) as response:
            length = response.headers.get("X-Linked-Size") or (response.headers.get("Content-Length") if response.status == 200 else None)
            return int(length) if length and length.isdecimal() and len(length) < 19 else None

    def _url(self, repository: str, revision: str, name: str) -> str:
        """Return the URL of a file. Raises _ReadError for a name that would leave the repository."""
        if any(part in (".", "..") for part in (*repository.split("/"), revision)):
            raise _ReadError(f"{repository} is not the name of a model.")
        path = "/".join(quote(part, safe="") for part in (*repository.split("/"), "resolve", revision, name))
        return f"{self._endpoint}/{path}"

    async def _file(self, repository: str, revision: str, name: str, token: str | None) -> HubAnswer:
        what = f"{name} of {repository} on {self._endpoint}"
        try:
            async with self._open(self._url(repository, revision, name), what, token) as response:
                data = await _beginning(response, SIZE_LIMIT + 1)
        except _ReadError as error:
            return error.answer
        except (aiohttp.ClientConnectionError, OSError) as error:  # TimeoutError is an OSError
            is_away = isinstance(error, aiohttp.ClientConnectorError) and error.host == urlsplit(self._endpoint).hostname
            return HubAnswer(trouble=f"{what} cannot be read: {type(error).__name__}.", failed=True, unreachable=is_away)
        except aiohttp.ClientError as error:  # a malformed response says nothing about the hub
            return HubAnswer(trouble=f"{what} cannot be read: {type(error).__name__}.")
        except ValueError:
            return HubAnswer(trouble=f"{what} cannot be read: its URL is not valid.")
        if len(data) > SIZE_LIMIT:
            return HubAnswer(trouble=f"{what} is larger than {SIZE_LIMIT // (1024 * 1024)} MiB and was not read.")
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            return HubAnswer(trouble=f"{what} is not JSON.")
        return HubAnswer(slim(content)) if isinstance(content, dict) else HubAnswer(trouble=f"{what} is not a JSON object.")

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=ssl.create_default_context()),
                trust_env=True,
                headers={"User-Agent": f"vllm-operator/{__version__}"},
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(check_socket,),
            )
        return self._opened

    def _authorization(self, url: str, token: str | None) -> dict[str, str]:
        is_of_hub = urlsplit(url)[:2] == urlsplit(self._endpoint)[:2]  # scheme and host
        return {"Authorization": f"Bearer {token}"} if token and is_of_hub else {}

    @asynccontextmanager
    async def _open(self, url: str, what: str, token: str | None, *, ranged: bool = False) -> AsyncIterator[aiohttp.ClientResponse]:
        """Request a file, following redirects. `ranged`: only its first bytes. `what` describes it in messages."""
        for _ in range(MAX_REDIRECTS + 1):
            headers = self._authorization(url, token) | ({"Range": f"bytes=0-{HEADER_LIMIT}"} if ranged else {})
            async with self._session().get(url, headers=headers, allow_redirects=False) as response:
                if response.status in (301, 302, 303, 307, 308):
                    url = _next(url, response.headers.get("Location", ""), what)
                    continue
                if response.status not in ((200, 206) if ranged else (200,)):
                    raise _ReadError(
                        f"{what} cannot be read: {_meaning(response.status, token)}.",
                        refused=response.status in REFUSALS,
                        failed=response.status >= 500,
                    )
                yield response
                return
        raise _ReadError(f"{what} cannot be read: too many redirects.")


class _ReadError(Exception):
    """A file cannot be read. The message is the reason."""

    def __init__(self, message: str, *, refused: bool = False, failed: bool = False) -> None:
        super().__init__(message)
        self.answer = HubAnswer(trouble=message, refused=refused, failed=failed)


def _file_names(index: bytes) -> list[str]:
    """Return the names of the files, derived from the first name in the index, such as `model-00001-of-00005.safetensors`."""
    found = re.search(rb'"([A-Za-z0-9_.\-]{0,64}-)[0-9]{5}-of-([0-9]{5})\.safetensors"', index)
    count = int(found[2]) if found else 0
    if found is None or count > HEADERS_LIMIT:
        return []
    return [f"{found[1].decode()}{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def slim(value: Any, depth: int = 0, entries: int = ENTRIES_LIMIT) -> Any:
    """Drop values that are too long or too deep."""
    if depth > DEPTH_LIMIT:
        return None
    if isinstance(value, dict):
        return {
            _text(key): slim(entry, depth + 1, NAMES_LIMIT if key in QUANTIZATION_KEYS else entries)
            for key, entry in list(value.items())[:entries]
        }
    if isinstance(value, list):
        return [slim(entry, depth + 1, entries) for entry in value] if len(value) <= entries else []
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    """Return a text that is safe in a status: printable, and without the lone surrogates that JSON may contain."""
    return "".join(mark if mark.isprintable() else "?" for mark in value[:TEXT_LIMIT])


async def _beginning(response: aiohttp.ClientResponse, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (piece := await response.content.read(size - len(data))):
        data += piece
    return bytes(data)


def _next(url: str, location: str, what: str) -> str:
    target = urljoin(url, location)
    allowed = ("https",) if urlsplit(url).scheme == "https" else ("http", "https")
    if not location or urlsplit(target).scheme not in allowed:
        raise _ReadError(f"{what} cannot be read: the hub redirects to a URL that is not followed.")
    return target


def _meaning(status: int, token: str | None) -> str:
    """Return the meaning of an HTTP status. A hub also responds with 401 for a missing model, to hide the names of private ones."""
    if status in (401, 403) and token:
        return "the token is not accepted; it must be valid, and its owner must have accepted the model's licence"
    if status in (401, 403):
        return "there is no such model, or it needs a token; check spec.model.uri, or name its Secret in spec.model.tokenSecretRef"
    return "there is no such model, revision or file; check spec.model.uri and revision" if status == 404 else f"HTTP status {status}"
