"""Samples of engines for the rule of `tools/progress.py`: recordings of vLLM 0.32.0, and simulated engines.

The simulation does not use the rule. It moves the metrics as vLLM does: tokens at each step that gives one, the use of the KV cache at
each step of a long prefill, requests only when the engine has made a step, `/load` when a request arrives or ends.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from vllm_operator.tools.progress import Metrics, Sample

RECORDINGS = sorted((Path(__file__).parent.parent / "corpus" / "hangs").glob("*.json"))


def recorded(path: Path, *, period: float, offset: float = 0.0, hold: float = 0.0) -> list[Sample]:
    """The samples of a recording, one every `period` seconds from `offset` on. `hold`: repeat the last one with work in a hang so long."""
    samples: list[Sample] = []
    due = offset
    read = json.loads(path.read_text())
    stops = [at for name, _, at in read["signals"] if name == "SIGCONT"]
    shift = 0.0
    for at, health, load, *metrics in read["samples"]:
        if stops and at > stops[0] and hold and not shift:  # the hang goes on
            for extra in range(int(hold / period)):
                last = samples[-1]
                samples.append(Sample(last.time + period, last.clock + period, last.ranks, last.load))
                shift = (extra + 1) * period
        if at < due or health != 200 or not metrics:
            continue
        due = at + period
        signs = " ".join(map(str, metrics[:-1]))
        ranks = {"0": Metrics(signs, metrics[0], metrics[1], is_awake=metrics[-1] != 0)}
        samples.append(Sample(at + shift, at + shift, ranks, load))
    return samples


@dataclass
class SimulatedEngine:
    """An engine with ranks whose state is known at any time. Times are seconds."""

    seed: int
    ranks: int = 1
    rng: Random = field(init=False)
    now: float = 0.0
    tokens: list[int] = field(init=False)
    cache: list[int] = field(init=False)
    shown: list[tuple[int, int]] = field(init=False)  # running and waiting requests of the last step, by rank
    load: int = 0
    leaked: int = 0
    is_awake: bool = True
    is_paused: bool = False
    is_compiling: bool = False
    is_in_chunk: bool = False
    hung: set[int] = field(default_factory=set)
    sees_waits: bool = True
    arrived: list[float] = field(default_factory=list)  # times of the requests that have not reached the engine

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.tokens, self.cache, self.shown = [0] * self.ranks, [0] * self.ranks, [(0, 0)] * self.ranks

    def sample(self) -> Sample:
        ranks = {
            str(rank): Metrics(f"{self.shown[rank]} {self.tokens[rank]} {self.cache[rank]}", *self.shown[rank], is_awake=self.is_awake)
            for rank in range(self.ranks)
        }
        sample = Sample(self.now, self.now, ranks, self.load + self.leaked)
        sample.is_paused, sample.is_compiling = self.is_paused, self.is_compiling
        if self.sees_waits and sample.load and not sample.has_work():
            sample.waits = [self.now - at for at in self.arrived]
        return sample

    def step(self, rank: int, running: int, waiting: int, *, tokens: bool = True, blocks: bool = True) -> None:
        """A step of a rank, unless it hangs."""
        if rank not in self.hung:
            self.shown[rank] = (running, waiting)
            self.tokens[rank] += tokens
            self.cache[rank] += blocks

    def restart(self) -> None:
        self.tokens, self.cache, self.shown = [0] * self.ranks, [0] * self.ranks, [(0, 0)] * self.ranks
        self.load, self.leaked, self.arrived = 0, 0, []
        self.is_awake, self.is_paused, self.hung = True, False, set()

    def probes(self, seconds: float) -> Iterator[None]:
        """The next probes in a phase of this length. The kubelet's period jitters a little."""
        end = self.now + seconds
        while self.now < end:
            self.now += 15 + self.rng.uniform(-0.5, 0.5)
            yield

    def day(self, hours: float) -> Iterator[Sample]:
        """Harmless phases one after the other, as in production."""
        longest_step = 20.0
        also = ("refused", "keep-alive") if self.sees_waits else ()
        while self.now < hours * 3600:
            kinds = ("idle", "light", "saturated", "prefill", "steps", "paused", "asleep", "compiling", "restart", "frozen", "disconnects")
            kind = self.rng.choice((*kinds, *also))
            length = self.rng.uniform(30, 1800)
            if kind in ("restart", "frozen"):
                self.now += self.rng.uniform(50, 600)
                if kind == "restart":
                    self.restart()
                yield self.sample()
            elif kind == "steps":  # single steps without any sign, each at most 1.5 times as long as the longest one before
                longest_step = min(longest_step * self.rng.uniform(1.0, 1.5), 500) if longest_step > 52 else longest_step * 1.3
                yield from self._silent_step(longest_step)
            else:
                for _ in self.probes(length):
                    self._phase(kind)
                    yield self.sample()
                self._quiet()
                self.is_awake, self.is_paused, self.is_compiling = True, False, False

    def _quiet(self) -> None:
        self.load, self.arrived = 0, []
        for rank in range(self.ranks):
            self.step(rank, 0, 0)

    def _silent_step(self, seconds: float) -> Iterator[Sample]:
        self.load = 1
        self.step(0, 1, 0)
        end = self.now + seconds
        for _ in self.probes(seconds):
            if self.now < end:
                yield self.sample()
        self._quiet()
        yield self.sample()

    def _phase(self, kind: str) -> None:
        at_once = self.rng.randint(1, 256)
        if kind in ("light", "saturated"):
            self.load = at_once + (500 if kind == "saturated" else 0)
            for rank in range(self.ranks):
                self.step(rank, at_once, 500 if kind == "saturated" else 0, blocks=self.rng.random() < 0.9)
        elif kind == "prefill":  # no token for a long time, and a chunk takes up to 30 s
            self.load = 1
            self.is_in_chunk = not self.is_in_chunk and self.rng.random() < 0.5
            if not self.is_in_chunk:
                self.step(0, 1, 0, tokens=False)
        elif kind == "disconnects":  # clients leave, and stay counted
            self.leaked += self.rng.randint(0, 1)
            self.step(0, 0, 0, tokens=self.leaked > 0)
        elif kind == "refused":  # at each sample, other requests are in the server, which refuses them
            self.load = self.rng.randint(1, 9)
            self.arrived = [self.now - self.rng.uniform(0, 9) for _ in range(self.load)]
        elif kind == "keep-alive":  # connections of clients that wait for nothing, and of one that has left
            self.leaked, self.arrived = max(self.leaked, 1), []
        elif kind == "asleep":
            self.is_awake, self.load = False, at_once
        elif kind == "paused":
            self.is_paused, self.load = True, at_once
        elif kind == "compiling":
            self.is_compiling, self.load = True, 1
