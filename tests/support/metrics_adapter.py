"""A stand-in for an adapter that serves the metrics of Pods to autoscalers, behind the aggregation of the real API server."""

import json
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from support.cluster import Cluster, Manifest

GROUP, VERSION = "custom.metrics.k8s.io", "v1beta2"
_ROOT = f"/apis/{GROUP}/{VERSION}"
_API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
_NAME = f"{VERSION}.{GROUP}"


@dataclass
class Adapter:
    """The adapter. `values` is what each Pod shows, by the name of the metric and of the Pod."""

    values: dict[str, dict[str, int]] = field(default_factory=dict)


class _Handler(BaseHTTPRequestHandler):
    adapter: ClassVar[Adapter]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).rstrip("/")
        if path == _ROOT:
            resource = {"name": "pods/any", "singularName": "", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
            return self._send(
                200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}", "resources": [resource]}
            )
        parts = path.removeprefix(f"{_ROOT}/namespaces/").split("/")
        if path.startswith(f"{_ROOT}/namespaces/") and len(parts) == 4 and parts[1:3] == ["pods", "*"]:
            return self._send(200, self._values(parts[0], parts[3]))
        return self._send(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404})

    def _values(self, namespace: str, metric: str) -> Manifest:
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        items = [
            {
                "describedObject": {"kind": "Pod", "namespace": namespace, "name": pod, "apiVersion": "/v1"},
                "metric": {"name": metric},
                "timestamp": time,
                "value": str(value),
            }
            for pod, value in dict(self.adapter.values.get(metric, {})).items()
        ]
        return {"kind": "MetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": items}

    def _send(self, status: int, content: Manifest) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@asynccontextmanager
async def serve_metrics(cluster: Cluster) -> AsyncIterator[Adapter]:
    """Serve the API until the end of the block."""
    adapter = Adapter()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"adapter": adapter}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    plane = cluster.environment.control_plane
    context.load_cert_chain(plane.authority, plane.authority_key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    # a Service may not lead to a loopback address, but a name may
    service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    await cluster.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "adapter"}, "spec": service})
    reference = {"name": "adapter", "namespace": cluster.namespace, "port": port}
    spec = {"group": GROUP, "version": VERSION, "service": reference, "insecureSkipTLSVerify": True}
    spec |= {"groupPriorityMinimum": 100, "versionPriority": 100}
    manifest = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": _NAME}, "spec": spec}
    await cluster.request("POST", _API_SERVICES, body=manifest)
    try:
        yield adapter
    finally:
        await cluster.request("DELETE", f"{_API_SERVICES}/{_NAME}")
        server.shutdown()
        server.server_close()
