"""The pure rooms as the reconciler uses them: functions with everything that is known already filled in."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import Plan
from vllm_operator.caches.actions import PATIENCE_SECONDS, CacheActions, plan_cache_actions
from vllm_operator.caches.activity import Cleaning, CleaningState
from vllm_operator.caches.cleaning import describe_blocked_cleaning
from vllm_operator.caches.context import CacheContext
from vllm_operator.catalog.loader import Catalog, load_catalog
from vllm_operator.catalog.startup import load_startup
from vllm_operator.cluster.client import Manifest
from vllm_operator.cluster.hub import HubAnswer
from vllm_operator.observation.crashes import Crashes, find_crashes
from vllm_operator.observation.observation import Observation
from vllm_operator.observation.state import ObservedState
from vllm_operator.planning.inventory.nodes import read_inventory
from vllm_operator.planning.inventory.pools import Inventory
from vllm_operator.planning.outcome import Outcome
from vllm_operator.planning.planner import plan
from vllm_operator.remediation.decision import Decision, decide
from vllm_operator.remediation.in_force import carried_out
from vllm_operator.remediation.remediator import load_remediator
from vllm_operator.rendering.manifests import render
from vllm_operator.runtime.follower import Parser
from vllm_operator.runtime.heartbeats import ProgressClock
from vllm_operator.runtime.user_data import KnownCatalog, KnownCrashes
from vllm_operator.startup.parser import StartupParser
from vllm_operator.status.report import Report, report

MAX_OUTCOMES = 512
"""Objects whose latest outcome is remembered: those that something is happening to. Each takes up to 60 KiB."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """What the operator thinks with. None of these does I/O."""

    read_inventory: Callable[[Sequence[Manifest], Sequence[Manifest]], Inventory]
    """From nodes and ResourceSlices to what GPUs there are."""
    plan: Callable[[VLLMDeployment, Inventory, HubAnswer, int | None], Outcome]
    """From an object, with the plan that is pinned in its status, and what the hub tells of its model, to a plan;
    with a generation of the caches, or that of its status."""
    render: Callable[[VLLMDeployment, Plan], list[Manifest]]
    """From a plan to manifests."""
    plan_cache_actions: Callable[[CacheContext, Sequence[Manifest]], CacheActions]
    """From the state of the caches and all manifests to those that are to be applied now."""
    describe_blocked_cleaning: Callable[[CacheContext, CleaningState, str], Cleaning | None]
    """What is to be said of a Job that could not be started."""
    decide: Callable[[Observation], tuple[ObservedState, Crashes, Decision]]
    """From what is observed to what is done about it."""
    report: Callable[[ObservedState, Crashes, Decision], Report]
    """From what is observed and decided to status and events."""
    make_parser: Callable[[], Parser]
    """A reader for one log."""


def load_rooms(
    known: KnownCatalog | None = None, crashes: KnownCrashes | None = None, *, priming_patience_seconds: int = PATIENCE_SECONDS
) -> Rooms:
    """Fill in what ships with the package. Takes some tenths of a second: keep the result.

    Args:
        known: What is known at the moment, where it may change later.
        crashes: The crashes that are known at the moment, where they may change later.
        priming_patience_seconds: How long a primer may wait for a GPU.
    """
    known, crashes = known or KnownCatalog.of(load_catalog()), crashes or KnownCrashes.of(load_startup())
    remediator = load_remediator()

    def decide_now(observation: Observation) -> tuple[ObservedState, Crashes, Decision]:
        observed = ObservedState.read(observation, crashes.reporting)
        found = find_crashes(observed)
        return observed, found, decide(observed, found, remediator)

    return Rooms(
        read_inventory=partial(read_inventory, gpus=known.shipped.gpus),
        plan=Planner(known),
        render=_render,
        plan_cache_actions=partial(
            plan_cache_actions,
            rules=known.shipped.priming,
            full=crashes.reporting.cleaning,
            read_only=crashes.reporting.remounting,
            patience_seconds=priming_patience_seconds,
        ),
        describe_blocked_cleaning=lambda context, state, why: describe_blocked_cleaning(context, crashes.reporting.cleaning, state, why),
        decide=decide_now,
        report=report,
        make_parser=lambda: ProgressClock(StartupParser(crashes.startup), crashes.shipped.stages.heartbeats),
    )


def _render(resource: VLLMDeployment, plan: Plan) -> list[Manifest]:
    return render(*carried_out(resource, plan))


def _plan(resource: VLLMDeployment, inventory: Inventory, catalog: Catalog, answer: HubAnswer, generation: int) -> Outcome:
    return plan(
        resource,
        inventory,
        catalog,
        pinned=resource.status.plan,
        cache_generation=generation,
        files=answer,
    )


class Planner:
    """Plans, and remembers the latest outcomes: most looks at an object find nothing that a plan depends on changed."""

    def __init__(self, known: KnownCatalog) -> None:
        self._known = known
        self._latest: OrderedDict[str, tuple[VLLMDeployment, Inventory, Catalog, HubAnswer, Outcome]] = OrderedDict()

    def __call__(self, resource: VLLMDeployment, inventory: Inventory, answer: HubAnswer, generation: int | None = None) -> Outcome:
        """Plan one VLLMDeployment for these GPUs; the plan in its status is the pinned one.

        With a generation the caches are of that one, and nothing is remembered.
        """
        catalog = self._known.current
        if generation is not None:
            return _plan(resource, inventory, catalog, answer, generation)
        last = self._latest.get(resource.metadata.uid)
        if last is not None and last[1] is inventory and last[2] is catalog and last[3] == answer and _plans_alike(last[0], resource):
            return last[4]
        outcome = _plan(resource, inventory, catalog, answer, _cache_generation(resource))
        if resource.metadata.uid:
            self._latest.pop(resource.metadata.uid, None)
            self._latest[resource.metadata.uid] = (resource, inventory, catalog, answer, outcome)
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
