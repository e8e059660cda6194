"""Pods that finish their requests before they stop: who they are, how many requests are left, and what is said about them."""

from datetime import timedelta
from typing import Any

import pytest

from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.api import reading
from vllm_operator.kube.client import POD, Unavailable
from vllm_operator.status.observation import draining_until, read_requests

PREFIX = "(APIServer pid=1) INFO 11-21 12:00:0{} [loggers.py:310] Engine 00{}: Avg prompt throughput: 0.0 tokens/s, "
LINE = PREFIX + "Avg generation throughput: 41.2 tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: 1.2%\n"
ALL = "INFO 11-21 12:00:01 [loggers.py:310] 2 Engines Aggregated: Avg prompt throughput: 0.0 tokens/s, Running: 4 reqs, Waiting: 1 reqs, x"


def line(second: int, rank: int, running: int, waiting: int = 0) -> str:
    return LINE.format(second, rank, running, waiting)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], None),
        (['INFO:     10.0.0.7:4012 - "POST /v1/completions HTTP/1.1" 200 OK'], None),
        ([line(0, 0, 7), line(9, 0, 2, 1)], 3),
        ([line(0, 0, 7), "something else", line(9, 0, 0)], 0),
        ([line(0, 0, 7), line(0, 1, 2), line(9, 1, 1)], 8),
        ([ALL], 5),
        ([line(0, 0, 7), ALL], 5),
        (["Engine 000: " + "x" * 100_000 + " Running: 1 reqs, Waiting: 1 reqs"], None),
    ],
)
def test_the_last_line_about_each_rank_counts(lines: list[str], expected: int | None) -> None:
    assert read_requests(lines) == expected


HOOK = {"name": "vllm", "lifecycle": {"preStop": {"exec": {"command": ["sleep", "10"]}}}}
SERVES = {"name": "vllm", "started": True, "state": {"running": {}}}
ENDS = "2026-11-21T12:01:20Z"


@pytest.mark.parametrize(
    ("deleted", "container", "status", "drains"),
    [
        (ENDS, HOOK, SERVES, True),
        (None, HOOK, SERVES, False),
        (ENDS, {"name": "vllm"}, SERVES, False),
        (ENDS, HOOK, {**SERVES, "started": False}, False),
        (ENDS, HOOK, {**SERVES, "state": {"terminated": {"exitCode": 0}}}, False),
        (ENDS, HOOK, {**SERVES, "name": "sidecar"}, False),
        ("nonsense", HOOK, SERVES, False),
    ],
)
def test_an_engine_drains_that_has_served_and_still_runs(deleted: Any, container: Any, status: Any, drains: bool) -> None:
    metadata = {"name": "a", **({"deletionTimestamp": deleted} if deleted else {})}
    pod = {"metadata": metadata, "spec": {"containers": [container]}, "status": {"containerStatuses": [status]}}
    assert draining_until(pod) == (reading.moment(ENDS) if drains else None)


async def two_replicas_and_one_that_goes(bench: Bench) -> tuple[Fleet, str]:
    fleet = Fleet(bench)
    await fleet.serve(replicas=2, cache={"priming": "Never"})
    first, second = fleet.start(), fleet.start()
    for pod in (first, second):
        fleet.ready(pod)
    await fleet.settle()
    await fleet.change(replicas=1)
    ends = reading.stamp(bench.now + timedelta(seconds=80))
    bench.cluster.edit(POD, "default", first, {"metadata": {"deletionTimestamp": ends}})
    return fleet, first


async def test_ready_says_how_many_requests_are_left_and_follows_the_log(bench: Bench) -> None:
    fleet, pod = await two_replicas_and_one_that_goes(bench)
    bench.cluster.script_log("default", pod, [line(1, 0, 3).encode()], [line(9, 0, 1).encode()], [line(9, 0, 0).encode()])
    result = await bench.reconciler.reconcile(("default", "llama"))
    assert f"Pod {pod} is draining, 3 requests left, until 12:01:20 UTC at the latest." in bench.message("Ready")
    assert result.requeue_seconds == 10
    requests = len(bench.cluster.log_requests)
    await bench.reconciler.reconcile(("default", "llama"))
    assert len(bench.cluster.log_requests) == requests, "the log is not read with each event"
    for expected in ("1 request left", "no request left"):
        bench.pass_time(10)
        await bench.reconciler.reconcile(("default", "llama"))
        assert expected in bench.message("Ready")
    fleet.gone(pod)
    await fleet.settle()
    assert "draining" not in bench.message("Ready")


async def test_a_log_that_cannot_be_read_costs_only_the_number(bench: Bench) -> None:
    _, pod = await two_replicas_and_one_that_goes(bench)
    bench.cluster.script_log("default", pod, [Unavailable("the kubelet does not answer")])
    await bench.reconciler.reconcile(("default", "llama"))
    assert f"Pod {pod} is draining, until 12:01:20 UTC at the latest." in bench.message("Ready")


async def test_the_next_operator_says_the_same(bench: Bench) -> None:
    _, pod = await two_replicas_and_one_that_goes(bench)
    bench.cluster.script_log("default", pod, [line(1, 0, 3).encode()], [line(1, 0, 3).encode()])
    await bench.reconciler.reconcile(("default", "llama"))
    before = bench.resource()
    bench.restart()
    await bench.reconciler.reconcile(("default", "llama"))
    assert bench.resource() == before


@pytest.mark.parametrize("drains", [True, False])
async def test_a_pod_that_waits_for_its_predecessor_to_end_says_so_and_advises_nothing(bench: Bench, fleet: Fleet, *, drains: bool) -> None:
    await fleet.serve(parallelism={"tensor": 8}, cache={"priming": "Never"}, rollout={"strategy": "RollingUpdate"})
    old = fleet.start(node="h100-sxm-0")
    if drains:
        fleet.ready(old)
    await fleet.change(engine={"version": "0.24.0"})
    ends = reading.stamp(bench.now + timedelta(seconds=80))
    bench.cluster.edit(POD, "default", old, {"metadata": {"deletionTimestamp": ends}})
    new = fleet.start(node="h100-sxm-0")
    fleet.unschedulable(new)
    await fleet.settle()
    text = bench.message("Ready")
    assert text.startswith(f"Pod {new} waits for a node: ")
    assert f"Nothing to do: it starts when Pod {old} has ended, which still has the GPUs" in text
    assert text.count("12:01:20 UTC at the latest") == 1
    assert "Scale something down" not in text
    bench.cluster.edit(POD, "default", old, {"spec": {"nodeName": "another"}})
    await fleet.settle()
    assert "Scale something down" in bench.message("Ready"), "the Pod frees GPUs that the plan cannot use"
