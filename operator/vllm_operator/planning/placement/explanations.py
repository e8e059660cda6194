"""Messages about the GPU and the size of a replica: reasons for the choice, risks, and alternatives that would fit."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm_operator.api.labels import SHORT_NAME
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AcceleratorSpec, EngineSpec, VLLMDeploymentSpec
from vllm_operator.catalog.memory import value_at
from vllm_operator.catalog.notes import Note, Severity, note, say
from vllm_operator.catalog.versions import normalize_flag
from vllm_operator.inventory.pools import Inventory
from vllm_operator.planning.placement.fitting import UTILIZATION_FLAG, Headroom, Sizing, longest_context
from vllm_operator.planning.placement.policy import Ranking, group_of, kind_of, pool_name, product_label
from vllm_operator.planning.placement.targets import WAITS, Candidate
from vllm_operator.sizing.engine import GIB
from vllm_operator.sizing.model_facts import model_name
from vllm_operator.sizing.parallelism import ParallelShape, allowed
from vllm_operator.sizing.resolve import resolve_model

MODEL_NAME_LIMIT = 63
"""Maximum characters of a model name in a message."""
LENGTH_FLAG = "--max-model-len"
UNIFIED_SHARE = 0.85  # maximum part of unified memory for an engine: weights also pass through the page cache of the host


def short_name(resource: VLLMDeployment) -> str:
    """Return the name of the model in messages."""
    return model_name(resource.spec.model)[:MODEL_NAME_LIMIT]


def notes_about_size(chosen: Candidate, sizing: Sizing, name: str, *, sized: bool) -> list[Note]:
    """Return notes about the GPU and the size of the model `name`. `sized`: whether the operator chose the number of GPUs."""
    result, title, count, parallel = chosen.result, pool_name(chosen.title, chosen.pool), chosen.shape.count, chosen.shape.parallel
    model, options, made = sizing.model, sizing.options, chosen.result.made
    notes = []
    if sized and count > 1 and chosen.shape.nodes == 1 and made.weights is not None and result.headroom is not Headroom.FEW:
        requests = ""
        if result.held is not None:
            requests = say("size.requests", concurrency=sizing.concurrency, length=sizing.request_length)
        weights, cache = (f"{value:.1f} GiB" if value is not None else "an unknown amount" for value in (made.weights, made.kv_cache))
        notes.append(note("size.chosen", count=count, name=name, requests=requests, weights=weights, cache=cache))
    if (refused := sizing.refuse(parallel, chosen.pool.architecture)) is not None:
        notes.append(Note(Severity.FAILURE, refused))
    product = sizing.catalog.gpus.product(chosen.pool.product)
    if sized and parallel.tensor > 1 and product is not None and product.links == "PCIe":
        may_pipeline = sizing.may_run(chosen.pool, ParallelShape(pipeline=count))
        pipeline = say("size.over-a-pipeline", count=count) if may_pipeline else ""
        notes.append(note("size.no-nvlink", title=title, count=count, pipeline=pipeline))
    if sized:
        notes += _note_about_ranks(chosen, sizing, name)
    family = sizing.catalog.gpus.architectures.get(chosen.pool.architecture or "")
    share = (options.utilization if options else None) or value_at(sizing.catalog.memory.utilization, sizing.release)
    if family is not None and family.unified_memory and share > UNIFIED_SHARE:
        lowered = replace(sizing, options=options and replace(options, utilization=UNIFIED_SHARE))
        less = say("size.less-of-memory", most=UNIFIED_SHARE) if lowered.may_run(chosen.pool, parallel) else ""
        notes.append(note("size.unified", title=title, share=share, less=less))
    if result.length is not None:
        own = model.shape.max_length if model else None
        notes.append(note("size.shortened", own=own, devices=devices(chosen), length=result.length))
    match result.headroom:
        case Headroom.FEW:
            held, length, wanted = result.held or 0, sizing.request_length, sizing.concurrency
            notes.append(note("size.few-requests", devices=devices(chosen), held=held, length=length, wanted=wanted))
        case Headroom.TIGHT:
            notes.append(note("size.tight", name=name, title=title, limit=made.limit))
        case Headroom.NONE:
            notes.append(note("size.too-large", name=name, title=title, limit=made.limit))
        case Headroom.UNKNOWN if model and options and chosen.pool.memory_mebibytes is None:
            notes.append(note("size.unknown-memory", name=name, title=title))
    return notes


def _note_about_ranks(chosen: Candidate, sizing: Sizing, name: str) -> list[Note]:
    """Return a note about data parallelism, because tensor parallelism stores the whole latent KV cache of MLA on each GPU."""
    model, tensor, tokens = sizing.model, chosen.shape.parallel.tensor, chosen.result.made.tokens
    if model is None or not (model.shape.latent and model.shape.experts) or tensor == 1 or not tokens:
        return []
    ranks = ParallelShape(data=tensor, expert=True)
    spread = sizing.judge(chosen.pool, ranks)
    held = (spread.made.tokens or 0) * tensor
    if allowed(model.shape, model.form, ranks) is not None or spread.headroom > Headroom.SHORTENED or held <= tokens:
        return []
    return [note("size.data-parallel", tensor=tensor, name=name, tokens=tokens, held=held)]


def explain_shortage(resource: VLLMDeployment, refused: Candidate, sizing: Sizing, others: Iterable[Candidate]) -> str:
    """Explain that a model does not fit on `refused`, the best allowed candidate, and which of `others` it fits on, with commands."""
    name, pool = short_name(resource), refused.pool
    alternatives = _shorter_context(resource, refused, sizing)
    alternatives += [_other_gpus(resource, each, refused) for each in _nearest(others)]
    if pool.time_slices is not None and sizing.options is not None and sizing.options.utilization is None:
        alternatives.append(say("alternative.larger-part"))
    alternatives += _smaller_weights(resource, refused, sizing)
    if not alternatives:
        alternatives = [say("alternative.add-nodes", whole="disable MIG on a node, or " if pool.mig_profile is not None else "", name=name)]
    return f"{name} does not fit on {devices(refused)}. {refused.result.made.limit} {_sentence(alternatives[:3])}"


def _sentence(ways: Sequence[str]) -> str:
    listed = "; or ".join(ways)
    return f"{listed[0].upper()}{listed[1:]}."


def explain_concurrency(resource: VLLMDeployment, best: Candidate, sizing: Sizing, others: Iterable[Candidate]) -> str:
    """Explain that no allowed GPU holds the requests wanted, `best` the most of them, and what would, with commands."""
    wanted, held, length = sizing.concurrency, best.result.held or 0.0, longest_context(best.result.made)
    ways = [_other_gpus(resource, each, best) for each in _nearest(others) if (each.result.held or 0) >= wanted][:1]
    if most := int(held):
        ways.append(_change(f"lower spec.sizing.concurrency to {most}", resource, {"sizing": {"concurrency": most}}))
        replicas = -(-wanted * max(resource.spec.replicas, 1) // most)
        if resource.spec.autoscaling is None:
            change = {"replicas": replicas, "sizing": {"concurrency": most}}
            ways.append(_change(f"let {replicas} replicas hold {most} each", resource, change))
    elif length:
        smaller = {"contextLength": length, "concurrency": 1}
        ways.append(_change(f"lower spec.sizing to 1 request of {length} tokens", resource, {"sizing": smaller}))
    text = say("size.no-room", wanted=wanted, length=sizing.request_length, held=held, devices=devices(best))
    return f"{text} {_sentence(ways or [say('alternative.add-nodes', whole='', name=short_name(resource))])}"


def devices(candidate: Candidate) -> str:
    """Return the GPUs or MIG slices of a replica, in words."""
    shape = candidate.shape
    what = f"{shape.count} {pool_name(candidate.title, candidate.pool, shape.count)}"
    return f"{shape.nodes} nodes with {what} each" if shape.nodes > 1 else what


def _nearest(others: Iterable[Candidate]) -> list[Candidate]:
    """Return the smallest size of each GPU on which the model fits with a useful context, the fewest GPUs first."""
    fitting = [each for each in others if each.result.headroom <= Headroom.SHORT and not each.pool.shared]
    useful = [each for each in fitting if each.result.headroom <= Headroom.FEW]
    found: dict[tuple[str, str | None], Candidate] = {}
    for each in sorted(useful or fitting, key=lambda each: each.shape.count):
        found.setdefault((each.title, each.pool.mig_profile), each)
    return sorted(found.values(), key=lambda each: (each.shape.count, each.pool.memory_mebibytes or 0))[:2]


def _shorter_context(resource: VLLMDeployment, refused: Candidate, sizing: Sizing) -> list[str]:
    longest = longest_context(refused.result.made)
    if sizing.options is None or not sizing.options.max_length or not longest:
        return []
    engine, text = resource.spec.engine or EngineSpec(), f"set {LENGTH_FLAG} to {longest} or less"
    for index, argument in enumerate(engine.args or ()):
        if normalize_flag(argument.name) == LENGTH_FLAG:
            path = f"/spec/engine/args/{index}"
            test, value = {"op": "test", "path": f"{path}/name", "value": argument.name}, str(longest)
            return [_change(text, resource, [test, {"op": "replace", "path": f"{path}/value", "value": value}])]
    return [_change(f"lower spec.sizing.contextLength to {longest}", resource, {"sizing": {"contextLength": longest}})]


def _other_gpus(resource: VLLMDeployment, candidate: Candidate, refused: Candidate) -> str:
    spec = resource.spec
    changes = {"accelerator": _accelerator(spec, candidate, refused), "parallelism": _parallelism(spec, candidate)}
    return _change(f"use {devices(candidate)}", resource, {name: change for name, change in changes.items() if change})


def _accelerator(spec: VLLMDeploymentSpec, candidate: Candidate, refused: Candidate) -> dict[str, Any]:
    given, pool, change = spec.accelerator or AcceleratorSpec(), candidate.pool, dict[str, Any]()
    if candidate.title != refused.title and (pool.product is not None or given.products):
        change["products"] = [pool.product] if pool.product is not None else None
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
    if given is None and (spec.accelerator or AcceleratorSpec()).count != candidate.shape.count:
        return {}  # the operator chooses the size
    expert = "Enabled" if parallel.expert else None
    wanted = {"tensor": parallel.tensor, "pipeline": None, "data": None, "expert": expert, "nodes": None}
    now: Mapping[str, Any] = given.to_json() if given is not None else {}
    return {name: value for name, value in wanted.items() if now.get(name) != value}


def _smaller_weights(resource: VLLMDeployment, refused: Candidate, sizing: Sizing) -> list[str]:
    """Suggest a quantized checkpoint of the same model: one of the table, or a format in which the model would fit."""
    if sizing.model is None:
        return []
    pool, parallel, shapes = refused.pool, refused.shape.parallel, sizing.catalog.shapes
    own = resource.spec.model.uri.rpartition("/")[2].lower()
    for entry in shapes.entries:
        model = resolve_model(entry.name, shapes) if entry.name.rpartition("/")[2].lower().startswith(f"{own}-") else None
        if model is None or model.shape != sizing.model.shape or model.form.size >= sizing.model.form.size:
            continue
        other = replace(sizing, model=model)
        if other.is_native(pool) and (context := other.context_that_fits(pool, parallel)) is not None:
            return [_change(f"use the checkpoint {entry.name}{context}", resource, {"model": {"uri": f"hf://{entry.name}"}})]
    smaller = sizing.smaller_format(pool, parallel)
    return [say("alternative.smaller-format", format=smaller[0], context=smaller[1])] if smaller is not None else []


def _change(text: str, resource: VLLMDeployment, change: dict[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """Return a change of the spec, as a JSON patch or as the fields to merge, in words and as a command."""
    kind, patch = ("json", change) if isinstance(change, list) else ("merge", {"spec": change})
    quoted, metadata = shlex.quote(json.dumps(patch, separators=(",", ":"))), resource.metadata
    return f"{text}: `kubectl patch {SHORT_NAME} {metadata.name} -n {metadata.namespace} --type {kind} -p {quoted}`"


def time_of(inventory: Inventory) -> str:
    """Return when it was read what is free, in words, with the date: plans are read days later."""
    return f"at {inventory.read_at:%Y-%m-%d %H:%M UTC}" if inventory.read_at is not None else "when this plan was made"


def notes_about_choice(
    chosen: Candidate, compared: Sequence[Candidate], ranking: Ranking, name: str, weight_bytes: int | None, *, when: str
) -> list[Note]:
    """Return notes about the choice of `chosen` among all `compared` for the model `name`. `when` is as of `time_of`, if it was chosen."""
    notes, pool = [], chosen.pool
    if ranking.accelerator.policy == "MostFree" and chosen.free is None:
        unknown = chosen.result.headroom is Headroom.UNKNOWN
        instead = "The first in the order of GPUs is used" if unknown else "The smallest GPU that fits is used"
        notes.append(note("choice.free-is-unknown", instead=instead))
    if when:
        notes += _about_capacity(chosen, compared, ranking, when)
    if ranking.sizing.is_read and not ranking.sizing.can_judge and len({kind_of(each) for each in compared}) > 1:
        guess = note("choice.by-weights", name=name, held=weight_bytes / GIB) if weight_bytes is not None else None
        notes.append(guess or note("choice.unknown-sizes", name=name))
    if pool.shared and pool.time_slices is None:
        notes.append(note("time-slicing.unknown", title=chosen.title, flag=UTILIZATION_FLAG))
    elif pool.shared:
        notes.append(note("time-slicing.known", pods=pool.time_slices, title=chosen.title, flag=UTILIZATION_FLAG))
    return notes


def _about_capacity(chosen: Candidate, compared: Sequence[Candidate], ranking: Ranking, when: str) -> list[Note]:
    """Return a note if other GPUs were not free, or if Pods must wait for these."""
    replicas, group = max(ranking.replicas, 1), group_of(chosen.result.headroom)
    if chosen.rank in WAITS and chosen.pool.provider is None and chosen.free is not None:
        pools = (each.pool for each in compared if group_of(each.result.headroom) == group)
        added = next((pool for pool in pools if pool.provider is not None and pool.product is not None), None)
        instead = say("choice.or-added", product=added.product, provider=added.provider) if added is not None else ""
        some = "Some Pods wait" if chosen.free else "Pods wait"
        has_choice = len({kind_of(each) for each in compared if group_of(each.result.headroom) == group}) > 1
        others = say("choice.no-other", more=" for more" if chosen.free else "") if has_choice else ""
        move = say("choice.moves") if has_choice else ""
        shortage = _shortage(chosen, replicas)
        return [note("choice.waiting", shortage=shortage, when=when, others=others, some=some, move=move, instead=instead)]
    first = _passed_over(chosen, compared, ranking)
    if first is None:
        return []
    shortage = _shortage(first, replicas)
    if chosen.pool.provider is not None:
        return [note("choice.added-node", shortage=shortage, when=when, provider=chosen.pool.provider)]
    name, product = pool_name(first.title, first.pool), product_label(first.pool)
    wait = say("choice.to-wait", name=name, product=product) if product is not None else ""
    return [note("choice.not-free", shortage=shortage, when=when, instead=pool_name(chosen.title, chosen.pool), wait=wait)]


def _passed_over(chosen: Candidate, compared: Sequence[Candidate], ranking: Ranking) -> Candidate | None:
    """Return the GPU that would have been chosen if it were free; None if it is the chosen one, or if the sizes are unknown."""
    group, comes_first = group_of(chosen.result.headroom), True
    for each in ranking.preferred_order(compared) if chosen.result.headroom is not Headroom.UNKNOWN else ():
        comes_first = comes_first and each is not chosen
        waits = each.rank in WAITS and each.pool.provider is None and each.free is not None
        instead = comes_first or (chosen.pool.provider is not None and kind_of(each) == kind_of(chosen))
        if waits and instead and group_of(each.result.headroom) == group:
            return each
    return None


def _shortage(candidate: Candidate, replicas: int) -> str:
    count, free, name = candidate.shape.count, candidate.free or 0, pool_name(candidate.title, candidate.pool)
    if free:
        return f"{name} was free for only {free} of {replicas} replicas"
    return f"no node had {count} free {name}" if count > 1 else f"no {name} was free"
