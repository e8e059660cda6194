"""Conditions: Ready (the most important problem), Available, Crashed, Hung, Stalled, ReadingImage, and one for each optional object.

Cause and remedy of a crash come from its signature (`catalog/data/signatures.yaml`), the sentences around them from
`catalog/data/messages.yaml`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from vllm_operator.api import conditions, reading
from vllm_operator.api.conditions import FALSE, TRUE, Reason, Verdict
from vllm_operator.api.status import AvoidedNode, CrashStatus, RemediationStatus, RollbackStatus
from vllm_operator.pods.view import Phase
from vllm_operator.rendering.exposure import render_disruption_budget, render_exposure
from vllm_operator.rendering.revision import applied_revision, find_revision, number_of
from vllm_operator.status.bad_nodes import describe_node
from vllm_operator.status.claims import CLAIM_PROBLEMS
from vllm_operator.status.crashes import Crashes, is_caused_by_node, reason_of
from vllm_operator.status.observation import Observation
from vllm_operator.status.planned import VERDICT_LIMIT
from vllm_operator.status.progressing import partly, pod_text
from vllm_operator.status.reaction import is_permanent
from vllm_operator.status.remedies import in_words, is_mere_suggestion
from vllm_operator.status.rollback import describe_failed
from vllm_operator.text import wording

_PARTS = {
    conditions.ISOLATED: Reason.NOT_ISOLATED,
    conditions.EXPOSED: Reason.NOT_EXPOSED,
    conditions.AUTOSCALED: Reason.NOT_AUTOSCALED,
    conditions.PROTECTED: Reason.NOT_PROTECTED,
    conditions.CACHE_PUBLISHED: Reason.NOT_PUBLISHED,
}
"""Conditions of what the spec asks for besides replicas, and the reasons of Ready without it, most important first."""
ALL_STARTED = (Reason.SERVING, *_PARTS.values())
"""Reasons of Ready when all replicas serve the current spec."""
GATEWAY_SECONDS = 30
"""Interval between reads of an HTTPRoute that no Gateway has accepted yet. HTTPRoutes are not watched."""
_BUDGET, _POLICY = "PodDisruptionBudget", "NetworkPolicy"


def ready(
    observed: Observation,
    crashes: Crashes,
    judged: Mapping[str, Verdict],
    *,
    progress: Verdict,
    cache: Verdict | None,
    rollback: RollbackStatus | None,
    avoided: list[AvoidedNode] | None = None,
) -> Verdict:
    """Judge Ready: whether all of the spec is in effect; if not, the most important problem. Draining Pods are added.

    `judged` are the other conditions, `progress` is the state of the rollout, `cache` what is said about the caches, `rollback` the
    revision that failed, and `avoided` are the bad nodes.
    """
    verdict, pods = _ready(observed, crashes, judged, progress, cache), observed.draining
    if rollback is not None and rollback.revision is None and verdict.status is FALSE:
        verdict = Verdict(FALSE, verdict.reason, f"{verdict.message} {describe_failed(observed, rollback)}")
    if avoided and verdict.reason == Reason.UNSCHEDULABLE:
        verdict = Verdict(verdict.status, verdict.reason, verdict.message + " " + observed.messages.say("ready.avoided", nodes=avoided))
    if not pods or not verdict.message:
        return verdict
    numbers = [pod.requests for pod in pods if pod.requests is not None]
    left = sum(numbers) if len(numbers) == len(pods) else None  # a sum over some of the Pods would be too small
    until = max(pod.until for pod in pods)
    text = observed.messages.fit("ready.draining", shrink=("text",), text=verdict.message, pods=pods, left=left, until=until)
    return Verdict(verdict.status, verdict.reason, text)


def _ready(observed: Observation, crashes: Crashes, judged: Mapping[str, Verdict], progress: Verdict, cache: Verdict | None) -> Verdict:
    say = observed.messages.say
    if (refusal := observed.outcome.refusal) is not None:
        text, kept = wording.clean(refusal.message, VERDICT_LIMIT), say("ready.previous") if observed.serving else ""
        return Verdict(FALSE, refusal.reason, f"{text} {kept}".strip())
    if observed.apply_error:
        reason = Reason.KIND_NOT_INSTALLED if observed.lacks_kind else Reason.APPLY_FAILED
        return Verdict(FALSE, reason, say("ready.apply_failed", error=observed.apply_error))
    if progress.reason == Reason.STARTED and observed.resource.is_rolled_back_by_operator:
        return Verdict(FALSE, Reason.ROLLED_BACK, say("ready.rolled_back", rollback=observed.previous.rollback))
    if progress.reason == Reason.STARTED:
        return _of_parts(observed, judged)
    if progress.reason == Reason.SCALED_TO_ZERO:
        return Verdict(TRUE, Reason.SCALED_TO_ZERO, say("ready.scaled_to_zero"))
    if (crash := judged.get(conditions.CRASHED)) is not None:
        return Verdict(FALSE, crash.reason, partly(observed, _crash_in_short(observed, crashes)))
    if cache is not None and cache.reason in CLAIM_PROBLEMS:
        return Verdict(FALSE, cache.reason, cache.message)
    if progress.status is TRUE and observed.serving and progress.reason != Reason.MEASURING:
        reason = Reason.REPLICAS_NOT_READY if observed.serving < observed.wanted else Reason.ROLLING_OUT
        return Verdict(FALSE, reason, progress.message)
    return Verdict(FALSE, progress.reason, progress.message)


def _of_parts(observed: Observation, judged: Mapping[str, Verdict]) -> Verdict:
    """Judge Ready when all replicas serve the current spec: whether everything else that the spec asks for is in effect."""
    parts = ((type, judged[type]) for type in _PARTS if type in judged)
    missing = [type for type, it in parts if it.status is not TRUE and it.reason != Reason.WAITING_FOR_ROLLOUT]
    if not missing:
        return Verdict(TRUE, Reason.SERVING, observed.messages.say("ready.serving"))
    return Verdict(FALSE, _PARTS[missing[0]], observed.messages.say("ready.parts", wanted=observed.wanted, parts=missing))


def available(observed: Observation) -> Verdict:
    """Judge Available: whether a replica serves requests."""
    say, model, url = observed.messages.say, observed.resource.spec.model, service_url(observed)
    if not observed.serving:
        reason = Reason.NOT_SERVING if observed.wanted else Reason.SCALED_TO_ZERO
        return Verdict(FALSE, reason, say("available.none", wanted=observed.wanted))
    is_previous = observed.outcome.plan is None or observed.activity.held or observed.activity.rollout is not None
    applied = find_revision(observed.revisions, applied_revision(observed.deployment)) if is_previous else None
    facts = {"wanted": observed.wanted, "serving": observed.serving, "is_previous": is_previous, "revision": number_of(applied or {})}
    address = f"{url}/v1" if url else ""
    return Verdict(TRUE, Reason.SERVING, say("available.serving", model=model.public_name, address=address, **facts))


def stalled(observed: Observation, judged: Mapping[str, Verdict], *, is_unrecoverable: bool) -> Verdict | None:
    """Judge Stalled: why waiting cannot help. None if it may help: a new node, a volume or another user may fix the problem."""
    if observed.outcome.accepted.status is FALSE:
        return Verdict(TRUE, judged[conditions.READY].reason, observed.messages.say("stalled.not_accepted"))
    if observed.resource.is_rolled_back_by_operator:
        return Verdict(TRUE, Reason.ROLLED_BACK, observed.messages.say("stalled.rolled_back"))
    if is_unrecoverable:
        return Verdict(TRUE, judged[conditions.CRASHED].reason, observed.messages.say("stalled.crash"))
    return None


def _crash_in_short(observed: Observation, crashes: Crashes) -> str:
    """Return the crashed Pod and the name of the crash. The condition Crashed has the details."""
    chosen = crashes.most_informative
    crash = chosen.status if chosen is not None else _known_before(crashes) if crashes.in_force else crashes.last
    if crash is None:
        return observed.messages.say("ready.ended", pod=crashes.in_force[0].view)
    plan, signature = observed.outcome.plan, observed.knowledge.signatures.get(crash.signature)
    unit, is_final = plan.device if plan is not None else "GPU", signature is not None and is_permanent(signature)
    taken = 0 if is_caused_by_node(observed, crash) else _kept_devices(observed, crashes)
    facts: dict[str, Any] = {"taken": taken, "unit": unit, "is_permanent": is_final, "serving": observed.serving}
    return observed.messages.say("ready.crashed", crash=crash, **facts)


def _kept_devices(observed: Observation, crashes: Crashes) -> int:
    """Return how many GPUs or MIG slices are taken by Pods that crash and are started again."""
    views = {finding.view.name: finding.view for finding in crashes.in_force if finding.view.phase in (Phase.CRASHED, Phase.STARTING)}
    plan, pods = observed.outcome.plan, sum(view.is_current for view in views.values())
    return pods * plan.count * (plan.nodes or 1) if plan is not None else 0


def _known_before(crashes: Crashes) -> CrashStatus | None:
    """Return the crash before the one whose log is being read, if it was of the same replica and is not over; None otherwise."""
    last, found = crashes.last, next(iter(crashes.in_force), None)
    if last is None or found is None:
        return None
    # any Pod of a group counts, and a group that has served since then counts from the beginning
    is_same = last.pod == found.view.name if found.view.group is None else found.restarts > (last.restarts or 0)
    return last if is_same else None


def service_url(observed: Observation) -> str | None:
    """Return the Service's URL inside the cluster; None without one. It ends with `svc`, because the cluster domain is unknown."""
    service = observed.service
    name = reading.text(service, "metadata", "name")
    port = next((p for item in reading.objects(service, "spec", "ports") if (p := reading.integer(item, "port"))), None)
    return f"http://{name}.{observed.resource.metadata.namespace}.svc:{port}" if name and port else None


