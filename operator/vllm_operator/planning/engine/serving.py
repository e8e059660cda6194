"""How an engine serves: flags that follow from the spec alone, the clients' key, host resources, the deadline of a start, and draining.

The deadline ends a start that hangs. It must never end a start that makes progress, because the next start would load the weights again
and repeat most of the compilation. `--distributed-timeout-seconds` (vLLM 0.18 and later, default 600 s) stays at its default, although one
rank may compile for longer while another one waits: the same timeout ends collectives that hang while serving.

When a Pod is deleted, Kubernetes removes it from the endpoints of the Service and runs its preStop hook at the same time. The hook
sleeps, so that clients and proxies learn of the change before the engine gets SIGTERM. Up to vLLM 0.17 it finishes its requests; from 0.18
on it aborts them, unless `--shutdown-timeout` gives them time (vllm/v1/engine/core.py 0.18.0:1199). From 0.27 on its HTTP server goes on
listening, and requests that arrive then are aborted. A server whose requests take longer than `--shutdown-timeout` kills its engine, and
then waits for its clients without a limit (seen with 0.32.0 for up to 60 s), so only SIGKILL at the end of `terminationGracePeriodSeconds`
is certain. That period begins with the preStop hook.

The engine container requests CPU and memory, so that it is not the first to be evicted from a full node. vLLM's documentation recommends
two cores and one for each GPU (docs/configuration/optimization.md). An engine process takes 4 to 6 GiB of host memory, partly shared.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.plan import Plan, PlannedArgument, PlannedRequests, PlannedVariable
from vllm_operator.api.reading import MEBIBYTE, mapping, named
from vllm_operator.api.spec import ModelSpec, VLLMDeploymentSpec
from vllm_operator.catalog.caches import STACKS_ROOT
from vllm_operator.catalog.notes import Note, note
from vllm_operator.catalog.versions import VersionTable, load_engine_facts
from vllm_operator.planning.engine.image import ResolvedVersion
from vllm_operator.planning.engine.overrides import Overrides
from vllm_operator.sizing.parallelism import ParallelShape
from vllm_operator.text.wording import listed

PORT = 8000
"""Port of the engine. Its probes and the Service use it."""
CHOSEN = "The smallest number of GPUs on which the model fits."
OVER_NODES, FROM_PIPELINE = "The model fits on no single node.", "From spec.parallelism."
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
LOAD_FLAG, WATCHDOG_FLAG = "--enable-server-load-tracking", "--watchdog-config"
WATCHDOG_CONFIG = json.dumps({"dump_dir": STACKS_ROOT, "timeout": 60})
STACKS = PlannedVariable(name="PYTHONFAULTHANDLER", value="1", reason="Writes the stacks of all threads into the log of a crash.")
"""Makes Python write the stacks of all threads when a process is ended by SIGABRT or by an error in native code."""


def engine_arguments(
    spec: VLLMDeploymentSpec, version: ResolvedVersion, parallel: ParallelShape, *, chosen: bool, length: int | None
) -> list[PlannedArgument]:
    """Return the flags of this version that follow from the spec. `chosen`: whether the operator chose the parallel sizes."""
    aliases = spec.model.aliases or ()
    name, revision, many = served_name(spec.model), spec.model.revision, CHOSEN if chosen else "From spec.parallelism or spec.accelerator."
    shortened = spec.sizing is None or spec.sizing.context_length is None
    wanted = (
        (True, "--port", str(PORT), "Port of the probes and the Service."),
        (name is not None and not aliases, "--served-model-name", name, "Model name for clients."),
        (revision is not None, "--revision", revision, "From spec.model.revision."),
        (parallel.tensor > 1, "--tensor-parallel-size", str(parallel.tensor), many),
        (parallel.pipeline > 1, "--pipeline-parallel-size", str(parallel.pipeline), OVER_NODES if chosen else FROM_PIPELINE),
        (parallel.data > 1, "--data-parallel-size", str(parallel.data), "From spec.parallelism.data."),
        (length is not None, "--max-model-len", str(length), SHORTENED if shortened else WANTED),
        (parallel.expert, "--enable-expert-parallel", None, CHOSEN if chosen else "From spec.parallelism.expert."),
        (version.table is not None, LOAD_FLAG, None, "Shows requests that do not reach an engine that hangs."),
        (version.table is not None, WATCHDOG_FLAG, WATCHDOG_CONFIG, "Writes the stacks of an engine that hangs."),
    )
    args = [PlannedArgument(name=flag, value=value, reason=reason) for is_set, flag, value, reason in wanted if is_set]
    if aliases:
        names = list(dict.fromkeys((name or spec.model.uri.removeprefix("hf://"), *aliases)))
        args.insert(1, PlannedArgument(name="--served-model-name", values=names, reason="Model names for clients."))
    return [arg for arg in args if version.table is None or version.table.knows_flag(arg.name)]


def served_name(model: ModelSpec) -> str | None:
    """Return the model name for clients; None if the engine's default is correct."""
    return None if model.served_name is None and model.uri.startswith("hf://") else model.public_name


