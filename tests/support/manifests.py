"""The recorded manifests: which VLLMDeployments and plans they follow from."""

from pathlib import Path

import yaml

from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.key import with_cache_key
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.planning.pod_template import run_as_user
from vllm_operator.sizing.parallelism import ParallelShape

TOOLS_IMAGE = "registry.example/vllm-operator:1"
MAX_TEMPLATE_BYTES = 16_384
"""Of a Pod template as JSON. It holds no programs, so people can read it."""
CASES = sorted(path.parent for path in (Path(__file__).parent.parent / "golden" / "manifests").glob("*/input.yaml"))


def read_case(folder: Path) -> tuple[VLLMDeployment, Plan]:
    """Read a VLLMDeployment and its plan; the caches are planned here, as the planner does."""
    case = yaml.safe_load((folder / "input.yaml").read_text("utf-8"))
    resource = VLLMDeployment.parse(case["resource"])
    unplanned = Plan.model_validate({"cacheKey": "", "toolsImage": TOOLS_IMAGE, **case["plan"]})
    key = cache_key(resource, unplanned, case.get("cacheGeneration", 0))
    env = load_catalog().caches.variables_of(unplanned.engine_version, unplanned.distribution)
    return resource, unplanned.model_copy(update={"cache_key": key, "env": [*unplanned.env, *env]})


def cache_key(resource: VLLMDeployment, plan: Plan, generation: int) -> str:
    parallelism, accelerator = resource.spec.parallelism, resource.spec.accelerator
    shape = ParallelShape(
        tensor=(parallelism and parallelism.tensor) or 1,
        pipeline=(parallelism and parallelism.pipeline) or 1,
        data=(parallelism and parallelism.data) or 1,
        expert=parallelism is not None and parallelism.expert == "Enabled",
    )
    profile = accelerator.mig.profile if accelerator and accelerator.mig else None
    user = run_as_user(resource.spec.pod_template)
    return with_cache_key(plan, parallel=str(shape), mig_profile=profile, user=user, generation=generation).cache_key
