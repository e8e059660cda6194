"""Every signature is found in the lines that are known to belong to it, and texts and remedies are sound."""

import re
from operator import itemgetter
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from vllm_operator.catalog.entry import parse_entry, read_data
from vllm_operator.catalog.startup import FACTS, Change, FailureKind, Sample, Severity, Signature, load_signature_samples, load_startup
from vllm_operator.catalog.templates import fill_in, fill_in_exactly
from vllm_operator.catalog.versions import load_versions
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Stage, StartupState

KNOWLEDGE = load_startup()
SIGNATURES = {signature.id: signature for signature in KNOWLEDGE.signatures}
SAMPLES = load_signature_samples()
VERSIONS = load_versions()
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
    assert sample.signature in parser.final_state.notices


def test_each_signature_has_a_name_of_its_own_and_a_sample() -> None:
    assert len(SIGNATURES) == len(KNOWLEDGE.signatures)
    assert {sample.signature for sample in SAMPLES} == set(SIGNATURES) - {"CutlassMlaHang"}  # which logs nothing


@pytest.mark.parametrize("signature", [pytest.param(each, id=each.id) for each in KNOWLEDGE.signatures])
def test_texts_read_well_with_and_without_captures(signature: Signature) -> None:
    everything = [(name, "7") for pattern in signature.patterns for name in re.compile(pattern.regex).groupindex]
    stages = [("stage", stage) for stage in (*Stage, "")]
    for captures in ([], everything, *([each] for each in stages), *([*everything, each, ("utilization", "0.3")] for each in stages)):
        for template in (signature.cause, signature.remedy):
            text = fill_in(template, captures)
            if not text and signature.severity is not Severity.FATAL:
                continue  # such a notice says nothing here, and is not shown
            assert text.endswith((".", ":"))
            assert "  " not in text
            assert "None" not in text
            assert " ." not in text
            assert len(text) < 500


@pytest.mark.parametrize("signature", [pytest.param(each, id=each.id) for each in KNOWLEDGE.signatures])
def test_every_pattern_has_an_anchor_that_its_lines_contain(signature: Signature) -> None:
    for pattern in signature.patterns:
        re.compile(pattern.regex)
        if pattern.context is not None:
            re.compile(pattern.context)
        assert re.search(r"[A-Za-z]{2,}", pattern.anchor)
    samples = [sample.text for sample in SAMPLES if sample.signature == signature.id]
    for sample in samples:
        assert any(pattern.anchor in sample for pattern in signature.patterns)


def test_both_texts_of_a_signature_can_use_conditions_by_name() -> None:
    entry = {"id": "Odd", "severity": "fatal", "priority": 50, "patterns": [], "facts": {"far": "10 < (size or 0)|int"}}
    signature = parse_entry(Signature, {**entry, "cause": "{{ 'Far' if far else 'Near' }}.", "remedy": [{"if": "far", "then": "Go back."}]})
    assert [fill_in(text, [("size", "12")]) for text in (signature.cause, signature.remedy)] == ["Far.", "Go back."]
    assert [fill_in(text, []) for text in (signature.cause, signature.remedy)] == ["Near.", ""]


@pytest.mark.parametrize(
    "entry", [*read_data("signatures.yaml")["signatures"], *read_data("failures.yaml")["failures"]], ids=itemgetter("id")
)
def test_each_condition_with_a_name_is_used_and_hides_no_value_of_the_log(entry: dict[str, Any]) -> None:
    written = str((entry["cause"], entry["remedy"], entry.get("facts")))
    captured = set(re.findall(r"\(\?P<(\w+)>", str(entry)))
    for name in entry.get("facts", {}):
        assert name not in {*captured, *FACTS}
        assert len(re.findall(rf"\b{name}\b", written)) > 1


NAMED = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+|VLLM_[A-Z0-9_]*[A-Z0-9]")
CHANGES = [(signature.id, change) for signature in KNOWLEDGE.signatures for change in (*signature.environment, *signature.arguments)]
# Not vLLM's own: read by CUDA, NCCL, PyTorch, Triton, the model hub or the compiler.
FOREIGN = ("CUDA_", "NCCL_", "GLOO_", "HF_", "TORCH", "TRITON_", "PYTORCH_", "FLASHINFER_", "TIKTOKEN_", "UCX_", "XDG_", "HSA_")
FOREIGN_NAMES = {"USER", "HOME", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CC", "TMPDIR", "MAX_JOBS", "FORCE_NUM_KV_SPLITS"} | {
    "PYTHONFAULTHANDLER",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
}


