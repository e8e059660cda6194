"""Input of decisions about caches: one VLLMDeployment, its plan, its Pods, and the PVC of its caches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.operation import ArtifactSpec
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import Role, VLLMDeployment, template_spec
from vllm_operator.api.status import ArtifactStatus
from vllm_operator.caches.activity import HeldRollout
from vllm_operator.caches.address import CacheAddress, cache_address, read_portability_settings
from vllm_operator.caches.jobs import has_role
from vllm_operator.caches.key import digest_of, key_with_image
from vllm_operator.inventory.room import Room
from vllm_operator.pods.view import Phase, PodView

Manifest = Mapping[str, Any]
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
    revision: str = ""  # name of the ControllerRevision of the plan, if the Pod template differs
    serving: str = ""  # name of the ControllerRevision from which the live Deployment was rendered, likewise
    measured: str = ""  # what was measured before the rollout, from the ControllerRevision of the plan

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
            digest = digest_of(reading.text(container, "imageID"))
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
    return not has_role(pod.manifest, Role.FOLLOWER, Role.PRIMER, Role.CLEANING, Role.PUBLISHING, Role.FETCHING)


def is_follower(pod: PodView) -> bool:
    """Return whether a Pod belongs to a replica on several nodes, and is not its leader."""
    return has_role(pod.manifest, Role.FOLLOWER)


def is_primer(pod: PodView) -> bool:
    """Return whether a Pod is a primer: it fills a cache or is measured, and never serves."""
    return has_role(pod.manifest, Role.PRIMER)
