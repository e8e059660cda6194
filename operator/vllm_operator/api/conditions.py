"""Types and reasons of conditions, each a documented constant, how conditions are set, and what an event says.

`Ready` is the summary: while it is not True, it has the reason of the problem and all of its message, or names the condition that says
more. `Available` tells whether requests are served.

A condition whose normal status is True is always set, or as long as the spec asks for what it is about, so that `kubectl wait` works and
absence means that the operator has not seen the object yet. A condition that is True when something is wrong or unusual is set only then.
Each has the generation that it was observed for.

kstatus, which Flux and other tools use, reads `Ready`, `Stalled` and `status.observedGeneration`
(https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm_operator import __version__
from vllm_operator.api.status import Condition, ConditionStatus

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN

READY = "Ready"
"""Everything that the spec asks for is in effect: all replicas serve the requested spec, and so do gateway, autoscaler, NetworkPolicy,
PodDisruptionBudget and published caches, if the spec asks for them."""
AVAILABLE = "Available"
"""At least one replica serves requests, possibly with the previous spec."""
CRASHED = "Crashed"
"""A Pod crashed, and no later start of it has succeeded yet. The message has the cause and what to do."""
HUNG = "Hung"
"""An engine has work and makes no progress, although its server answers."""
STALLED = "Stalled"
"""Waiting does not help: the spec must change. For kstatus, and so for Flux, the object has failed."""
READING_IMAGE = "ReadingImage"
"""A Job reads the build of vLLM in the image, or could not read it. The message says which plan is made then."""
PLAN_DRIFTED = "PlanDrifted"
"""The current plan is not the one that would be made now: with the catalog, the nodes or the preset of today, or without the rollback."""
ROLLED_BACK = "RolledBack"
"""The operator gave up the revision of the requested spec, and an earlier one runs. The message has the cause and what to do."""
ISOLATED = "Isolated"
"""The NetworkPolicy is in effect. False: other clients may reach the engine. Set while `spec.networkPolicy` asks for one."""
EXPOSED = "Exposed"
"""The HTTPRoute and the InferencePool are in effect. Set while `spec.gateway` asks for them."""
AUTOSCALED = "Autoscaled"
"""The autoscaler is in effect. Set while `spec.autoscaling` asks for one."""
PROTECTED = "Protected"
"""A PodDisruptionBudget is in effect. False: evictions may end several replicas at the same time. Set while there may be several
replicas."""
CACHE_PUBLISHED = "CachePublished"
"""The caches are in the registry. Set while `spec.cache.artifact.publish` is WhenPrimed."""

ALWAYS = (READY, AVAILABLE)
"""Normal-true conditions that are set on every object that the operator has seen."""
WHILE_TRUE = (CRASHED, HUNG, STALLED, READING_IMAGE, PLAN_DRIFTED, ROLLED_BACK)
"""Abnormal-true conditions: set only while they are True."""
WHILE_ASKED = (ISOLATED, EXPOSED, AUTOSCALED, PROTECTED, CACHE_PUBLISHED)
"""Normal-true conditions that are set while the spec asks for what they are about."""
ORDER = (*ALWAYS, *WHILE_TRUE, *WHILE_ASKED)
"""Order in which conditions are shown."""
PAGES = f"https://vllm-operator.github.io/vllm-operator/{__version__.rpartition('.')[0]}/r"
"""Address of the pages about reasons, in the documentation of this version (`hack/site_pages.py`)."""
NOT_REPORTED_REASONS = "Not reported"
"""Group of the reasons that no condition has."""


class Reason:
    """Reasons of conditions and of `status.cache`, grouped by condition."""

    # Ready
    SERVING = "Serving"
    """All replicas serve the requested spec, and everything else that it asks for is in effect. Also a reason of Available."""
    SCALED_TO_ZERO = "ScaledToZero"
    """`spec.replicas` is 0. Also a reason of Available."""
    # Ready: no plan
    INVALID_SPEC = "InvalidSpec"
    """The spec contains a contradiction or an invalid value."""
    VERSION_UNKNOWN = "VersionUnknown"
    """`spec.engine.version` is not set, the image tag names no version, and the version was not read from the image."""
    UNSUPPORTED = "Unsupported"
    """vLLM, the image or the GPU does not support what the spec asks for."""
    ARTIFACT_NOT_ALLOWED = "ArtifactNotAllowed"
    """The settings of the operator do not allow the artifact in `spec.cache.artifact`."""
    NO_MATCHING_GPU = "NoMatchingGPU"
    """No node has a matching GPU."""
    DOES_NOT_FIT = "DoesNotFit"
    """The model does not fit on the GPUs that the spec allows."""
    MODEL_SIZE_UNKNOWN = "ModelSizeUnknown"
    """Nothing says how large the model is, nor the spec which of several kinds of GPUs to use."""
    NODES_UNREADABLE = "NodesUnreadable"
    """The API server does not list the nodes or their Pods at the moment. The operator tries again."""
    PRESET_MISSING = "PresetMissing"
    """The preset that `spec.presetRef` names does not exist."""
    PRESET_INVALID = "PresetInvalid"
    """The preset contains an invalid value, or contradicts the object."""
    REVISION_UNUSABLE = "RevisionUnusable"
    """The ControllerRevision of the current plan is missing, not controlled by this object, or its content does not match the digest in its
    name."""
    REVISION_REFUSED = "RevisionRefused"
    """The ControllerRevision of a new plan cannot be created, so the plan is not applied."""
    KIND_NOT_INSTALLED = "KindNotInstalled"
    """The cluster lacks the CustomResourceDefinition of an object that the spec asks for. Also a reason of Exposed and Autoscaled."""
    PERMISSION_MISSING = "PermissionMissing"
    """The service account of the operator lacks a permission."""
    # Ready: in progress
    NOT_STARTED = "NotStarted"
    """No Pod exists yet."""
    READING_IMAGE = "ReadingImage"
    """There is no new plan yet: a Job reads the build of vLLM in the image (`spec.engine.introspect`). Also a reason of ReadingImage."""
    FETCHING_WEIGHTS = "FetchingWeights"
    """A Job downloads the weights before a Pod starts (`spec.weights.prefetch`)."""
    WAITING_FOR_CACHES = "WaitingForCaches"
    """Another VLLMDeployment compiles the caches that both share."""
    PULLING_IMAGE = "PullingImage"
    """The image is being pulled."""
    WAITING_FOR_VOLUME = "WaitingForVolume"
    """A volume of the Pod is not mounted yet."""
    STARTING = "Starting"
    """A start is making progress."""
    REPLICAS_NOT_READY = "ReplicasNotReady"
    """Some replicas are ready, others are not ready yet."""
    MEASURING = "Measuring"
    """Before the rollout, the requested plan and the serving one are measured in a helper Pod (`spec.rollout.gate`)."""
    ROLLING_OUT = "RollingOut"
    """All replicas are ready, but some of them still serve the previous spec."""
    # Ready: blocked
    UNSCHEDULABLE = "Unschedulable"
    """The Pod cannot be scheduled."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """The image cannot be pulled."""
    CONTAINER_CONFIG_FAILED = "ContainerConfigFailed"
    """The container cannot be created because a Secret, ConfigMap or volume path is missing."""
    NODE_LOST = "NodeLost"
    """The node of the Pod no longer reports its status."""
    NOT_RESPONDING = "NotResponding"
    """The Pod was ready, and its readiness probe fails now."""
    ROLLOUT_HELD = "RolloutHeld"
    """The rollout has not begun, because it would stop serving Pods and there is no room for the new ones: it begins when there is. Or the
    new plan was measured, and is worse than the serving one (`spec.rollout.gate`)."""
    FETCH_FAILED = "FetchFailed"
    """The weights cannot be downloaded before the start. What may succeed later is tried again."""
    NO_PROGRESS = "NoProgress"
    """A start has made no progress for longer than expected in its stage."""
    POD_REFUSED = "PodRefused"
    """The Deployment cannot create Pods, for example because of a quota or a policy."""
    START_FAILED = "StartFailed"
    """A start failed. The condition Crashed says why."""
    STOPPED = "Stopped"
    """Scaled to zero as set in `remediation.onUnrecoverableCrash`, because a restart cannot fix the crash."""
    # Ready or status.cache
    CLAIM_MISSING = "ClaimMissing"
    """A PersistentVolumeClaim that the spec names does not exist."""
    STORAGE_CLASS_MISSING = "StorageClassMissing"
    """The StorageClass of a PersistentVolumeClaim does not exist."""
    CLAIM_NOT_BOUND = "ClaimNotBound"
    """The PersistentVolumeClaim of the caches is not bound."""
    CLAIM_NAME_TAKEN = "ClaimNameTaken"
    """A PersistentVolumeClaim with the required name exists, but the operator did not create it."""
    CLAIM_READ_ONLY = "ClaimReadOnly"
    """The PersistentVolumeClaim is read-only, but every start writes to it."""
    CLAIM_TERMINATING = "ClaimTerminating"
    """The PersistentVolumeClaim is being deleted. New Pods cannot start until no Pod uses it and it is gone."""
    CLAIM_TOO_SMALL = "ClaimTooSmall"
    """The PersistentVolumeClaim is smaller than the weights. No Pod starts before it has grown."""
    # Ready: not in effect
    NOT_ISOLATED = "NotIsolated"
    """All replicas serve, but the NetworkPolicy is not in effect: other clients may reach the engine. The condition Isolated says why."""
    NOT_EXPOSED = "NotExposed"
    """All replicas serve, but the HTTPRoute or the InferencePool is not in effect. The condition Exposed says why."""
    NOT_AUTOSCALED = "NotAutoscaled"
    """All replicas serve, but the autoscaler is not in effect. The condition Autoscaled says why."""
    NOT_PROTECTED = "NotProtected"
    """All replicas serve, but the PodDisruptionBudget is not in effect. The condition Protected says why."""
    NOT_PUBLISHED = "NotPublished"
    """All replicas serve, but their caches are not in the registry. The condition CachePublished says why."""
    APPLY_FAILED = "ApplyFailed"
    """The API server refused an object that the operator applied. Also a reason of Isolated, Exposed, Autoscaled and Protected."""
    OPERATOR_FAILED = "OperatorFailed"
    """An unexpected error occurred in the operator. The operator retries."""
    # Available
    NOT_SERVING = "NotServing"
    """No replica is ready."""
    # Crashed
    DIAGNOSING_CRASH = "DiagnosingCrash"
    """The Pod crashed a moment ago. The operator is reading its log."""
    UNKNOWN_CRASH = "UnknownCrash"
    """The Pod crashed and no known signature matches. The message quotes the innermost error, or says why the log could not be read."""
    # Hung
    ENGINE_HUNG = "EngineHung"
    """The engine has work and has made no progress for at least 85 seconds. Also a reason of Ready, and of Crashed after a restart for this
    reason."""
    # ReadingImage
    IMAGE_UNREADABLE = "ImageUnreadable"
    """The build of vLLM in the image could not be read."""
    # PlanDrifted
    PLAN_DRIFTED = "PlanDrifted"
    """The current plan stays. A new plan would differ: of the catalog, nodes or preset of today, or for a GPU that is free now."""
    ROLLED_BACK = "RolledBack"
    """An earlier plan runs with its spec, as an annotation requests, until the spec changes or a new plan is requested. Also a reason of
    Ready and Stalled: the operator gave up the revision of the requested spec (condition RolledBack)."""
    # RolledBack
    REVISION_FAILED = "RevisionFailed"
    """A revision crashed, hung, or missed its deadline before it had proved itself. The message says which revision runs instead, why, and
    what to change."""
    # Exposed
    IN_EFFECT = "InEffect"
    """The objects that the spec asks for exist. Also a reason of Isolated, Autoscaled and Protected."""
    ROUTE_NOT_ACCEPTED = "RouteNotAccepted"
    """No Gateway has accepted the HTTPRoute yet."""
    INTEGRATION_DISABLED = "IntegrationDisabled"
    """The operator may not create an object that the spec asks for. Also a reason of Autoscaled."""
    # Autoscaled
    METRICS_API_MISSING = "MetricsAPIMissing"
    """The cluster serves no metrics of Pods to autoscalers."""
    AUTOSCALER_EXISTS = "AutoscalerExists"
    """Another HorizontalPodAutoscaler scales this object."""
    # CachePublished
    PUBLISHED = "Published"
    """The registry has an artifact with the caches of this engine. The message has its tag and digest."""
    PUBLISHING = "Publishing"
    """A Job, or the Pod that compiles before a rollout, is packing the caches and pushing them."""
    NOT_COMPILED = "NotCompiled"
    """No Pod with these caches has been Ready yet."""
    WAITING_FOR_ROLLOUT = "WaitingForRollout"
    """Only the helper Pod that compiles before a rollout can publish these caches, so they are published with the next rollout."""
    NOT_PUBLISHABLE = "NotPublishable"
    """No Pod can publish the caches."""
    PUSH_DENIED = "PushDenied"
    """The registry refused the push, or the Secret for it is missing."""
    REGISTRY_UNREACHABLE = "RegistryUnreachable"
    """The registry did not answer, or answered with errors, for as long as the Job may take."""
    SECRETS_FOUND = "SecretsFound"
    """A file of the caches contains a secret of the Pod, or something in the form of a token. Nothing was published."""
    TOO_LARGE = "TooLarge"
    """The caches are larger than an artifact may be."""
    TAG_TAKEN = "TagTaken"
    """The tag exists and is not an artifact of this engine. The operator does not overwrite it."""
    PUBLISH_FAILED = "PublishFailed"
    """The Job that publishes failed, or could not be created."""
    # status.cache
    NO_CLAIM = "NoClaim"
    """The caches are not stored on a volume that outlives the Pod."""
    COMPILING = "Compiling"
    """One Pod compiles the kernels, and the others wait for its caches."""
    PARTIAL_HIT = "PartialHit"
    """The engine loaded some artifacts and built others."""
    QUARANTINED = "Quarantined"
    """The cache directory was damaged and is no longer used."""
    # Not reported
    VALID = "Valid"
    """Everything in the spec is in effect."""
    NOT_ACCEPTED = "NotAccepted"
    """There is no plan because the spec was not accepted."""
    PLANNED = "Planned"
    """The operator chose a GPU and backends."""
    GPU_UNKNOWN = "GPUUnknown"
    """The node labels do not identify the GPUs. vLLM chooses the backends."""
    HIT = "Hit"
    """The engine loaded compiled artifacts from the cache."""
    MISS = "Miss"
    """The engine built all artifacts, as in the first start with a cache key."""
    NOT_REPORTED = "NotReported"
    """No start has reported yet whether it loaded or built artifacts."""
    STARTED = "Started"
    """All replicas have started and serve the requested spec. The rollout is complete."""
    NOT_PLANNED = "NotPlanned"
    """The requested spec cannot be rolled out without a plan."""


_REASONS = frozenset(value for name, value in vars(Reason).items() if name.isupper())
REFUSALS = (
    Reason.INVALID_SPEC,
    Reason.VERSION_UNKNOWN,
    Reason.UNSUPPORTED,
    Reason.ARTIFACT_NOT_ALLOWED,
    Reason.NO_MATCHING_GPU,
    Reason.DOES_NOT_FIT,
    Reason.MODEL_SIZE_UNKNOWN,
    Reason.NODES_UNREADABLE,
    Reason.PRESET_MISSING,
    Reason.PRESET_INVALID,
    Reason.REVISION_UNUSABLE,
    Reason.REVISION_REFUSED,
    Reason.KIND_NOT_INSTALLED,
    Reason.PERMISSION_MISSING,
)
"""Reasons of Ready while there is no plan for the spec."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The status, reason and message of a condition."""

    status: ConditionStatus
    reason: str
    message: str


