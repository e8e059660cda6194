"""Whether a plan still stands: whether the spec is the one that it was made for.

Another number of replicas is no other spec: an autoscaler changes it, and what it starts must be like what is there.
"""

import hashlib
import json

from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.status import Plan


def is_in_force(pinned: Plan, resource: VLLMDeployment) -> bool:
    """True if the plan was made for the spec as it is, but for its replicas, and no new plan was asked for since."""
    if pinned.replan_token != resource.metadata.annotations.get(REPLAN_ANNOTATION):
        return False
    same = pinned.observed_generation == resource.metadata.generation
    return same or (pinned.spec_digest is not None and pinned.spec_digest == digest_of(resource.spec))


def planned_generation(resource: VLLMDeployment) -> int:
    """The generation of the spec as it is asked for, however often it was scaled since: that of the plan in force."""
    plan = resource.status.plan
    if plan is None or plan.observed_generation is None or not is_in_force(plan, resource):
        return resource.metadata.generation
    return plan.observed_generation


def digest_of(spec: VLLMDeploymentSpec) -> str:
    """Changes with everything that is asked for, except how many replicas of it."""
    asked = {name: value for name, value in spec.to_json().items() if name != "replicas"}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
