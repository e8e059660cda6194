"""The recorded manifests: which VLLMDeployments and plans they follow from."""

from pathlib import Path

import yaml

from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.key import CacheOrigin, CachePlan, plan_cache
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
    caches = plan_caches(resource, unplanned, case.get("cacheGeneration", 0))
    return resource, unplanned.model_copy(update={"cache_key": caches.key, "env": [*unplanned.env, *caches.env]})


def plan_caches(resource: VLLMDeployment, plan: Plan, generation: int) -> CachePlan:
    parallelism, accelerator = resource.spec.parallelism, resource.spec.accelerator
    origin = CacheOrigin(
        version=plan.engine_version,
        distribution=plan.distribution,
        image=plan.image,
        architecture=plan.architecture,
        product=plan.product,
        mig_profile=accelerator.mig.profile if accelerator and accelerator.mig else None,
        parallel=str(
            ParallelShape(
                tensor=(parallelism and parallelism.tensor) or 1,
                pipeline=(parallelism and parallelism.pipeline) or 1,
                data=(parallelism and parallelism.data) or 1,
                expert=parallelism is not None and parallelism.expert == "Enabled",
            )
        ),
        user=run_as_user(resource.spec.pod_template),
        generation=generation,
    )
    return plan_cache(origin, load_catalog().caches)
