"""CPU and memory that the engine container requests, so that it is not the first to be evicted from a full node.

Sources: vLLM's documentation recommends two cores and one for each GPU (docs/configuration/optimization.md). An engine process takes 4 to 6
GiB of host memory, partly shared. Loading streams the files through the page cache.
"""

import math
from collections.abc import Mapping
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.plan import PlannedRequests
from vllm_operator.api.reading import mapping, objects

SERVER_CORES, CORES_PER_GPU = 1, 1
"""One core less than vLLM recommends: the smallest machines with a GPU have four, and other Pods need some."""
SERVER_GIB, GIB_PER_GPU = 2, 4
"""Memory of the server with its tokenizer, and of each engine process including its part of /dev/shm."""


def plan_requests(gpus: int, offload_gib: float, template: Mapping[str, Any] | None) -> PlannedRequests:
    """Return the requests of the engine container. Resources that `spec.podTemplate` requests or limits are omitted.

    Args:
        gpus: Number of GPUs of a replica.
        offload_gib: Weights in the host's memory for each GPU (`--cpu-offload-gb`).
        template: `spec.podTemplate`. Any value is valid input.
    """
    ranks = max(gpus, 1)
    memory = SERVER_GIB + ranks * (GIB_PER_GPU + math.ceil(offload_gib))
    given = _given(template)
    return PlannedRequests(
        cpu=None if "cpu" in given else str(SERVER_CORES + ranks * CORES_PER_GPU),
        memory=None if "memory" in given else f"{memory}Gi",
    )


def _given(template: Mapping[str, Any] | None) -> set[str]:
    """Return the resources that the user sets for the engine container, including those that a null removes."""
    engine = next((each for each in objects(template, "spec", "containers") if each.get("name") == CONTAINER), {})
    return {*mapping(engine, "resources", "requests"), *mapping(engine, "resources", "limits")}
