"""Messages about the GPU and the size of a replica: reasons for the choice, risks, and alternatives that would fit."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_operator.api.labels import SHORT_NAME
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AcceleratorPolicy, AcceleratorSpec, EngineSpec, VLLMDeploymentSpec
from vllm_operator.catalog.models import KnownShapes
from vllm_operator.catalog.notes import Note
from vllm_operator.catalog.rules import Severity
from vllm_operator.catalog.versions import normalize_flag
from vllm_operator.inventory.pools import Pool
from vllm_operator.planning.engine.overrides import read_words, replace_words
from vllm_operator.planning.placement.fitting import (
    FLAG,
    LEAST_CONTEXT,
    ROUNDED_TO,
    Candidate,
    FitResult,
    Headroom,
    Sizing,
    time_slicing_notes,
)
from vllm_operator.planning.placement.policy import Ranking, gpu_name, group_of, kind_of
from vllm_operator.planning.placement.targets import Rank
from vllm_operator.sizing.model_facts import model_name
from vllm_operator.sizing.parallelism import ParallelShape, allowed
from vllm_operator.sizing.resolve import resolve_model
from vllm_operator.text.wording import count as counted

ALTERNATIVES_LIMIT = 3
"""Maximum number of alternatives in a message."""
MODEL_NAME_LIMIT = 63
"""Maximum characters of a model name in a message."""


def short_name(resource: VLLMDeployment) -> str:
    """Return the name of the model in messages."""
    return model_name(resource.spec.model)[:MODEL_NAME_LIMIT]


def notes_about_size(chosen: Candidate | None, sizing: Sizing | None, name: str, *, sized: bool) -> list[Note]:
    """Return notes about the size.

    Args:
        chosen: The GPU and the size; None if they were not judged.
        sizing: The inputs of the estimates; None if there was none.
        name: Name of the model.
        sized: Whether the operator chose the number of GPUs.
    """
    if chosen is None or sizing is None:
        return []
    result, title = chosen.result, chosen.target.title
    made = result.made
    notes = []
    if sized and chosen.shape.count > 1:
        text = (
            f"spec.parallelism is not set. The operator uses {chosen.shape.count} GPUs for each replica, the smallest number on which "
            f"{name} fits{_with_requests(result, sizing)}: {_gib(made.weights)} of weights on each, {_gib(made.kv_cache)} left for the "
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
    if result.length is not None:
        text = (
            f"A context of {own} tokens does not fit on {title} with {chosen.shape.count} GPU{'s' if chosen.shape.count > 1 else ''}, so "
            f"the operator sets --max-model-len to {result.length}. For a longer context, use more or larger GPUs, or set the flag."
        )
        notes.append(Note(Severity.RISK, text))
    if own is not None and asked is not None and asked > own:
        text = (
            f"vLLM refuses a context of {asked} tokens, since the config.json of {name} has {own}. Lower --max-model-len, or scale the "
            "positions with --hf-overrides if the model is made for it."
        )
        notes.append(Note(Severity.RISK, text))
    if result.headroom is Headroom.FEW:
        text = (
            f"On {devices(chosen)}, the KV cache holds {result.held or 0:.1f} requests of {sizing.request_length} tokens at a time; "
            f"spec.sizing.concurrency wants {sizing.concurrency}. More requests wait for each other. Raise spec.replicas, lower "
            "spec.sizing, or use more or larger GPUs."
        )
        notes.append(Note(Severity.RISK, text))
    if result.headroom is Headroom.TIGHT:
        text = f"{name} is near the limit of {title}: {made.limit} Lower --max-num-seqs or --max-model-len, or use more or larger GPUs."
        notes.append(Note(Severity.RISK, text))
    if result.headroom is Headroom.NONE:
        text = f"{name} will probably run out of memory on {title}: {made.limit} Use more or larger GPUs, or a quantized model."
        notes.append(Note(Severity.FAILURE, text))
    if (
        result.headroom is Headroom.UNKNOWN
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
    """Return a note about data parallelism, because tensor parallelism stores the whole latent KV cache of MLA on each GPU."""
    model, tensor, tokens = sizing.model, chosen.shape.parallel.tensor, chosen.result.made.tokens
    if model is None or not (model.shape.latent and model.shape.experts) or tensor == 1 or not tokens:
        return []
    ranks = ParallelShape(data=tensor, expert=True)
    spread = sizing.judge(chosen.target.pool, ranks)
    held = (spread.made.tokens or 0) * tensor
    if allowed(model.shape, model.form, ranks) is not None or spread.headroom > Headroom.SHORTENED or held <= tokens:
        return []
    text = (
        f"With tensor parallelism, each of the {tensor} GPUs keeps the KV cache of all requests to {name}: {tokens} tokens. With "
        f"spec.parallelism {{tensor: 1, data: {tensor}, expert: Enabled}} they hold {held} together, for more requests at a time; a single "
        "request takes longer."
    )
    return [Note(Severity.INFO, text)]


def explain_shortage(resource: VLLMDeployment, refused: Candidate, sizing: Sizing, others: Iterable[Candidate], shapes: KnownShapes) -> str:
    """Return a message that a model does not fit, with the nearest alternatives and their commands.

    Args:
        resource: The VLLMDeployment.
        refused: The best candidate that the spec allows.
        sizing: The inputs of the estimates.
        others: Other GPUs and sizes in the cluster.
        shapes: The table of well-known models.
    """
    name = short_name(resource)
    alternatives = find_alternatives(resource, refused, sizing, others, shapes, ALTERNATIVES_LIMIT)
    if not alternatives:
        whole = "disable MIG on a node, or " if refused.target.pool.mig_profile is not None else ""
        alternatives = [
            Alternative(f"{whole}add nodes with more or larger GPUs: `vllm-operator fit {name}` lists those that are large enough")
        ]
    first, *more = (f"{each.text}: `{each.command}`" if each.command else each.text for each in alternatives)
    listed = f"{first[0].upper()}{first[1:]}" + "".join(f"; or {each}" for each in more)
    return f"{name} does not fit on {devices(refused)}. {refused.result.made.limit} {listed}."


def _with_requests(result: FitResult, sizing: Sizing) -> str:
    if result.held is None or result.headroom is Headroom.FEW:
        return ""
    return f" and its KV cache holds {sizing.concurrency} requests of {sizing.request_length} tokens"


def _gib(value: float | None) -> str:
    return "an unknown amount" if value is None else f"{value:.1f} GiB"


LENGTH_FLAG = "--max-model-len"


@dataclass(frozen=True, slots=True)
class Alternative:
    """A change of the spec: in words, and as a command if it is known exactly."""

    text: str
    command: str | None = None


def find_alternatives(
    resource: VLLMDeployment, refused: Candidate, sizing: Sizing, others: Iterable[Candidate], shapes: KnownShapes, limit: int
) -> list[Alternative]:
    """Return the nearest alternatives that would start, at most `limit`.

    Args:
        resource: The VLLMDeployment that does not fit.
        refused: The best candidate that the spec allows.
        sizing: The inputs of the estimates.
        others: Other GPUs and sizes in the cluster.
        shapes: The table of well-known models.
        limit: Maximum number of alternatives.
    """
    alternatives = _shorter_context(resource, refused, sizing)
    alternatives += [_other_gpus(resource, each, refused) for each in _nearest(others)]
    return [*alternatives, *_larger_part(refused, sizing), *_smaller_weights(resource, refused, sizing, shapes)][:limit]


def devices(candidate: Candidate) -> str:
    """Return the GPUs or MIG slices of a replica, in words."""
    count, profile = candidate.shape.count, candidate.target.pool.mig_profile
    slices = candidate.target.pool.time_slices
    shared = f" shared by {slices} Pods" if slices is not None else ""
    if profile is not None:
        return f"{count} MIG slice{'s' if count > 1 else ''} {profile} of {candidate.target.title}{shared}"
    return f"{count} {candidate.target.title}{shared}"


def _nearest(others: Iterable[Candidate]) -> list[Candidate]:
    """Return the smallest size of each GPU on which the model fits with a useful context, the fewest GPUs first."""
    fitting = [each for each in others if each.result.headroom <= Headroom.SHORT and not each.target.pool.shared]
    useful = [each for each in fitting if each.result.headroom <= Headroom.FEW]
    found: dict[tuple[str, str | None], Candidate] = {}
    for each in useful or fitting:
        kind = (each.target.title, each.target.pool.mig_profile)
        if kind not in found or each.shape.count < found[kind].shape.count:
            found[kind] = each
    return sorted(found.values(), key=lambda each: (each.shape.count, each.target.pool.memory_mebibytes or 0))[:2]


def _larger_part(refused: Candidate, sizing: Sizing) -> list[Alternative]:
    """Suggest a larger part of a shared GPU. Only the user knows whether others need it."""
    unset = sizing.options is not None and sizing.options.utilization is None
    if refused.target.pool.time_slices is None or not unset:
        return []
    return [Alternative(f"set {FLAG} in spec.engine.args to a larger part of the GPU, if no other Pods need it")]


def _shorter_context(resource: VLLMDeployment, refused: Candidate, sizing: Sizing) -> list[Alternative]:
    longest = (refused.result.made.comfortable or 0) // ROUNDED_TO * ROUNDED_TO
    if sizing.options is None or not sizing.options.max_length or longest < LEAST_CONTEXT:
        return []
    engine = resource.spec.engine or EngineSpec()
    text = f"set {LENGTH_FLAG} to {longest} or less"
    for words in read_words(engine.extra_args or ()):
        if normalize_flag(words.argument.name) == LENGTH_FLAG:
            return [Alternative(text, _command(resource, replace_words(engine.extra_args or (), words, [LENGTH_FLAG, str(longest)])))]
    arguments = engine.args or []
    for index, argument in enumerate(arguments):
        if normalize_flag(argument.name) == LENGTH_FLAG:
            path = f"/spec/engine/args/{index}"
            operations = [
                {"op": "test", "path": f"{path}/name", "value": argument.name},
                {"op": "replace", "path": f"{path}/value", "value": str(longest)},
            ]
            return [Alternative(text, _command(resource, operations))]
    change = {"spec": {"sizing": {"contextLength": longest}}}
    return [Alternative(f"lower spec.sizing.contextLength to {longest}", _command(resource, change))]


def _other_gpus(resource: VLLMDeployment, candidate: Candidate, refused: Candidate) -> Alternative:
    spec = resource.spec
    changes = {"accelerator": _accelerator(spec, candidate, refused), "parallelism": _parallelism(spec, candidate)}
    return Alternative(
        f"use {devices(candidate)}", _command(resource, {"spec": {name: change for name, change in changes.items() if change}})
    )


def _accelerator(spec: VLLMDeploymentSpec, candidate: Candidate, refused: Candidate) -> dict[str, Any]:
    given, pool, change = spec.accelerator or AcceleratorSpec(), candidate.target.pool, dict[str, Any]()
    if candidate.target.title != refused.target.title and pool.product is not None:
        change["products"] = [pool.product]
    elif given.products and candidate.target.title != refused.target.title:
        change["products"] = None
    if given.architectures and pool.architecture not in given.architectures:
        change["architectures"] = None
    if given.count is not None and given.count != candidate.shape.count:
        change["count"] = None
    if given.uuids:
        change["uuids"] = None
    if pool.mig_profile is not None and (given.mig is None or given.mig.profile != profile_in_spec(pool.mig_profile)):
        others = {name: None for name in ("mode", "uuids") if given.mig is not None and getattr(given.mig, name) is not None}
        change["mig"] = {"profile": profile_in_spec(pool.mig_profile), **others}
    elif pool.mig_profile is None and given.mig is not None and given.sliced:
        change["mig"] = None
    return change


def profile_in_spec(label: str) -> str:
    """Return a MIG profile in the spelling of a spec: labels cannot contain `+`, so `1g.10gb+me` is `1g.10gb.me` there."""
    first, _, rest = label.partition("gb.")
    return f"{first}gb+{rest}" if rest else label


def _parallelism(spec: VLLMDeploymentSpec, candidate: Candidate) -> dict[str, Any]:
    parallel, given = candidate.shape.parallel, spec.parallelism
    if given is None and (spec.accelerator is None or spec.accelerator.count is None or spec.accelerator.count != candidate.shape.count):
        return {}  # the operator chooses the size
    wanted = {"tensor": parallel.tensor, "pipeline": None, "data": None, "expert": "Enabled" if parallel.expert else None}
    now: Mapping[str, Any] = given.to_json() if given is not None else {}
    return {name: value for name, value in wanted.items() if now.get(name) != value}


def _smaller_weights(resource: VLLMDeployment, refused: Candidate, sizing: Sizing, shapes: KnownShapes) -> list[Alternative]:
    """Suggest a quantized checkpoint of the same model: one of the table, or a format in which the model would fit."""
    if sizing.model is None:
        return []
    pool, parallel = refused.target.pool, refused.shape.parallel
    own = resource.spec.model.uri.rpartition("/")[2].lower()
    for entry in shapes.entries:
        if not entry.name.rpartition("/")[2].lower().startswith(f"{own}-"):
            continue
        model = resolve_model(entry.name, shapes)
        if model is None or model.shape != sizing.model.shape or model.form.size >= sizing.model.form.size:
            continue
        other = replace(sizing, model=model, _weighed={})
        if other.is_native(pool) and other.judge(pool, parallel).headroom <= Headroom.SHORT:
            return [Alternative(f"use the checkpoint {entry.name}", _command(resource, {"spec": {"model": {"uri": f"hf://{entry.name}"}}}))]
    smaller = sizing.smaller_format(pool, parallel)
    return [Alternative(f"use {smaller} checkpoint of the same model, if there is one, with spec.model.uri")] if smaller is not None else []


def _command(resource: VLLMDeployment, patch: dict[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    kind = "json" if isinstance(patch, list) else "merge"
    text = shlex.quote(json.dumps(patch, separators=(",", ":")))
    return f"kubectl patch {SHORT_NAME} {resource.metadata.name} -n {resource.metadata.namespace} --type {kind} -p {text}"


def notes_about_choice(
    chosen: Candidate, compared: Sequence[Candidate], sizing: Sizing | None, ranking: Ranking, name: str, *, kept: bool
) -> list[Note]:
    """Return notes about the choice.

    Args:
        chosen: The GPU of the plan.
        compared: All GPUs and sizes that were judged.
        sizing: The inputs of the estimates; None if there was none.
        ranking: The order of the GPUs.
        name: Name of the model.
        kept: Whether the GPU was in use before.
    """
    notes = _about_policy(chosen, ranking)
    if not kept:
        notes += _about_capacity(chosen, compared, sizing, ranking)
    if sizing is not None and sizing.model is None and len({kind_of(each.target) for each in compared}) > 1:
        text = (
            f"The sizes of {name} are unknown, so the operator cannot tell on which GPUs it fits, and takes the first in its order. To "
            "choose other GPUs, set spec.accelerator.products and spec.accelerator.count."
        )
        notes.append(Note(Severity.INFO, text))
    return notes + time_slicing_notes(chosen.target)


def _about_policy(chosen: Candidate, ranking: Ranking) -> list[Note]:
    if ranking.policy is not AcceleratorPolicy.MOST_FREE or chosen.target.free is not None:
        return []
    unknown = chosen.result.headroom is Headroom.UNKNOWN
    instead = "The first in the order of GPUs is used" if unknown else "The smallest GPU that fits is used"
    text = (
        "spec.accelerator.policy is MostFree, but it is unknown which GPUs are free: the Pods (with dynamic resource allocation, the "
        "ResourceClaims) of all namespaces could not be listed. `vllm-operator plan --nodes` reads them from the file. "
        f"{instead}."
    )
    return [Note(Severity.RISK, text)]


def _about_capacity(chosen: Candidate, compared: Sequence[Candidate], sizing: Sizing | None, ranking: Ranking) -> list[Note]:
    """Return a note if other GPUs were not free, or if Pods must wait for these."""
    target, replicas = chosen.target, max(ranking.replicas, 1)
    if target.rank is Rank.WAITING and target.pool.provider is None and target.free is not None:
        return [Note(Severity.RISK, _waiting(chosen, compared, replicas))]
    first = _passed_over(chosen, compared, sizing, ranking)
    if first is None:
        return []
    name, product = gpu_name(first.target), _product(first.target.pool)
    if target.pool.provider is not None:
        text = f"When this plan was made, {_shortage(first, replicas)}, so it is for a node that {target.pool.provider} would add."
    else:
        room = f", which had room for {counted(target.free, 'replica')}" if target.free is not None else ""
        text = f"{name} comes first, but when this plan was made, {_shortage(first, replicas)}. So it uses {gpu_name(target)}{room}."
        if product is not None:
            text += f" To wait for {name} instead, set spec.accelerator.products to [{product}]."
    return [Note(Severity.INFO, text)]


def _waiting(chosen: Candidate, compared: Sequence[Candidate], replicas: int) -> str:
    """Return a message that Pods wait for a GPU, with the user's options."""
    some = "Some Pods wait" if chosen.target.free else "Pods wait"
    fitting = (each for each in compared if group_of(each.result.headroom) == group_of(chosen.result.headroom))
    added = next((pool for each in fitting if (pool := each.target.pool).provider is not None and pool.product is not None), None)
    text = (
        f"When this plan was made, {_shortage(chosen, replicas)}, and neither was another GPU on which the model fits. {some} until there "
        "are enough. Add nodes, or scale down what uses these GPUs"
    )
    if added is None:
        return f"{text}."
    return f"{text}, or set spec.accelerator.products to [{added.product}], of which {added.provider} would add a node."


