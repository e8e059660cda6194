"""How the operator's own log lines look: text for people or JSON for machines, each with the object it is about."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

_about: ContextVar[str] = ContextVar("about", default="")

QUIET = {
    "kopf": logging.WARNING,
    "kopf._core.reactor.running": logging.ERROR,  # it warns that signals are not its business, which is how it should be
    "aiohttp.access": logging.WARNING,
    "asyncio": logging.WARNING,
    "kubernetes": logging.WARNING,
}
"""Libraries whose everyday chatter is of no use to an operator of the operator."""


@contextmanager
def about(key: str) -> Iterator[None]:
    """Everything that is logged inside is about this object, `namespace/name`."""
    token = _about.set(key)
    try:
        yield
    finally:
        _about.reset(token)


class TextFormatter(logging.Formatter):
    """`2026-01-01T00:00:00.000Z INFO  default/llama  message`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback below where there is one."""
        about = _about.get()
        line = f"{_time(record)} {record.levelname:<7} {about + '  ' if about else ''}{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, key, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {"time": _time(record), "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if about := _about.get():
            line["key"] = about
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(*, as_json: bool, level: str) -> None:
    """Send all logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(least, root.level))


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
