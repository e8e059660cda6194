"""The whole test environment: a control plane, simulated nodes and their logs.

kwok plays the kubelets' part in the API (nodes become Ready, Pods start, crash, wait), the log endpoint their part for
`kubectl logs`. Both are processes beside the control plane's, in the same data folder.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from testenv.binaries import ensure_binaries, kubernetes_minor
from testenv.components import POLICIES, POLICIES_SINCE
from testenv.controlplane import AuditLevel, BaseEnvironment, ControlPlane, ControlPlaneError
from testenv.nodes import gpu_node
from testenv.processes import accepts_connections, free_ports
from testenv.stages import load_stages

_DATA = Path(__file__).parent / "data"
# The policy that hands a Namespace's annotations to its Pods takes effect a moment after it was made.
_READY_WITHIN = 30.0


class Environment(BaseEnvironment):
    """A control plane with simulated nodes; see `ControlPlane`."""

    def __init__(self, folder: Path | None = None, *, keep: bool = False, audit_level: AuditLevel | None = None) -> None:
        super().__init__(ControlPlane(folder, keep=keep, audit_level=audit_level))
        self.folder = self.control_plane.folder
        self._log_port = 0

    @property
    def log_root(self) -> Path:
        return self.folder / "logs"

    def start(self) -> None:
        """Starts everything; no node exists yet. Raises ControlPlaneError."""
        self.control_plane.start()
        try:
            (self._log_port,) = free_ports(1)
            self.start_log_endpoint()
            self._start_kwok()
            client = self.control_plane.client()
            for manifest in yaml.safe_load_all((_DATA / "cluster.yaml").read_text()):
                if manifest["apiVersion"] != POLICIES or kubernetes_minor() >= POLICIES_SINCE:
                    client.apply(manifest)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self.control_plane.stop()

    def add_nodes(self, *kinds: str) -> list[str]:
        return self.create_nodes(gpu_node(kind) for kind in kinds)

    def create_nodes(self, manifests: Iterable[dict[str, Any]]) -> list[str]:
        client = self.control_plane.client()
        names = []
        for manifest in manifests:
            client.request("POST", "/api/v1/nodes", manifest)
            names.append(manifest["metadata"]["name"])
        deadline = time.monotonic() + _READY_WITHIN
        while waiting := [name for name in names if not _is_schedulable(client.request("GET", f"/api/v1/nodes/{name}"))]:
            if time.monotonic() > deadline:
                raise ControlPlaneError(
                    f"Nodes are not Ready: {', '.join(waiting)}. kwok's last words:\n{self.control_plane.processes.log_tail('kwok')}"
                )
            time.sleep(0.05)
        return names

    def start_log_endpoint(self) -> None:
        plane = self.control_plane
        command = [sys.executable, "-m", "testenv.logs", "--root", self.log_root, "--port", self._log_port, "--kubeconfig", self.kubeconfig]
        certificate = ["--certificate", plane.authority, "--key", plane.authority_key]
        hack = str(Path(__file__).parent.parent)
        plane.processes.start("log-endpoint", [str(part) for part in [*command, *certificate]], environment={"PYTHONPATH": hack})
        plane.await_ready("log-endpoint", lambda: accepts_connections(self._log_port))

    def _start_kwok(self) -> None:
        kwok = ensure_binaries(["kwok"])["kwok"]
        config = self.folder / "kwok.yaml"
        # JSON is YAML, and is written and read much faster
        config.write_text("\n---\n".join(json.dumps(document) for document in [_kwok_configuration(self._log_port), *load_stages()]))
        command = [str(kwok), f"--kubeconfig={self.kubeconfig}", f"--config={config}"]
        # kwok also reads a configuration from the home folder; nobody's own must come between
        self.control_plane.processes.start("kwok", command, environment={"HOME": str(self.folder), "KWOK_WORKDIR": str(self.folder)})

    def clear_logs_of(self, namespace: str) -> None:
        """Removes the log files of a namespace's containers; open streams end."""
        folder = self.log_root / namespace
        if folder.exists():
            folder.rename(folder.with_name(f".{namespace}-{os.getpid()}-{time.monotonic_ns()}"))


def _kwok_configuration(log_port: int) -> dict[str, Any]:
    # In such a document nothing has a default: what is not here is zero.
    options = {
        "manageAllNodes": True,
        "cidr": "10.77.0.0/16",
        "nodeIP": "127.0.0.1",
        "nodePort": log_port,
        # kwok insists on serving something; the port does not matter, as the nodes point to the log endpoint
        "serverAddress": "127.0.0.1:0",
        "enableDebuggingHandlers": False,
        "podPlayStageParallelism": 4,
        "nodePlayStageParallelism": 4,
        # no Leases: the controller manager does not ask for heartbeats
        "nodeLeaseDurationSeconds": 0,
        "nodeLeaseParallelism": 1,
        "podsOnNodeSyncParallelism": 4,
        "enablePodsOnNodeSyncListPager": False,
        "enablePodsOnNodeSyncStreamWatch": True,
    }
    return {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options}


def _is_schedulable(node: dict[str, Any]) -> bool:
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in node["status"].get("conditions", []))
    return ready and not any(taint["key"].startswith("node.kubernetes.io/") for taint in node["spec"].get("taints", []))
