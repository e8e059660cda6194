"""The preset of a VLLMDeployment: merged into its spec before planning, and pinned with the plan.

The object's fields take precedence. Fields that exclude or require each other are taken from the preset together or not at all
(`_without_contradictions`). Lists with a key are merged by it, tolerations are appended, other lists of the object replace those of the
preset.

While a plan is in force, the spec is merged with the content of the preset that the plan has pinned. So editing or deleting the preset does
not change running Pods; the condition PlanDrifted reports what would differ. A new plan uses the current preset. Because the plan
pins the preset and not the result, Pods depend on the rules of the merge: a change of them restarts engines at the next upgrade of the
operator.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from vllm_operator.api.conditions import FALSE, Reason, Verdict
from vllm_operator.api.labels import API_VERSION, CONTAINER, GROUP, KIND
from vllm_operator.api.operation import PresetReference
from vllm_operator.api.plan import Plan, PlannedPreset
from vllm_operator.api.reading import mapping, objects, sequence
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import PRESET_PLURALS, EngineSpec, PresetSpec, VLLMDeploymentSpec
from vllm_operator.catalog.notes import say
from vllm_operator.planning.engine.overrides import subject_of, subjects_of
from vllm_operator.planning.outcome import differing_fields
from vllm_operator.planning.pinning import is_in_force
from vllm_operator.planning.pod_template import HANDLERS, PLAIN, POD_TEMPLATE, MergeRules, SpecError, check_pod_template, identify
from vllm_operator.planning.validation import violations
from vllm_operator.text.wording import few

Fields = Mapping[str, Any]
_BY_NAME = ("name",)
_ENGINE = MergeRules(lists={"args": _BY_NAME, "env": _BY_NAME})
_SPEC = MergeRules(objects={"engine": _ENGINE, "podTemplate": POD_TEMPLATE})
_IMAGE = ("image", "version", "distribution")
_STRATEGY = ("strategy", "maxSurge", "maxUnavailable")
_VOLUME = ("storage", "claimName", "volume", "hostPath")
FIELDS_LIMIT, PATH_LIMIT = 256, 512
NAMES_LIMIT, PROBLEM_LIMIT = 10, 600


@dataclass(frozen=True, slots=True)
class Merged:
    """The spec of an object with a preset, and the fields that come from the preset, such as `engine.args.seed`."""

    spec: dict[str, Any]
    fields: tuple[str, ...]


def merge_preset(own: Fields, preset: Fields) -> Merged:
    """Merge the spec of a preset into the spec of an object, both as JSON and with Pod templates that can be merged."""
    added: list[str] = []
    merged = _merge(_without_contradictions(own, preset), own, _SPEC, "", added)
    return Merged(merged, tuple(list(dict.fromkeys(path[:PATH_LIMIT] for path in added))[:FIELDS_LIMIT]))


def _without_contradictions(own: Fields, preset: Fields) -> dict[str, Any]:
    taken = {name: dict(value) for name, value in preset.items() if isinstance(value, Mapping) and value}
    engine = mapping(own, "engine")
    if "engine" in taken:
        taken["engine"] = _engine_for(engine, taken["engine"])
    for name in ("cache", "weights"):
        if name in taken and _volume_kind(mapping(own, name)) not in (None, _volume_kind(taken[name])):
            taken[name] = _without(taken[name], *_VOLUME)
    if any(name in mapping(own, "rollout") for name in _STRATEGY) and "rollout" in taken:
        taken["rollout"] = _without(taken["rollout"], *_STRATEGY)
    if "podTemplate" in taken:
        taken["podTemplate"] = _template_for(engine, taken["podTemplate"])
    return {name: value for name, value in taken.items() if value}


def _engine_for(own: Fields, preset: Fields) -> dict[str, Any]:
    taken = _without(preset, *_IMAGE) if any(name in own for name in _IMAGE) else dict(preset)
    if "args" in taken:
        given = {subject_of(argument.name) for argument in EngineSpec.model_validate(own).flags}
        taken["args"] = [each for each in taken["args"] if given.isdisjoint(subjects_of(each["name"]))]
    return {name: value for name, value in taken.items() if value or name not in _ENGINE.lists}


def _template_for(engine: Fields, template: Fields) -> dict[str, Any]:
    """Return the preset's Pod template without the engine fields that the object sets, because the template would override them."""
    variables, spec = {each.get("name") for each in objects(engine, "env")}, mapping(template, "spec")
    containers = [dict(container) for container in sequence(spec.get("containers"))]
    for container in containers:
        if container.get("name") == CONTAINER and any(name in engine for name in _IMAGE):
            container.pop("image", None)
        if container.get("name") == CONTAINER and isinstance(container.get("env"), list):
            container["env"] = [each for each in container["env"] if each.get("name") not in variables]
    return {**template, "spec": {**spec, "containers": containers}} if containers else dict(template)


