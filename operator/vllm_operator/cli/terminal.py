"""Text for a terminal: paragraphs, tables and screens, with colours and in place on a terminal, as plain text elsewhere.

A screen is lines, a line is spans with styles. `plain` is the text without styles. Only this module uses rich, and only on a terminal.
Without the package, terminals get plain text too. rich follows `NO_COLOR`.
"""

import sys
import textwrap
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from vllm_operator.text.wording import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH, NARROWEST = 110, 60
"""Maximum and minimum width of paragraphs and screens, in characters. Tables may be wider."""
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
    """Format a table without styles. An empty cell is shown as a dash."""
    return plain(grid(header, [[Span(cell) for cell in row] for row in rows])).split("\n")


def screen_width() -> int:
    """The width for which a screen is made."""
    console = _console()
    return max(NARROWEST, min(WIDTH, console.width)) if console is not None else WIDTH


def is_terminal() -> bool:
    """Whether screens can be redrawn in place."""
    return _console() is not None


def show(lines: Iterable[Line]) -> None:
    """Print a screen once."""
    console = _console()
    if console is None:
        print(plain(lines))
    else:
        console.print(as_rich_text(lines), soft_wrap=True)


async def show_each(screens: AsyncGenerator[list[Line]]) -> None:
    """Show each screen in place of the one before; elsewhere than on a terminal, print each that differs. Then close the screens.

    Raises:
        BrokenPipeError: The reader of a pipe has ended.
    """
    async with aclosing(screens):
        await _show_each(screens)


async def _show_each(screens: AsyncIterator[list[Line]]) -> None:
    console = _console()
    if console is None:
        shown = ""
        async for lines in screens:
            text = plain(lines)
            if text != shown:
                print(text, end="\n\n", flush=True)
                shown = text
        return
    from rich.live import Live  # only on a terminal

    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        async for lines in screens:
            live.update(as_rich_text(lines), refresh=True)


def _console() -> "Console | None":
    """The console of a terminal; None if standard output is none, or if rich is not installed."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(highlight=False)
    return console if console.is_terminal else None


def as_rich_text(lines: Iterable[Line]) -> "Text":
    """The screen as a text of rich."""
    from rich.text import Text

    return Text("\n", overflow="fold").join(Text.assemble(*((span.text, span.style) for span in each)) for each in lines)
