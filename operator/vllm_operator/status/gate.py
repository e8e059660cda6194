"""Words for the comparison of a new plan with the current one before a rollout (`caches.gate`)."""

from collections.abc import Iterator
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import FALSE, NORMAL, READY, TRUE, WARNING, EventDraft, Reason, Verdict, find_condition
from vllm_operator.api.labels import GATE_ANNOTATION
from vllm_operator.caches.context import Gate
from vllm_operator.caches.measurement import MIN_PAIRS, read_record
from vllm_operator.planning.outcome import compare
from vllm_operator.rendering.revision import find_revision
from vllm_operator.status.observation import Observation

_MOST = 3
"""Maximum number of figures and of differences in the message."""


def describe_gate(observed: Observation, gate: Gate, start: str) -> Verdict:
    """Judge a rollout that is measured, or held because of what was measured. `start` tells of the Pod that measures, or is empty."""
    say, record, plan = observed.messages.say, gate.record, observed.outcome.plan
    if record.skipped:
        return Verdict(TRUE, Reason.MEASURING, say("event.measured", skipped=record.skipped))
    if gate.run:
        done = len(record.before) + len(record.after)
        facts: dict[str, Any] = {"run": done + 1, "runs": max(2 * MIN_PAIRS, done + 1), "is_new": gate.is_new, "text": start}
        return Verdict(TRUE, Reason.MEASURING, say("gate.running", serving=observed.serving, **facts))
    differences = compare(observed.serving_plan, plan) if observed.serving_plan is not None and plan is not None else []
    said = say(
        "gate.held",
        failure=record.failure,
        worse=[figure.text for figure in sorted(record.worse, key=lambda figure: figure.limit / figure.loss)[:_MOST]],
        differences=[f"{each.subject}: {each.after or 'not set'}, before {each.before or 'not set'}" for each in differences[:_MOST]],
        load=record.load,
        serving=observed.serving,
    )
    return Verdict(FALSE, Reason.ROLLOUT_HELD, said)


def draft_measured(observed: Observation) -> Iterator[EventDraft]:
    """Draft the event about a comparison after which the rollout has begun."""
    before = find_condition(observed.previous.conditions, READY)
    if before is None or before.reason != Reason.MEASURING or (observed.activity.gate is not None and observed.activity.gate.is_held):
        return
    revision = find_revision(observed.revisions, observed.revision)
    record = read_record(reading.text(revision, "metadata", "annotations", GATE_ANNOTATION))
    if record is not None and record.is_over and not record.worse and not record.failure:
        figures = [figure.text for figure in record.figures]
        text = observed.messages.say("event.measured", skipped=record.skipped, figures=figures, load=record.load)
        yield EventDraft(WARNING if record.skipped else NORMAL, "Measured", text, f"measured-{observed.revision}")
