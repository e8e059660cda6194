"""The race of backends (`spec.backends.tuning: Measure`): which of the backends that work for a plan is the fastest, by measurement.

The first entrant is the plan in force. Each entrant runs once, the plan in force once more, and then it and the fastest other in turns
until the variation of their own runs cannot explain the difference, at most `MAX_PAIRS` times. The race is a function of its record, which
is on the ControllerRevision of the plan in force. The fastest other wins if it is faster by more than `MIN_GAIN` and by more than the runs
of one entrant vary. Then a new plan follows its rule, and is rolled out as any other.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from vllm_operator.api import reading
from vllm_operator.api.base import Model
from vllm_operator.api.labels import RACE_ANNOTATION
from vllm_operator.api.spec import OptimizeFor
from vllm_operator.caches import measurement
from vllm_operator.caches.measurement import MAX_PAIRS, VARIATION_FACTOR, Figure, Measurement, Record, Why

MIN_GAIN = 0.08
"""Minimum gain of a winner, for which all replicas are replaced. With a variation of 5 %, equal backends do not seem to differ by more."""
MAX_ENTRANTS, DEFAULT_ENTRANTS = 8, 4
Name = Annotated[str, Field(max_length=128)]


class Entrant(Model):
    """A backend of one component (None: those of the plan in force), its runs, and why it is out, if it is."""

    component: Name | None = None
    backend: Name = ""
    runs: Annotated[tuple[Measurement, ...], Field(max_length=MAX_PAIRS)] = ()
    failure: Why = ""


class RaceRecord(Record):
    """A race: what it is about (`key`, and `when` as in a rule), who asked for it, the entrants, and why it ended early."""

    key: Name
    model: str
    token: Name = ""
    load: str
    optimize_for: OptimizeFor
    when: dict[str, Any]
    started: datetime
    entrants: Annotated[tuple[Entrant, ...], Field(min_length=1, max_length=MAX_ENTRANTS)]
    skipped: Why = ""

    @property
    def next(self) -> int | None:
        """The entrant to run next; None if the race is over."""
        first, unmeasured = self.entrants[0], (number for number, it in enumerate(self.entrants) if not it.runs and not it.failure)
        if self.skipped or (number := next(unmeasured, None)) is not None:
            return None if self.skipped else number
        if (best := self.best) is None or (gain := self.gain(best)) is None or len(first.runs) < 2:
            return None if best is None else 0
        lead, noise = -gain.loss, VARIATION_FACTOR * gain.variation
        is_certain = lead + noise <= MIN_GAIN or (len(best.runs) > 1 and lead - noise > MIN_GAIN)
        if is_certain or len(best.runs) == len(first.runs) == MAX_PAIRS:
            return None
        return self.entrants.index(best) if len(best.runs) < len(first.runs) else 0

    @property
    def best(self) -> Entrant | None:
        """The fastest entrant besides the first, among those with right answers; None without one."""
        gains = ((gain.after, entrant) for entrant in self.entrants[1:] if (gain := self.gain(entrant)) is not None)
        return max(gains, key=lambda each: each[0], default=(0.0, None))[1]

    @property
    def winner(self) -> Entrant | None:
        """The entrant that is faster than the plan in force by more than the variation; None without one, or before the end."""
        best = self.best if self.next is None and not self.skipped else None
        gain = self.gain(best) if best is not None else None
        return best if gain is not None and -gain.loss > max(MIN_GAIN, VARIATION_FACTOR * gain.variation) else None

    def gain(self, entrant: Entrant) -> Figure | None:
        """Compare the throughput of an entrant with that of the first one; None if it is out, not measured, or wrong."""
        before, after = self.entrants[0].runs, entrant.runs
        loads = [{load.clients for load in run.loads} for run in (*before, *after)] if before and after and not entrant.failure else [set()]
        clients = set.intersection(*loads)
        if not clients or any(figure.is_worse for figure in measurement.compare_results(before, after)):
            return None
        return measurement.compare_rates(before, after, min(clients) if self.optimize_for == "Latency" else max(clients))

    def after(self, found: Measurement | tuple[str, str]) -> "RaceRecord":
        """Return the record with the result of the next run: figures, or how it ends (`failure` or `skipped`) and why."""
        number = self.next or 0
        entrant = self.entrants[number]
        if isinstance(found, Measurement):
            entrant = entrant.model_copy(update={"runs": (*entrant.runs, found)})
        elif found[0] == "skipped" or number == 0:
            return self.model_copy(update={"skipped": found[1]})
        else:
            entrant = entrant.model_copy(update={"failure": found[1]})
        return self.model_copy(update={"entrants": (*self.entrants[:number], entrant, *self.entrants[number + 1 :])})

    def to_rule(self, entrant: Entrant) -> dict[str, Any]:
        """Return the rule that chooses an entrant where the race was held, in the form of the administrator's rules."""
        gain = self.gain(entrant)
        said = f"Measured: {gain.after:,.0f} {gain.name}, default {gain.before:,.0f}." if gain is not None else "It is measured in a race."
        chosen = {"component": entrant.component, "kind": "choice", "when": self.when, "backend": entrant.backend}
        return {"id": f"race-{self.key}", **chosen, "because": said, "source": f"race of {self.started:%Y-%m-%d}, {self.load}"}


def read_race(revision: Mapping[str, Any] | None) -> RaceRecord | None:
    """Read the race from the annotation of a ControllerRevision; None if it has none that can be read."""
    return measurement.parse_record(reading.text(revision, "metadata", "annotations", RACE_ANNOTATION), RaceRecord)
