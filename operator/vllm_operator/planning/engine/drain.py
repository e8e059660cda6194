"""Draining: requests in progress finish before a Pod ends.

When a Pod is deleted, Kubernetes removes it from the endpoints of the Service and runs its preStop hook at the same time. The hook
sleeps, so that clients and proxies learn of the change before the engine stops accepting connections. Then the engine gets SIGTERM. Up to
vLLM 0.17 it finishes its requests; from 0.18 on it aborts them at once, unless `--shutdown-timeout` gives them time
(vllm/v1/engine/core.py 0.18.0:1199). From 0.27 on its HTTP server goes on listening, and requests that arrive then are aborted, so
clients and proxies get more time to learn of the change. The kubelet kills the Pod after `terminationGracePeriodSeconds`, which begins
with the preStop hook.
"""

from dataclasses import dataclass

from vllm_operator.api.plan import PlannedArgument
from vllm_operator.api.reading import mapping
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.catalog.notes import Note
from vllm_operator.catalog.rules import Severity
from vllm_operator.catalog.versions import VersionTable, load_engine_facts
from vllm_operator.planning.engine.overrides import Overrides

DRAIN_SECONDS = 60
"""Default time in seconds for requests in progress."""
ENDPOINT_SECONDS = 10
"""Time in seconds until clients and proxies stop sending requests to a Pod that is being deleted."""
OPEN_LISTENER_SECONDS = 20
"""The same for an engine that aborts late requests instead of refusing the connection."""
EXIT_SECONDS = 10
"""Time in seconds for the engine to exit after its last request."""
SHUTDOWN_FLAG = "--shutdown-timeout"


@dataclass(frozen=True, slots=True)
class Drain:
    """Durations of a Pod's shutdown.

    `seconds` is the time for requests in progress after SIGTERM; 0 if they are aborted. `endpoint_seconds` is the time before that; None
    for the default.
    """

    seconds: int
    endpoint_seconds: int | None = None


def plan_drain(spec: VLLMDeploymentSpec, overrides: Overrides, version: str | None) -> Drain:
    """Plan the shutdown of Pods with this version."""
    given = overrides.arguments.get(SHUTDOWN_FLAG) or ""
    wanted = spec.rollout.drain_seconds if spec.rollout else None
    seconds = DRAIN_SECONDS if wanted is None else wanted
    if given.isascii() and given.isdigit() and len(given) < 6:
        seconds = int(given)
    return Drain(seconds, OPEN_LISTENER_SECONDS if seconds and load_engine_facts().listens_while_draining(version) else None)


def drain_arguments(drain: Drain, table: VersionTable | None) -> list[PlannedArgument]:
    """Return the flag for the time of requests in progress, if this version has it."""
    if not drain.seconds or table is None or not table.knows_flag(SHUTDOWN_FLAG):
        return []
    reason = "Requests in progress finish before a Pod stops: spec.rollout.drainSeconds."
    return [PlannedArgument(name=SHUTDOWN_FLAG, value=str(drain.seconds), reason=reason)]


def grace_seconds(seconds: int, endpoint_seconds: int | None) -> int:
    """Return the `terminationGracePeriodSeconds` of a Pod with these durations."""
    return (endpoint_seconds or ENDPOINT_SECONDS) + seconds + EXIT_SECONDS


def drain_notes(spec: VLLMDeploymentSpec, drain: Drain) -> list[Note]:
    """Return a note if `spec.podTemplate` leaves too little time for draining."""
    grace, needed = (
        mapping(spec.pod_template, "spec").get("terminationGracePeriodSeconds"),
        grace_seconds(drain.seconds, drain.endpoint_seconds),
    )
    if not drain.seconds or type(grace) is not int or grace >= needed:
        return []
    text = (
        f"spec.podTemplate sets terminationGracePeriodSeconds to {grace}, but draining may take {needed} s. Requests that "
        "run longer are lost when a Pod stops. Raise it, remove it, or lower spec.rollout.drainSeconds."
    )
    return [Note(Severity.RISK, text)]
