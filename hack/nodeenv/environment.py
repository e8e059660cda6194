"""The node joined to a control plane, with images to run, GPUs that it claims to have, and volumes."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nodeenv.configuration import MACHINE_ADDRESS, SANDBOX_IMAGE
from nodeenv.images import ImageStore
from nodeenv.node import Node, NodeError
from testenv.controlplane import AuditLevel, ControlPlane
from testenv.nodes import gpu_node

_READY_WITHIN = 60.0
_STORAGE_CLASS = "node-folder"
_MERGE = "application/merge-patch+json"


class NodeEnvironment:
    """A control plane and one real node.

    Args:
        machine: kind of GPU machine (see `testenv.nodes`) whose labels and GPUs the node has.
        extra_resources: more that the node offers.
    """

    def __init__(
        self, *, machine: str = "h100-sxm", extra_resources: Mapping[str, str] | None = None, audit_level: AuditLevel | None = None
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="vllm-operator-node-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.images = ImageStore()
        self.control_plane = ControlPlane(self.folder / "control-plane", address=MACHINE_ADDRESS, audit_level=audit_level)
        self.node = Node(self.folder / "node")
        self._machine = gpu_node(machine)
        self._extra = dict(extra_resources or {})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig for a cluster administrator."""
        return self.control_plane.kubeconfig

    def start(self) -> None:
        """Start everything; return when the node is Ready and offers its GPUs.

        Raises:
            NodeError, ControlPlaneError: A part does not come up.
        """
        try:
            self.images.ensure_base()
            self.node.start_runtime()
            self.control_plane.start()
            self.load_image(SANDBOX_IMAGE)
            self.node.start_kubelet(self.kubeconfig)
            self._await_node()
            self._advertise()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything and remove its data."""
        self.control_plane.stop()
        self.node.stop()
        self._temporary.cleanup()

    def load_image(self, tag: str) -> None:
        """Give an image of the store to the node."""
        archive = self.folder / "image.tar"
        self.images.save(tag, archive)
        self.node.import_image(archive)
        archive.unlink()

    def add_volumes(self, count: int, *, size: str = "20Gi") -> None:
        """Make volumes, folders on this machine, that claims of the default class are bound to."""
        client = self.control_plane.client()
        annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
        metadata: dict[str, Any] = {"name": _STORAGE_CLASS, "annotations": annotations}
        client.apply(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": metadata,
                "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": "Immediate",
            }
        )
        for number in range(count):
            path = self.folder / "volumes" / f"volume-{number}"
            path.mkdir(parents=True)
            path.chmod(0o777)  # the group of a Pod is not applied to such volumes
            spec = {
                "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": _STORAGE_CLASS,
                "hostPath": {"path": str(path)},
            }
            client.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"volume-{number}"}, "spec": spec})

    def _await_node(self) -> None:
        client = self.control_plane.client()
        deadline = time.monotonic() + _READY_WITHIN
        while True:
            nodes = client.request("GET", "/api/v1/nodes")["items"]
            conditions = [condition for node in nodes for condition in node["status"].get("conditions", [])]
            if any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions):
                return
            if time.monotonic() > deadline:
                raise NodeError(f"The node is not Ready. The kubelet's last words:\n{self.node.log_tail('kubelet')}")
            time.sleep(0.1)

    def _advertise(self) -> None:
        """Let the node look like a machine with GPUs: the kubelet leaves in its status what it does not know, and admits Pods by it."""
        client = self.control_plane.client()
        path = f"/api/v1/nodes/{self.node.name}"
        own = {"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch"}
        labels = {name: value for name, value in self._machine["metadata"]["labels"].items() if name not in own}
        client.request("PATCH", path, {"metadata": {"labels": labels}}, content_type=_MERGE)
        offered = self._machine["status"]["allocatable"]
        resources = {name: value for name, value in offered.items() if "/" in name} | self._extra
        client.request("PATCH", f"{path}/status", {"status": {"capacity": resources, "allocatable": resources}}, content_type=_MERGE)
