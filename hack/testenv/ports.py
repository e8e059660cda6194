"""Ports on this machine."""

import contextlib
import random
import socket

# Below the range from which systems take ports for outgoing connections: a port of ours that is free for a moment,
# because its server restarts, is not snatched by somebody's client.
_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens on at this moment."""
    found: list[int] = []
    for port in random.sample(_PORTS, k=len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError("There is no free port left between 20000 and 32000.")


def accepts_connections(port: int) -> bool:
    """Whether somebody listens on the port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
