"""`status.cache` and CachePublished: whether starts find filled caches.

The state describes what the next start will find, the message what somebody should know or do. `status.cache.artifact` describes caches
that Pods fetched from a registry, and that were published to it.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import CACHE_PUBLISHED, FALSE, TRUE, UNKNOWN, Reason, Verdict, find_condition
from vllm_operator.api.operation import ArtifactSpec
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import Role, template_spec
from vllm_operator.api.status import ArtifactStatus, CacheStatus, StartupStatus
from vllm_operator.caches.address import volume_at
from vllm_operator.caches.artifacts import FETCHED, FINAL, MAX_REJECTED, read_fetch
from vllm_operator.caches.claims import cache_claim_name, storage_of
from vllm_operator.caches.context import ArtifactResult
from vllm_operator.catalog.caches import CACHE_ROOT
from vllm_operator.pods.view import Phase, place_of
from vllm_operator.status.cache_damage import MAX_QUARANTINED, CacheDamage, latest
from vllm_operator.status.claims import claim_verdict, one_node
from vllm_operator.status.observation import Observation, why_no_pod
from vllm_operator.status.progressing import pod_text
from vllm_operator.status.starts import known_stages, last_start, next_start_finds
from vllm_operator.text import wording


def locate_cache(observed: Observation) -> tuple[str, bool] | None:
    """Return the location of the caches, and whether later Pods find the files of earlier ones, at least on the same node.

    None if they are on no volume.
    """
    if observed.claim_name is not None:
        return f"PVC {observed.claim_name}", True
    volume: Any = volume_at(template_spec(observed.deployment), CACHE_ROOT)
    if path := reading.text(volume, "hostPath", "path"):
        return f"{path} on the node", True
    if reading.mapping(volume, "ephemeral"):
        return "the Pod's own PVC", False
    return ("an emptyDir of the Pod", False) if "emptyDir" in volume else None


def cache_status(observed: Observation, damage: CacheDamage) -> CacheStatus | None:
    """Return `status.cache`; None without a plan."""
    plan = observed.plan
    if plan is None:
        return None
    previous = observed.previous.cache
    known = previous if previous is not None and previous.key == plan.cache_key else CacheStatus()
    start, seconds = last_start(observed), (known.cold_start_seconds, known.warm_start_seconds)
    if start is not None and start.seconds is not None:
        seconds = (start.seconds if start.state.cache.is_cold else seconds[0], start.seconds if start.state.cache.is_warm else seconds[1])
    cold_stages, warm_stages = known_stages(observed, plan)
    # the PVC is named if it is not the one of the spec
    expected = cache_claim_name(observed.resource) if storage_of(observed.resource.spec.cache) == "SharedClaim" else None
    return CacheStatus(
        key=plan.cache_key,
        state="Quarantined" if damage.is_quarantined else next_start_finds(observed, plan),
        claim_name=None if observed.claim_name == expected else observed.claim_name or "",
        generation=((previous.generation if previous else None) or 0) + damage.raised or None,
        cold_start_seconds=seconds[0],
        warm_start_seconds=seconds[1],
        cold_stage_seconds=dict(cold_stages) or None,
        warm_stage_seconds=dict(warm_stages) or None,
        quarantined=list(damage.quarantined) or None,
        priming_skipped=observed.activity.skipped,
        artifact=artifact_status(observed, plan, damage),
    )


def cache_verdict(observed: Observation, cache: CacheStatus | None, startup: StartupStatus | None, damage: CacheDamage) -> Verdict | None:
    """Return a problem with a PVC, else the Pod that compiles, else the last start, with notes. None if there is nothing to say."""
    say = observed.messages.say
    if cache is None:
        return None
    if (location := locate_cache(observed)) is None:
        return Verdict(FALSE, Reason.NO_CLAIM, say("cache.none"))
    if damage.is_quarantined:
        text = say("cache.quarantined", place=location[0], key=cache.key, signature=damage.signature)
        return Verdict(FALSE, Reason.QUARANTINED, text)
    verdict = claim_verdict(observed) or _priming_verdict(observed, cache, startup) or _last_start_verdict(observed, cache, *location)
    text = verdict.message
    for name, facts in _notes(observed, damage if verdict.status is not TRUE else CacheDamage()):
        text = observed.messages.fit(name, shrink=("text",), text=text, **facts)
    return Verdict(verdict.status, verdict.reason, text) if text else None


_ORDINARY = (Reason.HIT, Reason.MISS, Reason.NOT_REPORTED)
"""Reasons that say no more than the state of the caches and the durations of starts."""


def with_message(cache: CacheStatus | None, verdict: Verdict | None, ready: Verdict) -> CacheStatus | None:
    """Return the status of the caches with what is said about them, unless Ready says it."""
    if cache is None:
        return None
    reason = verdict.reason if verdict is not None and verdict.reason not in _ORDINARY else None
    is_said = verdict is None or (verdict.reason, verdict.message) == (ready.reason, ready.message)
    return cache.model_copy(update={"reason": reason, "message": None if verdict is None or is_said else verdict.message})


def _notes(observed: Observation, damage: CacheDamage) -> Iterator[tuple[str, dict[str, Any]]]:
    activity, plan = observed.activity, observed.outcome.plan
    if (stays := one_node(observed)) is not None:
        yield "cache.one_node", {"wanted": observed.wanted, **stays}
    if activity.moved_to is not None and plan is not None:
        yield "cache.image_moved", {"image": plan.image, "digest": activity.moved_to}
    if activity.skipped:
        yield "cache.skipped", {"why": activity.skipped}
    if (cleaning := activity.cleaning) is not None:
        why = cleaning.why or why_no_pod(observed, Role.CLEANING)
        facts = {"removed": len(cleaning.removed), "freed_gibibytes": cleaning.freed_bytes / 2**30, "advice": cleaning.advice, "why": why}
        yield f"cleaning.{cleaning.state}", facts
        retained = cleaning.retained_bytes / 2**30 if cleaning.retained_bytes is not None else None
        if cleaning.retained:
            yield "cleaning.retained", {"retained": cleaning.retained, "retained_gibibytes": retained}
    if activity.claim_note:
        yield "cache.noted", {"note": activity.claim_note}
    if (note := _note_about_fetch(observed)) is not None:
        yield note
    if damage.message:
        yield damage.message, {"signature": damage.signature, "most": MAX_QUARANTINED}
    elif (before := latest(observed, damage.quarantined)) is not None:
        yield "cache.left_behind", {"key": before.key, "time": reading.moment(before.time), "signature": before.signature}


def _priming_verdict(observed: Observation, cache: CacheStatus, startup: StartupStatus | None) -> Verdict | None:
    activity, plan, artifact, text = observed.activity, observed.outcome.plan, _artifact_spec(observed), ""
    match activity.step:
        case "FirstPod" if observed.wanted > 1:
            message = "cache.first_pod"
        case "Primer":
            message = "cache.primer" if observed.claim_name is not None else "cache.publishing_primer"
            for view in observed.primer_facts[:1]:
                is_ready = view.phase is Phase.READY  # it only publishes
                text = observed.messages.say("cache.primer_ready", pod=view) if is_ready else pod_text(observed, view, startup)
        case "Elsewhere":
            message = "cache.elsewhere"
        case _:
            return None
    said = observed.messages.fit(
        message,
        shrink=("text",),
        text=text,
        claim=observed.claim_name,
        key=cache.key,
        because=activity.because,
        others=observed.wanted - 1,
        holder=activity.holder,
        until=activity.until,
        stops=activity.stops,
        image=plan.image if plan is not None else None,
        repository=artifact.repository if artifact is not None else None,
    )
    return Verdict(FALSE, Reason.COMPILING, said)


def _last_start_verdict(observed: Observation, cache: CacheStatus, place: str, is_shared: bool) -> Verdict:
    """Judge the last start. The state of the caches and the durations tell of one that loaded everything, or built everything."""
    start, artifact, previous = last_start(observed), _artifact_spec(observed), observed.previous.cache
    if start is not None and start.state.cache.is_warm:
        return Verdict(TRUE, Reason.HIT, "")
    if start is not None and start.state.cache.is_cold:
        return Verdict(FALSE, Reason.MISS, "")
    if start is not None:
        text = observed.messages.say("cache.partial", place=place, failures=start.state.cache.load_failures)
        return Verdict(FALSE, Reason.PARTIAL_HIT, text)
    if previous is not None and previous.reason == Reason.PARTIAL_HIT and previous.key == cache.key:
        return Verdict(FALSE, Reason.PARTIAL_HIT, observed.messages.say("cache.partial", place=place, failures=0))
    repository = artifact.repository if artifact is not None else None
    text = "" if is_shared else observed.messages.say("cache.per_pod", place=place, repository=repository)
    return Verdict(UNKNOWN, Reason.NOT_REPORTED, text)


_MAX_MESSAGE = 300
_PRESENT = "Present"


def _artifact_spec(observed: Observation) -> ArtifactSpec | None:
    return observed.resource.spec.cache.artifact if observed.resource.spec.cache is not None else None


def artifact_status(observed: Observation, plan: Plan, damage: CacheDamage) -> ArtifactStatus | None:
    """Return `status.cache.artifact`; None if the spec names no artifact, or the plan fetches none."""
    if _artifact_spec(observed) is None or plan.cache_artifact is None:
        return None
    before = observed.previous.cache.artifact if observed.previous.cache else None
    changed = {**_fetched(observed, before), **_published(observed, before)}
    status = (before or ArtifactStatus()).model_copy(update=changed)
    if damage.raised and status.digest and status.digest not in (status.rejected or ()):
        status = status.model_copy(update={"rejected": [*(status.rejected or ()), status.digest][-MAX_REJECTED:]})
    return status if status != ArtifactStatus() else None


def _fetched(observed: Observation, before: ArtifactStatus | None) -> dict[str, Any]:
    """Return the report of the newest Pod. A cache hit on the volume does not change the artifact status."""
    result = _newest_fetch(observed)
    if result is None or (result.result == _PRESENT and before is not None and before.fetch in FETCHED):
        return {}
    return {"tag": result.tag or None, "digest": result.digest or None, "fetch": result.result, "cold_start_seconds": result.cold_seconds}


def _newest_fetch(observed: Observation) -> ArtifactResult | None:
    """Return the report of the newest Pod. Of the nodes of a replica, one that fetched nothing decides: its ranks are cold."""
    pods = sorted((*observed.pods, *observed.primers), key=lambda pod: (reading.stamp(pod.created_at) or "", pod.name), reverse=True)
    newest, first = next(((pod, found) for pod in pods if (found := read_fetch(pod.manifest)) is not None), (None, None))
    place = place_of(newest.manifest) if newest is not None else None
    others = [pod.manifest for pod in observed.followers if place is not None and (place_of(pod.manifest) or (-1, 0))[0] == place[0]]
    failed = (found for found in map(read_fetch, others) if found is not None and found.result not in (*FETCHED, _PRESENT))
    return next(failed, first)


def _published(observed: Observation, before: ArtifactStatus | None) -> dict[str, Any]:
    publication, spec = observed.activity.publication, _artifact_spec(observed)
    if publication is not None and publication.state == "Done" and publication.ended is not None:
        result = publication.result or ArtifactResult(result="Failed")
        changed = {"publication": publication.occasion, "publish_result": result.result, "publish_time": reading.stamp(publication.ended)}
        return changed | ({"tag": result.tag} if result.tag else {})
    if publication is None:
        is_kept = spec is not None and spec.publish == "WhenPrimed"
    else:
        is_kept = before is not None and before.publication == publication.occasion
    return {} if is_kept else dict.fromkeys(("publication", "publish_result", "publish_time"))


def cache_published(observed: Observation, artifact: ArtifactStatus | None) -> Verdict | None:
    """Judge CachePublished; None if the spec requests no publication."""
    publication, spec = observed.activity.publication, _artifact_spec(observed)
    if spec is None or spec.publish != "WhenPrimed":
        return None
    say, before = partial(observed.messages.say, repository=spec.repository), find_condition(observed.previous.conditions, CACHE_PUBLISHED)
    if publication is None and before is not None:
        return Verdict(before.status, before.reason, before.message)  # without a plan, the last result stays
    if publication is not None and (reason := observed.messages.publications.get(publication.state)) is not None:
        why, metadata = publication.why or why_no_pod(observed, Role.PUBLISHING), observed.resource.metadata
        facts: dict[str, Any] = {"by_primer": observed.claim_name is None, "deployment": metadata.name, "namespace": metadata.namespace}
        status = UNKNOWN if publication.state == "Running" else FALSE
        return Verdict(status, reason, say(f"publishing.{publication.state}", why=why, **facts))
    result = artifact.publish_result if artifact is not None else None
    if publication is None or artifact is None or result is None or artifact.publication != publication.occasion:
        return Verdict(FALSE, Reason.NOT_COMPILED, say("publishing.not_primed"))
    reason, report = observed.messages.published.get(result, Reason.PUBLISH_FAILED), publication.result
    if report is None and before is not None and before.reason == reason:
        return Verdict(before.status, before.reason, before.message)  # the Job is gone
    if reason == Reason.PUBLISHED:
        digest = report.digest if report is not None else ""
        return Verdict(TRUE, reason, say("publishing.done", is_new=result == "Published", tag=artifact.tag, digest=digest))
    text = say(
        "publishing.failed",
        result=result,
        secret=spec.push_secret_ref.name if spec.push_secret_ref is not None else None,
        why=wording.clean(report.message if report is not None else "", _MAX_MESSAGE) or result,
        is_final=publication.is_last or result in FINAL,
    )
    return Verdict(FALSE, reason, text)


def _note_about_fetch(observed: Observation) -> tuple[str, dict[str, Any]] | None:
    result, spec, plan, start = _newest_fetch(observed), _artifact_spec(observed), observed.outcome.plan, last_start(observed)
    if result is None or spec is None or plan is None or plan.cache_artifact is None or result.result == _PRESENT:
        return None
    facts: dict[str, Any] = {"tag": result.tag, "differs": wording.clean(result.differs, _MAX_MESSAGE)}
    if result.result not in FETCHED:
        facts |= {"result": result.result, "why": wording.clean(result.message, _MAX_MESSAGE) or result.result}
        secret = spec.pull_secret_ref.name if spec.pull_secret_ref is not None else None
        return "fetching.failed", {**facts, "is_pinned": spec.reference is not None, "secret": secret}
    facts["tag"] = result.tag or result.digest
    if result.result != "Fetched":
        return "fetching.partly", facts
    if start is not None and (start.state.cache.misses or start.state.cache.load_failures):
        cache = start.state.cache
        return "fetching.unused", {**facts, "loaded": cache.hits, "built": cache.misses, "failure": cache.failure}
    return "fetching.done", {**facts, "seconds": None if result.seconds is None else math.ceil(result.seconds)}
