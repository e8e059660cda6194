"""Whatever is asked for: nothing is emitted that the version does not know, nothing chosen that does not work, nothing raises."""

import random

import pytest

from support.product import Case, cases, faults

SAMPLE = 1500
"""Points of the product that the unit suite looks at; `hack/bench/plan_product.py` looks at all of them."""


@pytest.fixture(scope="module")
def sample() -> list[Case]:
    return random.Random(20).sample(list(cases()), SAMPLE)


def test_every_decision_sets_only_what_its_version_knows_and_chooses_what_works(sample):
    wrong = {case: found for case in sample if (found := faults(case, case.decide()))}
    assert wrong == {}


def test_planning_again_gives_the_same(sample):
    assert all(case.decide() == case.decide() for case in sample[:200])
