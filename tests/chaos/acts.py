"""What an act is: something that happens to the cluster, drawn by chance."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from random import Random

Act = Callable[[Random], Awaitable[str]]
"""Does something that it draws from the given source, and returns in words what it was."""
Acts = Mapping[Act, int]
"""Acts, each with its weight."""


def draw(acts: Acts, random: Random) -> Act:
    """Chooses one act by weight."""
    return random.choices(list(acts), weights=list(acts.values()))[0]


class Background:
    """Acts that take time and go on beside what happens next."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Waits until all are over."""
        while self._tasks:
            await asyncio.gather(*self._tasks)
