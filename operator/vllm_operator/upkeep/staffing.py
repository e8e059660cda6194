"""From who is to run to the manifests of it."""

from collections.abc import Sequence
from typing import Any

from vllm_operator.planning.storage.care import PrimingStep
from vllm_operator.rendering.primer import render_primer
from vllm_operator.reporting import reading
from vllm_operator.upkeep.priming import Staffing
from vllm_operator.upkeep.situation import Situation

_DEPLOYMENT = "Deployment"


def staff(manifests: Sequence[dict[str, Any]], staffing: Staffing, situation: Situation) -> list[dict[str, Any]]:
    """Return the manifests as they are to be applied now.

    A Deployment that is held is left out; it must not be deleted for that.
    """
    result: list[dict[str, Any]] = []
    for manifest in manifests:
        if manifest["kind"] != _DEPLOYMENT:
            result.append(manifest)
            continue
        if staffing.care.step is PrimingStep.PRIMER:
            beside = situation.is_bound_to_node and staffing.care.held
            result.append(render_primer(manifest, beside_replicas=beside))
        if not staffing.care.held:
            result.append(_with_replicas(manifest, staffing.replicas))
    return result


def held_replicas(staffing: Staffing, situation: Situation) -> int | None:
    """How many replicas a Deployment that is held is to have; None if none is held.

    What serves with caches of its own is scaled as wished: load does not wait for a rollout. What would start with the
    very directory that another one fills is only scaled down.
    """
    wanted = reading.integer(situation.wish, "spec", "replicas")
    if not staffing.care.held or wanted is None:
        return None
    present = reading.integer(situation.deployment, "spec", "replicas") or 0
    return min(present, wanted) if situation.present_address == situation.address else wanted


def _with_replicas(deployment: dict[str, Any], replicas: int | None) -> dict[str, Any]:
    if replicas is None:
        return deployment
    return {**deployment, "spec": {**deployment["spec"], "replicas": replicas}}
