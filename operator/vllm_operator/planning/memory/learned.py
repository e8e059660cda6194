"""What a start measured, for the next plan of the same engine.

An estimate has errors that every start of the same model, vLLM version, GPU and parallel sizes has again. The status has what the
log of the engine said, and the plan has what was predicted. The difference corrects the next plan. It is kept in that plan, so it
outlives plans whose engine never started. What was measured is only used while the estimate without it is what it was: with other flags, or
with another version of the operator that estimates differently, it says nothing.
"""

from dataclasses import replace

from vllm_operator.api.plan import LearnedMemory, MeasuredMemory, Plan, PlannedMemory
from vllm_operator.catalog.versions import Release, parse_release
from vllm_operator.planning.engine.shape import ParallelShape
from vllm_operator.planning.inventory.pools import Pool
from vllm_operator.planning.memory.estimate import Estimate, Options

MIB_PER_GIB = 1024
SAME_WEIGHTS, SAME_OTHER_MIB = 0.01, 64
"""An estimate that differs from an earlier one by less is the same."""
MOST_WRONG = 1.5
"""Weights that are so many times as large or small as estimated are not those of this model."""
MOST_OTHER = 0.1
"""A larger part of the budget than this was taken by something else on the GPU, or was free because of a flag that is not read."""


def learn(pinned: Plan | None, measured: MeasuredMemory | None, model: str) -> LearnedMemory | None:
    """Return what is known from earlier starts of a model; None if nothing is.

    Args:
        pinned: The plan in the status.
        measured: What its engine measured.
        model: The model argument of the new plan.
    """
    if pinned is None or pinned.memory is None or pinned.model != model:
        return None
    known, predicted = pinned.memory.learned, pinned.memory
    sizes = next((part.value for part in pinned.cache_key_parts if part.name == "parallelism"), "")
    complete = pinned.engine_version and pinned.architecture and sizes and "pp" not in sizes  # stages differ
    if measured is None or predicted.other_mebibytes is None or not complete:
        return known
    before = known.other_mebibytes if known is not None else 0
    estimated = known.estimated_weights_mebibytes if known is not None else predicted.weights_mebibytes
    surplus = predicted.weights_mebibytes + predicted.kv_cache_mebibytes - measured.weights_mebibytes - measured.kv_cache_mebibytes
    budget = predicted.weights_mebibytes + predicted.kv_cache_mebibytes + predicted.other_mebibytes
    likely = estimated / MOST_WRONG <= measured.weights_mebibytes <= estimated * MOST_WRONG
    if not likely or abs(before + surplus) > MOST_OTHER * budget:
        return known
    return LearnedMemory(
        engine_version=str(pinned.engine_version),
        architecture=str(pinned.architecture),
        product=pinned.product,
        parallelism=sizes,
        weights_mebibytes=measured.weights_mebibytes,
        estimated_weights_mebibytes=estimated,
        other_mebibytes=before + surplus,
        estimated_other_mebibytes=predicted.other_mebibytes - before,
    )


def correct(
    options: Options, estimated: Estimate, learned: LearnedMemory | None, pool: Pool, parallel: ParallelShape, release: Release
) -> Options | None:
    """Return the options with what was measured; None if nothing was for this version, GPU and size, or the estimate has changed.

    With other flags the memory besides the weights is another. Then only a measured surplus counts, to be on the safe side.
    """
    if learned is None or estimated.weights is None or estimated.kv_cache is None or estimated.budget is None:
        return None
    place = (learned.architecture, learned.product, learned.parallelism, parse_release(learned.engine_version))
    if place != (pool.architecture, pool.product, str(parallel), release):
        return None
    before = learned.estimated_weights_mebibytes
    if abs(estimated.weights * MIB_PER_GIB - before) > SAME_WEIGHTS * before:
        return None
    other = (estimated.budget - estimated.weights - estimated.kv_cache) * MIB_PER_GIB
    same = abs(other - learned.estimated_other_mebibytes) <= SAME_OTHER_MIB
    more = learned.other_mebibytes if same else max(learned.other_mebibytes, 0)
    weights = learned.weights_mebibytes / MIB_PER_GIB + options.offload_gib
    return replace(options, weights_gib=weights, more_gib=more / MIB_PER_GIB)


def predict_memory(made: Estimate | None, options: Options | None, learned: LearnedMemory | None) -> PlannedMemory | None:
    """The prediction to keep in the plan, to compare with what the engine measures; None if there is none.

    Args:
        made: The estimate of the plan.
        options: The flags. The rest is unknown if one of them sets the size of the KV cache.
        learned: What was measured, if the estimate contains it.
    """
    if made is None or made.weights is None or made.kv_cache is None or made.budget is None:
        return None
    rest = made.budget - made.weights - made.kv_cache if options is not None and options.cache_bytes is None else None
    return PlannedMemory(
        weights_mebibytes=round(made.weights * MIB_PER_GIB),
        kv_cache_mebibytes=round(made.kv_cache * MIB_PER_GIB),
        other_mebibytes=None if rest is None else round(rest * MIB_PER_GIB),
        learned=learned,
    )
