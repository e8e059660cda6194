"""Devices that a user names by UUID in CUDA_VISIBLE_DEVICES, put where they belong.

In a Pod the variable cannot choose a device: it only hides some of those that the Pod was given, and before 0.24 vLLM
ends at its start on a UUID. With dynamic resource allocation what the user means can be had: the claim asks for exactly
these MIG devices, the Pod sees nothing else, and the variable has nothing left to do. Everywhere else the rules refuse
it, or warn.
"""

import re

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import Allocation

VARIABLE = "CUDA_VISIBLE_DEVICES"
MIG_UUID = re.compile(r"MIG-[0-9A-Za-z/-]{1,60}")
UUIDS_LIMIT = 64


def translate(resource: VLLMDeployment) -> tuple[VLLMDeployment, tuple[str, ...]]:
    """Ask for the MIG devices that the variable names in the claim, and leave the variable out.

    Returns:
        The VLLMDeployment as it shall be planned and rendered, and what the user should know about that. It is the
        same where there is nothing to translate, or where that would not be what was meant: slices are not asked for,
        other devices are pinned already, or the replicas need more devices than are named.
    """
    spec = resource.spec
    accelerator, engine = spec.accelerator, spec.engine
    if accelerator is None or accelerator.mig is None or accelerator.allocation is not Allocation.DRA or engine is None:
        return resource, ()
    given = next((variable.value for variable in engine.env or () if variable.name == VARIABLE), None)
    named = [part.strip() for part in (given or "").split(",")]
    if len(set(named)) != len(named) or len(named) > UUIDS_LIMIT or not all(MIG_UUID.fullmatch(name) for name in named):
        return resource, ()
    needed = (spec.replicas if spec.replicas is not None else 1) * (accelerator.count or (spec.parallelism and spec.parallelism.data) or 1)
    pinned = accelerator.mig.uuids
    if (pinned is not None and set(pinned) != set(named)) or len(named) < needed:
        return resource, ()
    kept = [variable for variable in engine.env or () if variable.name != VARIABLE]
    mig = accelerator.mig.model_copy(update={"uuids": named})
    changed = spec.model_copy(
        update={
            "accelerator": accelerator.model_copy(update={"mig": mig}),
            "engine": engine.model_copy(update={"env": kept or None}),
        }
    )
    note = (
        f"{VARIABLE} in spec.engine.env names MIG devices by UUID. The claim asks for exactly these, as accelerator.mig.uuids would, "
        "and the variable is left out: the Pod sees nothing else."
    )
    return resource.model_copy(update={"spec": changed}), (note,)
