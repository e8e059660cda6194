"""A status and its events as `kubectl describe` prints them, so that the pages can be read as people will read them."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from vllm_operator.api.events import EventDraft
from vllm_operator.api.status import VLLMDeploymentStatus


def describe(status: VLLMDeploymentStatus, events: Iterable[EventDraft] = (), *, without: Iterable[str] = ()) -> str:
    """The page, without the parts of the status named in `without`."""
    data = {key: value for key, value in status.to_json().items() if key not in without}
    lines = ["Status:", *_lines(data, 2), "Events:", *(_event_lines(events) or ["  <none>"])]
    return "\n".join(lines) + "\n"


def _lines(data: dict[str, Any], indent: int) -> Iterator[str]:
    width = max((len(_label(key)) for key, value in data.items() if not isinstance(value, dict | list)), default=0)
    for key in sorted(data, key=_label):
        value, label = data[key], _label(key)
        if isinstance(value, dict):
            yield f"{' ' * indent}{label}:"
            yield from _lines(value, indent + 2)
        elif isinstance(value, list):
            yield f"{' ' * indent}{label}:"
            for item in value:
                yield from _lines(item, indent + 2) if isinstance(item, dict) else [f"{' ' * (indent + 2)}{item}"]
        else:
            yield f"{' ' * indent}{label + ':':<{width + 1}}  {value}"


def _label(key: str) -> str:
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", key)
    return " ".join(word[0].upper() + word[1:] for word in words)


def _event_lines(events: Iterable[EventDraft]) -> list[str]:
    return [f"  {event.type:<8} {event.reason:<20} {event.message}" for event in events]