def hung(observed: Observation) -> Verdict | None:
    """Judge Hung: whether an engine has work and makes no progress. None if none does."""
    views = [view for view in observed.pod_facts if view.phase is Phase.HUNG]
    if not views:
        return None
    text = pod_text(observed, views[0])
    if len(views) > 1:
        text = observed.messages.fit("pods.others", shrink=("text",), text=text, others=len(views) - 1)
    return Verdict(TRUE, Reason.ENGINE_HUNG, text)


def reading_image(observed: Observation) -> Verdict | None:
    """Judge ReadingImage: whether the build in the image is being read, or why it cannot be read; None if a plan uses its table."""
    build = observed.build
    if build is None or build.table is not None:
        return None
    if build.failure:
        metadata = observed.resource.metadata
        text = observed.messages.fit("image.unreadable", shrink=("why",), why=build.failure, image=build.image, metadata=metadata)
        return Verdict(TRUE, Reason.IMAGE_UNREADABLE, text)
    return Verdict(TRUE, Reason.READING_IMAGE, "See condition Ready.")


def crashed(
    observed: Observation, crashes: Crashes, remediation: RemediationStatus | None, avoided: list[AvoidedNode] | None = None
) -> Verdict | None:
    """Judge Crashed: the cause if a Pod crashed and no later start of it has succeeded; None otherwise."""
    say = partial(_crash_text, observed, crashes, avoided)
    last, chosen, decided = crashes.last, crashes.most_informative, remediation or RemediationStatus()
    if crashes.in_force and chosen is None:
        if (known := _known_before(crashes)) is not None:  # the Pod crashes again and again
            return Verdict(TRUE, reason_of(known.signature), say(known, decided))
        pod, code = crashes.in_force[0].view, crashes.in_force[0].status.exit_code
        return Verdict(TRUE, Reason.DIAGNOSING_CRASH, observed.messages.say("crash.unsettled", pod=pod, code=code))
    if chosen is not None:
        others = len({finding.view.name for finding in crashes.in_force} - {chosen.view.name})
        return Verdict(TRUE, reason_of(chosen.status.signature), say(chosen.status, decided, others=others))
    if last is not None and decided.state == "Stopped":
        return Verdict(TRUE, reason_of(last.signature), say(last, decided))
    return None


