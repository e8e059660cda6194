"""What decisions about caches take: one VLLMDeployment, its plan, Pods and PVCs; and what they return: the activity, for the status."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Literal

from vllm_operator.api import reading
from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.operation import ArtifactSpec
from vllm_operator.api.plan import Plan
from vllm_operator.api.reading import Manifest
from vllm_operator.api.resource import JOB_PURPOSES, Role, VLLMDeployment, template_spec
from vllm_operator.api.status import ArtifactStatus
from vllm_operator.caches.address import CacheAddress, cache_address, read_portability_settings
from vllm_operator.caches.jobs import has_role
from vllm_operator.caches.key import digest_of_image, key_with_image
from vllm_operator.caches.measurement import GateRecord, RaceRecord
from vllm_operator.inventory.pools import Room
from vllm_operator.pods.view import Phase, PodView

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
    most_free: int  # devices on the node with the most
    claim: str | None = None
    nodes: tuple[str, ...] = ()
    is_elsewhere: bool = False  # these nodes do not have such devices, so the rolling update cannot succeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The comparison of a new plan with the current one before a rollout."""

    record: GateRecord
    is_held: bool  # whether the rollout waits
    is_recorded: bool = True  # whether the record is on the ControllerRevision; if not, it is written before anything else happens
    run_name: str = ""  # the run that is measured now; empty if the comparison is over
    is_new: bool = True  # whether it runs the new plan


@dataclass(frozen=True, slots=True)
class Race:
    """A race of backends. `record` is None if it has not begun, `revision` names the ControllerRevision with it."""

    record: RaceRecord | None
    revision: str
    is_recorded: bool = True  # whether it has this record; if not, it is written before anything else happens
    run_name: str = ""  # the run that is measured now
    number: int = 0  # the entrant that runs
    waits: Literal["", "unplanned", "drifted", "unsettled"] = ""  # why it does not begin or go on now


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheActivity:
    """Current activity of the caches of one VLLMDeployment. Parts that are None do not exist."""

    step: PrimingStep = "None"
    because: str = ""  # why one Pod starts first; a sentence, or empty
    holder: str | None = None  # the other VLLMDeployment that fills the cache
    held: bool = False  # whether the Deployment stays unchanged for now
    rollout: HeldRollout | None = None  # what the rollout waits for, if it would stop serving Pods
    gate: Gate | None = None  # the comparison before the rollout
    race: Race | None = None  # the race of backends
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


PRIMER_PATIENCE_SECONDS = 60
"""How long a primer may wait for a GPU before the rollout continues. The scheduler needs seconds. A user may request minutes for a node."""


