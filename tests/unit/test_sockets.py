"""What uvloop raises for a socket that it takes for another one: https://github.com/MagicStack/uvloop/issues/653."""

import aiohttp
import pytest
from kubernetes.aio.client.configuration import Configuration

from vllm_operator.kube.api_client import KubeClient
from vllm_operator.kube.client import CONFIG_MAP, Unavailable

MISTAKEN = "File descriptor 17 is used by transport <TCPTransport closed=False reading=True 0x55966af61ad0>"


def fail(monkeypatch: pytest.MonkeyPatch, text: str) -> KubeClient:
    """A client whose attempts to connect end with this text."""

    async def connect(*_: object, **__: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", connect)
    configuration = Configuration()
    configuration.host = "http://api.invalid"
    return KubeClient(configuration)


async def test_it_is_a_failed_connection_so_the_request_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = fail(monkeypatch, MISTAKEN)
    with pytest.raises(Unavailable, match="File descriptor 17 is used by transport"):
        await client.get(CONFIG_MAP, "rules", "default")
    await client.close()


async def test_other_errors_of_the_event_loop_are_no_failed_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    client = fail(monkeypatch, "Event loop is closed")
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        await client.get(CONFIG_MAP, "rules", "default")
    await client.close()
