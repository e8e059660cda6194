"""Draining: requests in progress finish before a Pod ends.

When a Pod is deleted, Kubernetes removes it from the endpoints of the Service and runs its preStop hook at the same time. The hook
sleeps, so that clients and proxies learn of the change before the engine stops accepting connections. Then the engine gets SIGTERM. Up to
vLLM 0.17 it finishes its requests; from 0.18 on it aborts them at once, unless `--shutdown-timeout` gives them time
(vllm/v1/engine/core.py 0.18.0:1199). The kubelet kills the Pod after `terminationGracePeriodSeconds`, which begins with the preStop hook.
"""

from vllm_operator.api.plan import PlannedArgument
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.catalog.rules import Severity
from vllm_operator.catalog.versions import VersionTable
from vllm_operator.planning.engine.overrides import Overrides
from vllm_operator.planning.notes import Note
from vllm_operator.pods.reading import mapping

DRAIN_SECONDS = 60
"""Default time for requests in progress."""
ENDPOINT_SECONDS = 10
"""Time until clients and proxies stop sending requests to a Pod that is being deleted."""
EXIT_SECONDS = 10
"""Time for the engine to exit after its last request."""
SHUTDOWN_FLAG = "--shutdown-timeout"


def drain_seconds(spec: VLLMDeploymentSpec, overrides: Overrides) -> int:
    """Return how long requests in progress may take after the engine was told to stop, in seconds; 0 if they are aborted."""
    given = overrides.arguments.get(SHUTDOWN_FLAG) or ""
    if given.isascii() and given.isdigit() and len(given) < 6:
        return int(given)
    wanted = spec.rollout.drain_seconds if spec.rollout else None
    return DRAIN_SECONDS if wanted is None else wanted


def drain_arguments(seconds: int, table: VersionTable | None) -> list[PlannedArgument]:
    """Return the flag that gives requests this time, if this version has it."""
    if not seconds or table is None or not table.knows_flag(SHUTDOWN_FLAG):
        return []
    reason = "Requests in progress finish before a Pod stops: spec.rollout.drainSeconds."
    return [PlannedArgument(name=SHUTDOWN_FLAG, value=str(seconds), reason=reason)]


def grace_seconds(seconds: int) -> int:
    """Return the `terminationGracePeriodSeconds` of a Pod that drains for this time."""
    return ENDPOINT_SECONDS + seconds + EXIT_SECONDS


def drain_notes(spec: VLLMDeploymentSpec, seconds: int) -> list[Note]:
    """Return a note if `spec.podTemplate` leaves less time than draining may take."""
    grace = mapping(spec.pod_template, "spec").get("terminationGracePeriodSeconds")
    if not seconds or type(grace) is not int or grace >= grace_seconds(seconds):
        return []
    text = (
        f"spec.podTemplate sets terminationGracePeriodSeconds to {grace}, but draining may take {grace_seconds(seconds)} s. Requests that "
        "run longer are lost when a Pod stops. Raise it, remove it, or lower spec.rollout.drainSeconds."
    )
    return [Note(Severity.RISK, text)]
