"""The parts of the packages `kubernetes`, `kopf` and `aiohttp` that the operator uses, without the rest of these packages.

`import kubernetes` also imports the synchronous client with `requests`, `urllib3`, `oauthlib` and `websocket`: 400 modules and 13 MiB, of
which the operator uses nothing. `import kopf` imports 80 modules with kopf's handlers, which take 4 MiB and 0.1 s, where the operator uses
only the watch (`runtime/watches.py`). Therefore the packages above the modules that are wanted are registered here without running their
`__init__`, and the synchronous client as missing. A process that has imported one of these packages already keeps it as it is.

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

PACKAGES = {
    "kubernetes": ("aio", "aio.client", "aio.config", "aio.utils"),
    "kopf": (),
}
"""Packages whose `__init__` is not run, and those below them."""


def _register(name: str) -> bool:
    """Register a package and those below it. Return whether this was done: it is not if the package was imported before, or is missing."""
    spec = importlib.util.find_spec(name)
    if name in sys.modules or spec is None or spec.origin is None:
        return False
    root = Path(spec.origin).parent
    for inner in ("", *PACKAGES[name]):
        full = f"{name}.{inner}".rstrip(".")
        package = ModuleType(full)
        package.__path__ = [str(root.joinpath(*inner.split(".")))]
        package.__spec__ = importlib.machinery.ModuleSpec(full, None, is_package=True) if inner else spec
        sys.modules[full] = package
        if inner:
            parent, _, own = full.rpartition(".")
            setattr(sys.modules[parent], own, package)
    return True


def _register_packages() -> None:
    _register("kopf")
    if not _register("kubernetes"):
        return
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
