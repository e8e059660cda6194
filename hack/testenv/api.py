"""A small blocking client: what setting up an environment needs of the Kubernetes API, with the standard library only."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_SERVER_SIDE_APPLY = "application/apply-patch+yaml"


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ApiClient:
    """Talks to one API server (a URL), verifying its certificate, as the account of a token."""

    def __init__(self, server: str, authority: Path, token: str) -> None:
        self._server = server
        self._token = token
        context = ssl.create_default_context(cafile=str(authority))
        # without proxies: an environment's proxy settings must not come between
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))

    def request(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> Any:
        """Sends a request and returns the decoded answer. Raises ApiError if the server refuses it, OSError if it does not answer."""
        data = None if body is None else json.dumps(body).encode()
        with self._open(method, path, data, content_type, timeout=10.0) as response:
            try:
                text = response.read()
            except http.client.HTTPException as error:
                raise ConnectionError(f"the answer broke off: {error}") from error
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def stream(self, path: str) -> Iterator[bytes]:
        """Yields the lines of an answer as they come, such as those of a watch; stops when the server ends it. Raises as `request`."""
        with self._open("GET", path, None, "application/json", timeout=None) as response:
            try:
                yield from response
            except http.client.HTTPException as error:
                raise ConnectionError(f"the answer broke off: {error}") from error

    def _open(self, method: str, path: str, data: bytes | None, content_type: str, *, timeout: float | None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type, "Accept": "application/json"}
        request = urllib.request.Request(self._server + path, data=data, headers=headers, method=method)
        try:
            return self._opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            try:
                words = error.read().decode(errors="replace")
            except http.client.HTTPException as broken:
                raise ConnectionError(f"the answer broke off: {broken}") from error
            raise ApiError(error.code, words) from None
        except http.client.HTTPException as error:
            raise ConnectionError(f"that was no answer: {error!r}") from error

    def apply(self, manifest: dict[str, Any]) -> Any:
        """Applies a manifest, cluster-wide or namespaced, server-side."""
        path = f"{resource_path(manifest)}/{manifest['metadata']['name']}?fieldManager=testenv&force=true"
        return self.request("PATCH", path, manifest, content_type=_SERVER_SIDE_APPLY)


def client_of(kubeconfig: Path) -> ApiClient:
    """Returns a client for the cluster of a kubeconfig that a control plane of ours wrote."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    return ApiClient(cluster["server"], Path(cluster["certificate-authority"]), config["users"][0]["user"]["token"])


def resource_path(manifest: dict[str, Any]) -> str:
    """Returns the collection's path, such as `/apis/apps/v1/namespaces/default/deployments`."""
    version, kind = str(manifest["apiVersion"]), str(manifest["kind"])
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = manifest["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{plural(kind)}"


def plural(kind: str) -> str:
    """Returns the resource name of a kind."""
    name = kind.lower()
    if name.endswith("y"):
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith(("s", "class")) else f"{name}s"
