"""What is said about the size of a replica: why it was chosen, what may not fit, and what would fit instead."""

from collections.abc import Iterable

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.rules import Severity
from vllm_operator.catalog.shapes import KnownShapes
from vllm_operator.planning.engine.shape import ParallelShape
from vllm_operator.planning.memory.resolve import allowed
from vllm_operator.planning.model.facts import model_name
from vllm_operator.planning.notes import Note
from vllm_operator.planning.placement.sizing import Candidate, Judgement, Room, Sizing
from vllm_operator.planning.placement.ways import Way, devices, find_ways

WAYS_LIMIT = 3
"""Ways that a message names."""
MODEL_NAME_LIMIT = 63
"""Characters of the name of a model in a message."""


def short_name(resource: VLLMDeployment) -> str:
    """The name of the model in messages."""
    return model_name(resource.spec.model)[:MODEL_NAME_LIMIT]


def notes_about_size(chosen: Candidate | None, sizing: Sizing | None, name: str, *, sized: bool) -> list[Note]:
    """What a user should know about the size.

    Args:
        chosen: The GPU and the size; None if it was not judged.
        sizing: How it was judged; None likewise.
        name: Name of the model.
        sized: The operator chose the number of GPUs.
    """
    if chosen is None or sizing is None:
        return []
    judgement, title = chosen.judgement, chosen.target.title
    made = judgement.made
    notes = []
    if sized and chosen.shape.count > 1:
        text = (
            f"spec.parallelism is not set. The operator uses {chosen.shape.count} GPUs for each replica, the smallest number on which "
            f"{name} fits{_with_requests(judgement, sizing)}: {_gib(made.weights)} of weights on each, {_gib(made.kv_cache)} left for the "
            "KV cache."
        )
        notes.append(Note(Severity.INFO, text))
    model, context = sizing.model, sizing.options.context_parallel if sizing.options is not None else 1
    refused = allowed(model.shape, model.form, chosen.shape.parallel, context) if model is not None else None
    if refused is not None:
        text = (
            f"vLLM cannot divide {name} as spec.parallelism says: {refused} Set other sizes, or remove them, so that the operator chooses."
        )
        notes.append(Note(Severity.FAILURE, text))
    product = sizing.gpus.product(chosen.target.pool.product)
    if sized and chosen.shape.parallel.tensor > 1 and product is not None and product.links == "PCIe":
        text = (
            f"{title} has no NVLink, so {chosen.shape.count} GPUs exchange the results of each layer over PCIe. Where throughput counts "
            "more than the time for a single request, vLLM's documentation recommends pipeline parallelism for such GPUs: set "
            f"spec.parallelism.pipeline to {chosen.shape.count}."
        )
        notes.append(Note(Severity.INFO, text))
    if sized:
        notes += _note_about_ranks(chosen, sizing, name)
    own, asked = (sizing.model.shape.max_length, sizing.options.max_length) if sizing.model and sizing.options else (None, None)
    if judgement.length is not None:
        text = (
            f"A context of {own} tokens does not fit on {title} with {chosen.shape.count} GPU{'s' if chosen.shape.count > 1 else ''}, so "
            f"the operator sets --max-model-len to {judgement.length}. For a longer context, use more or larger GPUs, or set the flag."
        )
        notes.append(Note(Severity.RISK, text))
    if own is not None and asked is not None and asked > own:
        text = (
            f"vLLM refuses a context of {asked} tokens, since the config.json of {name} has {own}. Lower --max-model-len, or scale the "
            "positions with --hf-overrides if the model is made for it."
        )
        notes.append(Note(Severity.RISK, text))
    if judgement.room is Room.FEW:
        text = (
            f"On {devices(chosen)}, the KV cache holds {judgement.held or 0:.1f} requests of {sizing.request_length} tokens at a time; "
            f"spec.sizing.concurrency wants {sizing.concurrency}. More requests wait for each other. Raise spec.replicas, lower "
            "spec.sizing, or use more or larger GPUs."
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


def _note_about_ranks(chosen: Candidate, sizing: Sizing, name: str) -> list[Note]:
    """What data parallelism would hold: tensor parallelism keeps the whole latent KV cache of MLA on each GPU."""
    model, tensor, tokens = sizing.model, chosen.shape.parallel.tensor, chosen.judgement.made.tokens
    if model is None or not (model.shape.latent and model.shape.experts) or tensor == 1 or not tokens:
        return []
    ranks = ParallelShape(data=tensor, expert=True)
    spread = sizing.judge(chosen.target.pool, ranks)
    held = (spread.made.tokens or 0) * tensor
    if allowed(model.shape, model.form, ranks) is not None or spread.room > Room.SHORTENED or held <= tokens:
        return []
    text = (
        f"With tensor parallelism, each of the {tensor} GPUs keeps the KV cache of all requests to {name}: {tokens} tokens. With "
        f"spec.parallelism {{tensor: 1, data: {tensor}, expert: Enabled}} they hold {held} together, for more requests at a time; a single "
        "request takes longer."
    )
    return [Note(Severity.INFO, text)]


def explain_shortage(resource: VLLMDeployment, refused: Candidate, sizing: Sizing, others: Iterable[Candidate], shapes: KnownShapes) -> str:
    """Say that a model does not fit, and the nearest ways that would, with their commands.

    Args:
        resource: The VLLMDeployment.
        refused: The best of what its spec allows.
        sizing: How it was judged.
        others: Other GPUs and sizes in the cluster.
        shapes: The table of well-known models.
    """
    name = short_name(resource)
    ways = find_ways(resource, refused, sizing, others, shapes, WAYS_LIMIT)
    if not ways:
        whole = "disable MIG on a node, or " if refused.target.pool.mig_profile is not None else ""
        ways = [Way(f"{whole}add nodes with more or larger GPUs: `vllm-operator fit {name}` lists those that are large enough")]
    first, *more = (f"{way.text}: `{way.command}`" if way.command else way.text for way in ways)
    listed = f"{first[0].upper()}{first[1:]}" + "".join(f"; or {way}" for way in more)
    return f"{name} does not fit on {devices(refused)}. {refused.judgement.made.limit} {listed}."


def _with_requests(judgement: Judgement, sizing: Sizing) -> str:
    if judgement.held is None or judgement.room is Room.FEW:
        return ""
    return f" and its KV cache holds {sizing.concurrency} requests of {sizing.request_length} tokens"


def _gib(value: float | None) -> str:
    return "an unknown amount" if value is None else f"{value:.1f} GiB"
