"""The catalog data for reports: messages, and rules for starts, crashes and terminated Pods.

The rules for terminated containers and Pods (`terminations.yaml`) use only the status of a Pod and its events: a failed probe, an eviction,
a refusal by the kubelet. `vllm_operator.logs.termination` evaluates the log, the exit code and the kernel's OOM kills.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from vllm_operator.catalog.backends import LoggedNames, load_logged_names
from vllm_operator.catalog.entry import Entry, load_file
from vllm_operator.catalog.signatures import RemedyAction, Signature
from vllm_operator.catalog.startup import StartupKnowledge, load_startup
from vllm_operator.logs.state import Crash
from vllm_operator.pods.view import PodView, Termination
from vllm_operator.status.messages import Messages, load_messages
from vllm_operator.text.wording import clean, sentence


class TerminationRule(Entry):
    """A known cause of the end of a container or Pod. Empty criteria match anything; `reason` may end in `*`.

    `is_weak`: a later event may be more informative.
    """

    id: str
    cause: str
    remedy: str
    reason: str = ""
    exit_codes: tuple[int, ...] = ()
    probe: str = ""
    is_weak: bool = False


class TerminationRules(Entry):
    """Rules for containers that were running, and for Pods that will not run again. The first match wins."""

    containers: tuple[TerminationRule, ...]
    pods: tuple[TerminationRule, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """Loaded once and shared by all reports.

    Attributes:
        messages: The messages.
        startup: Stages and crash signatures.
        terminations: Rules for terminated containers and Pods.
        logged_names: Names of backends in logs.
        weak: Signatures with little information, which a later finding replaces.
        signatures: Crash signatures by name.
        quarantining: Signatures of damaged caches.
        cleaning: Signatures of a full volume.
    """

    messages: Messages
    startup: StartupKnowledge
    terminations: TerminationRules
    logged_names: LoggedNames
    weak: frozenset[str]
    signatures: Mapping[str, Signature]
    quarantining: frozenset[str] = frozenset()
    cleaning: frozenset[str] = frozenset()

    def with_startup(self, startup: StartupKnowledge) -> "Knowledge":
        """Return a copy with other crash signatures."""
        return replace(self, startup=startup, **_by_signature(startup, self.terminations))


@cache
def load_knowledge(startup: StartupKnowledge | None = None) -> Knowledge:
    """Load the shipped data. `startup` is used instead of loading it again."""
    known = startup or load_startup()
    rules = load_termination_rules()
    return Knowledge(
        messages=load_messages(),
        startup=known,
        terminations=rules,
        logged_names=load_logged_names(),
        **_by_signature(known, rules),
    )


def load_termination_rules() -> TerminationRules:
    """Load the shipped rules."""
    return load_file(TerminationRules, "terminations.yaml")


def match_container(rules: TerminationRules, view: PodView, ended: Termination, probe: str) -> Crash | None:
    """Name the cause of a container's end from its status and the kubelet's message about a probe; None if no rule matches."""
    rule = next((rule for rule in rules.containers if _matches(rule, ended, probe)), None)
    return _crash(rule, view, ended) if rule is not None else None


def match_pod(rules: TerminationRules, view: PodView) -> Crash:
    """Name the cause of the end of a Pod that will not run again. The last rule matches any Pod."""
    rule = next(rule for rule in rules.pods if _matches_reason(rule, view.reason))
    return _crash(rule, view, view.termination)


def _by_signature(known: StartupKnowledge, rules: TerminationRules) -> dict[str, Any]:
    echoes = {signature.id for signature in known.signatures if signature.is_echo}
    by_action = {action: frozenset(s.id for s in known.signatures if s.remedy_action is action) for action in RemedyAction}
    return {
        "weak": frozenset(echoes | {rule.id for rule in rules.containers if rule.is_weak}),
        "signatures": {signature.id: signature for signature in known.signatures},
        "quarantining": by_action[RemedyAction.QUARANTINE_CACHE],
        "cleaning": by_action[RemedyAction.CLEAN_CACHE],
    }


def _matches(rule: TerminationRule, ended: Termination, probe: str) -> bool:
    if rule.exit_codes and ended.exit_code not in rule.exit_codes:
        return False
    return _matches_reason(rule, ended.reason) and (not rule.probe or f"{rule.probe} probe" in probe)


def _matches_reason(rule: TerminationRule, reason: str) -> bool:
    return not rule.reason or reason == rule.reason or (rule.reason.endswith("*") and reason.startswith(rule.reason[:-1]))


def _crash(rule: TerminationRule, pod: PodView, ended: Termination | None) -> Crash:
    values = {
        "pod": pod.name,
        "node": pod.node or "its node",
        "reason": pod.reason or (ended.reason if ended else ""),
        "message": clean(pod.message, 250),
    }
    # The values are untrusted: insert them, never parse them as a template.
    cause, remedy = (sentence(template.format_map(values)) for template in (rule.cause, rule.remedy))
    return Crash(signature=rule.id, cause=cause, remedy=remedy, reference=None, line="")
