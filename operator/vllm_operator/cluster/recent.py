"""A dictionary of bounded size that forgets what was used longest ago."""

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by key. Reading or writing a key keeps it; once there are more than `limit`, the one left alone longest goes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[str, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> Value | None:
        """The value of a key; None if there is none."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: str, value: Value) -> None:
        """Remember a value."""
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._limit:
            self._values.popitem(last=False)

    def drop(self, key: str) -> None:
        """Forget a key, if it is known."""
        self._values.pop(key, None)
