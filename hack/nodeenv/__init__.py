"""One or two real nodes on this machine: containerd and a kubelet each, joined to the control plane of `testenv`. Linux, as root.

The node lives in namespaces of its own (mounts, processes, network), whose first process ends with whoever started it. With it
go all containers, mounts, addresses and packet filter rules; on the machine itself there is, while it runs, one network
interface with the route to the Pods, and the control group `kubepods`. There is no way from its Pods to the network beyond.
The second node has its own mounts and processes, and shares the network of the first: its address is 10.199.0.3.

    machine                       | namespaces of the node
    etcd, API server, ...         | kubelet, containerd, kube-proxy
    10.199.0.1 (interface NAME) --|-- 10.199.0.2, Pods in 10.199.1.0/24

- `node`: a node
- `deviceplugin`: a process that offers GPUs to the kubelet
- `configuration`: what its parts are told
- `images`: building images and a stand-in for public base images, without a registry
- `environment`: all of it together
"""

from nodeenv.environment import NodeEnvironment
from nodeenv.node import NodeError, missing_requirements

__all__ = ["NodeEnvironment", "NodeError", "missing_requirements"]
