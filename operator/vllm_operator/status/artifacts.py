"""`status.cache.artifact` and CachePublished: caches that Pods fetched from a registry, and caches that were published to it."""

import math
from collections.abc import Iterator
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.operation import Publish
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import Role
from vllm_operator.api.status import ArtifactStatus
from vllm_operator.caches.activity import ArtifactResult, PublicationState
from vllm_operator.caches.artifacts import FETCHED, MAX_REJECTED, read_fetch
from vllm_operator.caches.publishing import FINAL, PUBLISHED
from vllm_operator.status.conditions import FALSE, TRUE, UNKNOWN
from vllm_operator.status.observation.observation import Observation, ObservedState
from vllm_operator.status.observation.starts import last_start
from vllm_operator.status.remediation.cache_damage import CacheDamage
from vllm_operator.status.scheduling import why_no_pod
from vllm_operator.text import wording

_REASONS = {
    "Denied": Reason.PUSH_DENIED,
    "SecretMissing": Reason.PUSH_DENIED,
    "Unreachable": Reason.REGISTRY_UNREACHABLE,
    "DeadlineExceeded": Reason.REGISTRY_UNREACHABLE,
    "SecretsFound": Reason.SECRETS_FOUND,
    "TooLarge": Reason.TOO_LARGE,
    "TagTaken": Reason.TAG_TAKEN,
}
_MAX_MESSAGE = 300
_PRESENT = "Present"


def artifact_status(observed: ObservedState, plan: Plan, damage: CacheDamage | None) -> ArtifactStatus | None:
    """Return `status.cache.artifact`; None if the spec names no artifact, or the plan fetches none."""
    observation = observed.observation
    spec = observation.resource.spec.cache
    if spec is None or spec.artifact is None or plan.cache_artifact is None:
        return None
    before = observation.previous.cache.artifact if observation.previous.cache else None
    changed = {**_fetched(observation, before), **_published(observation, before)}
    status = (before or ArtifactStatus()).model_copy(update=changed)
    if damage is not None and damage.raised and status.digest and status.digest not in (status.rejected or ()):
        status = status.model_copy(update={"rejected": [*(status.rejected or ()), status.digest][-MAX_REJECTED:]})
    return status if status != ArtifactStatus() else None


def _fetched(observation: Observation, before: ArtifactStatus | None) -> dict[str, Any]:
    """Return the report of the newest Pod. A cache hit on the volume does not change the artifact status."""
    _, pod, result = max(_results(observation), key=lambda found: found[:2], default=("", "", None))
    if result is None:
        return {}
    had_fetched = before is not None and before.fetch in FETCHED
    if had_fetched and before is not None and (result.result == _PRESENT or before.fetched_by == pod):
        return {}
    return {
        "tag": result.tag or None,
        "digest": result.digest or None,
        "fetch": result.result,
        "fetched_by": pod,
        "fetch_seconds": None if result.seconds is None else math.ceil(result.seconds),
        "fetch_message": wording.clean(result.message, _MAX_MESSAGE) or None,
        "differences": wording.clean(result.differs, _MAX_MESSAGE) or None,
        "size_bytes": result.size_bytes,
        "cold_start_seconds": result.cold_seconds,
    }


def _results(observation: Observation) -> Iterator[tuple[str, str, ArtifactResult]]:
    for pod in (*observation.pods, *observation.primers):
        if (result := read_fetch(pod)) is not None:
            yield reading.text(pod, "metadata", "creationTimestamp"), reading.text(pod, "metadata", "name")[:253], result


