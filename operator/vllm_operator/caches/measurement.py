"""Figures of an engine under a fixed load, and whether a new plan is worse than the current one.

Each plan is measured at least twice, in turns, so that the differences between runs of one plan show how much the figures vary. A figure is
worse if its mean is worse than that of the current plan by more than its limit, and by more than the variation explains. As long as the
difference is so near to the limit that the variation decides, both plans are measured again, at most `MAX_PAIRS` times.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import mean
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, Field

from vllm_operator.api import reading
from vllm_operator.api.base import Model
from vllm_operator.api.labels import RACE_RECORD_ANNOTATION
from vllm_operator.api.spec import OptimizeFor

MIN_PAIRS, MAX_PAIRS = 2, 4
"""Minimum and maximum number of runs of each plan."""
LIMIT = 0.12
"""Relative difference from which throughput, time per token and KV cache count as worse. Runs of one engine differ by 5 % at most."""
FIRST_TOKEN_LIMIT, MIN_FIRST_TOKEN_MS = 0.3, 20.0
START_LIMIT, MIN_START_SECONDS = 0.5, 15.0
ANSWERS_LIMIT = 0.4
"""Largest loss, as a share. Other kernels round differently, so some greedy answers change after some words; wrong kernels change all."""
VARIATION_FACTOR = 3.0
MIN_GAIN, MAX_ENTRANTS = 0.08, 8
"""Minimum gain of the winner of a race, for which all replicas are replaced. Equal backends do not seem to differ by more."""
MAX_RUNS_TEXT = 32_768
RATE, KV_TOKENS, ANSWERS = "tokens per second", "tokens in the KV cache", "part of greedy answers that agrees"
"""Names of figures; of the first, the beginning."""
Amount = Annotated[float, Field(ge=0, lt=10**12), AfterValidator(lambda value: max(value, 1e-6))]
"""A figure. None is zero, because others are divided by it."""
Name = Annotated[str, Field(max_length=128)]
ShortReason = Annotated[str, AfterValidator(lambda text: text[:600])]


class LoadFigures(Model):
    """Figures with a number of clients: medians in milliseconds until the first token and for each further one, and tokens per second."""

    clients: int
    first_token_ms: Amount
    token_ms: Amount
    rate: Amount


class Measurement(Model):
    """One run, as `tools.measure` reports it: figures, tokens in the KV cache (None if unknown), and digests of greedy answers."""

    start_seconds: Amount
    kv_tokens: Annotated[int, Field(gt=0, lt=10**12)] | None = None
    loads: Annotated[tuple[LoadFigures, ...], Field(min_length=1, max_length=8)]
    answers: Annotated[str, Field(max_length=1024)]


def read_measurement(found: Mapping[str, Any]) -> Measurement | None:
    """Read the untrusted report of `tools.measure`; None if it is incomplete."""
    try:
        return Measurement.model_validate(found)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both plans: means over their runs, and the loss, as a part of the figure of the current plan (negative: a gain)."""

    name: str
    before: float
    after: float
    loss: float
    variation: float
    limit: float
    is_relevant: bool = True

    @property
    def is_worse(self) -> bool:
        """Whether the new plan is worse by more than the limit, and than the variation explains."""
        return self.is_relevant and self.loss > max(self.limit, VARIATION_FACTOR * self.variation)

    @property
    def text(self) -> str:
        """The figure of the new plan and of the current one, in words."""
        change = "the same" if round(self.loss, 2) == 0 else f"{abs(self.loss):.0%} {'worse' if self.loss > 0 else 'better'}"
        return f"{_number(self.after)} {self.name} instead of {_number(self.before)} ({change})"

    @property
    def is_certain(self) -> bool:
        """Whether more runs would hardly change that."""
        return not self.is_relevant or abs(self.loss - self.limit) > VARIATION_FACTOR * self.variation


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def compare(before: Sequence[Measurement], after: Sequence[Measurement]) -> list[Figure]:
    """Compare the runs of the current and of the new plan, at least one of each."""
    figures = list[Figure]()
    for clients in [load.clients for load in before[0].loads]:
        old, new = _loads(before, clients), _loads(after, clients)
        if not old or not new:
            continue
        said = f"with {clients} {'client' if clients == 1 else 'clients'}"
        figures.append(_figure(f"{RATE} {said}", [it.rate for it in old], [it.rate for it in new], LIMIT, is_gain=True))
        figures.append(_figure(f"ms per token {said}", [it.token_ms for it in old], [it.token_ms for it in new], LIMIT))
        first = _figure(
            f"ms until the first token {said}", [it.first_token_ms for it in old], [it.first_token_ms for it in new], FIRST_TOKEN_LIMIT
        )
        figures.append(replace(first, is_relevant=abs(first.after - first.before) >= MIN_FIRST_TOKEN_MS))
    if (old_size := _kv_tokens(before)) and (new_size := _kv_tokens(after)):
        figures.append(_figure(KV_TOKENS, old_size, new_size, LIMIT, is_gain=True))
    # The first run of a plan may have compiled, so the fastest start counts.
    start = _figure("seconds to start", [min(it.start_seconds for it in before)], [min(it.start_seconds for it in after)], START_LIMIT)
    figures.append(replace(start, is_relevant=start.after - start.before >= MIN_START_SECONDS))
    return [*figures, _answers(before, after)]


