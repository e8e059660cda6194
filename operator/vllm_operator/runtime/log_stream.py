"""Read a log in a task of its own, so that its follower can do something else while nothing arrives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager


class LogStream:
    """A log that is being read.

    Attributes:
        is_open: Whether the response has begun. If the log is followed, this is when the first line comes.
        is_busy: Whether something that has arrived is being taken.
        moved_at: When the request was sent, the response began, or something arrived last.
    """

    def __init__(
        self,
        opening: AbstractAsyncContextManager[AsyncIterator[bytes]],
        take: Callable[[bytes], Awaitable[None]],
        *,
        wake: asyncio.Event,
        clock: Callable[[], float],
    ) -> None:
        """Begin to read.

        Args:
            opening: Sends the request.
            take: Called with the bytes that arrive. The next ones are read when it returns.
            wake: Set when the response begins, and at the end.
            clock: In seconds.
        """
        self.is_open = self.is_busy = False
        self.moved_at = clock()
        self._opening, self._take, self._wake, self._clock = opening, take, wake, clock
        self._task = asyncio.create_task(self._read(), name="stream of a log")
        self._task.add_done_callback(lambda task: wake.set())

    def is_at_end(self) -> bool:
        """Whether everything has been read. Raises what ended it before, such as a ClusterError or an error of `take`."""
        if not self._task.done():
            return False
        self._task.result()
        return True

    async def close(self) -> None:
        """Stop reading, and close the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        async with self._opening as pieces:
            self.is_open, self.moved_at = True, self._clock()
            self._wake.set()
            async for piece in pieces:
                self.is_busy = True
                await self._take(piece)
                self.is_busy, self.moved_at = False, self._clock()
