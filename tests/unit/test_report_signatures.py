"""Every known crash, as the condition says it: in a real log line's words, short enough, with its whole remedy."""

from dataclasses import replace

import pytest

from support import observations as o
from support.crash_messages import said, says_the_whole_remedy
from vllm_operator.api.conditions import PAGES, find_condition
from vllm_operator.catalog.startup import Sample, Severity, load_signature_samples
from vllm_operator.logs.parser import StartupParser
from vllm_operator.status.knowledge import load_knowledge
from vllm_operator.status.report import report

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
    assert len(crashed.message.partition(" (See ")[0]) <= 500
    assert crashed.message.endswith(f" (See {PAGES}/{sample.signature})")
    assert status.last_crash.cause or status.last_crash.signature in crashed.message
    if state.crash.remedy:
        assert "What to do: " in crashed.message
        assert says_the_whole_remedy(state.crash), said(state.crash)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.signature)
def test_the_record_of_a_crash_has_what_its_description_needs_when_the_log_is_gone(sample: Sample) -> None:
    parser = StartupParser(load_knowledge().startup)
    parser.feed(sample.text + "\n")
    parser.end()
    observed = o.observe(o.crashed_pod(restarts=11), states={("vllm-a-x1", 11): parser.final_state})
    first = report(observed)
    second = report(o.after(replace(observed, startups={}), first, seconds=60))
    assert second.status.conditions == first.status.conditions
    assert second.status.last_crash == first.status.last_crash


def test_the_record_of_a_crash_in_force_leaves_out_what_the_condition_says() -> None:
    sample = next(sample for sample in SAMPLES if sample.signature == "MigUuidNotInteger")
    parser = StartupParser(load_knowledge().startup)
    parser.feed(sample.text + "\n")
    parser.end()
    observed = o.observe(o.crashed_pod(), states={("vllm-a-x1", 0): parser.final_state})
    first = report(observed)
    assert first.status.last_crash is not None
    assert set(first.status.last_crash.to_json()) == {"signature", "pod", "node", "time", "excerpt"}
    over = report(o.after(observed, first, pods=(o.ready_pod("vllm-a-x9"),), seconds=60)).status.last_crash
    assert over is not None
    assert parser.final_state.crash is not None
    assert (over.cause, over.remedy) == (parser.final_state.crash.cause, parser.final_state.crash.remedy)
    assert over.reference == f"{PAGES}/MigUuidNotInteger"


@pytest.mark.parametrize(
    ("signature", "says"),
    [
        pytest.param("ChatTemplateNotFound", True, id="remedy-with-a-flag-and-no-command"),
        pytest.param("NvidiaDriverMismatch", False, id="remedy-without-a-flag"),
        pytest.param("Bf16UnsupportedOnGpu", False, id="command-is-suggested"),
    ],
)
def test_a_remedy_that_names_a_flag_says_in_which_field_it_belongs(signature: str, says: bool) -> None:
    parser = StartupParser(load_knowledge().startup)
    parser.feed(next(each.text for each in SAMPLES if each.signature == signature) + "\n")
    parser.end()
    status = report(o.observe(o.crashed_pod(restarts=11), states={("vllm-a-x1", 11): parser.final_state})).status
    crashed = find_condition(status.conditions, "Crashed")
    assert crashed is not None
    assert ("Flags belong in spec.engine.args, variables in spec.engine.env." in crashed.message) is says


def test_an_error_of_a_known_family_is_reported_with_the_remedy_of_the_family() -> None:
    parser = StartupParser(load_knowledge().startup)
    parser.feed('Traceback (most recent call last):\n  File "/usr/bin/vllm", line 8, in <module>\npynvml.NVMLError_NotFound: Not Found\n')
    parser.end()
    status = report(o.observe(o.crashed_pod(restarts=11), states={("vllm-a-x1", 11): parser.final_state})).status
    crashed = find_condition(status.conditions, "Crashed")
    assert crashed is not None
    assert "What to do: Remove CUDA_VISIBLE_DEVICES" in crashed.message
