"""Whatever is asked for: nothing is emitted that the version does not know, nothing chosen that does not work, nothing raises."""

import random
from collections.abc import Iterable

import pytest

from support.product import Case, cases, faults

SAMPLE = random.Random(20).sample(list(cases()), 500)
ALL = pytest.param(cases(), id="all", marks=[pytest.mark.exhaustive, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("product", [pytest.param(SAMPLE, id="sample"), ALL])
def test_every_decision_sets_only_what_its_version_knows_and_chooses_what_works(product: Iterable[Case]) -> None:
    assert {case: found for case in product if (found := faults(case, case.decide()))} == {}


def test_planning_again_gives_the_same() -> None:
    assert all(case.decide() == case.decide() for case in SAMPLE[:100])
