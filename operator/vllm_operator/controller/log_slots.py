"""Limit the number of open logs, and choose the next log to open."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """A semaphore whose next holder is in the namespace with the fewest slots."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._held: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._leaving = 0

    @property
    def taken(self) -> int:
        """Number of slots in use."""
        return self._held.total()

    @property
    def waiting(self) -> int:
        """Number of logs that wait for a slot."""
        return len(self._waiting)

    def should_leave(self) -> bool:
        """Return whether the caller should release its slot now for a waiting log. At most one holder per waiting log gets True."""
        if self._leaving >= len(self._waiting):
            return False
        self._leaving += 1
        return True

    @asynccontextmanager
    async def hold(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it, for the log of a Pod in this namespace."""
        await self._acquire(namespace)
        try:
            yield
        finally:
            self._release(namespace)

    async def _acquire(self, namespace: str) -> None:
        if self.taken < self._number:
            self._held[namespace] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = namespace
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(turn, None) is None:
                self._release(namespace)  # the slot was already assigned
            raise

    def _release(self, namespace: str) -> None:
        self._held[namespace] -= 1
        self._leaving = max(0, self._leaving - 1)
        turn = min(self._waiting, key=lambda each: self._held[self._waiting[each]], default=None)
        if turn is not None:
            self._held[self._waiting.pop(turn)] += 1
            turn.set_result(None)
        self._held += Counter()  # removes namespaces without slots
