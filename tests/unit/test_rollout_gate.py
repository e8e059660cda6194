"""A new plan is measured against the current one before its rollout: the program, the comparison, and the gate on a cluster in memory."""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import speeds
from support.fleet import Fleet
from support.measured_runs import GATED, Gate
from support.operators import Bench
from support.tools import command
from vllm_operator.caches.measurement import MAX_PAIRS, GateRecord, Measurement, compare, is_decided, read_gate_record, read_measurement
from vllm_operator.kube.client import DEPLOYMENT

LOAD = {"input_tokens": 32, "output_tokens": 8, "concurrency": [1, 4], "seconds": 0.3}


def measure(port: int, folder: Path, *, key: str = "", **load: Any) -> dict[str, Any]:
    """Run the program as in a Pod; return its report."""
    settings = {"ready": {"scheme": "http", "port": port, "path": "/health"}, "model": "llama", "load": LOAD | load, "pause": 0.05}
    report = folder / "report"
    environment = {"MEASURE": json.dumps(settings), "ARTIFACT_REPORT": str(report), "PATH": os.environ["PATH"], "VLLM_API_KEY": key}
    subprocess.run(command("measure"), env=environment, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def test_the_program_measures_an_engine(tmp_path: Path) -> None:
    with speeds.serving(seconds_per_token=0.005, key="secret") as port:
        found = measure(port, tmp_path, key="secret")
    measured = read_measurement(found)
    assert found["result"] == "Measured", found
    assert measured is not None
    assert [load.clients for load in measured.loads] == [1, 4]
    assert measured.kv_tokens == 16_000
    assert measured.loads[0].token_ms >= 5
    assert measured.loads[1].rate > measured.loads[0].rate > 20
    assert len((tmp_path / "report").read_text()) < 4096, "the limit of a termination message"
    assert read_measurement(measured.to_json()) == measured


@pytest.mark.parametrize("seconds", [0.3, 0.4])
def test_the_rate_does_not_depend_on_where_the_last_answer_is_at_the_end(tmp_path: Path, seconds: float) -> None:
    """Most of an answer is the time to its first token, so the end is often before the tokens of the last one."""
    with speeds.serving(prefill=0.2) as port:
        [found] = measure(port, tmp_path, concurrency=[4], seconds=seconds)["loads"]
    assert found["rate"] == pytest.approx(4 * 8 * 1000 / (found["firstTokenMs"] + 7 * found["tokenMs"]), rel=0.15)


@pytest.mark.parametrize(
    ("server", "load", "want"),
    [
        pytest.param({"fails_at": 3}, {}, ("Failed", "EngineCore encountered an issue"), id="the engine dies with several clients"),
        pytest.param({}, {"input_tokens": 5000}, ("Unsupported", "maximum context length"), id="prompts that are too long"),
        pytest.param({"key": "secret"}, {}, ("Unsupported", "401"), id="a key that the program does not have"),
    ],
)
def test_the_program_says_why_an_engine_cannot_be_measured(
    tmp_path: Path, server: dict[str, Any], load: dict[str, Any], want: tuple[str, str]
) -> None:
    with speeds.serving(**server) as port:
        found = measure(port, tmp_path, **load)
    assert (found["result"], want[1] in found["message"]) == (want[0], True), found


FAULTS: dict[str, dict[str, Any]] = {
    "20 % fewer tokens per second": {"speed": 0.8},
    "wrong tokens": {"answers": "fedcba9876543210" * 12},
    "a start that takes twice as long": {"start": 60.0},
    "half of the KV cache": {"kv_tokens": 50_000},
}


def compared(seed: int, fault: dict[str, Any]) -> tuple[list[str], int]:
    """Measure both plans until it is decided; return what is worse, and the runs of each plan."""
    chosen = random.Random(seed)
    before, after = list[Measurement](), list[Measurement]()
    while True:
        after.append(speeds.run(chosen, **fault))
        before.append(speeds.run(chosen))
        figures = compare(before, after)
        if is_decided(figures, len(after)):
            return [figure.text for figure in figures if figure.is_worse], len(after)


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_plan_that_is_worse_is_held_in_each_of_200_rollouts(fault: str) -> None:
    results = [compared(seed, FAULTS[fault]) for seed in range(200)]
    assert all(worse for worse, _ in results)
    assert max(pairs for _, pairs in results) <= MAX_PAIRS


@pytest.mark.parametrize("change", [{}, {"speed": 1.3}, {"start": 20.0}], ids=["the same", "30 % faster", "a faster start"])
def test_a_plan_that_is_not_worse_is_held_in_none_of_200_rollouts(change: dict[str, Any]) -> None:
    assert not [worse for worse, _ in (compared(seed, change) for seed in range(200)) if worse]


REAL: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "corpus" / "measured" / "h200.json").read_text())
"""Reports of the program for vLLM 0.20.1, and in the last case 0.26.0, on H200 (docs/measured-rollouts.md), and which figures are worse."""


@pytest.mark.parametrize("case", REAL, ids=[case["name"] for case in REAL])
def test_a_difference_of_real_kernels_is_found_where_it_is(case: dict[str, Any]) -> None:
    before, after = ([read_measurement(run) for run in case[plan]["runs"]] for plan in ("before", "after"))
    record = GateRecord(against="0", load="", before=tuple(filter(None, before)), after=tuple(filter(None, after)))
    assert len(record.before) == len(record.after)
    assert [figure.name for figure in record.worse] == case["worse"]
    # two runs of each were enough, but for FLASHMLA and two versions, whose runs differ by 15 and 30 %
    assert record.is_over == (case["after"]["backend"] != "FLASHMLA")
    first = record.model_copy(update={"before": record.before[:2], "after": record.after[:2]})
    assert first.is_over == (case["after"]["backend"] not in ("FLASHMLA", "0.26.0"))


