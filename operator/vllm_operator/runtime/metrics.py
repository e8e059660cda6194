"""What Prometheus can read of the operator."""

from collections.abc import Callable, Collection, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from vllm_operator import __version__
from vllm_operator.api.conditions import ORDER, Reason
from vllm_operator.api.status import CacheStatus, VLLMDeploymentStatus
from vllm_operator.catalog.startup import load_startup
from vllm_operator.startup.state import Stage
from vllm_operator.status.lateness import StartClock

PREFIX = "vllm_operator"
RESULTS = ("success", "waiting", "retry", "refused", "gone", "bug")
"""How a reconciliation can end."""
OTHER = "Other"
"""Stands for each reason that is not documented: what users call their own crash signatures must not become a label."""
_OBJECT = ("namespace", "name")
Key = tuple[str, str]


class Metrics:
    """The metrics, in a registry of their own: nothing global, tests get a fresh one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._reconciles = Counter(
            f"{PREFIX}_reconcile", f"Reconciliations, by result: {', '.join(RESULTS)}.", ["result"], registry=self.registry
        )
        # from the start on: `increase` does not see a series that begins with 1
        for result in RESULTS:
            self._reconciles.labels(result)
        self._seconds = Histogram(
            f"{PREFIX}_reconcile_seconds",
            "Duration of a reconciliation.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15),
            registry=self.registry,
        )
        self._writes = Counter(f"{PREFIX}_writes", "Writes to the API server, by verb and kind.", ["verb", "kind"], registry=self.registry)
        self._watch_events = Counter(f"{PREFIX}_watch_events", "Events received from watches, by kind.", ["kind"], registry=self.registry)
        self._deployments = _Deployments(documented_reasons())
        self.registry.register(self._deployments)
        self._restarts = Counter(
            f"{PREFIX}_task_restarts",
            "Tasks of the operator that had to be started again: watches, mirror, log (of a Pod), user data.",
            ["task"],
            registry=self.registry,
        )
        self._user_data = {
            what: self._gauge(f"user_{what}", f"{what.capitalize()} of the cluster's owner, by state: used or ignored.", "state")
            for what in ("rules", "signatures")
        }
        self._gauge("info", "The operator's version.", "version").labels(__version__).set(1)
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

    def restarted(self, task: str) -> None:
        """A task has ended although it should not, and is started again."""
        self._restarts.labels(task).inc()

    def user_data(self, what: str, *, used: int, ignored: int) -> None:
        """The rules or signatures of the cluster's owner were read."""
        self._user_data[what].labels("used").set(used)
        self._user_data[what].labels("ignored").set(ignored)

    def observe_queue(self, depth: Callable[[], int], age_seconds: Callable[[], float]) -> None:
        """Read depth and age of the queue whenever the metrics are read."""
        self._gauge("queue_depth", "Keys that wait to be reconciled.").set_function(depth)
        self._gauge("queue_age_seconds", "For how long the oldest key has waited.").set_function(age_seconds)

    def observe_leader(self, leads: Callable[[], bool]) -> None:
        """Read whether this process leads whenever the metrics are read."""
        self._gauge("leader", "1 while this process holds its Lease and may write, 0 while it does not.").set_function(leads)

    def observe_streams(self, streams: Callable[[], tuple[int, int]]) -> None:
        """Read the number of log streams whenever the metrics are read."""
        gauge = self._gauge("log_streams", "Container logs, by state: open or waiting.", "state")
        gauge.labels("open").set_function(lambda: streams()[0])
        gauge.labels("waiting").set_function(lambda: streams()[1])

    def reported(self, namespace: str, name: str, status: VLLMDeploymentStatus, start: StartClock | None = None) -> None:
        """Show a VLLMDeployment: its conditions, its caches, and the start that is in progress."""
        self._deployments.show((namespace, name), status, start)

    def forget(self, namespace: str, name: str) -> None:
        """A VLLMDeployment is gone."""
        self._deployments.forget((namespace, name))

    def render(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Deployments(Collector):
    """The samples of all VLLMDeployments. Those of one are replaced as a whole, so that none of an earlier state stays."""

    def __init__(self, reasons: Collection[str]) -> None:
        self._reasons = reasons
        self._samples: dict[Key, tuple[_Sample, ...]] = {}

    def show(self, key: Key, status: VLLMDeploymentStatus, start: StartClock | None) -> None:
        """Show what was reported, instead of what was before."""
        self._samples[key] = tuple(_samples(status, start, self._reasons))

    def forget(self, key: Key) -> None:
        """Show nothing of it any more."""
        self._samples.pop(key, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All families, those without a sample included."""
        families = {name: GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=(*_OBJECT, *labels)) for name, text, labels in _FAMILIES}
        for key, samples in self._samples.items():
            for name, labels, value in samples:
                families[name].add_metric((*key, *labels), value)
        yield from families.values()


_Sample = tuple[str, tuple[str, ...], float]
"""A metric's name without the prefix, the labels besides those of the object, the value."""

_FAMILIES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "condition",
        f"Conditions of a VLLMDeployment: 1 for the status and the reason that each has. {OTHER}: a reason that is not documented.",
        ("type", "status", "reason"),
    ),
    ("startup_stage", f"Stage of a start, counted from 0: {', '.join(Stage)}. Absent while nothing starts.", ()),
    ("start_timestamp_seconds", "When the start that is in progress began, in Unix time. Absent while none is.", ()),
    (
        "start_late_after_seconds",
        "After how many seconds the start that is in progress is late: twice the last one with the same caches, at most its deadline.",
        (),
    ),
    (
        "start_seconds",
        "Duration of the last start of a VLLMDeployment with its present caches: cold (they were empty) or warm.",
        ("caches",),
    ),
    ("start_saved_seconds", "What the caches saved: the last cold start with the present cache key against the last warm one.", ()),
    ("caches_left_behind", "Generations of caches that were left behind as damaged.", ()),
)


def documented_reasons() -> frozenset[str]:
    """All reasons of conditions that the docs name: the constants, and the crashes that the operator knows."""
    constants = {value for name, value in vars(Reason).items() if name.isupper()}
    return frozenset(constants | {signature.id for signature in load_startup().signatures})


def _samples(status: VLLMDeploymentStatus, start: StartClock | None, reasons: Collection[str]) -> Iterator[_Sample]:
    for condition in status.conditions:
        if condition.type in ORDER:
            reason = condition.reason if condition.reason in reasons else OTHER
            yield "condition", (condition.type, condition.status.value, reason), 1
    stages = list(Stage)
    stage = status.startup.stage if status.startup else None
    if stage in stages:
        yield "startup_stage", (), stages.index(Stage(stage))
    if start is not None:
        yield "start_timestamp_seconds", (), start.began.timestamp()
        yield "start_late_after_seconds", (), start.late_after_seconds
    if status.cache is not None:
        yield from _of_caches(status.cache)


def _of_caches(cache: CacheStatus) -> Iterator[_Sample]:
    shown: Iterable[tuple[str, tuple[str, ...], int | None]] = (
        ("start_seconds", ("cold",), cache.cold_start_seconds),
        ("start_seconds", ("warm",), cache.warm_start_seconds),
        ("start_saved_seconds", (), cache.saved_seconds),
        # 0 as well: an increase is seen from what was there before
        ("caches_left_behind", (), cache.generation or 0),
    )
    yield from ((name, labels, value) for name, labels, value in shown if value is not None)
