"""Every known crash, as the condition says it: in a real log line's words, short enough, with its whole remedy."""

import pytest

from support import observations as o
from support.reports import report
from vllm_operator.api.conditions import find_condition
from vllm_operator.catalog.signatures import Sample, Severity, load_signature_samples
from vllm_operator.observation.knowledge import load_knowledge
from vllm_operator.startup.parser import StartupParser

FATAL = {signature.id for signature in load_knowledge().startup.signatures if signature.severity is Severity.FATAL}
SAMPLES = [sample for sample in load_signature_samples() if sample.signature in FATAL]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.signature)
def test_a_known_crash_is_reported_in_full_within_its_limit(sample: Sample) -> None:
    parser = StartupParser(load_knowledge().startup)
    parser.feed(sample.text + "\n")
    parser.end()
    state = parser.final_state
    status = report(o.observe(o.crashed_pod(restarts=11), states={("vllm-a-x1", 11): state})).status
    crashed = find_condition(status.conditions, "Crashed")
    assert crashed is not None
    assert status.last_crash is not None
    assert state.crash is not None
    assert len(crashed.message) <= 500
    if status.last_crash.remedy:
        assert "What to do: " in crashed.message
        assert status.last_crash.remedy.rstrip(".") in crashed.message or len(status.last_crash.cause + status.last_crash.remedy) > 330
