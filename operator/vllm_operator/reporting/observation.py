"""What a report is made from, and what it is.

An observation is everything that is known of one VLLMDeployment at one moment: the object with the status
that was last written, what planning said, the children as the API server has them, and what the logs of
starting Pods have told. A report follows from it alone. There is no memory: what must survive a restart of
the operator (an event already sent, a progress already shown) is read from the previous status.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import VLLMDeploymentStatus
from vllm_operator.planning.inventory.taints import Taint
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.storage.care import NO_CARE, CacheCare
from vllm_operator.startup.state import StartupState

Manifest = Mapping[str, Any]
"""A Kubernetes object as a plain dict. Its shape is not trusted."""

RunKey = tuple[str, int]
"""One run of the engine container: the uid of its Pod, and how often the container had been restarted before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything known of one VLLMDeployment at one moment.

    Attributes:
        resource: The object as read, with the status that was last written.
        outcome: What planning says of its present generation.
        now: The present time, UTC.
        deployment: The Deployment as the API server has it; None if there is none.
        service: The Service; None if there is none.
        claim: The claim of the caches; None if it does not exist.
        claim_name: The claim of the caches that is expected; None if the caches are not on a claim.
        weights_claim: The claim of the weights, where that is another one; None if it does not exist.
        weights_claim_name: The claim of the weights that is expected, where that is another one.
        pods: The Pods of the Deployment, those being deleted and the failed ones included.
        primers: The Pods that only fill a cache; they never serve.
        pod_events: Core events about these Pods and the claim. May be empty: then some messages say less.
        startups: What the log of a container run has told. Holds the run that is followed; after a crash also
            the crashed run, which tells why. May lack any entry: then the Pod's status alone is used.
        cores: How many CPUs the Pods use whose start is silent, by uid. Empty where the cluster does not measure it.
        taints: What keeps Pods off the nodes that have the GPUs of the plan, by the name of the node. Empty while no Pod waits
            for a node, and where the nodes may not be read.
        care: What is being done about the caches.
        not_kept: Fields of the Deployment's template that were applied and that the API server, or a webhook, left out or changed.
        apply_error: Why the API server refused a child at the last attempt; None if all were accepted.
    """

    resource: VLLMDeployment
    outcome: Outcome
    now: datetime
    deployment: Manifest | None = None
    service: Manifest | None = None
    claim: Manifest | None = None
    claim_name: str | None = None
    weights_claim: Manifest | None = None
    weights_claim_name: str | None = None
    pods: tuple[Manifest, ...] = ()
    primers: tuple[Manifest, ...] = ()
    pod_events: tuple[Manifest, ...] = ()
    startups: Mapping[RunKey, StartupState] = field(default_factory=dict)
    cores: Mapping[str, float] = field(default_factory=dict)
    taints: Mapping[str, tuple[Taint, ...]] = field(default_factory=dict)
    care: CacheCare = NO_CARE
    not_kept: tuple[str, ...] = ()
    apply_error: str | None = None

    @property
    def previous(self) -> VLLMDeploymentStatus:
        """The status that was last written."""
        return self.resource.status

    @property
    def wanted(self) -> int:
        """How many replicas are wanted."""
        return self.resource.spec.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDraft:
    """An event to be recorded on the VLLMDeployment.

    `type` is Normal or Warning. `key` names the occurrence: it is the same whenever the same one is reported
    again, and then nothing is recorded. `series` is the same for occurrences that repeat each other, such as
    the crashes of one Pod by one cause: they are counted in one event. Empty: this happens once.
    """

    type: str
    reason: str
    message: str
    key: str
    series: str = ""


@dataclass(frozen=True, slots=True)
class PodReference:
    """A Pod by name and uid."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class StartClock:
    """A start that is under way: when it began, UTC, and after how many seconds it is late."""

    began: datetime
    late_after_seconds: int

    @property
    def late_at(self) -> datetime:
        """From when on it is late."""
        return self.began + timedelta(seconds=self.late_after_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What to write, what to do, and when to look again.

    `restart_pods` are to be deleted once the status is written, because their start has stalled.
    `start` is the start that is under way; None if none is in progress.
    `requeue_after_seconds` is when time alone may change the report; None if only an observed change can.
    """

    status: VLLMDeploymentStatus
    events: tuple[EventDraft, ...] = ()
    restart_pods: tuple[PodReference, ...] = ()
    start: StartClock | None = None
    requeue_after_seconds: float | None = None
