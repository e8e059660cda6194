"""Waits for the engine in the same Pod."""

import http.client
import ssl
import time
from typing import Any

ENGINE_SECONDS = 7 * 86_400
"""Maximum time for an engine to become ready. Its startup probe ends earlier."""
ENGINE_PAUSE_SECONDS = 5


def wait_for_engine(probe: dict[str, Any], *, pause: float) -> None:
    """Wait until the engine in the same Pod responds with status 200. The kubelet ends an engine that takes too long."""
    while True:
        try:
            if is_ready(probe):
                return
        except (OSError, http.client.HTTPException):
            pass  # it does not listen yet
        time.sleep(pause)


def is_ready(probe: dict[str, Any]) -> bool:
    """Return whether the engine's readiness probe succeeds. Like the kubelet, this does not check certificates."""
    if probe["scheme"] == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection("127.0.0.1", probe["port"], timeout=10, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", probe["port"], timeout=10)
    try:
        connection.request("GET", probe["path"])
        return connection.getresponse().status == 200
    finally:
        connection.close()
