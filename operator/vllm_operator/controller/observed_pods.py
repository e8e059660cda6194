"""Observe mode: Pods in which other tools run vLLM get events about stage, crash, hang and cold caches. Nothing else is written.

A round lists the Pods, follows the logs of those that start or have crashed, as for VLLMDeployments, reads the end of the logs of those
that serve, and tells what is the case then. An event is the record that something was told: its name and its annotation identify the
occurrence, so neither a round nor a restart of the operator repeats it. Of a series, only later occurrences are told: a few for each run.
Names, status and logs are untrusted. A Pod that cannot be read costs only itself.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from vllm_operator.api import reading
from vllm_operator.api.conditions import NORMAL, WARNING, EventDraft, Reason
from vllm_operator.api.labels import CONTAINER
from vllm_operator.catalog.templates import fill_in
from vllm_operator.controller.log_followers import Followers
from vllm_operator.controller.log_share import LogShare, Slots
from vllm_operator.controller.metrics import OTHER, Metrics, Sample, documented_reasons
from vllm_operator.controller.object_cache import name_of
from vllm_operator.controller.settings import Settings
from vllm_operator.controller.user_data import KnownStarts
from vllm_operator.kube.client import POD, ClusterClient, ClusterError, Key, Manifest
from vllm_operator.kube.events import KILLED, EventReader, record_event
from vllm_operator.logs.crash import STILL, UNKNOWN
from vllm_operator.logs.state import Crash, Stage, StartupState
from vllm_operator.pods.view import EventLog, Phase, PodView, as_own, find_engine, instance_of, killed_by_probe, read_pod
from vllm_operator.status.crashes import reason_of
from vllm_operator.status.knowledge import Knowledge
from vllm_operator.status.terminations import explain_end

log = logging.getLogger(__name__)

ROUND_SECONDS = 10.0
"""Minimum pause between rounds. A round may take a fifth of the time."""
FAILED_SECONDS = 60.0
"""Pause after a round in which Pods could not be listed."""
TAIL_SECONDS, TAIL_LINES = 60.0, 200
"""How often and how much of the end of the log of a Pod that serves is read. An engine that stands still logs so once a minute."""
RECENT = timedelta(minutes=5)
"""A start that was complete before a round saw it is read if it is not older. The log of an older one may be long."""
SETTLING = timedelta(seconds=15)
"""Time to wait for the log of a run that has ended, and for the event about a probe that ended it."""
ROUND_WRITES = 50
"""Maximum number of events that a round writes. The next round writes the others."""


def choose(pods: Iterable[Manifest], limit: int) -> list[Manifest]:
    """Return the Pods to follow: the newest of each namespace, the namespaces in turns, so that none takes the places of others."""
    by_namespace = defaultdict[str, list[Manifest]](list)
    for pod in sorted(pods, key=lambda it: (reading.text(it, "metadata", "creationTimestamp"), name_of(it)), reverse=True):
        by_namespace[name_of(pod)[0]].append(pod)
    ranked = [(rank, pod) for group in by_namespace.values() for rank, pod in enumerate(group)]
    return [pod for _, pod in sorted(ranked, key=lambda it: it[0])[:limit]]


def find_crash(
    knowledge: Knowledge, view: PodView, states: Mapping[tuple[str, int], StartupState], events: EventLog, now: datetime
) -> tuple[int, Crash] | None:
    """Return the crash after which the engine has not served, and its run; None without one, or while its log is being read."""
    state, ended = states.get(view.run_key), view.termination
    if view.container or view.phase not in (Phase.CRASHED, Phase.STARTING):
        return None
    if state is not None and state.crash is not None and view.phase is Phase.STARTING:  # the container may never end
        return (view.restarts, state.crash) if state.last_line_at is not None and now - state.last_line_at >= SETTLING else None
    state = states.get((view.uid, ended.restarts)) if ended is not None else None
    is_read = state is not None and state.is_final and ended is not None and ended.exit_code not in KILLED
    if ended is None or (not is_read and ended.finished_at is not None and now - ended.finished_at < SETTLING):
        return None
    log_crash, stage = (state.crash, str(state.stage)) if state is not None else (None, "")
    probe = killed_by_probe(view, events) or ""
    found = explain_end(knowledge, view, ended, log_crash=log_crash, stage=stage, unread="", probe=probe)
    return ended.restarts, found or Crash(UNKNOWN, knowledge.messages.say("crash.unexplained", unread=""), None, None, "")


def draft(
    knowledge: Knowledge, view: PodView, state: StartupState | None, crash: tuple[int, Crash] | None, tail: StartupState | None
) -> Iterator[EventDraft]:
    """Draft what to tell about a Pod now. Of the drafts of a series, the keys sort in the order of what happened."""
    say, run = knowledge.messages.say, f"{view.restarts:06}"
    if crash is not None:
        number, it, ended = *crash, view.termination
        remedy = say("crash.unknown_remedy", pod=view) if it.signature == UNKNOWN and not it.family else it.remedy or ""
        facts = {"cause": it.cause, "remedy": remedy, "reference": it.reference, "times": number + 1}
        facts["code"] = ended.exit_code if ended is not None and ended.restarts == number else None
        text = knowledge.messages.fit("observed.crashed", shrink=("cause", "remedy"), limit=900, **facts)
        yield EventDraft(WARNING, reason_of(it.signature), text, f"{number:06}", series=f"crash-{reason_of(it.signature)}")
    if view.phase is Phase.STARTING and not view.container and state is not None and state.has_start and state.crash is None:
        text = say("observed.starting", what=knowledge.messages.stages[state.stage], since=state.stage_since)
        yield EventDraft(NORMAL, "Starting", text, f"{run}-{list(Stage).index(state.stage):02}", series="start")
    if view.phase is Phase.READY and state is not None and state.has_start:
        took = (view.ready_at - view.started_at).total_seconds() if view.ready_at and view.started_at else None
        caches = "warm" if state.cache.is_warm else "cold" if state.cache.is_cold else ""
        text = say("observed.started", seconds=took, caches=caches, built=state.cache.misses)
        yield EventDraft(NORMAL, "CachesCold" if state.cache.is_cold else "Started", text, run, series="started")
    if tail is not None and STILL in tail.notices:
        cause, remedy = (fill_in(text, ()) for text in (knowledge.signatures[STILL].cause, knowledge.signatures[STILL].remedy))
        yield EventDraft(WARNING, Reason.ENGINE_HUNG, say("observed.hung", cause=cause, remedy=remedy), run, series="hung")


@dataclass(slots=True)
class _Known:
    told: dict[str, str] = field(default_factory=dict)  # the key of the last occurrence, by series
    tail_due: float = 0.0
    samples: tuple[Sample, ...] = ()


class PodObserver:
    """Follows the Pods of others that `settings` select. `share` is that of all logs."""

    def __init__(self, client: ClusterClient, crashes: KnownStarts, metrics: Metrics, *, settings: Settings, share: LogShare) -> None:
        self._client, self._crashes, self._metrics, self._settings = client, crashes, metrics, settings
        self._events, self._known, self._writes_left = EventReader(client), dict[tuple[Key, str], _Known](), 0
        parsers, slots = crashes.make_parser, Slots(settings.log_streams)
        self.followers = Followers(client, make_parser=parsers, changed=lambda key: None, slots=slots, share=share)

    async def run(self) -> None:
        """Make rounds until cancelled."""
        while True:
            began = time.monotonic()
            try:
                await self.look()
                await asyncio.sleep(max(ROUND_SECONDS, 4 * (time.monotonic() - began)))
            except ClusterError as error:
                log.warning("the Pods of others cannot be observed: %s", error)
                await asyncio.sleep(FAILED_SECONDS)

    async def look(self) -> None:
        """Make one round. Raises ClusterError if Pods cannot be listed."""
        found, labels = list[Manifest](), dict(pair.split("=", 1) for pair in self._settings.observe_labels)
        for namespace in self._settings.observe_namespaces or (None,):
            async for page in self._client.pages(POD, namespace, labels=labels):
                running = (pod for pod in page if reading.text(pod, "status", "phase") != "Succeeded" and instance_of(pod) is None)
                found += [pod for pod in running if find_engine(pod) is not None]
        pods = {(name_of(pod), reading.text(pod, "metadata", "uid")): pod for pod in choose(found, self._settings.observe_pods)}
        for gone in self._known.keys() - pods.keys():
            del self._known[gone]
            for key in (gone[0], _tail_of(gone[0])):
                self.followers.forget(key)
        self._writes_left = ROUND_WRITES
        for identity, pod in pods.items():
            try:
                await self._look_at(pod, self._known.setdefault(identity, _Known()))
            except ClusterError as error:
                log.warning("Pod %s/%s cannot be observed now: %s", *identity[0], error)
            except Exception:
                log.exception("Pod %s/%s cannot be observed now", *identity[0])
        self._metrics.observed = {key: known.samples for (key, _), known in self._known.items()}
        for state, number in (("followed", len(pods)), ("left_out", len(found) - len(pods))):
            self._metrics.observed_pods.labels(state).set(number)

    async def _look_at(self, pod: Manifest, known: _Known) -> None:
        key, engine, now, knowledge = name_of(pod), find_engine(pod) or CONTAINER, datetime.now(UTC), self._crashes.reporting
        own = as_own(pod, engine)
        view = read_pod(own)
        is_recent = view.ready_at is not None and now - view.ready_at < RECENT
        self.followers.sync(key, [pod], [view.name] if is_recent else (), container=engine)
        if not self.followers.caught_up(key):
            return
        states, tail = self.followers.states(key), self.followers.states(_tail_of(key)).get(view.run_key)
        if view.phase in (Phase.READY, Phase.NOT_RESPONDING) and time.monotonic() >= known.tail_due:
            known.tail_due = time.monotonic() + TAIL_SECONDS
            self.followers.forget(_tail_of(key))
            self.followers.sync(_tail_of(key), [pod], [view.name], container=engine, tail=TAIL_LINES)
        events, _ = await self._events.read([own] if view.termination is not None else [], ())
        state, crash = states.get(view.run_key), find_crash(knowledge, view, states, EventLog(events), now)
        drafts = tuple(draft(knowledge, view, state, crash, tail))
        known.samples = tuple(_samples(view, state, drafts))
        for each in drafts:
            if self._writes_left and each.key > known.told.get(each.series, ""):
                self._writes_left -= 1
                if verb := await record_event(self._client, pod, each, now=now):
                    self._metrics.wrote(verb, "Event")
                known.told[each.series] = each.key


def _tail_of(key: Key) -> Key:
    return key[0], f"{key[1]}/tail"  # no Pod has such a name


def _samples(view: PodView, state: StartupState | None, drafts: Iterable[EventDraft]) -> Iterator[Sample]:
    if state is not None:
        yield "observed_cache_entries", ("loaded",), state.cache.hits
        yield "observed_cache_entries", ("built",), state.cache.misses
        yield from [("observed_startup_stage", (), list(Stage).index(state.stage))] if view.phase is Phase.STARTING else ()
    known = documented_reasons()
    for each in drafts:
        if each.type == WARNING:
            yield "observed_problem", (each.reason if each.reason in known else OTHER,), 1
