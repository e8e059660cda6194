"""The pure part of the comparison: what an audit log says about writes and delays, and the table of figures and ratios."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
READS = frozenset({"get", "list"})
INDEPENDENT_OF_OBJECTS = frozenset({"leases", "selfsubjectaccessreviews"})
NO_VALUE = "-"


@dataclass(frozen=True, slots=True)
class Request:
    """One request that the API server answered. `received` and `answered` are in seconds since the epoch."""

    verb: str
    target: str
    """The resource, with its subresource: `deployments`, `vllmdeployments/status`."""
    name: str
    agent: str
    code: int
    received: float
    answered: float


def parse_requests(lines: Iterable[bytes], started: set[str]) -> list[Request]:
    """Read lines of an audit log of the level Metadata.

    A request that may run long, such as one for a log, has two lines: one when the response begins, and one at its end. Only the first
    counts. `started` has the IDs of those that have begun, and is changed.
    """
    requests = []
    for line in lines:
        event: dict[str, Any] = json.loads(line)
        if event.get("stage") == "ResponseStarted":
            started.add(event["auditID"])
        elif event.get("auditID") in started:
            started.remove(event["auditID"])
            continue
        requests.append(_request(event))
    return requests


def _request(event: Mapping[str, Any]) -> Request:
    reference = event.get("objectRef") or {}
    target = "/".join(part for part in (reference.get("resource"), reference.get("subresource")) if part)
    return Request(
        verb=event["verb"],
        target=target,
        name=reference.get("name") or "",
        agent=event.get("userAgent") or "",
        code=(event.get("responseStatus") or {}).get("code", 0),
        received=_seconds(event["requestReceivedTimestamp"]),
        answered=_seconds(event["stageTimestamp"]),
    )


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def of(requests: Iterable[Request], agent: str, target: str, verbs: Collection[str] = WRITES) -> list[Request]:
    """The requests of one user agent to a resource that succeeded, with these verbs."""
    return [it for it in requests if it.code < 400 and it.verb in verbs and it.agent.startswith(agent) and it.target == target]


def asked_by(requests: Iterable[Request], agent: str, verbs: Collection[str]) -> list[Request]:
    """What a user agent asked for objects; failed requests too, because they cost as much."""
    return [it for it in requests if it.agent.startswith(agent) and it.verb in verbs and it.target not in INDEPENDENT_OF_OBJECTS]


def for_each(requests: Iterable[Request], agent: str, verbs: Collection[str], objects: int) -> dict[str, float]:
    """The number of requests for each object, by resource."""
    found = Counter(request.target for request in asked_by(requests, agent, verbs))
    return {target: count / objects for target, count in sorted(found.items())}


def delays(causes: Iterable[Request], effects: Iterable[Request], *, last: bool = False) -> dict[str, float]:
    """Seconds from the answer to each cause to the answer to its effect, by the name of the object; none for a cause without effect.

    The effect is the first one that was answered after the cause was received; with `last`, the last one.
    """
    following: dict[str, list[Request]] = {}
    for effect in effects:
        following.setdefault(effect.name, []).append(effect)
    found = {}
    for cause in causes:
        later = [effect.answered for effect in following.get(cause.name, ()) if effect.answered >= cause.received]
        if later:
            found[cause.name] = max(0.0, (max(later) if last else min(later)) - cause.answered)
    return found


def quantile(values: Iterable[float], part: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else None


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one turn. None: this contender cannot have it."""

    phase: str
    name: str
    unit: str
    value: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of all contenders, as the median of the rounds, and its ratios to the first contender's."""

    phase: str
    name: str
    unit: str
    values: Mapping[str, float | None]

    def ratio(self, contender: str, to: str) -> float | None:
        value, other = self.values.get(contender), self.values.get(to)
        return None if value is None or not other else value / other


def summarize(turns: Sequence[tuple[str, Sequence[Figure]]]) -> list[Row]:
    """One row for each figure, in the order in which they were first measured."""
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for contender, figures in turns:
        for figure in figures:
            values = found.setdefault((figure.phase, figure.name, figure.unit), {}).setdefault(contender, [])
            if figure.value is not None:
                values.append(figure.value)
    return [
        Row(*key, {contender: statistics.median(values) if values else None for contender, values in by_contender.items()})
        for key, by_contender in found.items()
    ]


def crossed(rows: Iterable[Row], thresholds: Iterable[Mapping[str, Any]], contender: str, floor: str) -> list[str]:
    """Say which thresholds a contender crosses; a measurement that was not made crosses none.

    `most` is a bound for the value, and `mostOfFloor` one for its ratio to the floor, which can be compared between machines.
    """
    found = {(row.phase, row.name): row for row in rows}
    lines = []
    for bound in thresholds:
        row = found.get((bound["phase"], bound["measurement"]))
        seen = {"most": row.values.get(contender), "mostOfFloor": row.ratio(contender, floor)} if row is not None else {}
        for key, value in seen.items():
            if value is not None and value > bound.get(key, math.inf):
                unit = " times the floor" if key == "mostOfFloor" else ""
                lines.append(f"{bound['phase']}: {bound['measurement']} is {_format(value)}{unit}, at most {bound[key]}")
    return lines


def table(rows: Sequence[Row], contenders: Sequence[str]) -> str:
    """The rows as text. The ratios are those of the first contender to each other one."""
    first, others = contenders[0], contenders[1:]
    head = ["phase", "measurement", "unit", *contenders, *(f"{first} / {other}" for other in others)]
    lines = [head]
    for row in rows:
        values = [_format(row.values.get(contender)) for contender in contenders]
        ratios = [_format(row.ratio(first, other)) for other in others]
        lines.append([row.phase, row.name, row.unit, *values, *ratios])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    texts = ["  ".join(cell.ljust(width) if n < 3 else cell.rjust(width) for n, (cell, width) in enumerate(zip(line, widths, strict=True)))
             for line in lines]  # fmt: skip
    return "\n".join(text.rstrip() for text in texts)


def _format(value: float | None) -> str:
    if value is None:
        return NO_VALUE
    if value == 0:
        return "0"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
