"""Reading rules and conditions: what is understood, what is refused, and in which order rules apply."""

from typing import Any

import pytest

from vllm_operator.api.spec import Quantization
from vllm_operator.catalog.backends import Kernels, canonical
from vllm_operator.catalog.entry import EntryError, parse_entry
from vllm_operator.catalog.rule_matching import Component, Condition, RuleInput, parse_range
from vllm_operator.catalog.rules import Rule, RuleKind, build_rules, find_conflicts, load_rules


def rule(**given: Any) -> Rule:
    base = {"id": "a", "component": "MoE", "kind": "engine", "backend": "TRITON", "because": "It is so.", "source": "a test"}
    return parse_entry(Rule, {**base, **given})


def parse_match(written: dict[str, Any]) -> Condition:
    return parse_entry(Condition, written)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=0.17.1,<0.20", (0, 19, 0), (0, 20, 0)),
        (">=0.17.1,<0.20", (0, 17, 1), (0, 17, 0)),
        ("<=0.16", (0, 16, 0), (0, 16, 1)),
        (">0.16", (0, 16, 1), (0, 16, 0)),
        ("0.16.0", (0, 16, 0), (0, 16, 1)),
    ],
)
def test_ranges_of_versions(text: str, inside: Any, outside: Any) -> None:
    span = parse_range(text, releases=True)
    assert span.contains(inside)
    assert not span.contains(outside)


@pytest.mark.parametrize(("text", "inside", "outside"), [(">=2", 2, 1), ("<8", 7, 8), ("0", 0, 1), (">=2,<=4", 4, 5), (">75", 75.5, 75)])
def test_ranges_of_numbers(text: str, inside: Any, outside: Any) -> None:
    span = parse_range(text)
    assert span.contains(inside)
    assert not span.contains(outside)


@pytest.mark.parametrize("text", ["", "about 2", "=>2", ">=a"])
def test_a_range_that_cannot_be_read_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="write for example"):
        parse_range(text)


@pytest.mark.parametrize(
    ("condition", "facts", "want"),
    [
        ({}, {}, True),
        ({"architectures": "sm_90"}, {"architecture": "sm_90"}, True),
        ({"architectures": "sm_10x"}, {"architecture": "sm_103"}, True),
        ({"architectures": "sm_90"}, {"architecture": None}, False),
        ({"tensor": ">=2"}, {"tensor": 2}, True),
        ({"experts": ">=1"}, {"experts": None}, False),
        ({"except": {"families": "gemma"}}, {"family": None}, True),
        ({"except": {"families": "gemma"}}, {"family": "gemma"}, False),
        ({"environment": {"A": "^1$"}}, {"environment": {"A": "1"}}, True),
        ({"environment": {"A": "^1$"}}, {"environment": {}}, False),
        ({"arguments": {"--x": ""}}, {"arguments": {"--x": ""}}, True),
        ({"chosen": {"MoE": ["TRITON"]}}, {}, False),
    ],
)
def test_what_is_unknown_satisfies_no_condition(condition: dict[str, Any], facts: dict[str, Any], want: bool) -> None:
    assert parse_match(condition).holds(RuleInput(release=(0, 20, 1), **facts), {}, {}) is want


def test_doubt_speaks_for_a_kernel_and_knowledge_against_it() -> None:
    condition = parse_match({"versions": ">=0.17", "architectures": "sm_90", "quantizations": "FP8", "experts": ">=1"})
    assert condition.possible(RuleInput(release=(0, 20, 1)), {})
    assert not condition.possible(RuleInput(release=(0, 16, 0)), {})
    assert not condition.possible(RuleInput(release=(0, 20, 1), architecture="sm_80"), {})
    assert not condition.possible(RuleInput(release=(0, 20, 1), experts=0), {})


