"""The permissions of the operator, and the effect of each missing one. The ClusterRole of the chart grants exactly these."""

from collections.abc import Collection
from dataclasses import dataclass

from vllm_operator.kube.client import (
    AUTOSCALER,
    CLAIM,
    CLAIM_TEMPLATE,
    CLUSTER_PRESET,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    HTTP_ROUTE,
    INFERENCE_POOL,
    JOB,
    NETWORK_POLICY,
    NODE,
    NODE_POOL,
    POD,
    POD_METRICS,
    PRESET,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    REVISION,
    SCALED_OBJECT,
    SERVICE,
    VLLM_DEPLOYMENT,
    Kind,
)


@dataclass(frozen=True, slots=True)
class Permission:
    """A verb on a resource. `effect` describes the effect if it is missing."""

    verb: str
    kind: Kind
    subresource: str = ""
    effect: str = ""

    def __str__(self) -> str:
        resource = self.kind.plural + (f"/{self.subresource}" if self.subresource else "")
        return f"{self.verb} {resource}" + (f" in API group {self.kind.group}" if self.kind.group else "")


def _all(kind: Kind, verbs: str, effect: str) -> tuple[Permission, ...]:
    return tuple(Permission(verb, kind, "", effect) for verb in verbs.split())


_SEES_LATE = "changes are noticed late, at the next resync"
_STAYS = "after a restart of the operator, objects of this kind that are no longer desired stay"
_CANNOT_BUILD = f"no {VLLM_DEPLOYMENT.kind} can be served"

REQUIRED: tuple[Permission, ...] = (
    *_all(VLLM_DEPLOYMENT, "get list", "nothing can be served"),
    *_all(VLLM_DEPLOYMENT, "watch", "new objects are noticed late"),
    Permission("patch", VLLM_DEPLOYMENT, "status", "no status can be written"),
    *_all(DEPLOYMENT, "get list create patch", _CANNOT_BUILD),
    *_all(DEPLOYMENT, "watch", _SEES_LATE),
    *_all(REVISION, "get list create", "replaced plans are lost, and plans whose rollout is held back are not applied"),
    *_all(REVISION, "watch", _SEES_LATE),
    *_all(SERVICE, "get list create patch", _CANNOT_BUILD),
    *_all(SERVICE, "watch", _SEES_LATE),
    *_all(CLAIM, "get list create patch", _CANNOT_BUILD),
    *_all(CLAIM, "watch", _SEES_LATE),
    *_all(POD, "get list", "no start can be reported"),
    *_all(POD, "watch", _SEES_LATE),
    Permission("get", POD, "log", "stages, progress and causes of crashes are unknown"),
    *_all(EVENT, "create", "no events are written"),
    *_all(NODE, "list", "no GPU can be chosen"),
)
"""Without one of these, the operator is not ready but continues as far as possible."""

OPTIONAL: tuple[Permission, ...] = (
    Permission(
        "update",
        VLLM_DEPLOYMENT,
        "finalizers",
        "nothing can be created on API servers that check the permission to set owners, such as those of OpenShift",
    ),
    *_all(DEPLOYMENT, "delete", "Deployments that are no longer desired stay"),
    *_all(SERVICE, "delete", "Services that are no longer desired stay"),
    *_all(REVISION, "delete", "old plans stay"),
    *_all(POD, "delete", "stalled starts are reported and not restarted"),
    *_all(EVENT, "list", "messages have fewer details"),
    *_all(EVENT, "get patch", "repeated events are not counted"),
    *_all(RESOURCE_SLICE, "list", "dynamic resource allocation cannot be planned"),
    *_all(NODE_POOL, "list", "GPUs that Karpenter would add are unknown"),
    *_all(CLAIM_TEMPLATE, "get list create patch delete", "dynamic resource allocation cannot be used"),
    *_all(POD_METRICS, "get", "the CPU use of a silent start is unknown, and it gets the time that its stage may need"),
    *_all(JOB, "create", "a full cache volume is not cleaned, and weights are not fetched before a start"),
    *_all(
        JOB,
        "get delete",
        "a finished cleaning Job keeps a PersistentVolumeClaim that is being deleted for a quarter of an hour, a Job that fetches weights "
        "does not follow the replicas, and it is unknown why a Job has no Pod",
    ),
    *_all(NETWORK_POLICY, "get create patch delete", "spec.networkPolicy has no effect"),
    *_all(NETWORK_POLICY, "list", _STAYS),
    *_all(DISRUPTION_BUDGET, "get list create patch delete", "evictions may end several replicas at the same time"),
    *_all(AUTOSCALER, "get create patch delete", "spec.autoscaling has no effect"),
    *_all(AUTOSCALER, "list", "a Deployment that was scaled through its scale subresource counts as autoscaled"),
)
"""Without one of these the operator is ready, but a feature does not work."""

ALL_NAMESPACES: tuple[Permission, ...] = _all(
    RESOURCE_CLAIM, "list", "it is unknown which devices for dynamic resource allocation are free"
)
"""Permissions of a cluster-wide operator to count free devices. Not checked at the start: few clusters have such devices."""

_NO_GATEWAY = "spec.gateway has no effect"
GATEWAY: tuple[Permission, ...] = (
    *_all(HTTP_ROUTE, "get create patch delete", _NO_GATEWAY),
    *_all(HTTP_ROUTE, "list", _STAYS),
    *_all(INFERENCE_POOL, "get create patch delete", _NO_GATEWAY),
    *_all(INFERENCE_POOL, "list", _STAYS),
)
"""Needed only for the integration `gateway`. Not checked at the start, because the kinds may be missing."""

_NO_PRESET = "VLLMDeployments with spec.presetRef get no plan"
PRESETS: tuple[Permission, ...] = (*_all(PRESET, "list watch", _NO_PRESET), *_all(CLUSTER_PRESET, "list watch", _NO_PRESET))
"""Needed only for objects that name a preset. The CRDs may be missing."""

KEDA: tuple[Permission, ...] = (
    *_all(SCALED_OBJECT, "get create patch delete", "spec.autoscaling.keda has no effect"),
    *_all(SCALED_OBJECT, "list", _STAYS),
)
"""Needed only for the integration `keda`. Not checked at the start, because the kinds may be missing."""

WATCHED = (VLLM_DEPLOYMENT, DEPLOYMENT, REVISION, SERVICE, CLAIM, POD)


def watched_kinds(denied: Collection[Permission], *, presets: Collection[Kind] = ()) -> tuple[Kind, ...]:
    """Return the kinds that the operator may list and watch, with presets if their CRDs exist. One forbidden watch would end all."""
    missing = {permission.kind for permission in denied if permission.verb in ("list", "watch") and not permission.subresource}
    return tuple(kind for kind in (*WATCHED, *presets) if kind not in missing)
