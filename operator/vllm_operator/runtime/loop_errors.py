"""What the event loop reports outside of any task."""

import asyncio
import logging
from typing import Any

log = logging.getLogger(__name__)


def handle_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that the event loop reports, as the loop does by default; an exception handler of an event loop."""
    if _is_of_cancelled_connect(context):
        log.debug("%s: %s", context["message"], context["exception"])
    else:
        loop.default_exception_handler(context)


def _is_of_cancelled_connect(context: dict[str, Any]) -> bool:
    """Whether the error is that of a connection that nobody waits for any more.

    A request may be cancelled between the TCP connection and the TLS handshake, by a time-out or because the operator stops.
    uvloop (0.23, `Loop.create_connection` with `sock`) then closes the transport without telling its `SSLProtocol`. If the handshake
    completes in the same iteration of the loop, the protocol writes to the closed transport and reports that. If the peer has closed
    the connection by then, it tells the future that nobody awaits any more. Nothing is lost.
    """
    error = context.get("exception")
    match context.get("message"):
        case "Fatal error on SSL protocol":
            return isinstance(error, RuntimeError) and str(error).endswith("the handler is closed")
        case "Future exception was never retrieved":
            return isinstance(error, ConnectionError) and _file_of(error).endswith("uvloop/sslproto.pyx")
    return False


def _file_of(error: BaseException) -> str:
    """The file in which an error was raised; empty where that is not known."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename if trace is not None else ""
