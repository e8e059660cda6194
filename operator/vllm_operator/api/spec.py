"""`spec` of a VLLMDeployment: the desired state.

`kubectl explain` and the API reference show these descriptions. Each string and list has a bound, because without
one the cost of a CEL rule is unbounded and the API server refuses the CRD.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from vllm_operator.api import operation
from vllm_operator.api.base import LIST_ATOMIC, LIST_SET, SPACES, Model, Name, checked_by, cut_depth, form, list_map, open_objects, optional

_HUB_OR_CLAIM = rf"hf://[^/{SPACES}]+/[^/{SPACES}]+|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^{SPACES}]*)?"
ModelURI = Annotated[str, form("ModelURI", 1024, rf"^({_HUB_OR_CLAIM}|(s3|gs|az)://[^/{SPACES}]+/[^{SPACES}]+)$")]
AdapterURI = Annotated[str, form("AdapterURI", 1024, rf"^({_HUB_OR_CLAIM})$")]
Image = Annotated[str, form("Image", 1024, rf"^[^{SPACES}]+$")]
EngineVersion = Annotated[str, form("EngineVersion", 64, r"^v?[0-9]+\.[0-9]+(\.[0-9]+)?([.+-]?[A-Za-z0-9.+-]+)?$")]
FlagName = Annotated[str, form("FlagName", 128, r"^-{0,2}[A-Za-z][A-Za-z0-9._-]*$")]
VariableName = Annotated[str, form("VariableName", 256, r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
Architecture = Annotated[str, form("Architecture", 16, r"^sm_[0-9]{2,3}$")]
Product = Annotated[str, form("Product", 128, r"^[A-Za-z0-9][-A-Za-z0-9_.]*$")]
MigProfile = Annotated[str, form("MigProfile", 32, r"^[0-9]+g\.[0-9]+gb(\+[a-z.]+)?$")]
MigUUID = Annotated[str, form("MigUUID", 64, r"^MIG-[0-9A-Za-z/-]+$")]
GpuUUID = Annotated[str, form("GpuUUID", 64, r"^GPU-[0-9A-Za-z-]+$")]
Backend = Annotated[str, form("Backend", 64, r"^[A-Za-z][A-Za-z0-9_-]*$")]
WeightSize = Annotated[str, form("WeightSize", 32, r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$")]
InterfaceName = Annotated[str, form("InterfaceName", 15, r"^[a-z0-9][a-z0-9._-]*$")]
ResourceName = Annotated[str, form("ResourceName", 253, r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")]
Allocation = Literal["Auto", "DevicePlugin", "DRA"]
"""Mechanism by which a Pod requests GPUs."""
Toggle = Literal["Enabled", "Disabled"]
"""An enum instead of a boolean, because more values may follow."""
AcceleratorPolicy = Literal["SmallestThatFits", "MostCapable", "MostFree"]
"""Which of the GPUs are taken on which a model fits."""
OptimizeFor = Literal["Throughput", "Latency"]
"""Optimization goal, for kernels that are faster either with few or with many concurrent requests."""


class Distribution(StrEnum):
    """Build of vLLM in an image."""

    VLLM = "vLLM"
    NVLLM = "nvLLM"


class Attention(StrEnum):
    """Kind of attention, as far as it affects the choice of kernels."""

    MHA = "MHA"
    GQA = "GQA"
    MLA = "MLA"
    SPARSE_MLA = "SparseMLA"
    HYBRID = "Hybrid"


class Quantization(StrEnum):
    """Number format of the weights."""

    BF16 = "BF16"
    FP16 = "FP16"
    FP8 = "FP8"
    FP8_BLOCK = "FP8Block"
    NVFP4 = "NVFP4"
    MXFP4 = "MXFP4"
    MXFP8 = "MXFP8"
    INT4 = "INT4"
    INT8 = "INT8"


class ModelFacts(Model):
    """Facts about the model that affect the choice of kernels. A fact given here overrides one that the operator looks up."""

    attention: Attention | None = optional(
        "Kind of attention. MLA: DeepSeek V3, R1, Kimi K2. SparseMLA: DeepSeek V3.2, GLM-5. Hybrid: attention together with linear "
        "attention or Mamba layers (Qwen3-Next, Nemotron-H)."
    )
    experts: int | None = optional("Number of routed experts. 0 for a dense model.", ge=0, le=65536)
    quantization: Quantization | None = optional(
        "Number format of the weights. FP8Block is FP8 with 128x128 block scales (DeepSeek, Qwen3-FP8); FP8 is per tensor or per channel."
    )
    routing_groups: int | None = optional(
        "Number of expert groups of the router (`n_group` in config.json). 0 if there are none.", ge=0, le=4096
    )
    weight_size: WeightSize | None = optional("Total size of the weight files as a quantity, for example 640Gi.")


class ModelSpec(Model):
    """The model to serve."""

    model_config = ConfigDict(json_schema_extra=checked_by("revision"))
    uri: ModelURI = Field(
        description="Location of the model: `hf://organisation/name` on the model hub, `pvc://claim/path` on a PersistentVolumeClaim in "
        "the same namespace, or `s3://bucket/path`, `gs://bucket/path` or `az://container/path` in an object store."
    )
    revision: str | None = optional("Branch, tag or commit on the hub.", min_length=1, max_length=256)
    served_name: str | None = optional(
        "Model name in client requests. Default: the part of `uri` after the scheme.", min_length=1, max_length=256
    )
    aliases: list[Annotated[str, Field(min_length=1, max_length=256)]] | None = optional(
        "Further model names in client requests. Answers contain `servedName`. Default: none.", LIST_SET, min_length=1, max_length=16
    )
    token_secret_ref: operation.SecretKeyReference | None = optional("Secret with the token for gated models on the hub.")
    facts: ModelFacts | None = optional("Facts about the model, for models that the operator cannot look up on the hub.")

    @property
    def public_name(self) -> str:
        """The model name in client requests."""
        return self.served_name or self.uri.partition("://")[2].rstrip("/")


AdapterName = Annotated[str, form("AdapterName", 128, r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", min_length=1)]


class AdapterSpec(Model):
    """A LoRA adapter. Clients use it by its name, as they use a model."""

    model_config = ConfigDict(json_schema_extra=checked_by("revision"))
    name: AdapterName = Field(description="Model name in client requests.")
    uri: AdapterURI = Field(
        description="Location of the adapter: `hf://organisation/name` on the model hub, or `pvc://claim/path` on a "
        "PersistentVolumeClaim in the same namespace."
    )
    revision: str | None = optional("Branch, tag or commit on the hub.", min_length=1, max_length=256)
    token_secret_ref: operation.SecretKeyReference | None = optional(
        "Secret with the token for this adapter on the hub. Default: `model.tokenSecretRef`."
    )
    rank: int | None = optional(
        "Rank of the adapter. Default: the rank in its adapter_config.json, if the operator can read it on the hub.", ge=1, le=512
    )


class EngineArgument(Model):
    """A command line flag of the engine."""

    model_config = ConfigDict(json_schema_extra=checked_by("argument"))
    name: FlagName = Field(description="Name of the flag, with or without leading dashes: `--max-model-len` or `max-model-len`.")
    value: str | None = optional("Value. Absent for a flag without a value.", max_length=16384)
    values: list[Annotated[str, Field(max_length=4096)]] | None = optional(
        "Values of a flag that takes several, such as `--cudagraph-capture-sizes`.", LIST_ATOMIC, min_length=1, max_length=64
    )

    @property
    def text(self) -> str | None:
        """The value, or the values with spaces between them; None without a value."""
        return " ".join(self.values) if self.values else self.value


class EnvironmentVariable(Model):
    """An environment variable of the engine container, as in a Pod."""

    model_config = ConfigDict(json_schema_extra=checked_by("variable"))
    name: VariableName = Field(description="Name of the variable.")
    value: str | None = optional("Value of the variable.", max_length=16384)
    value_from: dict[str, Any] | None = optional(
        "Source of the value, as in a Pod (secretKeyRef, configMapKeyRef, fieldRef, resourceFieldRef).",
        open_objects(
            secretKeyRef="A key of a Secret.",
            configMapKeyRef="A key of a ConfigMap.",
            fieldRef="A field of the Pod.",
            resourceFieldRef="A resource of the container.",
        ),
    )


def split_words(words: Iterable[str]) -> dict[str, list[str]]:
    """Return the words of a command line by flag, without dashes. As for argparse, the last one counts, and negative numbers are values."""
    found: dict[str, list[str]] = {}
    flag = ""
    for word in words:
        if re.match("--?[A-Za-z]", word):
            flag = _plain(word.partition("=")[0])
            found[flag] = [word]
        elif flag:
            found[flag].append(word)
    return found


def _plain(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-")


def _argument(words: Sequence[str]) -> EngineArgument:
    """Return a flag with its values. Not validated: `extraArgs` allows words that `args` does not."""
    name, equals, value = words[0].partition("=")
    values = [*([value] if equals else []), *words[1:]]
    one = values[0] if len(values) == 1 else None
    return EngineArgument.model_construct(name=name, value=one, values=values if len(values) > 1 else None)


class EngineSpec(Model):
    """The vLLM server to run."""

    image: Image | None = optional("Container image. Default: `vllm/vllm-openai:v<version>`.")
    version: EngineVersion | None = optional(
        "vLLM version in the image. Required if the image tag does not name it, as with `latest`, a digest or a custom build."
    )
    distribution: Distribution | None = optional("Build of vLLM in the image. Default: vLLM.")
    introspect: Toggle | None = optional(
        "Whether a Job without a GPU reads the variables, flags and backends of vLLM from the image, for the plan. Default: Enabled if "
        "the version is no release that the catalog knows."
    )
    args: list[EngineArgument] | None = optional(
        "Flags for `vllm serve`. They override the operator's choices.", list_map("name"), checked_by("arguments"), max_length=128
    )
    extra_args: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=64)] | None = optional(
        'The same as words of a command line: `["--seed", "7"]`. A flag in `args` overrides the same one here.',
        LIST_ATOMIC,
        checked_by("words"),
    )
    env: list[EnvironmentVariable] | None = optional(
        "Environment variables of the engine container. They override the operator's choices.", list_map("name"), max_length=256
    )

    @property
    def flags(self) -> list[EngineArgument]:
        """All flags: those in `extra_args`, then those in `args`, which override them."""
        own = {_plain(each.name) for each in self.args or ()}
        words = split_words(self.extra_args or ())
        return [*(_argument(words[name]) for name in words if name not in own), *(self.args or ())]


class MigSpec(Model):
    """MIG slices of GPUs."""

    model_config = ConfigDict(json_schema_extra=checked_by("mig"))
    mode: Toggle | None = optional("Enabled: only MIG slices. Disabled: only whole GPUs. Default: Enabled if `profile` or `uuids` is set.")
    profile: MigProfile | None = optional("MIG profile, for example 1g.10gb.")
    uuids: list[MigUUID] | None = optional("Use only these MIG devices. They are requested by DRA.", LIST_SET, min_length=1, max_length=64)


class AcceleratorSpec(Model):
    """GPUs that a replica may use, and their number."""

    model_config = ConfigDict(json_schema_extra=checked_by("accelerator"))
    architectures: Annotated[list[Architecture], Field(min_length=1, max_length=16)] | None = optional(
        "Allowed GPU architectures in order of preference, for example sm_100, sm_90. Default: any.", LIST_ATOMIC
    )
    products: Annotated[list[Product], Field(min_length=1, max_length=32)] | None = optional(
        "Allowed GPU products in order of preference, as in the node label nvidia.com/gpu.product. Default: any.", LIST_ATOMIC
    )
    policy: AcceleratorPolicy | None = optional(
        "Which GPUs are taken, of those that are allowed and on which the model fits. SmallestThatFits: the fewest, then those with the "
        "least memory. MostCapable: the newest kind of data center GPU. MostFree: those of which the most are free. Default: "
        "SmallestThatFits, after the order in `architectures` and `products`. If a policy is set, these lists have no order."
    )
    count: int | None = optional("Number of GPUs per replica. Default: the product of the parallelism sizes.", ge=1, le=64)
    mig: MigSpec | None = optional(
        "Whether to use MIG slices, and which. Default: whole GPUs, and for replicas with one GPU also MIG slices on which the model "
        "fits. An entry in `products` without the suffix of a slice is the whole GPU."
    )
    uuids: list[GpuUUID] | None = optional("Use only these whole GPUs. They are requested by DRA.", LIST_SET, min_length=1, max_length=64)
    allocation: Allocation | None = optional(
        "DevicePlugin: extended resources. DRA: dynamic resource allocation. Auto: as the nodes offer their GPUs: by a device plugin, or "
        "without one by ResourceSlices; with `uuids`, DRA. Default: Auto."
    )
    runtime_class_name: Name | None = optional(
        "RuntimeClass of the Pods. Required if the NVIDIA runtime is not the default runtime of the nodes."
    )

    @property
    def sliced(self) -> bool | None:
        """Whether the devices are MIG slices; None if both slices and whole GPUs are allowed."""
        if self.uuids:
            return False
        return None if self.mig is None else self.mig.mode != "Disabled"

    @property
    def claims(self) -> bool | None:
        """Whether the GPUs are requested by DRA; None if that depends on the node."""
        if self.allocation in ("DevicePlugin", "DRA"):
            return self.allocation == "DRA"
        return True if self.uuids or (self.mig and self.mig.uuids) else None

    @property
    def is_limited(self) -> bool:
        """Whether some kinds of GPUs are not allowed."""
        return bool(self.architectures or self.products or self.uuids or self.mig)


class ParallelismSpec(Model):
    """Distribution of one replica over its GPUs."""

    tensor: Annotated[int, Field(ge=1, le=64)] | None = optional(
        "Tensor parallel size. Default: 1. Without `spec.parallelism` and `spec.accelerator.count`, the operator chooses the smallest "
        "number of GPUs of one node on which the model fits, if it knows the sizes of the model."
    )
    pipeline: int | None = optional("Pipeline parallel size. Default: `nodes`, or 1 if `data` is more than 1.", ge=1, le=64)
    data: int | None = optional("Data parallel size within one replica. Default: 1.", ge=1, le=64)
    expert: Toggle | None = optional("Expert parallelism for mixture-of-experts models. Default: Disabled.")
    nodes: int | None = optional(
        "Number of nodes of each replica, which has one Pod on each. A LeaderWorkerSet runs replicas with several Pods. Default: 1. If "
        "the operator chooses the number of GPUs, it also chooses several nodes if the model fits on none; 1 forbids this. If only `nodes` "
        "is set, it chooses the other sizes.",
        ge=1,
        le=16,
    )

    @property
    def sets_sizes(self) -> bool:
        """Whether it sets sizes, and not only the number of nodes."""
        return self.nodes is None or any(size is not None for size in (self.tensor, self.pipeline, self.data, self.expert))


class NetworkSpec(Model):
    """The network between the Pods of a replica on several nodes."""

    interface: InterfaceName | None = optional(
        "Network interface for traffic between the nodes, for example eth0. NCCL and Gloo choose one by default."
    )
    rdma_resource: ResourceName | None = optional(
        "Extended resource of RDMA devices, for example rdma/hca. The engines get it, and the capability IPC_LOCK, which Pod Security "
        "Standards forbid in namespaces with the level baseline or restricted. Default: none, so that NCCL uses TCP."
    )
    rdma_count: int | None = optional("Quantity of `rdmaResource` for each Pod. Default: 1.", ge=1, le=64)


class SizingSpec(Model):
    """What the KV cache of a replica should hold. It decides which GPUs are large enough, and how many a replica needs."""

    context_length: Annotated[int, Field(ge=1, le=16_777_216)] | None = optional(
        "Tokens of one request, prompt and answer together. It becomes `--max-model-len`. Default: the context of the model, or a shorter "
        "one where that does not fit."
    )
    concurrency: Annotated[int, Field(ge=1, le=65_536)] | None = optional(
        "Requests of this length that the KV cache should hold at a time. Without `contextLength`, requests of 32768 tokens, or of the "
        "context of the model if that is less. Default: 1."
    )


class BackendsSpec(Model):
    """Kernel backends. If a field is Auto or absent, the operator chooses the backend."""

    optimize_for: OptimizeFor | None = optional("Throughput (many concurrent requests) or Latency (few). Default: Throughput.")
    attention: Backend | None = optional("Auto, or an attention backend of vLLM, for example FLASHINFER_MLA. Default: Auto.")
    mla_prefill: Backend | None = optional("Auto, or a prefill backend for MLA models, for example TRTLLM_RAGGED. Default: Auto.")
    gemm: Backend | None = optional("Auto, or a backend for quantized dense layers, for example DEEPGEMM. Default: Auto.")
    moe: Backend | None = optional("Auto, or a backend for expert layers, for example FLASHINFER_CUTLASS or MARLIN. Default: Auto.")
    all_to_all: Backend | None = optional(
        "Auto, or a communication backend for expert parallelism, for example deepep_low_latency. Default: Auto."
    )
    sampler: Backend | None = optional("Auto, FLASHINFER or NATIVE. Default: Auto.")
    tuning: Literal["None", "Measure"] | None = optional(
        "Measure: once for each model, GPU, version and workload, the backends that work are measured in turns in a helper Pod, with "
        "the load of `rollout.workload`. If one is faster by more than the measurements vary, it is rolled out. Default: None."
    )
    max_candidates: int | None = optional("Maximum candidates of `tuning`, with the current plan. Default: 3.", ge=2, le=8)


POD_TEMPLATE = open_objects(metadata="Labels and annotations of the Pods.", spec="Pod spec, as spec.template.spec of a Deployment.")


class VLLMDeploymentSpec(Model):
    """Desired state: model, GPUs, and how to serve."""

    model_config = ConfigDict(json_schema_extra=checked_by("spec"))
    preset_ref: operation.PresetReference | None = optional(
        "Preset with defaults for the fields below, merged when a plan is made. Default: none."
    )
    model: ModelSpec = Field(description="The model to serve.")
    adapters: list[AdapterSpec] | None = optional("LoRA adapters to serve beside the model.", list_map("name"), min_length=1, max_length=64)
    engine: EngineSpec | None = optional("The vLLM server to run.")
    accelerator: AcceleratorSpec | None = optional("GPUs that a replica may use, and their number.")
    parallelism: ParallelismSpec | None = optional("Distribution of one replica over its GPUs.")
    network: NetworkSpec | None = optional("The network between the Pods of a replica on several nodes.")
    sizing: SizingSpec | None = optional("What the KV cache of a replica should hold.")
    backends: BackendsSpec | None = optional("Kernel backends. The operator chooses those that are not set.")
    cache: operation.CacheSpec | None = optional("Storage of compiled kernels and graphs between starts.")
    weights: operation.WeightsSpec | None = optional(
        "Storage of weights from the hub between starts. Default: a separate PersistentVolumeClaim, sized for the model, with the storage "
        "class and access mode of the caches. If `cache.claimName` is set, or `cache.storage` is HostPath or EmptyDir, weights are stored "
        "with the caches."
    )
    replicas: int = Field(default=1, ge=0, le=1000, description="Desired number of Pods.")
    autoscaling: operation.AutoscalingSpec | None = optional("An autoscaler that sets `replicas`. Default: none.")
    rollout: operation.RolloutSpec | None = optional("Replacement of Pods when the spec changes.")
    service: operation.ServiceSpec | None = optional("The Service in front of the replicas.")
    network_policy: operation.NetworkPolicySpec | None = optional("A NetworkPolicy for the Pods. Default: none.")
    gateway: operation.GatewaySpec | None = optional("An HTTPRoute from a Gateway to the engine. Default: none.")
    auth: operation.AuthSpec | None = optional("Key that clients must send.")
    startup: operation.StartupSpec | None = optional("Time limits of a start, and what to do about a stalled one.")
    remediation: operation.RemediationSpec | None = optional("What the operator does about crashes.")
    pod_template: Annotated[dict[str, Any] | None, BeforeValidator(cut_depth)] = optional(
        "Pod template with `metadata` and `spec` as in a Deployment. It is merged into the rendered Pod template, lists by name, and its "
        "values take precedence.",
        POD_TEMPLATE,
    )


PRESET_PLURALS: Mapping[str, str] = {"VLLMPreset": "vllmpresets", "ClusterVLLMPreset": "clustervllmpresets"}
"""Name of each kind in URLs."""


class PresetEngineSpec(Model):
    """Defaults for the vLLM server."""

    image: Image | None = optional(
        "Container image. `image`, `version` and `distribution` are taken together, for objects that set none of them."
    )
    version: EngineVersion | None = optional("vLLM version in the image.")
    distribution: Distribution | None = optional("Build of vLLM in the image.")
    args: Annotated[list[EngineArgument], Field(max_length=64)] | None = optional(
        "Flags for `vllm serve`. A flag that the object sets, in `args` or `extraArgs`, is not taken.",
        list_map("name"),
        checked_by("arguments"),
    )
    env: list[EnvironmentVariable] | None = optional(
        "Environment variables of the engine container. A variable that the object sets is not taken.", list_map("name"), max_length=128
    )


class PresetAcceleratorSpec(Model):
    """Defaults for the choice of GPUs."""

    architectures: list[Architecture] | None = optional("Allowed GPU architectures.", LIST_ATOMIC, min_length=1, max_length=16)
    products: list[Product] | None = optional("Allowed GPU products.", LIST_ATOMIC, min_length=1, max_length=32)
    policy: AcceleratorPolicy | None = optional("Which GPUs are taken, as in a VLLMDeployment.")
    runtime_class_name: Name | None = optional("RuntimeClass of the Pods.")


class PresetSpec(Model):
    """Defaults for VLLMDeployments. A value that an object sets itself takes precedence."""

    engine: PresetEngineSpec | None = optional("Defaults for the vLLM server.")
    accelerator: PresetAcceleratorSpec | None = optional("Defaults for the choice of GPUs.")
    cache: operation.CacheSpec | None = optional(
        "Defaults for the storage of caches. Those of another kind of storage than the object's are not taken."
    )
    weights: operation.WeightsSpec | None = optional("Defaults for the storage of weights, as those for caches.")
    rollout: operation.RolloutSpec | None = optional(
        "Defaults for the replacement of Pods. `strategy`, `maxSurge` and `maxUnavailable` are taken together, for objects that set none "
        "of them."
    )
    pod_template: Annotated[dict[str, Any] | None, BeforeValidator(cut_depth)] = optional(
        "Pod template over which that of the object is merged: lists by name, tolerations appended.", POD_TEMPLATE
    )
