"""Keeping a plan: nothing restarts because the operator, its catalog or the nodes have changed.

A plan stays in force for the generation of the spec that it was made for, until the user changes the spec or asks
for a new plan with an annotation. What would be chosen otherwise today is told, one line per difference.
"""

from vllm_operator.api.conditions import Reason
from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ConditionStatus, Plan
from vllm_operator.planning.outcome import Outcome, Verdict

LINES_IN_MESSAGE = 4
"""Differences named in the condition; all are in `Outcome.drift`."""


def is_in_force(pinned: Plan, resource: VLLMDeployment) -> bool:
    """True if the plan was made for the spec as it is, and no new plan was asked for since."""
    token = resource.metadata.annotations.get(REPLAN_ANNOTATION)
    return pinned.observed_generation == resource.metadata.generation and pinned.replan_token == token


def keep_plan(pinned: Plan, fresh: Outcome, said: str) -> Outcome:
    """Return the pinned plan, with what would be chosen otherwise today.

    Args:
        pinned: The plan in force.
        fresh: What planning anew comes to.
        said: The message about the plan in force.
    """
    accepted = Verdict(ConditionStatus.TRUE, Reason.VALID, "The spec can be understood.")
    drift = compare(pinned, fresh)
    if not drift:
        reason = Reason.RESOLVED if pinned.architecture else Reason.GPU_UNKNOWN
        return Outcome(accepted, Verdict(ConditionStatus.TRUE, reason, said), pinned)
    listed = " ".join(drift[:LINES_IN_MESSAGE])
    more = f" And {len(drift) - LINES_IN_MESSAGE} more." if len(drift) > LINES_IN_MESSAGE else ""
    message = (
        f"{said} It stays as it is; planned anew today, this would differ: {listed}{more} "
        f"To have the new plan, which restarts the Pods, set the annotation {REPLAN_ANNOTATION} to any new value."
    )
    return Outcome(accepted, Verdict(ConditionStatus.TRUE, Reason.RESOLVED_DIFFERENTLY, message), pinned, tuple(drift))


def compare(pinned: Plan, fresh: Outcome) -> list[str]:
    """Say what a new plan would do otherwise, one line per difference."""
    if fresh.plan is None:
        refused = fresh.accepted if fresh.accepted.status is not ConditionStatus.TRUE else fresh.planned
        return [f"No plan could be made: {refused.message}"]
    plan = fresh.plan
    lines = [
        f"{name} would be {after or 'unknown'}, not {before or 'unknown'}."
        for name, before, after in (
            ("The GPU", _gpu(pinned), _gpu(plan)),
            ("The resource", f"{pinned.count}x {pinned.resource}", f"{plan.count}x {plan.resource}"),
            ("The image", pinned.image, plan.image),
        )
        if before != after
    ]
    backends = (
        {choice.component: choice.backend for choice in pinned.backends},
        {choice.component: choice.backend for choice in plan.backends},
    )
    lines += _differences(*backends, "The backend of {}")
    lines += _differences({v.name: v.value for v in pinned.env}, {v.name: v.value for v in plan.env}, "The variable {}")
    lines += _differences({a.name: a.value or "" for a in pinned.args}, {a.name: a.value or "" for a in plan.args}, "The flag {}")
    return lines


def _gpu(plan: Plan) -> str:
    return f"{plan.product or 'a GPU'} ({plan.architecture})" if plan.architecture else plan.product or ""


def _differences(before: dict[str, str], after: dict[str, str], subject: str) -> list[str]:
    lines = []
    for name in sorted(before.keys() | after.keys()):
        what = subject.format(name)
        if name not in after:
            lines.append(f"{what} would not be set.")
        elif name not in before:
            lines.append(f"{what} would be {after[name] or 'set'}, and is not set now.")
        elif before[name] != after[name]:
            lines.append(f"{what} would be {after[name] or 'without value'}, not {before[name] or 'without value'}.")
    return lines
