"""Figures of an engine under a fixed load, and whether a new plan is worse than the current one.

Each plan is measured at least twice, in turns, so that the differences between runs of one plan show how much the figures vary. A figure is
worse if its mean is worse than that of the current plan by more than its limit. As long as the difference is so near to the limit that the
variation could explain it, both plans are measured again, at most `MAX_PAIRS` times.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import mean
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from vllm_operator.api.base import Model

MIN_PAIRS, MAX_PAIRS = 2, 4
"""Minimum and maximum number of runs of each plan."""
LIMIT = 0.12
"""Relative difference from which throughput, time per token and KV cache count as worse. Runs of one engine differ by 5 % at most."""
FIRST_TOKEN_LIMIT, MIN_FIRST_TOKEN_MS = 0.3, 20.0
START_LIMIT, MIN_START_SECONDS = 0.5, 15.0
ANSWERS_LIMIT = 0.4
"""Part of the answers. Other kernels round differently, so some greedy answers change after some words; wrong kernels change all."""
VARIATION_FACTOR = 3.0
MAX_RUNS_TEXT = 32_768
Amount = Annotated[float, Field(ge=0, lt=10**12), AfterValidator(lambda value: max(value, 1e-6))]
"""A figure. None is zero, because others are divided by it."""
Why = Annotated[str, AfterValidator(lambda text: text[:600])]


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
        """Whether the new plan is worse by more than the limit."""
        return self.is_relevant and self.loss > self.limit

    @property
    def text(self) -> str:
        """The figure of the new plan and of the current one, in words."""
        change = "the same" if round(self.loss, 2) == 0 else f"{abs(self.loss):.0%} {'worse' if self.loss > 0 else 'better'}"
        return f"{_number(self.after)} {self.name}, before {_number(self.before)} ({change})"

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
        figures.append(_figure(f"tokens per second {said}", [it.rate for it in old], [it.rate for it in new], LIMIT, is_gain=True))
        figures.append(_figure(f"ms per token {said}", [it.token_ms for it in old], [it.token_ms for it in new], LIMIT))
        first = _figure(
            f"ms until the first token {said}", [it.first_token_ms for it in old], [it.first_token_ms for it in new], FIRST_TOKEN_LIMIT
        )
        figures.append(replace(first, is_relevant=abs(first.after - first.before) >= MIN_FIRST_TOKEN_MS))
    if (old_size := _kv_tokens(before)) and (new_size := _kv_tokens(after)):
        figures.append(_figure("tokens in the KV cache", old_size, new_size, LIMIT, is_gain=True))
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
    return Figure("part of greedy answers that agrees", old, new, old - new, 0.0, ANSWERS_LIMIT)


def _agreement(one: Measurement, other: Measurement) -> float:
    pairs = list(zip(one.answers, other.answers, strict=False))
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else 1.0


class GateRecord(Model):
    """What was measured before a rollout: with which load and against which revision, the runs of both plans, and why it ended early."""

    against: str
    load: str
    before: Annotated[tuple[Measurement, ...], Field(max_length=MAX_PAIRS)] = ()
    after: Annotated[tuple[Measurement, ...], Field(max_length=MAX_PAIRS)] = ()
    failure: Why = ""
    """Why the engine of the new plan failed under the load. The rollout is held."""
    skipped: Why = ""
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


def read_record(text: str) -> GateRecord | None:
    """Read the annotation of a ControllerRevision; None if it has none that can be read."""
    if not text or len(text) > MAX_RUNS_TEXT:
        return None
    try:
        return GateRecord.model_validate_json(text)
    except ValueError:
        return None
