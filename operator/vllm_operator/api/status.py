"""`status` of a VLLMDeployment. All of it is bounded, and it is written only when it changes."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from vllm_operator.api.base import Model, Text, list_atomic, list_map, map_atomic
from vllm_operator.api.plan import PlanSummary

LONGEST_STAGE_SECONDS = 7 * 86_400
"""A longer stage was measured by a clock that was changed in between."""
Timestamp = Annotated[str, Field(max_length=32, pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]
StageSeconds = Annotated[dict[str, Annotated[int, Field(ge=0, le=LONGEST_STAGE_SECONDS)]], Field(max_length=16)]
"""Seconds by stage."""


class ConditionStatus(StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model):
    """One aspect of the observed state, as metav1.Condition."""

    type: str = Field(max_length=316, description="Type of the condition in CamelCase.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    observed_generation: int | None = Field(default=None, ge=0, description="Generation of the spec that the condition was observed for.")
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


class CacheState(StrEnum):
    """State of the caches with the current key."""

    COLD = "Cold"
    PRIMING = "Priming"
    WARM = "Warm"
    QUARANTINED = "Quarantined"


class QuarantinedCache(Model):
    """A damaged cache directory that is no longer used."""

    key: str = Field(max_length=63, description="Cache key, the name of the directory.")
    time: Timestamp = Field(description="Time of the quarantine.", json_schema_extra={"format": "date-time"})
    signature: str = Field(max_length=128, description="Name of the crash that showed the damage.")


class ArtifactStatus(Model):
    """Caches in a registry, as last fetched and published."""

    tag: str | None = Field(default=None, max_length=128, description="Tag that was fetched or published last.")
    digest: str | None = Field(default=None, max_length=71, description="Digest of the artifact that was fetched last.")
    fetch: str | None = Field(
        default=None, max_length=32, description="Result of the last fetch: Fetched, PartlyFetched, Present, or why it failed."
    )
    fetched_by: str | None = Field(default=None, max_length=253, description="Pod that fetched last.")
    fetch_seconds: int | None = Field(default=None, ge=0, description="Duration of that fetch, in seconds, rounded up.")
    fetch_message: str | None = Field(default=None, max_length=600, description="Why that fetch failed.")
    differences: str | None = Field(
        default=None, max_length=600, description="What that artifact was made with, where it differs from this engine."
    )
    size_bytes: int | None = Field(default=None, ge=0, description="Size of the files of the artifact, in bytes.")
    cold_start_seconds: int | None = Field(
        default=None, ge=0, description="Duration of the cold start of the engine that published this artifact, in seconds."
    )
    publication: str | None = Field(
        default=None, max_length=64, description="What the last publication was for: repository, cache key, model and settings."
    )
    publish_result: str | None = Field(default=None, max_length=32, description="Result of the last publication.")
    publish_message: str | None = Field(default=None, max_length=600, description="Why that publication failed.")
    published_digest: str | None = Field(default=None, max_length=71, description="Digest of the artifact that the tag has.")
    publish_time: Timestamp | None = Field(
        default=None, description="Time of the last publication.", json_schema_extra={"format": "date-time"}
    )
    rejected: list[Annotated[str, Field(max_length=71)]] | None = Field(
        default=None,
        max_length=8,
        description="Digests that are not fetched again, because a start with them crashed.",
        json_schema_extra=list_atomic(),
    )


class CacheStatus(Model):
    """Observed state of the caches."""

    key: str | None = Field(default=None, max_length=63, description="Cache key, the name of the directory on the volume.")
    state: CacheState | None = Field(
        default=None, description="State of the caches: Priming, Warm or Quarantined. Absent if they are cold."
    )
    claim_name: str | None = Field(
        default=None,
        max_length=253,
        description="PersistentVolumeClaim of the caches, if it is not the one of the spec: `cache.claimName`, by default `NAME-cache`. "
        "Empty if `podTemplate` replaces that one by another kind of volume.",
    )
    generation: int | None = Field(default=None, ge=0, description="Generation of the caches, raised with each quarantine.")
    cold_start_seconds: int | None = Field(default=None, ge=0, description="Duration of the last cold start with this key, in seconds.")
    warm_start_seconds: int | None = Field(default=None, ge=0, description="Duration of the last warm start with this key, in seconds.")
    warm_starts: int | None = Field(
        default=None, ge=0, description="Number of warm starts of all Pods for which a cold start with the same key was measured."
    )
    saved_seconds: int | None = Field(
        default=None,
        ge=0,
        description="Sum of the seconds that these starts took less than the cold start with the same key: one of this object, or of the "
        "one that published the artifact.",
    )
    counted_until: Timestamp | None = Field(
        default=None, description="Time when the last of these starts ended.", json_schema_extra={"format": "date-time"}
    )
    cold_stage_seconds: StageSeconds | None = Field(
        default=None,
        description="Durations of the longer stages of that cold start, in seconds. The next start is estimated from them.",
        json_schema_extra=map_atomic(),
    )
    warm_stage_seconds: StageSeconds | None = Field(
        default=None, description="Durations of the longer stages of that warm start, in seconds.", json_schema_extra=map_atomic()
    )
    quarantined: list[QuarantinedCache] | None = Field(
        default=None,
        max_length=8,
        description="Damaged cache directories that are no longer used, newest last.",
        json_schema_extra=list_map("key"),
    )
    priming_skipped: Text | None = Field(default=None, description="Why requested priming was skipped.")
    artifact: ArtifactStatus | None = Field(default=None, description="Caches in a registry.")


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
    """The last crash. While it is in force, what the condition Crashed says is absent here."""

    signature: str = Field(max_length=128, description="Name of the matching crash signature, or Unknown.")
    cause: Text | None = Field(default=None, description="Cause of the crash. Absent while the condition Crashed says it.")
    remedy: Text | None = Field(default=None, description="Recommended remedy. Absent while the condition Crashed says it.")
    command: str | None = Field(default=None, max_length=4096, description="kubectl command that makes the suggested change.")
    reference: str | None = Field(default=None, max_length=512, description="Link to more information.")
    pod: str = Field(max_length=253, description="Name of the Pod that crashed.")
    exit_code: int | None = Field(
        default=None, description="Exit code of the engine container. Absent while the condition Crashed says it."
    )
    restarts: int | None = Field(default=None, ge=0, description="Number of restarts of the container before the crash.")
    time: Timestamp | None = Field(default=None, description="Time of the crash.", json_schema_extra={"format": "date-time"})
    excerpt: str | None = Field(
        default=None,
        max_length=2048,
        description="The line of the log that names the crash. Without secrets.",
    )


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
    command: str | None = Field(
        default=None,
        max_length=4096,
        description="kubectl command that makes the suggested change. If nothing else is to be said, it is in `status.lastCrash`.",
    )
    signature: str | None = Field(
        default=None,
        max_length=128,
        description="Name of the crash that led to this state.",
    )
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
        default_factory=list,
        max_length=16,
        description="Conditions, Ready first. Ready, Accepted, Planned and Progressing are always set.",
        json_schema_extra=list_map("type"),
    )
    url: str | None = Field(
        default=None,
        max_length=1024,
        description="URL of the engine for clients in the cluster. It is set when the first replica serves, and stays.",
    )
    # Both change as a whole. With one field owner per field, each write would cost the API server 50 % more.
    pinned_plan: PlanSummary | None = Field(default=None, description="The pinned plan in short.", json_schema_extra=map_atomic())
    cache: CacheStatus | None = Field(default=None, description="Observed state of the caches.")
    startup: StartupStatus | None = Field(default=None, description="The start in progress.")
    last_crash: CrashStatus | None = Field(default=None, description="The last crash.")
    remediation: RemediationStatus | None = Field(default=None, description="Remedies and restarts for this spec.")
