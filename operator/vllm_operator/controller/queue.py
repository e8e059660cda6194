"""The queue of keys to reconcile, with the contract of client-go's workqueue and three priorities.

A key is *dirty* from `add` until a worker takes it, and *processing* until the worker calls `done`. A key that is added while it is
processed becomes dirty, and is handed out again after `done`. So no change is lost, and no key is processed twice at the same time.

Keys of changes are handed out before keys of events, these before keys of resyncs, and within each priority in the order in which they were
added. So when many objects change at once, all of them are applied before the events that follow are handled. A key that was just processed
rests briefly (the debounce), so that consecutive changes are handled together.
"""

import asyncio
import heapq
import itertools
import math
import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

JITTER = 0.2
"""Fraction by which delays vary, so that keys that failed together are not retried together."""
DEBOUNCE_SECONDS = 0.5
"""Minimum time between two reconciliations of a key. A rollout causes several watch events within a second."""
RETRY_SECONDS, RETRY_LIMIT_SECONDS = 0.25, 15.0
"""Delay after a first failure, which doubles with each further failure, and its maximum."""


class Priority(IntEnum):
    """Which keys are handed out first. Lower values come first."""

    CHANGE = 0  # a user has changed the object or its preset, the hub has answered, or a failed reconciliation is due again
    EVENT = 1  # one of its children or logs has changed, or a delay has elapsed
    RESYNC = 2  # a periodic check


@dataclass(slots=True, eq=False)
class WorkQueue(Generic[Key]):
    """A deduplicating queue with delays and rate-limited retries, for use in one event loop. `jitter` returns the factor of a delay."""

    debounce_seconds: float = DEBOUNCE_SECONDS
    clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()
    jitter: Callable[[], float] = lambda: random.uniform(1 - JITTER, 1 + JITTER)
    _dirty: dict[Key, float] = field(default_factory=dict)  # and since when, as in the next two
    _ready: dict[Priority, dict[Key, float]] = field(default_factory=lambda: {priority: {} for priority in Priority})  # no worker has them
    _processing: dict[Key, float] = field(default_factory=dict)
    _priorities: dict[Key, Priority] = field(default_factory=dict)  # of dirty and of delayed keys
    _rested: dict[Key, float] = field(default_factory=dict)  # until when a key rests
    _delayed: list[tuple[float, int, Key]] = field(default_factory=list)  # a heap, also of delays that are no longer valid
    _due: dict[Key, float] = field(default_factory=dict)  # the valid delay of each key
    _failures: dict[Key, int] = field(default_factory=dict)
    _number: Iterator[int] = field(default_factory=itertools.count)
    _handed_out_at: float = -math.inf
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        """Return the number of keys that wait for a worker, without delayed keys."""
        return len(self._dirty)

    def add(self, key: Key, priority: Priority = Priority.CHANGE) -> None:
        """Add a key unless it already waits. A resting key is added after its rest."""
        self._raise_priority(key, priority)
        if key in self._dirty:
            return
        now = self.clock()
        if self._rested.get(key, now) > now:
            self._delay(key, self._rested[key])
            return
        self._dirty[key] = now
        self._due.pop(key, None)
        if key not in self._processing:
            self._ready[self._priorities[key]][key] = now
            self._changed.set()

    def add_after(self, key: Key, seconds: float, priority: Priority = Priority.CHANGE) -> None:
        """Add a key after a delay. If a key has several delays, the earliest counts."""
        if seconds <= 0:
            self.add(key, priority)
        else:
            self._raise_priority(key, priority)
            self._delay(key, self.clock() + seconds)

    def add_rate_limited(self, key: Key, *, at_least: float = 0.0, at_most: float = RETRY_LIMIT_SECONDS) -> float:
        """Add a key after a failure. Return the delay in seconds, which doubles with each consecutive failure."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # the exponent is bounded: a key may fail for days
        limit = min(RETRY_LIMIT_SECONDS, at_most)
        seconds = max(at_least, min(limit, RETRY_SECONDS * 2.0 ** min(failures, 32)) * self.jitter())
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: Key) -> None:
        """Reset the number of failures of a key, after a success."""
        self._failures.pop(key, None)

    def failures(self, key: Key) -> int:
        """Return the number of consecutive failures of a key."""
        return self._failures.get(key, 0)

    async def get(self) -> Key:
        """Wait for a key and take it. The caller must call `done` afterwards."""
        while True:
            self._promote()
            for ready in self._ready.values():
                if ready:
                    key = next(iter(ready))
                    del ready[key], self._dirty[key]
                    self._priorities.pop(key, None)
                    self._processing[key] = self._handed_out_at = self.clock()
                    return key
            self._changed.clear()
            due = self._next_due()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else due - self.clock()):
                    await self._changed.wait()

    def done(self, key: Key) -> None:
        """End the processing of a key. If it was added in between, it is handed out again after its rest."""
        del self._processing[key]
        now = self.clock()
        self._rested.pop(key, None)
        self._rested[key] = until = now + self.debounce_seconds
        while self._rested and next(iter(self._rested.values())) <= now:  # in order of time
            del self._rested[next(iter(self._rested))]
        if self._dirty.pop(key, None) is not None:
            self._delay(key, until)

    def oldest_seconds(self) -> float:
        """Return the seconds since the oldest waiting or processing key was added."""
        times = (*self._dirty.values(), *self._processing.values())
        return max(0.0, self.clock() - min(times)) if times else 0.0

    def longest_processing_seconds(self) -> float:
        """Return the seconds for which the longest reconciliation in progress has run."""
        return max(0.0, self.clock() - min(self._processing.values())) if self._processing else 0.0

    def stalled_seconds(self) -> float:
        """Return the seconds for which a key has been due and no key was handed out: neither a delayed key counts, nor a long queue."""
        due = self._next_due()
        first = [next(iter(ready.values())) for ready in self._ready.values() if ready]
        since = min((*first, math.inf if due is None else due))
        return max(0.0, self.clock() - max(since, self._handed_out_at))

    def _raise_priority(self, key: Key, priority: Priority) -> None:
        former = self._priorities.get(key, priority)
        self._priorities[key] = min(former, priority)
        if priority < former and key in self._ready[former]:
            self._ready[priority][key] = self._ready[former].pop(key)

    def _delay(self, key: Key, due: float) -> None:
        if key in self._dirty or self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._delayed, (due, next(self._number), key))
        self._changed.set()

    def _promote(self) -> None:
        now = self.clock()
        while self._delayed and self._delayed[0][0] <= now:
            due, _, key = heapq.heappop(self._delayed)
            if self._due.get(key) == due:  # otherwise it was added in between, or an earlier time was set
                del self._due[key]
                self._rested.pop(key, None)  # it is due, whatever happened before
                self.add(key, self._priorities.get(key, Priority.CHANGE))

    def _next_due(self) -> float | None:
        while self._delayed and self._due.get(self._delayed[0][2]) != self._delayed[0][0]:
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None
