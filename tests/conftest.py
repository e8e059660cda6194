"""Options and fixtures that every tier of tests shares."""

from collections.abc import Callable
from pathlib import Path

import celpy
import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure. `make test-exhaustive` looks longer, each night.
settings.register_profile("quick", max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=1000)
settings.load_profile("quick")

celpy.Environment()  # The first one raises the recursion limit, and Hypothesis fails a test during which the limit changes.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files instead of comparing with them")
    parser.addoption("--chaos-seeds", default="1", help="seeds of the chaos runs, separated by spaces (1)")
    parser.addoption("--chaos-seconds", type=float, default=20.0, help="how long things happen in each chaos run (20)")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with a golden file, or rewrite the file under `--update-golden`."""
    update = request.config.getoption("--update-golden")

    def check(path: Path, text: str) -> None:
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        assert path.exists(), f"{path} is missing; `make golden` writes it"
        assert text == path.read_text("utf-8"), f"{path.name} differs; if that is meant, run `make golden` and review the diff"

    return check
