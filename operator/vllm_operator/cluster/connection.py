"""How to connect to the API server: a kubeconfig, or the ServiceAccount of the Pod.

`KUBECONFIG` comes first, then the ServiceAccount in a Pod, then `~/.kube/config`. Credentials rotate: the token of the ServiceAccount
is read again every minute, and the client reloads everything after a 401 and when a file has changed.
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config
from yaml import YAMLError, safe_load

from vllm_operator.cluster.responses import CHUNK_BYTES
from vllm_operator.cluster.sockets import check_socket

log = logging.getLogger(__name__)

RELOAD_SECONDS = 10.0
"""Minimum time between two reloads of refused credentials."""
CHECK_SECONDS = 10.0
"""Minimum time between two checks of the files of the connection."""
_CONNECTION_FIELDS = ("host", "proxy", "ssl_ca_cert", "ca_cert_data", "cert_file", "key_file", "verify_ssl", "tls_server_name")
ADVICE = "Set KUBECONFIG to a kubeconfig file, or run in a Pod with a ServiceAccount."


class MissingConnectionError(Exception):
    """There is no usable kubeconfig and no ServiceAccount. The message says what was tried."""


async def load_configuration(environment: Mapping[str, str] | None = None) -> Configuration:
    """Load the configuration of the client.

    Raises:
        MissingConnectionError: There is none, or it cannot be used.
    """
    environment = os.environ if environment is None else environment
    configuration = Configuration()
    paths = environment.get("KUBECONFIG", "")
    home = Path(environment.get("HOME", "/")) / ".kube" / "config"
    has_home = await asyncio.to_thread(home.is_file)
    try:
        if paths:
            _check_files(paths)
            await load_kube_config(config_file=paths, client_configuration=configuration, persist_config=False)
        elif environment.get("KUBERNETES_SERVICE_HOST"):
            load_incluster_config(client_configuration=configuration)
        elif has_home:
            await load_kube_config(config_file=str(home), client_configuration=configuration, persist_config=False)
        else:
            raise MissingConnectionError(
                f"There is no kubeconfig: KUBECONFIG is not set, {home} does not exist, and this is not a Pod. {ADVICE}"
            )
        _check_certificates(configuration)
    except (ConfigException, YAMLError, OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        # the loader raises all of these for YAML that is not a kubeconfig
        raise MissingConnectionError(
            f"The kubeconfig {paths or home or ''} cannot be used: {' '.join(str(error).split())}. {ADVICE}"
        ) from error
    if not environment.get("KUBERNETES_SERVICE_HOST"):  # a Pod reaches its own API server without a proxy
        configuration.proxy = configuration.proxy or proxy_for(configuration.host, environment)
    # Certificates are verified, except for the strict RFC 5280 checks of Python 3.13, which the CAs of some providers fail.
    configuration.disable_strict_ssl_verification = True
    return configuration


def configuration_paths() -> list[Path]:
    """The paths of the kubeconfig files, in order of precedence."""
    given = os.environ.get("KUBECONFIG", "")
    return [Path(path).expanduser() for path in given.split(os.pathsep) if path] or [Path.home() / ".kube" / "config"]


@dataclass(slots=True, eq=False)
class Session:
    """The connections with one set of certificates, and how many requests use them."""

    rest: RESTClientObject
    users: int = 0

    async def close(self) -> None:
        """Close all connections."""
        await self.rest.close()


class Connection:
    """Connections to the API server, with credentials and certificates that are kept current."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        timeout_seconds: float,
        reload: Callable[[], Awaitable[Configuration]] | None,
        traces: Sequence[aiohttp.TraceConfig] = (),
    ) -> None:
        """Open no connection yet.

        Args:
            configuration: How to connect.
            timeout_seconds: For a reload: a kubeconfig may name a program that prints a token.
            reload: Loads the configuration again; never if None.
            traces: What aiohttp calls for each request.
        """
        self.configuration = configuration
        self._timeout = timeout_seconds
        self._reload = reload
        self._traces = traces
        self._reloading = asyncio.Lock()
        self._reloaded_at = -RELOAD_SECONDS
        self._checked_at = time.monotonic()
        self._versions = file_versions(configuration)
        self._session = self._open_session(configuration)
        self._retired: set[Session] = set()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Session]:
        """The current session. One that was replaced stays open until its last request ends."""
        session = self._session
        session.users += 1
        try:
            yield session
        finally:
            session.users -= 1
            if session in self._retired and not session.users:
                self._retired.remove(session)
                await session.close()

    async def authorization(self) -> str | None:
        """The Authorization header; None without a token or a password.

        Raises:
            ConfigException, OSError, ValueError: The token of the ServiceAccount cannot be read.
        """
        token: str | None = await self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token or not self.configuration.username:
            return token
        return str(self.configuration.get_basic_auth_token())

    async def refresh(self, refused: str | None) -> bool:
        """Reload credentials that the API server refused, at most every ten seconds; return whether there are others now.

        Raises:
            MissingConnectionError, TimeoutError, ConfigException, OSError, ValueError: They cannot be read.
        """
        if self._reload is None:
            return False
        async with self._reloading:  # of all requests that were refused together, one reloads
            if await self.authorization() != refused:
                return True
            if time.monotonic() - self._reloaded_at < RELOAD_SECONDS:
                return False
            self._reloaded_at = time.monotonic()
            async with asyncio.timeout(self._timeout):
                fresh = await self._reload()
            await self._adopt(fresh)
            return True

    def check_soon(self) -> None:
        """Check the files before the next request."""
        self._checked_at = -CHECK_SECONDS

    async def close(self) -> None:
        """Close all connections."""
        for session in (self._session, *self._retired):
            await session.close()

    async def check_files(self) -> None:
        """Open a new session if the kubeconfig, the CA bundle or the client certificate has changed. Check every ten seconds.

        Open requests continue on the old session. If the files cannot be used, the old session stays, and the next check tries again.
        """
        if self._reload is None or time.monotonic() - self._checked_at < CHECK_SECONDS:
            return
        self._checked_at = time.monotonic()
        async with self._reloading:
            if await asyncio.to_thread(file_versions, self.configuration) == self._versions:
                return
            try:
                async with asyncio.timeout(self._timeout):
                    fresh = await self._reload()
                await self._adopt(fresh)
            except (MissingConnectionError, TimeoutError, OSError, ValueError) as error:  # OSError: an invalid certificate
                log.warning("the files of the connection have changed and cannot be used: %s", error or "reading them takes too long")
            else:
                log.info("the files of the connection have changed; new connections use them")

    async def _adopt(self, fresh: Configuration) -> None:
        """Use a reloaded configuration. Open a new session unless at most the token differs."""
        versions = await asyncio.to_thread(file_versions, fresh)
        if versions == self._versions and all(getattr(fresh, name) == getattr(self.configuration, name) for name in _CONNECTION_FIELDS):
            self.configuration.api_key = fresh.api_key
            self.configuration.refresh_api_key_hook = fresh.refresh_api_key_hook
            return
        session = self._open_session(fresh)
        old, self._session, self.configuration, self._versions = self._session, session, fresh, versions
        if old.users:
            self._retired.add(old)
        else:
            await old.close()

    def _open_session(self, configuration: Configuration) -> Session:
        if self._traces:
            configuration.trace_configs = list(self._traces)
        # each stream needs a connection; its owner limits their number
        configuration.connection_pool_maxsize = 0
        # aiohttp buffers twice this much of a stream; lines are split elsewhere
        # with `trust_env`, it would look for a proxy and a .netrc file before each request, in a thread
        configuration.client_session_kwargs = {"read_bufsize": CHUNK_BYTES, "trust_env": False, "middlewares": (check_socket,)}
        return Session(RESTClientObject(configuration))


