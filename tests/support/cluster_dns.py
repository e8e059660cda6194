"""Names of Pods of headless Services, as CoreDNS resolves them, for the Pods of the real nodes."""

import ipaddress
import socketserver
import struct
import threading
from types import TracebackType
from typing import Self

from testenv.api import ApiClient, ApiError

DOMAIN = ("svc", "cluster", "local")
_HEADER = struct.Struct(">6H")
_ADDRESS, _INTERNET = 1, 1
_ANSWER, _NO_SUCH_NAME = 0x8580, 0x8583
_SECONDS = 1


class ClusterDns:
    """Listens while it is entered. For names of others it says that there is no such name."""

    def __init__(self, client: ApiClient, address: str, port: int = 53) -> None:
        self._client = client

        class Handler(socketserver.BaseRequestHandler):
            def handle(inner) -> None:  # noqa: N805 - self is the server
                query, socket = inner.request
                socket.sendto(self.answer(query), inner.client_address)

        self._server = socketserver.ThreadingUDPServer((address, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, query: bytes) -> bytes:
        """The answer to a query with one question (RFC 1035, section 4)."""
        number = _HEADER.unpack_from(query)[0]
        labels, end = [], _HEADER.size
        while length := query[end]:
            labels.append(query[end + 1 : end + 1 + length].decode("ascii", "replace").lower())
            end += 1 + length
        question = query[_HEADER.size : end + 5]
        found = self.addresses(labels)
        wanted = found if struct.unpack(">H", question[-4:-2])[0] == _ADDRESS else []
        records = [struct.pack(">HHHIH4s", 0xC00C, _ADDRESS, _INTERNET, _SECONDS, 4, ipaddress.IPv4Address(each).packed) for each in wanted]
        header = _HEADER.pack(number, _ANSWER if found else _NO_SUCH_NAME, 1, len(records), 0, 0)
        return header + question + b"".join(records)

    def addresses(self, labels: list[str]) -> list[str]:
        """The addresses of `HOSTNAME.SERVICE.NAMESPACE.svc.cluster.local`."""
        if len(labels) != 6 or tuple(labels[3:]) != DOMAIN:
            return []
        host, service, namespace = labels[:3]
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io/service-name%3D{service}"
        try:
            slices = self._client.request("GET", path)["items"]
        except (ApiError, OSError):
            return []
        endpoints = [each for it in slices for each in it.get("endpoints") or ()]
        return [address for each in endpoints if each.get("hostname") == host for address in each["addresses"]]
