"""What runs from a beginning to an end."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Startable(ABC):
    """Starts on entry, stops on exit."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start everything."""

    @abstractmethod
    def stop(self) -> None:
        """Stop everything that was started here."""
