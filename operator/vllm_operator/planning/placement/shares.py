"""GPUs that Pods share by time-slicing.

Each Pod sees the memory of the whole GPU, and no mechanism limits it to its part. vLLM uses the fraction of the memory in
`--gpu-memory-utilization`, so the operator sets this flag to the part of one Pod. MPS limits the memory of each Pod; how vLLM sees this
limit is unknown, so such GPUs are used only if the spec names them.

Source: https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-sharing.html ("no memory or fault-isolation between
replicas").
"""

import math

from vllm_operator.api.plan import PlannedArgument
from vllm_operator.catalog.memory import MemoryFacts, value_at
from vllm_operator.catalog.notes import Note
from vllm_operator.catalog.rules import Severity
from vllm_operator.catalog.versions import Release, parse_release
from vllm_operator.inventory.pools import Pool
from vllm_operator.planning.placement.target import Target

FLAG = "--gpu-memory-utilization"
MIB_PER_GIB = 1024


def part_of_memory(pool: Pool, facts: MemoryFacts, release: Release) -> float | None:
    """Return the fraction of a GPU's memory for one engine, as the value of the flag; None if Pods do not share the GPU.

    The CUDA context of each engine lies outside of its budget.
    """
    if pool.time_slices is None:
        return None
    context = facts.context_gib * MIB_PER_GIB / pool.memory_mebibytes if pool.memory_mebibytes else 0.0
    part = min(value_at(facts.utilization, release) / pool.time_slices, 1 / pool.time_slices - context)
    return max(math.floor(part * 100) / 100, 0.01)


def sharing_arguments(pool: Pool, facts: MemoryFacts, version: str | None) -> list[PlannedArgument]:
    """Return the flag that limits an engine to its part of a GPU."""
    release = parse_release(version or "")
    part = part_of_memory(pool, facts, release) if release is not None else None
    if part is None:
        return []
    reason = f"{pool.time_slices} Pods share each GPU by time-slicing. This is the part of one of them."
    return [PlannedArgument(name=FLAG, value=f"{part:g}", reason=reason)]


def notes_about_sharing(target: Target) -> list[Note]:
    """Return a note that the memory of a shared GPU is not isolated, with the user's options."""
    pool = target.pool
    if not pool.shared:
        return []
    if pool.time_slices is not None:
        text = (
            f"Up to {pool.time_slices} Pods share each {target.title} by time-slicing, and nothing isolates their memory: each engine "
            f"must take only its part, which {FLAG} sets. If another Pod takes more than its own, the engine may not start, or run out of "
            "memory. To use only whole GPUs and MIG slices, set spec.accelerator.products to their products."
        )
    else:
        text = (
            f"Pods share each {target.title}, and how much of its memory is left for the engine is unknown. Set {FLAG} to the part "
            "that the engine may take."
        )
    return [Note(Severity.RISK, text)]
