"""The cause of the end of a container or Pod, from its log, its status and events.

The rules in `terminations.yaml` use status and events; `diagnose_termination` uses the log, the exit code and the kernel's OOM kills.
"""

from dataclasses import replace

from vllm_operator.api import reading
from vllm_operator.api.labels import CONTAINER
from vllm_operator.logs.crash import SHOWN_LIMIT, TERMINATED, UNKNOWN, describe
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Crash
from vllm_operator.pods.tools import HANG_PREFIX
from vllm_operator.pods.view import PodView, Termination
from vllm_operator.status.knowledge import Knowledge, TerminationRule, TerminationRules
from vllm_operator.text.wording import clean, duration, present, sentence

_OOM = "OOMKilled"
_NATIVE = "NativeCodeCrash"
SAYS_NOTHING = "and its log does not say why"
"""End of the cause of a crash without an error in the log."""


def explain_end(
    knowledge: Knowledge, view: PodView, ended: Termination, *, log_crash: Crash | None, stage: str, unread: str, probe: str, ram: str = ""
) -> Crash | None:
    """Return why a container that should run for ever has ended, from its log, its status and the kubelet's message about a probe.

    `log_crash`, `stage`, `unread` and `ram` as in `diagnose_termination`. None if nothing explains it, for example an unknown exit code.
    """
    if ended.message.startswith(HANG_PREFIX) and (hung := match_container(knowledge.terminations, view, ended, probe, stage)) is not None:
        return replace(hung, excerpt=log_crash.excerpt) if log_crash is not None else hung
    container = reading.named(view.manifest, view.container or CONTAINER, "spec", "containers", key="name")
    limit = reading.text(container, "resources", "limits", "memory") or "none"
    found = diagnose_termination(knowledge, ended, log_crash=log_crash, stage=stage, unread=unread, limit=limit, ram=ram)
    if found is not None and found.signature != UNKNOWN and found.signature not in knowledge.weak:
        return found
    return match_container(knowledge.terminations, view, ended, probe, stage) or found


def diagnose_termination(
    knowledge: Knowledge, ended: Termination, *, log_crash: Crash | None, stage: str = "", unread: str = "", limit: str = "", ram: str = ""
) -> Crash | None:
    """Return why a container ended, from its status and its log, or None if it ended without an error.

    If the log explains the crash, it is more precise than the status, with one exception: when the kernel kills processes of a container
    for its memory use, the log shows the ends of other processes, which look like crashes.

    `log_crash` and `stage` are what the log shows; `unread` is a clause with the reason why it could not be read. `limit` is the
    memory limit of the container; `ram` says what a start takes and why.
    """
    exit_code, reason = ended.exit_code, ended.reason
    number = ended.signal or ((exit_code - 128) if exit_code is not None and 128 < exit_code < 160 else 0)
    said = f"exit code {exit_code}" + (f", {reason}" if reason not in ("", "Error") else "")
    if reason == "OOMKilled" and (log_crash is None or not _is_specific(knowledge, log_crash) or log_crash.signature == TERMINATED):
        return describe(knowledge.signatures[_OOM], said, (("stage", stage), ("limit", limit), ("ram", ram)))
    if log_crash is not None and _is_specific(knowledge, log_crash):
        return log_crash
    parser = StartupParser(knowledge.startup)
    parser.feed(ended.message)
    parser.end()
    from_message = parser.final_state.crash
    if from_message is not None and (_is_specific(knowledge, from_message) or log_crash is None):
        return from_message
    signals = knowledge.terminations.signals
    named = knowledge.signatures.get(knowledge.terminations.signatures_of_signals.get(number, ""))
    if named is not None:
        return describe(named, said, ())
    if log_crash is not None:
        return log_crash
    if (exit_code in (0, None) and not number) or number == 15:
        return None
    if number in knowledge.terminations.signals_of_native_code:
        return describe(knowledge.signatures[_NATIVE], said, (("problem", f"signal {number}, {signals[number]}"),))
    how = f"was ended by signal {number} ({signals[number]})" if number in signals else "ended with an error"
    text = present(ended.message.strip().rpartition("\n")[2], SHOWN_LIMIT)
    remedy = "Read the last lines of the log and the events of the Pod, and check the memory of the node."
    return Crash(UNKNOWN, f"The engine {how} ({said}), {unread or SAYS_NOTHING}.", remedy, None, line=text or said, excerpt=text)


def _is_specific(knowledge: Knowledge, crash: Crash) -> bool:
    signature = knowledge.signatures.get(crash.signature)
    return signature is not None and not signature.is_echo


def match_container(rules: TerminationRules, view: PodView, ended: Termination, probe: str, stage: str) -> Crash | None:
    """Name the cause of a container's end from its status and the kubelet's message about a probe; None if no rule matches."""
    for rule in rules.containers:
        fits = (not rule.exit_codes or ended.exit_code in rule.exit_codes) and ended.message.startswith(rule.message)
        if fits and rule.has_reason(ended.reason) and (not rule.probe or f"{rule.probe} probe" in probe):
            return _crash(rule, view, ended, stage)
    return None


def match_pod(rules: TerminationRules, view: PodView) -> Crash:
    """Name the cause of the end of a Pod that will not run again. The last rule matches any Pod."""
    return _crash(next(rule for rule in rules.pods if rule.has_reason(view.reason)), view, view.termination)


def _crash(rule: TerminationRule, pod: PodView, ended: Termination | None, stage: str = "") -> Crash:
    probe = reading.mapping(reading.named(pod.manifest, CONTAINER, "spec", "containers", key="name"), "startupProbe")
    limit = (reading.integer(probe, "failureThreshold") or 0) * (reading.integer(probe, "periodSeconds") or 0)
    values = {
        "said": clean(ended.message.removeprefix(rule.message), 600) if ended is not None else "",
        "pod": pod.name,
        "in_kubectl": pod.in_kubectl,
        "node": pod.node or "its node",
        "reason": pod.reason or (ended.reason if ended else ""),
        "message": clean(pod.message, 250),
        "limit": f" ({duration(limit)})" if limit else "",
        "deadline": f" (now {limit})" if limit else "",
        "stage": f", in stage {stage}" if stage else "",
    }
    # The values are untrusted: insert them, never parse them as a template.
    cause, remedy = (sentence(template.format_map(values).rstrip(": ")) for template in (rule.cause, rule.remedy))
    return Crash(signature=rule.id, cause=cause, remedy=remedy, reference=None, line="")
