"""Autoscaled and Protected: why the autoscaler or the PodDisruptionBudget has no effect."""

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.status.conditions import FALSE
from vllm_operator.status.exposed import judge_problem
from vllm_operator.status.observation.observation import ObservedState

_BUDGET = "PodDisruptionBudget"


def autoscaled(observed: ObservedState) -> Verdict | None:
    """Judge Autoscaled: the first problem with the autoscaler; None if there is none."""
    problem = next((it for it in observed.observation.scaling if it.kind != _BUDGET), None)
    if problem is None:
        return None
    say = observed.messages.say
    if problem.reason == Reason.METRICS_API_MISSING:
        return Verdict(FALSE, problem.reason, say("autoscaled.no_metrics", api=problem.detail))
    if problem.reason == Reason.AUTOSCALER_EXISTS:
        return Verdict(FALSE, problem.reason, say("autoscaled.exists", kind=problem.kind, autoscaler=problem.detail))
    return judge_problem(observed, problem)


def protected(observed: ObservedState) -> Verdict | None:
    """Judge Protected: the problem with the PodDisruptionBudget; None if there is none."""
    problem = next((it for it in observed.observation.scaling if it.kind == _BUDGET), None)
    return judge_problem(observed, problem) if problem is not None else None
