"""The way to the model hub as the chart sets it up: through a proxy, and with an authority of one's own."""

import asyncio
import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

CONFIG = {"model_type": "llama", "quantization_config": {}}
ASK = """
import asyncio, json, sys
from vllm_operator.hub.client import HttpHub
async def main():
    hub = HttpHub(sys.argv[1])
    answer = await hub.read("org/model", "main", None)
    await hub.close()
    print(json.dumps([answer.config, answer.trouble]))
asyncio.run(main())
"""
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate with")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for hub.test and its key, in one file. It vouches for itself."""
    folder = tmp_path_factory.mktemp("authority")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=hub.test", "-addext", "subjectAltName=DNS:hub.test", "-keyout", "key.pem", "-out", "hub.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "hub.pem"


class Way:
    """A hub that speaks TLS, and a proxy that leads to it whatever it is asked for; `asked` is what the proxy was told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.proxy = ""
        self.hub_port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(CONFIG).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async def lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
        back, on = await asyncio.open_connection("127.0.0.1", self.hub_port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pass(reader, on), _pass(back, writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
    writer.close()


@pytest.fixture
async def way(certificate: Path) -> AsyncIterator[Way]:
    way = Way()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.parent / "key.pem")
    hub = await asyncio.start_server(way.serve, "127.0.0.1", 0, ssl=context)
    proxy = await asyncio.start_server(way.lead, "127.0.0.1", 0)
    way.hub_port = hub.sockets[0].getsockname()[1]
    way.proxy = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    async with hub, proxy:
        yield way


async def ask(**environment: str) -> tuple[object, str | None]:
    """What a process of its own gets from the hub: what it trusts is read when it starts."""
    variables = {"PYTHONPATH": ":".join(sys.path), **environment}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ASK, "https://hub.test", env=variables, stdout=-1)
    out, _ = await process.communicate()
    config, trouble = json.loads(out)
    return config, trouble


async def test_the_proxy_is_used_and_the_authority_is_believed(way: Way, certificate: Path) -> None:
    assert await ask(HTTPS_PROXY=way.proxy, SSL_CERT_FILE=str(certificate)) == (CONFIG, None)
    assert way.asked[0] == "CONNECT hub.test:443 HTTP/1.1"


async def test_an_authority_that_nobody_named_is_not_believed(way: Way) -> None:
    config, trouble = await ask(HTTPS_PROXY=way.proxy)
    assert config is None
    assert trouble == "config.json of org/model on https://hub.test cannot be read: ClientConnectorCertificateError."


async def test_a_host_that_is_excepted_is_asked_directly(way: Way, certificate: Path) -> None:
    # there is no such host
    config, trouble = await ask(HTTPS_PROXY=way.proxy, NO_PROXY=".example.com,hub.test", SSL_CERT_FILE=str(certificate))
    assert (config, way.asked) == (None, [])
    assert "cannot be read" in str(trouble)
