"""Fixtures of the tests on a cluster in memory."""

import pytest

from support.fleet import Fleet
from support.operators import Bench


@pytest.fixture
def bench() -> Bench:
    """The operator's inside, everything real but the API server."""
    return Bench()


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    """What the controllers of that cluster would do, by hand."""
    return Fleet(bench)
