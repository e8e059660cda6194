"""What all environments have in common: a control plane, and a beginning and an end."""

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from testenv.controlplane import ControlPlane


class BaseEnvironment(ABC):
    """A control plane with nodes; starts on entry, stops on exit."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig for a cluster administrator."""
        return self.control_plane.kubeconfig

    @abstractmethod
    def start(self) -> None:
        """Start everything."""

    @abstractmethod
    def stop(self) -> None:
        """Stop everything that was started here."""
