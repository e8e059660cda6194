"""Parts of `spec`: storage of caches and weights, rollout, Service, start, remediation, preset.

Model, engine and GPUs are in `vllm_operator.api.spec`.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from vllm_operator.api import rules
from vllm_operator.api.adapters import SecretReference
from vllm_operator.api.base import ArtifactReference, HostPath, Model, Name, Repository, VolumeSize, checked_by


class Storage(StrEnum):
    """Kind of volume that stores files between starts."""

    SHARED_CLAIM = "SharedClaim"
    CLAIM_PER_REPLICA = "ClaimPerReplica"
    HOST_PATH = "HostPath"
    EMPTY_DIR = "EmptyDir"


class AccessMode(StrEnum):
    """Access modes of a PersistentVolumeClaim."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class ClaimVolume(Model):
    """A PersistentVolumeClaim that the operator creates."""

    size: VolumeSize | None = Field(
        default=None,
        description="Requested size. Default: 20Gi for caches; for weights, a size that fits the model. "
        "It can be increased later if the storage class allows volume expansion.",
    )
    storage_class_name: str | None = Field(
        default=None, max_length=253, description="StorageClass. Default: the default StorageClass of the cluster."
    )
    access_mode: AccessMode | None = Field(
        default=None, description="Access mode. Replicas on several nodes need ReadWriteMany. Default: ReadWriteOnce."
    )


class OnDelete(StrEnum):
    """What happens to a PersistentVolumeClaim when the VLLMDeployment is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class StorageSpec(Model):
    """Storage of files between starts."""

    storage: Storage | None = Field(
        default=None,
        description="SharedClaim: one PersistentVolumeClaim for all replicas. ClaimPerReplica: an empty one for each Pod, deleted with the "
        "Pod. HostPath: a directory on each node, which remains when the Pod is deleted. EmptyDir: deleted with the Pod. "
        "Default: HostPath if `hostPath` is set, else SharedClaim.",
    )
    claim_name: Name | None = Field(
        default=None, description="Name of an existing PersistentVolumeClaim to use. Several VLLMDeployments can share it."
    )
    volume: ClaimVolume | None = Field(
        default=None, description="PersistentVolumeClaim that the operator creates for SharedClaim or ClaimPerReplica."
    )
    host_path: HostPath | None = Field(
        default=None, description="Directory on the nodes for HostPath. It is created if missing. Default: /var/cache/vllm-operator."
    )
    on_delete: OnDelete | None = Field(
        default=None,
        description="Retain or Delete the PersistentVolumeClaim that the operator created for SharedClaim when this object is deleted. "
        "Default: Retain.",
    )


class Priming(StrEnum):
    """Whether one Pod fills empty caches before the other Pods start."""

    AUTO = "Auto"
    ALWAYS = "Always"
    NEVER = "Never"


class Publish(StrEnum):
    """When caches are published as an artifact."""

    NEVER = "Never"
    WHEN_PRIMED = "WhenPrimed"


class ArtifactPolicy(StrEnum):
    """What happens if no artifact can be fetched."""

    PREFERRED = "Preferred"
    REQUIRED = "Required"


class ArtifactSpec(Model):
    """Caches in a container registry. Pods fill an empty cache directory from there before the engine starts."""

    model_config = ConfigDict(json_schema_extra=checked_by(*rules.ARTIFACT))
    repository: Repository | None = Field(
        default=None,
        description="Repository of the artifacts, for example registry.example/team/vllm-caches. The tag follows from the image, the GPU, "
        "the model and the settings of the engine.",
    )
    reference: ArtifactReference | None = Field(
        default=None, description="Fetch exactly this artifact, by digest, instead of the one with the tag in `repository`."
    )
    publish: Publish | None = Field(
        default=None,
        description="WhenPrimed: after a good start, a Job pushes the caches to `repository`, unless the tag exists. Caches that no Job "
        "can mount (EmptyDir, ClaimPerReplica, HostPath) are pushed by a primer before a rollout. Default: Never.",
    )
    policy: ArtifactPolicy | None = Field(
        default=None,
        description="Preferred: without an artifact the engine starts cold. Required: it does not start. Default: Preferred.",
    )
    pull_secret_ref: SecretReference | None = Field(
        default=None,
        description="Secret of type kubernetes.io/dockerconfigjson for fetching. A key `ca.crt` in it adds a certificate authority. "
        "Default: anonymous access.",
    )
    push_secret_ref: SecretReference | None = Field(
        default=None,
        description="Secret of the same form for publishing. Only the container that publishes mounts it. Default: anonymous access.",
    )


class CacheSpec(StorageSpec):
    """Storage of compiled kernels and graphs between starts."""

    model_config = ConfigDict(json_schema_extra=checked_by(*rules.STORAGE))
    priming: Priming | None = Field(
        default=None, description="Whether one Pod fills empty caches before the other Pods start. Default: Auto."
    )
    artifact: ArtifactSpec | None = Field(default=None, description="Caches in a container registry, for Pods on any node or cluster.")


class Prefetch(StrEnum):
    """Who downloads the weights."""

    NEVER = "Never"
    BEFORE_START = "BeforeStart"


class WeightsSpec(StorageSpec):
    """Storage of downloaded weights between starts, separate from the caches."""

    model_config = ConfigDict(json_schema_extra=checked_by(*rules.STORAGE, rules.PREFETCH_TO_CLAIM))
    prefetch: Prefetch | None = Field(
        default=None,
        description="BeforeStart: a Job without a GPU downloads the weights to the shared PersistentVolumeClaim before Pods start. The "
        "engines then use exactly that commit, and do not ask the hub. Never: each engine downloads what is missing. Default: Never.",
    )


class RolloutStrategy(StrEnum):
    """Strategy for the replacement of Pods."""

    AUTO = "Auto"
    RECREATE = "Recreate"
    ROLLING_UPDATE = "RollingUpdate"


class RolloutSpec(Model):
    """Replacement of Pods when the spec changes."""

    model_config = ConfigDict(json_schema_extra=checked_by(rules.ROLLING_UPDATE_FIELDS, rules.ROLLING_UPDATE_MOVES))
    strategy: RolloutStrategy | None = Field(
        default=None,
        description="Auto: Recreate for one replica, else RollingUpdate with maxSurge 0, which needs no free GPU. Default: Auto.",
    )
    max_surge: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Maximum number of Pods above `replicas` during a rolling update. Each needs free GPUs. Default: 0, or 1 if "
        "`maxUnavailable` is 0.",
    )
    max_unavailable: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Maximum number of unavailable Pods during a rolling update. Default: 1, or 0 if `maxSurge` is more than 0.",
    )
    drain_seconds: int | None = Field(
        default=None,
        ge=0,
        le=3600,
        description="Seconds that requests in progress have to finish when a Pod stops, in rollouts, scale-downs and node drains. "
        "With 0 they are aborted. Default: 60.",
    )


class ServiceType(StrEnum):
    """Types of the Service in front of the replicas."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


