"""An object and its events as `kubectl describe` prints them, so that the pages can be read and counted as people will see them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vllm_operator.api.conditions import EventDraft
from vllm_operator.api.status import VLLMDeploymentStatus


def describe(status: VLLMDeploymentStatus, events: Iterable[EventDraft] = (), *, spec: Mapping[str, Any]) -> str:
    """The whole page of an object with a spec."""
    head = {"Name": "vllm-a", "Namespace": "models", "Labels": "<none>", "Annotations": "<none>"}
    head |= {"API Version": "vllm-operator.dev/v1alpha1", "Kind": "VLLMDeployment"}
    metadata = {"creationTimestamp": "2026-11-21T10:05:00Z", "generation": 3, "resourceVersion": "4711", "uid": "uid-vllm-a"}
    lines = [*(f"{label + ':':<13} {value}" for label, value in head.items()), "Metadata:", *_lines(metadata, 2)]
    lines += ["Spec:", *_lines(spec, 2), "Status:", *_lines(status.to_json(), 2), *_event_lines(events)]
    return "\n".join(lines) + "\n"


def _lines(data: Mapping[str, Any], indent: int) -> Iterator[str]:
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
    """One line for each series of events, which is one object with the latest message."""
    shown = {event.series or event.key: (event.type, event.reason, "1m", "vllm-operator", event.message) for event in events}
    if not shown:
        return ["Events:  <none>"]
    rows = [("Type", "Reason", "Age", "From", "Message"), ("----", "------", "----", "----", "-------"), *shown.values()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "Events:",
        *("  " + "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows),
    ]