def _published(observation: Observation, before: ArtifactStatus | None) -> dict[str, Any]:
    publication = observation.activity.publication
    names = ("publication", "publish_result", "publish_message", "published_digest", "publish_time")
    if publication is None:
        artifact = observation.resource.spec.cache.artifact if observation.resource.spec.cache else None
        is_requested = artifact is not None and artifact.publish is Publish.WHEN_PRIMED
        return {} if is_requested else dict.fromkeys(names)
    if publication.state is PublicationState.DONE and publication.ended is not None:
        result = publication.result or ArtifactResult(result="Failed")
        return {
            "publication": publication.occasion,
            "publish_result": result.result,
            "publish_message": wording.clean(result.message, _MAX_MESSAGE) or None,
            "published_digest": result.digest or None,
            "publish_time": reading.stamp(publication.ended),
            **({"tag": result.tag} if result.tag else {}),
        }
    is_same = before is not None and before.publication == publication.occasion
    return {} if is_same else dict.fromkeys(names)


def cache_published(observed: ObservedState, artifact: ArtifactStatus | None) -> Verdict | None:
    """Judge CachePublished; None if the spec requests no publication."""
    publication = observed.observation.activity.publication
    spec = observed.observation.resource.spec.cache
    if publication is None or spec is None or spec.artifact is None:
        return None
    repository = spec.artifact.repository
    say = observed.messages.say
    match publication.state:
        case PublicationState.NOT_PUBLISHABLE:
            return Verdict(FALSE, Reason.NOT_PUBLISHABLE, say("publishing.not_capturable"))
        case PublicationState.REFUSED:
            return Verdict(FALSE, Reason.PUBLISH_FAILED, say("publishing.refused", why=publication.why))
        case PublicationState.NEEDS_PRIMER:
            return Verdict(FALSE, Reason.NOT_PRIMED, say("publishing.needs_primer", repository=repository))
        case PublicationState.RUNNING:
            by_primer = observed.observation.claim_name is None
            why = why_no_pod(observed, Role.PUBLISHING)
            return Verdict(UNKNOWN, Reason.PUBLISHING, say("publishing.running", repository=repository, by_primer=by_primer, why=why))
    result = artifact.publish_result if artifact is not None else None
    if artifact is None or result is None or artifact.publication != publication.occasion:
        return Verdict(FALSE, Reason.NOT_PRIMED, say("publishing.not_primed", repository=repository))
    facts: dict[str, Any] = {
        "result": result,
        "secret": secret.name if (secret := spec.artifact.push_secret_ref) is not None else None,
        "repository": repository,
        "tag": artifact.tag,
        "digest": artifact.published_digest,
        "why": artifact.publish_message or result,
    }
    if result in PUBLISHED:
        return Verdict(TRUE, Reason.PUBLISHED, say("publishing.done", is_new=result == "Published", **facts))
    reason = _REASONS.get(result, Reason.PUBLISH_FAILED)
    return Verdict(FALSE, reason, say("publishing.failed", is_final=publication.is_last or result in FINAL, **facts))


def note_about_fetch(observed: ObservedState, artifact: ArtifactStatus | None) -> tuple[str, dict[str, Any]] | None:
    """Return the message about the fetch to append to CacheWarm, and its facts; None if there is none."""
    if artifact is None or artifact.fetch is None or artifact.fetch == _PRESENT:
        return None
    differs = artifact.differences
    if artifact.fetch not in FETCHED:
        cache = observed.observation.resource.spec.cache
        spec = cache.artifact if cache is not None else None
        facts: dict[str, Any] = {
            "result": artifact.fetch,
            "why": artifact.fetch_message or artifact.fetch,
            "differs": differs,
            "tag": artifact.tag,
        }
        is_pinned = spec is not None and spec.reference is not None
        secret = spec.pull_secret_ref if spec is not None else None
        return "fetching.failed", {**facts, "is_pinned": is_pinned, "secret": secret.name if secret is not None else None}
    facts = {"tag": artifact.tag or artifact.digest}
    start = last_start(observed)
    if artifact.fetch != "Fetched":
        return "fetching.partly", {**facts, "differs": differs}
    if start is not None and (start.evidence.misses or start.evidence.load_failures):
        seen = {"loaded": start.evidence.hits, "built": start.evidence.misses, "failure": start.evidence.failure}
        return "fetching.unused", {**facts, **seen, "differs": differs}
    return "fetching.done", {**facts, "seconds": artifact.fetch_seconds}
