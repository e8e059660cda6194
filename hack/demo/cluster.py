"""The demo's cluster: control plane, GPU nodes, the CRD, the operator and the players of the engines."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from testenv.api import ApiClient
from testenv.binaries import CONTROL_PLANE, ensure_binaries
from testenv.environment import Environment
from testenv.nodes import gpu_node

NAMESPACE = "demo"
NODES = ("h100-sxm", "h200", "b200", "rtx-pro-6000", "h100-mig-single", "gb10")
ROOT = Path(__file__).parent.parent.parent
MANIFESTS = Path(__file__).parent / "manifests"
RESOURCES = f"/apis/vllm-operator.dev/v1alpha1/namespaces/{NAMESPACE}/vllmdeployments"
CRD_READY_WITHIN = 15.0


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


def gpu_nodes() -> list[dict[str, Any]]:
    """The nodes, all with the driver of the H200 one: some of the recorded labels are of drivers too old for vLLM 0.20.1."""
    nodes = [gpu_node(kind) for kind in NODES]
    driver = {label: value for label, value in gpu_node("h200")["metadata"]["labels"].items() if label.startswith("nvidia.com/cuda.")}
    for node in nodes:
        node["metadata"]["labels"] |= driver
    return nodes


class Cluster:
    """Everything that the demo starts. With `keep` it is left running."""

    def __init__(self, folder: Path | None, *, keep: bool, speed: float) -> None:
        self.environment = Environment(folder, keep=keep)
        self._keep = keep
        self._speed = speed
        self._kubectl = ""

    def __enter__(self) -> Self:
        # all at once and first: what is missing is downloaded or built, with progress shown
        self._kubectl = str(ensure_binaries((*CONTROL_PLANE, "kwok", "kubectl"))["kubectl"])
        self.environment.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None or not self._keep:
            self.environment.stop()

    @property
    def client(self) -> ApiClient:
        return self.environment.control_plane.client()

    def prepare(self, say: Callable[[str], None]) -> None:
        say(f"control plane {self.client.request('GET', '/version')['gitVersion']} is up")
        names = self.environment.create_nodes(gpu_nodes())
        say(f"{len(names)} GPU nodes are ready: {', '.join(names)}")
        self.kubectl("apply", "-f", str(ROOT / "crds"), "-f", str(MANIFESTS / "namespace.yaml"))
        self._await_crd()
        self._start_player()
        self.start_operator()
        say("the operator is running")

    def start_operator(self) -> None:
        command = [sys.executable, "-m", "vllm_operator", "run"]
        environment = {
            "KUBECONFIG": str(self.environment.kubeconfig),
            "VLLM_OPERATOR_HTTP_HOST": "127.0.0.1",
            "VLLM_OPERATOR_HTTP_PORT": "0",
            "VLLM_OPERATOR_HUB_ENDPOINT": "",
        }
        self.environment.control_plane.processes.start("operator", command, environment=environment)

    def is_operator_alive(self) -> bool:
        return self.environment.control_plane.processes.is_alive("operator")

    def operator_words(self) -> str:
        return self.environment.control_plane.processes.log_tail("operator")

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl and return what it prints. Raises DemoError."""
        # what kubectl remembers of a cluster goes into the demo's folder, not into the user's
        environment = os.environ | {
            "KUBECONFIG": str(self.environment.kubeconfig),
            "KUBECACHEDIR": str(self.environment.folder / "kubectl"),
        }
        outcome = subprocess.run([self._kubectl, *arguments], env=environment, capture_output=True, text=True, check=False)
        if outcome.returncode:
            raise DemoError(f"kubectl {' '.join(arguments)} failed: {outcome.stderr.strip()}")
        return outcome.stdout

    def resources(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.client.request("GET", RESOURCES)["items"]
        return items

    def _start_player(self) -> None:
        command = [sys.executable, "-m", "demo.pods", self.environment.kubeconfig, self.environment.log_root, NAMESPACE, self._speed]
        environment = {"PYTHONPATH": str(ROOT / "hack")}
        self.environment.control_plane.processes.start("player", list(map(str, command)), environment=environment)

    def _await_crd(self) -> None:
        deadline = time.monotonic() + CRD_READY_WITHIN
        while True:
            try:
                self.resources()
                return
            except Exception as error:  # 404 until it is served
                if time.monotonic() > deadline:
                    raise DemoError(f"the CRD is not served after {CRD_READY_WITHIN:.0f} s: {error}") from error
            time.sleep(0.1)
