"""Ready, which summarizes the most important problem, Crashed, Stalled, and the choice of reported conditions.

Cause and remedy of a crash come from its signature (`catalog/data/signatures.yaml`), the sentences around them from
`catalog/data/messages.yaml`.
"""

from collections.abc import Mapping
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import ACCEPTED, CACHE_WARM, CRASHED, FALSE, PLANNED, PROGRESSING, TRUE, Reason, Verdict
from vllm_operator.api.status import CrashStatus, RemediationState, RemediationStatus
from vllm_operator.pods.view import Phase
from vllm_operator.status.caches import CLAIM_PROBLEMS
from vllm_operator.status.crashes import Crashes, Finding, reason_of
from vllm_operator.status.observation import Observation
from vllm_operator.status.progressing import partly
from vllm_operator.status.remedies import in_words, is_mere_suggestion
from vllm_operator.text import wording


def ready(observed: Observation, crashes: Crashes, judged: Mapping[str, Verdict]) -> Verdict:
    """Judge Ready: whether all replicas serve the current spec; if not, the most important problem."""
    say = observed.messages.say
    for type in (ACCEPTED, PLANNED):
        if observed.outcome.plan is None and judged[type].status is not TRUE:
            return Verdict(FALSE, judged[type].reason, judged[type].message)
    if observed.apply_error:
        return Verdict(FALSE, Reason.APPLY_FAILED, say("ready.apply_failed", error=observed.apply_error))
    if judged[PROGRESSING].reason == Reason.STARTED:
        text = say("ready.serving", wanted=observed.wanted, model=_served_name(observed), address=_address(observed))
        return Verdict(TRUE, Reason.SERVING, text)
    if judged[PROGRESSING].reason == Reason.SCALED_TO_ZERO:
        return Verdict(TRUE, Reason.SCALED_TO_ZERO, say("ready.scaled_to_zero"))
    return _not_ready(observed, crashes, judged)


def stalled(observed: Observation, judged: Mapping[str, Verdict], *, is_unrecoverable: bool) -> Verdict | None:
    """Judge Stalled: why waiting cannot help. None if it may help: a new node, a volume or another user may fix the problem."""
    if judged[ACCEPTED].status is FALSE:
        return Verdict(TRUE, judged[ACCEPTED].reason, observed.messages.say("stalled.not_accepted", reason=judged[ACCEPTED].reason))
    if is_unrecoverable:
        return Verdict(TRUE, judged[CRASHED].reason, observed.messages.say("stalled.crash", reason=judged[CRASHED].reason))
    return None


