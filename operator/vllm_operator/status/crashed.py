"""Crashed: whether a Pod crashed and no later start has succeeded, with the cause and the operator's reaction.

Cause and remedy come from the signature (`catalog/data/signatures.yaml`), the sentences around them from `catalog/data/messages.yaml`.
"""

from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.status import CrashStatus, RemediationState, RemediationStatus
from vllm_operator.pods.view import Phase
from vllm_operator.status.conditions import FALSE, TRUE
from vllm_operator.status.observation.crashes import Crashes, Finding, reason
from vllm_operator.status.observation.observation import ObservedState
from vllm_operator.status.progressing import partly
from vllm_operator.status.remediation.in_force import in_words, is_mere_suggestion
from vllm_operator.text import wording


def crashed(observed: ObservedState, crashes: Crashes, remediation: RemediationStatus | None = None) -> Verdict | None:
    """Judge Crashed: whether a Pod crashed and no later start has succeeded, and the cause. None if no Pod has crashed."""
    if crashes.in_force:
        return _in_force(observed, crashes, remediation)
    if crashes.last is not None and remediation is not None and remediation.state is RemediationState.STOPPED:
        return Verdict(TRUE, reason(crashes.last.signature), crash_text(observed, crashes, crashes.last, remediation))
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
    observed: ObservedState, crashes: Crashes, crash: CrashStatus, remediation: RemediationStatus | None = None, *, others: int = 0
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


def being_read(observed: ObservedState, finding: Finding, *, serves: bool = False) -> str:
    """Describe a crash whose log is still being read."""
    return observed.messages.say("crash.unsettled", pod=finding.view, code=finding.status.exit_code, serves=serves)


def _in_force(observed: ObservedState, crashes: Crashes, remediation: RemediationStatus | None) -> Verdict:
    chosen = crashes.most_informative
    if chosen is None:
        text = being_read(observed, crashes.in_force[0])
        return Verdict(TRUE, Reason.DIAGNOSING_CRASH, partly(observed, text))
    others = len({finding.view.name for finding in crashes.in_force} - {chosen.view.name})
    return Verdict(
        TRUE, reason(chosen.status.signature), partly(observed, crash_text(observed, crashes, chosen.status, remediation, others=others))
    )


def _restarted_at_once(observed: ObservedState, finding: Finding) -> Verdict:
    """Judge a crash after which the Pod was restarted before the operator had read its log."""
    serves = finding.view.phase is Phase.READY
    return Verdict(FALSE, Reason.RECOVERED if serves else Reason.DIAGNOSING_CRASH, being_read(observed, finding, serves=serves))


def _where(decided: RemediationStatus | None, last: CrashStatus | None) -> str:
    """Return the status field with the suggested command; empty without one."""
    if decided is None or not decided.command:
        return ""
    return "status.lastCrash.command" if is_mere_suggestion(decided, last) else "status.remediation.command"


def _what_helped(observed: ObservedState, crash: CrashStatus, remediation: RemediationStatus | None) -> str:
    """Describe the remedy that was applied for a crash; empty without one."""
    if remediation is None or all(remedy.signature != crash.signature for remedy in remediation.applied):
        return ""
    return _done(observed, remediation, crash) if remediation.state is RemediationState.APPLIED else ""


def _done(observed: ObservedState, decided: RemediationStatus | None, crash: CrashStatus) -> str:
    """Describe what the operator did about a crash; empty if it only suggests a command."""
    if decided is None or decided.state in (None, RemediationState.SUGGESTED):
        return ""
    tried = next((remedy for remedy in reversed(decided.applied) if remedy.signature == crash.signature), None)
    changes = in_words(tried.changes) if tried is not None else ""
    return observed.messages.say(f"done.{decided.state}", changes=changes, attempts=len(decided.applied))