def _volume_kind(storage: Fields) -> str | None:
    """Return the kind of volume that the fields request; None if any kind is valid."""
    if "claimName" in storage:
        return "existing claim"
    if "storage" in storage:
        return str(storage["storage"]) if storage["storage"] in ("HostPath", "EmptyDir") else "claim"
    return "HostPath" if "hostPath" in storage else "claim" if "volume" in storage else None


def _without(fields: Fields, *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _merge(preset: Fields, own: Fields, rules: MergeRules, path: str, added: list[str]) -> dict[str, Any]:
    """Merge objects; add paths from the preset to `added`. Nulls of the object stay: in a Pod template they remove rendered fields."""
    replaced = HANDLERS if HANDLERS & own.keys() else frozenset()
    merged: dict[str, Any] = {}
    for name, value in _without(preset, *replaced).items():
        mine: Any = own.get(name)
        is_new, below = name not in own, f"{path}{name}"
        both_lists = isinstance(value, list) and (is_new or isinstance(mine, list))
        if isinstance(value, Mapping) and (is_new or isinstance(mine, Mapping)):
            merged[name] = _merge(value, mapping(mine), rules.objects.get(name, PLAIN), f"{below}.", added)
        elif both_lists and name in rules.lists:
            merged[name] = _merge_list(value, mine or [], rules.lists[name], rules.entries.get(name), below, added)
        elif is_new:
            merged[name] = value
            added += [below] if value != [] else []
        elif both_lists and name in rules.added_to:
            merged[name] = [*value, *(entry for entry in mine if entry not in value)]
            added += [below] if any(entry not in mine for entry in value) else []
    return {**merged, **{name: merged.get(name, value) for name, value in own.items()}}


def _merge_list(
    preset: list[Any], own: list[Any], keys: tuple[str, ...], rules: MergeRules | None, path: str, added: list[str]
) -> list[Any]:
    given = {identify(entry, keys): entry for entry in own}
    merged = []
    for entry in preset:
        identity = identify(entry, keys)
        mine, below = given.pop(identity, None), f"{path}.{identity[0].lstrip('-')}"
        if mine is None:
            merged.append(entry)
            added.append(below)
        else:
            keyed = {key: entry[key] for key in keys if key in entry}  # a default of the key may be left out in one of them
            merged.append(_merge(entry, {**keyed, **mine}, rules, f"{below}.", added) if rules else mine)
    return [*merged, *given.values()]


def with_preset_in_force(resource: VLLMDeployment, plan: Plan | None) -> VLLMDeployment | Verdict | None:
    """Merge the preset into the spec, as it was when a plan was made, or return why not; None if the plan is not in force."""
    reference, preset = resource.spec.preset_ref, plan.preset if plan is not None else None
    merged = resource if reference is None or preset is None else _merged(resource, reference, preset.spec)
    return merged if is_in_force(plan, merged if isinstance(merged, VLLMDeployment) else resource) else None


def with_preset(resource: VLLMDeployment, found: Mapping[str, Any] | Verdict) -> VLLMDeployment | Verdict:
    """Merge the preset that an object names into its spec, or return why not. `found` is its current spec, or why it is unknown."""
    reference = resource.spec.preset_ref
    if reference is None:
        return resource
    kept = with_preset_in_force(resource, resource.pinned)
    if isinstance(kept, VLLMDeployment):
        changes = {"preset_change": _change(resource, kept, found), "is_preset_gone": isinstance(found, Verdict) and _is_gone(found)}
        return kept.model_copy(update=changes)
    if kept is not None:
        return kept
    return found if isinstance(found, Verdict) else with_current_preset(resource, reference, found)


def with_current_preset(resource: VLLMDeployment, reference: PresetReference, found: Mapping[str, Any]) -> VLLMDeployment | Verdict:
    """Merge the current preset into the spec, regardless of the pinned content; or return why that is not possible."""
    merged = _merged(resource, reference, found)
    if isinstance(merged, Verdict):
        return merged
    problems = set(violations(_manifest(merged))) - set(violations(_manifest(resource)))
    return _unusable(reference, "; ".join(sorted(problems))) if problems else merged


def missing_preset(reference: PresetReference, namespace: str, existing: Iterable[str]) -> Verdict:
    """Return the verdict for a preset that does not exist. `existing` are the names of the others."""
    where = f" in the namespace {namespace}" if reference.kind == "VLLMPreset" else ""
    others = few(sorted(existing), NAMES_LIMIT) or "none"
    return Verdict(FALSE, Reason.PRESET_MISSING, say("preset.missing", preset=reference, where=where, others=others))


def missing_definition(reference: PresetReference) -> Verdict:
    """Return the verdict for a kind of preset that the API server does not serve."""
    message = say("preset.no-crd", crd=f"{PRESET_PLURALS[reference.kind]}.{GROUP}", preset=reference)
    return Verdict(FALSE, Reason.KIND_NOT_INSTALLED, message)


def _merged(resource: VLLMDeployment, reference: PresetReference, content: Mapping[str, Any]) -> VLLMDeployment | Verdict:
    try:
        preset = PresetSpec.model_validate(content)
        check_pod_template(preset.pod_template)
    except ValidationError as error:
        return _invalid(reference, error)
    except SpecError as error:
        return _unusable(reference, str(error))
    try:
        check_pod_template(resource.spec.pod_template)
        merged = merge_preset(resource.spec.to_json(), preset.to_json())
        spec = VLLMDeploymentSpec.model_validate(merged.spec)
    except ValidationError as error:
        return _invalid(reference, error)
    except SpecError:
        return resource  # planning refuses it
    planned = PlannedPreset(kind=reference.kind, name=reference.name, spec=preset.to_json(), fields=list(merged.fields))
    return resource.model_copy(update={"spec": spec, "preset": planned})


def _invalid(reference: PresetReference, error: ValidationError) -> Verdict:
    return _unusable(reference, "; ".join(f"spec.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()))


def _unusable(reference: PresetReference, problem: str) -> Verdict:
    message = f"{reference} cannot be used for this object: {problem[:PROBLEM_LIMIT]}. Change one of the two. What runs stays as it is."
    return Verdict(FALSE, Reason.PRESET_INVALID, message)


def _manifest(resource: VLLMDeployment) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": resource.metadata.name}, "spec": resource.spec.to_json()}


def _is_gone(found: Verdict) -> bool:
    return found.reason in (Reason.PRESET_MISSING, Reason.KIND_NOT_INSTALLED)


def _change(resource: VLLMDeployment, kept: VLLMDeployment, found: Mapping[str, Any] | Verdict) -> str:
    """Return how the current preset differs from the pinned one, as a sentence; empty if the merged object would be equal."""
    reference = resource.spec.preset_ref
    if reference is None:
        return ""
    if isinstance(found, Verdict):
        return f"{reference} no longer exists." if _is_gone(found) else ""
    fresh = _merged(resource, reference, found)
    if isinstance(fresh, Verdict):
        return fresh.message
    fields = differing_fields(kept.spec.to_json(), fresh.spec.to_json())
    return f"{reference} has changed in {fields}." if fields else ""
