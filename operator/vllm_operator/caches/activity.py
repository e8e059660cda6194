"""Current activity of the caches, such as priming and cleaning, for the status."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from vllm_operator.pods.view import PodView


class PrimingStep(StrEnum):
    """Which Pod fills an empty cache."""

    NONE = "None"
    """No specific Pod: the cache is already filled, is on no volume, or is not primed."""
    FIRST_POD = "FirstPod"
    """One replica. The others start when it is Ready."""
    PRIMER = "Primer"
    """An additional Pod that serves no requests. It is deleted when it is Ready."""
    ELSEWHERE = "Elsewhere"
    """A Pod of another VLLMDeployment that shares the PVC. No Pod of this one starts earlier."""


class CleaningState(StrEnum):
    """State of cleaning a full volume."""

    IN_PROGRESS = "InProgress"
    DONE = "Done"
    NOTHING_TO_REMOVE = "NothingToRemove"
    """Every directory is in use or belongs to others."""
    FAILED = "Failed"
    IMPOSSIBLE = "Impossible"
    """Only one Pod can mount the PVC."""
    HAS_SPACE = "HasSpace"
    """The cache volume has space. Another volume is full; `why` names it."""
    REFUSED = "Refused"
    """The API server refused the Job: a missing permission, or an admission policy."""
    IN_USE_BY_OTHERS = "InUseByOthers"
    """A Pod of another owner mounts the whole PVC. The operator cannot tell which directories it uses, and removes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """Cleaning of a full volume.

    Attributes:
        state: State of the cleaning.
        removed: Directories that were removed.
        freed_bytes: Space that was freed.
        retained: Number of files and directories of other owners.
        retained_bytes: Their size; None if unknown.
        advice: The command that enlarges the volume.
        why: The obstacle, if any.
    """

    state: CleaningState
    removed: tuple[str, ...] = ()
    freed_bytes: int = 0
    retained: int = 0
    retained_bytes: int | None = None
    advice: str = ""
    why: str = ""


class PublicationState(StrEnum):
    """State of the publication of a cache directory."""

    NOT_PUBLISHABLE = "NotPublishable"
    """The caches are not on a PersistentVolumeClaim that a Job can mount."""
    NOT_PRIMED = "NotPrimed"
    """No Pod with these caches is Ready yet."""
    NEEDS_PRIMER = "NeedsPrimer"
    """Only a primer can publish the caches, and no rollout has needed one yet."""
    RUNNING = "Running"
    DONE = "Done"
    """An attempt has ended in this or an earlier reconciliation. The status has the result."""
    REFUSED = "Refused"
    """The API server refused the Job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The publication of a cache directory.

    Attributes:
        state: State of the publication.
        occasion: Digest of the published content; empty if unknown.
        result: What the Job reported; None if its Pod no longer exists.
        ended: When the Job ended.
        why: Reason of the API server for refusing the Job.
        recheck_seconds: Seconds until the next attempt; None if there is none.
        is_last: Whether a failure is final, because the rollout has begun.
    """

    state: PublicationState
    occasion: str = ""
    result: "ArtifactResult | None" = None
    ended: datetime | None = None
    why: str = ""
    recheck_seconds: float | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactResult:
    """Result that a program reported. `result` is one word. All fields are untrusted, because a Pod wrote them."""

    result: str
    tag: str = ""
    digest: str = ""
    message: str = ""
    differs: str = ""
    seconds: float | None = None
    size_bytes: int | None = None
    files: int | None = None
    cold_seconds: int | None = None


class FetchingState(StrEnum):
    """State of fetching weights before a start."""

    WAITING = "Waiting"
    """The PVC or the Pod of the Job does not exist yet, or the Pod is not running yet."""
    RUNNING = "Running"
    FETCHED = "Fetched"
    """The Job has finished, and its result is being recorded."""
    FAILED = "Failed"
    """The last attempt failed. The kubelet retries."""
    REFUSED = "Refused"
    """The API server refused the Job or the record."""
    IMPOSSIBLE = "Impossible"
    """No Job can download to the PVC. `result` is the reason: `OnePod` (one Pod can mount it) or `NoNode` (no node has the GPUs of the
    plan).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """Fetching weights before a start.

    Attributes:
        state: State of the fetch.
        claim: The PVC.
        view: The Pod of the Job; None without one.
        result: Why the last attempt failed, in one word.
        why: The obstacle: the message of the program or the API server. Untrusted.
        needed_bytes: Required space, if there is too little.
        free_bytes: Free space, if there is too little.
        commit: The commit that was downloaded.
    """

    state: FetchingState
    claim: str
    view: PodView | None = None
    result: str = ""
    why: str = ""
    needed_bytes: int | None = None
    free_bytes: int | None = None
    commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheActivity:
    """Current activity of the caches of one VLLMDeployment.

    Attributes:
        step: Which Pod fills an empty cache.
        because: Why one Pod starts first; a sentence, or empty.
        holder: The other VLLMDeployment that fills the cache, if any.
        held: Whether the Deployment stays unchanged until the cache is filled.
        until: When the rollout continues without the primer; None unless the primer waits for a GPU.
        skipped: Why the cache was not filled before the rollout; None if it was filled or need not be.
        unowned_claims: PVCs with names of the operator's PVCs that it did not create. It does not write to them.
        claim_note: Which part of the spec cannot be applied to the PVC, and what to do; None without one.
        moved_to: Digest to which the tag of the image points now, if another image filled the current directory; None if it has not moved.
        cleaning: Cleaning of a full volume; None without one.
        publication: Publication of the caches; None if none is requested.
        fetching: Fetch of the weights before the Pods start; None if there is nothing to fetch.
        recheck_seconds: Seconds until the next check without an event; None if every change causes an event.
    """

    step: PrimingStep = PrimingStep.NONE
    because: str = ""
    holder: str | None = None
    held: bool = False
    until: datetime | None = None
    skipped: str | None = None
    unowned_claims: tuple[str, ...] = ()
    claim_note: str | None = None
    moved_to: str | None = None
    cleaning: Cleaning | None = None
    publication: Publication | None = None
    fetching: Fetching | None = None
    recheck_seconds: float | None = None

    @property
    def is_priming(self) -> bool:
        """Whether one Pod is filling an empty cache, here or elsewhere."""
        return self.step is not PrimingStep.NONE


NO_ACTIVITY = CacheActivity()
"""No activity."""
