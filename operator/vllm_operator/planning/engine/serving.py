"""How an engine serves: flags that follow from the spec alone, the clients' key, host resources, the deadline of a start, and draining.

The deadline ends a start that hangs. It is not an estimate: it must never end a start that makes progress, because the next start would
load the weights again and repeat most of the compilation. `--distributed-timeout-seconds` (vLLM 0.18 and later, default 600 s) stays at its
default, although one rank may compile for longer while another one waits: the same timeout ends collectives that hang while serving.

When a Pod is deleted, Kubernetes removes it from the endpoints of the Service and runs its preStop hook at the same time. The hook
sleeps, so that clients and proxies learn of the change before the engine stops accepting connections. Then the engine gets SIGTERM. Up to
vLLM 0.17 it finishes its requests; from 0.18 on it aborts them at once, unless `--shutdown-timeout` gives them time
(vllm/v1/engine/core.py 0.18.0:1199). From 0.27 on its HTTP server goes on listening, and requests that arrive then are aborted, so
clients and proxies get more time to learn of the change. The kubelet kills the Pod after `terminationGracePeriodSeconds`, which begins
with the preStop hook.

The engine container requests CPU and memory, so that it is not the first to be evicted from a full node. vLLM's documentation recommends
two cores and one for each GPU (docs/configuration/optimization.md). An engine process takes 4 to 6 GiB of host memory, partly shared.
Loading streams the files through the page cache.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.plan import Plan, PlannedArgument, PlannedRequests, PlannedVariable
from vllm_operator.api.reading import MEBIBYTE, mapping, named
from vllm_operator.api.spec import ModelSpec, VLLMDeploymentSpec
from vllm_operator.catalog.notes import Note, note
from vllm_operator.catalog.versions import VersionTable, load_engine_facts
from vllm_operator.planning.engine.image import ResolvedVersion
from vllm_operator.planning.engine.overrides import Overrides
from vllm_operator.sizing.parallelism import ParallelShape
from vllm_operator.text.wording import listed

PORT = 8000
"""Port of the engine. Its probes and the Service use it."""
CHOSEN = "The smallest number of GPUs on which the model fits."
SHORTENED, WANTED = "The longest context that fits on the GPU.", "From spec.sizing.contextLength."
API_KEY_VARIABLE, API_KEY_FLAG = "VLLM_API_KEY", "--api-key"

SERVER_CORES, CORES_PER_GPU = 1, 1
"""One core less than vLLM recommends: the smallest machines with a GPU have four, and other Pods need some."""
SERVER_GIB, GIB_PER_GPU = 2, 4
"""Memory of the server with its tokenizer, and of each engine process including its part of /dev/shm."""

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

DRAIN_SECONDS = 60
"""Default time in seconds for requests in progress."""
ENDPOINT_SECONDS = 10
"""Time in seconds until clients and proxies stop sending requests to a Pod that is being deleted."""
OPEN_LISTENER_SECONDS = 20
"""The same for an engine that aborts late requests instead of refusing the connection."""
EXIT_SECONDS = 10
"""Time in seconds for the engine to exit after its last request."""
SHUTDOWN_FLAG = "--shutdown-timeout"


def engine_arguments(
    model: ModelSpec, version: ResolvedVersion, parallel: ParallelShape, *, chosen: bool, length: int | None, shortened: bool
) -> list[PlannedArgument]:
    """Return the flags that follow from the spec, as far as this version has them.

    `chosen`: whether the operator chose the parallel sizes. `length` is the context length to set; None for the model's default.
    `shortened`: whether the operator chose it because the model's context does not fit.
    """

    def size(number: int) -> str | None:
        return str(number) if number > 1 else None

    wanted = [
        ("--port", str(PORT), "Port of the probes and the Service."),
        ("--served-model-name", served_name(model), "Model name for clients."),
        ("--revision", model.revision, "From spec.model.revision."),
        ("--tensor-parallel-size", size(parallel.tensor), CHOSEN if chosen else "From spec.parallelism or spec.accelerator."),
        ("--pipeline-parallel-size", size(parallel.pipeline), "From spec.parallelism.pipeline."),
        ("--data-parallel-size", size(parallel.data), "From spec.parallelism.data."),
        ("--max-model-len", str(length) if length is not None else None, SHORTENED if shortened else WANTED),
    ]
    args = [PlannedArgument(name=name, value=value, reason=reason) for name, value, reason in wanted if value is not None]
    if parallel.expert:
        args.append(PlannedArgument(name="--enable-expert-parallel", reason=CHOSEN if chosen else "From spec.parallelism.expert."))
    return [arg for arg in args if version.table is None or version.table.knows_flag(arg.name)]


def served_name(model: ModelSpec) -> str | None:
    """Return the model name for clients; None if the engine's default is correct."""
    if model.served_name is not None:
        return model.served_name
    scheme, _, rest = model.uri.partition("://")
    return None if scheme == "hf" else rest.rstrip("/")


