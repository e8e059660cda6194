"""A dictionary of limited size."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(dict[Hashable, Value], Generic[Value]):
    """Values by key. `put` drops the oldest entry beyond `limit` entries."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, key: Hashable, value: Value) -> None:
        """Set the value of a key, as the newest one."""
        self.pop(key, None)
        self[key] = value
        if len(self) > self._limit:
            del self[next(iter(self))]
