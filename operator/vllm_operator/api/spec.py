"""`spec` of a VLLMDeployment: what the user asks for.

Descriptions here are what `kubectl explain` prints and what the API reference says. Bounds are there
because an unbounded string or list makes the cost of a CEL rule unbounded, which the API server refuses.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from vllm_operator.api import rules
from vllm_operator.api.base import Model, Name, checked_by, cut_depth, list_atomic, list_map, list_set, open_objects
from vllm_operator.api.fields import (
    Architecture,
    Backend,
    EngineVersion,
    FlagName,
    GpuUUID,
    Image,
    MigProfile,
    MigUUID,
    ModelURI,
    Product,
    VariableName,
    WeightSize,
)
from vllm_operator.api.operation import RemediationSpec, RolloutSpec, ServiceSpec, StartupSpec
from vllm_operator.api.storage import CacheSpec, WeightsSpec


class Distribution(StrEnum):
    """Which build of vLLM the image holds."""

    VLLM = "vLLM"
    NVLLM = "nvLLM"


class Attention(StrEnum):
    """How the model attends, as far as the choice of a kernel depends on it."""

    MHA = "MHA"
    GQA = "GQA"
    MLA = "MLA"
    SPARSE_MLA = "SparseMLA"
    HYBRID = "Hybrid"


class Quantization(StrEnum):
    """The number format of the weights."""

    BF16 = "BF16"
    FP16 = "FP16"
    FP8 = "FP8"
    FP8_BLOCK = "FP8Block"
    NVFP4 = "NVFP4"
    MXFP4 = "MXFP4"
    MXFP8 = "MXFP8"
    INT4 = "INT4"
    INT8 = "INT8"


class SecretKeyReference(Model):
    """A key of a Secret in the same namespace."""

    name: Name = Field(description="Name of the Secret.")
    key: str = Field(default="token", min_length=1, max_length=253, description="Key in the Secret; `token` if absent.")


class ModelFacts(Model):
    """What the operator must know of a model to choose kernels. What is given here beats what is looked up."""

    attention: Attention | None = Field(
        default=None,
        description="Attention kind. MLA: DeepSeek V3, R1, Kimi K2. SparseMLA: DeepSeek V3.2, GLM-5. "
        "Hybrid: linear attention or Mamba layers beside attention (Qwen3-Next, Nemotron-H).",
    )
    experts: int | None = Field(default=None, ge=0, le=65536, description="Number of routed experts; 0 for a dense model.")
    quantization: Quantization | None = Field(
        default=None,
        description="Number format of the weights. FP8Block is FP8 with 128x128 block scales (DeepSeek, Qwen3-FP8); "
        "FP8 is per tensor or per channel.",
    )
    routing_groups: int | None = Field(
        default=None, ge=0, le=4096, description="Expert groups of the router (`n_group` in config.json); 0 if the model has none."
    )
    weight_size: WeightSize | None = Field(
        default=None,
        description="Size of all weight files as a quantity, for example 640Gi.",
    )


class ModelSpec(Model):
    """The model to serve."""

    model_config = ConfigDict(json_schema_extra=checked_by(rules.REVISION_ON_HUB))
    uri: ModelURI = Field(
        description="Where the model is: `hf://organisation/name` on the model hub, or `pvc://claim/path` on a "
        "PersistentVolumeClaim of this namespace.",
    )
    revision: str | None = Field(default=None, min_length=1, max_length=256, description="Branch, tag or commit on the hub.")
    served_name: str | None = Field(
        default=None, min_length=1, max_length=256, description="Name that clients use; the part of `uri` after the scheme if absent."
    )
    token_secret_ref: SecretKeyReference | None = Field(default=None, description="Token for gated models on the hub.")
    facts: ModelFacts | None = Field(default=None, description="Facts about the model, for models that the operator cannot look up.")


class EngineArgument(Model):
    """One command line flag of the engine."""

    name: FlagName = Field(
        description="Flag, with or without leading dashes: `--max-model-len` or `max-model-len`.",
    )
    value: str | None = Field(default=None, max_length=16384, description="Value; absent for a flag that takes none.")


class EnvironmentVariable(Model):
    """One environment variable of the engine container, as in a Pod."""

    model_config = ConfigDict(json_schema_extra=checked_by(rules.VALUE_OR_SOURCE))
    name: VariableName = Field(description="Name of the variable.")
    value: str | None = Field(default=None, max_length=16384, description="Value as plain text.")
    value_from: dict[str, Any] | None = Field(
        default=None,
        description="Source of the value, as in a Pod (secretKeyRef, configMapKeyRef, fieldRef, resourceFieldRef).",
        json_schema_extra=open_objects(
            secretKeyRef="A key of a Secret.",
            configMapKeyRef="A key of a ConfigMap.",
            fieldRef="A field of the Pod.",
            resourceFieldRef="A resource of the container.",
        ),
    )


class EngineSpec(Model):
    """The vLLM server to run."""

    image: Image | None = Field(
        default=None,
        description="Container image; `vllm/vllm-openai:v<version>` if absent.",
    )
    version: EngineVersion | None = Field(
        default=None,
        description="vLLM version in the image. Needed where the image tag does not tell it (`latest`, a digest, an own build).",
    )
    distribution: Distribution | None = Field(default=None, description="Build of vLLM in the image; vLLM if absent.")
    args: list[EngineArgument] | None = Field(
        default=None,
        max_length=128,
        description="Flags for `vllm serve`. A flag given here beats the operator's choice.",
        json_schema_extra=list_map("name") | checked_by(*rules.ARGUMENTS),
    )
    env: list[EnvironmentVariable] | None = Field(
        default=None,
        max_length=256,
        description="Environment of the engine container. A variable given here beats the operator's choice.",
        json_schema_extra=list_map("name"),
    )


class Allocation(StrEnum):
    """How the Pod asks for its GPUs."""

    DEVICE_PLUGIN = "DevicePlugin"
    DRA = "DRA"


class MigSpec(Model):
    """A slice of a GPU instead of a whole one."""

    model_config = ConfigDict(json_schema_extra=checked_by(rules.MIG_SELECTED))
    profile: MigProfile | None = Field(
        default=None,
        description="MIG profile, for example 1g.10gb.",
    )
    uuids: list[MigUUID] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Pin to these MIG devices. Only dynamic resource allocation can do this: needs `allocation: DRA`.",
        json_schema_extra=list_set(),
    )


class AcceleratorSpec(Model):
    """Which GPUs a replica may use, and how many."""

    model_config = ConfigDict(json_schema_extra=checked_by(rules.MIG_UUID_NEEDS_DRA, rules.UUID_NEEDS_DRA, rules.UUID_OR_MIG))
    architectures: list[Architecture] | None = Field(
        default=None,
        min_length=1,
        max_length=16,
        description="GPU architectures in order of preference, for example sm_100, sm_90. Any architecture in the cluster if absent.",
        json_schema_extra=list_atomic(),
    )
    products: list[Product] | None = Field(
        default=None,
        min_length=1,
        max_length=32,
        description="GPU products as in the node label nvidia.com/gpu.product, in order of preference.",
        json_schema_extra=list_atomic(),
    )
    count: int | None = Field(default=None, ge=1, le=64, description="GPUs of one replica; the product of the parallelism sizes if absent.")
    mig: MigSpec | None = Field(default=None, description="Use a MIG slice instead of whole GPUs.")
    uuids: list[GpuUUID] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Pin to these whole GPUs. Only dynamic resource allocation can do this: needs `allocation: DRA`.",
        json_schema_extra=list_set(),
    )
    allocation: Allocation | None = Field(
        default=None, description="Device plugin (extended resources) or dynamic resource allocation; DevicePlugin if absent."
    )
    runtime_class_name: Name | None = Field(
        default=None, description="RuntimeClass of the Pod, where the NVIDIA runtime is not the default one."
    )


class Toggle(StrEnum):
    """A switch that may get more positions later."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class ParallelismSpec(Model):
    """How one replica is spread over its GPUs."""

    tensor: int | None = Field(default=None, ge=1, le=64, description="Tensor parallel size; 1 if absent.")
    pipeline: int | None = Field(default=None, ge=1, le=64, description="Pipeline parallel size; 1 if absent.")
    data: int | None = Field(default=None, ge=1, le=64, description="Data parallel size inside one replica; 1 if absent.")
    expert: Toggle | None = Field(default=None, description="Expert parallelism for mixture-of-experts models; Disabled if absent.")


