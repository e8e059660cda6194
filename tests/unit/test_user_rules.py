"""Rules from the owner of the cluster: they win over ours, and a broken one harms nobody."""

from support.backends import describe, knowledge
from vllm_operator.catalog.user_rules import add_user_rules
from vllm_operator.planning.backends import choose_backends

OURS = knowledge()[2]
TRITON = {
    "id": "our-own-choice",
    "component": "MoE",
    "kind": "choice",
    "when": {"versions": ">=0.20", "architectures": "sm_100", "quantizations": "FP8Block", "mixtureOfExperts": True},
    "backend": "TRITON",
    "because": "We have tuned it.",
    "source": "our benchmark",
}


def moe(rules):
    resolved, situation, _ = describe("hf://deepseek-ai/DeepSeek-R1", "0.20.1", "sm_100")
    decision = choose_backends(resolved, situation, rules)
    choice = next(choice for choice in decision.choices if choice.component == "MoE")
    return choice.backend, choice.chosen_by.value, {argument.name: argument.value for argument in decision.args}


def test_a_rule_of_the_user_beats_what_the_engine_does():
    rules, problems = add_user_rules(OURS, [TRITON])
    assert problems == ()
    assert moe(OURS)[:2] == ("FLASHINFER_TRTLLM", "Engine")
    assert moe(rules) == ("TRITON", "Rule", {"--moe-backend": "triton"})


def test_broken_rules_are_named_and_left_out_and_the_rest_is_used():
    broken = [{"id": "x"}, "nonsense", {**TRITON, "id": "y", "when": {"moon": "full"}}, {**TRITON, "id": "moe-int4-engine"}]
    rules, problems = add_user_rules(OURS, [*broken, TRITON])
    assert moe(rules)[0] == "TRITON"
    assert len(problems) == 4
    assert "component is missing" in problems[0]
    assert "unknown condition moon" in problems[2]
    assert "another rule of this name" in problems[3]


def test_two_rules_of_the_user_that_contradict_each_other_leave_the_first():
    rules, problems = add_user_rules(OURS, [TRITON, {**TRITON, "id": "other", "backend": "DEEPGEMM"}])
    assert moe(rules)[0] == "TRITON"
    assert "may both apply" in problems[0]
