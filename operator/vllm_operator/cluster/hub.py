"""The model hub: the config.json of a model, as far as it can be had quickly.

A model's files were written by others and the hub is somebody else's: an answer is bounded in size and time, is cut to
what may matter, and never raises. A token goes only to the hub itself, never along a redirection to another host, and
never into a message.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urljoin, urlsplit

import aiohttp

from vllm_operator import __version__

SIZE_LIMIT = 2 * 1024 * 1024
"""Bytes of a file. The largest of well-known models are below 1 MiB: lists of layers that are not quantized."""
REDIRECTIONS = 3
ENTRIES_LIMIT, TEXT_LIMIT, DEPTH_LIMIT = 512, 256, 8
"""Longer lists and texts, and what lies deeper, say nothing about kernels and are not kept."""


@dataclass(frozen=True, slots=True)
class HubAnswer:
    """What the hub has told. `config` is None where it could not be had; `trouble` then says why, in one sentence.

    `unreachable`: the hub itself does not answer, so asking for another model now would be in vain.
    """

    config: Mapping[str, Any] | None = None
    trouble: str | None = None
    unreachable: bool = False


class ModelHub(Protocol):
    """Where facts about models come from."""

    async def read(self, repository: str, revision: str, token: str | None) -> HubAnswer:
        """Read the config.json of `organisation/name`. Never raises; takes no longer than the caller lets it."""

    async def close(self) -> None:
        """Close all connections."""


class FakeHub:
    """A hub in memory, for tests: answers by repository; `asked` are all questions, `wait` holds answers back."""

    def __init__(self, **configs: Mapping[str, Any]) -> None:
        """`configs` by the repository's name, `/` written as two underscores."""
        self.answers = {name.replace("__", "/"): HubAnswer(config) for name, config in configs.items()}
        self.asked: list[tuple[str, str, str | None]] = []
        self.wait: asyncio.Event | None = None

    async def read(self, repository: str, revision: str, token: str | None) -> HubAnswer:
        """Answer as a test says."""
        self.asked.append((repository, revision, token))
        if self.wait is not None:
            await self.wait.wait()
        return self.answers.get(repository, HubAnswer(trouble=f"The hub has no {repository}."))

    async def close(self) -> None:
        """Nothing to close."""


class HttpHub:
    """A hub that speaks as huggingface.co does: `ENDPOINT/organisation/name/resolve/REVISION/config.json`."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint` is the address without a path. Make it inside of the event loop; close it there."""
        self._endpoint = endpoint.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def read(self, repository: str, revision: str, token: str | None) -> HubAnswer:
        """Read config.json, and hf_quant_config.json where that holds the quantization."""
        try:
            config = await self._file(repository, revision, "config.json", token)
            if "quantization_config" not in config and "text_config" not in config:
                quantization = await self._quantization(repository, revision, token)
                config = {**config, "quantization_config": quantization} if quantization else config
        except _NoAnswer as error:
            return HubAnswer(trouble=str(error), unreachable=error.unreachable)
        return HubAnswer(config)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _quantization(self, repository: str, revision: str, token: str | None) -> Mapping[str, Any] | None:
        try:
            return await self._file(repository, revision, "hf_quant_config.json", token)
        except _NoAnswer:
            return None

    async def _file(self, repository: str, revision: str, name: str, token: str | None) -> Mapping[str, Any]:
        what = f"{name} of {repository} on {self._endpoint}"
        path = "/".join(quote(part, safe="") for part in (*repository.split("/"), "resolve", revision, name))
        if any(part in (".", "..") for part in repository.split("/")) or revision in (".", ".."):
            raise _NoAnswer(f"{repository} is not the name of a model.")
        try:
            data = await self._get(f"{self._endpoint}/{path}", what, token)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _NoAnswer(f"{what} cannot be read: {type(error).__name__}.", unreachable=True) from error
        except ValueError as error:  # an address that is none
            raise _NoAnswer(f"{what} cannot be read: the address is not valid.") from error
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _NoAnswer(f"{what} is not JSON.") from error
        if not isinstance(content, dict):
            raise _NoAnswer(f"{what} is not a JSON object.")
        kept: Mapping[str, Any] = slim(content)
        return kept

    async def _get(self, url: str, what: str, token: str | None) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                trust_env=True, headers={"User-Agent": f"vllm-operator/{__version__}"}, cookie_jar=aiohttp.DummyCookieJar()
            )
        for _ in range(REDIRECTIONS + 1):
            headers = {"Authorization": f"Bearer {token}"} if token and _same_origin(url, self._endpoint) else {}
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                if response.status in (301, 302, 303, 307, 308):
                    url = _next(url, response.headers.get("Location", ""), what)
                    continue
                if response.status != 200:
                    raise _NoAnswer(f"{what} cannot be read: {_meaning(response.status, token)}.", unreachable=response.status >= 500)
                return await _bounded(response, what)
        raise _NoAnswer(f"{what} cannot be read: too many redirections.")


class _NoAnswer(Exception):  # noqa: N818 - a signal
    """There is no answer; the message says why."""

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


def slim(value: Any, depth: int = 0) -> Any:
    """Leave out what is too long or too deep to be a fact about a model."""
    if depth > DEPTH_LIMIT:
        return None
    if isinstance(value, dict):
        return {key[:TEXT_LIMIT]: slim(entry, depth + 1) for key, entry in list(value.items())[:ENTRIES_LIMIT]}
    if isinstance(value, list):
        return [slim(entry, depth + 1) for entry in value] if len(value) <= ENTRIES_LIMIT else []
    return value[:TEXT_LIMIT] if isinstance(value, str) else value


async def _bounded(response: aiohttp.ClientResponse, what: str) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_chunked(64 * 1024):
        data += piece
        if len(data) > SIZE_LIMIT:
            raise _NoAnswer(f"{what} is larger than {SIZE_LIMIT // (1024 * 1024)} MiB and was not read.")
    return bytes(data)


def _same_origin(one: str, other: str) -> bool:
    first, second = urlsplit(one), urlsplit(other)
    return (first.scheme, first.netloc) == (second.scheme, second.netloc)


def _next(url: str, location: str, what: str) -> str:
    target = urljoin(url, location)
    allowed = ("https",) if urlsplit(url).scheme == "https" else ("http", "https")
    if not location or urlsplit(target).scheme not in allowed:
        raise _NoAnswer(f"{what} cannot be read: the hub redirects to an address that is not followed.")
    return target


def _meaning(status: int, token: str | None) -> str:
    if status in (401, 403):
        return "the token is not accepted" if token else "it needs a token; name its Secret in spec.model.tokenSecretRef"
    return "there is no such file" if status == 404 else f"HTTP status {status}"
