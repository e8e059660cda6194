"""Lines that a terminal has cut at its width.

Whoever copies a log out of tmux, a serial console or a narrow window gets every long line in pieces, all but the last of
the same length. Where the longest lines of a text are all of one length, are many, and begin as records or frames whose next
line does not, the pieces are put together again.
"""

import re
from collections.abc import Sequence

NARROWEST, WIDEST = 60, 250
"""Characters that terminals are wide. A log that was not cut has longer lines."""
_FEWEST_LINES = 8
_FEWEST_CUT = 3
_SHARE = 8
"""At least one in so many lines is as long as the longest."""
_HEAD = re.compile(r"(?:\([\w.:-]{1,60} [^()\n]{0,60}\) ?)?(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d | {2}File \")")
_BEGINNING = re.compile(r"\([\w.:-]{1,60} [^()\n]{0,60}\) |(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[ :]|Traceback | {2}File \"")


def rejoined(lines: list[str]) -> list[str]:
    """The lines as they were before they were cut. Their number stays: an empty line takes the place of each further piece."""
    if len(lines) < _FEWEST_LINES:
        return lines
    width = max(map(len, lines))
    return _joined(lines, width) if NARROWEST <= width <= WIDEST and _are_cut(lines, width) else lines


def _are_cut(lines: Sequence[str], width: int) -> bool:
    full = [position for position, line in enumerate(lines[:-1]) if len(line) == width]
    cut = [position for position in full if _HEAD.match(lines[position]) and not _BEGINNING.match(lines[position + 1])]
    return len(full) * _SHARE >= len(lines) and len(cut) >= _FEWEST_CUT


def _joined(lines: Sequence[str], width: int) -> list[str]:
    joined: list[str] = []
    is_open, owner = False, 0
    for position, line in enumerate(lines):
        if is_open and not _BEGINNING.match(line):
            joined[owner] += line
            joined.append("")
        else:
            owner = position
            joined.append(line)
        is_open = len(line) == width
    return joined
