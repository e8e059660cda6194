"""Text output: paragraphs, tables and screens, with colours and redrawn in place on a terminal, as plain text elsewhere.

A screen is lines, a line is spans with styles. `plain` is the text without styles. Only this module uses rich, and only on a terminal.
Without the package, terminals get plain text too. rich follows `NO_COLOR`.
"""

import re
import sys
import textwrap
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from vllm_operator.text.wording import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH, NARROW, NARROWEST = 110, 100, 60
"""Maximum width of paragraphs and screens, that of pages about logs, and the minimum, in characters. Tables may be wider."""
BAR_WIDTH = 24


class Style(StrEnum):
    """Styles of rich."""

    GREEN, YELLOW, RED, CYAN, BOLD, DIM = "green", "yellow", "red", "cyan", "bold", "dim"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text with a style of rich; empty for none."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


def line(*spans: Span | str) -> Line:
    """Return a line of spans. A string becomes a span without a style."""
    return tuple(span if isinstance(span, Span) else Span(span) for span in spans)


def plain(lines: Iterable[Line]) -> str:
    """Return the text without styles and trailing spaces."""
    return "\n".join("".join(span.text for span in each).rstrip() for each in lines)


def labelled(label: str, text: str, *, style: str = "", label_width: int, width: int) -> list[Line]:
    """Return a paragraph with a label on its left, wrapped to `width` characters."""
    room = max(20, width - label_width)
    rows = wrap(text, "", first="", width=room) or [""]
    return [line(Span(f"{label if number == 0 else '':<{label_width}}", Style.BOLD), Span(row, style)) for number, row in enumerate(rows)]


def bar(completed: float, total: float) -> tuple[Span, Span]:
    """Return a progress bar as two spans: the completed and the remaining part."""
    filled = round(BAR_WIDTH * min(1.0, max(0.0, completed / total))) if total > 0 else 0
    return Span("█" * filled, Style.CYAN), Span("░" * (BAR_WIDTH - filled), Style.DIM)


def grid(header: Sequence[str], rows: Sequence[Sequence[Span]]) -> list[Line]:
    """Return a table with aligned columns. An empty cell is shown as a dash."""
    shown = [
        tuple(Span(name, Style.BOLD) for name in header),
        *(tuple(cell if cell.text else Span("-", Style.DIM) for cell in row) for row in rows),
    ]
    widths = [max(len(row[column].text) for row in shown) for column in range(len(header))]
    return [tuple(Span(f"{cell.text:<{width}}  ", cell.style) for cell, width in zip(row, widths, strict=True)) for row in shown]


def age(since: datetime | None, now: datetime) -> str:
    """Return the time since `since` in one unit: 45 s, 12 min, 3 h, 2 d; empty if unknown."""
    if since is None:
        return ""
    seconds = max(0.0, (now - since).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return duration(seconds)


def wrap(text: str, indent: str, *, first: str | None = None, width: int = WIDTH) -> list[str]:
    """Wrap a text. The first line begins with `first` instead of the indent, if given; otherwise further lines are indented more."""
    first, further = (indent, f"{indent}  ") if first is None else (first, indent)
    text = re.sub("`[^`]+`", lambda found: found[0].replace(" ", "\0"), text)  # on one line, so that it can be copied
    rows = textwrap.fill(text, width, initial_indent=first, subsequent_indent=further, break_on_hyphens=False, break_long_words=False)
    return rows.replace("\0", " ").splitlines()


def section(title: str, entries: Iterable[str]) -> list[str]:
    """Return a title with a paragraph for each entry, after an empty line; nothing without entries."""
    lines = [line for entry in entries for line in wrap(entry, "  ")]
    return ["", f"{title}:", *lines] if lines else []


def paragraph(text: str) -> str:
    """Return a text of a page about a log or a crash, indented."""
    return "\n".join(wrap(" ".join(text.split()), "  ", first="  ", width=NARROW))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table without styles. An empty cell is shown as a dash."""
    return plain(grid(header, [[Span(cell) for cell in row] for row in rows])).split("\n")


def screen_width() -> int:
    """Return the width of a screen in characters."""
    console = _console()
    return max(NARROWEST, min(WIDTH, console.width)) if console is not None else WIDTH


def is_terminal() -> bool:
    """Return whether screens can be redrawn in place."""
    return _console() is not None


def show(lines: Iterable[Line]) -> None:
    """Print a screen once."""
    console = _console()
    if console is None:
        print(plain(lines))
    else:
        console.print(as_rich_text(lines), soft_wrap=True)


async def show_each(screens: AsyncGenerator[list[Line]]) -> None:
    """Show each screen in place of the previous one, or without a terminal, print each that differs. Then close the screens."""
    async with aclosing(screens):
        console = _console()
        if console is None:
            shown = ""
            async for lines in screens:
                if (text := plain(lines)) != shown:
                    print(text, end="\n\n", flush=True)
                    shown = text
            return
        from rich.live import Live  # only on a terminal

        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            async for lines in screens:
                live.update(as_rich_text(lines), refresh=True)


def _console() -> "Console | None":
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(highlight=False)
    return console if console.is_terminal else None


def as_rich_text(lines: Iterable[Line]) -> "Text":
    """Return the screen as a `rich.text.Text`."""
    from rich.text import Text

    return Text("\n", overflow="fold").join(Text.assemble(*((span.text, span.style) for span in each)) for each in lines)
