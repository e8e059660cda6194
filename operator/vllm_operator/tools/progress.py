"""Whether an engine hangs: it has work and makes no progress. Decided from samples of its metrics, one every `PERIOD_SECONDS`.

Metrics of a hung engine stand still, and `/health` answers 200 (seen with vLLM 0.32.0). A sign of life of a rank is any change of `SIGNS`:
tokens move in each decoding step, the use of the KV cache also in the steps of a long prefill. A rank has work if requests run or wait.
If a hang begins while the engine is idle, requests that arrive do not reach the metrics of the engine. `/load` counts them, if the server
tracks its load. Its absolute value proves nothing, because clients that disconnect may stay counted. So one of them must have waited for
an answer for as long (`connections.py`). Where that is not known, they are the requests by which the load has grown since the last sign of
life.

Silence counts while there is work, the engine neither sleeps nor is paused, and no kernel is compiled. It is reported when it is longer
than `REPORT_SECONDS` and than twice the longest silence that ended with a sign of life, because one step of this engine may take long.

The program that samples starts anew each time, and an import costs it CPU time: no dataclasses, collections, typing, json or re here.
"""

import time

PERIOD_SECONDS = 15
REPORT_SECONDS = 85
"""Reached after six periods, even if they are a little short. The last sign of life came up to one period before, and it takes up to ten
seconds to find out which process hangs: less than 120 s."""
RESTART_SECONDS = 75
"""Further seconds until a restart."""
MAX_GAP_SECONDS = 45
"""Maximum seconds between samples. After a longer gap, a start or a frozen node, silence is counted anew."""
LEARNED_FACTOR = 2
MAX_LEARNED_SECONDS = 600
"""Maximum of `longest`, so that a hang that ended by itself does not hide the next one."""
SERVER = ""
"""Name of an additional rank, for requests that have not reached the engine."""
PREFIX = "Engine hangs: "
"""Beginning of a description. The operator recognizes it in the event of a failed probe, and in a termination message."""

RUNNING, WAITING, SLEEP = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:engine_sleep_state"
SIGNS = frozenset(
    {
        RUNNING,
        WAITING,
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",  # its name before 0.12
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:iteration_tokens_total_count",
        "vllm:num_preemptions_total",
        "vllm:request_success_total",
        "vllm:estimated_flops_per_gpu_total",
    }
)


class Metrics:
    """Metrics of one rank: the values of `SIGNS` as text, the requests, and whether it is awake."""

    __slots__ = ("is_awake", "running", "signs", "waiting")

    def __init__(self, signs: str = "", running: int = 0, waiting: int = 0, *, is_awake: bool = True) -> None:
        self.signs, self.running, self.waiting, self.is_awake = signs, running, waiting, is_awake


class Sample:
    """What was read at `time` (seconds of a monotonic clock) and `clock` (Unix time). `load` is None if the server does not track it.

    `waits`: for how many seconds clients have waited for an answer, if known. `is_preparing`: requests may take long to reach the engine.
    """

    __slots__ = ("clock", "is_compiling", "is_paused", "is_preparing", "load", "ranks", "time", "waits")

    def __init__(self, time: float, clock: float, ranks: dict[str, Metrics], load: int | None = None) -> None:
        self.time, self.clock, self.ranks, self.load = time, clock, ranks, load
        self.is_paused = self.is_compiling = self.is_preparing = False
        self.waits: list[float] | None = None

    def has_work(self) -> bool:
        """Return whether the engine knows of a request."""
        return any(one.running + one.waiting for one in self.ranks.values())


class Rank:
    """The progress of a rank: whether it has work, and since when (Unix time) and for how many seconds it has been silent with it."""

    __slots__ = ("is_busy", "signs", "silent", "since")

    def __init__(self, signs: str, is_busy: bool, since: float, silent: float = 0.0) -> None:
        self.signs, self.is_busy, self.since, self.silent = signs, is_busy, since, silent


class State:
    """What is kept from one sample to the next.

    `longest`: longest silence in seconds that ended with a sign of life. `load`: minimum load since the last sign of life.
    `description`: text about the hang; empty without one. `failures`: how often in a row the server has not answered.
    """

    __slots__ = ("description", "failures", "load", "longest", "ranks", "time")

    def __init__(self, time: float = 0.0, longest: float = 0.0, load: int = 0, failures: int = 0, description: str = "") -> None:
        self.time, self.longest, self.load, self.failures, self.description = time, longest, load, failures, description
        self.ranks: dict[str, Rank] = {}


