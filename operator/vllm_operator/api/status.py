"""`status` of a VLLMDeployment. All of it is bounded, and it is written only when it changes."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from vllm_operator.api.base import LIST_ATOMIC, MAP_ATOMIC, Model, Text, list_map, optional, repeated

LONGEST_STAGE_SECONDS = 7 * 86_400
"""A longer stage was measured by a clock that was changed in between."""
Timestamp = Annotated[str, Field(max_length=32, pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]
StageSeconds = Annotated[dict[str, Annotated[int, Field(ge=0, le=LONGEST_STAGE_SECONDS)]], Field(max_length=16)]
"""Seconds by stage."""
CacheState = Literal["Cold", "Compiling", "Filled", "Warm", "Quarantined"]
"""State of the caches with the current key."""
FILLED: tuple[CacheState, ...] = ("Filled", "Warm")
"""States of caches that the next start loads."""
RemediationState = Literal["Suggested", "Applied", "GaveUp", "Stopped"]
"""Action of the operator about the last crash."""
ChangeKind = Literal["Argument", "Variable"]
"""Kind of a change."""


class ConditionStatus(StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model):
    """One aspect of the observed state, as metav1.Condition."""

    type: str = Field(max_length=316, description="Type of the condition in CamelCase.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    observed_generation: int | None = optional("Generation of the spec that the condition was observed for.", ge=0)
    last_transition_time: Timestamp | None = optional("Time of the last change of `status`.", {"format": "date-time"})
    reason: str = Field(
        min_length=1,
        max_length=1024,
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        description="Cause of the status, as one word in CamelCase.",
    )
    message: str = Field(max_length=32768, description="Observed state, and what the user can do about it.")


class ObservedBackend(Model):
    """A kernel backend that the log of the engine reports."""

    component: str = Field(max_length=64, description="Part of the engine that the backend implements.")
    backend: str = Field(max_length=128, description="Name of the backend in the log.")


class EngineStatus(Model):
    """What the log of the engine says about its plan."""

    memory: str | None = optional("Memory of one GPU as predicted, and as the engine measured it at its start.", max_length=256)
    observed_backends: list[ObservedBackend] | None = optional(
        "Backends that are not those of the plan.", list_map("component"), max_length=32
    )
    unserved_adapters: list[Annotated[str, Field(max_length=128)]] | None = optional(
        "LoRA adapters of the spec that the engine has not loaded.", LIST_ATOMIC, max_length=64
    )


class QuarantinedCache(Model):
    """A damaged cache directory that is no longer used."""

    key: str = Field(max_length=63, description="Cache key, the name of the directory.")
    time: Timestamp = Field(description="Time of the quarantine.", json_schema_extra={"format": "date-time"})
    signature: str = Field(max_length=128, description="Name of the crash that showed the damage.")


class ArtifactStatus(Model):
    """Caches in a registry, as last fetched and published."""

    tag: str | None = optional("Tag that was fetched or published last.", max_length=128)
    digest: str | None = optional("Digest of the artifact that was fetched last.", max_length=71)
    fetch: str | None = optional("Result of the last fetch: Fetched, PartlyFetched, Present, or why it failed.", max_length=32)
    cold_start_seconds: int | None = optional("Duration of the cold start of the engine that published this artifact, in seconds.", ge=0)
    publication: str | None = optional("What the last publication was for: repository, cache key, model and settings.", max_length=64)
    publish_result: str | None = optional("Result of the last publication. CachePublished says more.", max_length=32)
    publish_time: Timestamp | None = optional("Time of the last publication.", {"format": "date-time"})
    rejected: list[Annotated[str, Field(max_length=71)]] | None = optional(
        "Digests that are not fetched again, because a start with them crashed.", LIST_ATOMIC, max_length=8
    )


class CacheStatus(Model):
    """Observed state of the caches."""

    key: str | None = optional("Cache key, the name of the directory on the volume.", max_length=63)
    state: CacheState | None = optional(
        "State of the caches: Compiling, Filled (a Pod was ready with them), Warm (the log of a start has shown it) or Quarantined. "
        "Absent if they are cold."
    )
    reason: str | None = optional(
        "Why starts do not find all caches, as one word in CamelCase. Absent if nothing is in their way.", max_length=64
    )
    message: Text | None = optional("What is worth knowing about the caches and their volume. Absent while the condition Ready says it.")
    claim_name: Annotated[str, Field(max_length=253)] | None = optional(
        "PersistentVolumeClaim of the caches, if it is not the one of the spec: `cache.claimName`, by default `NAME-cache`. Empty if "
        "`podTemplate` replaces that one by another kind of volume."
    )
    generation: int | None = optional("Number of cache directories that were quarantined as damaged.", ge=0)
    cold_start_seconds: int | None = optional("Duration of the last cold start with this key, in seconds.", ge=0)
    warm_start_seconds: int | None = optional("Duration of the last warm start with this key, in seconds.", ge=0)
    cold_stage_seconds: StageSeconds | None = optional(
        "Durations of the longer stages of the last start, if it was cold and the next one is too, which is estimated from them.",
        MAP_ATOMIC,
    )
    warm_stage_seconds: StageSeconds | None = optional("Durations of the longer stages of the last start, if it was warm.", MAP_ATOMIC)
    quarantined: list[QuarantinedCache] | None = optional(
        "Damaged cache directories that are no longer used, newest last.", list_map("key"), max_length=8
    )
    priming_skipped: Text | None = optional("Why requested priming was skipped.")
    artifact: ArtifactStatus | None = optional("Caches in a registry.")


class PodStartup(Model):
    """The start of one more Pod."""

    name: str = Field(max_length=253, description="Name of the Pod.")
    stage: str | None = optional("Current stage.", max_length=64)
    completed: int | None = optional("Completed units of this stage.", ge=0)
    total: int | None = optional("Total units of this stage.", ge=0)
    restarts: int | None = optional("Number of restarts of the engine container, if any.", ge=0)


class StartupStatus(Model):
    """The start in progress: of the Pod that is furthest behind, then of the others."""

    pod: str | None = optional("Name of the Pod that is furthest behind.", max_length=253)
    restarts: int | None = optional("Number of restarts of its engine container, if any.", ge=0)
    stage: str | None = optional("Its current stage.", max_length=64)
    completed: int | None = optional("Completed units of this stage.", ge=0)
    total: int | None = optional("Total units of this stage.", ge=0)
    stage_since: Timestamp | None = optional("Time when that Pod entered this stage.", {"format": "date-time"})
    update_time: Timestamp | None = optional(
        "Time of the last update, if anything is counted or estimated. Small progress is written with a delay of some seconds.",
        {"format": "date-time"},
    )
    eta_seconds: Annotated[int, Field(ge=0)] | None = optional(
        "Estimated remaining seconds of the stage from updateTime on: from the engine's own progress, else from the last start with the "
        "same caches, else from a test with another model, which the condition Ready names. Absent if unknown or exceeded."
    )
    pods: list[PodStartup] | None = optional(
        "Other Pods that are starting, at most 15, furthest behind first.", list_map("name"), max_length=15
    )


class CrashStatus(Model):
    """The last crash. It has cause and remedy, unless the condition Crashed, or else RolledBack, has both word for word."""

    signature: str = Field(max_length=128, description="Name of the matching crash signature, or Unknown.")
    cause: Text | None = optional("Cause of the crash. Absent while a condition says it.")
    remedy: Text | None = optional("Recommended remedy. Absent while a condition says it.")
    command: str | None = optional("kubectl command that makes the suggested change.", max_length=4096)
    reference: str | None = optional("Link to more information.", max_length=512)
    pod: str = Field(max_length=253, description="Name of the Pod that crashed.")
    node: str | None = optional("Name of its node.", max_length=253)
    exit_code: int | None = optional("Exit code of the engine container. Absent while the condition Crashed says it.")
    restarts: int | None = optional("Number of restarts of the container before the crash, if any.", ge=0)
    time: Timestamp | None = optional("Time of the crash.", {"format": "date-time"})
    excerpt: str | None = optional("The line of the log that names the crash. Without secrets.", max_length=2048)


class RemedyChange(Model):
    """A flag or variable that a remedy sets or removes."""

    kind: ChangeKind = Field(description="Argument: a flag of `vllm serve`. Variable: an environment variable.")
    action: Literal["Set", "Remove"] = Field(description="Set or Remove.")
    name: str = Field(max_length=256, description="Flag with its leading dashes, or name of the variable.")
    value: str | None = optional("Value. Absent for a flag without a value.", max_length=1024)


class AppliedRemedy(Model):
    """A remedy that the operator applied to the plan. It ends when the spec changes."""

    attempt: int = Field(ge=1, le=10, description="Attempt number, from 1.")
    signature: str = Field(max_length=128, description="Name of the crash that the remedy is for.")
    changes: list[RemedyChange] = Field(max_length=16, description="Changes to the plan.", json_schema_extra=LIST_ATOMIC)
    reason: Text = Field(description="Reason for the remedy.")
    since: Timestamp = Field(description="Time when the remedy was applied.", json_schema_extra={"format": "date-time"})


class RemediationStatus(Model):
    """Remedies and restarts that the operator suggested or carried out for this spec."""

    observed_generation: int | None = optional("Generation of the spec that the remediation is for.", ge=0)
    state: RemediationState | None = optional(
        "Suggested: `command` contains the remedy. Applied: a remedy is in force. GaveUp: the remedies did not help. Stopped: scaled to "
        "zero because of a crash that a restart cannot fix."
    )
    message: Text | None = optional("State as a sentence.")
    command: str | None = optional(
        "kubectl command that makes the suggested change. If nothing else is to be said, it is in `status.lastCrash`.", max_length=4096
    )
    signature: str | None = optional("Name of the crash that led to this state.", max_length=128)
    pod: str | None = optional("Name of the Pod that crashed.", max_length=253)
    restarts: int | None = optional("Number of restarts of that Pod before the crash, if any.", ge=0)
    applied: list[AppliedRemedy] = repeated("Remedies in force, oldest first.", LIST_ATOMIC, max_length=10)
    stalled_pods: list[Annotated[str, Field(max_length=253)]] = repeated(
        "Pods that the operator deleted because their start stalled.", LIST_ATOMIC, max_length=10
    )

    @model_serializer(mode="wrap")
    def _without_empty_lists(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value != []}


class RollbackStatus(Model):
    """A revision that failed, and the one that runs instead."""

    failed: str = Field(max_length=253, description="ControllerRevision that failed.")
    failed_number: int = Field(ge=0, description="Its number.")
    revision: str | None = optional(
        "ControllerRevision that runs instead. Absent if there is none, or `rollout.onFailure` is Hold.", max_length=253
    )
    number: int | None = optional("Its number.", ge=0)
    command: str | None = optional("kubectl command that changes the spec as recommended in the condition RolledBack.", max_length=4096)
    time: Timestamp = Field(description="Time when it was given up.", json_schema_extra={"format": "date-time"})
    back_seconds: int | None = optional("Seconds from then until all replicas served again.", ge=0)


class AvoidedNode(Model):
    """A node that new Pods avoid."""

    name: str = Field(max_length=253, description="Name of the node.")
    hostname: str | None = optional("Value of its label kubernetes.io/hostname, if that is not the name.", max_length=63)
    boot_id: str = Field(max_length=128, description="Identifies the start of the node. After another one, the node is used again.")


class VLLMDeploymentStatus(Model):
    """Observed state."""

    observed_generation: int | None = optional(
        "Generation of the spec that the status was observed for. -1 until the first reconciliation.", ge=-1
    )
    replicas: int | None = optional("Number of existing Pods.", ge=0)
    ready_replicas: int | None = optional("Number of ready Pods.", ge=0)
    selector: str | None = optional("Label selector of the Pods, for the scale subresource.", max_length=1024)
    conditions: list[Condition] = repeated("Conditions, Ready first. Ready and Available are always set.", list_map("type"), max_length=16)
    url: str | None = optional(
        "URL of the engine for clients in the cluster. It is set when the first replica serves, and stays.", max_length=1024
    )
    plan: str | None = optional(
        "The current plan in words: GPU, version, backends and notes. Absent while the condition PlanDrifted says them.", max_length=1024
    )
    revision: str | None = optional("ControllerRevision that contains the current plan.", max_length=253)
    gpu: str | None = optional(
        "GPU of the plan: its product, or else its architecture, with the profile of a MIG slice. Absent if both are unknown.",
        max_length=256,
    )
    replan_token: str | None = optional("Value of the replan annotation when the plan was made.", max_length=256)
    # It changes as a whole. With one field owner per field, each write would cost the API server 50 % more.
    engine: EngineStatus | None = optional("What the log of the engine says about its plan.", MAP_ATOMIC)
    cache: CacheStatus | None = optional("Observed state of the caches.")
    race: str | None = optional("The race of backends: its progress or its result, in words.", max_length=1024)
    startup: StartupStatus | None = optional("The start in progress.")
    last_crash: CrashStatus | None = optional("The last crash.")
    remediation: RemediationStatus | None = optional("Remedies and restarts for this spec.")
    rollback: RollbackStatus | None = optional("A revision that failed, and the one that runs instead.", MAP_ATOMIC)
    avoided_nodes: list[AvoidedNode] | None = optional("Nodes that new Pods avoid.", LIST_ATOMIC, max_length=16)
