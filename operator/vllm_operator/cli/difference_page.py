"""The page that `vllm-operator plan --diff` prints: what would be otherwise today, and why."""

from collections.abc import Sequence
from typing import Any, TextIO

from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cli.tables import wrap
from vllm_operator.planning.differences import Difference, compare, refusal_of
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.pinning import is_in_force


def differences_of(pinned: Plan, fresh: Outcome) -> list[Difference]:
    """Name what differs; nothing where no plan can be made today."""
    return compare(pinned, fresh.plan) if fresh.plan else []


def write_difference_page(out: TextIO, resource: VLLMDeployment, pinned: Plan, fresh: Outcome, today: str) -> None:
    """Write what planning today comes to, compared with the plan in force; `today` is the version of the catalog."""
    lines = [f"{resource.metadata.namespace}/{resource.metadata.name}: {resource.spec.model.uri}", ""]
    lines += wrap(f"Planned for generation {pinned.observed_generation} with catalog {pinned.catalog_version}; today's is {today}.", "")
    if fresh.plan is None:
        lines += ["", *wrap(refusal_of(fresh), ""), *wrap("The plan in force stays, and what runs keeps running.", "")]
    else:
        lines += _differences(differences_of(pinned, fresh))
        lines += _new_notes(pinned, fresh.plan)
        lines += _advice(resource, pinned, fresh)
    out.write("\n".join(lines).rstrip() + "\n")


def for_programs(pinned: Plan, fresh: Outcome, today: str) -> dict[str, Any]:
    """The same for programs."""
    return {
        "catalogVersion": pinned.catalog_version,
        "todaysCatalogVersion": today,
        "refusal": None if fresh.plan else refusal_of(fresh),
        "differences": [
            {
                "subject": difference.subject,
                "inForce": difference.before,
                "today": difference.after,
                "reasonInForce": difference.before_reason,
                "reasonToday": difference.after_reason,
            }
            for difference in differences_of(pinned, fresh)
        ],
    }


def _differences(differences: Sequence[Difference]) -> list[str]:
    if not differences:
        return ["", "Planned anew today, nothing would differ."]
    lines = ["", "Planned anew today, this would differ:"]
    for difference in differences:
        lines += [
            "",
            f"  {difference.subject.removeprefix('The ')}",
            *_side("in force", difference.before, difference.before_reason),
            *_side("today", difference.after, difference.after_reason),
        ]
    return lines


def _side(when: str, value: str | None, reason: str | None) -> list[str]:
    shown = "not set" if value is None else value or "set"
    return [*wrap(shown, " " * 16, first=f"    {when}:".ljust(16)), *(wrap(reason, " " * 16) if reason else [])]


def _new_notes(pinned: Plan, fresh: Plan) -> list[str]:
    new = [note for note in fresh.notes if note not in pinned.notes]
    return ["", "Notes that the plan in force does not have:", *(line for note in new for line in wrap(note, "  "))] if new else []


def _advice(resource: VLLMDeployment, pinned: Plan, fresh: Outcome) -> list[str]:
    if not is_in_force(pinned, resource):
        return ["", *wrap("The spec has changed since, or a new plan was asked for: the operator applies the new plan by itself.", "")]
    if not differences_of(pinned, fresh):
        return []
    name, namespace = resource.metadata.name, resource.metadata.namespace
    return [
        "",
        *wrap("The plan in force stays until the spec changes. To have the new one, which restarts the Pods:", ""),
        f"  kubectl annotate vllm {name} -n {namespace} --overwrite {REPLAN_ANNOTATION}=$(date +%s)",
    ]