def access_notes(spec: VLLMDeploymentSpec, overrides: Overrides, version: str | None) -> list[Note]:
    """Return notes about the key: which paths it protects in this version, and whether a user setting replaces it."""
    if spec.auth is None:
        return []
    notes = [note("auth.paths", paths=listed(load_engine_facts().paths_with_key(version), "and"))]
    replacing = [name for name in (API_KEY_VARIABLE, API_KEY_FLAG) if name in overrides.variables or name in overrides.arguments]
    return [*notes, note("auth.replaced", settings=" and ".join(replacing))] if replacing else notes


def plan_requests(gpus: int, offload_gib: float, template: Mapping[str, Any] | None) -> PlannedRequests:
    """Return the requests of the engine container. Resources that `spec.podTemplate` requests or limits are omitted.

    `gpus` is the number of GPUs of a replica, `offload_gib` the weights in the host's memory for each (`--cpu-offload-gb`). Any template is
    valid input.
    """
    ranks = max(gpus, 1)
    memory = SERVER_GIB + ranks * (GIB_PER_GPU + math.ceil(offload_gib))
    engine = named(template, CONTAINER, "spec", "containers", key="name")
    given = {*mapping(engine, "resources", "requests"), *mapping(engine, "resources", "limits")}  # a null removes the resource
    return PlannedRequests(
        cpu=None if "cpu" in given else str(SERVER_CORES + ranks * CORES_PER_GPU),
        memory=None if "memory" in given else f"{memory}Gi",
    )


def plan_deadline(spec: VLLMDeploymentSpec, weight_bytes: int | None, in_force: Plan | None) -> int:
    """Return the deadline of a start to plan, in seconds. A plan in force keeps its deadline.

    It is `startup.deadlineSeconds`, or else one hour plus the time to read the weights at 100 MiB/s, and for a model on the hub to download
    them at the same speed. A warm start has the same deadline, because whether it is warm is known only afterwards.
    """
    if in_force is not None:
        return in_force.deadline_seconds
    if spec.startup and spec.startup.deadline_seconds:
        return spec.startup.deadline_seconds
    passes, speed = 2 if spec.model.uri.startswith("hf://") else 1, SLOW_DOWNLOAD_MEBIBYTES_PER_SECOND * MEBIBYTE
    weights = UNKNOWN_WEIGHTS_SECONDS if weight_bytes is None else math.ceil(passes * weight_bytes / speed)
    return min(BASE_DEADLINE_SECONDS + weights, MAX_DEADLINE_SECONDS)


def plan_patience(deadline: int, table: VersionTable | None) -> list[PlannedVariable]:
    """Return the variable that gives the engine as much time as the startup probe, if this version has one.

    The value follows from the plan alone. The variable is part of vLLM's key of compiled graphs, so a value that changed
    between starts would make every start cold.
    """
    if table is None or not table.knows_variable(READY_TIMEOUT):
        return []
    return [PlannedVariable(name=READY_TIMEOUT, value=str(deadline), reason="Same time limit as the startup probe.")]


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
    grace = mapping(spec.pod_template, "spec").get("terminationGracePeriodSeconds")
    needed = grace_seconds(drain.seconds, drain.endpoint_seconds)
    return [note("drain.too-short", grace=grace, needed=needed)] if drain.seconds and type(grace) is int and grace < needed else []