@pytest.mark.parametrize(
    ("one", "two", "want"),
    [
        ({"versions": "<0.15"}, {"versions": ">=0.15"}, True),
        ({"versions": "<0.16"}, {"versions": ">=0.15"}, False),
        ({"architectures": "sm_90"}, {"architectures": "sm_10x"}, True),
        ({"architectures": "sm_90"}, {"quantizations": "FP8"}, False),
        ({"tensor": "<8"}, {"tensor": ">=8"}, True),
        ({"families": "gemma"}, {"except": {"families": ["gemma", "llama"]}}, True),
        ({"chosen": {"MoE": "A"}}, {"chosen": {"MoE": "B"}}, True),
    ],
)
def test_conditions_that_exclude_each_other_are_distinguished(one: dict[str, Any], two: dict[str, Any], want: bool) -> None:
    first, second = parse_match(one), parse_match(two)
    assert first.disjoint(second) is want
    assert second.disjoint(first) is want


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "quark"}, "kind: 'quark' does not exist (did you mean quirk?)"),
        ({"component": "Coffee"}, "component: 'Coffee' does not exist; use one of AllReduce, AllToAll, Attention, Engine,"),
        ({"when": {"weather": "fine"}}, "when: 'weather' is not a field; use one of allocations, architectures, arguments,"),
        ({"when": {"quantisations": "FP8"}}, "when: 'quantisations' is not a field (did you mean quantizations?)"),
        ({"when": {"except": {"tensor": 2}}}, "when.except: 'tensor' is not a field"),
        ({"when": {"chosen": {"moe": "TRITON"}}}, "when.chosen.moe: 'moe' does not exist (did you mean MoE?)"),
        ({"when": {"versions": "new"}}, "when.versions: 'new' is not a range"),
        ({"when": {"versions": 0.20}}, "when.versions: 0.2 is not text; put it in quotes, such as '0.20'"),
        ({"when": {"tensor": True}}, "when.tensor: write a number, or a range such as '>=2,<8'"),
        ({"when": {"environment": {"A": "("}}}, "when.environment.A: '(' is not a regular expression: missing )"),
        ({"when": {"mig": "yes"}}, "when.mig[0] must be true or false, not 'yes'"),
        ({"then": 1}, "'then' is not a field"),
        ({"backend": None}, "nothing follows from it"),
        ({"when": []}, "when must be a mapping, not a list"),
        ({"because": "x" * 1000}, "because must be at most 400 characters long"),
        ({"because": 7}, "because must be text: put 7 in quotes"),
        ({"environment": {"A": "x" * 3000}}, "environment.A must be at most 1024 characters long"),
        ({"environment": dict.fromkeys("ABC", "x" * 700)}, "environment must be at most 2000 characters long in total"),
        ({"environment": {"A": True}}, "environment.A: write 'true' in quotes"),
        ({"alternatives": ["A"], "kind": "quirk"}, "only a rule of the kind engine has alternatives"),
        ({"priority": "high"}, "priority must be a whole number, not 'high'"),
    ],
)
def test_a_mistake_in_a_rule_is_named_with_its_field_and_what_to_write_instead(given: dict[str, Any], message: str) -> None:
    with pytest.raises(EntryError) as caught:
        rule(**given)
    assert str(caught.value).startswith(message)


def test_a_rule_without_a_reason_is_refused() -> None:
    with pytest.raises(EntryError, match="because is missing"):
        parse_entry(Rule, {"id": "b", "component": "MoE", "kind": "engine", "backend": "X", "source": "s"})


def test_rules_that_contradict_each_other_are_found_when_loaded() -> None:
    rules = [rule(id="one"), rule(id="two", backend="MARLIN")]
    with pytest.raises(EntryError, match="one and two may both apply and choose TRITON and MARLIN"):
        build_rules(rules, (), Kernels(()), {})
    assert find_conflicts([rule(id="one"), rule(id="two", backend="MARLIN", priority=1)]) == []
    assert find_conflicts([rule(id="one"), rule(id="two", backend="MARLIN", kind="quirk")]) == []


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(EntryError, match="two rules are called a"):
        build_rules([rule(), rule()], (), Kernels(()), {})


def test_quirks_come_before_choices_and_choices_before_what_the_engine_does() -> None:
    kinds = [one.kind for one in load_rules().rules]
    assert kinds == sorted(kinds, key=list(RuleKind).index)


def test_what_ships_is_explained_in_sentences_with_a_source() -> None:
    rules = load_rules().rules
    assert len(rules) > 150
    for one in rules:
        assert one.because.endswith("."), one.id
        assert one.source, one.id
        assert all(text is None or text.endswith((".", '.")', '"', "{cacheTypes}")) for text in (one.refuse, one.warn)), one.id


def test_the_user_may_spell_a_backend_as_vllm_does() -> None:
    ways = tuple(way for way in load_rules().invocations if way.component == Component.MOE)
    assert canonical("deep_gemm", ways) == "DEEPGEMM"
    assert canonical("flashinfer-cutlass", ways) == "FLASHINFER_CUTLASS"
    assert canonical("cutlass", ways) == "VLLM_CUTLASS"


def test_what_works_is_known_for_each_component_with_kernels() -> None:
    kernels = load_rules().kernels
    situation = RuleInput(
        release=(0, 20, 1), architecture="sm_100", quantization=Quantization.NVFP4, mixture_of_experts=True, routing="DeepSeekV3"
    )
    assert kernels.working("MoE", situation, {}) == (
        "MARLIN",
        "FLASHINFER_TRTLLM",
        "FLASHINFER_CUTLASS",
        "FLASHINFER_CUTEDSL",
        "VLLM_CUTLASS",
    )
