"""Pods that taints keep off their nodes, and what is said of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from support import observations as o
from support.situations import Situation
from vllm_operator.inventory.pools import Taint
from vllm_operator.status.observation import Observation

GPU_TAINT, TEAM = Taint("nvidia.com/gpu", "present", "NoSchedule"), Taint("dedicated", "team-a", "NoSchedule")
OURS = ({"key": "nvidia.com/gpu", "operator": "Exists"},)


def tainted(taint: Taint, *, tolerations: Sequence[Any] | None = OURS, more: Mapping[str, tuple[Taint, ...]] | None = None) -> Observation:
    """A Pod that the scheduler of Kubernetes 1.35 finds no node for, beside gpu-1 with this taint and `more` nodes."""
    pod = o.unschedulable_pod(message="0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint(s).")
    pod["spec"]["tolerations"] = None if tolerations is None else list(tolerations)
    return o.observe(pod, taints={"gpu-1": (taint,), **(more or {})})


TAINTS = {
    "the taint that keeps the Pod off is named with its toleration": Situation(
        tainted(Taint("dedicated", "team-a", "NoSchedule")),
        "Ready",
        "False",
        "Unschedulable",
        (
            "Node gpu-1 has the taint dedicated=team-a:NoSchedule. To start there, add "
            "{key: dedicated, operator: Equal, value: team-a, effect: NoSchedule} to spec.podTemplate.spec.tolerations.",
        ),
    ),
    "of the taints that keep the Pod off those of the most open nodes are named": Situation(
        tainted(Taint("a", "", "NoExecute"), more={"gpu-2": (Taint("a", "", "NoExecute"),), "gpu-0": (TEAM, Taint("b", "", "NoSchedule"))}),
        "Ready",
        "False",
        "Unschedulable",
        ("2 nodes with the planned GPU have the taint a:NoExecute. To start there, add {key: a, operator: Exists, effect: NoExecute}",),
    ),
    "a taint that goes by itself is not to be tolerated": Situation(
        tainted(Taint("node.kubernetes.io/disk-pressure", "", "NoSchedule")),
        "Ready",
        "False",
        "Unschedulable",
        ("node.kubernetes.io/disk-pressure:NoSchedule. Kubernetes removes it when the node is healthy again.",),
    ),
    "the taint of GPU nodes is tolerated unless somebody has taken that away": Situation(
        tainted(GPU_TAINT, tolerations=None),
        "Ready",
        "False",
        "Unschedulable",
        ("nvidia.com/gpu=present:NoSchedule. The operator adds a toleration for it unless spec.podTemplate.spec.tolerations is null",),
    ),
    "a taint that is tolerated is not named": Situation(
        tainted(GPU_TAINT), "Ready", "False", "Unschedulable", ("See `kubectl describe nodes` for the others",)
    ),
}
