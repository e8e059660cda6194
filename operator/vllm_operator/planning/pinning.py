"""Keeping a plan: nothing restarts because the operator, its catalog or the nodes have changed.

A plan stays in force until the user changes the spec or asks for a new plan with an annotation. Another number of replicas is
no such change: an autoscaler makes it, and what it starts must be like what is there. What would be chosen otherwise today
is told, one line per difference.
"""

from vllm_operator.api.conditions import Reason
from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import CacheMarker, ConditionStatus, Plan
from vllm_operator.caches.key import CacheOrigin, plan_cache
from vllm_operator.catalog.caches import Caches
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.planning.differences import compare, refusal_of
from vllm_operator.planning.engine.shape import resolve_shape
from vllm_operator.planning.outcome import ACCEPTED, Outcome, Verdict, summarize
from vllm_operator.planning.pod_template import run_as_user

LINES_IN_MESSAGE = 4
"""Differences named in the condition; all are in `Outcome.drift`."""


def keep_plan(pinned: Plan, fresh: Outcome, gpus: GPUs) -> Outcome:
    """Return the pinned plan, with what would be chosen otherwise today.

    Args:
        pinned: The plan in force.
        fresh: What planning anew comes to.
        gpus: What is known of GPUs.
    """
    drift = [difference.text for difference in compare(pinned, fresh.plan)] if fresh.plan else [refusal_of(fresh)]
    if not drift:
        reason = Reason.RESOLVED if pinned.architecture else Reason.GPU_UNKNOWN
        return Outcome(ACCEPTED, Verdict(ConditionStatus.TRUE, reason, summarize(pinned, gpus)), pinned, today=fresh)
    listed = " ".join(drift[:LINES_IN_MESSAGE])
    more = f" And {len(drift) - LINES_IN_MESSAGE} more." if len(drift) > LINES_IN_MESSAGE else ""
    message = (
        f"{summarize(pinned, gpus, with_notes=False)} It stays as it is; planned anew today, this would differ: {listed}{more} "
        f"To have the new plan, which restarts the Pods, set the annotation {REPLAN_ANNOTATION} to any new value."
    )
    return Outcome(ACCEPTED, Verdict(ConditionStatus.TRUE, Reason.RESOLVED_DIFFERENTLY, message), pinned, tuple(drift), fresh)


def with_cache_generation(pinned: Plan, resource: VLLMDeployment, caches: Caches, generation: int) -> Plan:
    """The pinned plan with the cache of this generation: a damaged cache is left behind without planning anew."""
    parts = {part.name: part.value for part in pinned.cache_key_parts}
    shape = resolve_shape(resource.spec)
    if parts.get("generation") in (None, str(generation)) or isinstance(shape, Verdict):
        return pinned
    origin = CacheOrigin(
        version=pinned.engine_version,
        distribution=pinned.distribution,
        image=pinned.image,
        architecture=pinned.architecture,
        product=pinned.product,
        mig_profile=None if parts.get("migProfile") in (None, "none") else parts["migProfile"],
        parallel=str(shape.parallel),
        user=run_as_user(resource.spec.pod_template),
        arguments=parts.get("arguments"),
        generation=generation,
    )
    cache = plan_cache(origin, caches)
    changed = {"cache_key": cache.key, "cache_key_parts": list(cache.parts), "cache_marker": CacheMarker.INIT_CONTAINER}
    return pinned.model_copy(update=changed)
