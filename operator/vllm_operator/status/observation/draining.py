"""Pods that finish their requests before they stop.

The log contains the number of requests: vLLM writes a line with the running and waiting requests every 10 s while it is not idle, in all
versions from 0.11.0 to 0.33.0 (vllm/v1/metrics/loggers.py). The HTTP server cannot be asked: from 0.18 to 0.26 it accepts no connections
while it drains (vllm/entrypoints/launcher.py), a NetworkPolicy may exclude the operator, and the permission for requests through the API
server (`pods/proxy`) would allow requests to every Pod.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from vllm_operator.api import reading
from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.reading import Manifest

_LOGGED = re.compile(r"(?:(\d+) Engines Aggregated|Engine (\d+)): .{0,200}?\bRunning: (\d{1,9}) reqs, Waiting: (\d{1,9}) reqs")


@dataclass(frozen=True, slots=True)
class DrainingPod:
    """A draining Pod. `until` is when it is killed at the latest; `requests` is the number of unfinished requests, None if unknown."""

    name: str
    until: datetime
    requests: int | None = None


def draining_until(pod: Manifest) -> datetime | None:
    """Return when a draining Pod is killed; None if the Pod is not draining.

    A Pod is draining if it is being deleted, its engine has served and still runs, and a preStop hook delays the end.
    """
    engine = reading.named(pod, CONTAINER, "status", "containerStatuses", key="name")
    serves = reading.flag(engine, "started") and "running" in reading.mapping(engine, "state")
    container = reading.named(pod, CONTAINER, "spec", "containers", key="name")
    if not serves or not reading.mapping(container, "lifecycle", "preStop"):
        return None
    return reading.moment(pod, "metadata", "deletionTimestamp")  # includes the grace period


def read_requests(lines: Iterable[str]) -> int | None:
    """Return the running and waiting requests of an engine, from the last log line with these numbers; None without one.

    With data parallelism there is a line for each rank, or one for all.
    """
    ranks: dict[str, int] = {}
    for line in lines:
        if found := _LOGGED.search(line):
            number = int(found[3]) + int(found[4])
            ranks = {"": number} if found[1] else {**{rank: n for rank, n in ranks.items() if rank}, found[2]: number}
    return sum(ranks.values()) if ranks else None
