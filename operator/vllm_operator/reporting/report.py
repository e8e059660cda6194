"""From an observation to what is written: status, events, and when to look again.

The order is the order of dependence: the plan, the cache and the start as numbers first, then the conditions
that speak of them, then the summary, then the events, which are the difference to the previous status.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from vllm_operator.api.conditions import ACCEPTED, AVAILABLE, CACHE_WARM, CRASHED, PLANNED, READY, STARTING, Reason, find_condition
from vllm_operator.api.status import StartupStatus, VLLMDeploymentStatus
from vllm_operator.reporting import caches, claims, planned, progress, reading, remedies, rollout, starting, summary
from vllm_operator.reporting.conditions import set_conditions
from vllm_operator.reporting.crashes import Crashes, crash_settles, find_crashes
from vllm_operator.reporting.events import draft_events
from vllm_operator.reporting.knowledge import Knowledge, load_knowledge
from vllm_operator.reporting.lateness import start_clock
from vllm_operator.reporting.observation import Observation, PodReference, Report
from vllm_operator.reporting.quarantine import blame_caches
from vllm_operator.reporting.scene import Scene

_SOON = 1.0
"""Seconds. What is due within less is looked at after this long."""
NODES_SECONDS = 30
"""When a VLLMDeployment without a GPU looks at the nodes again: no watch tells of them, and new ones take minutes to come."""
REFUSED_SECONDS = (5.0, 60.0)
"""After how long at least and at most it is tried again to apply what was refused: a quota may be raised, a webhook be back."""


def report(observation: Observation, knowledge: Knowledge | None = None) -> Report:
    """Report on one VLLMDeployment.

    The same observation gives the same report. With the status of that report as its previous status, it
    gives that status again and no events.
    """
    known = knowledge or load_knowledge()
    scene = Scene.read(observation, known)
    crashes = find_crashes(scene)
    block = progress.startup_status(scene)
    status = _status(scene, crashes, block)
    return Report(
        status=status,
        events=draft_events(scene, status, crashes),
        restart_pods=tuple(PodReference(view.name, view.uid) for view in remedies.pods_to_restart(scene, status.remediation)),
        start=start_clock(scene),
        requeue_after_seconds=_requeue_after(scene, crashes, block),
    )


def _status(scene: Scene, crashes: Crashes, block: StartupStatus | None) -> VLLMDeploymentStatus:
    observation = scene.observation
    plan = planned.observed_plan(scene)
    blame = blame_caches(scene, plan, crashes) if plan is not None and observation.outcome.plan is not None else None
    cached = caches.cache_status(scene, plan, blame)
    remediation = remedies.remediation_status(scene, crashes)
    judged = {
        ACCEPTED: planned.accepted(scene),
        PLANNED: planned.planned(scene, plan),
        CACHE_WARM: caches.cache_warm(scene, cached, block, blame),
        STARTING: starting.starting(scene, block, remediation),
        CRASHED: summary.crashed(scene, crashes, remediation),
        AVAILABLE: summary.available(scene),
    }
    judged[READY] = summary.ready(scene, judged)
    generation = observation.resource.metadata.generation
    return VLLMDeploymentStatus(
        observed_generation=generation,
        replicas=rollout.replicas(scene),
        ready_replicas=scene.serving,
        selector=rollout.selector(scene),
        conditions=set_conditions(observation.previous.conditions, judged, generation=generation, now=reading.stamp(observation.now) or ""),
        plan=plan,
        cache=cached,
        startup=block,
        last_crash=crashes.last,
        remediation=remediation,
    )


def _requeue_after(scene: Scene, crashes: Crashes, block: StartupStatus | None) -> float | None:
    now = scene.observation.now
    due = [when for when in _deadlines(scene, crashes, block) if when is not None and when > now]
    return max(_SOON, (min(due) - now).total_seconds()) if due else None


def _deadlines(scene: Scene, crashes: Crashes, block: StartupStatus | None) -> Iterator[datetime | None]:
    """When time alone changes something."""
    outcome = scene.observation.outcome
    if outcome.plan is None and outcome.planned.reason in (Reason.NO_MATCHING_GPU, Reason.PERMISSION_MISSING):
        yield scene.observation.now + timedelta(seconds=NODES_SECONDS)
    if scene.observation.apply_error:
        yield _next_try(scene.observation)
    yield progress.held_until(scene, block)
    recheck = scene.observation.care.recheck_seconds
    yield scene.observation.now + timedelta(seconds=max(_SOON, recheck)) if recheck is not None else None
    yield claims.binding_deadline(scene)
    yield from (finding.settles_at for finding in crashes.findings)
    for view in scene.starting:
        yield progress.silence_begins(scene, view)
        yield crash_settles(scene, view)
        judgement = scene.judgement(view)
        if judgement is not None:
            yield judgement.deadline
            yield judgement.look_at


def _next_try(observation: Observation) -> datetime:
    """When to apply again what was refused, which no watch tells: the longer nothing serves, the later."""
    ready = find_condition(observation.previous.conditions, READY)
    since = reading.moment(ready.last_transition_time) if ready is not None else None
    waited = (observation.now - since).total_seconds() if since is not None else 0.0
    least, most = REFUSED_SECONDS
    return observation.now + timedelta(seconds=min(most, max(least, waited / 2)))
