"""The page of `kubectl vllm top`: all VLLMDeployments, those with problems first."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from vllm_operator.cli.screen import CYAN, DIM, GREEN, RED, YELLOW, Line, Span, age, grid, labelled, line
from vllm_operator.cli.status_page import seconds_left, stage_bar, state_of
from vllm_operator.pods import reading
from vllm_operator.text.wording import clean, count, duration

HEADER = ("NAMESPACE", "NAME", "STATUS", "READY", "GPU", "STAGE", "PROGRESS", "LEFT", "CACHE", "AGE")
_ORDER = {RED: 0, YELLOW: 1, GREEN: 2}
_WORDS = {RED: "failed", YELLOW: "not ready", GREEN: "serving"}
_BAR_SCALE = 3
"""Bars of this page are this many times as short as those of `kubectl vllm status`."""


def top_page(resources: Iterable[Mapping[str, Any]], now: datetime, *, width: int) -> list[Line]:
    """Return the page. Any content of the objects is valid."""
    states = [(state_of(resource), resource) for resource in resources]
    if not states:
        return labelled("", "There are no VLLMDeployments.", label_width=0, width=width)
    states.sort(key=lambda each: (_ORDER[each[0][1]], _name(each[1])))
    counts = Counter(style for (_, style), _ in states)
    summary = [Span(f"{counts[style]} {_WORDS[style]}", style) for style in _ORDER if counts[style]]
    spans = [span for each in summary for span in (Span(", "), each)]
    head = line(count(len(states), "VLLMDeployment"), Span(": "), *spans[1:])
    return [head, (), *grid(HEADER, [_row(reason, style, resource, now) for (reason, style), resource in states])]


def _row(reason: str, style: str, resource: Mapping[str, Any], now: datetime) -> Sequence[Span]:
    startup = reading.mapping(resource, "status", "startup")
    wanted = reading.integer(resource, "spec", "replicas")
    ready = reading.integer(resource, "status", "readyReplicas") or 0
    left = seconds_left(startup, now)
    namespace, name = _name(resource)
    cache = reading.text(resource, "status", "cache", "state")
    return (
        Span(namespace, DIM),
        Span(name),
        Span(clean(reason, 40), style),
        Span(f"{ready}/{1 if wanted is None else wanted}"),
        Span(reading.text(resource, "status", "pinnedPlan", "architecture")),
        Span(reading.text(startup, "stage"), CYAN),
        Span(_progress(startup, now)),
        Span(duration(left) if left is not None else "", DIM),
        Span(cache, GREEN if cache == "Warm" else ""),
        Span(age(reading.moment(resource, "metadata", "creationTimestamp"), now), DIM),
    )


def _progress(startup: Mapping[str, Any], now: datetime) -> str:
    """A short bar with its count, as one text."""
    spans = stage_bar(startup, now)
    if not spans:
        return ""
    done, rest = (len(span.text) // _BAR_SCALE for span in spans[:2])
    counted = spans[2].text if len(spans) > 3 else ""
    return f"{'█' * done}{'░' * rest}{counted}"


def _name(resource: Mapping[str, Any]) -> tuple[str, str]:
    return reading.text(resource, "metadata", "namespace"), reading.text(resource, "metadata", "name")
