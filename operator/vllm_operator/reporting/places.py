"""Where the caches of the Pods are, in words: a claim, a directory of the node, a volume of the Pod's own."""

from dataclasses import dataclass
from typing import Any

from vllm_operator.catalog.paths import CACHE_ROOT
from vllm_operator.rendering.addresses import template_spec, volume_at
from vllm_operator.reporting import reading
from vllm_operator.reporting.observation import Observation


@dataclass(frozen=True, slots=True)
class Place:
    """Where caches are. `is_shared`: the next Pod, on the same node at least, finds what this one leaves."""

    words: str
    is_shared: bool


def place_of(observation: Observation) -> Place | None:
    """Where the caches are; None if nothing keeps them."""
    if observation.claim_name is not None:
        return Place(f"claim {observation.claim_name}", is_shared=True)
    volume: Any = volume_at(template_spec(observation.deployment), CACHE_ROOT)
    if path := reading.text(volume, "hostPath", "path"):
        return Place(f"{path} on the node", is_shared=True)
    if reading.mapping(volume, "ephemeral"):
        return Place("the Pod's own claim", is_shared=False)
    return Place("an emptyDir of the Pod", is_shared=False) if "emptyDir" in volume else None
