"""The race of backends: its decisions from its record, with engines of known speed."""

import json
import random
from datetime import UTC, datetime
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest

from support import speeds
from support.gpus import inventory_of, real_node
from support.plans import deployment
from vllm_operator.api.labels import RACE_RECORD_ANNOTATION
from vllm_operator.api.spec import OptimizeFor
from vllm_operator.caches.measurement import MAX_PAIRS, Entrant, LoadFigures, Measurement, RaceRecord, RunEnd, read_race
from vllm_operator.caches.race import with_entrant, with_results
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.catalog.rules import Rivals
from vllm_operator.planning.planner import plan

Speeds = tuple[dict[str, Any], ...]


def new_race(count: int, *, optimize_for: OptimizeFor = "Throughput") -> RaceRecord:
    names = ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"][:count]
    entrants = tuple(Entrant(component="Attention" if index else None, backend=name) for index, name in enumerate(names))
    when = {"versions": "==0.20.1", "architectures": "sm_90"}
    return RaceRecord(
        key="1",
        load="prompts",
        optimize_for=optimize_for,
        when=when,
        started=datetime(2026, 11, 1, tzinfo=UTC),
        entrants=entrants,
    )


def held(seed: int, engines: Speeds, *, optimize_for: OptimizeFor = "Throughput") -> tuple[RaceRecord, list[int]]:
    """Run a race to its end, each time from the record as read; return the record and which entrants ran."""
    chosen, ran, record = random.Random(seed), list[int](), new_race(len(engines), optimize_for=optimize_for)
    while (number := record.next_entrant) is not None:
        assert record.winner is None
        ran.append(number)
        kept = {
            RACE_RECORD_ANNOTATION: record.with_result(speeds.run(chosen, **engines[number])).model_dump_json(
                by_alias=True, exclude_defaults=True
            )
        }
        again = read_race({"metadata": {"annotations": kept}})
        assert again is not None
        record = again
    return record, ran


def fastest(speed: float) -> tuple[dict[str, Any], ...]:
    return {}, {"speed": 0.9}, {"speed": speed}


@pytest.mark.parametrize("speed", [1.2, 1.8])
def test_the_fastest_wins_each_of_60_races(speed: float) -> None:
    races = [held(seed, fastest(speed)) for seed in range(60)]
    assert {record.winner.backend if record.winner else None for record, _ in races} == {"TRITON_ATTN"}
    assert sum(len(ran) for _, ran in races) / len(races) < 6


@pytest.mark.parametrize("engines", [({}, {}, {}), ({}, {}, {}, {}), ({}, {"speed": 0.97}, {"speed": 0.8})], ids=["2", "3", "slower"])
def test_backends_that_are_equal_within_the_noise_have_no_winner_in_any_of_60_races(engines: Speeds) -> None:
    races = [held(seed, engines) for seed in range(60)]
    assert not [record.winner for record, _ in races if record.winner is not None]
    assert max(ran.count(number) for _, ran in races for number in ran) <= MAX_PAIRS


def test_random_races_pin_nothing_that_is_slower() -> None:
    chosen = random.Random(7)
    for seed in range(60):
        engines = [{"speed": chosen.uniform(0.5, 2.0)} if number else {} for number in range(4)]
        winner = held(seed, tuple(engines))[0].winner
        best = max(engine.get("speed", 1.0) for engine in engines)
        if winner is None:
            assert best < 1.2
        else:
            number = [entrant.backend for entrant in new_race(4).entrants].index(winner.backend)
            assert engines[number]["speed"] > max(1.0, 0.9 * best)


def test_the_default_runs_twice_and_all_others_before_it_runs_again() -> None:
    _, ran = held(1, ({"noise": 0.01}, {"speed": 0.8, "noise": 0.01}, {"speed": 0.7, "noise": 0.01}))
    assert ran == [0, 1, 2, 0], "nothing was faster"
    _, ran = held(1, ({"noise": 0.01}, {"speed": 0.8, "noise": 0.01}, {"speed": 1.5, "noise": 0.01}))
    assert ran == [0, 1, 2, 0, 2]


