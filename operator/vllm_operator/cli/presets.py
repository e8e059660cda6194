"""The preset of a VLLMDeployment among objects that were read from files or from a cluster."""

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_operator.api.operation import PresetKind
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.planning.outcome import Verdict
from vllm_operator.planning.presets import missing_preset, with_current_preset
from vllm_operator.pods import reading


def merge_preset_of(resource: VLLMDeployment, objects: Sequence[Mapping[str, Any]]) -> VLLMDeployment | Verdict:
    """Merge the preset that an object names into its spec, as it is among these objects; or return why that is not possible."""
    reference, namespace = resource.spec.preset, resource.metadata.namespace
    if reference is None:
        return resource
    presets = {
        reading.text(each, "metadata", "name"): reading.mapping(each, "spec")
        for each in objects
        if each.get("kind") == reference.kind
        and (reference.kind is not PresetKind.VLLM_PRESET or (reading.text(each, "metadata", "namespace") or "default") == namespace)
    }
    if reference.name not in presets:
        return missing_preset(reference, namespace, presets)
    return with_current_preset(resource, reference, presets[reference.name])