class OptimizeFor(StrEnum):
    """What to favour where one kernel is faster for one user and another for many."""

    THROUGHPUT = "Throughput"
    LATENCY = "Latency"


class BackendsSpec(Model):
    """Kernel backends. Auto, or absent: the operator chooses. A name: forced."""

    optimize_for: OptimizeFor | None = Field(default=None, description="Throughput (many requests) or Latency (few); Throughput if absent.")
    attention: Backend | None = Field(default=None, description="Attention backend by vLLM's name, for example FLASHINFER_MLA; or Auto.")
    mla_prefill: Backend | None = Field(default=None, description="Prefill backend of MLA models, for example TRTLLM_RAGGED; or Auto.")
    gemm: Backend | None = Field(default=None, description="Backend of quantized dense layers, for example DEEPGEMM; or Auto.")
    moe: Backend | None = Field(default=None, description="Backend of expert layers, for example FLASHINFER_CUTLASS or MARLIN; or Auto.")
    all_to_all: Backend | None = Field(
        default=None, description="Communication of expert parallelism, for example deepep_low_latency; or Auto."
    )
    sampler: Backend | None = Field(default=None, description="Sampler, FLASHINFER or NATIVE; or Auto.")


class VLLMDeploymentSpec(Model):
    """What to serve, on which GPUs, and how."""

    model_config = ConfigDict(json_schema_extra=checked_by(*rules.SPEC))
    model: ModelSpec = Field(description="The model to serve.")
    engine: EngineSpec | None = Field(default=None, description="The vLLM server to run.")
    accelerator: AcceleratorSpec | None = Field(default=None, description="Which GPUs a replica may use.")
    parallelism: ParallelismSpec | None = Field(default=None, description="How one replica is spread over its GPUs.")
    backends: BackendsSpec | None = Field(default=None, description="Kernel backends; the operator chooses what is not forced.")
    cache: CacheSpec | None = Field(default=None, description="Where compiled kernels and graphs are kept between starts.")
    weights: WeightsSpec | None = Field(
        default=None,
        description="Where weights from the hub are kept between starts. If absent: on a claim of their own, as large as the model "
        "needs, of the storage class and access mode of the caches' claim; but beside the caches where `cache.claimName` names a claim "
        "or the caches are on a directory of the node or of the Pod.",
    )
    replicas: int = Field(default=1, ge=0, le=1000, description="Number of serving Pods.")
    rollout: RolloutSpec | None = Field(default=None, description="How Pods are replaced when the spec changes.")
    service: ServiceSpec | None = Field(default=None, description="The Service in front of the replicas.")
    startup: StartupSpec | None = Field(default=None, description="How long a start may take.")
    remediation: RemediationSpec | None = Field(default=None, description="What to do with the known remedy of a crash.")
    pod_template: Annotated[dict[str, Any] | None, BeforeValidator(cut_depth)] = Field(
        default=None,
        description="Merged over the Pod template that the operator renders, lists by name; what is written here wins. "
        "Holds `metadata` and `spec` as in a Deployment.",
        json_schema_extra=open_objects(metadata="Labels and annotations of the Pods.", spec="As spec.template.spec of a Deployment."),
    )
