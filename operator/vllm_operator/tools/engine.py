"""Waits for the engine in the same Pod."""

import http.client
import ssl
import time
from typing import Any

ENGINE_SECONDS = 7 * 86_400
"""How long an engine may take to be ready. Its startup probe ends before."""
ENGINE_PAUSE_SECONDS = 5


def wait_for_engine(probe: dict[str, Any], *, pause: float) -> None:
    """Wait until the engine in the same Pod answers with the status 200. The kubelet ends an engine that takes too long."""
    while True:
        try:
            if is_ready(probe):
                return
        except (OSError, http.client.HTTPException):
            pass  # it does not listen yet
        time.sleep(pause)


def is_ready(probe: dict[str, Any]) -> bool:
    """Ask the engine as its readiness probe does, which does not check certificates either."""
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
