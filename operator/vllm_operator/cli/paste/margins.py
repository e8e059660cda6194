"""What stands before every line of a text because of where it was pasted: quotation marks, frames, line numbers, indentation.

What programs put before the lines that they pass on is learned from the log (`startup.lines.prefixes`). Here the first lines
of a text are compared: what they share is no part of what they say.
"""

import re
from collections.abc import Callable
from itertools import takewhile

from vllm_operator.startup.lines.framing import is_wrapping
from vllm_operator.startup.lines.prefixes import BEGINNING, Prefixes, generalised

_VARYING_HEAD = re.compile(r" *\d|(?i:debug|info|notice|warning|warn|error|critical|fatal|stdout|stderr)\b")
_MARGIN = re.compile(r"(?:[ \t]*[|│┃>#+*•·/-]{1,3})*[ \t]*")
"""What stands before every line of a text that was moved to the right, quoted or put into a frame."""
_MARGIN_LINES = 3
_FIRST = 400
"""Lines of a text that are compared."""
_HEAD_LINES, _HEAD_LIMIT = 5, 80
_ENDS = " :|>],"
_TELLING = re.compile(r"%|Error|Exception|pid=|File \"|[{\"']")
"""What is a part of what a line says."""


class Margins:
    """Takes what stands before the lines of one text off, and the prefixes of programs with it. Its memory is bounded."""

    def __init__(self) -> None:
        """Begin with an empty text."""
        self._prefixes = Prefixes(is_wrapping)

    def without(self, lines: list[str]) -> list[str]:
        """The lines without what stands before them."""
        if not self._prefixes.is_watching:
            return lines
        if self._prefixes.is_unused:
            filled = [line for line in lines[:_FIRST] if line.strip()]
            if margin := _margin_of(filled) or _margin_of(filled[1:]):
                self._prefixes.expect(margin, re.compile(re.escape(margin)))
            elif head := _head_of(filled, is_wrapping):
                shape = "".join(generalised(head))
                self._prefixes.expect(shape, re.compile(shape))
        return self._prefixes.without(lines)


def _margin_of(filled: list[str]) -> str:
    """What stands before every line of a text, if it is no part of a log; empty if there is nothing."""
    if len(filled) < _MARGIN_LINES or _MARGIN.fullmatch(filled[0][0]) is None:
        return ""
    shared = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(min(filled), max(filled), strict=False)))
    found = _MARGIN.match(shared)
    margin = found[0] if found is not None else ""
    if margin.isspace():
        # Frames and source lines are moved to the right by Python itself, numbers of lines by whoever wrote them.
        rests = [line[len(margin) :] for line in filled]
        is_python = any(rest.startswith('File "') for rest in rests)
        return "" if is_python or all(rest.lstrip()[0].isdigit() for rest in rests) else margin
    is_table = margin.startswith("|") and sum(line.rstrip().endswith("|") for line in filled) > len(filled) // 2
    return "" if is_table or margin.endswith(("-", "*", "/")) else margin


def _head_of(filled: list[str], is_wrapping: Callable[[str], bool]) -> str:
    """The longest text with a number, such as that of the line, before what every line says; empty if there is none."""
    if len(filled) < _HEAD_LINES:
        return ""
    first = filled[0]
    if not (_VARYING_HEAD.match(first) or all(line.startswith(first[0]) for line in filled)):
        return ""  # as in most logs
    begun = BEGINNING.search(first, 0, 400)
    limit = min(len(first), _HEAD_LIMIT, begun.start() if begun is not None else _HEAD_LIMIT)
    heads = [first[:end] for end in range(limit, 0, -1) if first[end - 1] in _ENDS and first[end : end + 1] not in ('"', "'")]
    if any(map(is_wrapping, heads)):
        return ""
    for head in heads:
        if not any(map(str.isdigit, head)) or _TELLING.search(head):
            continue
        shape = re.compile("".join(generalised(head)))
        if all(shape.match(line) for line in filled):
            return head
    return ""
