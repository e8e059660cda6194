"""What is decided upon: one VLLMDeployment, its plan, its Pods, and the claim of its caches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from vllm_operator.api.labels import COMPONENT_LABEL, CONTAINER
from vllm_operator.api.resource import Role, VLLMDeployment
from vllm_operator.api.status import Plan
from vllm_operator.caches.address import CacheAddress, cache_address, template_spec
from vllm_operator.caches.key import digest_of, key_with_image
from vllm_operator.pods import reading
from vllm_operator.pods.view import Phase, PodView, read_pod

Manifest = Mapping[str, Any]
PRIMER_PATIENCE_SECONDS = 60
"""How long a primer may look for a GPU before a rollout goes on without it. A scheduler that knows all nodes needs
seconds; adding a node takes minutes, for which nobody wants to wait who has not asked for it."""


@dataclass(frozen=True, kw_only=True)  # without slots: what follows from it is worked out once
class CacheContext:
    """Everything that a decision about caches is made from.

    Attributes:
        resource: The VLLMDeployment, with the status that was last written.
        plan: Its plan.
        desired: The Deployment as it would be rendered with all replicas.
        deployment: The Deployment as it is; None if there is none.
        primer: The Deployment of the primer as it is; None if there is none.
        claim: The claim of the caches; None if it does not exist yet.
        desired_claim: The claim as it is going to be created; None if the user has named one.
        claims: The claims of caches and weights that exist, by name.
        weights_claim_name: The claim of the weights, where that is another one.
        weights_modes: Access modes of the claim of the weights, where that is another one; empty where there is none.
        pods: The Pods of the VLLMDeployment, primers included.
        holder: The VLLMDeployment that the claim names as the one who fills the cache, if that is another one and exists.
        holder_pods: Its Pods.
        now: The present time.
        primer_patience_seconds: How long a primer may wait for a GPU while replicas serve.
    """

    resource: VLLMDeployment
    plan: Plan
    desired: Manifest
    now: datetime
    deployment: Manifest | None = None
    primer: Manifest | None = None
    claim: Manifest | None = None
    desired_claim: Manifest | None = None
    claims: Mapping[str, Manifest] = field(default_factory=dict)
    weights_claim_name: str | None = None
    weights_modes: tuple[str, ...] = ()
    pods: tuple[Manifest, ...] = ()
    holder: Manifest | None = None
    holder_pods: tuple[Manifest, ...] = ()
    primer_patience_seconds: int = PRIMER_PATIENCE_SECONDS

    @cached_property
    def address(self) -> CacheAddress | None:
        """Where the caches of the plan are; None if on no claim."""
        return cache_address(template_spec(self.desired))

    @cached_property
    def present_address(self) -> CacheAddress | None:
        """Where the caches of the Deployment as it is are."""
        return cache_address(template_spec(self.deployment))

    @cached_property
    def key_by_tag(self) -> str:
        """The directory that belongs to the image as the plan names it, whatever the claim says of its tag."""
        return key_with_image(self.plan, self.plan.image)

    @cached_property
    def running_digest(self) -> str | None:
        """The digest of the image that the newest Pod with the directory of the plan runs; None if no Pod tells."""
        return max(self._digests(), default=("", None))[1]

    def _digests(self) -> Iterator[tuple[str, str]]:
        for pod in self.pods:
            container = reading.named(pod, CONTAINER, "status", "containerStatuses", key="name")
            wished = reading.named(pod, CONTAINER, "spec", "containers", key="name")
            # an image that was loaded into a node without a registry has no digest, only an ID of its own
            digest = digest_of(reading.text(container, "imageID"))
            if digest is None or wished.get("image") != self.plan.image or cache_address(pod.get("spec")) != self.address:
                continue
            yield reading.text(pod, "metadata", "creationTimestamp"), digest

    @property
    def access_modes(self) -> tuple[str, ...]:
        """Access modes of the claim; empty where it is not known."""
        return reading.access_modes(self.claim if self.claim is not None else self.desired_claim)

    @property
    def is_one_node(self) -> bool:
        """Whether the claim of the caches can be mounted on one node only."""
        return reading.is_one_node(self.access_modes)

    @property
    def is_bound_to_node(self) -> bool:
        """Whether all Pods must be on one node, because of this claim or that of the weights."""
        return self.is_one_node or reading.is_one_node(self.weights_modes)

    @cached_property
    def replicas(self) -> tuple[tuple[CacheAddress | None, PodView], ...]:
        """The replicas, each with where its caches are."""
        return tuple((cache_address(pod.get("spec")), read_pod(pod)) for pod in self.pods if is_replica(pod))

    @cached_property
    def primers(self) -> tuple[tuple[CacheAddress | None, PodView], ...]:
        """The primers, each with where its caches are. Those that are leaving are left out."""
        found = [(cache_address(pod.get("spec")), read_pod(pod)) for pod in self.pods if is_primer(pod)]
        return tuple((address, view) for address, view in found if view.phase is not Phase.TERMINATING)


def is_replica(pod: Manifest) -> bool:
    """Whether a Pod is there to serve."""
    return reading.text(pod, "metadata", "labels", COMPONENT_LABEL) not in (Role.PRIMER.value, Role.CLEANING.value)


def is_primer(pod: Manifest) -> bool:
    """Whether a Pod is there to fill a cache, not to serve."""
    return reading.text(pod, "metadata", "labels", COMPONENT_LABEL) == Role.PRIMER.value
