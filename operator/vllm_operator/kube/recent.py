"""A dictionary of limited size that drops the least recently used entry."""

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by key. Beyond `limit` entries, the least recently used key is dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[str, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> Value | None:
        """Return the value of a key; None if there is none."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: str, value: Value) -> None:
        """Set the value of a key."""
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._limit:
            self._values.popitem(last=False)

    def drop(self, key: str) -> None:
        """Drop a key, if it exists."""
        self._values.pop(key, None)
