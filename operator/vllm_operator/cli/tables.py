"""Text for a terminal: wrapped paragraphs and tables with aligned columns."""

import textwrap
from collections.abc import Sequence

WIDTH = 110
"""Maximum characters of a wrapped line. Tables may be wider."""


def wrap(text: str, indent: str, *, first: str | None = None) -> list[str]:
    """Wrap a text. The first line begins with `first` instead of the indent, if given; else the other lines are indented further."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent + ("  " if first is None else ""),
        break_on_hyphens=False,
        break_long_words=False,
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table. An empty cell is shown as a dash."""
    shown = [tuple(header), *(tuple(cell or "-" for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
