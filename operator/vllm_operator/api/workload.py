"""The object that runs the replicas: a Deployment, or a LeaderWorkerSet if each replica needs several nodes.

A replica is a Pod of a Deployment, or a group of Pods of a LeaderWorkerSet. Only the leader of a group serves. In code, `deployment` is
the one or the other; the functions of this module return what is at another place in it.
"""

from collections.abc import Mapping
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.reading import Manifest

DEPLOYMENT, GROUP_SET = "Deployment", "LeaderWorkerSet"
WORKLOADS = (DEPLOYMENT, GROUP_SET)
"""Kinds of objects that run replicas."""
LOG_OF_GROUPS = "kubectl logs -n lws-system deployment/lws-controller-manager"
"""Prints the log of LeaderWorkerSet's controller, as its releases and its chart install it."""


def is_workload(manifest: Mapping[str, Any]) -> bool:
    """Return whether an object runs replicas (or is a primer's Deployment)."""
    return manifest["kind"] in WORKLOADS


def is_of_groups(workload: Any) -> bool:
    """Return whether each replica is a group of Pods."""
    return reading.text(workload, "kind") == GROUP_SET


def template_field(workload: Any) -> str:
    """Return the field of the spec that has the templates of all Pods."""
    return "leaderWorkerTemplate" if is_of_groups(workload) else "template"


def template_spec(workload: Any) -> Manifest:
    """Return the Pod spec of the replicas, for groups that of the leaders; empty if there is none."""
    field = template_field(workload)
    return reading.mapping(workload, "spec", field, *(["leaderTemplate"] if field != "template" else []), "spec")


def rolls(workload: Any) -> bool:
    """Return whether a rollout replaces one replica after the other. The groups of a LeaderWorkerSet are all replaced in this way."""
    return is_of_groups(workload) or reading.text(workload, "spec", "strategy", "type") == "RollingUpdate"


def surge(workload: Any) -> int:
    """Return how many replicas a rollout adds before it stops one."""
    if is_of_groups(workload):
        return reading.integer(workload, "spec", "rolloutStrategy", "rollingUpdateConfiguration", "maxSurge") or 0
    return reading.integer(workload, "spec", "strategy", "rollingUpdate", "maxSurge") or 0
