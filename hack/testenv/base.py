"""What all environments have in common: a control plane, and a beginning and an end."""

from pathlib import Path

from testenv.controlplane import ControlPlane
from testenv.lifetime import Startable


class BaseEnvironment(Startable):
    """A control plane with nodes."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig for a cluster administrator."""
        return self.control_plane.kubeconfig
