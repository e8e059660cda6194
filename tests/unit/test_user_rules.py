"""Rules from the owner of the cluster: they win over ours, and a broken one harms nobody."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.backends import chosen, describe, emitted, knowledge
from support.gpus import inventory_of, real_node
from support.own_knowledge import EXPERTS_RULE, written
from support.plans import deployment, known
from vllm_operator.catalog import user_entries
from vllm_operator.catalog.entry import parse_entry
from vllm_operator.catalog.rule_matching import VALUE_LIMIT, RuleInput
from vllm_operator.catalog.rules import Rule, Rules
from vllm_operator.catalog.user_entries import UserEntries, with_user_rules
from vllm_operator.planning.engine.backends import choose_backends
from vllm_operator.planning.planner import plan

OURS = knowledge()[2]
SITUATION = RuleInput(release=(0, 20, 1))


def with_rules(*documents: Any) -> tuple[Rules, UserEntries[Rule]]:
    catalog, read = with_user_rules(known(), {"rules.yaml": written(list(documents))})
    return catalog.rules, read


def moe(rules: Rules) -> tuple[str, str, dict[str, str | None]]:
    resolved, situation, _ = describe("hf://deepseek-ai/DeepSeek-R1", "0.20.1", "sm_100")
    decision = choose_backends(resolved, situation, rules)
    return (*chosen(decision)["MoE"], emitted(decision))


def test_a_rule_of_the_user_beats_what_the_engine_does() -> None:
    rules, read = with_rules(EXPERTS_RULE)
    assert (read.added, read.problems) == (("our-experts-on-b200",), ())
    assert moe(OURS)[:2] == ("FLASHINFER_TRTLLM", "Engine")
    assert moe(rules) == ("TRITON", "Rule", {"--moe-backend": "triton"})


def test_broken_rules_are_named_and_left_out_and_the_rest_is_used() -> None:
    broken = [{"id": "x"}, "nonsense", {**EXPERTS_RULE, "id": "y", "when": {"moon": "full"}}, {**EXPERTS_RULE, "id": "moe-int4-engine"}]
    rules, read = with_rules(*broken, EXPERTS_RULE)
    problems = read.problems
    assert moe(rules)[0] == "TRITON"
    assert len(problems) == 4
    assert "component is missing" in problems[0]
    assert "when: 'moon' is not a field" in problems[2]
    assert "another rule has this name" in problems[3]


def test_two_rules_of_the_user_that_contradict_each_other_leave_the_first() -> None:
    rules, read = with_rules(EXPERTS_RULE, {**EXPERTS_RULE, "id": "other", "backend": "DEEPGEMM"})
    assert moe(rules)[0] == "TRITON"
    assert "may both apply" in read.problems[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "Not A Name"}, "id: 'Not A Name' is not a name: use at most 63 lower-case letters"),
        ({"id": 7}, "id must be text: put 7 in quotes"),
        ({"priority": 5000}, "priority must be at most 100"),
        ({"when": {"architectures": "sm90"}}, "when.architectures[0]: 'sm90' is not an architecture; one looks like sm_90"),
        ({"when": {"attention": "Fast"}}, "when.attention[0]: 'Fast' does not exist; use one of GQA"),
        ({"when": {"environment": {"A": "("}}}, "'(' is not a regular expression: missing )"),
        ({"when": {"environment": {"A": "(?=a)"}}}, "is not a regular expression: invalid perl operator"),
        ({"when": {"environment": {"A": "x" * 300}}}, "when.environment.A: a regular expression must be at most 200 characters long"),
        ({"when": {"arguments": {"--a": 7}}}, "when.arguments.--a: 7 is not text; put it in quotes"),
        ({"when": {"environment": {f"A{n}": "x" for n in range(17)}}}, "when.environment must have at most 16 entries"),
        ({"environment": {"A": None}}, "environment.A must be text, not empty"),
        ({"environment": {"A B": "1"}}, "is not the name of a variable"),
        ({"arguments": {"max-num-seqs": "1"}}, "is not a flag; one looks like"),
        (
            {"arguments": {"--moe-backend": "triton"}, "when": {}},
            "0.11.0 does not have --moe-backend; limit the rule with when.versions",
        ),
        ({"environment": {"VLLM_NO_SUCH": "1"}}, "vLLM 0.20.0 does not have VLLM_NO_SUCH"),
        ({"speed": "high"}, "'speed' is not a field"),
        ({"kind": "choise"}, "kind: 'choise' does not exist (did you mean choice?)"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said_in_one_sentence(change: dict[str, Any], said: str) -> None:
    _rules, read = with_rules({**EXPERTS_RULE, **change})
    assert read.added == ()
    assert said in read.problems[0]
    assert read.problems[0].endswith("The rule is ignored.")


def test_texts_that_are_no_rules_leave_the_others() -> None:
    texts = {"a.yaml": yaml.safe_dump([EXPERTS_RULE]), "b.yaml": "a: b: c", "c.yaml": "just words", "d.yaml": ""}
    catalog, read = with_user_rules(known(), texts)
    assert read.added == ("our-experts-on-b200",)
    assert [problem.partition(":")[0] for problem in read.problems] == ["b.yaml", "c.yaml"]
    assert moe(catalog.rules)[0] == "TRITON"


def test_the_version_of_the_catalog_tells_the_rules_apart() -> None:
    one, _ = with_user_rules(known(), {"a": yaml.safe_dump([EXPERTS_RULE])})
    again, _ = with_user_rules(known(), {"a": yaml.safe_dump([EXPERTS_RULE])})
    other, _ = with_user_rules(known(), {"a": yaml.safe_dump([{**EXPERTS_RULE, "backend": "DEEPGEMM"}])})
    none, _ = with_user_rules(known(), {"a": "[]"})
    assert one.version == again.version
    assert len({one.version, other.version, none.version}) == 3
    assert none.version == known().version
    assert len(one.version) <= 64


def test_more_rules_than_can_be_asked_are_not_read() -> None:
    many = [{**EXPERTS_RULE, "id": f"rule-{number}", "priority": number % 100} for number in range(300)]
    _, read = with_user_rules(known(), {"a": json.dumps(many[:100]), "b": json.dumps(many[100:200]), "c": json.dumps(many[200:])})
    assert "only the first 256 are used" in read.problems[0]


def test_a_quirk_of_ours_beats_a_choice_of_the_user() -> None:
    desired = {**EXPERTS_RULE, "component": "AllToAll", "backend": "ALLGATHER_REDUCESCATTER", "when": {}}
    rules, _read = with_rules(desired)
    quirk = next(rule for rule in rules.rules if rule.id == "all-to-all-fp8-0.11")
    ours = next(rule for rule in rules.rules if rule.id == "our-experts-on-b200")
    assert rules.rules.index(quirk) < rules.rules.index(ours)


def test_a_pattern_of_a_user_takes_linear_time_whatever_it_is() -> None:
    when = {"environment": {"OUR_SETTING": "^(a+)+$"}, "arguments": {"--ours": "(x*)*y"}}
    rules, _read = with_rules({**EXPERTS_RULE, "when": when})
    [rule] = [rule for rule in rules.rules if rule.id == EXPERTS_RULE["id"]]
    situation = replace(SITUATION, environment={"OUR_SETTING": "a" * 4000 + "!"}, arguments={"--ours": "x" * 4000})
    began = time.perf_counter()
    assert not rule.when.holds(situation, {}, {})
    assert not rule.when.possible(situation, {})
    assert time.perf_counter() - began < 0.5
    assert rule.when.holds(replace(situation, environment={"OUR_SETTING": "aaa"}, arguments={"--ours": "xy"}), {}, {})


def test_a_very_long_value_is_unknown_to_patterns() -> None:
    rules, _read = with_rules({**EXPERTS_RULE, "when": {"environment": {"OUR_SETTING": "."}}})
    [rule] = [rule for rule in rules.rules if rule.id == EXPERTS_RULE["id"]]
    assert rule.when.holds(replace(SITUATION, environment={"OUR_SETTING": "a" * VALUE_LIMIT}), {}, {})
    assert not rule.when.holds(replace(SITUATION, environment={"OUR_SETTING": "a" * (VALUE_LIMIT + 1)}), {}, {})


def test_more_patterns_than_memory_is_given_for_are_not_read() -> None:
    when = {"environment": {f"A{number}": "x{1,50}" for number in range(16)}}
    many = [{**EXPERTS_RULE, "id": f"rule-{number}", "when": when, "priority": number} for number in range(40)]
    _rules, read = with_rules(*many)
    assert len(read.added) == 32
    assert all("the rules up to this one have more than 512 regular expressions" in problem for problem in read.problems)


def test_an_error_that_nobody_thought_of_costs_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: type[Rule], document: Mapping[Any, Any], **options: Any) -> Rule:
        if document["id"] == "second":
            raise AssertionError("unforeseen")
        return parse_entry(model, document, **options)

    monkeypatch.setattr(user_entries, "parse_entry", fails)
    _rules, read = with_rules({**EXPERTS_RULE, "id": "second"}, EXPERTS_RULE)
    assert read.added == (EXPERTS_RULE["id"],)
    assert read.problems == ("rule second: it cannot be read (AssertionError). The rule is ignored.",)


@pytest.mark.parametrize("versions", [">=0..1", ">=1", 0.2, "", ">=" + "9" * 5000, None, [], "9" * 5000 + ".1"])
def test_any_versions_are_read_or_refused(versions: Any) -> None:
    _rules, read = with_rules({**EXPERTS_RULE, "when": {"versions": versions}})
    assert len(read.added) + len(read.problems) == 1
    assert versions not in (">=0..1", "") or not read.added


FIELDS = [*EXPERTS_RULE, "environment", "arguments", "refuse", "warn", "priority"]
WORDS = ["sm_90", "sm90", "MoE", "quirk", "all", ">=0.20", "TRITON", "", "x" * 2000, "(", "--flag", "\x00"]
scalars = st.none() | st.booleans() | st.integers() | st.sampled_from(WORDS)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3), max_leaves=6)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(change=st.dictionaries(st.sampled_from(FIELDS), values, max_size=4))
def test_whatever_is_written_there_planning_works(change: dict[str, Any]) -> None:
    rules, read = with_rules({**EXPERTS_RULE, **change})
    assert len(read.added) + len(read.problems) == 1
    if read.added:
        moe(rules)


def test_a_plan_follows_the_rule_and_names_it() -> None:
    catalog, _ = with_user_rules(known(), {"a": yaml.safe_dump([EXPERTS_RULE])})
    outcome = plan(deployment("hf://deepseek-ai/DeepSeek-R1", parallelism={"tensor": 8}), inventory_of(real_node("b200")), catalog)
    assert outcome.plan is not None
    choice = next(choice for choice in outcome.plan.backends if choice.component == "MoE")
    assert (choice.backend, choice.source) == ("TRITON", "our-experts-on-b200: our benchmark of November")
    assert choice.reason == "We have tuned it for our shapes. The vLLM default is FLASHINFER_TRTLLM."
    assert outcome.plan.catalog_version == catalog.version