def _crash_text(
    observed: Observation,
    crashes: Crashes,
    avoided: list[AvoidedNode] | None,
    crash: CrashStatus,
    decided: RemediationStatus,
    *,
    others: int = 0,
) -> str:
    if (decided.pod, decided.restarts) != (crash.pod, crash.restarts) and decided.state != "Stopped":
        decided = RemediationStatus()  # it is about another crash
    field = "lastCrash" if is_mere_suggestion(decided, crashes.last) else "remediation"
    facts: dict[str, Any] = {
        "crash": crash,
        "times": (crash.restarts or 0) + 1,
        "others": others,
        "cause": crash.cause or "",
        "place": describe_node(observed, crash, avoided),
        "alike": sum(view.is_current and view.phase is Phase.READY for view in observed.pod_facts),
        "node": next((view.node for view in observed.pod_facts if view.name == crash.pod and view.is_current), ""),
        "remedy": "" if decided.state == "Applied" else crash.remedy or "",  # the operator is trying it
        "done": _done(observed, decided, crash),
        "suggested": f"status.{field}.command" if decided.command else "",
    }
    return f"{_fit_crash(observed, facts)}{f' (See {crash.reference})' if crash.reference else ''}"


def _fit_crash(observed: Observation, facts: dict[str, Any]) -> str:
    # the remedy is more important than where flags belong, and than what is also in status.lastCrash: the command, the whole cause
    cause, without_command = facts["cause"], {"suggested": ""}
    for least_of_cause, changed in ((len(cause), {"names_fields": True}), (len(cause), {}), (min(35, len(cause)), without_command)):
        text = observed.messages.say("crash.one", limit=8 * wording.MESSAGE_LIMIT, **facts | changed)
        room = len(cause) + wording.MESSAGE_LIMIT - len(text)
        if room >= least_of_cause:
            cause = wording.whole_sentences(cause, room, at_least=30)
            return observed.messages.say("crash.one", **facts | changed | {"cause": cause})
    facts |= {"remedy": facts["remedy"] and "See status.lastCrash.remedy", **without_command}  # never cut in its middle
    return observed.messages.fit("crash.one", shrink=("cause", "done"), **facts)


