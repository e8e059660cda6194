"""The pure rooms as the reconciler uses them: functions with everything that is known already filled in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import Plan
from vllm_operator.catalog.loader import Catalog, load_catalog
from vllm_operator.catalog.startup import load_startup
from vllm_operator.cluster.client import Manifest
from vllm_operator.planning.inventory import read_inventory
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.planner import plan
from vllm_operator.planning.pools import Inventory
from vllm_operator.planning.remediation import carried_out
from vllm_operator.rendering.manifests import render
from vllm_operator.reporting.knowledge import load_knowledge
from vllm_operator.reporting.observation import Observation, Report
from vllm_operator.reporting.report import report
from vllm_operator.runtime.follower import Parser
from vllm_operator.runtime.heartbeats import ProgressClock
from vllm_operator.startup.parser import StartupParser


@dataclass(frozen=True, slots=True)
class Rooms:
    """What the operator thinks with. None of these does I/O."""

    read_inventory: Callable[[Sequence[Manifest], Sequence[Manifest]], Inventory]
    """From nodes and ResourceSlices to what GPUs there are."""
    plan: Callable[[VLLMDeployment, Inventory], Outcome]
    """From an object, with the plan that is pinned in its status, to a plan."""
    render: Callable[[VLLMDeployment, Plan], list[Manifest]]
    """From a plan to manifests."""
    report: Callable[[Observation], Report]
    """From what is observed to status and events."""
    make_parser: Callable[[], Parser]
    """A reader for one log."""


def load_rooms() -> Rooms:
    """Fill in what ships with the package. Takes some tenths of a second: keep the result."""
    catalog, startup = load_catalog(), load_startup()
    return Rooms(
        read_inventory=partial(read_inventory, gpus=catalog.gpus),
        plan=partial(_plan, catalog),
        render=_render,
        report=partial(report, knowledge=load_knowledge(startup)),
        make_parser=lambda: ProgressClock(StartupParser(startup), startup.stages.heartbeats),
    )


def _render(resource: VLLMDeployment, plan: Plan) -> list[Manifest]:
    return render(*carried_out(resource, plan))


def _plan(catalog: Catalog, resource: VLLMDeployment, inventory: Inventory) -> Outcome:
    cache = resource.status.cache
    generation = (cache.generation or 0) if cache else 0
    return plan(resource, inventory, catalog, pinned=resource.status.plan, cache_generation=generation)
