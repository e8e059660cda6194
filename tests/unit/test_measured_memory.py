"""The memory that an engine logs at its start, beside what the estimate predicted."""

from dataclasses import replace
from typing import Any

import pytest

from support import observations as o
from support.gpus import real_node
from support.plans import deployment, made
from vllm_operator.api.plan import EngineMemory
from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import MeasuredMemory, Stage, StartupState
from vllm_operator.status.report import report

X1, Y2 = ("vllm-a-x1", 0), ("vllm-a-y2", 0)
SAID = "weights: 42.1 GiB, measured 41.7; KV cache: 20.0 GiB, measured 20.4"
NOTHING = None


def memory_of(*lines: str) -> MeasuredMemory:
    parser = StartupParser(load_startup())
    parser.feed("".join(f"(Worker_TP{rank} pid=20{rank}) INFO 11-21 09:32:2{rank} [a.py:1] {line}\n" for rank, line in enumerate(lines)))
    return parser.state.memory


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        ((), (None, None)),
        (("Model loading took 84.1200 GiB and 55.012345 seconds",), (84.12, None)),
        (("Model loading took 84.12 GiB memory and 55.01 seconds", "Available KV cache memory: 41.72 GiB"), (84.12, 41.72)),
        (("Model loading took 1.5 GiB", "Model loading took 1.75 GiB", "Model loading took 1.25 GiB"), (1.75, None)),
        (("Available KV cache memory: 41.72 GiB", "Available KV cache memory: 40.50 GiB"), (None, 40.5)),
        (("Model loading took ages", "Available KV cache memory: much", "Available KV cache memory"), (None, None)),
        (("Model loading took 99999999999999.9 GiB", "Available KV cache memory: 1e9 GiB"), (None, None)),
    ],
)
def test_the_fullest_gpu_counts(lines: tuple[str, ...], want: tuple[float | None, float | None]) -> None:
    assert memory_of(*lines) == MeasuredMemory(*want)


def started(weights: float | None = 41.7, kv_cache: float | None = 20.4) -> StartupState:
    return StartupState(stage=Stage.READY, last_line_at=o.at(0), started_at=o.at(-60), memory=MeasuredMemory(weights, kv_cache))


def observed(states: dict[tuple[str, int], StartupState], predicted: EngineMemory | None) -> Any:
    pods = [o.ready_pod(name) for name, _ in states]
    return o.observe(*pods, replicas=len(pods), states=states, outcome=o.outcome(plan=o.plan(memory=predicted)))


PREDICTED = EngineMemory(weights_mebibytes=43_110, kv_cache_mebibytes=20_480)


def shown(observation: Any) -> str | None:
    said = report(observation).status.engine
    return said.memory if said is not None else None


def test_the_status_has_predicted_and_measured_memory() -> None:
    assert shown(observed({X1: started()}, PREDICTED)) == SAID


def test_replicas_that_differ_do_not_make_the_status_change() -> None:
    one, two = {X1: started(), Y2: started(41.8, 19.9)}, {Y2: started(41.8, 19.9), X1: started()}
    assert shown(observed(one, PREDICTED)) == shown(observed(two, PREDICTED)) == SAID


def test_what_was_measured_stays_when_the_log_is_gone() -> None:
    first = observed({X1: started()}, PREDICTED)
    later = replace(o.after(first, report(first), seconds=60), startups={})
    assert shown(later) == SAID
    assert shown(replace(later, revision="vllm-a-another")) == NOTHING


@pytest.mark.parametrize("state", [started(None), started(kv_cache=None)])
def test_half_of_it_is_not_shown(state: StartupState) -> None:
    assert shown(observed({X1: state}, PREDICTED)) == NOTHING


def test_a_plan_without_a_prediction_shows_nothing() -> None:
    assert shown(observed({X1: started()}, None)) == NOTHING


def test_a_new_plan_has_the_prediction() -> None:
    memory = made(deployment("hf://meta-llama/Llama-3.3-70B-Instruct"), real_node("h100-sxm")).memory
    assert memory is not None
    assert memory.weights_mebibytes == pytest.approx(33 * 1024, rel=0.03)
    assert made(deployment("hf://acme/unheard-of"), real_node("h100-sxm")).memory is None