def _done(observed: Observation, decided: RemediationStatus, crash: CrashStatus) -> str:
    if decided.state in (None, "Suggested"):
        return ""
    changes = next((in_words(remedy.changes) for remedy in reversed(decided.applied) if remedy.signature == crash.signature), "")
    return observed.messages.say(f"done.{decided.state}", changes=changes, attempts=len(decided.applied))


def judge_parts(observed: Observation) -> dict[str, Verdict]:
    """Judge Isolated, Exposed, Autoscaled and Protected: the first problem of each, else that it is in effect if the spec asks for it."""
    say, resource, spec = observed.messages.say, observed.resource, observed.resource.spec
    found = [(conditions.ISOLATED if it.kind == _POLICY else conditions.EXPOSED, it) for it in observed.exposure.problems]
    found += [(conditions.PROTECTED if it.kind == _BUDGET else conditions.AUTOSCALED, it) for it in observed.scaling]
    texts = ((type, it, say(f"part.{it.reason}", kind=it.kind, detail=it.detail)) for type, it in reversed(found))
    judged = {type: Verdict(FALSE, it.reason, text) for type, it, text in texts}
    if observed.exposure.awaits_gateway:
        text = say("exposed.not_accepted", deployment=resource.metadata.name, namespace=resource.metadata.namespace)
        judged.setdefault(conditions.EXPOSED, Verdict(FALSE, Reason.ROUTE_NOT_ACCEPTED, text))
    kinds, scales = [kind for made in render_exposure(resource) if (kind := made["kind"]) != _POLICY], spec.autoscaling
    budget = render_disruption_budget(resource)
    scaler = "ScaledObject" if scales is not None and scales.keda is not None else "HorizontalPodAutoscaler"
    in_effect = {
        conditions.ISOLATED: say("isolated.in_effect") if spec.network_policy is not None else "",
        conditions.EXPOSED: say("exposed.in_effect", kinds=kinds) if kinds else "",
        conditions.AUTOSCALED: say("autoscaled.in_effect", kind=scaler, most=scales.max_replicas) if scales is not None else "",
        conditions.PROTECTED: say("protected.in_effect", serving=observed.serving) if budget is not None else "",
    }
    return {type: Verdict(TRUE, Reason.IN_EFFECT, text) for type, text in in_effect.items() if text} | judged


def url(observed: Observation) -> str | None:
    """Return the URL of a host that a Gateway serves, else the Service's URL; None without one, or before the first replica serves."""
    if not observed.serving and observed.previous.url is None:
        return None
    return observed.exposure.url or service_url(observed)
