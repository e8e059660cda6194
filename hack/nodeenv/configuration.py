"""What containerd, the kubelet and the container network are told."""

import json
from pathlib import Path
from typing import Any

import yaml

MACHINE_ADDRESS = "10.199.0.1"
NODE_ADDRESSES = ("10.199.0.2", "10.199.0.3")
POD_NETWORK = "10.199.1.0/24"
_POD_RANGES = (("10.199.1.2", "10.199.1.127"), ("10.199.1.128", "10.199.1.254"))
"""Of each node. All Pods are on one bridge."""
CNI_PLUGINS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
"""Where distributions put them."""
DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"
"""Where the kubelet has its socket for device plugins, whatever folder it is given."""
LOG_LIMIT_KIBIBYTES = 256
"""A container's log is rotated beyond this: several starts of the stand-in engine, so that only what chatters is."""
CONTROL_GROUPS = ("kubepods", "k8s.io")
"""Where each node has those of its containers: where the kubelet says, and where containerd has them by itself."""
SANDBOX_IMAGE = "docker.io/library/pause:local"


def containerd(folder: Path) -> str:
    return f"""\
version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{SANDBOX_IMAGE}"
  disable_apparmor = true
  # without CAP_SYS_RESOURCE, as in many virtual machines, a negative oom_score_adj lets every sandbox fail
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_plugins()}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/containerd/opt"
"""


def cni_plugins() -> str:
    """The folder of the network plugins; the first conventional one if they are nowhere."""
    return next((path for path in CNI_PLUGINS if (Path(path) / "bridge").exists()), CNI_PLUGINS[0])


def network(folder: Path, number: int) -> str:
    ipam = {
        "type": "host-local",
        "dataDir": f"{folder}/addresses",
        "ranges": [[dict(zip(("subnet", "rangeStart", "rangeEnd"), (POD_NETWORK, *_POD_RANGES[number]), strict=True))]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    # masquerading: the machine knows no way back to Pods
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": ipam}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})


def kubelet(folder: Path, number: int) -> str:
    configuration: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failSwapOn": False,
        # many machines that tests run on still have version 1
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "address": NODE_ADDRESSES[number],
        "healthzBindAddress": NODE_ADDRESSES[number],
        # each kubelet removes control groups of Pods that it does not know, so another one has no tree of them
        **({"cgroupsPerQOS": False, "enforceNodeAllocatable": []} if number else {}),
        # only this machine and the node's own Pods reach it
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        # nobody answers there unless a test does; with none at all the kubelet would complain of every Pod
        "clusterDNS": [MACHINE_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "podLogsDir": f"{folder}/pod-logs",
        "containerLogMaxSize": f"{LOG_LIMIT_KIBIBYTES}Ki",
        "containerLogMaxFiles": 3,
        "containerLogMonitorInterval": "3s",
        # images are imported once, and nobody could pull them again
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 8,
        "maxOpenFiles": 20000,
    }
    return yaml.safe_dump(configuration)
