"""Deadline of a start.

The deadline ends a start that hangs. It is not an estimate: it must never end a start that makes progress, because the next start would
load the weights again and repeat most of the compilation.

`--distributed-timeout-seconds` (vLLM 0.18 and later, default 600 s) stays at its default, although one rank may compile for longer while
another one waits. The same timeout ends collectives that hang while serving, which must not take an hour.
"""

import math

from vllm_operator.api.plan import Plan, PlannedVariable
from vllm_operator.api.reading import MEBIBYTE
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.catalog.versions import VersionTable

BASE_DEADLINE_SECONDS = 3600
"""Eight times the slowest measured cold start (459 s), to allow for slower disks, slower CPUs and larger models."""
SLOW_DOWNLOAD_MEBIBYTES_PER_SECOND = 100
"""Assumed speed of a slow hub or file system."""
UNKNOWN_WEIGHTS_SECONDS = 7200
"""Time for weights of unknown size: 700 GiB at that speed."""
MAX_DEADLINE_SECONDS = 86400
READY_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"
"""Timeout of an engine front end for the engine cores (vllm/envs.py, since 0.14.0, default 600 s). It applies with several front ends,
for example with data parallelism. Then a long startup probe alone does not protect a cold start.
"""


def plan_deadline(spec: VLLMDeploymentSpec, weight_bytes: int | None, in_force: Plan | None) -> int:
    """Return the deadline of a start to plan, in seconds. A plan in force keeps its deadline.

    It is `startup.deadlineSeconds`, or else one hour plus the time to read the weights at 100 MiB/s, and for a model on the hub to download
    them at the same speed. A warm start has the same deadline, because whether it is warm is known only afterwards.

    Args:
        spec: The spec.
        weight_bytes: Size of the weights; None if unknown.
        in_force: The plan in force, if there is one.
    """
    if in_force is not None:
        return in_force.deadline_seconds
    if spec.startup and spec.startup.deadline_seconds:
        return spec.startup.deadline_seconds
    return _deadline(weight_bytes, passes=2 if spec.model.uri.startswith("hf://") else 1)


def _deadline(size: int | None, *, passes: int) -> int:
    speed = SLOW_DOWNLOAD_MEBIBYTES_PER_SECOND * MEBIBYTE
    weights = UNKNOWN_WEIGHTS_SECONDS if size is None else math.ceil(passes * size / speed)
    return min(BASE_DEADLINE_SECONDS + weights, MAX_DEADLINE_SECONDS)


def plan_patience(deadline: int, table: VersionTable | None) -> list[PlannedVariable]:
    """Return the variable that gives the engine as much time as the startup probe, if this version has one.

    The value follows from the plan alone. The variable is part of vLLM's key of compiled graphs, so a value that changed
    between starts would make every start cold.
    """
    if table is None or not table.knows_variable(READY_TIMEOUT):
        return []
    reason = "Same time limit as the startup probe."
    return [PlannedVariable(name=READY_TIMEOUT, value=str(deadline), reason=reason)]
