"""A bounded number of places that are handed on in the order of asking."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """So many at a time; whoever holds a place can see that others wait, and give it up for a turn."""

    def __init__(self, number: int) -> None:
        self._semaphore = asyncio.Semaphore(number)
        self.waiting = 0
        self.taken = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place and hold it."""
        self.waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.waiting -= 1
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._semaphore.release()
