"""Shows screens: with colours and in place on a terminal, as plain text elsewhere.

Only this module uses rich, and only on a terminal. Without the package, terminals get plain text too. rich follows `NO_COLOR`.
"""

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING

from vllm_operator.cli.screen import Line, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH, NARROWEST = 110, 60
"""Maximum and minimum width of a screen, in characters."""


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
