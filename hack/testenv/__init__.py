"""A real Kubernetes control plane on this machine, with fake GPU nodes, for tests and the demo.

The parts, each usable alone:

- `binaries`: finds kube-apiserver and its companions, or builds them from their Go modules
- `controlplane`: etcd, API server, controller manager and scheduler as child processes
- `nodes`: Node manifests with the labels of real GPU machines
- `stages`: what kwok, which plays the kubelets' part, does to nodes, Pods and volumes
- `logs`, `cri`: the log endpoint of those kubelets, and the files it serves
- `replay`: writes a recorded log as a container would have written it
- `environment`: all of it together
"""

from testenv.controlplane import ControlPlane, ControlPlaneError
from testenv.environment import Environment
from testenv.nodes import gpu_node, node_kinds

__all__ = ["ControlPlane", "ControlPlaneError", "Environment", "gpu_node", "node_kinds"]
