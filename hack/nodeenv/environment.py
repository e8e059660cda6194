"""The nodes joined to a control plane, with images to run, GPUs that a device plugin offers, and volumes."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nodeenv.configuration import MACHINE_ADDRESS, SANDBOX_IMAGE
from nodeenv.images import ImageStore
from nodeenv.node import Node, NodeError
from testenv.api import ApiError
from testenv.controlplane import BaseEnvironment, ControlPlane
from testenv.nodes import gpu_node

DEVICES = {"nvidia.com/gpu": 8, "nvidia.com/mig-1g.10gb": 2}
"""What the device plugin offers."""
_MACHINE, _SLICED_MACHINE = "h100-sxm", "h100-mig-mixed"
_READY_WITHIN = 60.0
_STORAGE_CLASS = "node-folder"
_MERGE = "application/merge-patch+json"


class NodeEnvironment(BaseEnvironment):
    """A control plane and one or two real nodes, which look like machines with H100 GPUs of which one is cut into slices."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="vllm-operator-node-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        super().__init__(ControlPlane(self.folder / "control-plane", address=MACHINE_ADDRESS))
        self.images = ImageStore()
        self.node = Node(self.folder / "node")
        self.second = Node(self.folder / "second", beside=self.node)

    def start(self) -> None:
        """Start everything; return when the node is Ready and offers its GPUs. Raises NodeError or ControlPlaneError."""
        try:
            self.images.ensure_base()
            self.node.start_runtime()
            self.control_plane.start()
            self.load_image(SANDBOX_IMAGE)
            self._join(self.node)
        except BaseException:
            self.stop()
            raise

    def _join(self, node: Node) -> None:
        node.start_kubelet(self.kubeconfig)
        node.start_device_plugin(DEVICES)
        self.await_node(node)
        self._label(node)

    @contextlib.contextmanager
    def second_node(self, *images: str) -> Iterator[None]:
        """The second node with these images, until the end of the context. Raises NodeError."""
        node = self.second
        try:
            node.start_runtime()
            for image in (SANDBOX_IMAGE, *images):
                self.load_image(image, node)
            self._join(node)
            yield
        finally:
            node.stop()
            with contextlib.suppress(ApiError):
                self.control_plane.client().request("DELETE", f"/api/v1/nodes/{node.name}")

    def stop(self) -> None:
        with contextlib.ExitStack() as steps:  # each, whatever became of those before
            steps.callback(self._temporary.cleanup)
            steps.callback(self.node.stop)
            steps.callback(self.control_plane.stop)

    def load_image(self, tag: str, node: Node | None = None) -> None:
        archive = self.folder / "image.tar"
        self.images.save(tag, archive)
        (node or self.node).import_image(archive)
        archive.unlink()

    def add_volumes(self, count: int, *, size: str = "100Gi") -> None:
        """Make volumes, folders on this machine, that claims of the default class are bound to. Nothing is set aside for it."""
        client = self.control_plane.client()
        metadata = {"name": _STORAGE_CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
        storage_class = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "Immediate", "metadata": metadata}
        client.apply({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", **storage_class})
        for number in range(count):
            self._add_volume(f"volume-{number}", size=size, storage_class=_STORAGE_CLASS)

    def add_small_volume(self, name: str, *, kibibytes: int) -> Path:
        """Make a volume that is soon full, for a claim that names it; return its folder, as the node sees it."""
        folder = self._add_volume(name, size=f"{kibibytes}Ki", storage_class="")
        self.node.mount_memory(folder, f"{kibibytes}k")
        return folder

    def await_node(self, node: Node | None = None) -> None:
        """Return when a node, by default the first, is Ready and offers its GPUs. Raises NodeError."""
        client, node = self.control_plane.client(), node or self.node
        deadline = time.monotonic() + _READY_WITHIN
        while not any(_serves(it) for it in client.request("GET", "/api/v1/nodes")["items"] if it["metadata"]["name"] == node.name):
            if time.monotonic() > deadline:
                words = "\n".join(f"{name}:\n{node.log_tail(name)}" for name in ("kubelet", "device-plugin"))
                raise NodeError(f"The node is not Ready, or does not offer its GPUs. The last words of\n{words}")
            time.sleep(0.1)

    def _label(self, node: Node) -> None:
        """Let the node look like a machine with GPUs, as feature discovery does."""
        own = {"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch"}
        labels = {name: value for name, value in gpu_node(_MACHINE)["metadata"]["labels"].items() if name not in own}
        sliced = gpu_node(_SLICED_MACHINE)["metadata"]["labels"]
        labels |= {name: value for name, value in sliced.items() if name.startswith("nvidia.com/mig-1g.10gb.")}
        labels["nvidia.com/mig.strategy"] = "mixed"
        path = f"/api/v1/nodes/{node.name}"
        self.control_plane.client().request("PATCH", path, {"metadata": {"labels": labels}}, content_type=_MERGE)

    def _add_volume(self, name: str, *, size: str, storage_class: str) -> Path:
        folder = self.folder / "volumes" / name
        folder.mkdir(parents=True)
        folder.chmod(0o777)  # the group of a Pod is not applied to such volumes
        spec: dict[str, Any] = {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": storage_class,
            "hostPath": {"path": str(folder)},
        }
        self.control_plane.client().apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
        return folder


def _serves(node: dict[str, Any]) -> bool:
    status = node["status"]
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in status.get("conditions", []))
    offered = status.get("allocatable", {})
    return ready and all(offered.get(resource) == str(count) for resource, count in DEVICES.items())
