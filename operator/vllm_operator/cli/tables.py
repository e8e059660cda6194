"""Text for a terminal: wrapped paragraphs and tables with aligned columns."""

import textwrap
from collections.abc import Sequence

WIDTH = 110
"""Characters of a line that is wrapped. Tables are as wide as they are."""


def wrap(text: str, indent: str, *, first: str | None = None) -> list[str]:
    """Break a text into lines. `first` is what the first line begins with instead of the indent."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent + ("  " if first is None else ""),
        break_on_hyphens=False,
        break_long_words=False,
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out a table; an empty cell is a dash, the last column may be as long as it likes."""
    shown = [tuple(header), *(tuple(cell or "-" for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
