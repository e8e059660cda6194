"""`kubectl vllm top`: all VLLMDeployments. On a terminal the table is redrawn until Ctrl-C; elsewhere it is printed once.

Exit status: 0, or 2 if the cluster cannot be read.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from vllm_operator.api import reading
from vllm_operator.cli.live import connected, namespace_or_current, screens
from vllm_operator.cli.status import seconds_left, stage_bar, state_of
from vllm_operator.cli.terminal import (
    CYAN,
    DIM,
    GREEN,
    RED,
    YELLOW,
    Line,
    Span,
    age,
    grid,
    is_terminal,
    labelled,
    line,
    screen_width,
    show,
    show_each,
)
from vllm_operator.kube.client import VLLM_DEPLOYMENT
from vllm_operator.text.wording import clean, count, duration

READ_STATUS = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("-n", "--namespace", help="namespace of the VLLMDeployments (default: that of the current context)")
    scope.add_argument("-A", "--all-namespaces", action="store_true", help="list the VLLMDeployments of all namespaces")
    parser.add_argument("--once", action="store_true", help="print the table once, also on a terminal")


def run(arguments: argparse.Namespace) -> int:
    """Print the table. Return the exit status."""
    try:
        asyncio.run(_run(arguments))
    except KeyboardInterrupt:
        print()
    return READ_STATUS


async def _run(arguments: argparse.Namespace) -> None:
    namespace = None if arguments.all_namespaces else await namespace_or_current(arguments.namespace)
    async with connected("VLLMDeployment on this API server: the operator is not installed") as client:
        tables = screens(
            lambda: client.find(VLLM_DEPLOYMENT, namespace, cached=True),
            lambda resources: top_page(resources, datetime.now(UTC), width=screen_width()),
        )
        if arguments.once or not is_terminal():
            show(await anext(tables))
        else:
            await show_each(tables)


HEADER = ("NAMESPACE", "NAME", "STATUS", "READY", "GPU", "STAGE", "PROGRESS", "LEFT", "CACHE", "AGE")
_ORDER = {RED: 0, YELLOW: 1, GREEN: 2}
_WORDS = {RED: "failed", YELLOW: "not ready", GREEN: "serving"}
_BAR_SCALE = 3
"""Factor by which bars are shorter than the bars of `kubectl vllm status`."""


def top_page(resources: Iterable[Mapping[str, Any]], now: datetime, *, width: int) -> list[Line]:
    """Return the page. Objects may have any content."""
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
    spans = stage_bar(startup, now)
    if not spans:
        return ""
    done, rest = (len(span.text) // _BAR_SCALE for span in spans[:2])
    counted = spans[2].text if len(spans) > 3 else ""
    return f"{'█' * done}{'░' * rest}{counted}"


def _name(resource: Mapping[str, Any]) -> tuple[str, str]:
    return reading.text(resource, "metadata", "namespace"), reading.text(resource, "metadata", "name")
