"""Parts of `spec` about operation: storage, rollout, Service and gateway, autoscaling, start, remediation, preset.

Model, engine and GPUs are in `vllm_operator.api.spec`.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from vllm_operator.api.base import LIST_ATOMIC, SPACES, Model, Name, checked_by, form, open_objects, optional

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

    size: VolumeSize | None = optional(
        "Requested size. Default: 20Gi for caches; for weights, a size that fits the model. It can be increased later if the storage "
        "class allows volume expansion."
    )
    storage_class_name: str | None = optional("StorageClass. Default: the default StorageClass of the cluster.", max_length=253)
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"] | None = optional(
        "Access mode. Replicas on several nodes need ReadWriteMany. Default: ReadWriteOnce."
    )


class StorageSpec(Model):
    """Storage of files between starts."""

    storage: Storage | None = optional(
        "SharedClaim: one PersistentVolumeClaim for all replicas. ClaimPerReplica: an empty one for each Pod, deleted with the Pod. "
        "HostPath: a directory on each node, which remains when the Pod is deleted. EmptyDir: deleted with the Pod. Default: HostPath if "
        "`hostPath` is set, else SharedClaim."
    )
    claim_name: Name | None = optional("Name of an existing PersistentVolumeClaim to use. Several VLLMDeployments can share it.")
    volume: ClaimVolume | None = optional("PersistentVolumeClaim that the operator creates for SharedClaim or ClaimPerReplica.")
    host_path: HostPath | None = optional(
        "Directory on the nodes for HostPath. It is created if missing. Default: /var/cache/vllm-operator."
    )
    on_delete: Literal["Retain", "Delete"] | None = optional(
        "Retain or Delete the PersistentVolumeClaim that the operator created for SharedClaim when this object is deleted. Default: Retain."
    )


class ArtifactSpec(Model):
    """Caches in a container registry. Pods fill an empty cache directory from there before the engine starts."""

    model_config = ConfigDict(json_schema_extra=checked_by("artifact"))
    repository: Repository | None = optional(
        "Repository of the artifacts, for example registry.example/team/vllm-caches. The tag follows from the image, the GPU, the model "
        "and the settings of the engine."
    )
    reference: ArtifactReference | None = optional(
        "Fetch exactly this artifact, by digest, instead of the one with the tag in `repository`."
    )
    publish: Literal["Never", "WhenPrimed"] | None = optional(
        "WhenPrimed: after a good start, a Job pushes the caches to `repository`, unless the tag exists. Caches that no Job can mount "
        "(EmptyDir, ClaimPerReplica, HostPath) are pushed by a helper Pod before a rollout. Default: Never."
    )
    policy: Literal["Preferred", "Required"] | None = optional(
        "Preferred: without an artifact the engine starts cold. Required: it does not start. Default: Preferred."
    )
    pull_secret_ref: SecretReference | None = optional(
        "Secret of type kubernetes.io/dockerconfigjson for fetching. A key `ca.crt` in it adds a certificate authority. Default: "
        "anonymous access."
    )
    push_secret_ref: SecretReference | None = optional(
        "Secret of the same form for publishing. Only the container that publishes mounts it. Default: anonymous access."
    )


class CacheSpec(StorageSpec):
    """Storage of compiled kernels and graphs between starts."""

    model_config = ConfigDict(json_schema_extra=checked_by("storage"))
    priming: Literal["Auto", "Always", "Never"] | None = optional(
        "Whether one Pod fills empty caches before the other Pods start. Default: Auto."
    )
    artifact: ArtifactSpec | None = optional("Caches in a container registry, for Pods on any node or cluster.")


class WeightsSpec(StorageSpec):
    """Storage of downloaded weights between starts, separate from the caches."""

    model_config = ConfigDict(json_schema_extra=checked_by("storage", "weights"))
    prefetch: Literal["Never", "BeforeStart"] | None = optional(
        "BeforeStart: a Job without a GPU downloads the weights to the shared PersistentVolumeClaim before Pods start. The engines then "
        "use exactly that commit, and do not ask the hub. Never: each engine downloads what is missing. Default: Never."
    )


class WorkloadSpec(Model):
    """The load with which plans are measured. What is not set is taken from the profile."""

    profile: Literal["Chat", "LongContext", "Batch"] | None = optional(
        "Chat: 512 tokens in and 128 out per request, 1 and 32 clients. LongContext: 16,000 tokens in and 128 out, 1 and 4 "
        "clients. Batch: 1,024 tokens in and 256 out, 64 clients. Default: Chat."
    )
    input_tokens: int | None = optional("Tokens of each prompt.", ge=1, le=1_000_000)
    output_tokens: int | None = optional("Tokens of each answer.", ge=2, le=32_768)
    concurrency: Annotated[list[Annotated[int, Field(ge=1, le=512)]], Field(min_length=1, max_length=4)] | None = optional(
        "Numbers of clients that send requests at the same time. They are measured one after the other.", LIST_ATOMIC
    )
    seconds: int | None = optional("Seconds for each number of clients.", ge=1, le=120)


class RolloutSpec(Model):
    """Replacement of Pods when the spec changes."""

    model_config = ConfigDict(json_schema_extra=checked_by("rollout"))
    strategy: Literal["Auto", "Recreate", "RollingUpdate"] | None = optional(
        "Auto: Recreate for one replica, else RollingUpdate with maxSurge 0, which needs no free GPU. Default: Auto."
    )
    max_surge: Annotated[int, Field(ge=0, le=1000)] | None = optional(
        "Maximum number of Pods above `replicas` during a rolling update. Each needs free GPUs. Default: 0, or 1 if `maxUnavailable` is 0."
    )
    max_unavailable: int | None = optional(
        "Maximum number of unavailable Pods during a rolling update. Default: 1, or 0 if `maxSurge` is more than 0.", ge=0, le=1000
    )
    on_unschedulable: Literal["Hold", "Proceed"] | None = optional(
        "What happens with a rollout that would stop serving Pods although there are too few free GPUs for the new ones. Hold: it begins "
        "when there are enough; the current Pods serve until then. Proceed: it begins, and the new Pods wait for GPUs. Default: Hold."
    )
    gate: Literal["None", "Measure"] | None = optional(
        "Measure: before a rollout, the requested plan and the serving one run in turns in a helper Pod, under the same load. The rollout "
        "begins if the new plan is not worse, or if no GPU is free for the comparison; otherwise it is held. Default: None."
    )
    workload: WorkloadSpec | None = optional("The load for `gate: Measure` and `backends.tuning: Measure`.")
    on_failure: Literal["RollBack", "Hold"] | None = optional(
        "What happens with a revision that fails by itself before it has served for `proveSeconds`: it crashes, hangs, or misses its "
        "deadline. RollBack: the last revision that served runs again, with its own spec, until this spec changes or a new plan is "
        "requested. Hold: it is reported. Default: RollBack."
    )
    prove_seconds: Annotated[int, Field(ge=0, le=86400)] | None = optional(
        "Seconds after the first service of a revision in which a crash makes the operator give it up. With 0, only starts count. If it "
        "is set and `maxSurge` is more than 0, an old Pod also stays in a rollout for so long after its successor is ready. Default: 600, "
        "and old Pods do not stay."
    )
    drain_seconds: Annotated[int, Field(ge=0, le=3600)] | None = optional(
        "Seconds that requests in progress have to finish when a Pod stops, in rollouts, scale-downs and node drains. With 0 they are "
        "aborted. Default: 60."
    )


AnnotationValue = Annotated[str, Field(max_length=4096)]


class ServiceSpec(Model):
    """The Service in front of the replicas."""

    model_config = ConfigDict(json_schema_extra=checked_by("service"))
    port: int | None = optional("Port of the Service. Default: 8000.", ge=1, le=65535)
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] | None = optional("Type of the Service. Default: ClusterIP.")
    annotations: Annotated[dict[str, AnnotationValue], Field(max_length=32)] | None = optional(
        "Annotations of the Service, for example for the load balancer of a cloud provider.", checked_by("annotations")
    )
    load_balancer_class: Annotated[str, Field(min_length=1, max_length=256)] | None = optional(
        "Implementation of the load balancer, for a Service of the type LoadBalancer. Default: that of the cluster."
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
        "Who may connect to the engine, as in `ingress[].from` of a NetworkPolicy. It includes the scraper of metrics. Default: everybody "
        "who can reach the Pods.",
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
    failure_mode: Literal["FailOpen", "FailClose"] | None = optional(
        "FailClose: refuse requests while it does not answer. FailOpen: pick any Pod. Default: FailClose."
    )


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
        description="URL of the Prometheus that scrapes the engines, for example http://prometheus.monitoring.svc:9090.",
    )
    activation_query: Annotated[str, Field(min_length=1, max_length=4096)] | None = optional(
        "PromQL for the number of requests that wait in front of the engines, for example in a gateway. Replicas are created when it is "
        "above 0. Required with `minReplicas: 0`, because without replicas there are no metrics of engines."
    )


class AutoscalingSpec(Model):
    """A HorizontalPodAutoscaler, or a ScaledObject of KEDA, that sets `spec.replicas`."""

    model_config = ConfigDict(json_schema_extra=checked_by("autoscaling"))
    min_replicas: int | None = optional("Minimum number of replicas. 0 needs `keda`. Default: 1.", ge=0, le=1000)
    max_replicas: int = Field(ge=1, le=1000, description="Maximum number of replicas.")
    metric: ScalingMetric | None = optional(
        "WaitingRequests: requests in the queue. RunningRequests: requests in progress. KVCacheUsage: used part of the KV cache. Default: "
        "WaitingRequests."
    )
    target: Annotated[int, Field(ge=1, le=100_000)] | None = optional(
        "Target of the metric per replica: a number of requests, or a percentage for KVCacheUsage. Default: 5 waiting or 64 running "
        "requests, 80 percent."
    )
    keda: KedaSpec | None = optional(
        "Use a ScaledObject of KEDA instead of a HorizontalPodAutoscaler. The chart of the operator must allow it (`integrations.keda`)."
    )


class StartupSpec(Model):
    """Time limits of a start, and what to do about a stalled one."""

    model_config = ConfigDict(json_schema_extra=checked_by("startup"))
    deadline_seconds: Annotated[int, Field(ge=60, le=86400)] | None = optional(
        "Maximum duration of a start. After it, the kubelet restarts the container. Default: one hour plus the time to read the weights "
        "at 100 MiB/s, and to download them at this speed if they are on the hub; three hours for weights of unknown size."
    )
    stall_timeout_seconds: Annotated[int, Field(ge=30, le=86400)] | None = optional(
        "A start without progress for this long is reported as stalled. In stages that write no log, their usual duration passes first. "
        "Default: 600."
    )
    on_stall: Literal["Report", "Restart"] | None = optional(
        "Report: report a stalled start in the status. Restart: also delete the Pod, so that the Deployment creates a new one. Default: "
        "Report."
    )
    max_stall_restarts: int | None = optional("Maximum number of restarts of stalled starts for one spec. Default: 2.", ge=1, le=10)


class RemediationSpec(Model):
    """What the operator does about crashes."""

    mode: Literal["Off", "Suggest", "Auto"] | None = optional(
        "Off: no remedies. Suggest: show the remedy in the status. Auto: apply remedies marked as safe. Default: Suggest."
    )
    max_attempts: int | None = optional("Maximum number of remedies for one spec. Default: 2.", ge=1, le=10)
    on_hang: OnHang | None = optional(
        "What to do about an engine that has work and makes no progress for 85 seconds, or for twice its longest earlier pause. Its Pod is "
        "reported and gets no more requests. Restart: 75 seconds later the container also restarts. Report: nothing else. A "
        "`readinessProbe` in `podTemplate` replaces the check. Default: Restart."
    )
    on_bad_node: OnBadNode | None = optional(
        "What to do about a node on which a Pod crashes again after a restart, for a reason that lies in the node, such as a GPU that "
        "fell off the bus. Report: name the node. Avoid: new Pods also avoid it by node affinity until it has been restarted or replaced, "
        "if other nodes have GPUs for all replicas. Default: Report."
    )
    on_unrecoverable_crash: Literal["KeepRestarting", "ScaleToZero"] | None = optional(
        "What to do when no replica is ready and a Pod crashed five times with a known cause that a restart cannot fix. KeepRestarting: "
        "nothing. ScaleToZero: free the GPUs until the spec changes. Default: KeepRestarting."
    )


class PresetReference(Model):
    """A preset with defaults for this object."""

    kind: PresetKind = Field(
        default="VLLMPreset",
        description="VLLMPreset: in the same namespace. ClusterVLLMPreset: for all namespaces. Default: VLLMPreset.",
    )
    name: Name = Field(description="Name of the preset.")

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
