"""`kubectl vllm status NAME`: the state of a VLLMDeployment on one screen. `--watch` redraws it.

Exit status: 0, or 2 if the object does not exist or the cluster cannot be read.
"""

import argparse
import asyncio
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from vllm_operator.api import reading
from vllm_operator.api.conditions import ACCEPTED, CACHE_WARM, CRASHED, PLANNED, READY
from vllm_operator.api.labels import KIND
from vllm_operator.api.reading import Manifest
from vllm_operator.caches.address import reported_cache_claim
from vllm_operator.cli.live import connected, namespace_or_current, screens
from vllm_operator.cli.terminal import (
    BOLD,
    CYAN,
    DIM,
    GREEN,
    RED,
    YELLOW,
    Line,
    Span,
    age,
    bar,
    labelled,
    line,
    screen_width,
    show,
    show_each,
)
from vllm_operator.kube.client import EVENT, VLLM_DEPLOYMENT, ClusterClient, Forbidden
from vllm_operator.text.wording import clean, count, duration

READ_STATUS = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("name", metavar="NAME", help=f"name of the {KIND}")
    parser.add_argument("-n", "--namespace", help=f"namespace of the {KIND} (default: that of the current context)")
    parser.add_argument("-w", "--watch", action="store_true", help="redraw the screen every 2 seconds, until Ctrl-C")


def run(arguments: argparse.Namespace) -> int:
    """Print the screen. Return the exit status."""
    try:
        asyncio.run(_run(arguments))
    except KeyboardInterrupt:
        if not arguments.watch:
            raise
    return READ_STATUS


async def _run(arguments: argparse.Namespace) -> None:
    namespace = await namespace_or_current(arguments.namespace)
    async with connected(f"{KIND} {arguments.name} in the namespace {namespace}") as client:
        pages = screens(
            lambda: read_object(client, arguments.name, namespace),
            lambda found: status_page(*found, datetime.now(UTC), width=screen_width()),
        )
        if arguments.watch:
            await show_each(pages)
        else:
            show(await anext(pages))


async def read_object(client: ClusterClient, name: str, namespace: str) -> tuple[Manifest, list[Manifest]]:
    """Read an object and its events. Without permission to read events, there are none.

    Raises:
        ClusterError: The object does not exist or cannot be read.
    """
    resource = await client.get(VLLM_DEPLOYMENT, name, namespace)
    about = {"involvedObject.kind": KIND, "involvedObject.name": name}
    try:
        return resource, list(await client.find(EVENT, namespace, fields=about))
    except Forbidden:
        return resource, []


EVENTS_SHOWN = 5
_LABEL = 11
_COMMAND_IN_STATUS = re.compile(r" The command is in status\.\w+\.command\.")
_ESTIMATE = re.compile(r", about [^,.]{1,40} left(?=\.$)")
"""The remaining time as of the status. The bar shows the current one."""
_PARTS = re.compile(r"(?<=[.)]) (?=Note: |Backends: |vLLM defaults: )")
"""Boundaries between the parts of Planned's message."""
_LINK = re.compile(r" \(See (https?://[^\s)]+)\)$")


def status_page(resource: Manifest, events: Iterable[Manifest], now: datetime, *, width: int) -> list[Line]:
    """Return the page.

    Args:
        resource: The VLLMDeployment. Any content is valid.
        events: Events about it, in any order.
        now: The current time.
        width: Maximum characters of a line. Commands and names may be longer.
    """
    name = f"{reading.text(resource, 'metadata', 'namespace')}/{reading.text(resource, 'metadata', 'name')}"
    created = age(reading.moment(resource, "metadata", "creationTimestamp"), now)
    reason, style = state_of(resource)
    lines = [
        line(Span(name, BOLD), "  ", Span(reason, style), Span(f"  created {created} ago" if created else "", DIM)),
        line(Span(reading.text(resource, "spec", "model", "uri"), DIM)),
        (),
    ]
    crashed = reading.named(resource, CRASHED, "status", "conditions")
    in_crash = crashed.get("status") == "True"
    if not in_crash:
        lines += _paragraph("State", _ESTIMATE.sub("", _message(resource, READY)), width, style)
    lines += _paragraph("Spec", _message(resource, ACCEPTED), width)
    lines += _start(resource, now)
    lines += _crash(resource, crashed, now, width) if in_crash else []
    lines += _gpu(resource, width)
    lines += _paragraph("Replicas", _replicas(resource), width)
    lines += _caches(resource, width)
    lines += [] if in_crash else _last_crash(resource, now, width)
    return lines + _events(events, now, width)


