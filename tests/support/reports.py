"""Observing, deciding and reporting in one call."""

from functools import cache

from vllm_operator.status.crashes import find_crashes
from vllm_operator.status.decision import Decision, Remediator, decide, load_remediator
from vllm_operator.status.knowledge import Knowledge, load_knowledge
from vllm_operator.status.observation import Observation, ObservedState
from vllm_operator.status.report import Report
from vllm_operator.status.report import report as report_on


def decide_on(observation: Observation, knowledge: Knowledge | None = None) -> Decision:
    """What is done about an observation."""
    observed = ObservedState.read(observation, knowledge or load_knowledge())
    return decide(observed, find_crashes(observed), _remediator())


def report(observation: Observation, knowledge: Knowledge | None = None) -> Report:
    """The report on an observation, with the decisions of the operator."""
    observed = ObservedState.read(observation, knowledge or load_knowledge())
    crashes = find_crashes(observed)
    return report_on(observed, crashes, decide(observed, crashes, _remediator()))


@cache
def _remediator() -> Remediator:
    return load_remediator()