def is_decided(figures: Iterable[Figure], pairs: int) -> bool:
    """Return whether these figures of so many runs of each plan are enough."""
    return pairs >= MAX_PAIRS or (pairs >= MIN_PAIRS and all(figure.is_certain for figure in figures))


def _kv_tokens(runs: Iterable[Measurement]) -> list[int]:
    return [run.kv_tokens for run in runs if run.kv_tokens is not None]


def _loads(runs: Iterable[Measurement], clients: int) -> list[LoadFigures]:
    return [load for run in runs for load in run.loads if load.clients == clients]


def _figure(name: str, before: Sequence[float], after: Sequence[float], limit: float, *, is_gain: bool = False) -> Figure:
    old, new = mean(before), mean(after)
    loss = 1 - new / old if is_gain else new / old - 1
    return Figure(name, old, new, loss, max(_variation(before), _variation(after)), limit)


def _variation(values: Sequence[float]) -> float:
    """Return the standard error of the mean, from the range of the values, as a part of it."""
    return (max(values) - min(values)) / (mean(values) * 2 * sqrt(len(values)))


def _answers(before: Sequence[Measurement], after: Sequence[Measurement]) -> Figure:
    same: list[float] = [_agreement(one, other) for index, one in enumerate(before) for other in before[index + 1 :]]
    old, new = mean(same or [1.0]), mean(_agreement(one, other) for one in before for other in after)
    return Figure(ANSWERS, old, new, old - new, 0.0, ANSWERS_LIMIT)


