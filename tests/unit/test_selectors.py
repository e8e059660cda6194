"""vLLM's own answers decide which attention backend is expected, and which pins are refused."""

from typing import Any

import pytest

from vllm_operator.api.spec import BackendsSpec, Distribution
from vllm_operator.catalog.backends import Selection, load_selectors, parse_selectors
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.rule_matching import Component, RuleInput
from vllm_operator.planning.engine.backends import BackendDecision, choose_backends
from vllm_operator.planning.engine.image import ResolvedVersion
from vllm_operator.planning.engine.rule_input import attention_cases

FLASH: dict[str, Any] = {"attention": "MLA", "heads_per_rank": 20, "deepseek_heads": False, "mla_dims": (192, 64, 256)}
"""GLM-4.7-Flash."""


def choose(version: str, architecture: str, facts: dict[str, Any], pin: str | None = None) -> BackendDecision:
    catalog = load_catalog()
    table = catalog.versions.resolve(version).table
    assert table is not None
    rule_input = RuleInput(release=table.release, architecture=architecture, **{"attention": "GQA", "quantization": "BF16", **facts})
    backends = BackendsSpec(attention=pin) if pin else None
    return choose_backends(ResolvedVersion(version, table, "an image"), rule_input, catalog.rules, backends)


@pytest.mark.parametrize(
    ("version", "architecture", "facts", "expected"),
    [
        ("0.11.2", "sm_75", {}, "FLASHINFER"),
        ("0.12.0", "sm_75", {"attention_sinks": True}, "TRITON_ATTN"),
        ("0.11.2", "sm_89", {"attention_sinks": True}, "TRITON_ATTN"),
        ("0.20.2", "sm_110", {}, "FLASH_ATTN"),
        ("0.20.2", "sm_110", {"attention": "MLA"}, "TRITON_MLA"),
        ("0.11.2", "sm_90", {"attention": "MLA", "heads_per_rank": 16}, "FLASH_ATTN_MLA"),
        ("0.20.2", "sm_90", {}, "FLASH_ATTN"),
        ("0.11.2", "sm_87", {}, "FLASH_ATTN"),
        ("0.18.1", "sm_100", FLASH, "CUTLASS_MLA"),
        ("0.19.1", "sm_103", FLASH, "FLASHINFER_MLA"),
        ("0.33.0", "sm_90", FLASH | {"arguments": {"--kv-cache-dtype": "fp8"}}, "FLASHMLA"),
        ("0.32.0", "sm_100", {"attention": "SparseMLA", "heads_per_rank": 16}, "FLASHINFER_MLA_SPARSE"),
        # FlashAttention 4 comes first: vllm/platforms/cuda.py:112 (0.33.0)
        ("0.33.0", "sm_100", {"attention": "SparseMLA", "heads_per_rank": 16}, "FLASH_ATTN_MLA_SPARSE_FA4"),
        ("0.33.0", "sm_100", {"attention": "SparseMLA", "heads_per_rank": 128}, "FLASHMLA_SPARSE"),
        ("0.33.0", "sm_120", {"attention": "SparseMLA", "heads_per_rank": 16}, "FLASHINFER_MLA_SPARSE_SM120"),
    ],
)
def test_the_backend_that_vllm_takes_is_expected(version: str, architecture: str, facts: dict[str, Any], expected: str) -> None:
    components = (Component.ATTENTION, Component.MLA_DECODE, Component.SPARSE_ATTENTION)
    [choice] = [choice for choice in choose(version, architecture, facts).choices if choice.component in components]
    assert (choice.backend, choice.chosen_by) == (expected, "Engine")


@pytest.mark.parametrize(
    ("version", "architecture", "attention", "pin", "words"),
    [
        ("0.33.0", "sm_90", "MLA", "CUTLASS_MLA", "vLLM 0.33.0 refuses attention backend CUTLASS_MLA on sm_90: compute capability not"),
        ("0.26.0", "sm_100", "MLA", "FLASHMLA", "FlashMLA Dense is only supported on Hopper devices."),
        ("0.26.0", "sm_75", "GQA", "FLASH_ATTN", "compute capability not supported"),
        ("0.33.0", "sm_100", "SparseMLA", "FLASHINFER_MLA_SPARSE_SM90", "compute capability not supported"),
    ],
)
def test_a_pin_that_the_selector_refuses_is_refused_with_its_reason(
    version: str, architecture: str, attention: str, pin: str, words: str
) -> None:
    refusal = choose(version, architecture, {"attention": attention}, pin).refusal
    assert refusal is not None
    assert words in refusal
    assert "Set spec.backends.attention to " in refusal


