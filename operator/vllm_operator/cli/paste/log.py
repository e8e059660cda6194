"""Pasted text as the logs that containers wrote, fed to parsers.

The parser reads what a kubelet's log endpoint delivers. This module undoes what happens to a log on its way to a file or a terminal. The
logs of several containers in one text (`kubectl logs --prefix`) are separated, because each is the log of its own start.
"""

import codecs
import re
from collections.abc import Callable

from vllm_operator.cli.paste.documents import unfolded
from vllm_operator.cli.paste.layout import Margins, rejoined
from vllm_operator.cli.paste.markup import with_logged_characters, without_markup
from vllm_operator.cli.paste.wrappings import unwrapped
from vllm_operator.startup.lines.chunks import LineBuffer, cut
from vllm_operator.startup.parser import StartupParser
from vllm_operator.startup.state import Stage, StartupState

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CUT_MARKS = (b"", *(mark[:1] for mark in _UTF16_MARKS))
"""Texts that the next chunk may complete to such a mark."""
_PREFIX = re.compile(rb"(?m)^\[(pod/[^\]\s]{1,330})\]")
_CONTAINERS_LIMIT = 64
"""Containers whose logs are separated. The lines of further containers are added to the container of the line before."""
_LINE_LIMIT = 1 << 20
"""Bytes of an incomplete line that are kept before they are given to a parser."""


class PastedLog:
    """Feeds a parser with the lines of a pasted log. It never raises, and its memory is bounded.

    The first chunk decides whether the text is a document or a table, so it should contain all of it.
    """

    def __init__(self, parser: StartupParser) -> None:
        """Create it for a new text."""
        self.parser = parser
        self._buffer = LineBuffer()
        self._margins = Margins()
        self._begun = False
        self._head = b""
        self._wide: codecs.IncrementalDecoder | None = None

    def feed(self, data: bytes | str) -> None:
        """Add the next part of the text, of any size."""
        if isinstance(data, str):
            data = data.encode("utf-8", "replace")
        if not self._begun:
            data = self._head + data
            if data in _CUT_MARKS:
                self._head = data
                return
            if data[:2] in _UTF16_MARKS:
                # PowerShell redirects output in this encoding.
                self._wide = codecs.getincrementaldecoder("utf-16")("replace")
        if self._wide is not None:
            data = self._wide.decode(data).encode("utf-8", "replace")
        if not self._begun:
            self._begun, self._head, data = True, b"", unfolded(data)
        lines = [line for block in self._buffer.feed(data) for line in _lines(block)]
        if lines:
            self.parser.feed("".join(f"{unwrapped(line)}\n" for line in self._margins.without(rejoined(lines))))

    def end(self) -> None:
        """End the text. A last line without a line end counts too."""
        tail, self._head = self._buffer.take() or self._head, b""
        if tail:
            self.parser.feed("\n".join(map(unwrapped, self._margins.without(_lines(tail)))))
        self.parser.end()


class PastedLogs:
    """Feeds one parser for each container of a pasted text. A text without the prefixes of `kubectl logs --prefix` is one log."""

    def __init__(self, make: Callable[[], StartupParser]) -> None:
        """Create it for a new text. `make` creates a parser."""
        self._make = make
        self._logs: dict[str, PastedLog] = {}
        self._latest = ""
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Add the next part of the text."""
        if not self._logs:
            first = _PREFIX.search(data)
            self._latest = _name(first) if first is not None else ""
            self._logs[self._latest] = PastedLog(self._make())
        if "" in self._logs:
            self._logs[""].feed(data)
            return
        complete, end, self._tail = (self._tail + data).rpartition(b"\n")
        self._distribute(complete + end)
        if len(self._tail) > _LINE_LIMIT:
            self._logs[self._latest].feed(self._tail)
            self._tail = b""

    def end(self) -> list[tuple[str, StartupParser]]:
        """End the text. Return the name of each container and the parser of its log, the most severe first."""
        self._distribute(self._tail)
        for log in self._logs.values():
            log.end()
        parsers = [(name, log.parser) for name, log in self._logs.items()]
        return sorted(parsers, key=lambda each: _severity(each[1].final_state))

    def _distribute(self, lines: bytes) -> None:
        parts: dict[str, list[bytes]] = {}
        for line in lines.splitlines(keepends=True):
            found = _PREFIX.match(line)
            name = _name(found) if found is not None else self._latest
            if name not in self._logs and len(self._logs) < _CONTAINERS_LIMIT:
                self._logs[name] = PastedLog(self._make())
            self._latest = name if name in self._logs else self._latest
            parts.setdefault(self._latest, []).append(line)
        for name, part in parts.items():
            self._logs[name].feed(b"".join(part))


def _lines(block: bytes) -> list[str]:
    return cut(with_logged_characters(without_markup(block)))


def _name(found: re.Match[bytes]) -> str:
    return found[1].decode("utf-8", "replace")


def _severity(state: StartupState) -> int:
    """Sorts the most severe first."""
    if state.crash is not None and (state.has_start or state.crash.signature != "Unknown"):
        return 0
    if state.cut_off_at is not None:
        return 1
    if state.has_start:
        return 3 if state.stage is Stage.READY else 2
    # An error without a start is that of a program beside the engine, such as a proxy or a collector of metrics.
    return 4 if state.crash is not None else 5
