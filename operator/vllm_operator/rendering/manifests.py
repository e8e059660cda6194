"""From a plan to manifests: plain dicts as the API server takes them.

The result depends on name, namespace, uid and spec of the VLLMDeployment and on the plan, on nothing else,
and is equal for equal input. It holds no null, no status, and no field that is only the API server's to
fill in: applying it twice changes nothing, and what others set beside it stays.
"""

from typing import Any

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import Plan
from vllm_operator.caches.address import claims_of, template_spec
from vllm_operator.planning.placement.visible_devices import translate
from vllm_operator.rendering.claim import render_claims
from vllm_operator.rendering.deployment import render_deployment
from vllm_operator.rendering.resource_claim import render_resource_claim_template
from vllm_operator.rendering.service import render_service


def render(resource: VLLMDeployment, plan: Plan) -> list[dict[str, Any]]:
    """Render everything that belongs to a VLLMDeployment, in the order in which it is applied.

    Raises:
        PodTemplateError: `spec.podTemplate` cannot be merged.
    """
    resource, _ = translate(resource)
    deployment = render_deployment(resource, plan)
    # a claim that the Pods do not mount: the user's Pod template keeps caches or weights elsewhere
    mounted = claims_of(template_spec(deployment))
    claims = [claim for claim in render_claims(resource, plan) if claim["metadata"]["name"] in mounted]
    manifests = (*claims, render_service(resource), render_resource_claim_template(resource, plan), deployment)
    return [manifest for manifest in manifests if manifest is not None]