@pytest.mark.parametrize(
    ("engine", "why"), [({"answers": "fedcba9876543210" * 12}, "wrong answers"), ({"kv_tokens": 50_000}, "half of the KV cache")]
)
def test_a_fast_backend_does_not_win_with(engine: dict[str, Any], why: str) -> None:
    record, _ = held(1, ({}, {"speed": 2.0} | engine, {"speed": 1.5}))
    assert record.winner is not None
    assert record.winner.backend == "TRITON_ATTN", why


REAL: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "corpus" / "measured" / "h200-races.json").read_text())
"""Runs of vLLM 0.26.0 on H200 (docs/measured-rollouts.md). The first two races counted tokens per second up to a fixed moment."""
EQUAL = [case for case in REAL if "winner" not in case]
WON = [case for case in REAL if "winner" in case]


def whole_answers(run: Measurement, tokens: int) -> Measurement:
    def rate(load: LoadFigures) -> float:
        return load.clients * tokens * 1000 / (load.first_token_ms + (tokens - 1) * load.token_ms)

    return run.model_copy(update={"loads": tuple(load.model_copy(update={"rate": rate(load)}) for load in run.loads)})


@pytest.mark.parametrize("is_whole", [False, True], ids=["as counted then", "from whole answers"])
@pytest.mark.parametrize("case", EQUAL, ids=[case["name"] for case in EQUAL])
def test_real_kernels_within_the_noise_have_no_winner_in_whatever_order_they_ran(case: dict[str, Any], *, is_whole: bool) -> None:
    default, *others = (Entrant.model_validate(it) for it in case["entrants"])
    choices: list[list[tuple[Measurement, ...]]] = [[*permutations(default.runs, 2)]]
    choices += [[(run,) for run in it.runs] or [()] for it in others]
    for chosen in product(*choices):
        runs = [tuple(whole_answers(run, case["outputTokens"]) if is_whole else run for run in each) for each in chosen]
        entrants = tuple(it.model_copy(update={"runs": each}) for it, each in zip((default, *others), runs, strict=True))
        record = new_race(1).model_copy(update={"entrants": entrants})
        assert (record.next_entrant, record.winner) == (None, None), "each candidate once and the default twice were enough"


def test_the_faster_of_real_kernels_wins_each_race_in_whatever_order_its_runs_are_taken() -> None:
    default, other = ([Entrant.model_validate(case["entrants"][number]) for case in WON] for number in (0, 1))
    runs = [[run for entrant in each for run in entrant.runs] for each in (default, other)]
    for of_default, of_other in product(permutations(runs[0], 2), permutations(runs[1], 2)):
        entrants = (default[0].model_copy(update={"runs": ()}), other[0].model_copy(update={"runs": ()}))
        record, left = new_race(1).model_copy(update={"entrants": entrants}), [list(of_default), list(of_other)]
        while (number := record.next_entrant) is not None:
            record = record.with_result(left[number].pop(0))
        assert record.winner is not None, "two runs of each were enough"
        assert record.winner.backend == WON[0]["winner"]


def test_latency_counts_the_speed_for_one_client() -> None:
    for optimize_for, name in (("Throughput", "with 32 clients"), ("Latency", "with 1 client.")):
        record, _ = held(1, ({}, {"speed": 1.5}), optimize_for=optimize_for)  # type: ignore[arg-type]  # a literal in a loop
        assert record.winner is not None
        assert name in record.to_rule(record.winner)["because"]


def test_a_backend_that_crashes_is_out_with_its_diagnosis() -> None:
    record = new_race(2).with_result(speeds.run(random.Random(1))).with_result(RunEnd("CUDA out of memory.", is_failure=True))
    assert (record.next_entrant, record.winner) == (None, None), "there is nothing to compare"
    assert record.entrants[1].failure == "CUDA out of memory."


def test_without_the_default_there_is_no_race() -> None:
    record = new_race(2).with_result(RunEnd("It crashes.", is_failure=True))
    assert (record.next_entrant, record.winner, record.skipped) == (None, None, "It crashes.")


