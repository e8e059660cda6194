"""Certificates that are replaced while the client runs, in front of a server with real TLS."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import copyfile, which
from typing import Any

import pytest
import yaml
from aiohttp import web

from vllm_operator.kube import api_client
from vllm_operator.kube.api_client import ConnectionOutdated, KubeClient
from vllm_operator.kube.client import CONFIG_MAP, Unauthorized, Unavailable
from vllm_operator.kube.connection import load_configuration

pytestmark = pytest.mark.skipif(which("openssl") is None, reason="there is no openssl to make a certificate with")


def make_certificate(folder: Path, name: str) -> None:
    """A self-signed certificate for 127.0.0.1, its own CA: `NAME.pem` and `NAME.key`."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
    subprocess.run([*command, *names], cwd=folder, check=True, capture_output=True)


class Server:
    """An API server that verifies client certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.clients: list[str] = []
        self.refuses = False
        self._runner: web.AppRunner | None = None

    async def start(self, certificate: str) -> None:
        """Serve with a certificate, on the same port each time."""
        await self.stop()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.folder / f"{certificate}.pem", self.folder / f"{certificate}.key")
        context.verify_mode = ssl.CERT_REQUIRED
        for client in ("client-1", "client-2"):
            context.load_verify_locations(self.folder / f"{client}.pem")
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context).start()
        self.port = self._runner.addresses[0][1]

    async def _answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        subject: Any = dict(entry[0] for entry in request.transport.get_extra_info("peercert")["subject"])
        self.clients.append(subject["commonName"])
        if self.refuses:
            return web.json_response({}, status=401)
        return web.json_response({"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}})

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    for name in ("server-1", "server-2", "client-1", "client-2"):
        make_certificate(tmp_path, name)
    made = Server(tmp_path)
    await made.start("server-1")
    yield made
    await made.stop()


@pytest.fixture
async def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    """A client whose kubeconfig names the files `ca.pem`, `client.pem` and `client.key`."""
    folder = server.folder
    for source, target in (("server-1.pem", "ca.pem"), ("client-1.pem", "client.pem"), ("client-1.key", "client.key")):
        copyfile(folder / source, folder / target)
    cluster = {"server": f"https://127.0.0.1:{server.port}", "certificate-authority": str(folder / "ca.pem")}
    user = {"client-certificate": str(folder / "client.pem"), "client-key": str(folder / "client.key")}
    kubeconfig = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    (folder / "config").write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
    monkeypatch.setattr(api_client, "CHECK_SECONDS", 0.01)
    made = KubeClient(await load_configuration(), reload=load_configuration, timeout_seconds=5)
    yield made
    await made.close()


async def read(client: KubeClient) -> object:
    return await client.get(CONFIG_MAP, "c", "default")


async def until_outdated(client: KubeClient) -> None:
    with pytest.raises(ConnectionOutdated):
        await asyncio.wait_for(client.watch_connection(), 5)


async def started_again() -> KubeClient:
    """The client of the next process."""
    return KubeClient(await load_configuration(), reload=load_configuration, timeout_seconds=5)


async def test_a_ca_that_has_changed_ends_the_process_and_the_next_one_trusts_it_alone(server: Server, client: KubeClient) -> None:
    await read(client)
    await server.start("server-2")
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await read(client)
    copyfile(server.folder / "server-2.pem", server.folder / "ca.pem")
    await until_outdated(client)
    fresh = await started_again()
    assert await read(fresh)
    await server.start("server-1")
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await read(fresh)
    await fresh.close()


async def test_a_client_certificate_that_has_changed_ends_the_process_and_the_next_one_uses_it(server: Server, client: KubeClient) -> None:
    await read(client)
    for suffix in ("pem", "key"):
        copyfile(server.folder / f"client-2.{suffix}", server.folder / f"client.{suffix}")
    await until_outdated(client)
    fresh = await started_again()
    await read(fresh)
    await fresh.close()
    assert server.clients == ["client-1", "client-2"]


async def test_certificates_that_are_written_again_with_the_same_content_change_nothing(server: Server, client: KubeClient) -> None:
    """As kubelets do with each new token of a ServiceAccount."""
    (server.folder / "new.pem").write_bytes((server.folder / "ca.pem").read_bytes())
    (server.folder / "new.pem").rename(server.folder / "ca.pem")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.watch_connection(), 0.2)


async def test_a_certificate_that_is_none_is_said_and_waited_for(
    server: Server, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    await read(client)
    (server.folder / "client.pem").write_text("half of a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.watch_connection(), 0.2)
    assert "cannot be used" in caplog.text
    copyfile(server.folder / "client-2.pem", server.folder / "client.pem")
    copyfile(server.folder / "client-2.key", server.folder / "client.key")
    await until_outdated(client)


async def test_reloaded_credentials_with_another_certificate_end_the_process(server: Server, client: KubeClient) -> None:
    path = server.folder / "config"
    path.write_text(path.read_text().replace("client.pem", "client-2.pem").replace("client.key", "client-2.key"))
    server.refuses = True
    with pytest.raises(Unauthorized):
        await read(client)
    await until_outdated(client)
