"""The ResourceClaimTemplate of a Pod that gets its GPUs by dynamic resource allocation (DRA).

If a CEL selector reads an attribute that is missing on one device, the allocation fails for all devices. So each selector first tests
whether the attribute exists. For example, dynamic MIG devices have no uuid.
"""

import hashlib
import json
import re
from typing import Any

from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment, metadata_of
from vllm_operator.api.spec import AcceleratorSpec, MigSpec
from vllm_operator.catalog.gpus import capability_of
from vllm_operator.inventory.devices import DRIVER, UNKNOWN_PROFILE
from vllm_operator.inventory.pools import DEVICE_CLASSES

REQUEST = "gpu"
_ATTRIBUTES = f"device.attributes['{DRIVER}']"


def uses_dra(plan: Plan) -> bool:
    """Return whether the Pods get their GPUs by dynamic resource allocation."""
    return plan.resource in DEVICE_CLASSES


def render_resource_claim_template(resource: VLLMDeployment, plan: Plan) -> dict[str, Any] | None:
    """Render the template; None if the device plugin allocates the GPUs. A template is immutable, so its name contains a digest."""
    if not uses_dra(plan):
        return None
    exactly: dict[str, Any] = {"deviceClassName": plan.resource, "count": plan.count}
    if expressions := _expressions(resource, plan):
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    devices: dict[str, Any] = {"requests": [{"name": REQUEST, "exactly": exactly}]}
    if plan.count > 1:
        devices["constraints"] = [{"requests": [REQUEST], "matchAttribute": f"{DRIVER}/productName"}]
    spec = {"spec": {"devices": devices}}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    metadata = metadata_of(resource, f"{resource.metadata.name}-gpu-{digest}")
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}


def _expressions(resource: VLLMDeployment, plan: Plan) -> list[str]:
    accelerator = resource.spec.accelerator or AcceleratorSpec()
    mig = accelerator.mig or MigSpec()
    expressions = []
    if plan.architecture:
        major, minor = capability_of(plan.architecture)
        expressions.append(_where("cudaComputeCapability", f".compareTo(semver('{major}.{minor}.0')) == 0"))
    if plan.product:
        product = re.sub(r"-(MIG-.*|SHARED)$", "", plan.product)  # a suffix of the node label, for a MIG slice or a shared GPU
        expressions.append(_where("productName", f".replace(' ', '-') == {_text(product)}"))
    # a claim for UUIDs needs no profile
    if profile := mig.profile or (None if mig.uuids or plan.mig_profile == UNKNOWN_PROFILE else plan.mig_profile):
        expressions.append(_where("profile", f" == {_text(profile)}"))
    if uuids := accelerator.uuids or mig.uuids:
        expressions.append(_where("uuid", f" in [{', '.join(_text(uuid) for uuid in uuids)}]"))
    return expressions


def _where(attribute: str, test: str) -> str:
    return f"'{attribute}' in {_ATTRIBUTES} && {_ATTRIBUTES}.{attribute}{test}"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
