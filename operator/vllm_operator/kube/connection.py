"""How to connect to the API server: a kubeconfig, or the ServiceAccount of the Pod.

`KUBECONFIG` comes first, then the ServiceAccount in a Pod, then `~/.kube/config`. Tokens rotate: that of the ServiceAccount is read again
every minute, and the client reloads the others after a 401. Changed certificates need new connections, so the process restarts.
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import list_kube_config_contexts, load_kube_config
from yaml import YAMLError

from vllm_operator import __version__
from vllm_operator.kube.responses import CHUNK_BYTES
from vllm_operator.kube.sockets import check_socket

log = logging.getLogger(__name__)

RELOAD_SECONDS = 10.0
"""Minimum time between two reloads of refused credentials."""
CHECK_SECONDS = 10.0
"""Time between two checks of the certificates."""
_CONNECTION_FIELDS = ("host", "proxy", "ssl_ca_cert", "ca_cert_data", "cert_file", "key_file", "verify_ssl", "tls_server_name")
_NO_KUBECONFIG = (ConfigException, YAMLError, OSError, ValueError, AttributeError, TypeError, KeyError)
"""Errors of the loader for a file that is not a kubeconfig."""
ADVICE = "Set KUBECONFIG to a kubeconfig file, or run in a Pod with a ServiceAccount."


class MissingConnectionError(Exception):
    """There is no usable kubeconfig and no ServiceAccount. The message says what was tried."""


class ConnectionOutdated(Exception):  # noqa: N818 - named for the event
    """The certificates, or the address of the API server, have changed. This process must exit and be restarted."""


async def load_configuration(environment: Mapping[str, str] | None = None) -> Configuration:
    """Load the configuration of the client.

    Raises:
        MissingConnectionError: No usable configuration exists.
    """
    environment = os.environ if environment is None else environment
    configuration = Configuration()
    paths = environment.get("KUBECONFIG", "")
    home = _home_kubeconfig(environment)
    has_home = await asyncio.to_thread(os.path.isfile, home)
    try:
        if paths:
            _check_files(paths)
            await load_kube_config(config_file=paths, client_configuration=configuration, persist_config=False)
        elif environment.get("KUBERNETES_SERVICE_HOST"):
            load_incluster_config(client_configuration=configuration)
        elif has_home:
            await load_kube_config(config_file=home, client_configuration=configuration, persist_config=False)
        else:
            raise MissingConnectionError(
                f"There is no kubeconfig: KUBECONFIG is not set, {home} does not exist, and this is not a Pod. {ADVICE}"
            )
        ssl_context(configuration)
    except _NO_KUBECONFIG as error:
        raise MissingConnectionError(
            f"The kubeconfig {paths or home or ''} cannot be used: {' '.join(str(error).split())}. {ADVICE}"
        ) from error
    if not environment.get("KUBERNETES_SERVICE_HOST"):  # a Pod reaches its own API server without a proxy
        configuration.proxy = configuration.proxy or proxy_for(configuration.host, environment)
    return configuration


def ssl_context(configuration: Configuration) -> ssl.SSLContext:
    """Return a context that verifies certificates without the strict RFC 5280 checks of Python 3.13, which the CAs of some providers fail.

    Raises:
        OSError, ValueError: No connection can use the certificates.
    """
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def open_session(
    configuration: Configuration,
    *,
    headers: Mapping[str, str] | None = None,
    middlewares: Sequence[aiohttp.ClientMiddlewareType] = (),
    traces: Sequence[aiohttp.TraceConfig] = (),
) -> aiohttp.ClientSession:
    """Open a session. All connections to the API server are opened here. Callers limit their number.

    Raises:
        OSError, ValueError: No connection can use the certificates.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=ssl_context(configuration)),
        headers={"User-Agent": f"vllm-operator/{__version__}", **(headers or {})},
        proxy=configuration.proxy,
        middlewares=(*middlewares, check_socket),
        read_bufsize=CHUNK_BYTES,
        trace_configs=[*traces, *(configuration.trace_configs or ())],
    )


