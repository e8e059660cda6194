"""Certificates that are replaced while the client runs, in front of a server with real TLS."""

import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import copyfile, which
from typing import Any

import pytest
import yaml
from aiohttp import web

from vllm_operator.cluster import connection
from vllm_operator.cluster.client import CONFIG_MAP, Unavailable
from vllm_operator.cluster.connection import load_configuration
from vllm_operator.cluster.kube import KubeClient

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
    made = KubeClient(await load_configuration(), reload=load_configuration, timeout_seconds=5)
    yield made
    await made.close()


async def read(client: KubeClient) -> object:
    return await client.get(CONFIG_MAP, "c", "default")


async def test_a_server_with_a_certificate_of_a_new_ca_is_trusted_once_the_bundle_has_it(server: Server, client: KubeClient) -> None:
    await read(client)
    await server.start("server-2")
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await read(client)
    copyfile(server.folder / "server-2.pem", server.folder / "ca.pem")
    assert await read(client), "a failed handshake makes the client look at the files at once"
    await server.start("server-1")
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await read(client)  # the old CA is no longer trusted


async def test_a_ca_in_the_kubeconfig_itself_is_replaced_too(server: Server, client: KubeClient) -> None:
    await read(client)
    await server.start("server-2")
    path = server.folder / "config"
    path.write_text(path.read_text().replace("ca.pem", "server-2.pem"))
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await read(client)
    assert await read(client)


async def test_a_new_client_certificate_is_used_for_new_connections(
    server: Server, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await read(client)
    for suffix in ("pem", "key"):
        copyfile(server.folder / f"client-2.{suffix}", server.folder / f"client.{suffix}")
    await read(client)
    monkeypatch.setattr(connection, "CHECK_SECONDS", 0.0)
    await read(client)
    assert server.clients == ["client-1", "client-1", "client-2"]


async def test_a_certificate_that_is_none_is_said_and_not_used(
    server: Server, client: KubeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "CHECK_SECONDS", 0.0)
    await read(client)
    (server.folder / "client.pem").write_text("half of a")
    assert await read(client)
    assert "cannot be used" in caplog.text
    copyfile(server.folder / "client-2.pem", server.folder / "client.pem")
    copyfile(server.folder / "client-2.key", server.folder / "client.key")
    await read(client)
    assert server.clients == ["client-1", "client-1", "client-2"]
