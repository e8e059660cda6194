"""How many logs are open at the same time, and how often each is read if more are wanted."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

READS_PER_SECOND = 150.0
"""Maximum number of logs that are read in a second while slots are scarce. Each read is a request to the API server and to a kubelet."""
LOAD_FACTOR = 30.0
"""The pause between two reads of a log is at least this many times as long as the last one took. A read takes 10 ms, and hundreds while the
API server is busy, which then gets fewer of them."""
LONGEST_SECONDS = 10.0
"""The longest such pause: a stage of a start must not be told much later."""


class Slots:
    """A semaphore that knows how many logs are wanted, so that a holder can release its slot for others."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._semaphore = asyncio.Semaphore(number)
        self._members: list[asyncio.Event] = []
        self.taken = 0

    @property
    def are_scarce(self) -> bool:
        """Whether more logs are wanted than there are slots."""
        return len(self._members) > self._number

    @property
    def waiting(self) -> int:
        """How many logs are wanted and not open."""
        return len(self._members) - self.taken

    @contextmanager
    def want(self, wake: asyncio.Event) -> Iterator[None]:
        """Want slots for a while. `wake` is set when they become scarce."""
        were_scarce = self.are_scarce
        self._members.append(wake)
        if self.are_scarce and not were_scarce:
            for member in self._members:
                member.set()
        try:
            yield
        finally:
            self._members.remove(wake)

    def pause_seconds(self, least: float, took: float) -> float:
        """How long to wait between two reads of a log while slots are scarce. `took` are the seconds of the last one."""
        return max(least, len(self._members) / READS_PER_SECOND, min(took * LOAD_FACTOR, LONGEST_SECONDS))

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        await self._semaphore.acquire()
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._semaphore.release()


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, at most for some seconds (without limit if infinite), and clear it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if seconds == math.inf else seconds):
            await event.wait()
    event.clear()
