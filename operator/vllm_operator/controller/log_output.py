"""The operator's own log: format, level, and messages of libraries and the event loop."""

import asyncio
import json
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

log = logging.getLogger(__name__)

LIBRARIES = ("kopf", "aiohttp.access", "asyncio", "kubernetes")
"""Loggers of libraries that write only warnings and errors."""
_key: ContextVar[str] = ContextVar("key", default="")


@contextmanager
def about(key: str) -> Iterator[None]:
    """Add the key of an object, `namespace/name`, to all lines that are logged in this context."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


class TextFormatter(logging.Formatter):
    """Formats records as `2026-01-01T00:00:00.000Z INFO    default/llama  message`, with the traceback on further lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        key = _key.get()
        line = _escape(f"{_time(record)} {record.levelname:<7} {key + '  ' if key else ''}{record.getMessage()}")
        exception = self.formatException(record.exc_info).split("\n") if record.exc_info else ()
        return "\n".join((line, *map(_escape, exception)))


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON: time, level, logger, message, and optionally key and exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        line = {"time": _time(record), "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if key := _key.get():
            line["key"] = key
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _escape(json.dumps(line, ensure_ascii=False))


def _escape(line: str) -> str:
    """Escape control characters, line ends and bidirectional overrides, so that external text cannot forge a line of the log."""
    return line if line.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def configure(*, as_json: bool, level: str) -> None:
    """Send all logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def describe_end(task: asyncio.Task[Any]) -> str:
    """Describe how a task ended, as the predicate of a sentence."""
    if task.cancelled():
        return "was cancelled"
    error = task.exception()
    return f"failed: {str(error) or type(error).__name__}" if error is not None else "ended"


def handle_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error outside of any task. This is an exception handler for an event loop.

    A request may be cancelled between the TCP connection and the TLS handshake, by a timeout or because the operator stops. uvloop (0.23,
    `Loop.create_connection` with `sock`) then closes the transport without telling its `SSLProtocol`. If the handshake completes in the
    same iteration of the loop, the protocol writes to the closed transport and reports an error. If the peer has closed the connection by
    then, it sets the error in a future that nobody awaits. Nothing is lost, so these errors are logged at the level of debug.
    """
    error, message = context.get("exception"), context.get("message")
    is_of_future = message == "Future exception was never retrieved" and isinstance(error, ConnectionError)
    frames = traceback.extract_tb(error.__traceback__) if is_of_future and error is not None else []
    is_closed = isinstance(error, RuntimeError) and str(error).endswith("the handler is closed")
    if (message == "Fatal error on SSL protocol" and is_closed) or (frames and frames[-1].filename.endswith("uvloop/sslproto.pyx")):
        log.debug("%s: %s", context["message"], error)
    else:
        loop.default_exception_handler(context)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
