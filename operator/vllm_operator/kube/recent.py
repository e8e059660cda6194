"""A dictionary of limited size that drops the least recently used entry."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by key. Beyond `limit` entries, the least recently used key is dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[Hashable, Value] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """Return the value of a key; None if there is none."""
        if key in self._values:
            self._values[key] = self._values.pop(key)  # the last one is the most recent
        return self._values.get(key)

    def put(self, key: Hashable, value: Value) -> None:
        """Set the value of a key."""
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._limit:
            del self._values[next(iter(self._values))]

    def drop(self, key: Hashable) -> None:
        """Drop a key, if it exists."""
        self._values.pop(key, None)
