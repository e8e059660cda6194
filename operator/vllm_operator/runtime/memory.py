"""Return memory to the system that was used for a moment: for a list, or for a burst of events."""

import asyncio
import ctypes
import gc
from collections.abc import Callable

INTERVAL_SECONDS = 20.0
"""Interval of checks whether something was allocated that may be garbage now."""
ARENA_MAX = -8
"""`M_ARENA_MAX` in malloc.h of glibc."""


def tune() -> None:
    """Collect garbage less often, which caused a measurable part of the latency, and use one arena of malloc for all threads."""
    # what was loaded so far is never garbage
    gc.collect()
    gc.freeze()
    # what a reconciliation makes is freed by reference counts; a collection after every 700 objects finds nothing
    gc.set_threshold(20_000, 20, 20)
    if (mallopt := _glibc("mallopt")) is not None:
        mallopt(ARENA_MAX, 1)


async def return_unused(*, seconds: float = INTERVAL_SECONDS) -> None:
    """Collect the garbage that keeps itself alive, such as tasks that failed, and return free pages. Runs until cancelled.

    It takes some 10 ms, so it is done only if 20,000 objects more were created than freed since the last time.
    """
    trim, before = _glibc("malloc_trim"), -1
    while True:
        await asyncio.sleep(seconds)
        if gc.get_stats()[0]["collections"] == before:
            continue
        gc.collect()
        if trim is not None:
            trim(0)
        before = gc.get_stats()[0]["collections"]


def _glibc(name: str) -> Callable[..., int] | None:
    """A function of the C library; None if another library than glibc is used."""
    function: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return function
