"""Damaged caches: when they are left behind, and when they are not to blame.

A truncated kernel file is fatal at every start, so a start that dies of one must not be tried for ever. The generation
in the cache key is raised: the next start fills a directory of its own, and the damaged one stays for inspection.

The same words in a log can come from a driver that is too old. So caches are blamed only if there were any (the claim
says that they were filled, the log shows that some were loaded, or the Pod has died of the same before), and not again
if the same crash follows with caches that are new. `MOST` within `WINDOW` is the end of it in any case.

Python's bytecode is different: a start on a full volume can leave a truncated file in a new directory too, and the next start of the
container dies of it. The file can only be on the volume, so the directory is replaced again, after `MOST` at most every `PAUSE`: the
deployment serves again once the volume has room.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from vllm_operator.api import labels
from vllm_operator.api.status import Plan, QuarantinedCache
from vllm_operator.observation.crashes import Crashes
from vllm_operator.observation.state import ObservedState
from vllm_operator.pods import reading
from vllm_operator.pods.view import PodView

MOST = 3
"""Each costs a cold start. A volume that damages files three times a day needs a person."""
WINDOW = timedelta(hours=24)
PAUSE = timedelta(minutes=10)
"""After `MOST`, a cache that only the volume can have damaged is replaced again after this time: the volume may have been full."""
KEPT = 8
"""How many are listed in the status; the claim lists all."""


@dataclass(frozen=True, slots=True)
class CacheDamage:
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
class _Suspect:
    signature: str
    view: PodView
    run: int


def assess_cache_damage(observed: ObservedState, plan: Plan, crashes: Crashes) -> CacheDamage:
    """Judge the crashes of Pods with the caches of a plan."""
    previous = observed.observation.previous
    known = tuple((previous.cache.quarantined if previous.cache else None) or ())
    done = next((entry for entry in known if entry.key == plan.cache_key), None)
    if done is not None:
        return CacheDamage(known, left_behind=True, signature=done.signature)
    if observed.observation.claim_name is not None and observed.observation.claim is None:
        return CacheDamage(known)
    for suspect in _suspects(observed, plan, crashes):
        if message := _why_not_damaged(observed, plan, suspect, known):
            return CacheDamage(known, message=message, signature=suspect.signature)
        now = reading.stamp(observed.observation.now) or ""
        entry = QuarantinedCache(key=plan.cache_key, time=now, signature=suspect.signature)
        return CacheDamage((*known, entry)[-KEPT:], raised=True, left_behind=True, signature=suspect.signature)
    return CacheDamage(known)


def latest(observed: ObservedState, quarantined: tuple[QuarantinedCache, ...]) -> QuarantinedCache | None:
    """The last directory that was left behind, if that is not long ago."""
    return next((entry for entry in reversed(_recent(observed, quarantined))), None)


def _suspects(observed: ObservedState, plan: Plan, crashes: Crashes) -> Iterator[_Suspect]:
    for finding in crashes.in_force:
        if finding.settled and finding.status.signature in observed.knowledge.quarantining and _has_caches(observed, plan, finding.view):
            yield _Suspect(finding.status.signature, finding.view, finding.run)
    for view in observed.starting:
        state = observed.state(view)
        signs = observed.knowledge.quarantining.intersection(state.notices) if state is not None else ()
        if signs and observed.stalled(view) and _has_caches(observed, plan, view):
            yield _Suspect(min(signs), view, view.restarts)


def _has_caches(observed: ObservedState, plan: Plan, view: PodView) -> bool:
    return observed.cache_keys.get(view.uid, plan.cache_key) == plan.cache_key


def _why_not_damaged(observed: ObservedState, plan: Plan, suspect: _Suspect, known: tuple[QuarantinedCache, ...]) -> str:
    """Why the caches are not left behind; empty if they are."""
    filled = bool(reading.text(observed.observation.claim, "metadata", "annotations", labels.PRIMED_ANNOTATION_PREFIX + plan.cache_key))
    recent = _recent(observed, known)
    if _is_on_volume(observed, plan, suspect):
        return "" if len(recent) < MOST or _time_since(observed, recent[-1]) >= PAUSE else "cache.blamed_often"
    if not filled and not _had_any(observed, suspect):
        return "cache.not_to_blame"
    if not filled and any(entry.signature == suspect.signature for entry in recent):
        return "cache.not_to_blame"
    return "cache.blamed_often" if len(recent) >= MOST else ""


def _is_on_volume(observed: ObservedState, plan: Plan, suspect: _Suspect) -> bool:
    """Whether the damaged file can only be in the caches of the plan.

    A start on a full volume writes such a file, and the next one of the same container dies of it, also in a new directory.
    """
    signature = observed.knowledge.signatures.get(suspect.signature)
    variable = signature.cache_variable if signature is not None else None
    is_set = any(planned.name == variable and planned.value for planned in plan.env)
    return is_set and suspect.run > 0


def _time_since(observed: ObservedState, entry: QuarantinedCache) -> timedelta:
    when = reading.moment(entry.time)
    return observed.observation.now - when if when is not None else WINDOW


def _had_any(observed: ObservedState, suspect: _Suspect) -> bool:
    state = observed.observation.startups.get((suspect.view.uid, suspect.run))
    if state is not None and state.cache.hits > 0:
        return True
    before = observed.observation.previous.last_crash
    if before is None or (before.pod, before.signature) != (suspect.view.name, suspect.signature):
        return False
    return (before.restarts or 0) < suspect.run


def _recent(observed: ObservedState, known: tuple[QuarantinedCache, ...]) -> list[QuarantinedCache]:
    since = observed.observation.now - WINDOW
    return [entry for entry in known if (when := reading.moment(entry.time)) is not None and when >= since]
