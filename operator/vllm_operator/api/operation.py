"""Parts of `spec` about operation: storage, rollout, Service and gateway, autoscaling, start, remediation, preset.

Model, engine and GPUs are in `vllm_operator.api.spec`.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from vllm_operator.api.base import LIST_ATOMIC, SPACES, Model, Name, checked_by, form, open_objects, optional, told

Repository = Annotated[str, form("Repository", 255, r"^[A-Za-z0-9.-]+(:[0-9]{1,5})?/[a-z0-9]+([._/-]+[a-z0-9]+)*$")]
ArtifactReference = Annotated[
    str, form("ArtifactReference", 327, r"^[A-Za-z0-9.-]+(:[0-9]{1,5})?/[a-z0-9]+([._/-]+[a-z0-9]+)*@sha256:[0-9a-f]{64}$")
]
HostPath = Annotated[str, form("HostPath", 1024, rf"^/[^/{SPACES}:.][^{SPACES}:]*$")]
VolumeSize = Annotated[str, form("VolumeSize", 32, r"^[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?$")]
Storage = Literal["SharedClaim", "ClaimPerReplica", "HostPath", "EmptyDir"]
"""Kind of volume that stores files between starts."""
ScalingMetric = Literal["WaitingRequests", "RunningRequests", "KVCacheUsage"]
"""What of an engine is compared with the target."""
OnHang = Literal["Restart", "Report"]
"""What to do about an engine that hangs."""
OnBadNode = Literal["Avoid", "Report"]
"""What to do about a node on which Pods crash for a reason that lies in the node."""
PresetKind = Literal["VLLMPreset", "ClusterVLLMPreset"]
"""Kinds of presets: one for the VLLMDeployments of its namespace, one for those of all namespaces."""


class SecretReference(Model):
    """A Secret in the same namespace."""

    name: Name = Field(description="Name of the Secret.")


class SecretKeyReference(Model):
    """A key of a Secret in the same namespace."""

    name: Name = Field(description="Name of the Secret.")
    key: str = Field(default="token", min_length=1, max_length=253, description="Key in the Secret. Default: token.")


class ClaimVolume(Model):
    """A PersistentVolumeClaim that the operator creates."""

    size: VolumeSize | None = optional(told("ClaimVolume.size"))
    storage_class_name: str | None = optional("StorageClass. Default: the default StorageClass of the cluster.", max_length=253)
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"] | None = optional(told("ClaimVolume.access_mode"))


class StorageSpec(Model):
    """Storage of files between starts."""

    storage: Storage | None = optional(told("StorageSpec.storage"))
    claim_name: Name | None = optional("Name of an existing PersistentVolumeClaim to use. Several VLLMDeployments can share it.")
    volume: ClaimVolume | None = optional("PersistentVolumeClaim that the operator creates for SharedClaim or ClaimPerReplica.")
    host_path: HostPath | None = optional(told("StorageSpec.host_path"))
    on_delete: Literal["Retain", "Delete"] | None = optional(told("StorageSpec.on_delete"))


class ArtifactSpec(Model):
    """Caches in a container registry. Pods fill an empty cache directory from there before the engine starts."""

    model_config = ConfigDict(json_schema_extra=checked_by("artifact"))
    repository: Repository | None = optional(told("ArtifactSpec.repository"))
    reference: ArtifactReference | None = optional(told("ArtifactSpec.reference"))
    publish: Literal["Never", "WhenPrimed"] | None = optional(told("ArtifactSpec.publish"))
    policy: Literal["Preferred", "Required"] | None = optional(told("ArtifactSpec.policy"))
    pull_secret_ref: SecretReference | None = optional(told("ArtifactSpec.pull_secret_ref"))
    push_secret_ref: SecretReference | None = optional(told("ArtifactSpec.push_secret_ref"))


class CacheSpec(StorageSpec):
    """Storage of compiled kernels and graphs between starts."""

    model_config = ConfigDict(json_schema_extra=checked_by("storage"))
    priming: Literal["Auto", "Always", "Never"] | None = optional(told("CacheSpec.priming"))
    artifact: ArtifactSpec | None = optional("Caches in a container registry, for Pods on any node or cluster.")


class WeightsSpec(StorageSpec):
    """Storage of downloaded weights between starts, separate from the caches."""

    model_config = ConfigDict(json_schema_extra=checked_by("storage", "weights"))
    prefetch: Literal["Never", "BeforeStart"] | None = optional(told("WeightsSpec.prefetch"))


class WorkloadSpec(Model):
    """The load with which plans are measured. What is not set is taken from the profile."""

    profile: Literal["Chat", "LongContext", "Batch"] | None = optional(told("WorkloadSpec.profile"))
    input_tokens: int | None = optional("Tokens of each prompt.", ge=1, le=1_000_000)
    output_tokens: int | None = optional("Tokens of each answer.", ge=2, le=32_768)
    concurrency: Annotated[list[Annotated[int, Field(ge=1, le=512)]], Field(min_length=1, max_length=4)] | None = optional(
        told("WorkloadSpec.concurrency"), LIST_ATOMIC
    )
    seconds: int | None = optional("Seconds for each number of clients.", ge=1, le=120)


class RolloutSpec(Model):
    """Replacement of Pods when the spec changes."""

    model_config = ConfigDict(json_schema_extra=checked_by("rollout"))
    strategy: Literal["Auto", "Recreate", "RollingUpdate"] | None = optional(told("RolloutSpec.strategy"))
    max_surge: Annotated[int, Field(ge=0, le=1000)] | None = optional(told("RolloutSpec.max_surge"))
    max_unavailable: int | None = optional(told("RolloutSpec.max_unavailable"), ge=0, le=1000)
    on_unschedulable: Literal["Hold", "Proceed"] | None = optional(told("RolloutSpec.on_unschedulable"))
    gate: Literal["None", "Measure"] | None = optional(told("RolloutSpec.gate"))
    workload: WorkloadSpec | None = optional("The load for `gate: Measure` and `backends.tuning: Measure`.")
    on_failure: Literal["RollBack", "Hold"] | None = optional(told("RolloutSpec.on_failure"))
    prove_seconds: Annotated[int, Field(ge=0, le=86400)] | None = optional(told("RolloutSpec.prove_seconds"))
    drain_seconds: Annotated[int, Field(ge=0, le=3600)] | None = optional(told("RolloutSpec.drain_seconds"))


AnnotationValue = Annotated[str, Field(max_length=4096)]


class ServiceSpec(Model):
    """The Service in front of the replicas."""

    model_config = ConfigDict(json_schema_extra=checked_by("service"))
    port: int | None = optional("Port of the Service. Default: 8000.", ge=1, le=65535)
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] | None = optional("Type of the Service. Default: ClusterIP.")
    annotations: Annotated[dict[str, AnnotationValue], Field(max_length=32)] | None = optional(
        told("ServiceSpec.annotations"), checked_by("annotations")
    )
    load_balancer_class: Annotated[str, Field(min_length=1, max_length=256)] | None = optional(told("ServiceSpec.load_balancer_class"))


class ApiKeyReference(Model):
    """A key of a Secret in the same namespace."""

    name: Name = Field(description="Name of the Secret.")
    key: str = Field(default="api-key", min_length=1, max_length=253, description="Key in the Secret. Default: api-key.")


class AuthSpec(Model):
    """Key that clients must send."""

    api_key_secret_ref: ApiKeyReference = Field(description=told("AuthSpec.api_key_secret_ref"))


Hostname = Annotated[str, Field(min_length=1, max_length=253)]
Peer = Annotated[
    dict[str, Any],
    Field(
        json_schema_extra=open_objects(
            podSelector="Pods by label, in this namespace or in the selected ones.",
            namespaceSelector="Namespaces by label.",
            ipBlock="A range of addresses.",
        )
    ),
]


class NetworkPolicySpec(Model):
    """A NetworkPolicy for the Pods. Only the port of the engine can be reached."""

    ingress_from: Annotated[list[Peer], Field(max_length=32)] | None = optional(
        told("NetworkPolicySpec.ingress_from"),
        LIST_ATOMIC,
    )


class GatewayReference(Model):
    """A Gateway, as in `parentRefs` of an HTTPRoute."""

    name: Name = Field(description="Name of the Gateway.")
    namespace: Name | None = optional("Namespace of the Gateway. Default: that of this object.")
    section_name: Name | None = optional("Listener of the Gateway. Default: all.")


class EndpointPicker(Model):
    """The Service of an endpoint picker. The operator does not create it."""

    name: Name = Field(description="Name of the Service, in the same namespace.")
    port: int = Field(default=9002, ge=1, le=65535, description="Port of the Service. Default: 9002.")
    failure_mode: Literal["FailOpen", "FailClose"] | None = optional(told("EndpointPicker.failure_mode"))


class InferencePoolSpec(Model):
    """An InferencePool of the Pods, for gateways that choose a Pod by its load and its cached prefixes."""

    endpoint_picker: EndpointPicker = Field(description="The endpoint picker that chooses a Pod for each request.")


class GatewaySpec(Model):
    """An HTTPRoute from a Gateway to the engine. The chart of the operator must allow it (`integrations.gateway`)."""

    parent_refs: list[GatewayReference] = Field(
        min_length=1, max_length=8, description="Gateways that serve the route.", json_schema_extra=LIST_ATOMIC
    )
    hostnames: list[Hostname] | None = optional("Hosts of the route. Default: all hosts of the Gateway.", LIST_ATOMIC, max_length=16)
    inference_pool: InferencePoolSpec | None = optional("Route to an InferencePool instead of to the Service.")


class KedaSpec(Model):
    """KEDA asks Prometheus itself, so no adapter is needed, and can scale to zero and back."""

    prometheus_address: str = Field(
        min_length=1,
        max_length=1024,
        pattern=rf"^https?://[^{SPACES}]+$",
        description=told("KedaSpec.prometheus_address"),
    )
    activation_query: Annotated[str, Field(min_length=1, max_length=4096)] | None = optional(told("KedaSpec.activation_query"))


class AutoscalingSpec(Model):
    """A HorizontalPodAutoscaler, or a ScaledObject of KEDA, that sets `spec.replicas`."""

    model_config = ConfigDict(json_schema_extra=checked_by("autoscaling"))
    min_replicas: int | None = optional("Minimum number of replicas. 0 needs `keda`. Default: 1.", ge=0, le=1000)
    max_replicas: int = Field(ge=1, le=1000, description="Maximum number of replicas.")
    metric: ScalingMetric | None = optional(told("AutoscalingSpec.metric"))
    target: Annotated[int, Field(ge=1, le=100_000)] | None = optional(told("AutoscalingSpec.target"))
    keda: KedaSpec | None = optional(told("AutoscalingSpec.keda"))


class StartupSpec(Model):
    """Time limits of a start, and what to do about a stalled one."""

    model_config = ConfigDict(json_schema_extra=checked_by("startup"))
    deadline_seconds: Annotated[int, Field(ge=60, le=86400)] | None = optional(told("StartupSpec.deadline_seconds"))
    stall_timeout_seconds: Annotated[int, Field(ge=30, le=86400)] | None = optional(told("StartupSpec.stall_timeout_seconds"))
    on_stall: Literal["Report", "Restart"] | None = optional(told("StartupSpec.on_stall"))
    max_stall_restarts: int | None = optional("Maximum number of restarts of stalled starts for one spec. Default: 2.", ge=1, le=10)


class RemediationSpec(Model):
    """What the operator does about crashes."""

    mode: Literal["Off", "Suggest", "Auto"] | None = optional(told("RemediationSpec.mode"))
    max_attempts: int | None = optional("Maximum number of remedies for one spec. Default: 2.", ge=1, le=10)
    on_hang: OnHang | None = optional(told("RemediationSpec.on_hang"))
    on_bad_node: OnBadNode | None = optional(told("RemediationSpec.on_bad_node"))
    on_unrecoverable_crash: Literal["KeepRestarting", "ScaleToZero"] | None = optional(told("RemediationSpec.on_unrecoverable_crash"))


class PresetReference(Model):
    """A preset with defaults for this object."""

    kind: PresetKind = Field(
        default="VLLMPreset",
        description=told("PresetReference.kind"),
    )
    name: Name = Field(description="Name of the preset.")

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
