"""How long a start may take, and how the engine is told.

The budget is a ceiling against a start that hangs for good, not an estimate: it must never end a start that makes
progress, because most of what was compiled and all that was loaded by then is paid for again.

`--distributed-timeout-seconds` (vLLM 0.18 and later, 600 s by default) is left alone, although one rank may compile for
long while another waits for it: it also ends collectives that hang while serving, and an hour of that is no remedy.
"""

import math

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.status import PlannedVariable
from vllm_operator.catalog.versions import VersionTable
from vllm_operator.pods.quantities import MEBIBYTE, read_bytes

BASE_DEADLINE_SECONDS = 3600
"""Eight times the slowest cold start measured (459 s), for slower disks, CPUs and larger models."""
SLOW_DOWNLOAD_MEBIBYTES_PER_SECOND = 100
"""What is assumed of a hub or a file system that is slow but works."""
UNKNOWN_WEIGHTS_SECONDS = 7200
"""What weights of unknown size may take: 700 GiB at the speed above."""
MAX_DEADLINE_SECONDS = 86400
READY_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"
"""How long the front end of the engine waits for its engine cores (vllm/envs.py, since 0.14.0, 600 s by default). It counts
where several front ends are used, as with data parallelism; then a long startup probe alone does not save a cold start."""


def deadline_seconds(spec: VLLMDeploymentSpec) -> int:
    """How long a start may take, in seconds, before the kubelet gives it up.

    `startup.deadlineSeconds` if given. Else an hour for everything that is compiled, plus the weights at
    100 MiB/s: an hour and a half for 200 GiB, three hours where the size of the weights is not known.
    A warm start needs a fraction of it, and is not given less: whether it is warm shows only afterwards.
    """
    if spec.startup and spec.startup.deadline_seconds:
        return spec.startup.deadline_seconds
    size = read_bytes(spec.model.facts.weight_size) if spec.model.facts else None
    weights = UNKNOWN_WEIGHTS_SECONDS if size is None else math.ceil(size / (SLOW_DOWNLOAD_MEBIBYTES_PER_SECOND * MEBIBYTE))
    return min(BASE_DEADLINE_SECONDS + weights, MAX_DEADLINE_SECONDS)


def plan_patience(spec: VLLMDeploymentSpec, table: VersionTable | None) -> list[PlannedVariable]:
    """Give the engine as much time as the startup probe, where this version knows how to be told.

    The value follows from the spec alone and is the same for every start: vLLM counts this variable into the key of
    its compiled graphs, so that one that changed from start to start would make every start cold.
    """
    if table is None or not table.knows_variable(READY_TIMEOUT):
        return []
    reason = "The engine waits for its processes as long as the startup probe waits for the engine."
    return [PlannedVariable(name=READY_TIMEOUT, value=str(deadline_seconds(spec)), reason=reason)]
