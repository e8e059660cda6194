"""Read a log in a separate task, so that its follower can act while nothing arrives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager


class LogStream:
    """An open log.

    Attributes:
        is_open: Whether the response has begun. If the log is followed, this is when the first line comes.
        is_busy: Whether received bytes are being processed.
        moved_at: Time of the last event: the request was sent, the response began, or bytes arrived.
    """

    def __init__(
        self,
        opening: AbstractAsyncContextManager[AsyncIterator[bytes]],
        take: Callable[[bytes], Awaitable[None]],
        *,
        wake: asyncio.Event,
        clock: Callable[[], float],
    ) -> None:
        """Start to read.

        Args:
            opening: Sends the request.
            take: Called with received bytes. Reading continues when it returns.
            wake: Set when the response begins, and at the end.
            clock: Returns seconds.
        """
        self.is_open = self.is_busy = False
        self.moved_at = clock()
        self._opening, self._take, self._wake, self._clock = opening, take, wake, clock
        self._task = asyncio.create_task(self._read(), name="stream of a log")
        self._task.add_done_callback(lambda task: wake.set())

    def is_at_end(self) -> bool:
        """Return whether the log has been read completely. Raises the error that ended the stream: ClusterError or one of `take`."""
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