def access_notes(spec: VLLMDeploymentSpec, overrides: Overrides, version: str | None) -> list[Note]:
    """Return notes about the key: which paths it protects in this version, and whether a user setting replaces it."""
    if spec.auth is None:
        return []
    notes = [note("auth.paths", paths=listed(load_engine_facts().paths_with_key(version), "and"))]
    replacing = [name for name in (API_KEY_VARIABLE, API_KEY_FLAG) if name in overrides.variables or name in overrides.arguments]
    return [*notes, note("auth.replaced", settings=" and ".join(replacing))] if replacing else notes


def plan_requests(gpus: int, offload_gib: float, template: Mapping[str, Any] | None) -> PlannedRequests:
    """Return the requests that any `spec.podTemplate` leaves to the operator. `offload_gib`: weights in host memory for each GPU."""
    ranks = max(gpus, 1)
    memory = SERVER_GIB + ranks * (GIB_PER_GPU + math.ceil(offload_gib))
    engine = named(template, CONTAINER, "spec", "containers", key="name")
    given = {*mapping(engine, "resources", "requests"), *mapping(engine, "resources", "limits")}  # a null removes the resource
    return PlannedRequests(
        cpu=None if "cpu" in given else str(SERVER_CORES + ranks * CORES_PER_GPU),
        memory=None if "memory" in given else f"{memory}Gi",
    )


def plan_deadline(spec: VLLMDeploymentSpec, weight_bytes: int | None, in_force: Plan | None, *, nodes: int | None = None) -> int:
    """Return the deadline of a start to plan, in seconds. The current plan keeps its deadline.

    Without `startup.deadlineSeconds`, it includes the time to read the weights, and for a model on the hub to download them. A warm start
    has the same deadline, because whether it is warm is known only afterwards. With several `nodes`, it is longer: the leader waits until
    the last follower has an image.
    """
    if in_force is not None:
        return in_force.deadline_seconds
    if spec.startup and spec.startup.deadline_seconds:
        return spec.startup.deadline_seconds
    passes, speed = 2 if spec.model.uri.startswith("hf://") else 1, SLOW_DOWNLOAD_MEBIBYTES_PER_SECOND * MEBIBYTE
    weights = UNKNOWN_WEIGHTS_SECONDS if weight_bytes is None else math.ceil(passes * weight_bytes / speed)
    return min((BASE_DEADLINE_SECONDS + weights) * (3 if nodes else 2) // 2, MAX_DEADLINE_SECONDS)


def plan_patience(deadline: int, table: VersionTable | None) -> list[PlannedVariable]:
    """Return the variable with the time of the startup probe. It is part of vLLM's cache keys, so it must not change between starts."""
    if table is None or not table.knows_variable(READY_TIMEOUT):
        return []
    return [PlannedVariable(name=READY_TIMEOUT, value=str(deadline), reason="Same time limit as the startup probe.")]


@dataclass(frozen=True, slots=True)
class Drain:
    """Times of a Pod's shutdown: for requests in progress after SIGTERM (0 if they are aborted), and before it (None: the default)."""

    seconds: int
    endpoint_seconds: int | None
    arguments: list[PlannedArgument]
    notes: list[Note]


def plan_drain(spec: VLLMDeploymentSpec, overrides: Overrides, version: ResolvedVersion) -> Drain:
    """Plan the shutdown of Pods, with a note if `spec.podTemplate` leaves too little time for it."""
    given, wanted = overrides.arguments.get(SHUTDOWN_FLAG) or "", spec.rollout.drain_seconds if spec.rollout else None
    seconds = DRAIN_SECONDS if wanted is None else wanted
    if given.isascii() and given.isdigit() and len(given) < 6:
        seconds = int(given)
    before = OPEN_LISTENER_SECONDS if seconds and load_engine_facts().listens_while_draining(version.version) else None
    has_flag = version.table is not None and version.table.knows_flag(SHUTDOWN_FLAG)
    reason = "Requests in progress finish before a Pod stops: spec.rollout.drainSeconds."
    arguments = [PlannedArgument(name=SHUTDOWN_FLAG, value=str(seconds), reason=reason)] if seconds and has_flag else []
    grace, needed = mapping(spec.pod_template, "spec").get("terminationGracePeriodSeconds"), grace_seconds(seconds, before)
    is_short = seconds and type(grace) is int and grace < needed
    return Drain(seconds, before, arguments, [note("drain.too-short", grace=grace, needed=needed)] if is_short else [])


def grace_seconds(seconds: int, endpoint_seconds: int | None) -> int:
    """Return the `terminationGracePeriodSeconds` of a Pod with these durations."""
    return (endpoint_seconds or ENDPOINT_SECONDS) + seconds + EXIT_SECONDS
