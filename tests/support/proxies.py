"""A TCP proxy that holds, slows down or cuts what goes through it, so that a test can be in the middle of a transfer."""

import contextlib
import socket
import threading
from types import TracebackType


class Proxy:
    """Forwards connections to an address.

    Args:
        target: `host:port`.
        hold_after: Bytes after which nothing more is forwarded in a direction, until `release`; None for all.
        cut_after: Bytes from the target after which a connection is closed; None for all.
        is_upstream: Whether `hold_after` counts the bytes to the target instead of those from it.
    """

    def __init__(self, target: str, *, hold_after: int | None = None, cut_after: int | None = None, is_upstream: bool = False) -> None:
        host, _, port = target.rpartition(":")
        self._target, self._hold, self._cut, self._is_upstream = (host, int(port)), hold_after, cut_after, is_upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._moved = 0
        self._lock = threading.Lock()
        self.holding = threading.Event()
        """Set when something is held."""
        self._released = threading.Event()

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.release()
        self._close(self._listener, *self._open)

    def release(self) -> None:
        """Forward everything from now on."""
        self._released.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._open += [client, server]
            for source, sink, counts in ((client, server, self._is_upstream), (server, client, not self._is_upstream)):
                threading.Thread(target=self._forward, args=(source, sink, counts), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        try:
            while data := source.recv(4096):
                if counts:
                    with self._lock:
                        self._moved += len(data)
                    if self._cut is not None and self._moved > self._cut:
                        break
                    if self._hold is not None and self._moved > self._hold:
                        self.holding.set()
                        self._released.wait()
                sink.sendall(data)
        except OSError:
            pass
        self._close(source, sink)

    @staticmethod
    def _close(*sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
