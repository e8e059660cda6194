"""What would fit instead: other GPUs, more of them, a shorter context or smaller weights, each as a `kubectl patch` command."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_operator.api.labels import SHORT_NAME
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AcceleratorSpec, EngineSpec, VLLMDeploymentSpec
from vllm_operator.catalog.shapes import KnownShapes
from vllm_operator.catalog.versions import normalize_flag
from vllm_operator.planning.engine.command_line import read_words, replace_words
from vllm_operator.planning.memory.resolve import resolve_model
from vllm_operator.planning.placement.shares import FLAG
from vllm_operator.planning.placement.sizing import LEAST_CONTEXT, ROUNDED_TO, Candidate, Room, Sizing

LENGTH_FLAG = "--max-model-len"


@dataclass(frozen=True, slots=True)
class Way:
    """A change of the spec: in words, and as a command if it is known exactly."""

    text: str
    command: str | None = None


def find_ways(
    resource: VLLMDeployment, refused: Candidate, sizing: Sizing, others: Iterable[Candidate], shapes: KnownShapes, limit: int
) -> list[Way]:
    """Return the nearest ways to a start, at most `limit`.

    Args:
        resource: The VLLMDeployment that does not fit.
        refused: The best of what its spec allows.
        sizing: How it was judged.
        others: Other GPUs and sizes in the cluster.
        shapes: The table of well-known models.
        limit: The most ways.
    """
    ways = _shorter_context(resource, refused, sizing)
    ways += [_other_gpus(resource, each, refused) for each in _nearest(others)]
    return [*ways, *_larger_part(refused, sizing), *_smaller_weights(resource, refused, sizing, shapes)][:limit]


def devices(candidate: Candidate) -> str:
    """The GPUs or MIG slices of a replica, in words."""
    count, profile = candidate.shape.count, candidate.target.pool.mig_profile
    slices = candidate.target.pool.time_slices
    shared = f" shared by {slices} Pods" if slices is not None else ""
    if profile is not None:
        return f"{count} MIG slice{'s' if count > 1 else ''} {profile} of {candidate.target.title}{shared}"
    return f"{count} {candidate.target.title}{shared}"


def _nearest(others: Iterable[Candidate]) -> list[Candidate]:
    """The smallest size of each GPU on which the model fits with a useful context, the fewest GPUs first."""
    fitting = [each for each in others if each.judgement.room <= Room.SHORT and not each.target.pool.shared]
    useful = [each for each in fitting if each.judgement.room <= Room.FEW]
    found: dict[tuple[str, str | None], Candidate] = {}
    for each in useful or fitting:
        kind = (each.target.title, each.target.pool.mig_profile)
        if kind not in found or each.shape.count < found[kind].shape.count:
            found[kind] = each
    return sorted(found.values(), key=lambda each: (each.shape.count, each.target.pool.memory_mebibytes or 0))[:2]


def _larger_part(refused: Candidate, sizing: Sizing) -> list[Way]:
    """More of a GPU that Pods share, of which only the user knows whether others need it."""
    unset = sizing.options is not None and sizing.options.utilization is None
    if refused.target.pool.time_slices is None or not unset:
        return []
    return [Way(f"set {FLAG} in spec.engine.args to a larger part of the GPU, if no other Pods need it")]


def _shorter_context(resource: VLLMDeployment, refused: Candidate, sizing: Sizing) -> list[Way]:
    """A context that fits, if the spec asks for a longer one."""
    longest = (refused.judgement.made.comfortable or 0) // ROUNDED_TO * ROUNDED_TO
    if sizing.options is None or not sizing.options.max_length or longest < LEAST_CONTEXT:
        return []
    engine = resource.spec.engine or EngineSpec()
    text = f"set {LENGTH_FLAG} to {longest} or less"
    for words in read_words(engine.extra_args or ()):
        if normalize_flag(words.argument.name) == LENGTH_FLAG:
            return [Way(text, _command(resource, replace_words(engine.extra_args or (), words, [LENGTH_FLAG, str(longest)])))]
    arguments = engine.args or []
    for index, argument in enumerate(arguments):
        if normalize_flag(argument.name) == LENGTH_FLAG:
            path = f"/spec/engine/args/{index}"
            operations = [
                {"op": "test", "path": f"{path}/name", "value": argument.name},
                {"op": "replace", "path": f"{path}/value", "value": str(longest)},
            ]
            return [Way(text, _command(resource, operations))]
    change = {"spec": {"sizing": {"contextLength": longest}}}
    return [Way(f"lower spec.sizing.contextLength to {longest}", _command(resource, change))]


def _other_gpus(resource: VLLMDeployment, candidate: Candidate, refused: Candidate) -> Way:
    """Other GPUs, or more of them."""
    spec = resource.spec
    changes = {"accelerator": _accelerator(spec, candidate, refused), "parallelism": _parallelism(spec, candidate)}
    return Way(f"use {devices(candidate)}", _command(resource, {"spec": {name: change for name, change in changes.items() if change}}))


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
    """Spell a MIG profile as in a spec: labels cannot contain `+`, so `1g.10gb+me` is `1g.10gb.me` there."""
    first, _, rest = label.partition("gb.")
    return f"{first}gb+{rest}" if rest else label


def _parallelism(spec: VLLMDeploymentSpec, candidate: Candidate) -> dict[str, Any]:
    parallel, given = candidate.shape.parallel, spec.parallelism
    if given is None and (spec.accelerator is None or spec.accelerator.count is None or spec.accelerator.count != candidate.shape.count):
        return {}  # the operator chooses the size
    wanted = {"tensor": parallel.tensor, "pipeline": None, "data": None, "expert": "Enabled" if parallel.expert else None}
    now: Mapping[str, Any] = given.to_json() if given is not None else {}
    return {name: value for name, value in wanted.items() if now.get(name) != value}


def _smaller_weights(resource: VLLMDeployment, refused: Candidate, sizing: Sizing, shapes: KnownShapes) -> list[Way]:
    """A quantized checkpoint of the same model: one of the table, or a format in which the model would fit."""
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
        if other.is_native(pool) and other.judge(pool, parallel).room <= Room.SHORT:
            return [Way(f"use the checkpoint {entry.name}", _command(resource, {"spec": {"model": {"uri": f"hf://{entry.name}"}}}))]
    smaller = sizing.smaller_format(pool, parallel)
    return [Way(f"use {smaller} checkpoint of the same model, if there is one, with spec.model.uri")] if smaller is not None else []


def _command(resource: VLLMDeployment, patch: dict[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    kind = "json" if isinstance(patch, list) else "merge"
    text = shlex.quote(json.dumps(patch, separators=(",", ":")))
    return f"kubectl patch {SHORT_NAME} {resource.metadata.name} -n {resource.metadata.namespace} --type {kind} -p {text}"
