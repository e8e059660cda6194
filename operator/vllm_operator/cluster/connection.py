"""Where the API server is and how to prove who we are: a kubeconfig, or the service account of the Pod.

`KUBECONFIG` wins; then the service account, if this is a Pod; then `~/.kube/config`. Tokens rotate: the
service account's file is read again every minute, and everything is read again after a 401.
"""

import asyncio
import os
import ssl
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config
from yaml import YAMLError, safe_load

ADVICE = "Set KUBECONFIG to a kubeconfig file, or run in a Pod with a service account."


class MissingConnectionError(Exception):
    """There is no usable kubeconfig and no service account; the message says what was tried."""


async def load_configuration(environment: Mapping[str, str] | None = None) -> Configuration:
    """Read the configuration of the client anew.

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
        # the loader fails in all these ways on a file that is YAML but no kubeconfig
        raise MissingConnectionError(
            f"The kubeconfig {paths or home or ''} cannot be used: {' '.join(str(error).split())}. {ADVICE}"
        ) from error
    if not environment.get("KUBERNETES_SERVICE_HOST"):  # a Pod reaches its own API server without one
        configuration.proxy = configuration.proxy or proxy_for(configuration.host, environment)
    # Certificates are verified, but not for RFC 5280 niceties that the CAs of some providers lack and that
    # Python 3.13 began to ask for.
    configuration.disable_strict_ssl_verification = True
    return configuration


def configuration_paths() -> list[Path]:
    """The kubeconfig files that are looked at, in their order."""
    given = os.environ.get("KUBECONFIG", "")
    return [Path(path).expanduser() for path in given.split(os.pathsep) if path] or [Path.home() / ".kube" / "config"]


def context_namespace(paths: list[Path]) -> str:
    """The namespace of the present context; `default` where none is said."""
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
    """The proxy that the environment names for a server, as kubectl understands it; None where there is none."""
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
    except ValueError:  # one of them is a name
        return False


def _check_certificates(configuration: Configuration) -> None:
    """Raise OSError or ValueError for certificates that no connection can use."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)


def _check_files(paths: str) -> None:
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise MissingConnectionError(f"There is no kubeconfig: KUBECONFIG names {paths}, which does not exist. {ADVICE}")
