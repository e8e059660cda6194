"""A container registry with TLS and one account: the one of the CNCF's distribution project, from a pinned module."""

import base64
import json
import time
from pathlib import Path

from testenv.binaries import ensure_binaries
from testenv.processes import ProcessGroup, free_ports

USER, PASSWORD = "robot", "robots-only"
_HASH = "$2b$05$abcdefghijklmnopqrstuufXv7vRnPhOmGJw.WreN31nL9VnMUtWS"
"""Of the password, as the registry wants it (bcrypt)."""
_UP_WITHIN = 30.0


class RegistryError(Exception):
    """The registry does not come up."""


class Registry:
    """A registry on this machine. The certificate, which must be good for its address, is also what clients trust."""

    def __init__(self, folder: Path, certificate: Path, key: Path, *, address: str = "127.0.0.1", read_only: bool = False) -> None:
        self._folder, self._certificate, self._key, self._address = folder, certificate, key, address
        self._processes = ProcessGroup(folder)
        self._read_only = read_only
        self.host = ""

    def start(self) -> None:
        """Start it; return when it answers. Raises RegistryError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "htpasswd").write_text(f"{USER}:{_HASH}\n")
        self.host = self.host or f"{self._address}:{free_ports(1)[0]}"
        storage = {
            "filesystem": {"rootdirectory": str(self._folder / "data")},
            "maintenance": {"readonly": {"enabled": self._read_only}},
        }
        configuration = {
            "version": "0.1",
            "log": {"level": "info"},
            "storage": storage,
            "http": {"addr": self.host, "secret": "test", "tls": {"certificate": str(self._certificate), "key": str(self._key)}},
            "auth": {"htpasswd": {"realm": "test", "path": str(self._folder / "htpasswd")}},
        }
        (self._folder / "configuration.yml").write_text(json.dumps(configuration))
        binary = ensure_binaries(["registry"])["registry"]
        command = [str(binary), "serve", str(self._folder / "configuration.yml")]
        child = self._processes.start("registry", command, environment={"OTEL_TRACES_EXPORTER": "none"})
        deadline = time.monotonic() + _UP_WITHIN
        while f"listening on {self._address}" not in self.log():
            if child.poll() is not None or time.monotonic() > deadline:
                raise RegistryError(f"The registry does not come up:\n{self.log()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        self._processes.stop_all()

    def log(self) -> str:
        return (self._folder / "registry.log").read_text(errors="replace")

    def tags(self, repository: str) -> list[str]:
        folder = self._folder / "data/docker/registry/v2/repositories" / repository / "_manifests/tags"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def blob(self, digest: str) -> Path:
        name = digest.removeprefix("sha256:")
        return self._folder / "data/docker/registry/v2/blobs/sha256" / name[:2] / name / "data"

    def account(self, password: str = PASSWORD) -> dict[str, str]:
        """Return the content of a Secret of type kubernetes.io/dockerconfigjson for it, with its authority."""
        auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
        return {".dockerconfigjson": json.dumps({"auths": {self.host: {"auth": auth}}}), "ca.crt": self._certificate.read_text()}
