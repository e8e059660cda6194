"""Observing, deciding and reporting in one call."""

from dataclasses import replace

from vllm_operator.status.crashes import find_crashes
from vllm_operator.status.knowledge import Knowledge
from vllm_operator.status.observation import Observation
from vllm_operator.status.reaction import Reaction, react
from vllm_operator.status.report import Report
from vllm_operator.status.report import report as report_on


def react_to(observation: Observation) -> Reaction:
    """What is done about an observation."""
    return react(observation, find_crashes(observation))


def report(observation: Observation, knowledge: Knowledge | None = None) -> Report:
    """The report on an observation, with the decisions of the operator."""
    observed = replace(observation, knowledge=knowledge or observation.knowledge)
    crashes = find_crashes(observed)
    return report_on(observed, crashes, react(observed, crashes))
