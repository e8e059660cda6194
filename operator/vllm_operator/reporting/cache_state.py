"""Whether the caches of a plan are filled, as far as the claim, the Pods and the status that was written last tell."""

from vllm_operator.api import labels
from vllm_operator.api.status import CacheState, Plan
from vllm_operator.reporting import reading
from vllm_operator.reporting.pods import Phase
from vllm_operator.reporting.rollout import is_rolled_out
from vllm_operator.reporting.scene import Scene


def next_start_finds(scene: Scene, plan: Plan) -> CacheState | None:
    """What the next start with this plan finds; None without a claim. The same before and after it was written."""
    observation = scene.observation
    previous = observation.previous.cache
    was_warm = previous is not None and previous.key == plan.cache_key and previous.state is CacheState.WARM
    if observation.claim_name is None:
        return None
    primed = reading.text(observation.claim, "metadata", "annotations", labels.PRIMED_ANNOTATION_PREFIX + plan.cache_key)
    if not primed and observation.care.is_priming:
        return CacheState.PRIMING
    served = scene.serving > 0 and is_rolled_out(scene) and observation.outcome.plan is not None
    if primed or served or was_warm:
        return CacheState.WARM
    return CacheState.PRIMING if any(view.phase is Phase.STARTING for view in scene.pods) else CacheState.COLD
