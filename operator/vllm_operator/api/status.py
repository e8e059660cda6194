"""`status` of a VLLMDeployment: an answer, not a log. Bounded, and written only when it changes.

`Plan` is both `status.plan` and what the planner returns: a plan that is pinned in the status can be
rendered again without planning again, which is how a newer operator leaves running Pods alone.
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
    """One aspect of the state, as metav1.Condition."""

    type: str = Field(max_length=316, description="Aspect that this condition is about.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    observed_generation: int | None = Field(default=None, ge=0, description="Generation of the spec that this was set for.")
    last_transition_time: Timestamp | None = Field(
        default=None, description="When `status` last changed.", json_schema_extra={"format": "date-time"}
    )
    reason: str = Field(
        min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", description="The cause in one CamelCase word."
    )
    message: str = Field(max_length=32768, description="What is the case, and what to do about it.")


class ChosenBy(StrEnum):
    """Who made a choice."""

    RULE = "Rule"
    USER = "User"
    ENGINE = "Engine"


class BackendChoice(Model):
    """One kernel backend and why it was chosen."""

    component: str = Field(max_length=64, description="Part of the engine, for example MoE or MLADecode.")
    backend: str = Field(max_length=128, description="Backend by vLLM's name.")
    chosen_by: ChosenBy = Field(
        description="Rule: a rule of the operator. User: forced in the spec. Engine: vLLM chooses this by itself, nothing is set."
    )
    reason: Text = Field(description="Why, in one sentence.")
    source: str | None = Field(default=None, max_length=512, description="Where this is known from.")
    alternatives: list[Annotated[str, Field(max_length=128)]] | None = Field(
        default=None,
        max_length=4,
        description="Backends that vLLM may take instead by itself, for reasons that cannot be seen from outside.",
        json_schema_extra=list_atomic(),
    )
    observed: str | None = Field(default=None, max_length=128, description="Backend that the engine's log names.")


class PlannedVariable(Model):
    """One environment variable that the operator sets."""

    name: str = Field(max_length=256, description="Name of the variable.")
    value: str = Field(max_length=4096, description="Value.")
    reason: Text | None = Field(default=None, description="Why it is set.")


class PlannedArgument(Model):
    """One flag that the operator passes to `vllm serve`."""

    name: str = Field(max_length=128, description="Flag with its leading dashes.")
    value: str | None = Field(default=None, max_length=4096, description="Value; absent for a flag that takes none.")
    reason: Text | None = Field(default=None, description="Why it is passed.")


class NodeRequirement(Model):
    """One requirement on the labels of the node, as in node affinity."""

    key: str = Field(max_length=317, description="Label.")
    operator: str = Field(max_length=16, description="In, NotIn, Exists or DoesNotExist.")
    values: list[Annotated[str, Field(max_length=63)]] | None = Field(
        default=None, max_length=64, description="Values for In and NotIn.", json_schema_extra=list_atomic()
    )


class ModelFact(Model):
    """One fact about the model that the choice of kernels depends on."""

    name: str = Field(max_length=64, description="Fact, for example attention or experts.")
    value: str = Field(max_length=128, description="Value as text.")
    source: str = Field(
        max_length=64, description="Where it is from: spec.model.facts, config.json on the hub, or the table of well-known models."
    )


class WeightsPlace(StrEnum):
    """Where downloaded weights are kept."""

    WITH_CACHES = "WithCaches"
    OWN_VOLUME = "OwnVolume"


class PlannedWeights(Model):
    """Where downloaded weights are kept."""

    place: WeightsPlace = Field(
        description="OwnVolume: a volume of their own. WithCaches: in the directory `models` of the caches' volume."
    )
    volume_size: str | None = Field(default=None, max_length=32, description="Size of their claim, where the operator creates one.")


class CacheMarker(StrEnum):
    """Who writes the marker into a directory of caches."""

    INIT_CONTAINER = "InitContainer"


class Plan(Model):
    """What was decided for one generation of the spec, and why. Pinned until the spec changes."""

    observed_generation: int | None = Field(default=None, ge=0, description="Generation of the spec that this was planned for.")
    spec_digest: str | None = Field(
        default=None, max_length=64, description="Digest of that spec without replicas: scaling makes no new plan."
    )
    catalog_version: str = Field(max_length=64, description="Version of the rules that it was planned with.")
    replan_token: str | None = Field(default=None, max_length=256, description="Value of the replan annotation at planning.")
    model: str = Field(max_length=1024, description="Model as passed to the engine.")
    image: str = Field(max_length=1024, description="Container image.")
    engine_version: str | None = Field(
        default=None, max_length=64, description="vLLM version whose table was used; absent if the version is not known."
    )
    distribution: Distribution = Field(description="Build of vLLM.")
    architecture: str | None = Field(default=None, max_length=16, description="GPU architecture; absent if unknown.")
    product: str | None = Field(default=None, max_length=128, description="GPU product; absent if unknown.")
    memory_mebibytes: int | None = Field(default=None, ge=0, description="Memory of one GPU or slice; absent if unknown.")
    resource: str = Field(max_length=256, description="Extended resource that the Pod asks for, for example nvidia.com/gpu.")
    count: int = Field(ge=0, le=64, description="How many of the resource.")
    node_requirements: list[NodeRequirement] = Field(
        default_factory=list, max_length=32, description="Where the Pods may run.", json_schema_extra=list_atomic()
    )
    cache_key: str = Field(max_length=63, description="Directory of the caches on the claim: equal keys share it.")
    cache_key_parts: list[PlannedVariable] = Field(
        default_factory=list,
        max_length=16,
        description="What the cache key was derived from.",
        json_schema_extra=list_map("name"),
    )
    cache_marker: CacheMarker | None = Field(
        default=None,
        description="Who marks the directory of the caches as the operator's, so that it can be removed once nobody uses it. "
        "Absent in plans of earlier versions: nobody.",
    )
    weights: PlannedWeights | None = Field(default=None, description="Where downloaded weights are kept.")
    resource_per_node: int | None = Field(
        default=None, ge=0, description="How many of the resource the nodes chosen have; absent if unknown."
    )
    model_facts: list[ModelFact] = Field(
        default_factory=list,
        max_length=16,
        description="What was known of the model at planning, and from where. What is not listed was unknown.",
        json_schema_extra=list_map("name"),
    )
    backends: list[BackendChoice] = Field(
        default_factory=list, max_length=32, description="Kernel backends, each with its reason.", json_schema_extra=list_map("component")
    )
    env: list[PlannedVariable] = Field(
        default_factory=list, max_length=128, description="Variables set by the operator.", json_schema_extra=list_map("name")
    )
    args: list[PlannedArgument] = Field(
        default_factory=list, max_length=64, description="Flags passed by the operator.", json_schema_extra=list_map("name")
    )
    notes: list[Text] = Field(
        default_factory=list,
        max_length=32,
        description="What else the user should know: versions approximated, user values that beat a rule, warnings.",
        json_schema_extra=list_atomic(),
    )


class CacheState(StrEnum):
    """How full the caches under the current key are."""

    COLD = "Cold"
    PRIMING = "Priming"
    WARM = "Warm"
    QUARANTINED = "Quarantined"


class StageDuration(Model):
    """How long a stage of a start took with the present cache key."""

    stage: str = Field(max_length=64, description="Stage of the start.")
    cold_seconds: int | None = Field(default=None, ge=0, description="In the last cold start.")
    warm_seconds: int | None = Field(default=None, ge=0, description="In the last warm start.")


class QuarantinedCache(Model):
    """Caches that were left behind because they are damaged."""

    key: str = Field(max_length=63, description="Directory on the claim.")
    time: Timestamp = Field(description="Since when.", json_schema_extra={"format": "date-time"})
    signature: str = Field(max_length=128, description="The crash that showed it.")


class CacheStatus(Model):
    """The caches."""

    key: str | None = Field(default=None, max_length=63, description="Directory on the claim.")
    state: CacheState | None = Field(default=None, description="Cold, Priming, Warm or Quarantined.")
    claim_name: str | None = Field(default=None, max_length=253, description="The PersistentVolumeClaim.")
    image_digest: str | None = Field(
        default=None, max_length=128, description="Digest of the image that fills them, once a Pod has shown it."
    )
    weights_claim_name: str | None = Field(
        default=None, max_length=253, description="The PersistentVolumeClaim of downloaded weights, where they have one of their own."
    )
    generation: int | None = Field(default=None, ge=0, description="Raised each time a damaged cache is left behind.")
    cold_start_seconds: int | None = Field(default=None, ge=0, description="Duration of the last cold start with this key.")
    warm_start_seconds: int | None = Field(default=None, ge=0, description="Duration of the last warm start with this key.")
    saved_seconds: int | None = Field(
        default=None, ge=0, description="What the last warm start saved against the last cold one with this key."
    )
    quarantined: list[QuarantinedCache] | None = Field(
        default=None,
        max_length=8,
        description="Directories that were left behind because what they hold is damaged, the latest last.",
        json_schema_extra=list_map("key"),
    )
    priming_skipped: Text | None = Field(
        default=None, description="Why the caches were not filled ahead of a rollout, where that was wanted."
    )
    stages: list[StageDuration] | None = Field(
        default=None,
        max_length=16,
        description="How long the longer stages took with this key; tells what to expect of the next start.",
        json_schema_extra=list_map("stage"),
    )


class PodStartup(Model):
    """The start of one Pod."""

    name: str = Field(max_length=253, description="Name of the Pod.")
    stage: str = Field(max_length=64, description="Stage that it is in.")
    completed: int | None = Field(default=None, ge=0, description="Units of this stage done.")
    total: int | None = Field(default=None, ge=0, description="Units of this stage in all.")
    restarts: int | None = Field(default=None, ge=0, description="Restarts of the engine container.")


class StartupStatus(Model):
    """The start that is under way, worst Pod first."""

    stage: str | None = Field(default=None, max_length=64, description="Stage of the Pod that is furthest behind.")
    completed: int | None = Field(default=None, ge=0, description="Units of this stage done.")
    total: int | None = Field(default=None, ge=0, description="Units of this stage in all.")
    message: Text | None = Field(default=None, description="The same in words.")
    stage_since: Timestamp | None = Field(
        default=None, description="Since when that Pod is in this stage.", json_schema_extra={"format": "date-time"}
    )
    update_time: Timestamp | None = Field(
        default=None,
        description="When this was last written; small progress is held back for some seconds.",
        json_schema_extra={"format": "date-time"},
    )
    eta_seconds: int | None = Field(
        default=None,
        ge=0,
        description="About how many seconds the stage lasts from updateTime on: by the engine's count, else as long as in the last start "
        "with the same caches, else as long as where it was measured (the message says where). Absent if unknown, or exceeded.",
    )
    pods: list[PodStartup] = Field(
        default_factory=list, max_length=16, description="Pods that are starting; at most 16.", json_schema_extra=list_map("name")
    )


class CrashStatus(Model):
    """The last crash."""

    signature: str = Field(max_length=128, description="Name of the known crash, or Unknown.")
    cause: Text = Field(description="What went wrong.")
    remedy: Text | None = Field(default=None, description="What to do.")
    reference: str | None = Field(default=None, max_length=512, description="Where more is said about it.")
    pod: str = Field(max_length=253, description="Pod that crashed.")
    exit_code: int | None = Field(default=None, description="Exit code of the engine container.")
    restarts: int | None = Field(default=None, ge=0, description="How often the container had been restarted.")
    time: Timestamp | None = Field(default=None, description="When.", json_schema_extra={"format": "date-time"})
    excerpt: str | None = Field(default=None, max_length=2048, description="The telling lines of the log, secrets removed.")


class ChangeKind(StrEnum):
    """What a remedy changes."""

    ARGUMENT = "Argument"
    VARIABLE = "Variable"


class ChangeAction(StrEnum):
    """How a remedy changes it."""

    SET = "Set"
    REMOVE = "Remove"


class RemedyChange(Model):
    """One flag or variable that a remedy sets or removes."""

    kind: ChangeKind = Field(description="Argument: a flag of `vllm serve`. Variable: an environment variable.")
    action: ChangeAction = Field(description="Set or Remove.")
    name: str = Field(max_length=256, description="Flag with its leading dashes, or name of the variable.")
    value: str | None = Field(default=None, max_length=1024, description="Value; absent for a flag that takes none.")


class AppliedRemedy(Model):
    """A remedy that the operator has applied on top of the plan. It is undone when the spec changes."""

    attempt: int = Field(ge=1, le=10, description="The how manieth remedy for this spec.")
    signature: str = Field(max_length=128, description="Name of the crash that it is for.")
    changes: list[RemedyChange] = Field(max_length=16, description="What was changed.", json_schema_extra=list_atomic())
    reason: Text = Field(description="Why.")
    since: Timestamp = Field(description="Since when.", json_schema_extra={"format": "date-time"})


class RemediationState(StrEnum):
    """What the operator has done about the last crash."""

    SUGGESTED = "Suggested"
    APPLIED = "Applied"
    GAVE_UP = "GaveUp"
    STOPPED = "Stopped"


class RemediationStatus(Model):
    """What the operator suggests or has done by itself about crashes and stalls of this spec."""

    observed_generation: int | None = Field(default=None, ge=0, description="Generation of the spec that this is about.")
    state: RemediationState | None = Field(
        default=None,
        description="Suggested: `command` holds a change. Applied: a remedy is in force. GaveUp: remedies did not help. "
        "Stopped: scaled to zero because of a crash that no restart cures.",
    )
    message: Text | None = Field(default=None, description="The same in words.")
    command: str | None = Field(default=None, max_length=4096, description="The change of the spec as a command that can be pasted.")
    signature: str | None = Field(default=None, max_length=128, description="Name of the crash that this was decided for.")
    pod: str | None = Field(default=None, max_length=253, description="Pod of that crash.")
    restarts: int | None = Field(default=None, ge=0, description="Restarts of that Pod before that crash.")
    applied: list[AppliedRemedy] = Field(
        default_factory=list, max_length=10, description="Remedies in force, oldest first.", json_schema_extra=list_atomic()
    )
    stalled_pods: list[Annotated[str, Field(max_length=253)]] = Field(
        default_factory=list,
        max_length=10,
        description="Pods that were deleted because their start had stalled.",
        json_schema_extra=list_atomic(),
    )

    @model_serializer(mode="wrap")
    def _without_empty_lists(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value != []}


class VLLMDeploymentStatus(Model):
    """What is the case."""

    observed_generation: int | None = Field(default=None, ge=0, description="Generation of the spec that this status is about.")
    replicas: int | None = Field(default=None, ge=0, description="Pods that exist.")
    ready_replicas: int | None = Field(default=None, ge=0, description="Pods that serve.")
    selector: str | None = Field(default=None, max_length=1024, description="Label selector of the Pods, for the scale subresource.")
    conditions: list[Condition] = Field(
        default_factory=list, max_length=16, description="Conditions, the summary first.", json_schema_extra=list_map("type")
    )
    # Most of the status, decided in one piece: with an owner for each of its fields every write costs the API server half as much again.
    plan: Plan | None = Field(default=None, description="What was decided, and why.", json_schema_extra=map_atomic())
    cache: CacheStatus | None = Field(default=None, description="The caches.")
    startup: StartupStatus | None = Field(default=None, description="The start that is under way.")
    last_crash: CrashStatus | None = Field(default=None, description="The last crash.")
    remediation: RemediationStatus | None = Field(
        default=None, description="What the operator suggests or has done by itself about crashes and stalls of this spec."
    )
