"""Notes of a plan: the most severe comes first, in the plan and in the condition."""

import ast
import string
from pathlib import Path

import pytest
from pydantic import ValidationError

import vllm_operator
from support.gpus import real_node
from support.plans import deployment, made, planned
from vllm_operator.catalog.entry import read_data
from vllm_operator.catalog.notes import Note, Severity, order
from vllm_operator.catalog.rules import Rule
from vllm_operator.cli.imports.tables import load_tables
from vllm_operator.planning.pinning import digest_of_spec

PACKAGE = Path(vllm_operator.__file__).parent
GROUPS = (*read_data("notes.yaml").values(), read_data("import_texts.yaml"))
TEXTS = {name: text for group in GROUPS for name, text in group.items()}
WAYS_OUT = {*load_tables()["kinds without an engine"].becomes.values(), "running", "other"}
"""Texts whose name is a value: what to do about an object that an import cannot read."""
RULE = {"id": "x", "component": "Engine", "kind": "quirk", "because": "It is so.", "source": "here"}


def test_the_most_severe_comes_first_and_each_text_once() -> None:
    notes = [Note(severity, severity.value) for severity in reversed(Severity)]
    assert order([*notes, *notes]) == ["Failure", "Risk", "NoEffect", "Info"]


def test_notes_of_one_severity_keep_their_order() -> None:
    assert order([Note(Severity.RISK, "b"), Note(Severity.FAILURE, "c"), Note(Severity.RISK, "a")]) == ["c", "b", "a"]


def test_the_condition_begins_with_the_most_severe_note() -> None:
    """A setting without effect, a risk, an older driver, a version that was not given, and weights that do not fit."""
    variables = [{"name": "VLLM_USE_V1", "value": "1"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    insist = {"vllm-operator.dev/allow-unsupported": "true"}
    spec = deployment("hf://deepseek-ai/DeepSeek-V3", engine={"env": variables}, parallelism={"tensor": 1}, annotations=insist)
    outcome = planned(spec, real_node("h200"))
    assert outcome.plan is not None
    first = [
        "deepseek-ai/DeepSeek-V3 will probably run out of memory",
        "NVIDIA_VISIBLE_DEVICES is set",
        "vLLM 0.33.0 does not know the variable VLLM_USE_V1",
    ]
    assert [text for text, want in zip(outcome.plan.notes, first, strict=False) if not text.startswith(want)] == []
    assert "vLLM 0.33.0. Note: deepseek-ai/DeepSeek-V3 will probably run out of memory" in outcome.planned.message
    assert f"({len(outcome.plan.notes) - 1} more notes: kubectl vllm plan NAME.)" in outcome.planned.message


def test_a_rule_carries_the_severity_of_its_warning() -> None:
    assert Rule.model_validate({**RULE, "warn": "Careful.", "severity": "NoEffect"}).severity is Severity.NO_EFFECT
    assert Rule.model_validate({**RULE, "warn": "Careful."}).severity is Severity.RISK


@pytest.mark.parametrize("rule", [{"warn": "Careful.", "severity": "Fatal"}, {"refuse": "No.", "severity": "Risk"}, {"severity": ["Risk"]}])
def test_a_severity_that_does_not_exist_or_belongs_to_nothing_is_refused(rule: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Rule.model_validate({**RULE, **rule})


def test_a_user_sees_the_note_about_a_dense_model_with_its_name() -> None:
    notes = made(deployment(backends={"moe": "TRITON"}), real_node("h200")).notes
    assert "Llama-3.1-8B-Instruct has no experts, so spec.backends.moe has no effect. Remove it." in notes


def test_an_engine_that_serves_with_an_unknown_flag_keeps_its_plan_after_an_upgrade() -> None:
    resource = deployment(engine={"version": "0.20.1", "args": [{"name": "max-model-length", "value": "4096"}]})
    pinned = made(deployment(), real_node("h200")).model_copy(update={"spec_digest": digest_of_spec(resource.spec)})
    outcome = planned(resource, real_node("h200"), pinned=pinned)
    assert (outcome.plan, outcome.planned.reason) == (pinned, "PlanDrifted")
    assert "Did you mean --max-model-len?" in outcome.planned.message


def uses_of_texts() -> dict[str, set[frozenset[str]]]:
    """The values that the code passes to each text of `notes.yaml` and `import_texts.yaml`."""
    found: dict[str, set[frozenset[str]]] = {}
    for path in PACKAGE.rglob("*.py"):
        code = path.read_text("utf-8")
        if "vllm_operator.catalog.notes import" not in code:
            continue
        for call in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            if isinstance(call.func, ast.Name) and call.func.id in ("note", "say"):
                written = {str(each.value) for each in choices_of(call.args[0]) if isinstance(each, ast.Constant)}
                for name in written or WAYS_OUT:
                    found.setdefault(name, set()).add(frozenset(keyword.arg or "**" for keyword in call.keywords))
    return found


def choices_of(name: ast.expr) -> list[ast.expr]:
    return [name.body, name.orelse] if isinstance(name, ast.IfExp) else [name]


def fields_of(text: str) -> frozenset[str]:
    return frozenset(field.partition(".")[0] for _, field, _, _ in string.Formatter().parse(text) if field)


def test_each_text_is_used_with_exactly_its_values() -> None:
    assert len(TEXTS) == sum(map(len, GROUPS))
    assert uses_of_texts() == {name: {fields_of(text)} for name, text in TEXTS.items()}
