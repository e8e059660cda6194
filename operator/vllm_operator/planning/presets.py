"""The preset of a VLLMDeployment: merged into its spec before planning, and pinned with the plan.

While a plan is in force, the spec is merged with the content of the preset that the plan has pinned. So editing or deleting the preset does
not change running Pods; the condition Planned reports that a new plan would differ. A new plan uses the current preset.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.labels import API_VERSION, GROUP, KIND
from vllm_operator.api.operation import PresetKind, PresetReference
from vllm_operator.api.plan import Plan, PlannedPreset
from vllm_operator.api.preset import PRESET_PLURALS, PresetSpec
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.status import ConditionStatus
from vllm_operator.planning.differences import differing_fields
from vllm_operator.planning.pinning import is_in_force
from vllm_operator.planning.pod_template import PodTemplateError, check_pod_template
from vllm_operator.planning.preset_merge import merge_preset
from vllm_operator.planning.validation import violations

NAMES_LIMIT, PROBLEM_LIMIT = 10, 600


def with_preset(resource: VLLMDeployment, found: Mapping[str, Any] | Verdict) -> VLLMDeployment | Verdict:
    """Merge the preset that an object names into its spec, or return why that is not possible.

    Args:
        resource: The object with its own spec and its pinned plan.
        found: The current spec of the preset, or why it is unknown.
    """
    reference, pinned = resource.spec.preset_ref, resource.pinned
    if reference is None:
        return resource
    if pinned is not None:
        kept = _as_planned(resource, reference, pinned)
        if is_in_force(pinned, kept if isinstance(kept, VLLMDeployment) else resource):
            return kept if isinstance(kept, Verdict) else kept.model_copy(update={"preset_change": _change(resource, kept, found)})
    if isinstance(found, Verdict):
        return found
    return with_current_preset(resource, reference, found)


def with_current_preset(resource: VLLMDeployment, reference: PresetReference, found: Mapping[str, Any]) -> VLLMDeployment | Verdict:
    """Merge the current preset into the spec, regardless of the pinned content; or return why that is not possible."""
    merged = _merged(resource, reference, found)
    if isinstance(merged, Verdict):
        return merged
    problems = set(violations(_manifest(merged))) - set(violations(_manifest(resource)))
    return _unusable(reference, "; ".join(sorted(problems))) if problems else merged


def missing_preset(reference: PresetReference, namespace: str, existing: Iterable[str]) -> Verdict:
    """Return the verdict for a preset that does not exist. `existing` are the names of the others."""
    names = sorted(existing)
    where = f" in the namespace {namespace}" if reference.kind is PresetKind.VLLM_PRESET else ""
    more = f" and {len(names) - NAMES_LIMIT} more" if len(names) > NAMES_LIMIT else ""
    existing_ones = f"{', '.join(names[:NAMES_LIMIT])}{more}" if names else "none"
    message = (
        f"{reference} does not exist{where}. Existing presets of this kind: {existing_ones}. Create it, or change spec.presetRef. "
        "What runs stays as it is."
    )
    return Verdict(ConditionStatus.FALSE, Reason.PRESET_MISSING, message)


def missing_definition(reference: PresetReference) -> Verdict:
    """Return the verdict for a kind of preset that the API server does not serve."""
    message = (
        f"The CRD {PRESET_PLURALS[reference.kind]}.{GROUP} of {reference} is not installed. Install the CRDs of this version of the "
        "operator with kubectl apply -f crds/, or set crds.install in the Helm chart. What runs stays as it is."
    )
    return Verdict(ConditionStatus.FALSE, Reason.KIND_NOT_INSTALLED, message)


def _as_planned(resource: VLLMDeployment, reference: PresetReference, pinned: Plan) -> VLLMDeployment | Verdict:
    return _merged(resource, reference, pinned.preset.spec) if pinned.preset is not None else resource


def _merged(resource: VLLMDeployment, reference: PresetReference, content: Mapping[str, Any]) -> VLLMDeployment | Verdict:
    try:
        preset = PresetSpec.model_validate(content)
        check_pod_template(preset.pod_template)
    except ValidationError as error:
        return _unusable(reference, "; ".join(f"spec.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()))
    except PodTemplateError as error:
        return _unusable(reference, str(error))
    try:
        check_pod_template(resource.spec.pod_template)
    except PodTemplateError:
        return resource  # planning refuses it
    taken = preset.to_json()
    merged = merge_preset(resource.spec.to_json(), taken)
    try:
        spec = VLLMDeploymentSpec.model_validate(merged.spec)
    except ValidationError as error:
        return _unusable(reference, "; ".join(f"spec.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()))
    planned = PlannedPreset(kind=reference.kind, name=reference.name, spec=taken, fields=list(merged.fields))
    return resource.model_copy(update={"spec": spec, "preset": planned})


def _unusable(reference: PresetReference, problem: str) -> Verdict:
    message = f"{reference} cannot be used for this object: {problem[:PROBLEM_LIMIT]}. Change one of the two. What runs stays as it is."
    return Verdict(ConditionStatus.FALSE, Reason.PRESET_INVALID, message)


def _manifest(resource: VLLMDeployment) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": resource.metadata.name}, "spec": resource.spec.to_json()}


def _change(resource: VLLMDeployment, kept: VLLMDeployment, found: Mapping[str, Any] | Verdict) -> str:
    """Return how the current preset differs from the pinned one, as a sentence; empty if the merged object would be equal."""
    reference = resource.spec.preset_ref
    if reference is None:
        return ""
    if isinstance(found, Verdict):
        return f"{reference} no longer exists." if found.reason in (Reason.PRESET_MISSING, Reason.KIND_NOT_INSTALLED) else ""
    fresh = _merged(resource, reference, found)
    if isinstance(fresh, Verdict):
        return fresh.message
    fields = differing_fields(kept.spec.to_json(), fresh.spec.to_json())
    return f"{reference} has changed in {fields}." if fields else ""
