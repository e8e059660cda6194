"""The VLLMDeployment object as a whole, the names, labels and owner references of its children, and the object that runs its replicas.

Children of different VLLMDeployments never have the same kind and name. A suffix alone would not ensure this: `llama` with the suffix
`-primer` is also the name of another VLLMDeployment. Therefore each generated name contains a dot, which is not allowed in the name of a
VLLMDeployment, or all objects of its kind have suffixes of equal length.

A Deployment runs the replicas, or a LeaderWorkerSet if each replica needs several nodes. A replica is a Pod of a Deployment, or a group of
Pods of a LeaderWorkerSet. Only the leader of a group serves. In code, `deployment` is the one or the other; the functions about a workload
return what is at another place in it.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field

from vllm_operator.api import labels as api_labels
from vllm_operator.api import reading
from vllm_operator.api.base import Model
from vllm_operator.api.labels import API_VERSION, COMPONENT_LABEL, INSTANCE_LABEL, KIND, MANAGED_BY, MANAGED_BY_LABEL, NAME, NAME_LABEL
from vllm_operator.api.plan import Plan, PlannedPreset
from vllm_operator.api.reading import Manifest
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.status import VLLMDeploymentStatus


class Metadata(Model):
    """The part of ObjectMeta that the operator reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class VLLMDeployment(Model):
    """A VLLMDeployment as read from the API server or from a file, with what a reconciliation adds.

    - `pinned`: the current plan. The status names it, or else the Deployment.
    - `preset`, which was merged into `spec`; how it differs today; whether it does not exist any more (`planning/presets.py`)
    - `rolled_back_to`: the number of the earlier revision that runs instead of that for the current spec; whether the operator has decided
      that; what the current spec changes, in words. Then `pinned`, and the fields of `spec` that plans depend on, are those of that
      revision (`planning/pinning.py`).
    """

    metadata: Metadata
    spec: VLLMDeploymentSpec
    status: VLLMDeploymentStatus = Field(default_factory=VLLMDeploymentStatus)
    pinned: Plan | None = Field(default=None, exclude=True)
    preset: PlannedPreset | None = Field(default=None, exclude=True)
    preset_change: str = Field(default="", exclude=True)
    is_preset_gone: bool = Field(default=False, exclude=True)
    rolled_back_to: int | None = Field(default=None, exclude=True)
    is_rolled_back_by_operator: bool = Field(default=False, exclude=True)
    rolled_back_changes: tuple[str, ...] = Field(default=(), exclude=True)

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> "VLLMDeployment":
        """Parse a manifest. `pinned` is not set. Raises pydantic.ValidationError if the manifest does not match the schema."""
        parts = {name: manifest[name] for name in ("metadata", "spec", "status") if name in manifest}
        if isinstance(parts.get("spec"), Mapping):  # the API server drops null, so that the default counts
            parts["spec"] = {name: value for name, value in parts["spec"].items() if value is not None}
        return cls.model_validate(parts)

    @property
    def may_race(self) -> bool:
        """Whether the spec or an annotation asks for a race of its backends."""
        is_tuned = self.spec.backends is not None and self.spec.backends.tuning == "Measure"
        return self.rolled_back_to is None and (is_tuned or api_labels.RACE_ANNOTATION in self.metadata.annotations)

    def with_pinned(self, plan: Plan | None) -> "VLLMDeployment":
        """Return a copy of the object with this current plan."""
        return self.model_copy(update={"pinned": plan})


class Role(StrEnum):
    """Purpose of a child: the value of the component label."""

    ENGINE = "engine"
    FOLLOWER = "follower"
    CACHE = "cache"
    WEIGHTS = "weights"
    PRIMER = "primer"
    CLEANING = "cleaning"
    PUBLISHING = "publishing"
    FETCHING = "fetching"
    READING = "reading"
    BUILD = "build"
    PLAN = "plan"


def selector_of(resource: VLLMDeployment) -> dict[str, str]:
    """Return the selector of the Deployment and the Service. It must never change, because the selector of a Deployment is immutable."""
    return {NAME_LABEL: NAME, INSTANCE_LABEL: resource.metadata.name, COMPONENT_LABEL: Role.ENGINE.value}


def labels_of(resource: VLLMDeployment, component: Role) -> dict[str, str]:
    """Return the labels of a child."""
    return {**selector_of(resource), COMPONENT_LABEL: component.value, MANAGED_BY_LABEL: MANAGED_BY}


def metadata_of(resource: VLLMDeployment, name: str, component: Role = Role.ENGINE, *, owned: bool = True) -> dict[str, Any]:
    """Return the metadata of a child. `owned`: whether it is deleted together with the VLLMDeployment."""
    metadata: dict[str, Any] = {"name": name, "namespace": resource.metadata.namespace, "labels": labels_of(resource, component)}
    # A VLLMDeployment from a file has no uid, so an owner reference to it is not possible.
    if owned and resource.metadata.uid:
        owner = {"apiVersion": API_VERSION, "kind": KIND, "name": resource.metadata.name, "uid": resource.metadata.uid}
        metadata["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    return metadata


_JOB_OWNER_LIMIT = 42
"""Maximum characters of a Job name before its purpose. The name is also a label value, which has at most 63 characters."""


def primer_name(name: str) -> str:
    """Return the name of the primer's Deployment. The Deployment of the replicas has the name of the VLLMDeployment."""
    return f"{name}.primer"


JOB_PURPOSES = {Role.CLEANING: "clean", Role.PUBLISHING: "publish", Role.FETCHING: "fetch", Role.READING: "read"}


def job_prefix(name: str, role: Role) -> str:
    """Return the prefix of the names of the Jobs of a VLLMDeployment with one of `JOB_PURPOSES`."""
    owner = name
    if len(name) > _JOB_OWNER_LIMIT:
        owner = f"{name[: _JOB_OWNER_LIMIT - 11].rstrip('-.')}.{hashlib.sha256(name.encode()).hexdigest()[:10]}"
    return f"{owner}-{JOB_PURPOSES[role]}-"


DEPLOYMENT_KIND, LEADER_WORKER_SET_KIND = "Deployment", "LeaderWorkerSet"
WORKLOADS = (DEPLOYMENT_KIND, LEADER_WORKER_SET_KIND)
"""Kinds of objects that run replicas."""
LOG_OF_GROUPS = "kubectl logs -n lws-system deployment/lws-controller-manager"
"""Prints the log of LeaderWorkerSet's controller, as its releases and its chart install it."""


def is_workload(manifest: Mapping[str, Any]) -> bool:
    """Return whether an object runs replicas (or is a primer's Deployment)."""
    return manifest["kind"] in WORKLOADS


def is_observed(workload: Any) -> bool:
    """Return whether the controller of a workload has seen its last change."""
    seen, generation = reading.integer(workload, "status", "observedGeneration"), reading.integer(workload, "metadata", "generation")
    return (seen or 0) >= (generation or 0)


def is_rolling_out(workload: Any) -> bool:
    """Return whether a rollout is not over: Pods of an older revision exist, or the controller has not seen the last change."""
    updated, replicas = (reading.integer(workload, "status", field) or 0 for field in ("updatedReplicas", "replicas"))
    return updated < replicas or not is_observed(workload)


def is_of_groups(workload: Any) -> bool:
    """Return whether each replica is a group of Pods."""
    return reading.text(workload, "kind") == LEADER_WORKER_SET_KIND


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