def _passed_over(chosen: Candidate, compared: Sequence[Candidate], sizing: Sizing | None, ranking: Ranking) -> Candidate | None:
    """Return the GPU that would have been chosen if it were free; None if it is the chosen one, or if the sizes are unknown."""
    if sizing is None or chosen.result.headroom is Headroom.UNKNOWN:
        return None
    places = {id(each): place for place, each in enumerate(ranking.preferred_order(compared, sizing))}
    mine = next((places[id(each)] for each in compared if each.target == chosen.target and each.shape == chosen.shape), 0)
    busy = [
        each
        for each in compared
        if each.target.rank is Rank.WAITING
        and each.target.pool.provider is None
        and each.target.free is not None
        and group_of(each.result.headroom) == group_of(chosen.result.headroom)
        and (places[id(each)] < mine or (chosen.target.pool.provider is not None and kind_of(each.target) == kind_of(chosen.target)))
    ]
    return min(busy, key=lambda each: places[id(each)], default=None)


def _shortage(candidate: Candidate, replicas: int) -> str:
    """Return how many replicas fit on the free devices, as a clause."""
    target = candidate.target
    count, free = target.count, target.free or 0
    if free:
        return f"{gpu_name(target)} had room for only {free} of {replicas} replicas"
    if count > 1:
        return f"no node had {count} free {gpu_name(target)}"
    return f"no {gpu_name(target)} was free"


def _product(pool: Pool) -> str | None:
    """Return the value of spec.accelerator.products that selects exactly these GPUs; None if there is none."""
    if pool.product is None:
        return None
    return f"{pool.product}-MIG-{pool.mig_profile}" if pool.mig_profile else pool.product
