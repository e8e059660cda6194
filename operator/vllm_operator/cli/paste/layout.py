"""Undoes how a text was laid out: lines that a terminal cut at its width, and what stands before every line.

A log that was copied from tmux, a serial console or a narrow window has its long lines in pieces, all but the last of the same length. If
the longest lines of a text have the same length, are many, and begin as records or frames while the lines after them do not, the pieces
are joined.

The first lines of a text are compared to find quotation marks, frames, line numbers and indentation before every line. The parser itself
learns the prefixes of programs (`startup.lines.prefixes`).
"""

import re
from collections.abc import Sequence
from itertools import takewhile

from vllm_operator.cli.paste.wrappings import is_prefix
from vllm_operator.startup.lines.prefixes import BEGINNING, Prefixes, generalised

NARROWEST, WIDEST = 60, 250
"""Widths of terminals in characters. A log that was not cut has longer lines."""
_FEWEST_LINES = 8
_FEWEST_CUT = 3
_SHARE = 8
"""At least one in this number of lines is as long as the longest."""
_RECORD = re.compile(r"(?:\([\w.:-]{1,60} [^()\n]{0,60}\) ?)?(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d | {2}File \")")
_NEW_LINE = re.compile(r"\([\w.:-]{1,60} [^()\n]{0,60}\) |(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[ :]|Traceback | {2}File \"")


def rejoined(lines: list[str]) -> list[str]:
    """Join lines that were cut. Their number does not change: an empty line replaces each further piece."""
    if len(lines) < _FEWEST_LINES:
        return lines
    width = max(map(len, lines))
    return _joined(lines, width) if NARROWEST <= width <= WIDEST and _are_cut(lines, width) else lines


def _are_cut(lines: Sequence[str], width: int) -> bool:
    full = [position for position, line in enumerate(lines[:-1]) if len(line) == width]
    cut = [position for position in full if _RECORD.match(lines[position]) and not _NEW_LINE.match(lines[position + 1])]
    return len(full) * _SHARE >= len(lines) and len(cut) >= _FEWEST_CUT


def _joined(lines: Sequence[str], width: int) -> list[str]:
    joined: list[str] = []
    is_open, owner = False, 0
    for position, line in enumerate(lines):
        if is_open and not _NEW_LINE.match(line):
            joined[owner] += line
            joined.append("")
        else:
            owner = position
            joined.append(line)
        is_open = len(line) == width
    return joined


_VARYING_HEAD = re.compile(r" *\d|(?i:debug|info|notice|warning|warn|error|critical|fatal|stdout|stderr)\b")
_MARGIN = re.compile(r"(?:[ \t]*[|│┃>#+*•·/-]{1,3})*[ \t]*")
"""Indentation, quotation marks or a frame before every line."""
_MARGIN_LINES = 3
_FIRST = 400
"""Number of lines that are compared."""
_HEAD_LINES, _HEAD_LIMIT = 5, 80
_ENDS = " :|>],"
_TELLING = re.compile(r"%|Error|Exception|pid=|File \"|[{\"']")
"""Parts of the text of a line."""


class Margins:
    """Removes margins and the prefixes of programs from the lines of one text. Its memory is bounded."""

    def __init__(self) -> None:
        """Create it for a new text."""
        self._prefixes = Prefixes(is_prefix)

    def without(self, lines: list[str]) -> list[str]:
        """Return the lines without margins and prefixes."""
        if not self._prefixes.is_watching:
            return lines
        if self._prefixes.is_unused:
            filled = [line for line in lines[:_FIRST] if line.strip()]
            if margin := _margin_of(filled) or _margin_of(filled[1:]):
                self._prefixes.expect(margin, re.compile(re.escape(margin)))
            elif head := _head_of(filled):
                shape = "".join(generalised(head))
                self._prefixes.expect(shape, re.compile(shape))
        return self._prefixes.without(lines)


def _margin_of(filled: list[str]) -> str:
    """Return what is before every line and not part of the log; empty if there is nothing."""
    if len(filled) < _MARGIN_LINES or _MARGIN.fullmatch(filled[0][0]) is None:
        return ""
    shared = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(min(filled), max(filled), strict=False)))
    found = _MARGIN.match(shared)
    margin = found[0] if found is not None else ""
    if margin.isspace():
        # Python indents frames and source lines itself, and line numbers are indented too.
        rests = [line[len(margin) :] for line in filled]
        is_python = any(rest.startswith('File "') for rest in rests)
        return "" if is_python or all(rest.lstrip()[0].isdigit() for rest in rests) else margin
    is_table = margin.startswith("|") and sum(line.rstrip().endswith("|") for line in filled) > len(filled) // 2
    return "" if is_table or margin.endswith(("-", "*", "/")) else margin


def _head_of(filled: list[str]) -> str:
    """Return the longest prefix with a number (such as a line number) that every line has; empty if there is none."""
    if len(filled) < _HEAD_LINES:
        return ""
    first = filled[0]
    if not (_VARYING_HEAD.match(first) or all(line.startswith(first[0]) for line in filled)):
        return ""  # as in most logs
    begun = BEGINNING.search(first, 0, 400)
    limit = min(len(first), _HEAD_LIMIT, begun.start() if begun is not None else _HEAD_LIMIT)
    heads = [first[:end] for end in range(limit, 0, -1) if first[end - 1] in _ENDS and first[end : end + 1] not in ('"', "'")]
    if any(map(is_prefix, heads)):
        return ""
    for head in heads:
        if not any(map(str.isdigit, head)) or _TELLING.search(head):
            continue
        shape = re.compile("".join(generalised(head)))
        if all(shape.match(line) for line in filled):
            return head
    return ""
