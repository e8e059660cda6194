"""Manifests of many situations, each next to the VLLMDeployment and the plan that they follow from."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import Toggle
from vllm_operator.api.status import Plan
from vllm_operator.catalog.caches import load_caches
from vllm_operator.planning.cache import CachePlan, ParallelShape, plan_cache
from vllm_operator.rendering import render

CASES = sorted(path.parent for path in (Path(__file__).parent / "manifests").glob("*/input.yaml"))


class BlockDumper(yaml.SafeDumper):
    """YAML as people write it: lists indented, nothing shared."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def read_case(folder: Path) -> tuple[VLLMDeployment, Plan]:
    """Read a VLLMDeployment and its plan; the caches are planned here, as the planner does."""
    case = yaml.safe_load((folder / "input.yaml").read_text("utf-8"))
    resource = VLLMDeployment.parse(case["resource"])
    unplanned = Plan.model_validate({"cacheKey": "", **case["plan"]})
    caches = plan_caches(resource, unplanned, case.get("cacheGeneration", 0))
    return resource, unplanned.model_copy(update={"cache_key": caches.key, "env": [*unplanned.env, *caches.env]})


def plan_caches(resource: VLLMDeployment, plan: Plan, generation: int) -> CachePlan:
    parallelism, accelerator = resource.spec.parallelism, resource.spec.accelerator
    return plan_cache(
        load_caches(),
        version=plan.engine_version,
        distribution=plan.distribution,
        image=plan.image,
        architecture=plan.architecture,
        product=plan.product,
        mig_profile=accelerator.mig.profile if accelerator and accelerator.mig else None,
        parallel=ParallelShape(
            tensor=(parallelism and parallelism.tensor) or 1,
            pipeline=(parallelism and parallelism.pipeline) or 1,
            data=(parallelism and parallelism.data) or 1,
            expert=parallelism is not None and parallelism.expert is Toggle.ENABLED,
        ),
        generation=generation,
    )


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_manifests_are_as_recorded(folder: Path, golden: Callable[[Path, str], None]) -> None:
    manifests = render(*read_case(folder))
    golden(folder / "manifests.yaml", yaml.dump_all(manifests, Dumper=BlockDumper, sort_keys=False, width=120))


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_equal_input_gives_equal_manifests(folder: Path) -> None:
    assert render(*read_case(folder)) == render(*read_case(folder))


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_manifests_are_plain_json_without_nulls(folder: Path) -> None:
    for path, value in walk(render(*read_case(folder))):
        assert type(value) in (dict, list, str, int, bool), f"{path} is {value!r}"


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, value
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        yield from walk(entry, f"{path}/{name}")
