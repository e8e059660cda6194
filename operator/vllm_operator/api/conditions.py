"""Condition types and reasons, each a documented constant, and how conditions are set.

Positive polarity everywhere but in `Starting` and `Crashed`: these two say what is going on, and their
normal end is False. `Ready` is the summary: it repeats the reason and the message of whatever keeps the
deployment from serving as asked.
"""

from collections.abc import Iterable, Sequence

from vllm_operator.api.status import Condition, ConditionStatus

READY = "Ready"
"""The spec as it stands is served by all replicas."""
AVAILABLE = "Available"
"""At least one replica serves."""
ACCEPTED = "Accepted"
"""The spec can be understood: a known kind of model, a version, no contradiction."""
PLANNED = "Planned"
"""A GPU and backends were chosen."""
CACHE_WARM = "CacheWarm"
"""The engine's log showed that it loaded compiled artifacts instead of building them."""
STARTING = "Starting"
"""A Pod is on its way to serving."""
CRASHED = "Crashed"
"""A Pod crashed and none of its later starts has succeeded yet."""

ORDER = (READY, AVAILABLE, ACCEPTED, PLANNED, CACHE_WARM, STARTING, CRASHED)
"""Order in which conditions are shown."""


class Reason:
    """Reasons of conditions, by the condition that they belong to."""

    # Accepted
    VALID = "Valid"
    """The spec can be understood."""
    FIELDS_IGNORED = "FieldsIgnored"
    """The spec can be understood, but some of `spec.podTemplate` has no effect; the message says what."""
    INVALID_SPEC = "InvalidSpec"
    """The spec contradicts itself or holds a value that cannot be used; the message says which."""
    VERSION_UNKNOWN = "VersionUnknown"
    """The vLLM version cannot be read from the image tag and is not given."""
    KNOWN_BAD = "KnownBad"
    """The combination asked for is known to fail; the message says how and what can be done."""
    # Planned
    RESOLVED = "Resolved"
    """A GPU and backends were chosen."""
    RESOLVED_DIFFERENTLY = "ResolvedDifferently"
    """The pinned plan is in force; today's catalog or nodes would lead to another one."""
    NO_MATCHING_GPU = "NoMatchingGPU"
    """No node has a GPU as asked for; the message lists what there is."""
    GPU_UNKNOWN = "GPUUnknown"
    """No label tells what the GPUs are; the choice of backends is left to vLLM."""
    NOT_ACCEPTED = "NotAccepted"
    """Nothing was planned because the spec was not accepted."""
    # CacheWarm
    HIT = "Hit"
    """Compiled artifacts were loaded from the cache."""
    PARTIAL_HIT = "PartialHit"
    """Some artifacts were loaded, others were built."""
    MISS = "Miss"
    """Artifacts were built: the first start with this key."""
    NOT_SEEN_YET = "NotSeenYet"
    """The log of no start has shown yet whether artifacts were loaded or built."""
    CLAIM_NOT_BOUND = "ClaimNotBound"
    """The claim of the caches is not bound to a volume; the message says why."""
    CLAIM_MISSING = "ClaimMissing"
    """The claim named in the spec does not exist."""
    CLAIM_NOT_OWNED = "ClaimNotOwned"
    """A claim with the name of the operator's own exists, and the operator did not create it. Also a reason of Starting."""
    CLAIM_TERMINATING = "ClaimTerminating"
    """The claim is being deleted: it goes once no Pod uses it, and no new Pod can start until then."""
    CLAIM_READ_ONLY = "ClaimReadOnly"
    """The claim can only be read, and every start writes to it."""
    NO_CLAIM = "NoClaim"
    """No volume keeps the caches."""
    PRIMING = "Priming"
    """One Pod fills the cache, others wait for it; the message says which and why. Also a reason of Starting."""
    QUARANTINED = "Quarantined"
    """The cache was damaged and has been left behind."""
    # Starting
    PROGRESSING = "Progressing"
    """A start makes progress."""
    UNSCHEDULABLE = "Unschedulable"
    """No node takes the Pod; the message says why."""
    PULLING_IMAGE = "PullingImage"
    """The image is being pulled."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """The image cannot be pulled."""
    CONTAINER_CONFIG_FAILED = "ContainerConfigFailed"
    """The container cannot be created: a missing Secret, ConfigMap or volume path."""
    WAITING_FOR_VOLUME = "WaitingForVolume"
    """A volume of the Pod is not mounted yet; the message says why."""
    NODE_LOST = "NodeLost"
    """The node of the Pod does not report any more."""
    NOT_RESPONDING = "NotResponding"
    """The Pod has served, and its readiness probe fails now."""
    ROLLING_OUT = "RollingOut"
    """All replicas serve, some of them the former spec."""
    STALLED = "Stalled"
    """A start shows no sign of progress for longer than its stage is known to be silent."""
    STARTED = "Started"
    """All replicas have started."""
    SCALED_TO_ZERO = "ScaledToZero"
    """No replica is wanted."""
    NOT_STARTED = "NotStarted"
    """No Pod exists yet."""
    POD_REFUSED = "PodRefused"
    """The Deployment cannot create Pods: a quota, a policy, or something that is missing; the message says which."""
    START_FAILED = "StartFailed"
    """The start ended in a crash."""
    STOPPED = "Stopped"
    """Scaled to zero, because no restart cures the crash and `remediation.onHopelessCrash` says so; also a reason of Ready."""
    # Crashed
    NO_CRASH = "NoCrash"
    """No crash since the last good start."""
    CRASH_UNDER_EXAMINATION = "CrashUnderExamination"
    """The Pod crashed a moment ago and its log is being read."""
    RECOVERED = "Recovered"
    """The Pod crashed earlier and serves now."""
    UNKNOWN_CRASH = "UnknownCrash"
    """The Pod crashed and no known signature matches; the message quotes the innermost error."""
    # Available, Ready
    SERVING = "Serving"
    """Replicas serve."""
    NOT_SERVING = "NotServing"
    """No replica serves."""
    APPLY_FAILED = "ApplyFailed"
    """The API server refused an object that the operator applied; the message says which and why."""
    PERMISSION_MISSING = "PermissionMissing"
    """The operator's account lacks a permission; the message names it. Also a reason of Planned."""
    OPERATOR_FAILED = "OperatorFailed"
    """The operator met something that it did not expect; the message quotes it. It tries again."""
    REPLICAS_NOT_READY = "ReplicasNotReady"
    """Some replicas serve, others do not yet."""


def set_condition(
    conditions: Sequence[Condition], *, type: str, status: ConditionStatus, reason: str, message: str, generation: int, now: str
) -> tuple[Condition, ...]:
    """Return the conditions with one of them set.

    `last_transition_time` moves only when the status changes; `now` is an RFC 3339 timestamp in seconds.
    The result is sorted as in `ORDER`, unknown types last.
    """
    previous = next((c for c in conditions if c.type == type), None)
    since = previous.last_transition_time if previous is not None and previous.status == status else None
    changed = Condition(
        type=type,
        status=status,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=since or now,
    )
    return sort_conditions([c for c in conditions if c.type != type] + [changed])


def sort_conditions(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Sort as in `ORDER`, unknown types last by name."""
    rank = {name: index for index, name in enumerate(ORDER)}
    return tuple(sorted(conditions, key=lambda c: (rank.get(c.type, len(rank)), c.type)))


def find_condition(conditions: Iterable[Condition], type: str) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((c for c in conditions if c.type == type), None)
