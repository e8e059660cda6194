"""`status` of a VLLMDeployment. All of it is bounded, and it is written only when it changes.

`Plan` is both `status.plan` and the result of the planner. A plan that is pinned in the status can be rendered
without being made again, so an upgrade of the operator does not replace running Pods.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from vllm_operator.api.base import Model, list_atomic, list_map, map_atomic
from vllm_operator.api.spec import Distribution

Text = Annotated[str, Field(max_length=1024)]
Timestamp = Annotated[str, Field(max_length=32, pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class ConditionStatus(StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model):
    """One aspect of the observed state, as metav1.Condition."""

    type: str = Field(max_length=316, description="Type of the condition in CamelCase.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    observed_generation: int | None = Field(default=None, ge=0, description="Generation of the spec that the condition was set for.")
    last_transition_time: Timestamp | None = Field(
        default=None, description="Time of the last change of `status`.", json_schema_extra={"format": "date-time"}
    )
    reason: str = Field(
        min_length=1,
        max_length=1024,
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        description="Cause of the status, as one word in CamelCase.",
    )
    message: str = Field(max_length=32768, description="Observed state, and what the user can do about it.")


class ChosenBy(StrEnum):
    """Who made a choice."""

    RULE = "Rule"
    USER = "User"
    ENGINE = "Engine"


class BackendChoice(Model):
    """A kernel backend and the reason for its choice."""

    component: str = Field(max_length=64, description="Part of the engine that the backend implements, for example MoE or MLADecode.")
    backend: str = Field(max_length=128, description="Name of the backend in vLLM.")
    chosen_by: ChosenBy = Field(
        description="Rule: chosen by a rule of the operator. User: set in the spec. Engine: the default of vLLM; the operator sets nothing."
    )
    reason: Text = Field(description="Reason for the choice, in one sentence.")
    source: str | None = Field(default=None, max_length=512, description="Source of this knowledge.")
    alternatives: list[Annotated[str, Field(max_length=128)]] | None = Field(
        default=None,
        max_length=4,
        description="Backends that vLLM may select instead at run time.",
        json_schema_extra=list_atomic(),
    )
    observed: str | None = Field(default=None, max_length=128, description="Backend that the log of the engine reports.")


class PlannedVariable(Model):
    """An environment variable that the operator sets."""

    name: str = Field(max_length=256, description="Name of the variable.")
    value: str = Field(max_length=4096, description="Value of the variable.")
    reason: Text | None = Field(default=None, description="Reason for the value.")


class PlannedArgument(Model):
    """A flag that the operator passes to `vllm serve`."""

    name: str = Field(max_length=128, description="Flag with its leading dashes.")
    value: str | None = Field(default=None, max_length=4096, description="Value. Absent for a flag without a value.")
    reason: Text | None = Field(default=None, description="Reason for the flag.")


class NodeRequirement(Model):
    """A requirement on the labels of a node, as in node affinity."""

    key: str = Field(max_length=317, description="Key of the label.")
    operator: str = Field(max_length=16, description="In, NotIn, Exists or DoesNotExist.")
    values: list[Annotated[str, Field(max_length=63)]] | None = Field(
        default=None, max_length=64, description="Values for In and NotIn.", json_schema_extra=list_atomic()
    )


class ModelFact(Model):
    """A fact about the model that affects the choice of kernels."""

    name: str = Field(max_length=64, description="Name of the fact, for example attention or experts.")
    value: str = Field(max_length=128, description="Value of the fact.")
    source: str = Field(max_length=64, description="Source: spec.model.facts, config.json on the hub, or the table of well-known models.")


class WeightsPlace(StrEnum):
    """The volume that stores downloaded weights."""

    WITH_CACHES = "WithCaches"
    OWN_VOLUME = "OwnVolume"


class PlannedWeights(Model):
    """Storage of downloaded weights."""

    place: WeightsPlace = Field(description="OwnVolume: a separate volume. WithCaches: the directory `models` on the volume of the caches.")
    volume_size: str | None = Field(default=None, max_length=32, description="Size of their PersistentVolumeClaim.")


class CacheMarker(StrEnum):
    """Writer of the marker file in a cache directory."""

    INIT_CONTAINER = "InitContainer"


class Plan(Model):
    """GPU, image, backends, flags and variables for one generation of the spec, each with its reason. Pinned until the spec changes."""

    observed_generation: int | None = Field(default=None, ge=0, description="Generation of the spec that the plan was made for.")
    spec_digest: str | None = Field(default=None, max_length=64, description="Digest of that spec without replicas.")
    catalog_version: str = Field(max_length=64, description="Version of the catalog that the plan was made with.")
    replan_token: str | None = Field(default=None, max_length=256, description="Value of the replan annotation when the plan was made.")
    model: str = Field(max_length=1024, description="Model argument of the engine.")
    image: str = Field(max_length=1024, description="Container image.")
    engine_version: str | None = Field(default=None, max_length=64, description="vLLM version. Absent if unknown.")
    distribution: Distribution = Field(description="Build of vLLM in the image.")
    architecture: str | None = Field(default=None, max_length=16, description="GPU architecture, for example sm_90. Absent if unknown.")
    product: str | None = Field(default=None, max_length=128, description="GPU product. Absent if unknown.")
    memory_mebibytes: int | None = Field(default=None, ge=0, description="Memory of one GPU or MIG slice in MiB. Absent if unknown.")
    resource: str = Field(max_length=256, description="Extended resource that each Pod requests, for example nvidia.com/gpu.")
    count: int = Field(ge=0, le=64, description="Quantity of the resource that each Pod requests.")
    node_requirements: list[NodeRequirement] = Field(
        default_factory=list, max_length=32, description="Node affinity of the Pods.", json_schema_extra=list_atomic()
    )
    cache_key: str = Field(max_length=63, description="Cache directory on the volume.")
    cache_key_parts: list[PlannedVariable] = Field(
        default_factory=list,
        max_length=16,
        description="Inputs of the cache key.",
        json_schema_extra=list_map("name"),
    )
    cache_marker: CacheMarker | None = Field(
        default=None,
        description="Writer of the file that marks the cache directory as created by the operator, so that cleaning may delete it "
        "when it is unused. Absent in plans of earlier versions, which write no such file.",
    )
    weights: PlannedWeights | None = Field(default=None, description="Storage of downloaded weights.")
    resource_per_node: int | None = Field(
        default=None, ge=0, description="Quantity of the resource on each of the chosen nodes. Absent if unknown."
    )
    model_facts: list[ModelFact] = Field(
        default_factory=list,
        max_length=16,
        description="Facts about the model that were known when the plan was made, each with its source.",
        json_schema_extra=list_map("name"),
    )
    backends: list[BackendChoice] = Field(
        default_factory=list,
        max_length=32,
        description="Kernel backends, each with the reason for its choice.",
        json_schema_extra=list_map("component"),
    )
    env: list[PlannedVariable] = Field(
        default_factory=list,
        max_length=128,
        description="Variables that the operator sets.",
        json_schema_extra=list_map("name"),
    )
    args: list[PlannedArgument] = Field(
        default_factory=list,
        max_length=64,
        description="Flags that the operator sets.",
        json_schema_extra=list_map("name"),
    )
    notes: list[Text] = Field(
        default_factory=list,
        max_length=32,
        description="Warnings and remarks, for example an approximated version or a user's value that overrides a rule.",
        json_schema_extra=list_atomic(),
    )


class CacheState(StrEnum):
    """State of the caches with the current key."""

    COLD = "Cold"
    PRIMING = "Priming"
    WARM = "Warm"
    QUARANTINED = "Quarantined"


class StageDuration(Model):
    """Duration of one stage of a start with the current cache key."""

    stage: str = Field(max_length=64, description="Name of the stage.")
    cold_seconds: int | None = Field(default=None, ge=0, description="Duration in the last cold start, in seconds.")
    warm_seconds: int | None = Field(default=None, ge=0, description="Duration in the last warm start, in seconds.")


class QuarantinedCache(Model):
    """A damaged cache directory that is no longer used."""

    key: str = Field(max_length=63, description="Cache key, the name of the directory.")
    time: Timestamp = Field(description="Time of the quarantine.", json_schema_extra={"format": "date-time"})
    signature: str = Field(max_length=128, description="Name of the crash that showed the damage.")


class CacheStatus(Model):
    """Observed state of the caches."""

    key: str | None = Field(default=None, max_length=63, description="Cache key, the name of the directory on the volume.")
    state: CacheState | None = Field(default=None, description="State of the caches: Cold, Priming, Warm or Quarantined.")
    claim_name: str | None = Field(default=None, max_length=253, description="PersistentVolumeClaim of the caches.")
    image_digest: str | None = Field(default=None, max_length=128, description="Digest of the image that fills the caches.")
    weights_claim_name: str | None = Field(
        default=None, max_length=253, description="PersistentVolumeClaim of downloaded weights. Absent if they have no separate one."
    )
    generation: int | None = Field(default=None, ge=0, description="Generation of the caches, raised with each quarantine.")
    cold_start_seconds: int | None = Field(default=None, ge=0, description="Duration of the last cold start with this key, in seconds.")
    warm_start_seconds: int | None = Field(default=None, ge=0, description="Duration of the last warm start with this key, in seconds.")
    saved_seconds: int | None = Field(default=None, ge=0, description="Last cold start minus last warm start, in seconds.")
    quarantined: list[QuarantinedCache] | None = Field(
        default=None,
        max_length=8,
        description="Damaged cache directories that are no longer used, newest last.",
        json_schema_extra=list_map("key"),
    )
    priming_skipped: Text | None = Field(default=None, description="Why requested priming was skipped.")
    stages: list[StageDuration] | None = Field(
        default=None,
        max_length=16,
        description="Durations of the longer stages with this key. The next start is estimated from them.",
        json_schema_extra=list_map("stage"),
    )


class PodStartup(Model):
    """The start of one Pod."""

    name: str = Field(max_length=253, description="Name of the Pod.")
    stage: str = Field(max_length=64, description="Current stage.")
    completed: int | None = Field(default=None, ge=0, description="Completed units of this stage.")
    total: int | None = Field(default=None, ge=0, description="Total units of this stage.")
    restarts: int | None = Field(default=None, ge=0, description="Number of restarts of the engine container.")


class StartupStatus(Model):
    """The start in progress. Pods that are furthest behind come first."""

    stage: str | None = Field(default=None, max_length=64, description="Stage of the Pod that is furthest behind.")
    completed: int | None = Field(default=None, ge=0, description="Completed units of this stage.")
    total: int | None = Field(default=None, ge=0, description="Total units of this stage.")
    message: Text | None = Field(default=None, description="Progress as a sentence.")
    stage_since: Timestamp | None = Field(
        default=None, description="Time when that Pod entered this stage.", json_schema_extra={"format": "date-time"}
    )
    update_time: Timestamp | None = Field(
        default=None,
        description="Time of the last update. Small progress is written with a delay of some seconds.",
        json_schema_extra={"format": "date-time"},
    )
    eta_seconds: int | None = Field(
        default=None,
        ge=0,
        description="Estimated remaining seconds of the stage from updateTime on: from the engine's own progress, else from the last start "
        "with the same caches, else from a measurement elsewhere, which the message names. Absent if unknown or exceeded.",
    )
    pods: list[PodStartup] = Field(
        default_factory=list, max_length=16, description="Pods that are starting, at most 16.", json_schema_extra=list_map("name")
    )


class CrashStatus(Model):
    """The last crash."""

    signature: str = Field(max_length=128, description="Name of the matching crash signature, or Unknown.")
    cause: Text = Field(description="Cause of the crash.")
    remedy: Text | None = Field(default=None, description="Recommended remedy.")
    reference: str | None = Field(default=None, max_length=512, description="Link to more information.")
    pod: str = Field(max_length=253, description="Name of the Pod that crashed.")
    exit_code: int | None = Field(default=None, description="Exit code of the engine container.")
    restarts: int | None = Field(default=None, ge=0, description="Number of restarts of the container before the crash.")
    time: Timestamp | None = Field(default=None, description="Time of the crash.", json_schema_extra={"format": "date-time"})
    excerpt: str | None = Field(default=None, max_length=2048, description="Relevant lines of the log, without secrets.")


class ChangeKind(StrEnum):
    """Kind of a change."""

    ARGUMENT = "Argument"
    VARIABLE = "Variable"


class ChangeAction(StrEnum):
    """Action of a change."""

    SET = "Set"
    REMOVE = "Remove"


class RemedyChange(Model):
    """A flag or variable that a remedy sets or removes."""

    kind: ChangeKind = Field(description="Argument: a flag of `vllm serve`. Variable: an environment variable.")
    action: ChangeAction = Field(description="Set or Remove.")
    name: str = Field(max_length=256, description="Flag with its leading dashes, or name of the variable.")
    value: str | None = Field(default=None, max_length=1024, description="Value. Absent for a flag without a value.")


class AppliedRemedy(Model):
    """A remedy that the operator applied to the plan. It ends when the spec changes."""

    attempt: int = Field(ge=1, le=10, description="Attempt number, from 1.")
    signature: str = Field(max_length=128, description="Name of the crash that the remedy is for.")
    changes: list[RemedyChange] = Field(max_length=16, description="Changes to the plan.", json_schema_extra=list_atomic())
    reason: Text = Field(description="Reason for the remedy.")
    since: Timestamp = Field(description="Time when the remedy was applied.", json_schema_extra={"format": "date-time"})


class RemediationState(StrEnum):
    """Action of the operator about the last crash."""

    SUGGESTED = "Suggested"
    APPLIED = "Applied"
    GAVE_UP = "GaveUp"
    STOPPED = "Stopped"


class RemediationStatus(Model):
    """Remedies and restarts that the operator suggested or carried out for this spec."""

    observed_generation: int | None = Field(default=None, ge=0, description="Generation of the spec that the remediation is for.")
    state: RemediationState | None = Field(
        default=None,
        description="Suggested: `command` contains the remedy. Applied: a remedy is in force. GaveUp: the remedies did not help. "
        "Stopped: scaled to zero because of a crash that a restart cannot fix.",
    )
    message: Text | None = Field(default=None, description="State as a sentence.")
    command: str | None = Field(default=None, max_length=4096, description="kubectl command that makes the suggested change.")
    signature: str | None = Field(default=None, max_length=128, description="Name of the crash that led to this state.")
    pod: str | None = Field(default=None, max_length=253, description="Name of the Pod that crashed.")
    restarts: int | None = Field(default=None, ge=0, description="Number of restarts of that Pod before the crash.")
    applied: list[AppliedRemedy] = Field(
        default_factory=list, max_length=10, description="Remedies in force, oldest first.", json_schema_extra=list_atomic()
    )
    stalled_pods: list[Annotated[str, Field(max_length=253)]] = Field(
        default_factory=list,
        max_length=10,
        description="Pods that the operator deleted because their start stalled.",
        json_schema_extra=list_atomic(),
    )

    @model_serializer(mode="wrap")
    def _without_empty_lists(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value != []}


class VLLMDeploymentStatus(Model):
    """Observed state."""

    observed_generation: int | None = Field(
        default=None, ge=-1, description="Generation of the spec that the status was observed for. -1 until the first reconciliation."
    )
    replicas: int | None = Field(default=None, ge=0, description="Number of existing Pods.")
    ready_replicas: int | None = Field(default=None, ge=0, description="Number of ready Pods.")
    selector: str | None = Field(default=None, max_length=1024, description="Label selector of the Pods, for the scale subresource.")
    conditions: list[Condition] = Field(
        default_factory=list, max_length=16, description="Conditions, Ready first.", json_schema_extra=list_map("type")
    )
    # The plan is most of the status and always changes as a whole. With an owner per field, each write costs the API server 50 % more.
    plan: Plan | None = Field(default=None, description="The pinned plan.", json_schema_extra=map_atomic())
    cache: CacheStatus | None = Field(default=None, description="Observed state of the caches.")
    startup: StartupStatus | None = Field(default=None, description="The start in progress.")
    last_crash: CrashStatus | None = Field(default=None, description="The last crash.")
    remediation: RemediationStatus | None = Field(default=None, description="Remedies and restarts for this spec.")
