"""CPU usage of silent starts: what it means for a stall, and how rarely a metrics API that fails is asked."""

from datetime import timedelta
from typing import Any

import pytest

from support import observations as o
from support.fake_cluster import FakeCluster
from vllm_operator.controller.explanation_reader import BUSY_SECONDS, METRICS_MISSING_SECONDS, METRICS_OUTAGE_SECONDS, CpuUsage
from vllm_operator.kube.client import POD_METRICS, ClusterError, Forbidden, Unavailable
from vllm_operator.logs.state import Stage, StartupState
from vllm_operator.pods.view import read_pod
from vllm_operator.status.report import report

X1 = ("vllm-a-x1", 0)
RUN = ("uid-vllm-a-x1", 0)
SILENT_900 = StartupState(stage=Stage.KERNEL_WARMUP, stage_since=o.at(0), last_line_at=o.at(0))
"""Kernels are being warmed up, which may be silent for 900 s."""
SPEC = {"startup": {"stallTimeoutSeconds": 300}}


@pytest.mark.parametrize(
    ("cores", "seconds", "stalled"),
    [
        (None, 899, False),
        (None, 900, True),
        (0.001, 299, False),
        (0.001, 300, True),
        (1.0, 900, False),
        (1.0, 1799, False),
        (64.0, 1800, True),
    ],
)
def test_who_uses_no_cpu_is_stalled_sooner_and_who_does_later(cores: float | None, seconds: int, stalled: bool) -> None:
    measured = {} if cores is None else {"uid-vllm-a-x1": cores}
    seen = o.observe(o.starting_pod(since=0), states={X1: SILENT_900}, spec=SPEC, now=o.at(seconds), cores=measured)
    starting = next(c for c in report(seen).status.conditions if c.type == "Ready")
    assert (starting.reason == "NoProgress") is stalled
    if stalled:
        said = {
            None: "limit: 15 min)",
            0.001: "limit: 5 min). It uses no CPU",
            64.0: "It uses CPU, as processes that wait",
        }
        assert said[cores] in starting.message


def test_the_cpu_use_is_looked_at_when_it_begins_to_matter_and_then_every_minute() -> None:
    seen = [o.observe(o.starting_pod(since=0), states={X1: SILENT_900}, spec=SPEC, now=o.at(now)) for now in (200, 400)]
    busy = o.observe(o.starting_pod(since=0), states={X1: SILENT_900}, spec=SPEC, now=o.at(400), cores={"uid-vllm-a-x1": 1.0})
    assert [report(one).requeue_after_seconds for one in (*seen, busy)] == [100, 500, 60]


def metrics(cpu: Any, container: str = "vllm") -> dict[str, Any]:
    usage = [{"name": "sidecar", "usage": {"cpu": "7"}}, {"name": container, "usage": {"cpu": cpu}}]
    name = {"name": "vllm-a-x1", "namespace": o.NAMESPACE}
    return {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "metadata": name, "containers": usage}


async def asked(cluster: FakeCluster, *, silent: float = 400, pod: dict[str, Any] | None = None, usage: CpuUsage | None = None) -> Any:
    states = {RUN: StartupState(stage=Stage.WEIGHT_LOAD, last_line_at=o.at(0))}
    resource = o.resource(startup={"stallTimeoutSeconds": 300})
    pods = [read_pod(pod or o.starting_pod(since=0))]
    return await (usage or CpuUsage(cluster)).read(resource, pods, states, o.at(0) + timedelta(seconds=silent))


async def test_the_engine_of_a_silent_start_is_measured() -> None:
    cluster = FakeCluster()
    cluster.put(metrics("1534267891n"))
    assert await asked(cluster) == {"uid-vllm-a-x1": pytest.approx(1.534, abs=0.001)}


@pytest.mark.parametrize("odd", [metrics("much"), metrics(None), metrics("1", container="other"), metrics("1") | {"containers": "none"}])
async def test_metrics_of_another_shape_say_nothing(odd: dict[str, Any]) -> None:
    cluster = FakeCluster()
    cluster.put(odd)
    assert await asked(cluster) == {}


async def test_nobody_asks_about_a_start_that_speaks_or_a_pod_that_serves() -> None:
    cluster = FakeCluster()
    assert await asked(cluster, silent=200) == {}
    assert await asked(cluster, pod=o.ready_pod()) == {}
    assert not cluster.calls


@pytest.mark.parametrize(
    ("error", "seconds"), [(Forbidden("no"), METRICS_MISSING_SECONDS), (Unavailable("away"), METRICS_OUTAGE_SECONDS)], ids=str
)
async def test_a_metrics_api_that_fails_is_asked_again_later(error: ClusterError, seconds: float) -> None:
    cluster, now = FakeCluster(), [0.0]
    usage = CpuUsage(cluster, clock=lambda: now[0])
    cluster.put(metrics("1"))
    cluster.fail("get", POD_METRICS, error)
    assert await asked(cluster, usage=usage) == {}
    assert await asked(cluster, usage=usage) == {}
    now[0] = seconds
    assert await asked(cluster, usage=usage) == {"uid-vllm-a-x1": 1.0}


@pytest.mark.parametrize(("cpu", "expected"), [("1", {"uid-vllm-a-x1": 1.0}), ("1m", {})])
async def test_an_outage_of_the_metrics_api_makes_no_busy_start_look_stalled(cpu: str, expected: dict[str, float]) -> None:
    cluster, now = FakeCluster(), [0.0]
    usage = CpuUsage(cluster, clock=lambda: now[0])
    cluster.put(metrics(cpu))
    await asked(cluster, usage=usage)
    now[0] = 60.0
    cluster.fail("get", POD_METRICS, Unavailable("metrics-server restarts"))
    assert await asked(cluster, usage=usage) == expected
    now[0] = 70.0
    assert await asked(cluster, usage=usage) == expected
    cluster.fail("get", POD_METRICS, Unavailable("metrics-server restarts"))
    now[0] = BUSY_SECONDS
    assert await asked(cluster, usage=usage) == {}
