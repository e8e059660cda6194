"""Conversion of UUIDs in CUDA_VISIBLE_DEVICES to a part of the ResourceClaim.

In a Pod, the variable cannot choose a device. It only hides devices of the Pod, and vLLM before 0.24 crashes on a UUID. With dynamic
resource allocation, the ResourceClaim can request exactly these devices, and the variable is no longer needed. In all other cases the rules
refuse the variable or warn about it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AcceleratorSpec, Allocation, ParallelismSpec, VLLMDeploymentSpec

VARIABLE = "CUDA_VISIBLE_DEVICES"
MIG_UUID, GPU_UUID = re.compile(r"MIG-[0-9A-Za-z/-]{1,60}"), re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
UUIDS_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Translation:
    """The VLLMDeployment to plan, the UUIDs that were moved, and notes for the user."""

    resource: VLLMDeployment
    uuids: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def translate(resource: VLLMDeployment) -> Translation:
    """Move the UUIDs from the variable to `spec.accelerator`, for a new plan. The plan records them, so scaling does not change Pods.

    The VLLMDeployment is unchanged if there are no UUIDs, if they are of whole GPUs and the spec requests MIG slices (or the
    reverse), if the spec already names other devices, or if the replicas need more devices than the variable names.
    """
    spec = resource.spec
    accelerator, engine = spec.accelerator, spec.engine
    if accelerator is None or accelerator.allocation is not Allocation.DRA or engine is None:
        return Translation(resource)
    given = next((variable.value for variable in engine.env or () if variable.name == VARIABLE), None)
    named = [part.strip() for part in (given or "").split(",")]
    form = MIG_UUID if accelerator.sliced else GPU_UUID
    if len(set(named)) != len(named) or len(named) > UUIDS_LIMIT or not all(form.fullmatch(name) for name in named):
        return Translation(resource)
    pinned = accelerator.mig.uuids if accelerator.mig and accelerator.sliced else accelerator.uuids
    if (pinned is not None and set(pinned) != set(named)) or len(named) < _needed(spec, accelerator):
        return Translation(resource)
    what, field = ("MIG devices", "accelerator.mig.uuids") if accelerator.sliced else ("GPUs", "accelerator.uuids")
    note = (
        f"{VARIABLE} in spec.engine.env has UUIDs of {what}. The operator requests exactly these in the ResourceClaim, as with "
        f"spec.{field}, and does not set the variable. To remove this note, use spec.{field}."
    )
    return Translation(with_uuids(resource, named), tuple(named), (note,))


def with_uuids(resource: VLLMDeployment, uuids: Sequence[str]) -> VLLMDeployment:
    """Return the VLLMDeployment with these UUIDs in `spec.accelerator` and without the variable; unchanged if there are no UUIDs."""
    spec = resource.spec
    accelerator, engine = spec.accelerator, spec.engine
    if not uuids or accelerator is None or engine is None:
        return resource
    kept = [variable for variable in engine.env or () if variable.name != VARIABLE]
    changed = spec.model_copy(
        update={
            "accelerator": accelerator.model_copy(update=_pinned(accelerator, list(uuids))),
            "engine": engine.model_copy(update={"env": kept or None}),
        }
    )
    return resource.model_copy(update={"spec": changed})


def _pinned(accelerator: AcceleratorSpec, uuids: list[str]) -> dict[str, object]:
    if accelerator.mig is not None and accelerator.sliced:
        return {"mig": accelerator.mig.model_copy(update={"uuids": uuids})}
    return {"uuids": uuids, "mig": None}


def _needed(spec: VLLMDeploymentSpec, accelerator: AcceleratorSpec) -> int:
    parallelism = spec.parallelism or ParallelismSpec()
    size = (parallelism.tensor or 1) * (parallelism.pipeline or 1) * (parallelism.data or 1)
    return spec.replicas * (accelerator.count or size)
