"""What only the status of a Pod and its events tell about an end: a probe that failed, an eviction, a refusal.

What the log, the exit code and the kernel tell is for `vllm_operator.startup.termination` to say.
Data: `terminations.yaml`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.catalog.resources import read_data
from vllm_operator.pods.view import PodView, Termination
from vllm_operator.startup.state import Crash
from vllm_operator.text.wording import clean


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A known end. Empty criteria match anything; `reason` may end in `*`.

    `is_weak`: says little; an event that comes later may say more.
    """

    id: str
    cause: str
    remedy: str
    reason: str = ""
    exit_codes: tuple[int, ...] = ()
    probe: str = ""
    is_weak: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """Known ends of containers that were running, and of Pods that will not run again."""

    containers: tuple[Rule, ...]
    pods: tuple[Rule, ...]


def load_rules() -> Rules:
    """Read the rules that ship with the package."""
    data = read_data("terminations.yaml")
    return Rules(tuple(map(_rule, data["containers"])), tuple(map(_rule, data["pods"])))


def match_container(rules: Rules, view: PodView, ended: Termination, probe: str) -> Crash | None:
    """Name the end of a container by its status and by what the kubelet said of a probe; None if no rule fits."""
    rule = next((rule for rule in rules.containers if _matches(rule, ended, probe)), None)
    return _crash(rule, view, ended) if rule is not None else None


def match_pod(rules: Rules, view: PodView) -> Crash:
    """Name the end of a Pod that will not run again. The last rule matches any."""
    rule = next(rule for rule in rules.pods if _reason_matches(rule.reason, view.reason))
    return _crash(rule, view, view.termination)


def _matches(rule: Rule, ended: Termination, probe: str) -> bool:
    if rule.exit_codes and ended.exit_code not in rule.exit_codes:
        return False
    return _reason_matches(rule.reason, ended.reason) and (not rule.probe or f"{rule.probe} probe" in probe)


def _reason_matches(wanted: str, reason: str) -> bool:
    return not wanted or reason == wanted or (wanted.endswith("*") and reason.startswith(wanted[:-1]))


def _crash(rule: Rule, pod: PodView, ended: Termination | None) -> Crash:
    values = {
        "pod": pod.name,
        "node": pod.node or "its node",
        "reason": pod.reason or (ended.reason if ended else ""),
        "message": clean(pod.message, 250),
    }
    return Crash(signature=rule.id, cause=_fill(rule.cause, values), remedy=_fill(rule.remedy, values), reference=None, line="")


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Fill a template of ours. Values are foreign text: they are put in, never read as a template."""
    return template.format_map(values)


def _rule(data: Mapping[str, Any]) -> Rule:
    return Rule(**{**data, "exit_codes": tuple(data.get("exit_codes", ()))})
