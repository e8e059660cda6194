"""vLLM's start-up plan would keep the KV cache of a start that compiled: the operator does not set it, and warns those who do."""

from typing import Any

import pytest

from support.gpus import real_node
from support.plans import deployment, made
from vllm_operator.api.plan import Plan

VARIABLE = "VLLM_ENABLE_STARTUP_PLAN"


def planned(version: str, value: str | None = None) -> Plan:
    engine: dict[str, Any] = {"version": version}
    if value is not None:
        engine["env"] = [{"name": VARIABLE, "value": value}]
    return made(deployment(engine=engine), real_node("b200"))


@pytest.mark.parametrize("version", ["0.25.1", "0.26.0", "0.28.0", "0.33.0"])
def test_each_start_measures_the_memory_itself(version: str) -> None:
    assert VARIABLE not in [each.name for each in planned(version).env]


@pytest.mark.parametrize(
    ("version", "value", "is_warned"),
    [("0.25.1", "1", False), ("0.26.0", "1", True), ("0.33.0", "1", True), ("0.33.0", "0", False), ("0.33.0", None, False)],
)
def test_who_sets_it_is_told_what_it_does(version: str, value: str | None, is_warned: bool) -> None:
    warnings = [note for note in planned(version, value).notes if VARIABLE in note and "stays smaller" in note and "may hang" in note]
    assert bool(warnings) == is_warned
