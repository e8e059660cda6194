"""Which taint keeps a Pod off the nodes that have its GPUs."""

from collections import Counter
from dataclasses import dataclass

from vllm_operator.observation.state import ObservedState
from vllm_operator.planning.inventory.taints import Taint
from vllm_operator.pods import reading
from vllm_operator.pods.view import PodView
from vllm_operator.rendering.pod import GPU_TAINT

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The taints of the nodes that are easiest to be let on: `node` is one of `nodes` that have just these."""

    node: str
    nodes: int
    taints: tuple[Taint, ...]

    @property
    def tolerations(self) -> str:
        """What is to be added to the tolerations of the Pods."""
        return ", ".join(taint.toleration for taint in self.taints[:_MOST_NAMED])

    @property
    def names(self) -> str:
        """The taints in words."""
        return " and ".join(str(taint) for taint in self.taints[:_MOST_NAMED])

    @property
    def is_passing(self) -> bool:
        """Whether one of them says something about the state of the node, and goes when that is over."""
        return any(taint.is_passing for taint in self.taints)

    @property
    def is_usually_tolerated(self) -> bool:
        """Whether the operator tolerates it wherever it is not told otherwise."""
        return any(taint.key == GPU_TAINT for taint in self.taints)


def obstacle(observed: ObservedState, view: PodView) -> Obstacle | None:
    """What keeps a Pod off the nodes with its GPUs; None if no taint does, as far as is known."""
    pod = next((pod for pod in observed.observation.pods if reading.text(pod, "metadata", "name") == view.name), None)
    tolerations = reading.mapping(pod, "spec").get("tolerations")
    found = {
        node: tuple(taint for taint in taints if not taint.is_tolerated(tolerations))
        for node, taints in observed.observation.taints.items()
    }
    kept_off = {node: taints for node, taints in found.items() if taints}
    if not kept_off:
        return None
    node = min(kept_off, key=lambda name: (len(kept_off[name]), name))
    return Obstacle(node, Counter(kept_off.values())[kept_off[node]], kept_off[node])
