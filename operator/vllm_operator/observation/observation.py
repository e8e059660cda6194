"""What a report is made from.

An observation is everything that is known of one VLLMDeployment at one moment: the object with the status
that was last written, what planning said, the children as the API server has them, and what the logs of
starting Pods have told. A report follows from it alone. There is no memory: what must survive a restart of
the operator (an event already sent, a progress already shown) is read from the previous status.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import VLLMDeploymentStatus
from vllm_operator.caches.activity import NO_ACTIVITY, CacheActivity
from vllm_operator.caches.claim_holders import ClaimHolder
from vllm_operator.planning.inventory.taints import Taint
from vllm_operator.planning.outcome import Outcome
from vllm_operator.pods.reading import Manifest, RunKey
from vllm_operator.startup.state import StartupState


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
        claim_holders: The Pods that keep a claim which is being deleted, by the name of the claim. Pods of others are included.
        pods: The Pods of the Deployment, those being deleted and the failed ones included.
        primers: The Pods that only fill a cache; they never serve.
        pod_events: Core events about these Pods and the claim. May be empty: then some messages say less.
        startups: What the log of a container run has told. Holds the run that is followed; after a crash also
            the crashed run, which tells why. May lack any entry: then the Pod's status alone is used.
        cores: How many CPUs the Pods use whose start is silent, by uid. Empty where the cluster does not measure it.
        taints: What keeps Pods off the nodes that have the GPUs of the plan, by the name of the node. Empty while no Pod waits
            for a node, and where the nodes may not be read.
        activity: What is being done about the caches.
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
    claim_holders: Mapping[str, tuple[ClaimHolder, ...]] = field(default_factory=dict)
    pods: tuple[Manifest, ...] = ()
    primers: tuple[Manifest, ...] = ()
    pod_events: tuple[Manifest, ...] = ()
    startups: Mapping[RunKey, StartupState] = field(default_factory=dict)
    cores: Mapping[str, float] = field(default_factory=dict)
    taints: Mapping[str, tuple[Taint, ...]] = field(default_factory=dict)
    activity: CacheActivity = NO_ACTIVITY
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