AnnotationValue = Annotated[str, Field(max_length=4096)]


class ServiceSpec(Model):
    """The Service in front of the replicas."""

    model_config = ConfigDict(json_schema_extra=checked_by(rules.CLASS_OF_LOAD_BALANCER, rules.LOAD_BALANCER_CLASS_STAYS))
    port: int | None = Field(default=None, ge=1, le=65535, description="Port of the Service. Default: 8000.")
    type: ServiceType | None = Field(default=None, description="Type of the Service. Default: ClusterIP.")
    annotations: dict[str, AnnotationValue] | None = Field(
        default=None,
        max_length=32,
        description="Annotations of the Service, for example for the load balancer of a cloud provider.",
        json_schema_extra=checked_by(rules.OWN_ANNOTATIONS),
    )
    load_balancer_class: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Implementation of the load balancer, for a Service of the type LoadBalancer. Default: that of the cluster.",
    )


class ApiKeyReference(Model):
    """A key of a Secret in the same namespace."""

    name: Name = Field(description="Name of the Secret.")
    key: str = Field(default="api-key", min_length=1, max_length=253, description="Key in the Secret. Default: api-key.")


class AuthSpec(Model):
    """Key that clients must send."""

    api_key_secret_ref: ApiKeyReference = Field(
        description="Secret with the key that clients send as a bearer token. The engine gets it as the variable VLLM_API_KEY. It guards "
        "only some paths of the engine, such as /v1; a note of the plan names them. Pods get a changed key when they start."
    )


class OnStall(StrEnum):
    """What to do about a stalled start."""

    REPORT = "Report"
    RESTART = "Restart"


class StartupSpec(Model):
    """Time limits of a start, and what to do about a stalled one."""

    model_config = ConfigDict(json_schema_extra=checked_by(rules.STALL_WITHIN_DEADLINE))
    deadline_seconds: int | None = Field(
        default=None,
        ge=60,
        le=86400,
        description="Maximum duration of a start. After it, the kubelet restarts the container. Default: one hour plus the time to read "
        "the weights at 100 MiB/s, and to download them at this speed if they are on the hub; three hours for weights of unknown size.",
    )
    stall_timeout_seconds: int | None = Field(
        default=None,
        ge=30,
        le=86400,
        description="A start without progress for this long is reported as stalled. In stages that write no log, their usual duration "
        "passes first. Default: 600.",
    )
    on_stall: OnStall | None = Field(
        default=None,
        description="Report: report a stalled start in the status. Restart: also delete the Pod, so that the Deployment creates a new one. "
        "Default: Report.",
    )
    max_stall_restarts: int | None = Field(
        default=None, ge=1, le=10, description="Maximum number of restarts of stalled starts for one spec. Default: 2."
    )


class RemediationMode(StrEnum):
    """What to do with the remedy of a known crash."""

    OFF = "Off"
    SUGGEST = "Suggest"
    AUTO = "Auto"


class OnUnrecoverableCrash(StrEnum):
    """What to do about a crash that a restart cannot fix."""

    KEEP_RESTARTING = "KeepRestarting"
    SCALE_TO_ZERO = "ScaleToZero"


class RemediationSpec(Model):
    """What the operator does about crashes."""

    mode: RemediationMode | None = Field(
        default=None,
        description="Off: no remedies. Suggest: show the remedy in the status. Auto: apply remedies marked as safe. Default: Suggest.",
    )
    max_attempts: int | None = Field(default=None, ge=1, le=10, description="Maximum number of remedies for one spec. Default: 2.")
    on_unrecoverable_crash: OnUnrecoverableCrash | None = Field(
        default=None,
        description="What to do when no replica is ready and a Pod crashed five times with a known cause that a restart cannot fix. "
        "KeepRestarting: nothing. ScaleToZero: free the GPUs until the spec changes. Default: KeepRestarting.",
    )


class PresetKind(StrEnum):
    """Kinds of presets: one for the VLLMDeployments of its namespace, one for those of all namespaces."""

    VLLM_PRESET = "VLLMPreset"
    CLUSTER_VLLM_PRESET = "ClusterVLLMPreset"


class PresetReference(Model):
    """A preset with defaults for this object."""

    kind: PresetKind = Field(
        default=PresetKind.VLLM_PRESET,
        description="VLLMPreset: in the same namespace. ClusterVLLMPreset: for all namespaces. Default: VLLMPreset.",
    )
    name: Name = Field(description="Name of the preset.")

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"