async def authorization(configuration: Configuration) -> str | None:
    """The Authorization header; None without a token or a password.

    Raises:
        ConfigException, OSError, ValueError: The token of the ServiceAccount cannot be read.
    """
    token: str | None = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    if token or not configuration.username:
        return token
    return str(configuration.get_basic_auth_token())


class Connection:
    """Connections to the API server, with a token that is kept up to date."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        timeout_seconds: float,
        reload: Callable[[], Awaitable[Configuration]] | None,
        traces: Sequence[aiohttp.TraceConfig] = (),
    ) -> None:
        """Create without opening a connection.

        Args:
            configuration: How to connect.
            timeout_seconds: Timeout of a reload. A kubeconfig may name a program that prints a token.
            reload: Loads the configuration again; never if None.
            traces: Tracing callbacks for aiohttp.
        """
        self.configuration = configuration
        self.session = open_session(configuration, traces=traces)
        self._timeout = timeout_seconds
        self._reload = reload
        self._reloading = asyncio.Lock()
        self._reloaded_at = -RELOAD_SECONDS
        self._certificates = read_certificates(configuration)
        self._is_outdated = False

    async def refresh(self, refused: str | None) -> bool:
        """Reload credentials that the API server refused, at most every ten seconds; return whether they have changed.

        Raises:
            MissingConnectionError, TimeoutError, ConfigException, OSError, ValueError: The credentials cannot be read.
        """
        if self._reload is None:
            return False
        async with self._reloading:  # concurrent refusals cause one reload
            if await authorization(self.configuration) != refused:
                return True
            if time.monotonic() - self._reloaded_at < RELOAD_SECONDS:
                return False
            self._reloaded_at = time.monotonic()
            async with asyncio.timeout(self._timeout):
                fresh = await self._reload()
            if any(getattr(fresh, name) != getattr(self.configuration, name) for name in _CONNECTION_FIELDS):
                self._is_outdated = True
                return False
            for name in ("api_key", "refresh_api_key_hook", "username", "password"):
                setattr(self.configuration, name, getattr(fresh, name))
            return True

    async def watch(self) -> None:
        """Check the certificates every ten seconds, until cancelled. Unusable certificates are assumed to be incompletely written.

        Raises:
            ConnectionOutdated: The process must restart.
        """
        while not self._is_outdated:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                if await asyncio.to_thread(read_certificates, self.configuration) != self._certificates:
                    await asyncio.to_thread(ssl_context, self.configuration)
                    self._is_outdated = True
            except (OSError, ValueError) as error:
                log.warning("the certificates of the connection have changed and cannot be used: %s", error)
        raise ConnectionOutdated("The certificates of the connection, or the address of the API server, have changed")

    async def close(self) -> None:
        """Close all connections."""
        await self.session.close()


def read_certificates(configuration: Configuration) -> list[bytes]:
    """The CA bundle and the client certificate. A new token replaces these files as well, with the same content. Raises OSError."""
    return [Path(name).read_bytes() for name in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file) if name]


def context_namespace(environment: Mapping[str, str] | None = None) -> str:
    """Return the namespace of the current context of the kubeconfig; `default` if it has none."""
    environment = os.environ if environment is None else environment
    try:
        _, current = list_kube_config_contexts(environment.get("KUBECONFIG") or _home_kubeconfig(environment))
        return str(current["context"].get("namespace") or "default")
    except (*_NO_KUBECONFIG, RecursionError):
        return "default"


def proxy_for(host: str, environment: Mapping[str, str]) -> str | None:
    """Return the proxy for a server from the environment variables that kubectl reads; None without one."""
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


def _home_kubeconfig(environment: Mapping[str, str]) -> str:
    return str(Path(environment.get("HOME", "/")) / ".kube" / "config")


def _check_files(paths: str) -> None:
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise MissingConnectionError(f"There is no kubeconfig: KUBECONFIG names {paths}, which does not exist. {ADVICE}")
