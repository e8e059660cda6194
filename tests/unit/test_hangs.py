"""When an engine hangs: recordings of vLLM, simulated days, and every kind of hang."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.hang_traces import RECORDINGS, SimulatedEngine, recorded
from vllm_operator.pods.tools import CHECK_PERIOD_SECONDS, HANG_PREFIX
from vllm_operator.tools import progress
from vllm_operator.tools.progress import Metrics, Sample, State, judge

HANGS = {"engine-stopped-busy": 6.2, "tp2-worker-stopped-busy": 9.6, "worker-stopped-idle": 13.0}
"""When a hang begins in a recording: at the signal, or at the first request after it."""
METRICS = RECORDINGS[0].parent / "metrics.txt"


def follow(samples: Iterable[Sample], state: State | None = None) -> tuple[float | None, float | None, State]:
    """When a hang is reported, when the engine is restarted, and the last state."""
    reported = restarted = None
    state = state or State()
    for sample in samples:
        state = progress.parse_state(progress.format_state(judge(state, sample)))  # as between two probes
        if progress.hangs(state) and reported is None:
            reported = sample.time
        if progress.needs_restart(state) and restarted is None:
            restarted = sample.time
    return reported, restarted, state


@pytest.mark.parametrize("offset", [0.0, 4.0, 8.0, 12.0])
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recordings_are_judged_as_they_are(path: Path, offset: float) -> None:
    begin = HANGS.get(path.stem)
    reported, restarted, _ = follow(recorded(path, period=15, offset=offset, hold=180 if begin is not None else 0))
    if begin is None:
        assert reported is None
    else:
        assert reported is not None
        assert restarted is not None
        assert 75 <= reported - begin <= 106  # the recording itself is off by up to a second
        assert 150 <= restarted - begin <= 181


@pytest.mark.parametrize("name", HANGS)
def test_a_stop_of_one_minute_is_no_hang(name: str) -> None:
    path = METRICS.parent / f"{name}.json"
    assert follow(recorded(path, period=15))[0] is None


def test_a_hang_that_begins_while_idle_is_invisible_without_load_tracking() -> None:
    samples = recorded(METRICS.parent / "worker-stopped-idle.json", period=15, hold=180)
    for sample in samples:
        sample.load = None
    assert follow(samples)[0] is None


def hours_of(hours: float, objects: int) -> None:
    for seed in range(objects):
        engine = SimulatedEngine(seed, ranks=1 + seed % 3)
        assert follow(engine.day(hours))[0] is None, f"alarm of the engine with seed {seed} at {engine.now}"


def test_simulated_hours_of_production_give_no_alarm() -> None:
    hours_of(24, 5)


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_simulated_day_of_100_engines_gives_no_alarm() -> None:
    hours_of(24, 100)


KINDS = ["busy", "one rank of three", "idle", "tokenizers", "as many clients as before", "first request"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(50))
def test_each_kind_of_hang_is_found_within_two_minutes(kind: str, seed: int) -> None:
    engine = SimulatedEngine(seed, ranks=3 if kind == "one rank of three" else 1)
    before = []
    for _ in engine.probes(engine.rng.uniform(60, 900)):
        if kind != "first request":
            engine._phase("light")
        before.append(engine.sample())
    if kind == "idle":
        engine.sees_waits = False
    if kind in ("idle", "tokenizers"):
        engine._quiet()
        for _ in engine.probes(60):
            before.append(engine.sample())
    begin = engine.now + engine.rng.uniform(0, 14)  # between two probes
    if kind == "as many clients as before":  # the requests that run are finished first
        engine.step(0, 0, 0)
        engine.arrived = [begin] * engine.load
    engine.hung = {0} if kind == "one rank of three" else set(range(engine.ranks))
    during: list[Sample] = []
    for _ in engine.probes(300):
        if kind == "one rank of three":
            for rank in (1, 2):
                engine.step(rank, 5, 0)
        else:
            number = 0 if kind == "as many clients as before" else engine.rng.randint(1, 3)
            engine.load += number
            engine.arrived += [begin if len(during) == 0 else engine.now] * number
        during.append(engine.sample())
    reported, restarted, _ = follow([*before, *during])
    assert reported is not None
    assert restarted is not None
    assert 70 <= reported - begin <= 108  # the periods differ by up to half a second
    assert 145 <= restarted - begin <= 185


def silent(seconds: float) -> list[Sample]:
    """A request that runs, and gives its first token after this time."""
    times = [0.0, *(15.0 * number for number in range(1, int(seconds / 15) + 1))]
    samples = [Sample(at, at, {"0": Metrics("1", 1)}) for at in times]
    return [*samples, Sample(times[-1] + 15, times[-1] + 15, {"0": Metrics("2", 1)})]


def test_an_engine_that_has_made_a_long_step_may_make_one_twice_as_long() -> None:
    _, _, state = follow(silent(90))
    assert progress.silence_limit(state) == 2 * 105  # the sign of life came within 15 s after 90 s
    shifted = [Sample(each.time + 200, each.clock, {"0": Metrics(f"x{each.ranks['0'].signs}", 1)}) for each in silent(180)]
    assert follow(shifted, state)[0] is None


def test_an_engine_does_not_learn_more_than_ten_minutes_from_a_hang_that_passed() -> None:
    _, _, state = follow(silent(7200))
    assert progress.silence_limit(state) == 1200


def test_requests_that_stay_counted_are_no_work() -> None:
    idle = [Sample(15.0 * number, 0, {"0": Metrics("0")}, 7) for number in range(40)]
    assert follow(idle)[0] is None


def idle_server(waits: list[list[float]], *, is_preparing: bool = False) -> list[Sample]:
    samples = []
    for number, each in enumerate(waits):
        sample = Sample(15.0 * number, 0, {"0": Metrics("0")}, 3)
        sample.waits, sample.is_preparing = each, is_preparing
        samples.append(sample)
    return samples


@pytest.mark.parametrize(
    ("waits", "is_preparing", "is_hang"),
    [
        ([[15.0 * number] for number in range(8)], False, True),
        ([[]] * 40, False, False),
        ([[7.0, 3.0], [1.0], [14.0]] * 12, False, False),
        ([[15.0 * number] for number in range(40)], True, False),
        ([[500.0], []] * 20, False, False),
    ],
    ids=["one waits", "idle connections", "others wait at each sample", "a tool runs or input is prepared", "it is answered"],
)
def test_a_client_that_waits_while_the_engine_is_idle_is_work(waits: list[list[float]], is_preparing: bool, is_hang: bool) -> None:
    samples = idle_server(waits, is_preparing=is_preparing)
    reported, _, state = follow(samples)
    assert (reported is not None) == is_hang
    if is_hang:
        assert progress.describe(state, samples[-1]).startswith(
            "Engine hangs: 1 request arrived, and nothing has reached the engine since "
        )


def test_after_a_frozen_node_or_a_start_silence_is_counted_anew() -> None:
    _, _, state = follow([Sample(15.0 * number, 0, {"0": Metrics("1", 1)}) for number in range(7)])
    assert progress.silence(state) == 90
    assert progress.silence(judge(state, Sample(1000, 0, {"0": Metrics("1", 1)}))) == 0


@pytest.mark.parametrize(
    ("ranks", "load", "expected"),
    [
        ({"0": Metrics("1", 3)}, 3, "3 requests are running, no token since 14:02:10 UTC; /health answers 200"),
        ({"0": Metrics("1", 1, 2)}, 3, "1 request is running and 2 are waiting, no token since 14:02:10 UTC; /health answers 200"),
        (
            {"0": Metrics("0"), "1": Metrics("1", 2)},
            None,
            "2 requests are running on rank 1, no token since 14:02:10 UTC; /health answers 200",
        ),
        ({"0": Metrics("0")}, 4, "4 requests arrived, and nothing has reached the engine since 14:02:10 UTC; /health answers 200"),
    ],
)
def test_a_hang_is_described_with_its_numbers(ranks: dict[str, Metrics], load: int | None, expected: str) -> None:
    clock = 14 * 3600 + 2 * 60 + 10
    idle = Sample(0, clock - 15, {name: Metrics(one.signs) for name, one in ranks.items()}, 0)
    state = judge(judge(State(), idle), Sample(15, clock, ranks, load))
    last = Sample(30, clock + 15, ranks, load)
    assert progress.describe(judge(state, last), last) == f"Engine hangs: {expected}"


def test_the_metrics_of_vllm_are_read() -> None:
    (rank, metrics), *others = progress.read_metrics(METRICS.read_text()).items()
    assert (rank, others) == ("0", [])
    assert (metrics.running, metrics.waiting, metrics.is_awake) == (1, 0, True)
    assert len(metrics.signs.split()) == 13  # 5 finished reasons


def test_each_rank_and_its_sleep_are_read() -> None:
    text = 'vllm:num_requests_running{engine="0",model_name="a"} 1.0\nvllm:num_requests_running{engine="1",model_name="a"} 2.0\n'
    text += (
        'vllm:engine_sleep_state{engine="1",sleep_state="awake"} 0.0\nvllm:engine_sleep_state{engine="1",sleep_state="discard_all"} 0.0\n'
    )
    found = progress.read_metrics(text)
    assert {rank: (one.running, one.is_awake) for rank, one in found.items()} == {"0": (1, True), "1": (2, False)}


@given(st.text() | st.builds(lambda name, rest: f"{name}{{{rest}", st.sampled_from(sorted(progress.SIGNS)), st.text()))
def test_any_text_can_be_read_as_metrics_and_as_a_state(text: str) -> None:
    progress.read_metrics(text)
    progress.parse_state(text)


def test_the_operator_recognizes_the_words_and_the_period_of_the_probe() -> None:
    assert (HANG_PREFIX, CHECK_PERIOD_SECONDS) == (progress.PREFIX, progress.PERIOD_SECONDS)