def state_of(resource: Manifest) -> tuple[str, str]:
    """Return the reason of the condition Ready, and a style for its severity."""
    ready = reading.named(resource, READY, "status", "conditions")
    reason = reading.text(ready, "reason") or "Waiting for the operator"
    if ready.get("status") == "True":
        return reason, GREEN
    is_bad = reading.named(resource, CRASHED, "status", "conditions").get("status") == "True"
    is_bad |= reading.named(resource, PLANNED, "status", "conditions").get("status") == "False"
    is_bad |= reading.named(resource, "Stalled", "status", "conditions").get("status") == "True"
    return reason, RED if is_bad else YELLOW


def seconds_left(startup: Manifest, now: datetime) -> int | None:
    """Return the estimated seconds left in the stage at `now`; None if unknown or exceeded."""
    estimated, written = reading.integer(startup, "etaSeconds"), reading.moment(startup, "updateTime")
    if estimated is None or written is None:
        return None
    left = estimated - (now - written).total_seconds()
    return round(left) if left > 0 else None


def stage_bar(startup: Manifest, now: datetime) -> list[Span]:
    """Return the bar of the current stage with its count and estimate, based on time if the engine does not count."""
    completed, total = reading.integer(startup, "completed"), reading.integer(startup, "total")
    left = seconds_left(startup, now)
    estimate = Span(f"  about {duration(left)} left" if left is not None else "", DIM)
    if completed is not None and total:
        return [*bar(completed, total), Span(f" {completed}/{total}"), estimate]
    since = reading.moment(startup, "stageSince")
    elapsed = (now - since).total_seconds() if since is not None else 0.0
    if left is None or elapsed < 0:
        return []
    return [*bar(elapsed, elapsed + left), estimate]


def _message(resource: Manifest, condition: str) -> str:
    return reading.text(reading.named(resource, condition, "status", "conditions"), "message")


def _paragraph(label: str, text: str, width: int, style: str = "") -> list[Line]:
    return labelled(label, text, style=style, label_width=_LABEL, width=width) if text else []


def _start(resource: Manifest, now: datetime) -> list[Line]:
    startup = reading.mapping(resource, "status", "startup")
    stage = reading.text(startup, "stage")
    if not stage:
        return []
    since = age(reading.moment(startup, "stageSince"), now)
    spans = stage_bar(startup, now)
    lines = [line(Span(f"{'Start':<{_LABEL}}", BOLD), Span(stage, CYAN), Span(f" for {since}" if since else "", DIM))]
    if spans:
        lines.append(line(" " * _LABEL, *spans))
    pods = list(reading.objects(startup, "pods"))
    if len(pods) > 1:
        for pod in pods:
            completed, total = reading.integer(pod, "completed"), reading.integer(pod, "total")
            done = f" {completed}/{total}" if completed is not None and total else ""
            lines.append(line(" " * _LABEL, Span(f"{reading.text(pod, 'name')}: {reading.text(pod, 'stage')}{done}", DIM)))
    return lines


def _crash(resource: Manifest, crashed: Manifest, now: datetime, width: int) -> list[Line]:
    last = reading.mapping(resource, "status", "lastCrash")
    message = _COMMAND_IN_STATUS.sub("", reading.text(crashed, "message"))
    link = _LINK.search(message)
    cause, _, remedy = _LINK.sub("", message).partition(" What to do: ")
    since = age(reading.moment(last, "time"), now)
    lines = _paragraph("Crash", f"{reading.text(crashed, 'reason')}{f', {since} ago' if since else ''}", width, RED)
    lines += _paragraph("Cause", reading.text(last, "cause") or cause, width)
    lines += _paragraph("What to do", reading.text(last, "remedy") or remedy, width, BOLD)
    lines += _command(resource)
    lines += _paragraph("See", link[1] if link else "", width, DIM)
    return lines + _paragraph("Log", clean(reading.text(last, "excerpt")), width, DIM)


