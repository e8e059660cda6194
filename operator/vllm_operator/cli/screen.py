"""Styled text for a terminal, as values: a screen is lines, a line is spans.

Pages that are drawn again and again are made of these. `plain` is the text without styles; `vllm_operator.cli.terminal` shows it.
"""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from vllm_operator.text.wording import duration

BAR_WIDTH = 24
GREEN, YELLOW, RED, CYAN, BOLD, DIM = "green", "yellow", "red", "cyan", "bold", "dim"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text with a style as rich names it; empty for none."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


def line(*spans: Span | str) -> Line:
    """A line of spans; a text has no style."""
    return tuple(span if isinstance(span, Span) else Span(span) for span in spans)


def plain(lines: Iterable[Line]) -> str:
    """The text without styles and without spaces at the ends of lines."""
    return "\n".join("".join(span.text for span in each).rstrip() for each in lines)


def labelled(label: str, text: str, *, style: str = "", label_width: int, width: int) -> list[Line]:
    """A paragraph beside its label, wrapped to `width` characters."""
    room = max(20, width - label_width)
    rows = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]
    return [line(Span(f"{label if number == 0 else '':<{label_width}}", BOLD), Span(row, style)) for number, row in enumerate(rows)]


def bar(completed: float, total: float) -> tuple[Span, Span]:
    """A progress bar as two spans: what is done and what is left."""
    filled = round(BAR_WIDTH * min(1.0, max(0.0, completed / total))) if total > 0 else 0
    return Span("█" * filled, CYAN), Span("░" * (BAR_WIDTH - filled), DIM)


def grid(header: Sequence[str], rows: Sequence[Sequence[Span]]) -> list[Line]:
    """A table with aligned columns. An empty cell is shown as a dash."""
    shown = [tuple(Span(name, BOLD) for name in header), *(tuple(cell if cell.text else Span("-", DIM) for cell in row) for row in rows)]
    widths = [max(len(row[column].text) for row in shown) for column in range(len(header))]
    return [tuple(Span(f"{cell.text:<{width}}  ", cell.style) for cell, width in zip(row, widths, strict=True)) for row in shown]


def age(since: datetime | None, now: datetime) -> str:
    """The time since then, with one unit from a minute on: 45 s, 12 min, 3 h, 2 d; empty if unknown."""
    if since is None:
        return ""
    seconds = max(0.0, (now - since).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return duration(seconds)
