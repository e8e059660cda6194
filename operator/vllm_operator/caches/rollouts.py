"""Before a rollout that changes the caches, a primer fills them while the current replicas serve.

Pods that share a PVC read the primer's compiled files there. Pods without a shared volume (EmptyDir, ClaimPerReplica, HostPath) fetch them
from the registry: their primer also publishes its caches, from an additional container (`vllm_operator.caches.publishing`).

The rollout begins when the caches are filled, or published. It also begins, without them, if no GPU is free, if the Pod cannot be created
or does not start before its deadline, or if the publication fails. If the engine of the primer crashes, the rollout waits: the new replicas
would crash too.

No state is kept in memory: the decision follows from the live Deployments, their Pods and the status. So another spec change replaces the
primer, a revert removes it, and a restarted operator continues.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from vllm_operator.api import reading
from vllm_operator.caches.activity import CacheActivity, PrimingStep, Publication, PublicationState
from vllm_operator.caches.address import CacheAddress, template_spec
from vllm_operator.caches.artifacts import read_fetch, read_portability_settings
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.publishing import PUBLISHED, describe_primer_publication, is_asked, is_published_by_primer
from vllm_operator.pods.view import Phase, PodView, read_pod
from vllm_operator.text import wording

SERVES_UNTIL_FILLED = "The current replicas serve until the caches of the new Pods are filled."
SERVES_UNTIL_PUBLISHED = "The current replicas serve until the caches of the new Pods are published."
ONE_POD = "Only one Pod can mount the PVC (ReadWriteOncePod)."
_NOT_STARTED = frozenset({Phase.SCHEDULING, Phase.CREATING, Phase.NODE_LOST, Phase.FAILED})
"""Pod phases that do not predict whether replicas of the next rollout start."""
WAS_REQUESTED = "This was requested by the annotation vllm-operator.dev/prime."


def replaces_serving(context: CacheContext, address: CacheAddress) -> bool:
    """Return whether Pods that serve with caches in another directory will be replaced."""
    if context.deployment is None or context.live_address == address:
        return False
    return any(at != address and view.phase is Phase.READY for at, view in context.replicas)


def fill_before_rollout(context: CacheContext, address: CacheAddress) -> CacheActivity:
    """Return the activity that fills a directory of a PVC before the rollout."""
    views = [view for at, view in context.primers if at == address]
    if (skipped := remembered_skip(context) or _obstacle(context, views)) is not None:
        return CacheActivity(skipped=skipped)
    return CacheActivity() if _is_crashing(context) else _primer(context, views, SERVES_UNTIL_FILLED)


def publish_before_rollout(context: CacheContext) -> CacheActivity:
    """Return the activity of a primer for Pods without a shared volume: before a rollout that changes the artifact tag, or on request."""
    if not is_published_by_primer(context):
        return CacheActivity()
    publication = describe_primer_publication(context)
    is_before_rollout = _changes_tag(context)
    if not is_before_rollout:
        if is_asked(context) and context.replicas and _is_for_one_pod(context):
            return CacheActivity(skipped=ONE_POD)
        is_due = is_asked(context) and not _is_over(publication)
        return CacheActivity(step=PrimingStep.PRIMER, because=WAS_REQUESTED) if is_due else CacheActivity()
    views = [read_pod(pod) for pod in context.primers_of_plan if not reading.text(pod, "metadata", "deletionTimestamp")]
    skipped = remembered_skip(context) or _failure(context, publication) or _obstacle(context, views)
    if skipped is not None:
        return CacheActivity(skipped=skipped)
    fetched = any((found := read_fetch(pod)) is not None and found.result == "Fetched" for pod in context.primers_of_plan)
    if _is_over(publication) or fetched or _is_crashing(context):
        return CacheActivity()
    return _primer(context, views, SERVES_UNTIL_PUBLISHED)


def remembered_skip(context: CacheContext) -> str | None:
    """Return why the caches were not filled before this rollout, from the status."""
    known = context.resource.status.cache
    return known.priming_skipped if known is not None and known.key == context.plan.cache_key else None


def _changes_tag(context: CacheContext) -> bool:
    """Return whether serving Pods will be replaced by Pods that fetch another artifact."""
    desired = read_portability_settings(template_spec(context.desired))
    if context.deployment is None or read_portability_settings(template_spec(context.deployment)) == desired:
        return False
    return any(
        view.phase is Phase.READY and read_portability_settings(pod.get("spec")) != desired
        for pod, (_, view) in zip(context.replica_pods, context.replicas, strict=True)
    )


def _is_over(publication: Publication) -> bool:
    return publication.state is PublicationState.DONE


def _failure(context: CacheContext, publication: Publication) -> str | None:
    """Return why the primer could not publish the caches; None if it has published them or is still trying."""
    if not _is_over(publication):
        return None
    known = context.resource.status.cache.artifact if context.resource.status.cache else None
    word = publication.result.result if publication.result is not None else known.publish_result if known is not None else None
    if word in PUBLISHED:
        return None
    message = publication.result.message if publication.result is not None else known.publish_message if known is not None else None
    return f"They could not be published: {wording.clean(message or word or 'the result is unknown', 300)}"


def _is_crashing(context: CacheContext) -> bool:
    """Return whether a replica crashes. The rollout replaces crashing replicas first."""
    return any(view.phase is Phase.CRASHED for _, view in context.replicas)


def _primer(context: CacheContext, views: Sequence[PodView], because: str) -> CacheActivity:
    waits = [view.since for view in views if view.phase is Phase.UNSCHEDULABLE and view.since is not None]
    until = min(waits) + timedelta(seconds=context.primer_patience_seconds) if waits else None
    recheck = (until - context.now).total_seconds() if until is not None else None
    return CacheActivity(step=PrimingStep.PRIMER, because=because, held=True, until=until, recheck_seconds=recheck)


def _obstacle(context: CacheContext, views: Sequence[PodView]) -> str | None:
    """Return why no primer can run; None if one can."""
    if _is_for_one_pod(context):
        return ONE_POD
    failure = reading.named(context.primer, "ReplicaFailure", "status", "conditions")
    if failure.get("status") == "True":
        return f"The Pod could not be created: {wording.clean(reading.text(failure, 'message'), 300)}"
    limit = context.primer_patience_seconds
    if any(view.phase is Phase.UNSCHEDULABLE and view.since is not None and _age(context, view.since) >= limit for view in views):
        return f"No GPU was free within {limit} s."
    if _has_passed_deadline(context) and all(view.phase in _NOT_STARTED for view in views):
        return "The Pod did not start before its deadline."
    return None


def _is_for_one_pod(context: CacheContext) -> bool:
    return "ReadWriteOncePod" in (*context.access_modes, *context.weights_modes)


def _has_passed_deadline(context: CacheContext) -> bool:
    """Return whether the Deployment of the primer has made no progress within its `progressDeadlineSeconds`."""
    condition = reading.named(context.primer, "Progressing", "status", "conditions")
    seen, generation = (
        reading.integer(context.primer, *path) or 0 for path in (("status", "observedGeneration"), ("metadata", "generation"))
    )
    return condition.get("reason") == "ProgressDeadlineExceeded" and seen >= generation


def _age(context: CacheContext, since: datetime) -> float:
    return (context.now - since).total_seconds()
