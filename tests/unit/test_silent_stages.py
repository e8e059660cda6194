"""How long a start may be silent: as long as the user allows, or as its stage is known to be silent if that is longer."""

import pytest

from support import observations as o
from vllm_operator.logs.state import Stage, StartupState
from vllm_operator.status.report import report

X1 = ("vllm-a-x1", 0)
SILENT_900 = StartupState(stage=Stage.KERNEL_WARMUP, stage_since=o.at(0), last_line_at=o.at(0))
"""Kernels are being warmed up, which may be silent for 900 s."""


@pytest.mark.parametrize(
    ("allowed", "seconds", "said"),
    [(300, 899, ""), (300, 900, "the 15 min that this stage may take"), (1200, 1200, "the 20 min that this stage may take")],
)
def test_the_longer_of_two_limits_counts(allowed: int, seconds: int, said: str) -> None:
    spec = {"startup": {"stallTimeoutSeconds": allowed}}
    seen = o.observe(o.starting_pod(since=0), states={X1: SILENT_900}, spec=spec, now=o.at(seconds))
    ready = next(c for c in report(seen).status.conditions if c.type == "Ready")
    assert (ready.reason == "NoProgress", said in ready.message) == (bool(said), True)


def test_a_silent_start_is_looked_at_when_its_limit_is_reached() -> None:
    seen = o.observe(o.starting_pod(since=0), states={X1: SILENT_900}, spec={"startup": {"stallTimeoutSeconds": 300}}, now=o.at(400))
    assert report(seen).requeue_after_seconds == 500