def file_versions(configuration: Configuration) -> tuple[tuple[int, int, int] | None, ...]:
    """Versions of the kubeconfig, the CA bundle and the client certificate, to detect changes. None: no such file. Blocks on file I/O."""
    named = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return tuple(_version_of(path) for path in (*configuration_paths(), *(Path(name) for name in named if name)))


def _version_of(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def context_namespace(paths: list[Path]) -> str:
    """The namespace of the current context; `default` if it has none."""
    documents = []
    for path in paths:
        try:
            document = safe_load(path.read_text("utf-8"))
        except (OSError, ValueError, YAMLError, RecursionError):
            continue
        if isinstance(document, dict):
            documents.append(document)
    current = next((document["current-context"] for document in documents if document.get("current-context")), None)
    for document in documents:
        contexts = document.get("contexts")
        for entry in contexts if isinstance(contexts, list) else ():
            if isinstance(entry, dict) and entry.get("name") == current:
                context = entry.get("context")
                return str((context.get("namespace") if isinstance(context, dict) else None) or "default")
    return "default"


def proxy_for(host: str, environment: Mapping[str, str]) -> str | None:
    """The proxy for a server, by the environment variables that kubectl reads; None for none."""
    name = urlsplit(host).hostname or ""
    exempt = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if any(_covers(entry.strip().lower(), name) for entry in exempt.split(",") if entry.strip()):
        return None
    return environment.get("HTTPS_PROXY") or environment.get("https_proxy")


def _covers(entry: str, name: str) -> bool:
    if entry == "*" or name == entry.lstrip(".") or name.endswith(f".{entry.lstrip('.')}"):
        return True
    try:
        return ip_address(name) in ip_network(entry, strict=False)
    except ValueError:  # one of them is a host name
        return False


def _check_certificates(configuration: Configuration) -> None:
    """Raise OSError or ValueError for certificates that no connection can use."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)


def _check_files(paths: str) -> None:
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise MissingConnectionError(f"There is no kubeconfig: KUBECONFIG names {paths}, which does not exist. {ADVICE}")
