"""Metrics of the operator in Prometheus format, and the HTTP server of metrics and probes."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from vllm_operator import __version__
from vllm_operator.api.conditions import ORDER, Reason
from vllm_operator.api.status import VLLMDeploymentStatus
from vllm_operator.catalog.entry import Entry, load_file
from vllm_operator.catalog.startup import load_startup
from vllm_operator.controller.preconditions import Readiness
from vllm_operator.kube.client import Key
from vllm_operator.logs.state import Stage
from vllm_operator.status.starts import StartClock

PREFIX = "vllm_operator"
RESULTS = ("success", "waiting", "retry", "refused", "gone", "bug")
"""Results of a reconciliation."""
OTHER = "Other"
"""Label value for undocumented reasons. Names of users' crash signatures must not become label values."""
Sample = tuple[str, tuple[str, ...], float]
"""Name of the metric without its prefix, label values without the object's, and value."""
WarmStarts = Sequence[tuple[datetime, int]]
"""Ends of warm starts, and the seconds that each saved."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)
"""Limits of the durations of reconciliations, in seconds."""
_BEGINNING = datetime.min.replace(tzinfo=UTC)


class MetricText(Entry):
    """What a metric is, and its labels."""

    help: str
    labels: tuple[str, ...] = ()

    @property
    def full_help(self) -> str:
        """The help, with the names of results and stages."""
        return self.help.format(results=", ".join(RESULTS), stages=", ".join(Stage))


@cache
def load_texts() -> Mapping[str, Mapping[str, MetricText]]:
    """Load `metrics.yaml`: the metrics of the operator, and those whose samples are collected at each scrape."""
    return load_file(Mapping[str, Mapping[str, MetricText]], "metrics.yaml")  # type: ignore[type-abstract]


Made = TypeVar("Made", Counter, Gauge, Histogram)


class Metrics(Collector):
    """The metrics, in their own registry. All samples of a VLLMDeployment are replaced together, so that no outdated one remains."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._reconciles, self._seconds = self._make(Counter, "reconcile"), self._make(Histogram, "reconcile_seconds", buckets=BUCKETS)
        # create each series at 0, because `increase` does not see a series that begins with 1
        for result in RESULTS:
            self._reconciles.labels(result)
        self._writes = self._make(Counter, "writes")
        self.watch_events, self.task_restarts = self._make(Counter, "watch_events"), self._make(Counter, "task_restarts")
        self.log_parse_seconds = self._make(Counter, "log_parse_seconds")
        self.log_skipped_seconds = self._make(Counter, "log_skipped_seconds")
        self._user_data = {what: self._make(Gauge, f"user_{what}") for what in ("rules", "signatures", "instance_types")}
        self.observed_pods = self._make(Gauge, "observed_pods")
        self._make(Gauge, "info").labels(__version__).set(1)
        self._orphans: Callable[[], Mapping[str, Sequence[int]]] = dict
        self._reasons = documented_reasons()
        self._samples: dict[Key, tuple[Sample, ...]] = {}
        self.observed: Mapping[Key, tuple[Sample, ...]] = {}
        """The samples of observed Pods, replaced in each round."""
        self._warm_starts: dict[Key, tuple[datetime, int, int]] = {}
        """The counted warm starts of each object: the end of the last one, their number and the sum of the saved seconds."""

    def _make(self, kind: type[Made], name: str, **more: Any) -> Made:
        known = load_texts()["operator"][name]
        return kind(f"{PREFIX}_{name}", known.full_help, known.labels, registry=self._registry, **more)

    def reconciled(self, result: str, seconds: float) -> None:
        """Count a completed reconciliation and its duration in seconds."""
        self._reconciles.labels(result).inc()
        self._seconds.observe(seconds)

    def wrote(self, verb: str, kind: str) -> None:
        """Count a write to the API server."""
        self._writes.labels(verb, kind).inc()

    def user_data(self, what: str, *, used: int, ignored: int) -> None:
        """Set the numbers of used and ignored entries of a ConfigMap."""
        self._user_data[what].labels("used").set(used)
        self._user_data[what].labels("ignored").set(ignored)

    def observe_queue(self, depth: Callable[[], int], age_seconds: Callable[[], float]) -> None:
        """Collect depth and age of the queue at each scrape."""
        self._make(Gauge, "queue_depth").set_function(depth)
        self._make(Gauge, "queue_age_seconds").set_function(age_seconds)

    def observe_leader(self, leads: Callable[[], bool], since: Callable[[], float]) -> None:
        """Collect at each scrape whether this process leads, and since when in Unix time."""
        self._make(Gauge, "leader").set_function(leads)
        self._make(Gauge, "leader_since_timestamp_seconds").set_function(lambda: since() if leads() else 0)

    def observe_orphans(self, orphans: Callable[[], Mapping[str, Sequence[int]]]) -> None:
        """Collect at each scrape the sizes of the volumes without a VLLMDeployment, in bytes, by namespace."""
        self._orphans = orphans

    def observe_streams(self, streams: Callable[[], tuple[int, int]]) -> None:
        """Collect the number of log streams at each scrape."""
        gauge = self._make(Gauge, "log_streams")
        gauge.labels("open").set_function(lambda: streams()[0])
        gauge.labels("waiting").set_function(lambda: streams()[1])

    def reported(
        self,
        namespace: str,
        name: str,
        status: VLLMDeploymentStatus,
        start: StartClock | None = None,
        warm_starts: WarmStarts = (),
        *,
        replicas: int | None = None,
    ) -> None:
        """Set the samples of a VLLMDeployment: conditions, desired and ready replicas, caches, the start in progress, its warm starts."""
        key = (namespace, name)
        # the process before this one has counted the starts before the first report
        until, number, seconds = self._warm_starts.get(key) or (max((ended for ended, _ in warm_starts), default=_BEGINNING), 0, 0)
        new = [(ended, saved) for ended, saved in warm_starts if ended > until]
        number, seconds = number + len(new), seconds + sum(saved for _, saved in new)
        self._warm_starts[key] = max((ended for ended, _ in new), default=until), number, seconds
        # including 0, because `increase` needs an earlier sample
        more: tuple[Sample, ...] = (("warm_starts_total", (), number), ("saved_seconds_total", (), seconds))
        if replicas is not None:
            more += (("desired_replicas", (), replicas),)
        self._samples[key] = (*_samples(status, start, self._reasons), *more)

    def forget(self, namespace: str, name: str) -> None:
        """Remove the samples of a deleted VLLMDeployment."""
        self._samples.pop((namespace, name), None)
        self._warm_starts.pop((namespace, name), None)

    def render(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of VLLMDeployments, for the registry."""
        families = {
            name: (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(
                f"{PREFIX}_{name}", each.full_help, labels=each.labels
            )
            for name, each in load_texts()["collected"].items()
        }
        for key, samples in (*self._samples.items(), *self.observed.items()):
            for name, labels, value in samples:
                families[name].add_metric((*key, *labels), value)
        for namespace, sizes in self._orphans().items():
            families["orphaned_volumes"].add_metric((namespace,), len(sizes))
            families["orphaned_volume_bytes"].add_metric((namespace,), sum(sizes))
        yield from families.values()


def documented_reasons() -> frozenset[str]:
    """Return all documented reasons of conditions: the constants, and the signatures in the catalog."""
    constants = {value for name, value in vars(Reason).items() if name.isupper()}
    return frozenset(constants | {signature.id for signature in load_startup().signatures})


def _samples(status: VLLMDeploymentStatus, start: StartClock | None, reasons: Collection[str]) -> Iterator[Sample]:
    for condition in status.conditions:
        if condition.type in ORDER:
            reason = condition.reason if condition.reason in reasons else OTHER
            yield "condition", (condition.type, condition.status.value, reason), 1
    if status.ready_replicas is not None:
        yield "ready_replicas", (), status.ready_replicas
    stages = list(Stage)
    stage = status.startup.stage if status.startup else None
    if stage in stages:
        yield "startup_stage", (), stages.index(Stage(stage))
    if start is not None:
        yield "start_timestamp_seconds", (), start.began.timestamp()
        yield "start_late_after_seconds", (), start.late_after_seconds
    if (cache := status.cache) is None:
        return
    cold, warm = cache.cold_start_seconds, cache.warm_start_seconds
    of_artifact = cache.artifact.cold_start_seconds if cache.artifact is not None else None
    before = cold if cold is not None else of_artifact
    if cold is not None:
        yield "start_seconds", ("cold",), cold
    if warm is not None:
        yield "start_seconds", ("warm",), warm
    if before is not None and warm is not None:
        yield "start_saved_seconds", (), max(0, before - warm)
    yield "quarantined_caches", (), cache.generation or 0


class HealthServer:
    """Serves `/healthz`, `/readyz` and `/metrics`.

    The operator is alive if its event loop runs, workers take keys, and no reconciliation hangs. It is ready if all preconditions are met;
    `/readyz` lists the missing ones, one per line.
    """

    def __init__(self, metrics: Metrics, readiness: Readiness, *, stuck: Callable[[], str | None]) -> None:
        """Initialize. `stuck` returns why the operator should be restarted, or None."""
        self._metrics = metrics
        self._readiness = readiness
        self._stuck = stuck
        app = web.Application()
        app.add_routes([web.get("/healthz", self._healthz), web.get("/readyz", self._readyz), web.get("/metrics", self._metrics_page)])
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)

    async def start(self, host: str, port: int) -> int:
        """Start to listen. Return the port, which the system chooses if `port` is 0. Raises OSError if the port is in use."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        reason = self._stuck()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        if self._readiness.standby:
            return web.Response(text=f"{self._readiness.standby}\n")
        if self._readiness:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="".join(f"{message}\n" for message in self._readiness.missing.values()))

    async def _metrics_page(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
