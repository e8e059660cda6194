"""The pure rooms as the reconciler uses them: functions with everything that is known already filled in."""

from collections import OrderedDict
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
from vllm_operator.rendering.manifests import render
from vllm_operator.reporting.knowledge import load_knowledge
from vllm_operator.reporting.observation import Observation, Report
from vllm_operator.reporting.report import report
from vllm_operator.runtime.follower import Parser
from vllm_operator.startup.parser import StartupParser

MAX_OUTCOMES = 64
"""Objects whose latest outcome is remembered: those that something is happening to."""


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
        plan=Planner(catalog),
        render=render,
        report=partial(report, knowledge=load_knowledge(startup)),
        make_parser=partial(StartupParser, startup),
    )


class Planner:
    """Plans, and remembers the latest outcomes: most looks at an object find nothing that a plan depends on changed."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._latest: OrderedDict[str, tuple[VLLMDeployment, Inventory, Outcome]] = OrderedDict()

    def __call__(self, resource: VLLMDeployment, inventory: Inventory) -> Outcome:
        """Plan one VLLMDeployment for these GPUs; the plan in its status is the pinned one."""
        known = self._latest.get(resource.metadata.uid)
        if known is not None and known[1] is inventory and _plans_alike(known[0], resource):
            return known[2]
        generation = _cache_generation(resource)
        outcome = plan(resource, inventory, self._catalog, pinned=resource.status.plan, cache_generation=generation)
        if resource.metadata.uid:
            self._latest.pop(resource.metadata.uid, None)
            self._latest[resource.metadata.uid] = (resource, inventory, outcome)
            if len(self._latest) > MAX_OUTCOMES:
                self._latest.popitem(last=False)
        return outcome


def _plans_alike(old: VLLMDeployment, new: VLLMDeployment) -> bool:
    if old.metadata.generation != new.metadata.generation or old.metadata.annotations != new.metadata.annotations:
        return False
    return _cache_generation(old) == _cache_generation(new) and old.status.plan == new.status.plan and old.spec == new.spec


def _cache_generation(resource: VLLMDeployment) -> int:
    cache = resource.status.cache
    return (cache.generation or 0) if cache else 0
