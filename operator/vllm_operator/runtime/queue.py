"""The queue of keys to reconcile, with the contract of client-go's workqueue.

A key is *dirty* from `add` until a worker takes it, and *processing* until the worker calls `done`. A key that is added while it is
processed becomes dirty, and is handed out again after `done`. So no change is lost, and no two workers ever have the same key.

A key is *urgent* or not. An urgent key overtakes others, but only at every second turn: the turns between belong to the key that has
waited longest. A key before which n keys were added is therefore handed out at most at turn 2n + 2, whatever is added later.

A key can be *patient*: what is urgent about it has been done. Until its patience ends, all urgent keys overtake it.
"""

import asyncio
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

JITTER = 0.2
"""Fraction by which delays vary, so that keys that failed together are not retried together."""
REST_LIMIT_SECONDS = 2.0
"""Maximum rest of a key, so that a slow API server does not delay a change for long."""


class QueueClosed(Exception):  # noqa: N818 - it is a signal, not an error
    """The queue is closed."""


class WorkQueue(Generic[Key]):
    """A deduplicating queue with delays and rate-limited retries, for use in one event loop."""

    def __init__(
        self,
        *,
        base_seconds: float = 0.25,
        limit_seconds: float = 15.0,
        rest_seconds: float = 0.0,
        clock: Callable[[], float] | None = None,
        jitter: Callable[[], float] = lambda: random.uniform(1 - JITTER, 1 + JITTER),
    ) -> None:
        """Create an empty queue.

        Args:
            base_seconds: Delay after a first failure. It doubles with each further failure.
            limit_seconds: Maximum delay after a failure.
            rest_seconds: Minimum pause between two times that a key is processed. If processing took longer, the pause is as long as that.
                Changes during the pause, often the operator's own writes, are handled together. Under load, keys are
                therefore processed less often instead of later and later.
            clock: Returns seconds; by default the event loop's clock.
            jitter: Returns the factor of a delay.
        """
        self._base = base_seconds
        self._limit = limit_seconds
        self._rest = rest_seconds
        self._rested: dict[Key, float] = {}
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._jitter = jitter
        self._ready: dict[Key, float] = {}
        self._urgent: dict[Key, None] = {}  # those of the ready keys
        self._overtaken = False
        self._relaxed: set[Key] = set()  # keys that wait, or are delayed, and are not urgent
        self._patient: dict[Key, float] = {}  # those of them that are patient, and until when
        self._handed_out_at = -math.inf
        self._dirty: dict[Key, float] = {}
        self._processing: dict[Key, float] = {}
        self._delayed: list[tuple[float, int, Key]] = []
        self._due: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._number = itertools.count()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._calm = asyncio.Event()
        self._calm.set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._closed = False

    def __len__(self) -> int:
        """Number of keys that wait for a worker, without delayed keys."""
        return len(self._dirty)

    def add(self, key: Key, *, urgent: bool = True) -> None:
        """Add a key, unless it waits already. A key that rests is added after its rest. One that is not urgent may become so."""
        self._note_urgency(key, urgent=urgent)
        if self._closed or key in self._dirty:
            return
        until = self._rested.get(key)
        if until is not None and until > self._clock():
            self._delay(key, until)
            return
        self._dirty[key] = self._clock()
        self._due.pop(key, None)
        if key not in self._processing:
            self._make_ready(key, self._dirty[key])

    def _note_urgency(self, key: Key, *, urgent: bool) -> None:
        """Remember whether a key is urgent. It is if one of those who added it said so."""
        if urgent:
            self._relaxed.discard(key)
            self._patient.pop(key, None)
            if key in self._ready:
                self._make_urgent(key)
        elif key not in self._dirty and key not in self._due:
            self._relaxed.add(key)

    def _make_ready(self, key: Key, since: float) -> None:
        self._ready[key] = since
        if key not in self._relaxed:
            self._make_urgent(key)
        self._wake_one()

    def _make_urgent(self, key: Key) -> None:
        self._urgent[key] = None
        self._calm.clear()

    def add_after(self, key: Key, seconds: float, *, urgent: bool = True) -> None:
        """Add a key later. Of several times for one key, the earliest counts."""
        if seconds <= 0:
            self.add(key, urgent=urgent)
            return
        self._note_urgency(key, urgent=urgent)
        self._delay(key, self._clock() + seconds)

    def add_patiently(self, key: Key, seconds: float, *, patience_seconds: float) -> None:
        """Add a key later that is not urgent. For so long after that, all urgent keys overtake it."""
        self.add_after(key, seconds, urgent=False)
        if key in self._relaxed:
            self._patient[key] = self._clock() + seconds + patience_seconds

    def has_urgent(self) -> bool:
        """Whether an urgent key waits for a worker."""
        return bool(self._urgent)

    async def until_calm(self) -> None:
        """Wait until no urgent key waits for a worker."""
        await self._calm.wait()

    def _delay(self, key: Key, due: float) -> None:
        if self._closed or key in self._dirty or self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._delayed, (due, next(self._number), key))
        self._arm()

    def add_rate_limited(self, key: Key, *, at_least: float = 0.0, at_most: float | None = None) -> float:
        """Add a key after a failure. Return the delay in seconds, which doubles with each consecutive failure."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # the exponent is bounded: a key may fail for days
        limit = self._limit if at_most is None else min(self._limit, at_most)
        seconds = max(at_least, min(limit, self._base * 2.0 ** min(failures, 32)) * self._jitter())
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: Key) -> None:
        """Reset the number of failures of a key, after a success."""
        self._failures.pop(key, None)

    def failures(self, key: Key) -> int:
        """Number of consecutive failures of a key."""
        return self._failures.get(key, 0)

    async def get(self) -> Key:
        """Wait for a key and take it. The caller must call `done` afterwards.

        Raises:
            QueueClosed: The queue is closed.
        """
        while True:
            self._promote()
            if self._closed:
                raise QueueClosed
            if self._ready:
                key = self._take()
                del self._ready[key], self._dirty[key]
                self._urgent.pop(key, None)
                if not self._urgent:
                    self._calm.set()
                self._relaxed.discard(key)
                self._patient.pop(key, None)
                self._processing[key] = self._handed_out_at = self._clock()
                return key
            await self._wait()

    def _take(self) -> Key:
        """The next ready key: the oldest urgent one, or at every second turn the oldest of all if it is not patient."""
        oldest = next(iter(self._ready))
        first = next(iter(self._urgent), oldest)
        if first != oldest and self._patient.get(oldest, -math.inf) > self._clock():
            return first
        self._overtaken = first != oldest and not self._overtaken
        return first if self._overtaken else oldest

    async def _wait(self) -> None:
        """Wait until there may be a key. Only one waiter is woken for each key."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._arm()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled():
                self._wake_one()  # this one was woken for a key that it does not take
            raise

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _arm(self) -> None:
        """Set the timer for the next delayed key, if a worker waits."""
        due = self._next_due()
        if not self._waiters or due is None or (self._timer is not None and self._timer_due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._clock()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._promote()
        self._arm()

    def done(self, key: Key) -> None:
        """End the processing of a key. It is handed out again if it was added meanwhile."""
        took = self._clock() - self._processing.pop(key)
        if self._rest:
            self._begin_rest(key, max(self._rest, min(took, REST_LIMIT_SECONDS)))
        if key in self._dirty and not self._rest:
            self._make_ready(key, self._clock())
        elif self._dirty.pop(key, None) is not None:
            self._delay(key, self._rested[key])

    def _begin_rest(self, key: Key, seconds: float) -> None:
        now = self._clock()
        self._rested.pop(key, None)
        self._rested[key] = now + seconds
        while self._rested and next(iter(self._rested.values())) <= now:  # roughly in order of time
            del self._rested[next(iter(self._rested))]

    def close(self) -> None:
        """Hand out no more keys."""
        self._closed = True
        while self._waiters:
            self._wake_one()

    def oldest_seconds(self) -> float:
        """Seconds since the oldest key was added that waits or is processed."""
        times = (*self._dirty.values(), *self._processing.values())
        return max(0.0, self._clock() - min(times)) if times else 0.0

    def longest_processing_seconds(self) -> float:
        """Duration of the longest reconciliation in progress."""
        return max(0.0, self._clock() - min(self._processing.values())) if self._processing else 0.0

    def stalled_seconds(self) -> float:
        """Seconds since when a key is due and no key has been handed out. Delayed keys do not count.

        A key may wait for long while workers process others. That is progress.
        """
        due = self._next_due()
        since = min(next(iter(self._ready.values()), math.inf), math.inf if due is None else due)
        return max(0.0, self._clock() - max(since, self._handed_out_at))

    def delayed(self) -> int:
        """Number of delayed keys."""
        return len(self._due)

    def _promote(self) -> None:
        now = self._clock()
        while self._delayed and self._delayed[0][0] <= now:
            due, _, key = heapq.heappop(self._delayed)
            if self._due.get(key) == due:  # otherwise it was added meanwhile, or an earlier time was set
                self._rested.pop(key, None)
                self.add(key, urgent=key not in self._relaxed)

    def _next_due(self) -> float | None:
        while self._delayed and self._due.get(self._delayed[0][2]) != self._delayed[0][0]:
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None
