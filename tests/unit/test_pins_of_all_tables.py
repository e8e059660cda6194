"""For every pin, planning agrees with what vLLM's own selectors answer: all versions, GPUs and number formats that a table has."""

import pytest

from support.questions import disagreements, sample
from vllm_operator.catalog.rule_matching import Component

EACH = 120
MANY = 4_000
COMPONENTS = (
    Component.ATTENTION,
    Component.MLA_DECODE,
    Component.SPARSE_ATTENTION,
    Component.MLA_PREFILL,
    Component.GEMM,
    Component.MOE,
)
THOROUGH = [pytest.mark.exhaustive, pytest.mark.timeout(900)]


@pytest.mark.parametrize("count", [pytest.param(EACH, id="sample"), pytest.param(MANY, id="many", marks=THOROUGH)])
@pytest.mark.parametrize("component", COMPONENTS)
def test_what_is_planned_is_what_the_selector_answers(component: Component, count: int) -> None:
    asked = sample(component, count)
    found = {(question.version, question.architecture, question.case): wrong for question in asked if (wrong := disagreements(question))}
    assert found == {}


@pytest.mark.parametrize("component", COMPONENTS)
def test_most_cases_of_a_table_can_be_posed(component: Component) -> None:
    answered = sum(question.selection() is not None for question in sample(component, 300))
    assert answered > (120 if component is Component.MOE else 290)
