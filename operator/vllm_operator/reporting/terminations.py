"""What the status of a container or Pod tells about its end, where the log does not.

The log's own diagnosis comes first, with one exception: a kill for lack of memory is the cause of whatever
the log says afterwards. Data: `terminations.yaml`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from vllm_operator.catalog.resources import read_data
from vllm_operator.reporting.pod_events import killed_by_probe
from vllm_operator.reporting.pods import PodView, Termination
from vllm_operator.reporting.scene import Scene
from vllm_operator.reporting.wording import clean
from vllm_operator.startup.state import Crash, StartupState


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A known end. Empty criteria match anything; `reason` may end in `*`.

    `overrides_log`: the cause of whatever the log says. `is_weak`: says little; the log or an event that comes
    later may say more.
    """

    id: str
    cause: str
    remedy: str
    reason: str = ""
    exit_codes: tuple[int, ...] = ()
    probe: str = ""
    overrides_log: bool = False
    is_weak: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """Known ends of containers that were running, and of Pods that will not run again."""

    containers: tuple[Rule, ...]
    pods: tuple[Rule, ...]

    @property
    def weak(self) -> frozenset[str]:
        """Signatures that say little."""
        return frozenset(rule.id for rule in self.containers if rule.is_weak)


@cache
def load_rules() -> Rules:
    """Read the rules that ship with the package."""
    data = read_data("terminations.yaml")
    return Rules(tuple(map(_rule, data["containers"])), tuple(map(_rule, data["pods"])))


def diagnose(scene: Scene, view: PodView, ended: Termination, state: StartupState | None) -> Crash | None:
    """Name the end of a run; None if neither the log nor the status tells."""
    found = state.crash if state is not None else None
    probe = killed_by_probe(view, scene.log) or ""
    for rule in load_rules().containers:
        known = found is not None and found.signature != "Unknown"
        if (rule.overrides_log or not known) and _matches(rule, ended, probe):
            return _crash(rule, {"pod": view, "ended": ended, "probe": probe}, found)
    return found


def diagnose_failed_pod(view: PodView) -> Crash:
    """Name the end of a Pod that will not run again. The last rule matches any."""
    rule = next(rule for rule in load_rules().pods if _reason_matches(rule.reason, view.reason))
    return _crash(rule, {"pod": view, "ended": view.termination, "probe": ""}, None)


def _matches(rule: Rule, ended: Termination, probe: str) -> bool:
    if rule.exit_codes and ended.exit_code not in rule.exit_codes:
        return False
    return _reason_matches(rule.reason, ended.reason) and (not rule.probe or f"{rule.probe} probe" in probe)


def _reason_matches(wanted: str, reason: str) -> bool:
    return not wanted or reason == wanted or (wanted.endswith("*") and reason.startswith(wanted[:-1]))


def _crash(rule: Rule, facts: Mapping[str, Any], found: Crash | None) -> Crash:
    pod: PodView = facts["pod"]
    ended: Termination | None = facts["ended"]
    values = {
        "pod": pod.name,
        "node": pod.node or "its node",
        "reason": pod.reason or (ended.reason if ended else ""),
        "message": clean(pod.message, 250),
        "code": str(ended.exit_code) if ended else "",
    }
    return Crash(
        signature=rule.id,
        cause=_fill(rule.cause, values),
        remedy=_fill(rule.remedy, values),
        reference=None,
        line=found.line if found is not None else "",
        excerpt=found.excerpt if found is not None else "",
    )


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Fill a template of ours. Values are foreign text: they are put in, never read as a template."""
    return template.format_map(values)


def _rule(data: Mapping[str, Any]) -> Rule:
    return Rule(**{**data, "exit_codes": tuple(data.get("exit_codes", ()))})