def test_figures_of_another_load_are_not_compared() -> None:
    one = speeds.run(random.Random(1), speed=2.0)
    other = one.loads[0].model_copy(update={"clients": 5})
    record = new_race(2).with_result(speeds.run(random.Random(1))).with_result(one.model_copy(update={"loads": (other,)}))
    assert (record.next_entrant, record.winner) == (None, None)


def test_the_winner_is_a_rule_that_says_what_was_measured() -> None:
    record, _ = held(3, ({"noise": 0.0}, {"speed": 1.5, "noise": 0.0}))
    assert record.winner is not None
    rule = record.to_rule(record.winner)
    assert rule["because"] == "Measured: 1.50 times the default, 2,036 tokens per second with 32 clients."
    assert (rule["component"], rule["backend"], rule["source"]) == ("Attention", "FLASHINFER", "race of 2026-11-01, prompts")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"entrants": []}', '{"key": 1, "entrants": [{"runs": [null]}]}', "[" * 20_000])
def test_a_record_that_somebody_changed_is_no_race(text: str) -> None:
    revision = {"metadata": {"annotations": {RACE_RECORD_ANNOTATION: text}}}
    assert read_race(revision) is None


def rivals(*uri: str, version: str = "0.20.1", load_format: str | None = None, **backends: str) -> Rivals | None:
    args = [{"name": "load-format", "value": load_format}] if load_format else []
    resource = deployment(*uri, engine={"version": version, "args": args}, backends=backends)
    return plan(resource, inventory_of(real_node("h100-sxm")), with_results(load_catalog(), resource, ())).rivals


def test_rivals_are_backends_that_work_where_the_user_pins_none() -> None:
    found, pinned = rivals(tuning="Measure"), rivals(tuning="Measure", attention="FLASH_ATTN")
    assert found is not None
    assert found.backends[:2] == [("Attention", "FLASHINFER"), ("Attention", "TRITON_ATTN")]
    assert (found.when["architectures"], found.when["versions"]) == ("sm_90", "==0.20.1")
    assert pinned is not None
    assert pinned.backends == []
    assert rivals() is None, "nobody asks for a race"


@pytest.mark.parametrize("load_format", ["runai_streamer", "dummy"])
def test_how_weights_are_loaded_changes_no_rival(load_format: str) -> None:
    found = rivals("hf://Qwen/Qwen2.5-72B-Instruct-AWQ", version="0.26.0", load_format=load_format, tuning="Measure")
    assert found is not None
    assert [name for component, name in found.backends if component == "GEMM"] == ["MARLIN", "TRITON"]


def test_nothing_races_that_cannot_be_faster() -> None:
    """vLLM's selectors accept more: backends for heads of two sizes, for packages that no image has, and for other formats of weights."""
    found = rivals(version="0.26.0", tuning="Measure")
    assert found is not None
    assert found.backends == [("Attention", "FLASHINFER"), ("Attention", "TRITON_ATTN"), ("Attention", "FLEX_ATTENTION")]


@pytest.mark.parametrize(("backend", "want"), [("FLASHINFER", "FLASHINFER"), ("FLASHMLA", "FLASH_ATTN"), ("NO_SUCH", "FLASH_ATTN")])
def test_a_plan_follows_a_result_only_if_its_backend_works(backend: str, want: str) -> None:
    record = new_race(1)
    catalog = with_entrant(load_catalog(), record, Entrant(component="Attention", backend=backend))
    outcome = plan(deployment(), inventory_of(real_node("h100-sxm")), catalog)
    assert outcome.plan is not None
    assert next(choice.backend for choice in outcome.plan.backends if choice.component == "Attention") == want


@pytest.mark.parametrize("changed", [{"component": "Anything"}, {"backend": "a b"}])
def test_a_result_that_somebody_changed_is_no_rule(changed: dict[str, str]) -> None:
    entrant = Entrant.model_validate({"component": "Attention", "backend": "FLASHINFER", **changed})
    assert with_entrant(load_catalog(), new_race(1), entrant) is load_catalog()
    hostile = new_race(1).model_copy(update={"when": {"environment": {"A": "(a+)+$", "B": "("}}})
    assert with_entrant(load_catalog(), hostile, Entrant(component="Attention", backend="FLASHINFER")) is load_catalog()
