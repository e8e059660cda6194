"""Every signature is found in the lines that are known to belong to it, and texts and remedies are sound."""

import pytest

from vllm_operator.catalog.signatures import Sample, Severity, load_signature_samples
from vllm_operator.catalog.startup import load_startup
from vllm_operator.startup.parser import StartupParser
from vllm_operator.startup.state import StartupState

KNOWLEDGE = load_startup()
SIGNATURES = {signature.id: signature for signature in KNOWLEDGE.signatures}
SAMPLES = load_signature_samples()
NOTICES = {name for name, signature in SIGNATURES.items() if signature.severity is not Severity.FATAL} - {"TerminatedDuringStartup"}


def read(text: str) -> StartupState:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(text)
    parser.end()
    return parser.final_state


def by_place(samples: list[Sample]) -> list[object]:
    return [pytest.param(sample, id=f"{sample.signature}-{number}") for number, sample in enumerate(samples)]


@pytest.mark.parametrize("sample", by_place([each for each in SAMPLES if each.signature not in NOTICES]))
def test_a_sample_is_recognised_on_its_own(sample: Sample) -> None:
    crash = read(sample.text + "\n").crash

    assert crash is not None
    assert crash.signature == sample.signature
    assert crash.cause
    assert "{{" not in crash.cause


@pytest.mark.parametrize("sample", by_place([each for each in SAMPLES if each.signature in NOTICES]))
def test_a_warning_is_a_notice_and_no_crash(sample: Sample) -> None:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(sample.text + "\n")
    parser.end()

    assert parser.final_state.crash is None
    assert sample.signature in {notice.signature for notice in parser.notices}
