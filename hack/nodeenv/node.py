"""The node: its namespaces, containerd, the kubelet, kube-proxy."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nodeenv import configuration
from nodeenv.configuration import CONTROL_GROUPS, DEVICE_PLUGINS, MACHINE_ADDRESS, NODE_ADDRESSES, POD_NETWORK
from testenv.binaries import ensure_binaries
from testenv.processes import ProcessGroup

INTERFACE = "vllm-node"
PROGRAMS = ("containerd", "runc", "ctr", "buildah", "unshare", "nsenter", "ip", "iptables", "debootstrap")
PACKAGES = "containerd runc containernetworking-plugins buildah debootstrap iptables iproute2 util-linux"
_UP_WITHIN, _GONE_WITHIN = 60.0, 5.0
# places that these programs use whatever they are told; the node has folders of its own there
_FIXED_PLACES = {
    name: Path(place)
    for name, place in (("kubelet", "/var/lib/kubelet"), ("logs", "/var/log/containers"), ("cni", "/var/lib/cni"), ("netns", "/run/netns"))
}
# the first process of the namespaces: collects what dies there, ends when it is told to
_INIT = "import signal, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True: signal.pause()"


class NodeError(Exception):
    """The node did not do what was asked; the message says why."""


def missing_requirements() -> str:
    """Why there cannot be a node on this machine, and what can be done; empty if there can."""
    if sys.platform != "linux":
        return "Linux containers need Linux. Use a virtual machine."
    if os.geteuid() != 0:
        return "A kubelet needs root. Run it as root, for example with sudo."
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if not (Path(configuration.cni_plugins()) / "bridge").exists():
        missing.append("the CNI plugins")
    if missing:
        return f"Not installed: {', '.join(missing)}. On Debian and Ubuntu: apt-get install {PACKAGES}"
    tried = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"Root may not make namespaces here ({tried.stderr.strip()}). In a container: run it with --privileged."
    return ""


class Node:
    """A node on this machine, or one `beside` it in its network. The folder is for its data, logs and socket."""

    def __init__(self, folder: Path, *, beside: "Node | None" = None) -> None:
        self.folder = folder
        self._beside = beside
        self._number = 0 if beside is None else 1
        self.name = f"node-{self._number + 1}"
        self._address = NODE_ADDRESSES[self._number]
        self._processes = ProcessGroup(folder)
        self._inside = 0
        self._kubelet: list[object] = []
        self._made: list[Path] = []

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    def start_runtime(self) -> None:
        """Make the namespaces and start containerd in them. Raises NodeError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._beside is None and Path(f"/sys/class/net/{INTERFACE}").exists():
            raise NodeError(f"There is another node on this machine: the network interface {INTERFACE} is there.")
        for name, content in (
            ("containerd.toml", configuration.containerd(self.folder)),
            ("kubelet.yaml", configuration.kubelet(self.folder, self._number)),
            ("cni/10-pods.conflist", configuration.network(self.folder, self._number)),
        ):
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        self._make_namespaces()
        self._start("containerd", ["containerd", "--config", self.folder / "containerd.toml"])
        self._await("containerd", lambda: self._succeeds("ctr", "--address", self.socket, "version"))

    def start_kubelet(self, kubeconfig: Path) -> None:
        """Start the kubelet and kube-proxy; the node registers itself at an API server, which must listen at MACHINE_ADDRESS."""
        binaries = ensure_binaries(("kubelet", "kube-proxy"))
        self._kubelet = [
            binaries["kubelet"],
            f"--config={self.folder / 'kubelet.yaml'}",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet-pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self._address}",
            "--v=2",
        ]
        self._start("kubelet", self._kubelet)
        if self._beside is not None:
            return
        proxy = [f"--kubeconfig={kubeconfig}", f"--hostname-override={self.name}", f"--cluster-cidr={POD_NETWORK}"]
        proxy += ["--proxy-mode=iptables", "--conntrack-max-per-core=0"]
        proxy += ["--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"]
        self._start("kube-proxy", [binaries["kube-proxy"], *proxy])

    def start_device_plugin(self, offers: Mapping[str, int]) -> None:
        """Offer so many of each resource to the kubelet, and to each kubelet that follows."""
        program = [sys.executable, "-m", "nodeenv.deviceplugin", DEVICE_PLUGINS]
        command = [*program, *(f"{resource}={count}" for resource, count in offers.items())]
        self._start("device-plugin", command, environment={"PYTHONPATH": str(Path(__file__).parent.parent)})

    def restart_kubelet(self, *, kill: bool = False) -> None:
        self.stop_kubelet(kill=kill)
        self.start_kubelet_again()

    def start_kubelet_again(self) -> None:
        self._start("kubelet", self._kubelet)

    def stop_kubelet(self, *, kill: bool = False) -> None:
        """Stop the kubelet only: the node stops telling how it is."""
        entered = self._processes.pid("kubelet")
        # what enters the namespaces waits outside for its child, the kubelet, and would leave it running
        kubelet = int(Path(f"/proc/{entered}/task/{entered}/children").read_text())
        os.kill(kubelet, signal.SIGKILL if kill else signal.SIGTERM)
        self._await_end("kubelet")
        self._processes.stop("kubelet")

    def logs_of(self, namespace: str, container: str = "vllm") -> list[Path]:
        return sorted((self.folder / "pod-logs").glob(f"{namespace}_*/{container}/*"))

    def mount_memory(self, folder: Path, size: str) -> None:
        self._run("mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs", folder)

    def fill(self, file: Path, *, kibibytes: int) -> None:
        self._run("dd", "if=/dev/zero", f"of={file}", "bs=1024", f"count={kibibytes}")

    def remove(self, file: Path) -> None:
        self._run("rm", file)

    def import_image(self, archive: Path) -> None:
        self._run("ctr", "--address", self.socket, "--namespace", "k8s.io", "images", "import", archive)

    def log_tail(self, name: str, lines: int = 15) -> str:
        return self._processes.log_tail(name, lines)

    def stop(self) -> None:
        self._processes.stop_all()
        if self._beside is None and self._inside:  # else the interface is that of another suite
            # a moment after the last process of its namespace is gone, the kernel takes the interface back
            subprocess.run(["ip", "link", "delete", INTERFACE], check=False, capture_output=True)
        while self._made:
            with contextlib.suppress(OSError):  # something else uses it by now
                self._made.pop().rmdir()
        deadline = time.monotonic() + _GONE_WITHIN
        while not _remove_groups(CONTROL_GROUPS[self._number]) and time.monotonic() < deadline:
            time.sleep(0.1)

    def _make_namespaces(self) -> None:
        unshare = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        network = ["unshare", "--net"] if self._beside is None else ["nsenter", "--target", str(self._beside._inside), "--net"]
        child = self._processes.start("namespaces", [*network, *unshare, sys.executable, "-I", "-c", _INIT])
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        self._await("namespaces", lambda: children.read_text().strip() != "" and self._is_in_namespaces(int(children.read_text())))
        self._inside = int(children.read_text())
        if self._beside is None:
            for command in (
                f"link add {INTERFACE} type veth peer name eth0 netns {self._inside}",
                f"address add {MACHINE_ADDRESS}/29 dev {INTERFACE}",
                f"link set {INTERFACE} up",
                # the API server reaches Pods for those who ask it to (`kubectl port-forward`, `kubectl get --raw .../proxy/`)
                f"route add {POD_NETWORK} via {self._address} dev {INTERFACE}",
            ):
                subprocess.run(["ip", *command.split()], check=True)
        binds = []
        for name, place in _FIXED_PLACES.items():
            if not place.exists():
                place.mkdir(parents=True)
                self._made.append(place)
            (self.folder / "private" / name).mkdir(parents=True, exist_ok=True)
            binds.append(f"mount --bind {self.folder / 'private' / name} {place}")
        steps = [
            "set -e",
            *binds,
            "mount --make-rshared /",
            f"ip address replace {self._address}/29 dev eth0",
        ]
        if self._beside is None:
            steps += ["ip link set lo up", "ip link set eth0 up", f"ip route add default via {MACHINE_ADDRESS}"]
            steps += ["echo 1 > /proc/sys/net/ipv4/ip_forward"]
        self._run("sh", "-c", "\n".join(steps))

    def _is_in_namespaces(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
        return False

    def _enter(self, command: Sequence[object]) -> list[str]:
        return ["nsenter", "--target", str(self._inside), "--mount", "--pid", "--net", "--ipc", "--wd=/", "--", *map(str, command)]

    def _start(self, name: str, command: Sequence[object], *, environment: Mapping[str, str] | None = None) -> None:
        self._processes.start(name, self._enter(command), environment=environment)

    def _run(self, *command: object) -> str:
        done = subprocess.run(self._enter(command), capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            raise NodeError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def _succeeds(self, *command: object) -> bool:
        with contextlib.suppress(NodeError):
            self._run(*command)
            return True
        return False

    def _await_end(self, name: str) -> None:
        deadline = time.monotonic() + _UP_WITHIN
        while self._processes.is_alive(name):
            if time.monotonic() > deadline:
                raise NodeError(f"{name} does not end. Its last words:\n{self._processes.log_tail(name)}")
            time.sleep(0.05)

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _UP_WITHIN
        while not ready():
            if not self._processes.is_alive(name) or time.monotonic() > deadline:
                raise NodeError(f"{name} does not come up. Its last words:\n{self._processes.log_tail(name)}")
            time.sleep(0.1)


def _remove_groups(name: str) -> bool:
    """Remove empty control groups: version 1 has a tree for each controller, version 2 has one. Return whether there are no others."""
    roots = (*Path("/sys/fs/cgroup").glob(f"*/{name}"), Path("/sys/fs/cgroup") / name)
    for folder in (folder for root in roots for folder, _, _ in os.walk(root, topdown=False)):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return not any(root.exists() for root in roots)
