"""Current activity of the caches, such as priming and cleaning, for the status."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from vllm_operator.caches.measurement import GateRecord
from vllm_operator.pods.view import PodView

PrimingStep = Literal["None", "FirstPod", "Primer", "Elsewhere"]
"""Which Pod fills an empty cache: no specific one (it is filled, on no volume, or not primed); one replica, and the others start when it is
Ready; an additional Pod that serves no requests and is deleted when it is Ready; or one of another VLLMDeployment that shares the PVC.
"""
CleaningState = Literal["InProgress", "Done", "NothingToRemove", "Failed", "Impossible", "HasSpace", "Refused", "InUseByOthers"]
"""State of cleaning a full volume. NothingToRemove: every directory is in use or belongs to others. Impossible: only one Pod can mount the
PVC. HasSpace: another volume is full; `why` names it. Refused: by the API server. InUseByOthers: a Pod of another owner mounts the whole
PVC, so nobody knows which directories it uses, and none is removed.
"""
PublicationState = Literal["NotPublishable", "OfRanks", "NotCompiled", "NeedsPrimer", "Running", "Done", "Refused"]
"""State of the publication of a cache directory. NotPublishable: no Job can mount the caches. OfRanks: each node of a replica has only
those of its ranks. NotCompiled: no Pod with them is Ready yet. NeedsPrimer: only a primer can publish them, and no rollout has needed one
yet. Done: an attempt has ended; the status has the result.
"""
FetchingState = Literal["Waiting", "Running", "Fetched", "Failed", "Refused", "Impossible"]
"""State of fetching weights before a start. Waiting: the PVC or the Pod of the Job does not exist or run yet. Fetched: the result is being
recorded. Failed: the last attempt; the kubelet retries. Refused: the Job or the record, by the API server. Impossible: no Job can download
to the PVC; `result` is the reason: `OnePod` can mount it, or `NoNode` has the GPUs of the plan.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """Cleaning of a full volume."""

    state: CleaningState
    removed: tuple[str, ...] = ()
    freed_bytes: int = 0
    retained: int = 0  # number of files and directories of other owners
    retained_bytes: int | None = None  # their size; None if unknown
    advice: str = ""  # the command that enlarges the volume
    why: str = ""  # the obstacle, if any


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The publication of a cache directory."""

    state: PublicationState
    occasion: str = ""  # a digest of the published content; empty if unknown
    result: "ArtifactResult | None" = None  # what the Job reported; None if its Pod no longer exists
    ended: datetime | None = None
    why: str = ""  # the reason of the API server for refusing the Job
    recheck_seconds: float | None = None
    is_last: bool = False  # a failure is final, because the rollout has begun


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """Fetching weights before a start."""

    state: FetchingState
    claim: str
    view: PodView | None = None  # the Pod of the Job
    result: str = ""  # why the last attempt failed, in one word
    why: str = ""  # the untrusted message of the program or the API server
    needed_bytes: int | None = None  # set if there is too little space, as `free_bytes`
    free_bytes: int | None = None
    commit: str | None = None  # set if it was downloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRollout:
    """What a rollout waits for. `claim` is a volume that only `nodes` can mount, if it matters; else None."""

    needed: int  # Pods that must have room
    count: int  # devices of each Pod
    device: str  # kind of device
    room: int  # Pods that have room
    most: int  # free devices on the node with the most
    claim: str | None = None
    nodes: tuple[str, ...] = ()
    is_elsewhere: bool = False  # these nodes do not have such devices, so the rolling update cannot succeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The comparison of a new plan with the current one before a rollout."""

    record: GateRecord
    is_held: bool  # whether the rollout waits
    is_recorded: bool = True  # whether the record is on the ControllerRevision; if not, it is written before anything else happens
    run: str = ""  # the run that is measured now; empty if the comparison is over
    is_new: bool = True  # whether it runs the new plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheActivity:
    """Current activity of the caches of one VLLMDeployment. Parts that are None do not exist."""

    step: PrimingStep = "None"
    because: str = ""  # why one Pod starts first; a sentence, or empty
    holder: str | None = None  # the other VLLMDeployment that fills the cache
    held: bool = False  # whether the Deployment stays unchanged for now
    rollout: HeldRollout | None = None  # what the rollout waits for, if it would stop serving Pods
    gate: Gate | None = None  # the comparison before the rollout
    limit: int | None = None  # replicas for which the node of a volume has devices, if they are fewer than desired
    is_short: bool = False  # whether the volume of the weights is too small for them, so that no Pod starts
    until: datetime | None = None  # when the rollout continues without the primer, which waits for a GPU
    stops: bool = False  # whether that rollout stops the replicas before the new ones are Ready
    skipped: str | None = None  # why the cache was not filled before the rollout
    unowned_claims: tuple[str, ...] = ()  # PVCs with names of the operator's PVCs that it did not create. It does not write to them.
    claim_note: str | None = None  # which part of the spec cannot be applied to the PVC, and what to do
    moved_to: str | None = None  # digest to which the tag of the image points now, if another image filled the current directory
    cleaning: Cleaning | None = None
    publication: Publication | None = None
    fetching: Fetching | None = None
    recheck_seconds: float | None = None

    @property
    def is_priming(self) -> bool:
        """Whether one Pod is filling an empty cache, here or elsewhere."""
        return self.step != "None"


NO_ACTIVITY = CacheActivity()
