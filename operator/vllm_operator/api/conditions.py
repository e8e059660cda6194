"""Types and reasons of conditions, each a documented constant, and how conditions are set.

`Ready` is the summary: while it is not True, it has the reason of the problem and its message in short, and names the condition that says
more. `Available` tells whether requests are served. Both are set on every object, and any other condition only while it says more than
they do. `kubectl wait` waits for a condition that is absent.

A condition was observed for the generation in `status.observedGeneration`; an older one has its own `observedGeneration`.

kstatus, which Flux and other tools use, reads `Ready`, `Stalled` and `status.observedGeneration`
(https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm_operator.api.status import Condition, ConditionStatus

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN

READY = "Ready"
"""Everything that the spec asks for is in effect: all replicas serve the current spec, and so do gateway, autoscaler, NetworkPolicy,
PodDisruptionBudget and published caches, if the spec asks for them."""
AVAILABLE = "Available"
"""At least one replica serves requests, possibly with the previous spec."""
ACCEPTED = "Accepted"
"""The spec is valid, but some of its fields have no effect. False: the spec contains an error. Absent if all of it is in effect."""
PLANNED = "Planned"
"""The operator chose a GPU and backends. Absent while the spec is not accepted."""
CACHE_WARM = "CacheWarm"
"""The log of the engine showed that it loaded compiled artifacts instead of building them. Absent until a start has shown it, unless there
is something to say about the volume."""
CACHE_PUBLISHED = "CachePublished"
"""The caches are in the registry. Set if `spec.cache.artifact.publish` is WhenPrimed."""
PROGRESSING = "Progressing"
"""The current spec is being rolled out. False: the rollout is stuck, because a Pod cannot start or no longer responds. Absent if all
replicas serve the current spec, or if there is no plan."""
CRASHED = "Crashed"
"""A Pod crashed, and no later start of it has succeeded yet. False: a Pod crashed earlier. Absent if none has."""
EXPOSED = "Exposed"
"""The NetworkPolicy, HTTPRoute and InferencePool that the spec asks for are in effect. Set if `spec.networkPolicy` or `spec.gateway` is."""
AUTOSCALED = "Autoscaled"
"""The autoscaler is in effect. Set if `spec.autoscaling` is."""
PROTECTED = "Protected"
"""A PodDisruptionBudget is in effect. False: evictions may end several replicas at the same time. Set if there may be several replicas."""
STALLED = "Stalled"
"""Waiting does not help: the spec must change. Present only while it is True. For kstatus, and so for Flux, the object has failed."""

ORDER = (READY, AVAILABLE, ACCEPTED, PLANNED, CACHE_WARM, CACHE_PUBLISHED, PROGRESSING, CRASHED, EXPOSED, AUTOSCALED, PROTECTED, STALLED)
"""Order in which conditions are shown."""
NOT_REPORTED_REASONS = "Not reported"
"""Group of the reasons that say no more than Ready, so that their condition is absent."""
ALWAYS = (READY, AVAILABLE)
"""Conditions that are set on every object that the operator has seen."""


class Reason:
    """Reasons of conditions, grouped by condition."""

    # Accepted
    FIELDS_IGNORED = "FieldsIgnored"
    """The spec is valid, but some fields of `spec.podTemplate` have no effect. The message lists them."""
    INVALID_SPEC = "InvalidSpec"
    """The spec contains a contradiction or an invalid value. The message names it."""
    VERSION_UNKNOWN = "VersionUnknown"
    """The image tag does not name the vLLM version, and `spec.engine.version` is not set."""
    UNSUPPORTED = "Unsupported"
    """vLLM, the image or the GPU does not support what the spec asks for. The message says why and what to change."""
    ARTIFACT_NOT_ALLOWED = "ArtifactNotAllowed"
    """The settings of the operator do not allow the artifact in `spec.cache.artifact`. The message says which are allowed."""
    # Planned
    PLANNED = "Planned"
    """The operator chose a GPU and backends."""
    PLAN_DRIFTED = "PlanDrifted"
    """The current plan stays. A new plan would differ: of the catalog, nodes or preset of today, or for a GPU that is free now."""
    ROLLED_BACK = "RolledBack"
    """An earlier plan runs with its spec, as an annotation requests. It ends when the spec changes or a new plan is requested."""
    NO_MATCHING_GPU = "NoMatchingGPU"
    """No node has a matching GPU. The message lists the GPUs of the cluster."""
    DOES_NOT_FIT = "DoesNotFit"
    """The model does not fit on the GPUs that the spec allows. The message has the nearest ways that would work."""
    MODEL_SIZE_UNKNOWN = "ModelSizeUnknown"
    """Nothing says how large the model is, nor the spec which of several kinds of GPUs to use. The message says what to set."""
    NODES_UNREADABLE = "NodesUnreadable"
    """The API server does not list the nodes or their Pods at the moment. The operator tries again."""
    GPU_UNKNOWN = "GPUUnknown"
    """The node labels do not identify the GPUs. vLLM chooses the backends."""
    REVISION_UNUSABLE = "RevisionUnusable"
    """The ControllerRevision of the current plan is missing, not controlled by this object, or has another content."""
    REVISION_REFUSED = "RevisionRefused"
    """The ControllerRevision of a new plan cannot be created, so the plan is not applied. The message says why."""
    PRESET_MISSING = "PresetMissing"
    """The preset that `spec.presetRef` names does not exist. The message says which do."""
    PRESET_INVALID = "PresetInvalid"
    """The preset contains an invalid value, or contradicts the object. The message says where."""
    # CacheWarm
    HIT = "Hit"
    """The engine loaded compiled artifacts from the cache."""
    PARTIAL_HIT = "PartialHit"
    """The engine loaded some artifacts and built others."""
    MISS = "Miss"
    """The engine built all artifacts, as in the first start with a cache key."""
    NOT_REPORTED = "NotReported"
    """No start has reported yet whether it loaded or built artifacts."""
    CLAIM_NOT_BOUND = "ClaimNotBound"
    """The PersistentVolumeClaim of the caches is not bound. The message says why."""
    CLAIM_MISSING = "ClaimMissing"
    """A PersistentVolumeClaim that the spec names does not exist. The message names the field. Also a reason of Progressing."""
    STORAGE_CLASS_MISSING = "StorageClassMissing"
    """The StorageClass of a PersistentVolumeClaim does not exist. The message names the field. Also a reason of Progressing."""
    CLAIM_NAME_TAKEN = "ClaimNameTaken"
    """A PersistentVolumeClaim with the required name exists, but the operator did not create it. Also a reason of Progressing."""
    CLAIM_TERMINATING = "ClaimTerminating"
    """The PersistentVolumeClaim is being deleted. New Pods cannot start until no Pod uses it and it is gone."""
    CLAIM_TOO_SMALL = "ClaimTooSmall"
    """The PersistentVolumeClaim is smaller than the weights. No Pod starts before it has grown. Also a reason of Progressing."""
    CLAIM_READ_ONLY = "ClaimReadOnly"
    """The PersistentVolumeClaim is read-only, but every start writes to it."""
    NO_CLAIM = "NoClaim"
    """The caches are not stored on a volume that outlives the Pod."""
    COMPILING = "Compiling"
    """One Pod compiles the kernels, and the others wait for its caches. The message says which Pod and why."""
    QUARANTINED = "Quarantined"
    """The cache directory was damaged and is no longer used."""
    # CachePublished
    PUBLISHED = "Published"
    """The registry has an artifact with the caches of this engine. The message has its tag and digest."""
    PUBLISHING = "Publishing"
    """A Job, or the Pod that compiles before a rollout, is packing the caches and pushing them."""
    NOT_COMPILED = "NotCompiled"
    """No Pod with these caches has been Ready yet."""
    WAITING_FOR_ROLLOUT = "WaitingForRollout"
    """Only the extra Pod that compiles before a rollout can publish these caches, so they are published with the next rollout."""
    NOT_PUBLISHABLE = "NotPublishable"
    """No Pod can publish the caches. The message says why."""
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
    """The Job that publishes failed, or could not be created. The message says why."""
    # Progressing
    STARTING = "Starting"
    """A start is making progress."""
    UNSCHEDULABLE = "Unschedulable"
    """The Pod cannot be scheduled. The message says why, and whether another GPU is free."""
    PULLING_IMAGE = "PullingImage"
    """The image is being pulled."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """The image cannot be pulled."""
    CONTAINER_CONFIG_FAILED = "ContainerConfigFailed"
    """The container cannot be created because a Secret, ConfigMap or volume path is missing."""
    WAITING_FOR_VOLUME = "WaitingForVolume"
    """A volume of the Pod is not mounted yet. The message says why."""
    NODE_LOST = "NodeLost"
    """The node of the Pod no longer reports its status."""
    NOT_RESPONDING = "NotResponding"
    """The Pod was ready, and its readiness probe fails now."""
    ROLLING_OUT = "RollingOut"
    """All replicas are ready, but some of them still serve the previous spec."""
    ROLLOUT_HELD = "RolloutHeld"
    """The rollout has not begun, because it would stop serving Pods and there is no room for the new ones. It begins when there is."""
    FETCHING_WEIGHTS = "FetchingWeights"
    """A Job downloads the weights before a Pod starts (`spec.weights.prefetch`)."""
    FETCH_FAILED = "FetchFailed"
    """The weights cannot be downloaded before the start. The message says why and what to do. What may succeed later is tried again."""
    WAITING_FOR_CACHES = "WaitingForCaches"
    """Another VLLMDeployment compiles the caches that both share."""
    START_STALLED = "StartStalled"
    """A start has made no progress for longer than expected in its stage."""
    NOT_STARTED = "NotStarted"
    """No Pod exists yet."""
    POD_REFUSED = "PodRefused"
    """The Deployment cannot create Pods, for example because of a quota or a policy. The message says why."""
    START_FAILED = "StartFailed"
    """A start failed. The condition Crashed says why."""
    # Crashed
    NO_CRASH = "NoCrash"
    """A Pod that no longer exists crashed. No replica is ready yet."""
    DIAGNOSING_CRASH = "DiagnosingCrash"
    """The Pod crashed a moment ago. The operator is reading its log."""
    RECOVERED = "Recovered"
    """The Pod crashed earlier and is ready now."""
    UNKNOWN_CRASH = "UnknownCrash"
    """The Pod crashed and no known signature matches. The message quotes the innermost error, or says why the log could not be read."""
    # Exposed
    IN_EFFECT = "InEffect"
    """The objects that the spec asks for exist. Also a reason of Autoscaled and Protected."""
    ROUTE_NOT_ACCEPTED = "RouteNotAccepted"
    """No Gateway has accepted the HTTPRoute yet."""
    KIND_NOT_INSTALLED = "KindNotInstalled"
    """The cluster lacks the CustomResourceDefinition of an object that the spec asks for. The message says how to install it. Also a
    reason of Autoscaled, and of Planned for the CustomResourceDefinition of a preset."""
    INTEGRATION_DISABLED = "IntegrationDisabled"
    """The operator may not create an object that the spec asks for. The message names the value of the chart. Also a reason of
    Autoscaled."""
    # Autoscaled
    METRICS_API_MISSING = "MetricsAPIMissing"
    """The cluster serves no metrics of Pods to autoscalers. The message says how to install an adapter."""
    AUTOSCALER_EXISTS = "AutoscalerExists"
    """Another HorizontalPodAutoscaler scales this object. The message names it."""
    # Ready
    SERVING = "Serving"
    """All replicas serve the current spec, and everything else that it asks for is in effect. Also a reason of Available."""
    NOT_EXPOSED = "NotExposed"
    """All replicas serve, but the NetworkPolicy, the HTTPRoute or the InferencePool is not in effect. The condition Exposed says why."""
    NOT_AUTOSCALED = "NotAutoscaled"
    """All replicas serve, but the autoscaler is not in effect. The condition Autoscaled says why."""
    NOT_PROTECTED = "NotProtected"
    """All replicas serve, but the PodDisruptionBudget is not in effect. The condition Protected says why."""
    NOT_PUBLISHED = "NotPublished"
    """All replicas serve, but their caches are not in the registry. The condition CachePublished says why."""
    SCALED_TO_ZERO = "ScaledToZero"
    """`spec.replicas` is 0. Also a reason of Available."""
    STOPPED = "Stopped"
    """Scaled to zero as set in `remediation.onUnrecoverableCrash`, because a restart cannot fix the crash. Also a reason of
    Progressing."""
    APPLY_FAILED = "ApplyFailed"
    """The API server refused an object that the operator applied. The message says which and why. Also a reason of Exposed, Autoscaled
    and Protected."""
    PERMISSION_MISSING = "PermissionMissing"
    """The service account of the operator lacks a permission. The message names it. Also a reason of Planned."""
    OPERATOR_FAILED = "OperatorFailed"
    """An unexpected error occurred in the operator. The message quotes it. The operator retries."""
    REPLICAS_NOT_READY = "ReplicasNotReady"
    """Some replicas are ready, others are not ready yet."""
    NOT_SERVING = "NotServing"
    """No replica is ready. A reason of Available."""
    # Not reported
    VALID = "Valid"
    """All of the spec is in effect."""
    NOT_ACCEPTED = "NotAccepted"
    """There is no plan because the spec was not accepted."""
    STARTED = "Started"
    """All replicas have started and serve the current spec. The rollout is complete."""
    NOT_PLANNED = "NotPlanned"
    """The current spec cannot be rolled out without a plan. See the conditions Accepted and Planned."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The status, reason and message of a condition."""

    status: ConditionStatus
    reason: str
    message: str


VALID_SPEC = Verdict(TRUE, Reason.VALID, "The spec is valid.")


def set_conditions(previous: Sequence[Condition], verdicts: Mapping[str, Verdict], *, now: str) -> list[Condition]:
    """Return the conditions for verdicts by type, in order. A condition without a verdict is removed; an unchanged one is kept.

    `last_transition_time` changes only with the status. `now` is an RFC 3339 timestamp in seconds.
    """
    conditions = []
    for type, verdict in verdicts.items():
        before = find_condition(previous, type)
        condition = Condition(
            type=type,
            status=verdict.status,
            last_transition_time=(before.last_transition_time if before and before.status == verdict.status else None) or now,
            reason=verdict.reason,
            message=verdict.message,
        )
        conditions.append(before if before == condition else condition)
    return sort_conditions(conditions)


def sort_conditions(conditions: Iterable[Condition]) -> list[Condition]:
    """Sort as in `ORDER`, unknown types last by name."""
    rank = {name: index for index, name in enumerate(ORDER)}
    return sorted(conditions, key=lambda c: (rank.get(c.type, len(rank)), c.type))


def find_condition(conditions: Iterable[Condition], type: str) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((condition for condition in conditions if condition.type == type), None)