@dataclass(frozen=True, kw_only=True)  # not slots: cached_property needs `__dict__`
class CacheContext:
    """Input of decisions about caches: what is rendered, and what is live (None if it does not exist)."""

    resource: VLLMDeployment
    plan: Plan
    desired: Manifest  # the Deployment as rendered, with all replicas
    now: datetime
    deployment: Manifest | None = None
    primer: Manifest | None = None  # the Deployment of the primer
    claim: Manifest | None = None  # the PVC of the caches
    desired_claim: Manifest | None = None  # the PVC of the caches as rendered; None if the user named one
    claims: Mapping[str, Manifest] = field(default_factory=dict)  # the PVCs of caches and weights, by name
    claim_users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # other users of each PVC that this VLLMDeployment creates
    weights_claim_name: str | None = None  # name of the PVC of the weights, if it is a separate one
    weights_modes: tuple[str, ...] = ()
    pods: tuple[PodView, ...] = ()  # the Pods of the VLLMDeployment, including primers
    gpu_nodes: tuple[str, ...] = ()  # with the GPUs of the plan, sorted; read only for a Job that may bind the volume of the weights
    holder: Manifest | None = None  # the other VLLMDeployment that holds the priming lease
    holder_pods: tuple[PodView, ...] = ()
    primer_patience_seconds: int = PRIMER_PATIENCE_SECONDS
    is_rollout: bool = False  # the live Deployment has another Pod template, from another ControllerRevision
    device: str = "GPU"  # the kind of device that each Pod requests, in words
    room: Room | None = None  # the devices for Pods of the plan; None if unknown
    hold: HeldRollout | None = None  # what the rollout waits for (`vllm_operator.caches.rollout`)
    new_revision: str = ""  # name of the ControllerRevision of the plan, if the Pod template differs
    serving_revision: str = ""  # name of the ControllerRevision from which the live Deployment was rendered, likewise
    gate_record_text: str = ""  # what was measured before the rollout, from the ControllerRevision of the plan

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The Pods as read."""
        return tuple(pod.manifest for pod in self.pods)

    @cached_property
    def template(self) -> Manifest:
        """The Pod spec as rendered."""
        return template_spec(self.desired)

    @cached_property
    def engine(self) -> Manifest:
        """The container of the engine as rendered."""
        return reading.named(self.template, CONTAINER, "containers", key="name")

    @property
    def artifact(self) -> ArtifactSpec | None:
        """The artifact in the spec."""
        return self.resource.spec.cache.artifact if self.resource.spec.cache else None

    @property
    def known_artifact(self) -> ArtifactStatus | None:
        """The artifact in the status."""
        return self.resource.status.cache.artifact if self.resource.status.cache else None

    @cached_property
    def address(self) -> CacheAddress | None:
        """Address of the caches of the plan; None if they are on no PVC."""
        return cache_address(self.template)

    @cached_property
    def live_address(self) -> CacheAddress | None:
        """Address of the caches of the live Deployment."""
        return cache_address(template_spec(self.deployment))

    @cached_property
    def key_by_tag(self) -> str:
        """Directory for the image as named in the plan, ignoring the PVC's records about the tag."""
        return key_with_image(self.plan, self.plan.image)

    @cached_property
    def running_digest(self) -> str | None:
        """The digest of the image of the newest Pod that uses the directory of the plan; None if no Pod has one."""
        return max(self._digests(), default=("", None))[1]

    def _digests(self) -> Iterator[tuple[str, str]]:
        for pod in self.manifests:
            container = reading.named(pod, CONTAINER, "status", "containerStatuses", key="name")
            desired = reading.named(pod, CONTAINER, "spec", "containers", key="name")
            # An image that was loaded onto a node without a registry has an ID but no digest.
            digest = digest_of_image(reading.text(container, "imageID"))
            if digest is None or desired.get("image") != self.plan.image or cache_address(pod.get("spec")) != self.address:
                continue
            yield reading.text(pod, "metadata", "creationTimestamp"), digest

    @property
    def access_modes(self) -> tuple[str, ...]:
        """Access modes of the PVC of the caches; empty if unknown."""
        return reading.access_modes(self.claim if self.claim is not None else self.desired_claim)

    @property
    def is_one_node(self) -> bool:
        """Whether the PVC of the caches can be mounted on one node only."""
        return reading.is_one_node(self.access_modes)

    @cached_property
    def replicas(self) -> tuple[tuple[CacheAddress | None, PodView], ...]:
        """The replicas, each with the address of its caches."""
        return tuple((cache_address(pod.manifest.get("spec")), pod) for pod in self.pods if is_replica(pod))

    @cached_property
    def primers_of_plan(self) -> tuple[PodView, ...]:
        """Pods of primers that fetch, and therefore publish, the artifact of the plan."""
        desired = read_portability_settings(self.template)
        primers = (pod for pod in self.pods if is_primer(pod)) if desired else ()
        return tuple(pod for pod in primers if read_portability_settings(pod.manifest.get("spec")) == desired)

    @cached_property
    def primers(self) -> tuple[tuple[CacheAddress | None, PodView], ...]:
        """The primers that are not being deleted, each with the address of its caches."""
        primers = (pod for pod in self.pods if is_primer(pod) and pod.phase is not Phase.TERMINATING)
        return tuple((cache_address(pod.manifest.get("spec")), pod) for pod in primers)


def is_replica(pod: PodView) -> bool:
    """Return whether a Pod serves requests."""
    return not has_role(pod.manifest, Role.FOLLOWER, Role.PRIMER, *JOB_PURPOSES)


def is_follower(pod: PodView) -> bool:
    """Return whether a Pod belongs to a replica on several nodes, and is not its leader."""
    return has_role(pod.manifest, Role.FOLLOWER)


def is_primer(pod: PodView) -> bool:
    """Return whether a Pod is a primer: it fills a cache or is measured, and never serves."""
    return has_role(pod.manifest, Role.PRIMER)
