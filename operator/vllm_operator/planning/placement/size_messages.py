"""What is said about the size of a replica: why it was chosen, what may not fit, and what would fit instead."""

from collections.abc import Iterable

from vllm_operator.catalog.rules import Severity
from vllm_operator.planning.notes import Note
from vllm_operator.planning.placement.sizing import LEAST_CONTEXT, ROUNDED_TO, Candidate, Room, Sizing

WAYS_LIMIT = 3
"""Ways that a message names."""


def notes_about_size(chosen: Candidate, sizing: Sizing, name: str, *, sized: bool) -> list[Note]:
    """What a user should know about the size.

    Args:
        chosen: The GPU and the size.
        sizing: How it was judged.
        name: Name of the model.
        sized: The operator chose the number of GPUs.
    """
    judgement, title = chosen.judgement, chosen.target.title
    made = judgement.made
    notes = []
    if sized and chosen.shape.count > 1:
        text = (
            f"spec.parallelism is not set. The operator uses {chosen.shape.count} GPUs for each replica, the smallest number on which "
            f"{name} fits: {_gib(made.weights)} of weights on each, {_gib(made.kv_cache)} left for the KV cache."
        )
        notes.append(Note(Severity.INFO, text))
    if judgement.length is not None:
        own = sizing.model.shape.max_length if sizing.model else None
        text = (
            f"A context of {own} tokens does not fit on {title} with {chosen.shape.count} GPU{'s' if chosen.shape.count > 1 else ''}, so "
            f"the operator sets --max-model-len to {judgement.length}. For a longer context, use more or larger GPUs, or set the flag."
        )
        notes.append(Note(Severity.RISK, text))
    if judgement.room is Room.TIGHT:
        text = f"{name} is near the limit of {title}: {made.limit} Lower --max-num-seqs or --max-model-len, or use more or larger GPUs."
        notes.append(Note(Severity.RISK, text))
    if judgement.room is Room.NONE:
        text = f"{name} will probably run out of memory on {title}: {made.limit} Use more or larger GPUs, or a quantized model."
        notes.append(Note(Severity.FAILURE, text))
    if (
        judgement.room is Room.UNKNOWN
        and sizing.model is not None
        and sizing.options is not None
        and chosen.target.pool.memory_mebibytes is None
    ):
        text = (
            f"The memory of {title} is unknown, so the operator cannot check whether {name} fits. Install GPU Feature Discovery, which "
            "sets the label nvidia.com/gpu.memory."
        )
        notes.append(Note(Severity.RISK, text))
    return notes


def explain_shortage(refused: Candidate, sizing: Sizing, name: str, others: Iterable[Candidate]) -> str:
    """Say that a model does not fit, and the nearest ways that would.

    Args:
        refused: The best of what the spec allows.
        sizing: How it was judged.
        name: Name of the model.
        others: Other GPUs and sizes in the cluster.
    """
    ways = [_way(each, refused) for each in _nearest(others)]
    longest = refused.judgement.made.comfortable or 0
    if sizing.options is not None and sizing.options.max_length and longest >= LEAST_CONTEXT:
        ways.insert(0, f"set --max-model-len to {longest // ROUNDED_TO * ROUNDED_TO} or less")
    smaller = sizing.smaller_format(refused.target.pool, refused.shape.parallel)
    if smaller is not None:
        ways.append(f"use {smaller} checkpoint of the same model")
    if not ways:
        ways.append(f"add nodes with more or larger GPUs: `vllm-operator fit {name}` lists those that are large enough")
    first, *more = ways[:WAYS_LIMIT]
    listed = f"{first[0].upper()}{first[1:]}" + "".join(f", or {way}" for way in more)
    return f"{name} does not fit on {_devices(refused)}. {refused.judgement.made.limit} {listed}."


def _devices(candidate: Candidate) -> str:
    """The GPUs or MIG slices of a replica."""
    count, profile = candidate.shape.count, candidate.target.pool.mig_profile
    if profile is not None:
        return f"{count} MIG slice{'s' if count > 1 else ''} {profile} of {candidate.target.title}"
    return f"{count} {candidate.target.title}"


def _way(candidate: Candidate, refused: Candidate) -> str:
    """How to use other GPUs, or more of them."""
    pool, parallel = candidate.target.pool, candidate.shape.parallel
    settings = []
    if pool.mig_profile is not None:
        settings.append(f"spec.accelerator.mig.profile: {pool.mig_profile}")
    elif refused.target.pool.mig_profile is not None:
        settings.append("remove spec.accelerator.mig")
    if candidate.target.title != refused.target.title and pool.product is not None:
        settings.append(f"spec.accelerator.products: [{pool.product}]")
    if parallel.tensor != refused.shape.parallel.tensor:
        settings.append(f"spec.parallelism.tensor: {parallel.tensor}")
    if parallel.expert and not refused.shape.parallel.expert:
        settings.append("spec.parallelism.expert: Enabled")
    return f"use {_devices(candidate)}" + (f" ({', '.join(settings)})" if settings else "")


def _nearest(others: Iterable[Candidate]) -> list[Candidate]:
    """The smallest size of each GPU on which the model fits with a useful context, the fewest GPUs first."""
    fitting = [each for each in others if each.judgement.room <= Room.SHORT]
    useful = [each for each in fitting if each.judgement.room <= Room.SHORTENED]
    found: dict[tuple[str, str | None], Candidate] = {}
    for each in useful or fitting:
        kind = (each.target.title, each.target.pool.mig_profile)
        if kind not in found or each.shape.count < found[kind].shape.count:
            found[kind] = each
    return sorted(found.values(), key=lambda each: (each.shape.count, each.target.pool.memory_mebibytes or 0))[:2]


def _gib(value: float | None) -> str:
    return "an unknown amount" if value is None else f"{value:.1f} GiB"
