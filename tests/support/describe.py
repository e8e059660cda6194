"""An object and its events as `kubectl get` and `kubectl describe` print them, so that the pages can be read and counted."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import READING_IMAGE, READY, ROLLED_BACK, STALLED, WHILE_ASKED, EventDraft, find_condition
from vllm_operator.api.crd import custom_resource_definition
from vllm_operator.api.status import VLLMDeploymentStatus
from vllm_operator.cli.terminal import age

COLUMNS = custom_resource_definition()["spec"]["versions"][0]["additionalPrinterColumns"]


def get(resource: Mapping[str, Any], now: datetime) -> str:
    """The table of one object."""
    shown = [column for column in COLUMNS if not column.get("priority")]
    cells = [resource["metadata"]["name"], *(str(_at(resource, column["jsonPath"])) for column in shown)]
    cells[-1] = age(reading.moment(cells[-1]), now).replace(" ", "")
    titles = ["NAME", *(column["name"].upper() for column in shown)]
    pairs = list(zip(titles, cells, strict=True))
    lines = [[cell.ljust(max(map(len, pair))) for cell, pair in zip(row, pairs, strict=True)] for row in (titles, cells)]
    return "\n".join("   ".join(line).rstrip() for line in lines) + "\n"


def _at(resource: Mapping[str, Any], path: str) -> Any:
    found: Any = resource
    for step in re.findall(r"\.(\w+)|\[\?\(@\.type==\"(\w+)\"\)\]", path):
        found = reading.named({"": found}, step[1], "") if step[1] else found.get(step[0], {})
    return found if found != {} else ""


LINES = {"serving": 48, "starting": 54, "crashed": 60}
"""Lines of the page of `kubectl describe` above the events, at most, with a spec of ten lines, and without conditions that are set only in
some situations."""


def lines_above_events(page: str) -> int:
    return len(page.partition("\nEvents:")[0].splitlines())


def most_lines(page: str, status: VLLMDeploymentStatus) -> int:
    """How many lines a page may have above the events."""
    ready = find_condition(status.conditions, READY)
    situation = "crashed" if status.last_crash else "serving" if ready is not None and ready.status == "True" else "starting"
    more = sum(condition.type in (*WHILE_ASKED, STALLED, ROLLED_BACK, READING_IMAGE) for condition in status.conditions)
    others = len(status.startup.pods or ()) if status.startup is not None else 0
    measured = 5 if situation == "serving" and status.startup is not None else 0
    lines = page.splitlines()
    spec, avoided = lines.index("Status:") - lines.index("Spec:") - 1, 3 if status.avoided_nodes else 0
    url = situation == "crashed" and status.url is not None
    return LINES[situation] + spec - 10 + 6 * more + 2 * others + measured + avoided + (8 if status.rollback else 0) + url


def describe(status: VLLMDeploymentStatus, events: Iterable[EventDraft] = (), *, spec: Mapping[str, Any]) -> str:
    """The whole page of an object with a spec."""
    metadata = {"creationTimestamp": "2026-11-21T10:05:00Z", "generation": 3, "resourceVersion": "4711", "uid": "uid-vllm-a"}
    resource = {"metadata": {"name": "vllm-a", "namespace": "models", **metadata}, "spec": spec, "status": status.to_json()}
    shown = {event.series or event.key: (event.type, event.reason, "1m", "vllm-operator", event.message) for event in events}
    return describe_live(resource, [*shown.values()])


def describe_live(resource: Mapping[str, Any], events: Iterable[tuple[str, ...]]) -> str:
    """The whole page of an object as read, and of its events: type, reason, age, component and message."""
    metadata = {name: value for name, value in resource["metadata"].items() if name not in ("managedFields", *_HEAD)}
    head = {"Name": resource["metadata"]["name"], "Namespace": resource["metadata"]["namespace"], "Labels": "<none>"}
    annotations = [f"{name}: {value}" for name, value in resource["metadata"].get("annotations", {}).items()] or ["<none>"]
    head |= {"Annotations": f"\n{'':<14}".join(annotations)}
    head |= {"API Version": "vllm-operator.dev/v1alpha1", "Kind": "VLLMDeployment"}
    lines = [*(f"{label + ':':<13} {value}" for label, value in head.items()), "Metadata:", *_lines(metadata, 2)]
    lines += ["Spec:", *_lines(resource["spec"], 2), "Status:", *_lines(resource["status"], 2), *_event_lines(list(events))]
    return "\n".join(lines) + "\n"


_HEAD = ("name", "namespace", "annotations")


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


def _event_lines(events: list[tuple[str, ...]]) -> list[str]:
    """One line for each series of events, which is one object with the latest message."""
    if not events:
        return ["Events:  <none>"]
    rows = [("Type", "Reason", "Age", "From", "Message"), ("----", "------", "----", "----", "-------"), *events]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "Events:",
        *("  " + "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows),
    ]
