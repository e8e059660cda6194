"""How to connect to the API server: a kubeconfig, or the ServiceAccount of the Pod.

`KUBECONFIG` comes first, then the ServiceAccount in a Pod, then `~/.kube/config`. Tokens rotate: that of the ServiceAccount is read again
every minute, and the client reloads the others after a 401. Changed certificates need new connections, so the process restarts.
"""

import asyncio
import os
import ssl
from collections.abc import Mapping, Sequence
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

CHUNK_BYTES = 64 * 1024
_NO_KUBECONFIG = (ConfigException, YAMLError, OSError, ValueError, AttributeError, TypeError, KeyError)
"""Errors of the loader for a file that is not a kubeconfig."""
ADVICE = "Set KUBECONFIG to a kubeconfig file, or run in a Pod with a ServiceAccount."


class MissingConnectionError(Exception):
    """There is no usable kubeconfig and no ServiceAccount. The message says what was tried."""


async def load_configuration(environment: Mapping[str, str] | None = None, *, context: str | None = None) -> Configuration:
    """Load the configuration of the client. Raises MissingConnectionError if no usable configuration exists.

    `context` is that of the kubeconfig; None for the current one, or for the ServiceAccount of the Pod.
    """
    environment = os.environ if environment is None else environment
    configuration = Configuration()
    paths, in_pod = environment.get("KUBECONFIG", ""), bool(environment.get("KUBERNETES_SERVICE_HOST"))
    files = paths or _home_kubeconfig(environment)
    try:
        if in_pod and not paths and context is None:
            load_incluster_config(client_configuration=configuration)
        elif await asyncio.to_thread(_is_any_file, files):
            await load_kube_config(config_file=files, context=context, client_configuration=configuration, persist_config=False)
        else:
            tried = f"names {paths}, which does not exist" if paths else f"is not set, {files} does not exist, and this is not a Pod"
            raise MissingConnectionError(f"There is no kubeconfig: KUBECONFIG {tried}. {ADVICE}")
        ssl_context(configuration)
    except _NO_KUBECONFIG as error:
        raise MissingConnectionError(f"The kubeconfig {files} cannot be used: {' '.join(str(error).split())}. {ADVICE}") from error
    if not in_pod:  # a Pod reaches its own API server without a proxy
        configuration.proxy = configuration.proxy or proxy_for(configuration.host, environment)
    return configuration


def ssl_context(configuration: Configuration) -> ssl.SSLContext:
    """Return a context without the strict RFC 5280 checks of Python 3.13, which the certificate authorities of some providers fail.

    Raises OSError or ValueError if no connection can use the certificates.
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
    """Open a session for all connections to the API server, whose number callers limit. Raises OSError or ValueError, as `ssl_context`."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=ssl_context(configuration)),
        headers={"User-Agent": f"vllm-operator/{__version__}", **(headers or {})},
        proxy=configuration.proxy,
        middlewares=(*middlewares, check_socket),
        read_bufsize=CHUNK_BYTES,
        trace_configs=[*traces, *(configuration.trace_configs or ())],
    )


async def check_socket(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Convert uvloop's error about a reused file descriptor to a connection error, as middleware of aiohttp.

    After a cancelled connection attempt, uvloop may remember its file descriptor, and refuse a new socket with the same number
    (https://github.com/MagicStack/uvloop/issues/653). The next attempt succeeds.
    """
    try:
        return await send(request)
    except RuntimeError as error:
        if "is used by transport" not in str(error):
            raise
        raise aiohttp.ClientConnectionError(str(error)) from error


async def authorization(configuration: Configuration) -> str | None:
    """Return the Authorization header; None without credentials. Raises ConfigException, OSError or ValueError for an unreadable token."""
    token: str | None = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    if token or not configuration.username:
        return token
    return str(configuration.get_basic_auth_token())


def read_certificates(configuration: Configuration) -> list[bytes]:
    """The CA bundle and the client certificate. A new token replaces these files as well, with the same content. Raises OSError."""
    return [Path(name).read_bytes() for name in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file) if name]


def context_namespace(environment: Mapping[str, str] | None = None, *, context: str | None = None) -> str:
    """Return the namespace of a context of the kubeconfig, or of the current one; `default` if it has none."""
    environment = os.environ if environment is None else environment
    try:
        contexts, current = list_kube_config_contexts(environment.get("KUBECONFIG") or _home_kubeconfig(environment))
        chosen = current if context is None else next(each for each in contexts if each["name"] == context)
        return str(chosen["context"].get("namespace") or "default")
    except (*_NO_KUBECONFIG, RecursionError, StopIteration):  # the connection reports it
        return "default"


def proxy_for(host: str, environment: Mapping[str, str]) -> str | None:
    """Return the proxy for a server from the environment variables that kubectl reads; None without one."""
    name = urlsplit(host).hostname or ""
    exempt = (environment.get("NO_PROXY") or environment.get("no_proxy") or "").lower()
    if any(_covers(entry.strip(), name) for entry in exempt.split(",") if entry.strip()):
        return None
    return environment.get("HTTPS_PROXY") or environment.get("https_proxy")


def _covers(entry: str, name: str) -> bool:
    if entry == "*" or f".{name}".endswith(f".{entry.lstrip('.')}"):
        return True
    try:
        return ip_address(name) in ip_network(entry, strict=False)
    except ValueError:  # one of them is a host name
        return False


def _home_kubeconfig(environment: Mapping[str, str]) -> str:
    return str(Path(environment.get("HOME", "/")) / ".kube" / "config")


def _is_any_file(paths: str) -> bool:
    return any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path)
