"""Damaged caches: when they are left behind, and when they are not to blame.

A truncated kernel file is fatal at every start, so a start that dies of one must not be tried for ever. The generation
in the cache key is raised: the next start fills a directory of its own, and the damaged one stays for inspection.

The same words in a log can come from a driver that is too old. So caches are blamed only if there were any (the claim
says that they were filled, the log shows that some were loaded, or the Pod has died of the same before), and not again
if the same crash follows with caches that are new. `MOST` within `WINDOW` is the end of it in any case.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from vllm_operator.api import labels
from vllm_operator.api.status import Plan, QuarantinedCache
from vllm_operator.reporting import reading
from vllm_operator.reporting.crashes import Crashes
from vllm_operator.reporting.pods import PodView
from vllm_operator.reporting.scene import Scene

MOST = 3
"""Each costs a cold start. A volume that damages files three times a day needs a person."""
WINDOW = timedelta(hours=24)
KEPT = 8
"""How many are listed in the status; the claim lists all."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Whether the caches are to blame for a crash.

    `raised`: they are, and the generation of the next plan's key is raised for it. `left_behind`: that was done already.
    `message` names what else is to be said; empty where nothing is.
    """

    quarantined: tuple[QuarantinedCache, ...]
    raised: bool = False
    left_behind: bool = False
    message: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True)
class _Suspicion:
    signature: str
    view: PodView
    run: int


def blame_caches(scene: Scene, plan: Plan, crashes: Crashes) -> Blame:
    """Judge the crashes of Pods with the caches of a plan."""
    previous = scene.observation.previous
    known = tuple((previous.cache.quarantined if previous.cache else None) or ())
    done = next((entry for entry in known if entry.key == plan.cache_key), None)
    if done is not None:
        return Blame(known, left_behind=True, signature=done.signature)
    if scene.observation.claim_name is not None and scene.observation.claim is None:
        return Blame(known)
    for suspicion in _suspicions(scene, plan, crashes):
        if message := _acquittal(scene, plan, suspicion, known):
            return Blame(known, message=message, signature=suspicion.signature)
        now = reading.stamp(scene.observation.now) or ""
        entry = QuarantinedCache(key=plan.cache_key, time=now, signature=suspicion.signature)
        return Blame((*known, entry)[-KEPT:], raised=True, left_behind=True, signature=suspicion.signature)
    return Blame(known)


def latest(scene: Scene, quarantined: tuple[QuarantinedCache, ...]) -> QuarantinedCache | None:
    """The last directory that was left behind, if that is not long ago."""
    return next((entry for entry in reversed(_recent(scene, quarantined))), None)


def _suspicions(scene: Scene, plan: Plan, crashes: Crashes) -> Iterator[_Suspicion]:
    for finding in crashes.in_force:
        if finding.settled and finding.status.signature in scene.knowledge.quarantining and _has_caches(scene, plan, finding.view):
            yield _Suspicion(finding.status.signature, finding.view, finding.run)
    for view in scene.starting:
        state = scene.state(view)
        signs = scene.knowledge.quarantining.intersection(state.notices) if state is not None else ()
        if signs and scene.stalled(view) and _has_caches(scene, plan, view):
            yield _Suspicion(min(signs), view, view.restarts)


def _has_caches(scene: Scene, plan: Plan, view: PodView) -> bool:
    return scene.cache_keys.get(view.uid, plan.cache_key) == plan.cache_key


def _acquittal(scene: Scene, plan: Plan, suspicion: _Suspicion, known: tuple[QuarantinedCache, ...]) -> str:
    """Why the caches are not left behind; empty if they are."""
    filled = bool(reading.text(scene.observation.claim, "metadata", "annotations", labels.PRIMED_ANNOTATION_PREFIX + plan.cache_key))
    recent = _recent(scene, known)
    if not filled and not _had_any(scene, suspicion):
        return "cache.not_to_blame"
    if not filled and any(entry.signature == suspicion.signature for entry in recent):
        return "cache.not_to_blame"
    return "cache.blamed_often" if len(recent) >= MOST else ""


def _had_any(scene: Scene, suspicion: _Suspicion) -> bool:
    state = scene.observation.startups.get((suspicion.view.uid, suspicion.run))
    if state is not None and state.cache.hits > 0:
        return True
    before = scene.observation.previous.last_crash
    if before is None or (before.pod, before.signature) != (suspicion.view.name, suspicion.signature):
        return False
    return (before.restarts or 0) < suspicion.run


def _recent(scene: Scene, known: tuple[QuarantinedCache, ...]) -> list[QuarantinedCache]:
    since = scene.observation.now - WINDOW
    return [entry for entry in known if (when := reading.moment(entry.time)) is not None and when >= since]