def _agreement(one: Measurement, other: Measurement) -> float:
    pairs = list(zip(one.answers, other.answers, strict=False))
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else 1.0


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Why a run ends without figures. If its engine has not failed, nothing can be compared."""

    why: str
    is_failure: bool


class GateRecord(Model):
    """What was measured before a rollout: with which load and against which revision, the runs of both plans, and why it ended early."""

    against: str
    load: str
    before: Annotated[tuple[Measurement, ...], Field(max_length=MAX_PAIRS)] = ()
    after: Annotated[tuple[Measurement, ...], Field(max_length=MAX_PAIRS)] = ()
    failure: ShortReason = ""
    """Why the engine of the new plan failed under the load. The rollout is held."""
    skipped: ShortReason = ""
    """Why nothing can be compared. The rollout begins."""

    @property
    def figures(self) -> list[Figure]:
        """The comparison of the runs; empty until both plans were measured."""
        return compare(self.before, self.after) if self.before and self.after else []

    @property
    def is_over(self) -> bool:
        """Whether nothing more is measured."""
        return bool(self.failure or self.skipped) or (len(self.before) == len(self.after) > 0 and is_decided(self.figures, len(self.after)))

    @property
    def worse(self) -> tuple[Figure, ...]:
        """The figures for which the new plan is worse."""
        return tuple(figure for figure in self.figures if figure.is_worse)


def read_gate_record(text: str) -> GateRecord | None:
    """Read the annotation of a ControllerRevision; None if it has none that can be read."""
    if not text or len(text) > MAX_RUNS_TEXT:
        return None
    try:
        return GateRecord.model_validate_json(text)
    except ValueError:
        return None


class Entrant(Model):
    """A backend of one component (None: those of the plan in force), its runs, and why it is out, if it is."""

    component: Name | None = None
    backend: Name = ""
    runs: Annotated[tuple[Measurement, ...], Field(max_length=MAX_PAIRS)] = ()
    failure: ShortReason = ""


class RaceRecord(Model):
    """A race of backends: what it is about (`key`, and `when` as in a rule), the request (`token`), the entrants, and why it ended early.

    The first entrant is the plan in force. Each entrant runs once, the plan in force once more, and then it and the fastest other in turns
    until the variation of their own runs cannot explain the difference. The fastest other wins if it is faster by more than that.
    """

    key: Name
    token: Name = ""
    load: str
    optimize_for: OptimizeFor
    when: dict[str, Any]
    started: AwareDatetime
    entrants: Annotated[tuple[Entrant, ...], Field(min_length=1, max_length=MAX_ENTRANTS)]
    skipped: ShortReason = ""

    @property
    def next_entrant(self) -> int | None:
        """The number of the entrant to run next; None if the race is over."""
        if self.skipped:
            return None
        for number, entrant in enumerate(self.entrants):
            if not entrant.runs and not entrant.failure:
                return number  # each runs once
        if (found := self._find_fastest()) is None:
            return None  # all others are out
        fastest, gain = found
        runs, lead, noise = len(self.entrants[0].runs), -gain.loss, VARIATION_FACTOR * gain.variation
        is_certain = lead + noise <= MIN_GAIN or (len(fastest.runs) > 1 and lead - noise > MIN_GAIN)
        if runs > 1 and (is_certain or len(fastest.runs) == runs == MAX_PAIRS):
            return None
        return self.entrants.index(fastest) if len(fastest.runs) < runs else 0

    def _find_fastest(self) -> tuple[Entrant, Figure] | None:
        """Return the fastest entrant besides the first, among those with right answers, and its gain; None without one."""
        gains = [(entrant, gain) for entrant in self.entrants[1:] if (gain := self.gain(entrant)) is not None]
        return max(gains, key=lambda each: each[1].after, default=None)

    @property
    def winner(self) -> Entrant | None:
        """The entrant that is faster than the plan in force by more than the variation; None without one, or before the end."""
        if self.skipped or self.next_entrant is not None or (found := self._find_fastest()) is None:
            return None
        fastest, gain = found
        return fastest if -gain.loss > max(MIN_GAIN, VARIATION_FACTOR * gain.variation) else None

    def gain(self, entrant: Entrant) -> Figure | None:
        """Compare the throughput of an entrant with that of the first one; None if it is out, not measured, or wrong."""
        before, after = self.entrants[0].runs, entrant.runs
        figures = compare(before, after) if before and after and not entrant.failure else []
        rates = [figure for figure in figures if figure.name.startswith(RATE)]  # in the order of the numbers of clients
        if not rates or any(figure.is_worse for figure in figures if figure.name in (KV_TOKENS, ANSWERS)):
            return None
        return rates[0 if self.optimize_for == "Latency" else -1]

    def with_result(self, found: Measurement | RunEnd) -> "RaceRecord":
        """Return the record with the result of the next run. If the plan in force has no figures, there is no race."""
        number = self.next_entrant or 0
        entrant = self.entrants[number]
        if isinstance(found, Measurement):
            entrant = entrant.model_copy(update={"runs": (*entrant.runs, found)})
        elif found.is_failure and number > 0:
            entrant = entrant.model_copy(update={"failure": found.why})
        else:
            return self.model_copy(update={"skipped": found.why})
        return self.model_copy(update={"entrants": (*self.entrants[:number], entrant, *self.entrants[number + 1 :])})

    def to_rule(self, entrant: Entrant) -> dict[str, Any]:
        """Return the rule that chooses an entrant where the race was run, in the form of the administrator's rules."""
        gain = self.gain(entrant)
        said = f"{gain.after / gain.before:.2f} times the default, {gain.after:,.0f} {gain.name}" if gain is not None else "it races"
        chosen = {"component": entrant.component, "kind": "choice", "when": self.when, "backend": entrant.backend}
        source = f"race of {self.started:%Y-%m-%d}, {self.load}"
        return {"id": f"race-{self.key}", **chosen, "because": f"Measured: {said}.", "source": source}


def read_race(revision: Mapping[str, Any] | None) -> RaceRecord | None:
    """Read the race from the annotation of a ControllerRevision; None if it has none that can be read."""
    written = reading.text(revision, "metadata", "annotations", RACE_RECORD_ANNOTATION)
    try:
        return RaceRecord.model_validate_json(written) if 0 < len(written) <= MAX_RUNS_TEXT else None
    except ValueError:
        return None