def _command(resource: Manifest) -> list[Line]:
    """Return the suggested command on one line, so that it can be copied."""
    for part in ("remediation", "lastCrash"):
        command = reading.text(resource, "status", part, "command")
        if command:
            return [line(Span(f"{'Command':<{_LABEL}}", BOLD), Span(command, GREEN))]
    return []


def _last_crash(resource: Manifest, now: datetime, width: int) -> list[Line]:
    last = reading.mapping(resource, "status", "lastCrash")
    signature = reading.text(last, "signature")
    if not signature:
        return []
    since = age(reading.moment(last, "time"), now)
    text = f"{signature}{f', {since} ago' if since else ''}. {reading.text(last, 'cause')}".rstrip()
    return _paragraph("Last crash", text, width, DIM)


def _gpu(resource: Manifest, width: int) -> list[Line]:
    planned = reading.named(resource, PLANNED, "status", "conditions")
    message = reading.text(planned, "message").removeprefix("Planned for ")
    if not message or message == _message(resource, READY):
        return []
    gpu, *parts = _PARTS.split(message)
    lines = _paragraph("GPU", gpu, width)
    plan = reading.mapping(resource, "status", "pinnedPlan")
    for part in (*parts, _memory(plan)):
        lines += _paragraph("", part, width, DIM)
    return lines + _paragraph("Image", reading.text(plan, "image"), width)


def _memory(plan: Manifest) -> str:
    """Compare the predicted and the measured memory of one GPU; empty without a measurement."""
    values = [
        (name, reading.integer(plan, "predicted", field), reading.integer(plan, "measured", field))
        for name, field in (("weights", "weightsMebibytes"), ("KV cache", "kvCacheMebibytes"))
    ]
    return "; ".join(
        f"{name}: predicted {predicted / 1024:.1f} GiB, measured {measured / 1024:.1f}"
        for name, predicted, measured in values
        if predicted is not None and measured is not None
    )


def _replicas(resource: Manifest) -> str:
    ready, existing = (reading.integer(resource, "status", field) for field in ("readyReplicas", "replicas"))
    wanted = reading.integer(resource, "spec", "replicas")
    wanted = 1 if wanted is None else wanted
    others = f", {count(existing, 'Pod')} in total" if existing is not None and existing != wanted else ""
    return f"{ready or 0} of {wanted} ready{others}"


def _caches(resource: Manifest, width: int) -> list[Line]:
    cache = reading.mapping(resource, "status", "cache")
    if not cache:
        return []
    claim, state = reported_cache_claim(resource), reading.text(cache, "state")
    starts = [
        f"{kind} start {duration(seconds)}"
        for kind in ("cold", "warm")
        if (seconds := reading.integer(cache, f"{kind}StartSeconds")) is not None
    ]
    # the status has no state while the caches are cold or without a PVC
    facts = ", ".join(filter(None, (state or ("Cold" if claim else ""), f"PVC {claim}" if claim else "", *starts)))
    return _paragraph("Caches", f"{facts}. {_message(resource, CACHE_WARM)}", width)


def _events(events: Iterable[Manifest], now: datetime, width: int) -> list[Line]:
    shown = newest(events)[:EVENTS_SHOWN]
    lines: list[Line] = [(), line(Span("Events", BOLD))] if shown else []
    for when, event in shown:
        style = YELLOW if reading.text(event, "type") == "Warning" else ""
        times = reading.integer(event, "count") or 1
        head = f"  {age(when, now) or '?':>7}  {clean(reading.text(event, 'reason'), 64)}{f' ({times} times)' if times > 1 else ''}"
        room = max(0, width - len(head) - 2)
        lines.append(line(Span(head, style), Span(f"  {clean(reading.text(event, 'message'), room)}", DIM)))
    return lines


def newest(events: Iterable[Manifest]) -> Sequence[tuple[datetime | None, Manifest]]:
    """Return events with their times, newest first, and without a time last."""
    timed = [(_time_of(event), event) for event in events]
    return sorted(timed, key=lambda pair: (pair[0] is None, -(pair[0].timestamp() if pair[0] else 0.0)))


def _time_of(event: Manifest) -> datetime | None:
    fields = (("lastTimestamp",), ("series", "lastObservedTime"), ("eventTime",), ("metadata", "creationTimestamp"))
    return next((when for path in fields if (when := reading.moment(event, *path)) is not None), None)
