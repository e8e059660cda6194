"""Decide when a damaged cache directory is quarantined, and when caches are not the cause of a crash.

A truncated kernel file makes every start fail. The next start then has another generation in its cache key and fills a new directory, and
the damaged one stays for inspection.

A driver that is too old can produce the same error. Caches therefore count as damaged only if they existed: the PVC records that they were
filled, they were fetched from a registry, the log shows that some were loaded, or an earlier run of the Pod crashed in the same way. If the
same crash follows with new caches, they are not the cause. At most `MAX_QUARANTINED` directories are quarantined within `WINDOW`.

Python's bytecode is different. A start on a full volume can leave a truncated file in a new directory too, and the next start of the
container crashes on it. The file can only be on the volume, so the directory is replaced again, after `MAX_QUARANTINED` at most every
`PAUSE`. The engine starts when the volume has space.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from vllm_operator.api import labels, reading
from vllm_operator.api.plan import Plan
from vllm_operator.api.status import QuarantinedCache
from vllm_operator.caches.artifacts import FETCHED, read_fetch
from vllm_operator.status.crashes import Crashes
from vllm_operator.status.observation import Observation, PodFacts

MAX_QUARANTINED = 3
"""Maximum number of quarantined directories, because each costs a cold start. A volume that damages more files needs a person."""
WINDOW = timedelta(hours=24)
PAUSE = timedelta(minutes=10)
"""Interval between further replacements if only the volume can have damaged the cache, because it may have been full."""
MAX_LISTED = 8
"""Maximum number of directories in the status. The PVC records all."""


@dataclass(frozen=True, slots=True)
class CacheDamage:
    """Whether damaged caches cause a crash."""

    quarantined: tuple[QuarantinedCache, ...] = ()
    raised: bool = False  # the directory is quarantined now
    is_quarantined: bool = False  # the directory of the plan is quarantined, now or earlier
    message: str = ""  # name of the message about it
    signature: str = ""  # the crash


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A crash, or a stalled start, that damaged caches may have caused."""

    signature: str
    view: PodFacts
    restarts: int


def assess_cache_damage(observed: Observation, plan: Plan, crashes: Crashes) -> CacheDamage:
    """Assess the crashes of Pods that use a plan's caches."""
    previous = observed.previous
    known = tuple((previous.cache.quarantined if previous.cache else None) or ())
    done = next((entry for entry in known if entry.key == plan.cache_key), None)
    if done is not None:
        return CacheDamage(known, is_quarantined=True, signature=done.signature)
    candidate = next(_candidates(observed, plan, crashes), None)
    if candidate is None or (observed.claim_name is not None and observed.claim is None):
        return CacheDamage(known)
    if message := _why_not_damaged(observed, plan, candidate, known):
        return CacheDamage(known, message=message, signature=candidate.signature)
    entry = QuarantinedCache(key=plan.cache_key, time=reading.stamp(observed.now) or "", signature=candidate.signature)
    return CacheDamage((*known, entry)[-MAX_LISTED:], raised=True, is_quarantined=True, signature=candidate.signature)


def latest(observed: Observation, quarantined: tuple[QuarantinedCache, ...]) -> QuarantinedCache | None:
    """Return the last quarantined directory, if it was quarantined within `WINDOW`."""
    return next(iter(_recent(observed, quarantined)[-1:]), None)


def _candidates(observed: Observation, plan: Plan, crashes: Crashes) -> Iterator[_Candidate]:
    for finding in crashes.in_force:
        is_of_caches = finding.status.signature in observed.knowledge.damaged_caches and finding.view.has_caches_of(plan)
        if is_of_caches and finding.reportable_at is None:
            yield _Candidate(finding.status.signature, finding.view, finding.restarts)
    for view in observed.starting:
        state = view.state
        signs = observed.knowledge.damaged_caches.intersection(state.notices) if state is not None else ()
        if signs and view.is_stalled and view.has_caches_of(plan):
            yield _Candidate(min(signs), view, view.restarts)


def _why_not_damaged(observed: Observation, plan: Plan, candidate: _Candidate, known: tuple[QuarantinedCache, ...]) -> str:
    recent = _recent(observed, known)
    is_often = len(recent) >= MAX_QUARANTINED
    if _is_on_volume(observed, plan, candidate):
        last = reading.moment(recent[-1].time) if is_often else None
        return "cache.quarantined_often" if last is not None and observed.now - last < PAUSE else ""
    is_filled = bool(reading.text(observed.claim, "metadata", "annotations", labels.PRIMED_ANNOTATION_PREFIX + plan.cache_key))
    if not is_filled and (not _had_any(observed, candidate) or any(entry.signature == candidate.signature for entry in recent)):
        return "cache.not_the_cause"
    return "cache.quarantined_often" if is_often else ""


def _is_on_volume(observed: Observation, plan: Plan, candidate: _Candidate) -> bool:
    """Return whether the damaged file can only be in the caches of the plan, as Python's bytecode."""
    signature = observed.knowledge.signatures.get(candidate.signature)
    variable = signature.cache_variable if signature is not None else None
    return candidate.restarts > 0 and any(planned.name == variable and planned.value for planned in plan.env)


def _had_any(observed: Observation, candidate: _Candidate) -> bool:
    """Return whether caches were fetched or loaded on a node, or an earlier run of the replica crashed in the same way."""
    members = candidate.view.group.members if candidate.view.group is not None else (candidate.view,)
    for view in members:
        run = view.termination.restarts if view.termination is not None else view.restarts
        fetched, state = read_fetch(view.manifest), observed.startups.get((view.uid, run))
        if (fetched is not None and fetched.result in FETCHED) or (state is not None and state.cache.hits > 0):
            return True
    before = observed.previous.last_crash
    is_same = before is not None and before.signature == candidate.signature and before.pod in [view.name for view in members]
    return before is not None and is_same and (before.restarts or 0) < candidate.restarts


def _recent(observed: Observation, known: tuple[QuarantinedCache, ...]) -> list[QuarantinedCache]:
    return [entry for entry in known if (when := reading.moment(entry.time)) is not None and when >= observed.now - WINDOW]
