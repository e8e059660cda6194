"""Several processes of one start draw bars at the same time: the one that is furthest behind counts, whoever is read last."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Progress, Stage, StartupState

KNOWLEDGE = load_startup()


def weights(done: int, *, process: str = "", total: int = 100, left: int = 30) -> str:
    """An update of the bar of the weights, as vLLM writes it: with a name up to 0.30, without one since."""
    head, percent = f"({process} pid=7) " if process else "", f"{done * 100 // total:3d}%"
    return f"{head}\rLoading safetensors checkpoint shards: {percent} Completed | {done}/{total} [00:09<00:{left:02d},  3.31it/s]\n"


def graphs(done: int, *, process: str = "", total: int = 35) -> str:
    head = f"({process} pid=7) " if process else ""
    return f"{head}\rCapturing CUDA graphs (decode, FULL): {done * 100 // total:3d}%|███  | {done}/{total} [00:03<00:04,  9.07it/s]\n"


def compiling(process: str) -> str:
    return f"({process} pid=7) INFO 11-21 09:32:30 [backends.py:1069] Using cache directory: /cache/rank_0_0 for vLLM's torch.compile\n"


def read(*chunks: str) -> StartupState:
    parser = StartupParser(KNOWLEDGE)
    for chunk in chunks:
        parser.feed(chunk)
    return parser.state


def done(state: StartupState) -> tuple[int, int] | None:
    return (state.progress.completed, state.progress.total) if state.progress is not None else None


A, B = "EngineCore_DP0", "EngineCore_DP1"
CASES: dict[str, tuple[list[str], tuple[int, int] | None]] = {
    "the slower core counts": ([weights(40, process=A), weights(10, process=B), weights(50, process=A)], (10, 100)),
    "one that is done leaves the other": ([weights(100, process=A), weights(30, process=B)], (30, 100)),
    "both are done": ([weights(100, process=A), weights(100, process=B)], (100, 100)),
    "another total is another share of the work": ([weights(40, process=A), weights(90, process=B, total=1000)], (90, 1000)),
    "the next bar of a process replaces its last": ([graphs(34, process=A), graphs(3, process=A), graphs(4, process=A)], (4, 35)),
    "a core that is a stage behind counts while the stage itself does not": (
        [weights(100, process=A), weights(30, process=B), compiling(A), weights(31, process=B)],
        (31, 100),
    ),
    "until it is done": ([compiling(A), weights(31, process=B), weights(100, process=B)], None),
    "and not once the stage counts": ([compiling(A), weights(31, process=B), graphs(1, process=A), weights(40, process=B)], (1, 35)),
    "without names a bar that goes back is another one": ([weights(n) for n in (10, 5, 20, 15, 30, 25)], (25, 100)),
    "without names a bar that is done makes room": ([weights(n) for n in (10, 5, 100, 60, 3)], (3, 100)),
    "an update that has lost its name is that of the only process that draws": (
        [weights(10, process=A), weights(20), weights(30, process=A)],
        (30, 100),
    ),
    "also if it is the last": ([weights(10, process=A), weights(20)], (20, 100)),
    "a bar whose name comes later is no other bar": ([weights(10), weights(20, process=A), weights(30, process=A)], (30, 100)),
    "a bar that gives way to another leaves blanks before the next": (
        [weights(10, process=A), weights(20, process=A).replace("\r", "  \r"), weights(30, process=A)],
        (30, 100),
    ),
    "one bar without a name is one bar": ([weights(n) for n in (10, 20, 30)], (30, 100)),
}


@pytest.mark.parametrize(("lines", "want"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("in_one_piece", [True, False], ids=["all at once", "line by line"])
def test_the_bar_that_is_furthest_behind_counts(lines: list[str], want: tuple[int, int] | None, in_one_piece: bool) -> None:
    assert done(read("".join(lines)) if in_one_piece else read(*lines)) == want


def test_the_time_left_is_that_of_the_slower_core() -> None:
    state = read(weights(40, process=A, left=10), weights(10, process=B, left=50), weights(60, process=A, left=5))
    assert state.progress == Progress(10, 100, "Loading weights", 50)


def test_what_is_ahead_enters_the_stage() -> None:
    state = read(weights(40, process=A), weights(10, process=B), compiling(A))
    assert (state.stage, done(state)) == (Stage.TORCH_COMPILE, None)


STEPS = st.lists(st.tuples(st.sampled_from((A, B, "EngineCore_DP2")), st.integers(0, 20)), min_size=1, max_size=30)
CUTS = st.lists(st.integers(0, 3000), max_size=6)


def advance(steps: Sequence[tuple[str, int]]) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Every process counts up by what it is given, at most to 100."""
    counts: dict[str, int] = {}
    updates = []
    for process, step in steps:
        counts[process] = min(100, counts.get(process, 0) + step)
        updates.append((process, counts[process]))
    return updates, counts


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({min(place, len(text)) for place in places})
    return [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(STEPS, CUTS)
def test_however_the_processes_take_turns_the_slowest_counts(steps: list[tuple[str, int]], cuts: list[int]) -> None:
    updates, counts = advance(steps)
    text = "".join(weights(count, process=process) for process, count in updates)
    assert done(read(*cut(text, cuts))) == (min(counts.values()), 100)


@given(STEPS, CUTS)
def test_without_names_it_makes_no_difference_where_a_stream_is_cut(steps: list[tuple[str, int]], cuts: list[int]) -> None:
    updates, counts = advance(steps)
    text = "".join(weights(count) for _, count in updates)
    assert read(*cut(text, cuts)) == read(text)
    shown = done(read(text))
    assert shown is not None
    assert shown[0] <= max(counts.values())
