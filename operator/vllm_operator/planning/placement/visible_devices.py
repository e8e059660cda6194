"""Devices that a user names by UUID in CUDA_VISIBLE_DEVICES, put where they belong.

In a Pod the variable cannot choose a device: it only hides some of those that the Pod was given, and before 0.24 vLLM
ends at its start on a UUID. With dynamic resource allocation what the user means can be had: the claim asks for exactly
these devices, the Pod sees nothing else, and the variable has nothing left to do. Everywhere else the rules refuse
it, or warn.
"""

import re

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AcceleratorSpec, Allocation, ParallelismSpec, VLLMDeploymentSpec

VARIABLE = "CUDA_VISIBLE_DEVICES"
MIG_UUID, GPU_UUID = re.compile(r"MIG-[0-9A-Za-z/-]{1,60}"), re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
UUIDS_LIMIT = 64


def translate(resource: VLLMDeployment) -> tuple[VLLMDeployment, tuple[str, ...]]:
    """Ask for the devices that the variable names in the claim, and leave the variable out.

    Returns:
        The VLLMDeployment as it shall be planned and rendered, and what the user should know about that. It is the
        same where there is nothing to translate, or where that would not be what was meant: whole GPUs are named where
        slices are asked for or the other way round, other devices are pinned already, or the replicas need more
        devices than are named.
    """
    spec = resource.spec
    accelerator, engine = spec.accelerator, spec.engine
    if accelerator is None or accelerator.allocation is not Allocation.DRA or engine is None:
        return resource, ()
    given = next((variable.value for variable in engine.env or () if variable.name == VARIABLE), None)
    named = [part.strip() for part in (given or "").split(",")]
    form = MIG_UUID if accelerator.mig else GPU_UUID
    if len(set(named)) != len(named) or len(named) > UUIDS_LIMIT or not all(form.fullmatch(name) for name in named):
        return resource, ()
    pinned = accelerator.mig.uuids if accelerator.mig else accelerator.uuids
    if (pinned is not None and set(pinned) != set(named)) or len(named) < _needed(spec, accelerator):
        return resource, ()
    kept = [variable for variable in engine.env or () if variable.name != VARIABLE]
    changed = spec.model_copy(
        update={
            "accelerator": accelerator.model_copy(update=_pinned(accelerator, named)),
            "engine": engine.model_copy(update={"env": kept or None}),
        }
    )
    what, field = ("MIG devices", "accelerator.mig.uuids") if accelerator.mig else ("GPUs", "accelerator.uuids")
    note = (
        f"{VARIABLE} in spec.engine.env names {what} by UUID. The claim asks for exactly these, as {field} would, "
        "and the variable is left out: the Pod sees nothing else."
    )
    return resource.model_copy(update={"spec": changed}), (note,)


def _pinned(accelerator: AcceleratorSpec, uuids: list[str]) -> dict[str, object]:
    return {"mig": accelerator.mig.model_copy(update={"uuids": uuids})} if accelerator.mig else {"uuids": uuids}


def _needed(spec: VLLMDeploymentSpec, accelerator: AcceleratorSpec) -> int:
    """How many devices all replicas need together."""
    parallelism = spec.parallelism or ParallelismSpec()
    size = (parallelism.tensor or 1) * (parallelism.pipeline or 1) * (parallelism.data or 1)
    return spec.replicas * (accelerator.count or size)
