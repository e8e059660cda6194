"""Ready, which summarizes the most important problem, Stalled, and the choice of reported conditions."""

from collections.abc import Mapping

from vllm_operator.api import reading
from vllm_operator.api.conditions import ACCEPTED, CACHE_WARM, CRASHED, PLANNED, PROGRESSING, Reason, Verdict
from vllm_operator.status.caches import CLAIM_PROBLEMS
from vllm_operator.status.conditions import FALSE, TRUE
from vllm_operator.status.crashed import being_read
from vllm_operator.status.observation.crashes import Crashes
from vllm_operator.status.observation.observation import ObservedState
from vllm_operator.status.progressing import partly


def ready(observed: ObservedState, crashes: Crashes, judged: Mapping[str, Verdict]) -> Verdict:
    """Judge Ready: whether all replicas serve the current spec; if not, the most important problem."""
    observation, say = observed.observation, observed.messages.say
    for type in (ACCEPTED, PLANNED):
        if observation.outcome.plan is None and judged[type].status is not TRUE:
            return Verdict(FALSE, judged[type].reason, judged[type].message)
    if observation.apply_error:
        return Verdict(FALSE, Reason.APPLY_FAILED, say("ready.apply_failed", error=observation.apply_error))
    if judged[PROGRESSING].reason == Reason.STARTED:
        text = say("ready.serving", wanted=observation.wanted, model=_served_name(observed), address=_address(observed))
        return Verdict(TRUE, Reason.SERVING, text)
    if judged[PROGRESSING].reason == Reason.SCALED_TO_ZERO:
        return Verdict(TRUE, Reason.SCALED_TO_ZERO, say("ready.scaled_to_zero"))
    return _not_ready(observed, crashes, judged)


def stalled(observed: ObservedState, judged: Mapping[str, Verdict], *, is_unrecoverable: bool) -> Verdict | None:
    """Judge Stalled: why waiting cannot help. None if it may help: a new node, a volume or another user may fix the problem."""
    if judged[ACCEPTED].status is FALSE:
        return Verdict(TRUE, judged[ACCEPTED].reason, observed.messages.say("stalled.not_accepted", reason=judged[ACCEPTED].reason))
    if is_unrecoverable:
        return Verdict(TRUE, judged[CRASHED].reason, observed.messages.say("stalled.crash", reason=judged[CRASHED].reason))
    return None


def reportable(observed: ObservedState, judged: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Return the verdicts as conditions. Progressing refers to Crashed if it has nothing to add."""
    crash, progress = judged.get(CRASHED), judged[PROGRESSING]
    is_only_crash = crash is not None and crash.status is TRUE and len(observed.unhealthy) <= 1
    if is_only_crash and progress.reason in (Reason.START_FAILED, Reason.STOPPED):
        progress = Verdict(progress.status, progress.reason, observed.messages.say("progressing.crashed"))
    return {**judged, PROGRESSING: progress}


def _not_ready(observed: ObservedState, crashes: Crashes, judged: Mapping[str, Verdict]) -> Verdict:
    crash, cache = judged.get(CRASHED), judged.get(CACHE_WARM)
    if crash is not None and crash.status is TRUE:
        return Verdict(FALSE, crash.reason, partly(observed, _crash_in_short(observed, crashes)))
    if cache is not None and cache.reason in CLAIM_PROBLEMS:
        return Verdict(FALSE, cache.reason, cache.message)
    verdict = judged[PROGRESSING]
    merely_starting = verdict.status is TRUE and observed.serving > 0
    return Verdict(FALSE, Reason.REPLICAS_NOT_READY if merely_starting else verdict.reason, verdict.message)


def _crash_in_short(observed: ObservedState, crashes: Crashes) -> str:
    """Return the crashed Pod and the name of the crash. The condition Crashed has the details."""
    chosen = crashes.most_informative
    crash = chosen.status if chosen is not None else None if crashes.in_force else crashes.last
    if crash is None:
        return being_read(observed, crashes.in_force[0])
    return observed.messages.say("ready.crashed", crash=crash)


def _served_name(observed: ObservedState) -> str:
    model = observed.observation.resource.spec.model
    return model.served_name or model.uri.split("://", 1)[-1]


def _address(observed: ObservedState) -> str:
    found = service_url(observed)
    return f"{found}/v1" if found else ""


def service_url(observed: ObservedState) -> str | None:
    """Return the Service's URL inside the cluster; None without one. It ends with `svc`, because the cluster domain is unknown."""
    service = observed.observation.service
    name = reading.text(service, "metadata", "name")
    port = next((p for item in reading.objects(service, "spec", "ports") if (p := reading.integer(item, "port"))), None)
    return f"http://{name}.{observed.observation.resource.metadata.namespace}.svc:{port}" if name and port else None
