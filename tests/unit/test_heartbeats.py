"""Heartbeats, which an engine repeats while it waits, are no progress."""

from datetime import UTC, datetime, timedelta

import pytest

from vllm_operator.catalog.entry import read_data
from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser

BEGUN = datetime(2026, 11, 21, 14, 0, tzinfo=UTC)
HEARTBEATS = [f"{entry['sample']}\n".encode() for entry in read_data("stages.yaml")["heartbeats"]]


def parser() -> StartupParser:
    started = StartupParser(load_startup())
    started.feed(b"INFO 11-21 14:00:00 [gpu_model_runner.py:3000] Starting to load model org/model...\n", BEGUN)
    return started


@pytest.mark.parametrize("line", HEARTBEATS)
def test_a_heartbeat_does_not_move_the_time_of_the_last_sign_of_life(line: bytes) -> None:
    started = parser()
    for number in range(1, 50):
        started.feed(line, BEGUN + timedelta(seconds=10 * number))
    assert started.state.last_line_at == BEGUN
    assert started.state.lines == 50


def test_any_other_line_does() -> None:
    started = parser()
    started.feed(HEARTBEATS[0], BEGUN + timedelta(seconds=10))
    started.feed(b"INFO 11-21 14:00:20 [default_loader.py:1] Loading weights took 5.1 seconds\n", BEGUN + timedelta(seconds=20))
    assert started.state.last_line_at == BEGUN + timedelta(seconds=20)