VALID_SPEC = Verdict(TRUE, Reason.VALID, "The spec is valid.")


def set_conditions(previous: Sequence[Condition], verdicts: Mapping[str, Verdict], *, generation: int, now: str) -> list[Condition]:
    """Return the conditions for verdicts by type, in order. A condition without a verdict is removed.

    `last_transition_time` changes only with the status. `now` is an RFC 3339 timestamp in seconds.
    """
    before = {condition.type: condition for condition in previous}
    return sort_conditions(
        Condition(
            type=type,
            status=verdict.status,
            observed_generation=generation,
            last_transition_time=(before[type].last_transition_time if type in before and before[type].status == verdict.status else None)
            or now,
            reason=verdict.reason,
            message=_with_link(type, verdict),
        )
        for type, verdict in verdicts.items()
    )


def without_link(message: str) -> str:
    """Return the message of a condition without the link to the page about its reason."""
    return message.partition(f" (See {PAGES}/")[0]


def _with_link(type: str, verdict: Verdict) -> str:
    """Return the message with the page about its reason, if the condition is not as it normally is. Messages about crashes have a link.

    Available has none: while it is False, Ready says why.
    """
    is_normal = (verdict.status is TRUE) is (type not in WHILE_TRUE) or type == AVAILABLE
    has_none = is_normal or verdict.reason not in _REASONS or " (See https://" in verdict.message
    return verdict.message if has_none else f"{verdict.message} (See {PAGES}/{verdict.reason})"


def sort_conditions(conditions: Iterable[Condition]) -> list[Condition]:
    """Sort as in `ORDER`, unknown types last by name."""
    rank = {name: index for index, name in enumerate(ORDER)}
    return sorted(conditions, key=lambda c: (rank.get(c.type, len(rank)), c.type))


def find_condition(conditions: Iterable[Condition], type: str) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((condition for condition in conditions if condition.type == type), None)


NORMAL = "Normal"
WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class EventDraft:
    """An event to be recorded.

    `type` is Normal or Warning. `key` identifies the occurrence: an event with the same key is not recorded again. Occurrences with the
    same `series`, such as the crashes of one Pod with one cause, are counted in one event. Without a series, the event is separate.
    """

    type: str
    reason: str
    message: str
    key: str
    series: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a child by somebody else: the field, the field manager and the time (RFC 3339), which are empty if they are unknown."""

    field: str
    manager: str = ""
    time: str = ""
