"""Which clients of a server wait for an answer, and for how long, from the kernel's times of its TCP connections (man 7 sock_diag).

A client waits if the last bytes of its connection came from it. On an idle connection, the last ones are the answer of the server. If both
came within one tick of the kernel's clock, a client waits if the server closes idle connections (`closes`) that were used: by more segments
than a TLS handshake has (`handshake`), after which a connection looks the same. vLLM closes an idle connection only after its first answer.
"""

import socket
import struct

_SOCK_DIAG, _ANSWER, _DUMP = 4, 20, 0x301
_TCP, _ESTABLISHED, _INFO = 6, 1, 2
"""Numbers of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h."""
_HEAD, _MESSAGE = 16, 88  # bytes of the header of a message, and of that with an `inet_diag_msg`
_TIMES, _BYTES, _SEGMENTS = (44, 52), (128, 200), 152
"""Offsets in `tcp_info` (linux/tcp.h, since 4.19): since when bytes were sent and received last, how many were received and sent, and the
segments with bytes that were received."""
TLS_SEGMENTS = 16
"""A client sends 2 to 4 segments in a handshake, and a few more with certificates of its own."""


def read_waits(port: int, *, closes: bool, handshake: int = 0) -> list[float] | None:
    """Return for how many seconds each waiting client of the server on a port has waited; None if the kernel does not say so."""
    try:
        return [wait for family in (socket.AF_INET, socket.AF_INET6) for wait in _read(family, port, handshake if closes else None)]
    except (OSError, struct.error):
        return None


def _read(family: int, port: int, unused: int | None) -> list[float]:
    asked, found = struct.pack("=BBBxI", family, _TCP, 1 << (_INFO - 1), 1 << _ESTABLISHED) + struct.pack(">H46x", port), list[float]()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1)
        kernel.send(struct.pack("=IHHII", _HEAD + len(asked), _ANSWER, _DUMP, 1, 0) + asked)
        while True:
            answer = memoryview(kernel.recv(1024 * 1024))
            while len(answer) >= _HEAD:
                length, kind = struct.unpack_from("=IH", answer)
                if kind != _ANSWER or length < _HEAD:  # the end, or an error
                    return found
                found += _waits(answer[_MESSAGE:length], unused)
                answer = answer[(length + 3) & ~3 :]


def _waits(attributes: memoryview, unused: int | None) -> list[float]:
    """Return for how many seconds the client of a connection has waited; nothing if it does not wait."""
    while len(attributes) >= 4:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _INFO:
            sent, received = (struct.unpack_from("=I", attributes, 4 + offset)[0] for offset in _TIMES)
            bytes_received, bytes_sent = (struct.unpack_from("=Q", attributes, 4 + offset)[0] for offset in _BYTES)
            closes = unused is not None and struct.unpack_from("=I", attributes, 4 + _SEGMENTS)[0] > unused
            return [received / 1000] if bytes_received and (received < sent + closes or not bytes_sent) else []
        attributes = attributes[max((length + 3) & ~3, 4) :]
    return []