@pytest.mark.parametrize(("name", "change"), [pytest.param(name, change, id=f"{name}-{change.name}") for name, change in CHANGES])
def test_a_remedy_names_only_what_its_versions_know(name: str, change: Change) -> None:
    if change.name.startswith("<"):
        return  # a person fills in which argument
    if change.name.startswith(FOREIGN) or change.name in FOREIGN_NAMES:
        assert change.versions is None
        return
    gate = SpecifierSet(change.versions or "")
    tables = [table for table in VERSIONS.tables if gate.contains(table.version)]
    assert tables
    for table in tables:
        known = table.knows_flag if change.name.startswith("--") else table.knows_variable
        assert known(change.name), f"vLLM {table.version} does not know {change.name}"


@pytest.mark.parametrize("signature", [pytest.param(each, id=each.id) for each in KNOWLEDGE.signatures])
def test_what_a_text_says_to_set_exists_or_is_said_to_be_of_old_versions(signature: Signature) -> None:
    rest = r"(?:[^.]|\.\d)*"  # of the sentence
    for name in NAMED.findall(re.sub(r"kubectl \w+ [\w-]+(?: --[\w=-]+)*|\(kubectl [^()]*\)", "", f"{signature.cause} {signature.remedy}")):
        knowing = [
            table.version for table in VERSIONS.tables if (table.knows_flag if name.startswith("--") else table.knows_variable)(name)
        ]
        assert knowing, f"no vLLM knows {name}"
        is_said = re.search(
            rf"{name}\S* ?\(?{rest}(?:until|before|on 0\.|removed)|(?:before|on 0\.){rest}{name}|not set {name}",
            signature.remedy,
            re.IGNORECASE,
        )
        is_old = "0.2" not in signature.versions and "0.3" not in signature.versions and signature.versions != "all"
        assert VERSIONS.newest.version in knowing or is_said or is_old, f"{name} is gone since {knowing[-1]}, and the text does not say so"


@pytest.mark.parametrize("kind", KNOWLEDGE.kinds, ids=lambda kind: kind.id)
def test_what_the_remedy_of_a_family_says_to_set_exists(kind: FailureKind) -> None:
    for name in NAMED.findall(f"{kind.cause} {kind.remedy}"):
        is_known = VERSIONS.newest.knows_flag(name) if name.startswith("--") else VERSIONS.newest.knows_variable(name)
        assert is_known or f"{name} in vLLM 0." in kind.remedy, f"{name} is gone, and the text does not say so"


def test_a_value_fits_what_was_captured() -> None:
    signature = SIGNATURES["GpuMemoryInUse"]
    captures = [("free", "54.34"), ("total", "79.18"), ("utilization", "0.92"), ("wanted", "72.84")]

    assert fill_in(signature.arguments[0].value or "", captures) == "0.67"
    assert "at most 0.67" in fill_in(signature.remedy, captures)


@pytest.mark.parametrize(
    ("signature", "line", "value"),
    [
        ("QuantDtypeMismatch", "torch.bfloat16 is not supported for quantization method awq.", "half"),
        ("QuantDtypeMismatch", "Only bfloat16 is currently supported by fbgemm_fp8", "bfloat16"),
        ("BatchedTokensBelowNeed", "block_size (1072) must be <= max_num_batched_tokens (512)", "1072"),
        ("BatchedTokensBelowNeed", "Consider increasing max_num_batched_tokens or decreasing num_speculative_tokens", None),
    ],
)
def test_a_value_with_alternatives_needs_only_one_of_them(signature: str, line: str, value: str | None) -> None:
    [captures] = [
        {name: text for name, text in found.groupdict().items() if text}
        for pattern in SIGNATURES[signature].patterns
        if (found := re.search(pattern.regex, line))
    ]
    assert fill_in_exactly(SIGNATURES[signature].arguments[0].value or "", captures) == value
