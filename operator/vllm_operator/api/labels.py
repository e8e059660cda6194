"""Names in Kubernetes objects: API group, labels, annotations, field managers. Which names are valid."""

import re
from typing import Any

GROUP = "vllm-operator.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "VLLMDeployment"
PLURAL = "vllmdeployments"
SHORT_NAME = "vllm"
OPERATOR_NAME = "vllm-operator"
"""Value of the name label on the operator's Deployment, as the chart sets it, and on its Lease."""

FIELD_MANAGER = "vllm-operator"
"""Field manager of the children."""
STATUS_FIELD_MANAGER = "vllm-operator-status"
"""Field manager of the status of a VLLMDeployment."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "vllm-operator"
NAME_LABEL = "app.kubernetes.io/name"
NAME = "vllm"
INSTANCE_LABEL = "app.kubernetes.io/instance"
"""Name of the VLLMDeployment that a child belongs to."""
COMPONENT_LABEL = "app.kubernetes.io/component"
HOSTNAME_LABEL = "kubernetes.io/hostname"

LWS_GROUP = "leaderworkerset.sigs.k8s.io"
GROUP_INDEX_LABEL = f"{LWS_GROUP}/group-index"
"""On a Pod of a LeaderWorkerSet: number of its group. The webhook of LeaderWorkerSet sets this label and the following ones."""
WORKER_INDEX_LABEL = f"{LWS_GROUP}/worker-index"
"""On a Pod of a LeaderWorkerSet: its number within the group, which is the rank of its node. The leader has 0."""
GROUP_REVISION_LABEL = f"{LWS_GROUP}/template-revision-hash"
"""On a Pod of a LeaderWorkerSet: hash of its template, as `pod-template-hash` of a Deployment."""

CONTAINER = "vllm"
"""Name of the engine container in each Pod."""
PUBLISHER = "publish-caches"
"""Name of the container that pushes packed caches to a registry."""
PACKER = "pack-caches"
"""Name of the container that packs caches for the publisher."""
MEASURER = "measure"
"""Name of the container that measures the engine before a rollout."""
HELPERS = frozenset({PUBLISHER, PACKER, MEASURER})
"""Containers beside the engine of a primer. They end, and report their results themselves."""

ARCHITECTURE_LABEL = f"{GROUP}/gpu-architecture"
"""GPU architecture of a Node (`sm_90`). An administrator can set it where no other label identifies the GPU."""
ALLOW_UNSUPPORTED_ANNOTATION = f"{GROUP}/allow-unsupported"
"""On a VLLMDeployment: `"true"` starts a forced combination although it is known to fail."""
REPLAN_ANNOTATION = f"{GROUP}/replan"
"""On a VLLMDeployment: each new value requests a new plan with the current catalog, although the spec did not change."""
ROLLBACK_ANNOTATION = f"{GROUP}/rollback"
"""On a VLLMDeployment: `NAME instead of NAME`, two of its ControllerRevisions. The first one runs while the second one would."""
PRIME_ANNOTATION = f"{GROUP}/prime"
"""On a VLLMDeployment: prime the caches of this cache key, or of any key if `"true"`, before the rollout."""

APPLIED_ANNOTATION = f"{GROUP}/applied-digest"
"""On a child: digest of the manifest that the operator last applied."""
PLAN_ANNOTATION = f"{GROUP}/plan"
"""On a Deployment: name of the ControllerRevision with the plan that it was rendered from."""

RAN_ANNOTATION = f"{GROUP}/ran"
"""On a ControllerRevision: when an engine with its plan was first seen to have run. Written once; such a plan never changes by itself."""
SERVED_ANNOTATION = f"{GROUP}/served"
"""On a ControllerRevision: when a Pod with its plan was first seen to serve. Written once."""

REQUEST_ANNOTATION = f"{GROUP}/request"
"""On a ControllerRevision: digest of what its plan was requested by, the spec and the annotation `replan`. Plans that differ only in the
generation of the cache have the same."""
FAILED_ANNOTATION = f"{GROUP}/failed"
"""On a ControllerRevision: when the operator gave it up and rolled back. No later rollback of the operator goes to it."""

GATE_ANNOTATION = f"{GROUP}/gate"
"""On a ControllerRevision: what was measured before its rollout, as JSON (`caches.measurement`)."""
RACE_ANNOTATION = f"{GROUP}/race"
"""On a VLLMDeployment: each new value requests a race of backends."""
RACE_RECORD_ANNOTATION = RACE_ANNOTATION
"""On a ControllerRevision: the race of its plan, as JSON (`caches.measurement`)."""
RUN_ANNOTATION = f"{GROUP}/run"
"""On a Pod of a primer that measures: the ControllerRevision of the new plan, or of the plan that races, and the number of the run."""

CLAIM_FIELD_MANAGER = "vllm-operator-cache"
"""Field manager of the records on a PersistentVolumeClaim, including one that the user created."""
USED_ANNOTATION_PREFIX = f"used.{GROUP}/"
"""On a PersistentVolumeClaim, followed by a cache key: time since when Pods use this directory."""
PRIMED_ANNOTATION_PREFIX = f"primed.{GROUP}/"
"""On a PersistentVolumeClaim, followed by a cache key: time when a Pod with these caches was first seen to be Ready."""
PRIMING_ANNOTATION_PREFIX = f"priming.{GROUP}/"
"""On a PersistentVolumeClaim, followed by a cache key: the VLLMDeployment that fills the directory, as `name/uid/time`."""
QUARANTINED_ANNOTATION_PREFIX = f"quarantined.{GROUP}/"
"""On a PersistentVolumeClaim, followed by a cache key: time since when the directory is not used, because it is damaged."""
DELETION_ANNOTATION_PREFIX = f"deletion.{GROUP}/"
"""On a PersistentVolumeClaim, followed by a cache key: attempts to delete the quarantined directory, as `number/time of the last/why`."""
IMAGE_ANNOTATION_PREFIX = f"image.{GROUP}/"
"""On a PersistentVolumeClaim, followed by a cache key: the image that filled the directory, and the current digest of its tag."""
SHARED_ANNOTATION_PREFIX = f"shared.{GROUP}/"
"""On a PersistentVolumeClaim, followed by a uid: the other VLLMDeployment that uses it, as `name/time`."""
UNUSED_ANNOTATION = f"{GROUP}/unused-since"
"""On a PersistentVolumeClaim that the operator created: time since when its VLLMDeployment is gone and no other uses it."""
FETCH_WEIGHTS_CONTAINER = "fetch-weights"
"""Name of the container of the Job that downloads weights."""
FETCHED_ANNOTATION_PREFIX = f"fetched.{GROUP}/"
"""On a PersistentVolumeClaim, followed by a digest of model, revision and directory: the commit whose files a Job has downloaded."""
OCCURRENCE_ANNOTATION = f"{GROUP}/occurrence"
"""On an Event: the last counted occurrence, so that no occurrence is counted twice."""

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NAME_LIMIT, NAMESPACE_LIMIT = 253, 63
NAME_PATTERN = rf"^{_LABEL}(\.{_LABEL})*$"
"""Pattern of the names of objects: DNS subdomains (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/)."""
_NAME, _NAMESPACE = re.compile(rf"{_LABEL}(\.{_LABEL})*"), re.compile(_LABEL)


def is_name(value: Any) -> bool:
    """Return whether this is a valid object name: exactly one segment of a URL path, without special meaning there."""
    return isinstance(value, str) and len(value) <= NAME_LIMIT and _NAME.fullmatch(value) is not None


def is_namespace(value: Any) -> bool:
    """Return whether this is a valid namespace name."""
    return isinstance(value, str) and len(value) <= NAMESPACE_LIMIT and _NAMESPACE.fullmatch(value) is not None
