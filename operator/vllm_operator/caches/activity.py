"""What is being done about the caches: filled by one Pod first, filled ahead of a rollout, waited for, cleaned.

The decision is made by `vllm_operator.caches`; this is its outcome, in the words that reports use.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class PrimingStep(StrEnum):
    """Who fills an empty cache."""

    NONE = "None"
    """Nobody in particular: the cache is filled, kept nowhere, or not primed."""
    FIRST_POD = "FirstPod"
    """One replica; the others start once it serves."""
    PRIMER = "Primer"
    """A Pod beside the replicas, which serves no requests and goes once it is Ready."""
    ELSEWHERE = "Elsewhere"
    """A Pod of another VLLMDeployment that shares the claim; nothing of ours starts until it is done."""


class CleaningState(StrEnum):
    """How far the making of room on a full volume is."""

    RUNNING = "Running"
    DONE = "Done"
    NOTHING = "Nothing"
    """Nothing could be removed: all that is there is in use, or is not ours."""
    FAILED = "Failed"
    IMPOSSIBLE = "Impossible"
    """The claim can be mounted by one Pod only."""
    ROOMY = "Roomy"
    """There is room on the volume of the caches: what the start found full is another one, `why` says which."""
    REFUSED = "Refused"
    """The API server did not take the Job: a missing permission, or an admission policy."""
    UNCLEAR = "Unclear"
    """Somebody else's Pod mounts the whole claim: what it uses cannot be told, so nothing is removed."""


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """What a Job has found on a volume and left alone: how many entries of its root, and their size where it is known."""

    count: int = 0
    size_bytes: int | None = None

    @property
    def gibibytes(self) -> float | None:
        """Their size in GiB; None if it is not known."""
        return None if self.size_bytes is None else self.size_bytes / 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """Making room on a full volume.

    Attributes:
        state: How far it is.
        removed: Directories that were removed.
        freed_bytes: How much room that made.
        unmarked: Directories that are recorded as the operator's and lack its marker: an earlier version has filled them.
        others: What is not the operator's.
        advice: The command that enlarges the volume.
        why: What stands in the way.
    """

    state: CleaningState
    removed: tuple[str, ...] = ()
    freed_bytes: int = 0
    unmarked: LeftAlone = field(default_factory=LeftAlone)
    others: LeftAlone = field(default_factory=LeftAlone)
    advice: str = ""
    why: str = ""


class Remounting(StrEnum):
    """What is done about a volume that has become read-only."""

    UNDER_WAY = "UnderWay"
    """The Pods are taken away, and started again once they are gone."""
    GIVEN_UP = "GivenUp"
    """That was done, and did not help."""
    BY_TEMPLATE = "ByTemplate"
    """It is mounted read-only because `podTemplate` says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageActivity:
    """The image of the Pods. `moved`: its tag stood for another one when the directory in use was filled."""

    digest: str | None = None
    moved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheActivity:
    """What is being done about the caches of one VLLMDeployment.

    Attributes:
        step: Who fills an empty cache.
        because: Why one Pod goes first; a sentence, or empty.
        holder: The VLLMDeployment that fills the cache, where that is another one.
        held: Whether the Deployment is left as it is until the cache is filled.
        until: When a Pod that fills the cache ahead of a rollout is not waited for any longer; None if it waits for no GPU.
        skipped: Why the cache was not filled ahead of the rollout; None if it was, or need not be.
        foreign_claims: Claims with the names that the operator would give to its own, but which it did not create: it does not
            write to them.
        claim_note: What of the spec the claim cannot follow, and what can be done; None if it follows.
        image: What is known of the image.
        remounting: What is done about a volume that has become read-only; None if it has not.
        cleaning: What is done about a volume that a start found full; None if none did.
        recheck_seconds: When to look again although nothing happens; None if only a change can matter.
    """

    step: PrimingStep = PrimingStep.NONE
    because: str = ""
    holder: str | None = None
    held: bool = False
    until: datetime | None = None
    skipped: str | None = None
    foreign_claims: tuple[str, ...] = ()
    claim_note: str | None = None
    image: ImageActivity = field(default_factory=ImageActivity)
    remounting: Remounting | None = None
    cleaning: Cleaning | None = None
    recheck_seconds: float | None = None

    @property
    def is_priming(self) -> bool:
        """Whether an empty cache is being filled by one Pod, here or elsewhere."""
        return self.step is not PrimingStep.NONE


NO_ACTIVITY = CacheActivity()
"""Nothing is being done, and nothing has to be."""
