"""The plan, which a ControllerRevision contains.

`Plan` is the result of the planner. The current plan is rendered without planning again, so an upgrade of the operator does not replace
running Pods.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from vllm_operator.api.base import LIST_ATOMIC, OPEN_MAP, Model, Text, list_map, optional, repeated
from vllm_operator.api.operation import OnHang, PresetKind
from vllm_operator.api.spec import AcceleratorPolicy, Distribution, SizingSpec

ChosenBy = Literal["Rule", "User", "Engine"]
"""Who made a choice."""


class BackendChoice(Model):
    """A kernel backend and the reason for its choice."""

    component: str = Field(max_length=64, description="Part of the engine that the backend implements, for example MoE or MLADecode.")
    backend: str = Field(max_length=128, description="Name of the backend in vLLM.")
    chosen_by: ChosenBy = Field(
        description="Rule: chosen by a rule of the operator. User: set in the spec. Engine: the default of vLLM; the operator sets nothing."
    )
    reason: Text = Field(description="Reason for the choice, in one sentence.")
    source: str | None = optional("Source of this knowledge.", max_length=512)
    alternatives: list[Annotated[str, Field(max_length=128)]] | None = optional(
        "Backends that vLLM may select instead at run time.", LIST_ATOMIC, max_length=4
    )


class GPUCandidate(Model):
    """A kind of GPU of the cluster when the plan was made."""

    gpu: str = Field(max_length=256, description="Number of GPUs that a replica would need, and their name.")
    count: int | None = optional("That number. Absent if the spec does not allow this kind of GPU.", ge=1)
    verdict: str = Field(max_length=256, description="Why it was chosen, or why not.")


class PlannedVariable(Model):
    """An environment variable that the operator sets."""

    name: str = Field(max_length=256, description="Name of the variable.")
    value: str = Field(max_length=4096, description="Value of the variable.")
    reason: Text | None = optional("Reason for the value.")


class PlannedArgument(Model):
    """A flag that the operator passes to `vllm serve`."""

    name: str = Field(max_length=128, description="Flag with its leading dashes.")
    value: str | None = optional("Value. Absent for a flag without a value.", max_length=4096)
    values: list[Annotated[str, Field(max_length=4096)]] | None = optional(
        "Values of a flag that takes several.", LIST_ATOMIC, max_length=64
    )
    reason: Text | None = optional("Reason for the flag.")

    @property
    def text(self) -> str | None:
        """The value, or the values with spaces between them; None without a value."""
        return " ".join(self.values) if self.values else self.value


class NodeRequirement(Model):
    """A requirement on the labels of a node, as in node affinity."""

    key: str = Field(max_length=317, description="Key of the label.")
    operator: str = Field(max_length=16, description="In, NotIn, Exists or DoesNotExist.")
    values: list[Annotated[str, Field(max_length=63)]] | None = optional("Values for In and NotIn.", LIST_ATOMIC, max_length=64)


class ModelFact(Model):
    """A fact about the model that affects the choice of kernels."""

    name: str = Field(max_length=64, description="Name of the fact, for example attention or experts.")
    value: str = Field(max_length=128, description="Value of the fact.")
    source: str = Field(max_length=64, description="Source: spec.model.facts, config.json on the hub, or the table of well-known models.")


class PlannedWeights(Model):
    """Storage of downloaded weights."""

    place: Literal["WithCaches", "OwnVolume"] = Field(
        default="WithCaches",
        description="OwnVolume: a separate volume. WithCaches: the directory `models` on the volume of the caches.",
    )
    volume_size: str | None = optional("Size of their PersistentVolumeClaim.", max_length=32)
    size_bytes: int | None = optional("Size of the weight files in bytes. Absent if unknown.", ge=0)


class EngineMemory(Model):
    """Memory of one GPU that an engine uses, or will use."""

    weights_mebibytes: int = Field(description="Weights in MiB.")
    kv_cache_mebibytes: int = Field(description="KV cache in MiB.")


class PlannedRequests(Model):
    """CPU and memory that the engine container requests, besides its GPUs."""

    cpu: str | None = optional("CPU as a quantity. Absent if `spec.podTemplate` sets it.", max_length=32)
    memory: str | None = optional("Memory as a quantity. Absent if `spec.podTemplate` sets it.", max_length=32)


class PlannedArtifact(Model):
    """How Pods fetch caches from a registry. Pinned, so that a new catalog does not change Pods."""

    folders: list[Annotated[str, Field(max_length=64)]] = Field(
        max_length=64, description="Folders of the cache directory that an artifact may fill.", json_schema_extra=LIST_ATOMIC
    )
    rejected: list[Annotated[str, Field(max_length=71)]] = repeated(
        "Digests of artifacts that are not fetched again, because a start with them crashed.", LIST_ATOMIC, max_length=8
    )


class PlannedPreset(Model):
    """The preset that a plan was made with. Its content is pinned: an edit of the preset changes nothing that runs."""

    kind: PresetKind = Field(description="VLLMPreset or ClusterVLLMPreset.")
    name: str = Field(max_length=253, description="Name of the preset.")
    spec: dict[str, Any] = Field(description="Spec of the preset when the plan was made.", json_schema_extra=OPEN_MAP)
    fields: list[Annotated[str, Field(max_length=512)]] = repeated(
        "Fields of the spec that come from the preset.", LIST_ATOMIC, max_length=256
    )

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Plan(Model):
    """GPU, image, backends, flags and variables for one generation of the spec, each with its reason. Pinned until the spec changes."""

    observed_generation: int | None = optional("Generation of the spec that the plan was made for.", ge=0)
    spec_digest: str | None = optional("Digest of that spec without replicas.", max_length=64)
    catalog_version: str = Field(max_length=64, description="Version of the catalog that the plan was made with.")
    replan_token: str | None = optional("Value of the replan annotation when the plan was made.", max_length=256)
    chosen_again: Text | None = optional(
        "Why the operator replaced the previous plan by itself. Absent if the spec changed or a new plan was requested."
    )
    preset: PlannedPreset | None = optional("Preset of the plan. Absent without `spec.presetRef`.")
    model: str = Field(max_length=1024, description="Model argument of the engine.")
    image: str = Field(max_length=1024, description="Container image.")
    tools_image: str = Field(max_length=1024, description="Image of the operator, from which Pods get its programs.")
    engine_version: str | None = optional("vLLM version. Absent if unknown.", max_length=64)
    distribution: Distribution = Field(description="Build of vLLM in the image.")
    architecture: str | None = optional("GPU architecture, for example sm_90. Absent if unknown.", max_length=16)
    product: str | None = optional("GPU product. Absent if unknown.", max_length=128)
    memory_mebibytes: int | None = optional("Memory of one GPU or MIG slice in MiB. Absent if unknown.", ge=0)
    resource: str = Field(max_length=256, description="Extended resource that each Pod requests, for example nvidia.com/gpu.")
    count: int = Field(ge=0, le=64, description="Quantity of the resource that each Pod requests.")
    nodes: int | None = optional("Pods of each replica, each on its own node. Absent for one Pod.", ge=2, le=16)
    uuids: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=64)] | None = optional(
        "UUIDs from CUDA_VISIBLE_DEVICES in `spec.engine.env` that the ResourceClaim requests. Absent if the variable is kept.", LIST_ATOMIC
    )
    node_requirements: list[NodeRequirement] = repeated("Node affinity of the Pods.", LIST_ATOMIC, max_length=32)
    cache_key: str = Field(max_length=63, description="Cache directory on the volume.")
    cache_key_parts: list[PlannedVariable] = repeated("Inputs of the cache key.", list_map("name"), max_length=16)
    cache_artifact: PlannedArtifact | None = optional("How Pods fetch caches from a registry. Absent without `spec.cache.artifact`.")
    drain_seconds: int = Field(default=0, ge=0, description="Seconds that requests in progress have to finish when a Pod stops.")
    endpoint_seconds: int | None = optional(
        "Seconds between the deletion of a Pod and SIGTERM, for clients and proxies to learn of it. Default: 10.", ge=0
    )
    on_hang: OnHang = Field(default="Restart", description="What the readiness probe does about an engine that hangs, besides failing.")
    deadline_seconds: int = Field(ge=0, description="Time limit of a start, in seconds.")
    requests: PlannedRequests = Field(default_factory=PlannedRequests, description="CPU and memory that the engine container requests.")
    weights: PlannedWeights = Field(default_factory=PlannedWeights, description="Storage of downloaded weights.")
    resource_per_node: int | None = optional("Quantity of the resource on each of the chosen nodes. Absent if unknown.", ge=0)
    provisioner: str | None = optional(
        "What would add a node with these GPUs. Absent if there were nodes when the plan was made.", max_length=256
    )
    time_slices: int | None = optional(
        "Pods that share each GPU by time-slicing. Absent if they do not, or if that is unknown.", ge=1, le=1024
    )
    sizing: SizingSpec | None = optional("`spec.sizing` when the GPUs were chosen.")
    memory: EngineMemory | None = optional(
        "Predicted memory of one GPU. The KV cache is negative if the rest does not fit. Absent if the sizes of the model are unknown."
    )
    policy: AcceleratorPolicy | None = optional("`spec.accelerator.policy` when the GPUs were chosen.")
    candidates: Annotated[list[GPUCandidate], Field(max_length=16)] | None = optional(
        "Kinds of GPUs of the cluster when the plan was made: the chosen one, then the others in the order of the policy.", LIST_ATOMIC
    )
    model_facts: list[ModelFact] = repeated(
        "Facts about the model that were known when the plan was made, each with its source.", list_map("name"), max_length=32
    )
    awaits_facts: bool | None = optional(
        "The model hub could not be asked. If it answers before the engine has started, a new plan is made."
    )
    backends: list[BackendChoice] = repeated("Kernel backends, each with the reason for its choice.", list_map("component"), max_length=32)
    env: list[PlannedVariable] = repeated("Variables that the operator sets.", list_map("name"), max_length=128)
    args: list[PlannedArgument] = repeated("Flags that the operator sets.", list_map("name"), max_length=64)
    notes: list[Text] = repeated(
        "Warnings and remarks, for example an approximated version or a user's value that overrides a rule.", LIST_ATOMIC, max_length=32
    )

    @property
    def device(self) -> str:
        """What each unit of the resource is, in words."""
        return "MIG slice" if self.mig_profile is not None else "GPU"

    @property
    def cache_generation(self) -> int:
        """Generation of the caches: the number of quarantined directories before this one."""
        value = next((part.value for part in self.cache_key_parts if part.name == "generation"), "")
        return int(value) if value.isdecimal() else 0

    @property
    def mig_profile(self) -> str | None:
        """Profile of the MIG slices, such as `1g.10gb`; None for whole GPUs."""
        return next((part.value for part in self.cache_key_parts if part.name == "migProfile" and part.value != "none"), None)

    @property
    def gpu(self) -> str | None:
        """Product of the GPU, or else its architecture, with the profile of MIG slices; None if both are unknown."""
        name = self.product or self.architecture
        return gpu_name(name, self.mig_profile) if name else None


def gpu_name(name: str, profile: str | None, number: int = 1) -> str:
    """Name a GPU or a MIG slice of it. `name` is the product or the title of the GPU."""
    return f"MIG slice{'s' * (number != 1)} {profile} of {name}" if profile else name
