"""How often a log is read while more are wanted than may be open."""

import asyncio
from contextlib import ExitStack

import pytest

from vllm_operator.runtime.log_slots import Slots


@pytest.mark.parametrize(
    ("logs", "took", "want"),
    [
        pytest.param(300, 0.01, 6.0, id="an idle API server"),
        pytest.param(3000, 0.01, 20.0, id="too many logs for a turn"),
        pytest.param(300, 0.3, 9.0, id="a busy API server"),
        pytest.param(300, 30.0, 10.0, id="an API server or a kubelet that hardly answers"),
    ],
)
def test_logs_are_read_less_often_the_more_there_are_and_the_longer_a_read_takes(logs: int, took: float, want: float) -> None:
    slots = Slots(200)
    with ExitStack() as stack:
        for _ in range(logs):
            stack.enter_context(slots.want(asyncio.Event()))
        assert slots.pause_seconds(6.0, took) == pytest.approx(want)