@pytest.mark.parametrize(
    ("version", "architecture", "attention", "pin"),
    [
        ("0.26.0", "sm_90", "GQA", "TRITON_ATTN"),
        ("0.26.0", "sm_100", "MLA", "TRITON_MLA"),
        ("0.33.0", "sm_90", "GQA", "FLEX_ATTENTION"),
        ("0.33.0", "sm_90", "SparseMLA", "FLASHINFER_MLA_SPARSE_SM90"),
    ],
)
def test_a_pin_that_the_selector_accepts_is_planned_without_a_note(version: str, architecture: str, attention: str, pin: str) -> None:
    decision = choose(version, architecture, {"attention": attention}, pin)
    assert decision.refusal is None
    assert [note for note in decision.notes if pin in note.text] == []


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"attention": "GQA", "attention_sinks": True}, ("Dense/64/sinks/auto",)),
        ({"attention": "MLA", "heads_per_rank": 16}, ("MLA/16/plain/auto",)),
        ({"attention": "MLA", "heads_per_rank": 128, "arguments": {"--kv-cache-dtype": "fp8"}}, ("MLA/128/plain/fp8",)),
        (FLASH, ("MLA/192-64-256/plain/auto",)),
        (
            {"attention": "GQA", "head_size": 128, "image_prefix": True, "arguments": {"--kv-cache-dtype": "nvfp4"}},
            ("Dense/128/prefix/nvfp4",),
        ),
        ({"attention": "GQA", "arguments": {"--block-size": "64"}}, ()),
        ({"attention": "GQA", "distribution": Distribution.NVLLM}, ()),
        ({}, ()),
    ],
)
def test_a_question_that_was_not_asked_has_no_answer(facts: dict[str, Any], expected: tuple[str, ...]) -> None:
    component = Component.MLA_DECODE if facts.get("attention") == "MLA" else Component.ATTENTION
    assert tuple(attention_cases(component, RuleInput(release=(0, 20, 1), **facts))) == expected


TABLE = {
    "reasons": ["too old"],
    "answers": [
        {"takes": "CUTLASS", "accepts": ["CUTLASS"], "refuses": {"MARLIN": 0}, "ignores": {"MACHETE": "CUTLASS"}},
        {"takes": "MARLIN", "accepts": ["MARLIN"], "refuses": {}},
        {"takes": None, "accepts": [], "refuses": {"MARLIN": 0}, "raises": 0},
    ],
    "cases": [{"FP8/tensor": 0, "FP8/token": 1, "FP8/modelopt": 2}],
    "versions": {"0.20.1": {"sm_90": 0}},
}


def test_a_layer_that_may_be_several_cases_has_the_answers_of_all() -> None:
    selectors = parse_selectors(TABLE)
    both = selectors.find((0, 20, 1), "sm_90", ["FP8/tensor", "FP8/token"])
    assert both == Selection("CUTLASS", ("CUTLASS", "MARLIN"), {}, {"MACHETE": "CUTLASS"}, None, ("MARLIN",))
    one = selectors.find((0, 20, 1), "sm_90", ["FP8/modelopt"])
    assert one == Selection(None, (), {"MARLIN": "too old"}, {}, "too old")


def test_a_version_that_was_not_asked_gets_what_its_neighbours_agree_on() -> None:
    answers = [
        {"takes": "CUTLASS", "accepts": ["CUTLASS", "MARLIN"], "refuses": {"TRITON": 0, "TORCH": 0}},
        {"takes": "CUTLASS", "accepts": ["CUTLASS"], "refuses": {"TRITON": 0}},
        {"takes": "MARLIN", "accepts": ["MARLIN"], "refuses": {}},
    ]
    versions = {f"0.{minor}.0": {"sm_90": place} for minor, place in ((19, 0), (20, 0), (22, 1), (24, 2))}
    table = {"reasons": ["too old"], "answers": answers, "cases": [{"FP8": 0}, {"FP8": 1}, {"FP8": 2}], "versions": versions}
    selectors = parse_selectors(table)
    assert selectors.find((0, 21, 0), "sm_90", ["FP8"]) == Selection("CUTLASS", ("CUTLASS",), {"TRITON": "too old"})
    assert selectors.find((0, 23, 0), "sm_90", ["FP8"]) == Selection(None, (), {})
    assert selectors.find((0, 25, 0), "sm_90", ["FP8"]) is None
    assert selectors.find((0, 18, 0), "sm_90", ["FP8"]) is None


def test_every_known_version_was_asked() -> None:
    known = {table.release for table in load_catalog().versions.tables}
    selectors = load_selectors()
    # 0.11.0 checks no attention pin before it loads the backend; 0.21.0 was asked about attention only
    assert known - selectors[Component.ATTENTION].versions.keys() == {(0, 11, 0)}
    assert known - selectors[Component.MOE].versions.keys() == {(0, 11, 0), (0, 21, 0)}
    assert known - selectors[Component.MLA_PREFILL].versions.keys() == {(0, 21, 0)}
    assert known - selectors[Component.GEMM].versions.keys() == {(0, 21, 0)}