def read_metrics(text: str) -> dict[str, Metrics]:
    """Return the metrics of each rank from the Prometheus text format. Lines of another form are skipped."""
    found: dict[str, Metrics] = {}
    for line in text.splitlines():
        name, brace, rest = line.partition("{")
        if not brace or (name not in SIGNS and name != SLEEP):
            continue
        labels, _, number = rest.rpartition("} ")
        rank = labels.partition('engine="')[2].partition('"')[0][:16] or "0"
        try:
            value = int(float(number))
        except (ValueError, OverflowError):
            continue
        one = found.setdefault(rank, Metrics())
        if name == SLEEP:
            one.is_awake &= value != 0 or 'sleep_state="awake"' not in labels
            continue
        one.signs += f" {number}"
        if name == RUNNING:
            one.running = value
        elif name == WAITING:
            one.waiting = value
    return found


def judge(state: State, sample: Sample) -> State:
    """Return the state after a sample. `description` and `failures` are kept."""
    gap = sample.time - state.time
    step = gap if 0 <= gap <= MAX_GAP_SECONDS else None
    everything = "".join(one.signs for _, one in sorted(sample.ranks.items()))
    load, server = sample.load or 0, state.ranks.get(SERVER)
    judged = State(sample.time, state.longest, load, state.failures, state.description)
    if server is not None and server.signs == everything:
        judged.load = min(load, state.load)
    is_awake = any(one.is_awake for one in sample.ranks.values())
    seen = {name: (one.signs, one.is_awake and one.running + one.waiting > 0) for name, one in sample.ranks.items()}
    wait = None if sample.waits is None else max(sample.waits, default=0.0)
    seen[SERVER] = (everything, is_awake and (load > judged.load if wait is None else load > 0 and wait > 0))
    for name, (signs, has_work) in seen.items():
        before, is_busy = state.ranks.get(name), has_work and not sample.is_paused
        if step is None or before is None or signs != before.signs or not (is_busy and before.is_busy):
            judged.ranks[name] = Rank(signs, is_busy, sample.clock)
            if step is not None and before is not None and before.silent and signs != before.signs:
                judged.longest = max(judged.longest, min(before.silent + step, MAX_LEARNED_SECONDS))
        else:
            is_server = name == SERVER
            silent = before.silent + (0.0 if sample.is_compiling or (is_server and sample.is_preparing) else step)
            if is_server and wait is not None:  # different clients may have waited at the last samples, each for a moment
                silent = min(silent, wait)
            judged.ranks[name] = Rank(signs, is_busy, before.since, silent)
    return judged


def silence(state: State) -> float:
    """Return the longest silence of a rank in seconds."""
    return max((rank.silent for rank in state.ranks.values()), default=0.0)


def silence_limit(state: State) -> float:
    """Return the silence in seconds that is reported."""
    return max(REPORT_SECONDS, LEARNED_FACTOR * state.longest)


def hangs(state: State) -> bool:
    """Return whether the engine hangs."""
    return silence(state) >= silence_limit(state)


def needs_restart(state: State) -> bool:
    """Return whether the engine has hung for so long that only a restart helps."""
    return silence(state) >= silence_limit(state) + RESTART_SECONDS


def describe(state: State, sample: Sample) -> str:
    """Return what hangs since when, in one line that stays the same while it hangs."""
    name, rank = max(state.ranks.items(), key=lambda each: each[1].silent)
    since = time.strftime("%H:%M:%S UTC", time.gmtime(rank.since))
    if name == SERVER:
        number = sum(wait >= rank.silent for wait in sample.waits) if sample.waits else (sample.load or 0) - state.load
        return f"{PREFIX}{_requests(number)} arrived, and nothing has reached the engine since {since}; /health answers 200"
    one = sample.ranks[name]
    waiting = f" and {one.waiting} {'is' if one.waiting == 1 else 'are'} waiting" if one.waiting else ""
    of_rank = f" on rank {name}" if len(sample.ranks) > 1 else ""
    verb = "is" if one.running == 1 else "are"
    return f"{PREFIX}{_requests(one.running)} {verb} running{waiting}{of_rank}, no token since {since}; /health answers 200"


def _requests(number: int) -> str:
    return f"{number} request{'' if number == 1 else 's'}"


def format_state(state: State) -> str:
    """Return a state as text."""
    lines: list[tuple[object, ...]] = [(state.time, state.longest, state.load, state.failures, state.description)]
    lines += [(name, rank.signs, int(rank.is_busy), rank.since, rank.silent) for name, rank in state.ranks.items()]
    return "".join("\t".join(map(str, line)) + "\n" for line in lines)


def parse_state(text: str) -> State:
    """Return the state in a text of `format_state`; an empty one if it is none."""
    try:
        (time_, longest, load_, failures, description), *lines = (line.split("\t") for line in text.splitlines())
        state = State(float(time_), float(longest), int(load_), int(failures), description)
        for name, signs, is_busy, since, silent in lines:
            state.ranks[name] = Rank(signs, is_busy == "1", float(since), float(silent))
    except ValueError:
        return State()
    return state