def reportable(observed: Observation, judged: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Return the verdicts as conditions. Progressing refers to Crashed if it has nothing to add."""
    crash, progress = judged.get(CRASHED), judged[PROGRESSING]
    is_only_crash = crash is not None and crash.status is TRUE and len(observed.unhealthy) <= 1
    if is_only_crash and progress.reason in (Reason.START_FAILED, Reason.STOPPED):
        progress = Verdict(progress.status, progress.reason, observed.messages.say("progressing.crashed"))
    return {**judged, PROGRESSING: progress}


def _not_ready(observed: Observation, crashes: Crashes, judged: Mapping[str, Verdict]) -> Verdict:
    crash, cache = judged.get(CRASHED), judged.get(CACHE_WARM)
    if crash is not None and crash.status is TRUE:
        return Verdict(FALSE, crash.reason, partly(observed, _crash_in_short(observed, crashes)))
    if cache is not None and cache.reason in CLAIM_PROBLEMS:
        return Verdict(FALSE, cache.reason, cache.message)
    verdict = judged[PROGRESSING]
    merely_starting = verdict.status is TRUE and observed.serving > 0
    return Verdict(FALSE, Reason.REPLICAS_NOT_READY if merely_starting else verdict.reason, verdict.message)


def _crash_in_short(observed: Observation, crashes: Crashes) -> str:
    """Return the crashed Pod and the name of the crash. The condition Crashed has the details."""
    chosen = crashes.most_informative
    crash = chosen.status if chosen is not None else None if crashes.in_force else crashes.last
    if crash is None:
        return being_read(observed, crashes.in_force[0])
    return observed.messages.say("ready.crashed", crash=crash)


def _served_name(observed: Observation) -> str:
    model = observed.resource.spec.model
    return model.served_name or model.uri.split("://", 1)[-1]


def _address(observed: Observation) -> str:
    found = service_url(observed)
    return f"{found}/v1" if found else ""


def service_url(observed: Observation) -> str | None:
    """Return the Service's URL inside the cluster; None without one. It ends with `svc`, because the cluster domain is unknown."""
    service = observed.service
    name = reading.text(service, "metadata", "name")
    port = next((p for item in reading.objects(service, "spec", "ports") if (p := reading.integer(item, "port"))), None)
    return f"http://{name}.{observed.resource.metadata.namespace}.svc:{port}" if name and port else None


def crashed(observed: Observation, crashes: Crashes, remediation: RemediationStatus | None = None) -> Verdict | None:
    """Judge Crashed: whether a Pod crashed and no later start has succeeded, and the cause. None if no Pod has crashed."""
    if crashes.in_force:
        return _in_force(observed, crashes, remediation)
    if crashes.last is not None and remediation is not None and remediation.state is RemediationState.STOPPED:
        return Verdict(TRUE, reason_of(crashes.last.signature), crash_text(observed, crashes, crashes.last, remediation))
    if crashes.being_read is not None:
        return _restarted_at_once(observed, crashes.being_read)
    if crashes.last is None:
        return None
    text = observed.messages.fit(
        "crash.last",
        shrink=("cause",),
        crash=crashes.last,
        time=reading.moment(crashes.last.time),
        cause=crashes.last.cause or "",
        done=_what_helped(observed, crashes.last, remediation) if observed.serving else "",
        healthy=observed.serving > 0 and not observed.unhealthy,
    )
    return Verdict(FALSE, Reason.RECOVERED if observed.serving else Reason.NO_CRASH, text)


def crash_text(
    observed: Observation, crashes: Crashes, crash: CrashStatus, remediation: RemediationStatus | None = None, *, others: int = 0
) -> str:
    """Describe the crash: cause, reaction and remedy, in at most 500 characters."""
    about_it = remediation is not None and (remediation.pod, remediation.restarts) == (crash.pod, crash.restarts)
    decided = remediation if about_it or (remediation is not None and remediation.state is RemediationState.STOPPED) else None
    times = (crash.restarts or 0) + 1
    facts: dict[str, Any] = {"cause": crash.cause or "", "remedy": crash.remedy or "", "reference": (crash.reference or "")[:120]}
    facts |= {"crash": crash, "times": times, "others": others, "done": _done(observed, decided, crash)}
    if decided is not None and decided.state is RemediationState.APPLIED:
        facts["remedy"] = ""  # the operator is trying it
    # the remedy is more important than the reference, which is also in status.lastCrash
    for less in ({}, {"reference": ""}):
        text = observed.messages.say("crash.one", limit=2 * wording.MESSAGE_LIMIT, **facts | less, suggested=_where(decided, crashes.last))
        if len(text) <= wording.MESSAGE_LIMIT:
            return text
    return observed.messages.fit("crash.one", shrink=("cause", "remedy", "done"), **facts, suggested="")


def being_read(observed: Observation, finding: Finding, *, serves: bool = False) -> str:
    """Describe a crash whose log is still being read."""
    return observed.messages.say("crash.unsettled", pod=finding.view, code=finding.status.exit_code, serves=serves)


def _in_force(observed: Observation, crashes: Crashes, remediation: RemediationStatus | None) -> Verdict:
    chosen = crashes.most_informative
    if chosen is None:
        text = being_read(observed, crashes.in_force[0])
        return Verdict(TRUE, Reason.DIAGNOSING_CRASH, partly(observed, text))
    others = len({finding.view.name for finding in crashes.in_force} - {chosen.view.name})
    return Verdict(
        TRUE, reason_of(chosen.status.signature), partly(observed, crash_text(observed, crashes, chosen.status, remediation, others=others))
    )


def _restarted_at_once(observed: Observation, finding: Finding) -> Verdict:
    """Judge a crash after which the Pod was restarted before the operator had read its log."""
    serves = finding.view.phase is Phase.READY
    return Verdict(FALSE, Reason.RECOVERED if serves else Reason.DIAGNOSING_CRASH, being_read(observed, finding, serves=serves))


def _where(decided: RemediationStatus | None, last: CrashStatus | None) -> str:
    """Return the status field with the suggested command; empty without one."""
    if decided is None or not decided.command:
        return ""
    return "status.lastCrash.command" if is_mere_suggestion(decided, last) else "status.remediation.command"


def _what_helped(observed: Observation, crash: CrashStatus, remediation: RemediationStatus | None) -> str:
    """Describe the remedy that was applied for a crash; empty without one."""
    if remediation is None or all(remedy.signature != crash.signature for remedy in remediation.applied):
        return ""
    return _done(observed, remediation, crash) if remediation.state is RemediationState.APPLIED else ""


def _done(observed: Observation, decided: RemediationStatus | None, crash: CrashStatus) -> str:
    """Describe what the operator did about a crash; empty if it only suggests a command."""
    if decided is None or decided.state in (None, RemediationState.SUGGESTED):
        return ""
    tried = next((remedy for remedy in reversed(decided.applied) if remedy.signature == crash.signature), None)
    changes = in_words(tried.changes) if tried is not None else ""
    return observed.messages.say(f"done.{decided.state}", changes=changes, attempts=len(decided.applied))


def with_draining(observed: Observation, ready: Verdict) -> Verdict:
    """Add a sentence about draining Pods to the verdict on Ready, if there are any."""
    pods = observed.draining
    if not pods or not ready.message:
        return ready
    numbers = [pod.requests for pod in pods if pod.requests is not None]
    text = observed.messages.fit(
        "ready.draining",
        shrink=("text",),
        text=ready.message,
        pods=pods,
        # a sum over some of the Pods would be too small
        left=sum(numbers) if len(numbers) == len(pods) else None,
        until=max(pod.until for pod in pods),
    )
    return Verdict(ready.status, ready.reason, text)
