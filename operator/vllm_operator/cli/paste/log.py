"""A log that somebody pasted, fed to a parser as the container wrote it.

The parser itself reads what a kubelet's log endpoint delivers. What happens to a log on its way from there to a file or a
terminal is undone here.
"""

import codecs

from vllm_operator.cli.paste.documents import unfolded
from vllm_operator.cli.paste.margins import Margins
from vllm_operator.cli.paste.markup import without_markup
from vllm_operator.cli.paste.spelling import spelled
from vllm_operator.cli.paste.wraps import rejoined
from vllm_operator.startup.lines.chunks import LineBuffer, cut
from vllm_operator.startup.parser import StartupParser

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CUT_MARKS = (b"", *(mark[:1] for mark in _UTF16_MARKS))
"""What the next chunk may complete to such a mark."""


class PastedLog:
    """Feeds a parser with the lines of a pasted log. Never raises on any input; its memory is bounded.

    The first chunk tells whether the text is a document or a table, so it should hold all of one.
    """

    def __init__(self, parser: StartupParser) -> None:
        """Begin with an empty text."""
        self.parser = parser
        self._buffer = LineBuffer()
        self._margins = Margins()
        self._begun = False
        self._head = b""
        self._wide: codecs.IncrementalDecoder | None = None

    def feed(self, data: bytes | str) -> None:
        """Take the next part of the text, of any size."""
        if isinstance(data, str):
            data = data.encode("utf-8", "replace")
        if not self._begun:
            data = self._head + data
            if data in _CUT_MARKS:
                self._head = data
                return
            if data[:2] in _UTF16_MARKS:
                # PowerShell writes what it redirects like this.
                self._wide = codecs.getincrementaldecoder("utf-16")("replace")
        if self._wide is not None:
            data = self._wide.decode(data).encode("utf-8", "replace")
        if not self._begun:
            self._begun, self._head, data = True, b"", unfolded(data)
        lines = [line for block in self._buffer.feed(data) for line in _lines(block)]
        if lines:
            self.parser.feed("".join(f"{line}\n" for line in self._margins.without(rejoined(lines))))

    def end(self) -> None:
        """The text ends here: a last line without an end counts too."""
        tail, self._head = self._buffer.take() or self._head, b""
        if tail:
            self.parser.feed("\n".join(self._margins.without(_lines(tail))))
        self.parser.end()


def _lines(block: bytes) -> list[str]:
    return cut(spelled(without_markup(block)))
