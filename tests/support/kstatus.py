"""How kstatus, and with it Flux and `kubectl`-like tools, read a custom resource.

Ported from kubernetes-sigs/cli-utils at 5895ad6c17dd: `pkg/kstatus/status/status.go` (Compute, checkReadyCondition) and
`pkg/kstatus/status/generic.go` (checkGenericProperties, checkGeneration). Kinds that Kubernetes itself defines have rules of their
own there; they are left out.
"""

from collections.abc import Mapping
from typing import Any

IN_PROGRESS, FAILED, CURRENT, TERMINATING = "InProgress", "Failed", "Current", "Terminating"


def compute(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """The status that kstatus computes for a custom resource, and its message."""
    metadata, status = manifest.get("metadata") or {}, manifest.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return TERMINATING, "Resource scheduled for deletion"
    generation, observed = metadata.get("generation"), status.get("observedGeneration")
    if generation is not None and observed is not None and generation != observed:
        return IN_PROGRESS, f"generation is {generation}, but latest observed generation is {observed}"
    conditions = status.get("conditions") or []
    for condition in conditions:
        if (condition["type"], condition["status"]) == ("Reconciling", "True"):
            return IN_PROGRESS, condition["message"]
        if (condition["type"], condition["status"]) == ("Stalled", "True"):
            return FAILED, condition["message"]
    for condition in conditions:
        if condition["type"] == "Ready":
            return (CURRENT, "Resource is Ready") if condition["status"] == "True" else (IN_PROGRESS, condition["message"])
    return CURRENT, "Resource is current"
