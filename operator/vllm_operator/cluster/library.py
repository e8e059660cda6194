"""The parts of the packages `kubernetes` and `aiohttp` that the operator uses: configuration, readers of kubeconfigs, and the transport.

`import kubernetes` also imports the synchronous client with `requests`, `urllib3`, `oauthlib` and `websocket`: 400 modules and 13 MiB, of
which the operator uses nothing. kopf would import them, too. Therefore the packages above the modules that are wanted are registered here
without running their `__init__`, and the synchronous client as missing, which kopf allows. A process that has imported `kubernetes`
already keeps it as it is.

When it is imported, `aiohttp` loads the certificate authorities of the system twice, which takes 1.6 MiB and 40 ms. Here it loads
none: each connection of the operator has a TLS context of its own. One without such a context trusts nobody.
"""

import importlib.machinery
import importlib.util
import ssl
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("kubernetes", "kubernetes.aio", "kubernetes.aio.client", "kubernetes.aio.config", "kubernetes.aio.utils")
"""Packages whose `__init__` is not run."""


def _register_packages() -> None:
    spec = importlib.util.find_spec("kubernetes")
    if "kubernetes" in sys.modules or spec is None or spec.origin is None:
        return
    root = Path(spec.origin).parent
    for name in PACKAGES:
        parent, _, own = name.rpartition(".")
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True) if parent else spec
        sys.modules[name] = package
        if parent:
            setattr(sys.modules[parent], own, package)
    missing: Any = None
    sys.modules["kubernetes.client"] = missing  # how Python marks a module that cannot be imported
    client: Any = sys.modules["kubernetes.aio.client"]
    client.ApiClient = None  # `kube_config` imports it by name, for functions that are not used here
    from kubernetes.aio.client.configuration import Configuration

    client.Configuration = Configuration


def _import_aiohttp() -> None:
    if "aiohttp" in sys.modules:
        return
    loading = ssl.SSLContext.set_default_verify_paths
    ssl.SSLContext.set_default_verify_paths = lambda self: None  # type: ignore[method-assign]
    try:
        import aiohttp  # noqa: F401
    finally:
        ssl.SSLContext.set_default_verify_paths = loading  # type: ignore[method-assign]


_import_aiohttp()
_register_packages()

# ruff: noqa: E402 - only now are the packages registered
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject, RESTResponse
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config

__all__ = ["ConfigException", "Configuration", "RESTClientObject", "RESTResponse", "load_incluster_config", "load_kube_config"]
