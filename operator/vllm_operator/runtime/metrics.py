"""What Prometheus can read of the operator."""

import contextlib
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vllm_operator import __version__
from vllm_operator.api.status import CacheStatus, VLLMDeploymentStatus
from vllm_operator.startup.state import Stage

PREFIX = "vllm_operator"
_OBJECT = ("namespace", "name")


class Metrics:
    """The metrics, in a registry of their own: nothing global, tests get a fresh one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._reconciles = Counter(
            f"{PREFIX}_reconcile", "Reconciliations, by result: success, waiting, retry, refused, bug.", ["result"], registry=self.registry
        )
        self._seconds = Histogram(
            f"{PREFIX}_reconcile_seconds",
            "Duration of a reconciliation.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15),
            registry=self.registry,
        )
        self._writes = Counter(f"{PREFIX}_writes", "Writes to the API server, by verb and kind.", ["verb", "kind"], registry=self.registry)
        self._watch_events = Counter(f"{PREFIX}_watch_events", "Events received from watches, by kind.", ["kind"], registry=self.registry)
        self._conditions = self._gauge(
            "condition", "Conditions of a VLLMDeployment: 1 for the status that it has.", *_OBJECT, "type", "status"
        )
        self._stage = self._gauge(
            "startup_stage", f"Stage of a start, counted from 0: {', '.join(Stage)}. Absent while nothing starts.", *_OBJECT
        )
        self._starts = self._gauge(
            "start_seconds",
            "Duration of the last start of a VLLMDeployment with its present caches: cold (they were empty) or warm.",
            *_OBJECT,
            "caches",
        )
        self._saved = self._gauge(
            "start_saved_seconds",
            "What the caches saved: the last cold start with the present cache key against the last warm one.",
            *_OBJECT,
        )
        self._left_behind = self._gauge("caches_left_behind", "Generations of caches that were left behind as damaged.", *_OBJECT)
        self._user_data = {
            what: self._gauge(f"user_{what}", f"{what.capitalize()} of the cluster's owner, by state: used or ignored.", "state")
            for what in ("rules", "signatures")
        }
        self._gauge("info", "The operator's version.", "version").labels(__version__).set(1)
        self._shown: dict[tuple[str, str], set[tuple[str, str]]] = {}
        # finding a counter by its labels takes longer than all else that is done with an event
        self._watched: dict[str, Counter] = {}

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", documentation, labels, registry=self.registry)

    def reconciled(self, result: str, seconds: float) -> None:
        """A reconciliation has ended."""
        self._reconciles.labels(result).inc()
        self._seconds.observe(seconds)

    def wrote(self, verb: str, kind: str) -> None:
        """Something was written to the API server."""
        self._writes.labels(verb, kind).inc()

    def watched(self, kind: str) -> None:
        """A watch event was received."""
        counter = self._watched.get(kind) or self._watched.setdefault(kind, self._watch_events.labels(kind))
        counter.inc()

    def user_data(self, what: str, *, used: int, ignored: int) -> None:
        """The rules or signatures of the cluster's owner were read."""
        self._user_data[what].labels("used").set(used)
        self._user_data[what].labels("ignored").set(ignored)

    def observe_queue(self, depth: Callable[[], int], age_seconds: Callable[[], float]) -> None:
        """Read depth and age of the queue whenever the metrics are read."""
        self._gauge("queue_depth", "Keys that wait to be reconciled.").set_function(depth)
        self._gauge("queue_age_seconds", "For how long the oldest key has waited.").set_function(age_seconds)

    def observe_streams(self, streams: Callable[[], tuple[int, int]]) -> None:
        """Read the number of log streams whenever the metrics are read."""
        gauge = self._gauge("log_streams", "Container logs, by state: open or waiting.", "state")
        gauge.labels("open").set_function(lambda: streams()[0])
        gauge.labels("waiting").set_function(lambda: streams()[1])

    def reported(self, namespace: str, name: str, status: VLLMDeploymentStatus) -> None:
        """Show the conditions and the stage of a VLLMDeployment."""
        shown = {(condition.type, condition.status.value) for condition in status.conditions}
        for type_, value in self._shown.get((namespace, name), set()) - shown:
            self._conditions.remove(namespace, name, type_, value)
        for type_, value in shown:
            self._conditions.labels(namespace, name, type_, value).set(1)
        self._shown[(namespace, name)] = shown
        self._show_caches(namespace, name, status.cache)
        stages = list(Stage)
        stage = status.startup.stage if status.startup else None
        if stage in stages:
            self._stage.labels(namespace, name).set(stages.index(Stage(stage)))
        else:
            self._drop_stage(namespace, name)

    def _show_caches(self, namespace: str, name: str, cache: CacheStatus | None) -> None:
        known = cache or CacheStatus()
        shown = (
            (self._starts, (namespace, name, "cold"), known.cold_start_seconds),
            (self._starts, (namespace, name, "warm"), known.warm_start_seconds),
            (self._saved, (namespace, name), known.saved_seconds),
            (self._left_behind, (namespace, name), known.generation),
        )
        for gauge, labels, value in shown:
            if value is not None:
                gauge.labels(*labels).set(value)
            else:
                with contextlib.suppress(KeyError):
                    gauge.remove(*labels)

    def forget(self, namespace: str, name: str) -> None:
        """A VLLMDeployment is gone."""
        for type_, value in self._shown.pop((namespace, name), set()):
            self._conditions.remove(namespace, name, type_, value)
        self._drop_stage(namespace, name)
        self._show_caches(namespace, name, None)

    def render(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _drop_stage(self, namespace: str, name: str) -> None:
        with contextlib.suppress(KeyError):
            self._stage.remove(namespace, name)