def test_one_slow_run_of_four_holds_no_rollout() -> None:
    """Its loss is over the limit in the mean, but within the variation of the same plan."""
    chosen = random.Random(1)
    before = [speeds.run(chosen, noise=0.0) for _ in range(MAX_PAIRS)]
    after = [speeds.run(chosen, noise=0.0, speed=speed) for speed in (0.55, 0.95, 0.95, 0.95)]
    assert max(figure.loss - figure.limit for figure in compare(before, after)) > 0
    assert not [figure.text for figure in compare(before, after) if figure.is_worse]


def test_the_size_of_the_kv_cache_is_known_only_where_the_engine_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "METRICS", 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="89351"} 1.0\n')
    with speeds.serving() as port:
        assert measure(port, tmp_path)["kvTokens"] is None


def test_what_is_worse_is_named_with_both_figures() -> None:
    worse, _ = compared(1, {"speed": 0.7, "noise": 0.0})
    assert any(text.endswith("% worse)") and "tokens per second with 32 clients instead of" in text for text in worse), worse


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"before": [{"loads": 3}], "after": "x"}', '{"before": [null]}', '{"against": 1e999}', "[" * 20_000]
)
def test_a_record_that_somebody_changed_is_no_comparison(text: str) -> None:
    record = read_gate_record(text)
    assert record is None or not (record.before or record.after or record.is_over)


@pytest.fixture
def gate(bench: Bench, fleet: Fleet) -> Gate:
    return Gate(bench, fleet)


async def test_a_new_plan_that_is_as_good_is_measured_in_turns_and_rolled_out(bench: Bench, gate: Gate) -> None:
    await gate.begin()
    runs = list[tuple[str, str]]()
    while (run := gate.run()) and len(runs) < 2 * MAX_PAIRS:
        assert gate.is_held()
        assert bench.condition("Ready").reason == "Measuring"
        runs.append((run, gate.version()))
        await gate.measured(noise=0.01)
    assert runs == [("0", "v0.24.0"), ("1", "v0.20.1"), ("2", "v0.24.0"), ("3", "v0.20.1")]
    assert not gate.is_held()
    assert gate.fleet.deployment("llama.primer") is None
    generation = (gate.fleet.deployment() or {})["metadata"].get("generation")
    bench.cluster.edit(DEPLOYMENT, "default", "llama", {"status": {"observedGeneration": generation}})
    await gate.fleet.settle()
    assert "not worse" in gate.event("Measured")


async def test_a_slower_plan_is_held_with_the_figures_and_the_way_out(bench: Bench, gate: Gate) -> None:
    await gate.begin()
    while gate.run():
        await gate.measured(noise=0.01, speed=0.7 if gate.version() == "v0.24.0" else 1.0)
    assert gate.is_held()
    assert gate.fleet.deployment("llama.primer") is None
    ready = bench.condition("Ready")
    assert (ready.status, ready.reason) == ("False", "RolloutHeld")
    for part in ("ms per token with 32 clients", "42% worse", "differ in the image, the backend of Sampler", "remove spec.rollout.gate"):
        assert part in ready.message, ready.message
    await gate.fleet.change(rollout={"gate": "None"})
    assert not gate.is_held(), "the way out of the message"


async def test_a_plan_that_fails_under_the_load_is_held(bench: Bench, gate: Gate) -> None:
    await gate.begin()
    await gate.ended({"result": "Failed", "message": "The engine broke off a request: CUDA out of memory"})
    assert gate.is_held()
    assert gate.fleet.deployment("llama.primer") is None
    assert "CUDA out of memory" in bench.message("Ready")


async def test_without_a_free_gpu_the_rollout_begins_and_says_that_nothing_was_compared(bench: Bench, gate: Gate) -> None:
    await gate.begin()
    pod = gate.fleet.start("llama.primer")
    gate.fleet.unschedulable(pod)
    await gate.fleet.settle()
    assert gate.is_held()
    bench.pass_time(120)
    await gate.fleet.settle()
    bench.pass_time(2)
    await gate.fleet.settle()
    assert not gate.is_held()
    assert "without a comparison" in gate.event("Measured")


async def test_a_restart_of_the_operator_repeats_no_run(bench: Bench, gate: Gate) -> None:
    await gate.begin()
    await gate.measured(noise=0.01)
    await gate.measured(noise=0.01)
    bench.restart()
    await gate.fleet.settle()
    assert gate.run() == "2"
    record = read_gate_record(gate.record())
    assert record is not None
    assert (len(record.before), len(record.after)) == (1, 1)


async def test_a_change_of_the_load_measures_again(gate: Gate) -> None:
    await gate.begin()
    await gate.measured(noise=0.01)
    await gate.fleet.change(rollout={"gate": "Measure", "workload": {"profile": "Batch"}})
    assert gate.run() == "0"
    await gate.measured(noise=0.01)
    assert gate.run() == "1", "the run was recorded where it is looked for"


async def test_a_current_plan_that_crashes_in_the_additional_pod_holds_nothing(bench: Bench, gate: Gate) -> None:
    await gate.begin()
    await gate.measured(noise=0.01)
    assert gate.version() == "v0.20.1"
    ended = {"waiting": {"reason": "CrashLoopBackOff"}}
    gate.fleet.show(gate.fleet.start("llama.primer"), state=ended, restarts=3)
    await gate.fleet.settle()
    bench.pass_time(2)
    await gate.fleet.settle()
    assert not gate.is_held()


async def test_the_first_rollout_is_not_measured(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(**GATED)
    assert fleet.deployment("llama.primer") is None
    assert fleet.replicas() == 1
