"""Observe mode: Pods of other tools, what is told about them, once, and at whose expense."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.operators import known_crashes
from support.peers import COMPLETE, OTHERS, PEERS, STILL
from support.stories import LOADING, TOO_LONG
from vllm_operator.api.labels import CONTAINER
from vllm_operator.controller import observed_pods
from vllm_operator.controller.log_share import LogShare
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.observed_pods import PodObserver, choose
from vllm_operator.controller.settings import Settings, SettingsError
from vllm_operator.kube.client import EVENT, POD, Forbidden, Unavailable
from vllm_operator.pods.view import Phase, as_own, find_engine, read_pod

Manifest = dict[str, Any]
RUNNING_LINE = b"INFO 11-21 12:00:00 [api_server.py:1] vLLM API server version 0.20.1\n"
BUILT = b"INFO 11-21 12:00:30 [backends.py:200] Cache the graph of compile range (1, 2048) for later use\n"


FOREVER = 60.0


def stamp(seconds: float) -> str:
    """So many seconds after now. The observer reads the same clock, and what is long over is not told."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def timed(*parts: bytes, at: float = -60.0) -> list[bytes]:
    """The lines as the API server sends them, with their times."""
    lines = b"".join(parts).splitlines(keepends=True)
    return [stamp(at + number / 10).replace("Z", f".{number:09d}Z ").encode() + line for number, line in enumerate(lines)]


def running(
    tool: str = "deployment", name: str = "p", *, namespace: str = "default", ready: float | None = None, **status: Any
) -> Manifest:
    """A Pod of a tool whose engine runs, and is ready since so many seconds after now."""
    engine, template = PEERS[tool]
    conditions = [{"type": "Ready", "status": "False"}]
    if ready is not None:
        conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": stamp(ready)}]
    found = {"name": engine, "state": {"running": {"startedAt": stamp(-100)}}, "restartCount": 0, "ready": ready is not None, **status}
    others = [each["name"] for each in template["spec"]["containers"] if each["name"] != engine]
    beside = [{"name": each, "ready": False, "restartCount": 0, "state": {"running": {"startedAt": stamp(-100)}}} for each in others]
    metadata = {**template["metadata"], "name": name, "namespace": namespace, "uid": f"uid-of-{name}", "creationTimestamp": stamp(-100)}
    return {
        **template,
        "metadata": metadata,
        "spec": {**template["spec"], "nodeName": "gpu-1"},
        "status": {"phase": "Running", "conditions": conditions, "containerStatuses": [*beside, found]},
    }


def ended(*, code: int = 1, at: float = -30, restarts: int = 0) -> Manifest:
    return {"state": {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": stamp(at)}}, "restartCount": restarts}


class Rounds:
    """An observer on a cluster in memory."""

    def __init__(self, **settings: Any) -> None:
        self.cluster, self.settings = FakeCluster(), Settings(observe=True, **settings)
        self.start()

    def start(self) -> None:
        """A new process."""
        self.metrics = Metrics()
        self.observer = PodObserver(self.cluster, known_crashes(), self.metrics, settings=self.settings, share=LogShare())

    def log(self, *parts: bytes, pod: str = "p", at: float = -60.0) -> None:
        self.cluster.script_log("default", pod, [*timed(*parts, at=at), FOREVER])

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await self.observer.look()
                await asyncio.sleep(0.02)

    async def restart(self) -> None:
        await self.observer.followers.close()
        self.start()

    @property
    def events(self) -> list[Manifest]:
        return self.cluster.all(EVENT)

    def reasons(self) -> list[str]:
        return sorted(event["reason"] for event in self.events)

    def series(self, name: str) -> list[str]:
        return [line for line in self.metrics.render().decode().splitlines() if line.startswith(f"vllm_operator_{name}")]


Begin = Callable[..., Rounds]


@pytest.fixture
async def begin(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Begin]:
    """Makes rounds, with settings."""
    monkeypatch.setattr(observed_pods, "SETTLING", timedelta(0))
    made: list[Rounds] = []

    def make(**settings: Any) -> Rounds:
        made.append(Rounds(**settings))
        return made[-1]

    yield make
    for rounds in made:
        await rounds.observer.followers.close()


@pytest.mark.parametrize("tool", PEERS)
def test_the_container_with_vllm_is_found_in_the_pods_of_each_tool(tool: str) -> None:
    engine, pod = PEERS[tool]
    assert find_engine(pod) == engine


@pytest.mark.parametrize("what", OTHERS)
def test_what_does_not_run_vllm_is_not_observed(what: str) -> None:
    assert find_engine(OTHERS[what]) is None


@pytest.mark.parametrize("content", [None, [], "vllm serve", {"spec": 1}, {"spec": {"containers": [{"command": "vllm serve", "args": 3}]}}])
def test_what_is_no_pod_has_no_engine(content: Any) -> None:
    assert find_engine(content) is None


def test_a_pod_of_another_tool_is_read_by_its_engine_and_not_by_what_runs_beside_it() -> None:
    pod = running("kserve", **ended())
    view = read_pod(as_own(pod, "kserve-container"))
    assert (view.phase, view.container, view.termination is not None) == (Phase.CRASHED, "", True)
    swapped = as_own({"spec": {"containers": [{"name": CONTAINER}, {"name": "main"}]}}, "main")
    assert [each["name"] for each in swapped["spec"]["containers"]] == ["main", CONTAINER]


def test_a_namespace_with_many_pods_takes_no_places_of_others_and_the_newest_come_first() -> None:
    def pod(namespace: str, number: int) -> Manifest:
        return {"metadata": {"namespace": namespace, "name": f"p{number}", "creationTimestamp": f"2026-11-29T12:00:{number:02}Z"}}

    chosen = choose([*(pod("many", number) for number in range(50)), pod("few", 1), pod("few", 2)], 6)
    names = [(it["metadata"]["namespace"], it["metadata"]["name"]) for it in chosen]
    assert sorted(names) == [("few", "p1"), ("few", "p2"), ("many", "p46"), ("many", "p47"), ("many", "p48"), ("many", "p49")]


@pytest.mark.parametrize("tool", PEERS)
async def test_a_crash_is_one_event_with_cause_and_remedy_which_a_restart_does_not_repeat(begin: Begin, tool: str) -> None:
    rounds = begin()
    rounds.log(RUNNING_LINE, LOADING, TOO_LONG)
    rounds.cluster.put(running(tool, **ended()))
    await rounds.until(lambda: rounds.events)
    [event] = rounds.events
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "MaxModelLenExceedsKvCache", 1)
    assert event["involvedObject"] | {"kind": "Pod", "name": "p", "uid": "uid-of-p", "apiVersion": "v1"} == event["involvedObject"]
    assert "with exit code 1" in event["message"]
    assert "What to do:" in event["message"]
    assert "5568" in event["message"]
    assert rounds.series("observed_problem") == [
        'vllm_operator_observed_problem{name="p",namespace="default",reason="MaxModelLenExceedsKvCache"} 1.0'
    ]
    written = len(rounds.cluster.writes)
    for _ in range(3):
        await rounds.observer.look()
    await rounds.restart()
    rounds.log(RUNNING_LINE, LOADING, TOO_LONG)
    await rounds.until(lambda: rounds.series("observed_problem"))
    assert len(rounds.cluster.writes) == written
    assert {write.kind for write in rounds.cluster.writes} == {"Event"}


async def test_a_crash_loop_is_counted_in_one_event(begin: Begin) -> None:
    rounds = begin()
    for run in range(3):
        rounds.log(RUNNING_LINE, LOADING, TOO_LONG)
        rounds.cluster.put(running(**ended(restarts=run)))
        await rounds.until(lambda: rounds.events and rounds.events[0]["count"] == run + 1)  # noqa: B023 - awaited in the loop
    assert rounds.reasons() == ["MaxModelLenExceedsKvCache"]
    assert "crashed 3 times" in rounds.events[0]["message"]


async def test_a_start_is_told_by_stage_and_when_it_is_over_with_what_it_compiled(begin: Begin) -> None:
    rounds = begin()
    rounds.log(RUNNING_LINE, LOADING)
    rounds.cluster.put(running("llm-d"))
    await rounds.until(lambda: rounds.events)
    [event] = rounds.events
    assert (event["reason"], "loading weights" in event["message"]) == ("Starting", True)
    assert rounds.series("observed_startup_stage{") == ['vllm_operator_observed_startup_stage{name="p",namespace="default"} 6.0']
    await rounds.restart()
    rounds.log(RUNNING_LINE, LOADING, BUILT, COMPLETE)
    rounds.cluster.put(running("llm-d", ready=-5))
    await rounds.until(lambda: len(rounds.events) > 1)
    assert rounds.reasons() == ["CachesCold", "Starting"]
    assert "The start took 1 min 35 s. It found no cache, and compiled 1 graph." in str(rounds.events)
    assert rounds.series("observed_startup_stage{") == []
    assert 'vllm_operator_observed_cache_entries{name="p",namespace="default",result="built"} 1.0' in rounds.series(
        "observed_cache_entries"
    )


async def test_an_engine_that_stands_still_is_told_once_from_the_end_of_its_log(begin: Begin) -> None:
    rounds = begin()
    rounds.log(STILL)
    rounds.cluster.put(running("production-stack", ready=-4000))
    await rounds.until(lambda: rounds.events)
    [event] = rounds.events
    assert (event["type"], event["reason"]) == ("Warning", "EngineHung")
    assert "stands still" in event["message"]
    assert rounds.series("observed_problem") == ['vllm_operator_observed_problem{name="p",namespace="default",reason="EngineHung"} 1.0']
    assert {request.tail_lines for request in rounds.cluster.log_requests} == {observed_pods.TAIL_LINES}


async def test_the_whole_log_of_a_pod_that_has_long_served_is_not_read(begin: Begin) -> None:
    rounds = begin()
    rounds.cluster.put(running(ready=-4000))
    await rounds.observer.look()
    await asyncio.sleep(0.05)
    assert all(request.tail_lines for request in rounds.cluster.log_requests)
    assert rounds.events == []


async def test_pods_of_vllm_deployments_other_namespaces_and_other_labels_are_not_observed(begin: Begin) -> None:
    rounds = begin(observe_namespaces=("models",), observe_labels=("app=llama",))
    own = running(namespace="models", name="own", **ended())
    own["metadata"] |= {
        "labels": {
            "app": "llama",
            "app.kubernetes.io/name": "vllm",
            "app.kubernetes.io/instance": "llama",
            "app.kubernetes.io/component": "engine",
            "pod-template-hash": "7d4",
        },
        "ownerReferences": [{"kind": "ReplicaSet", "name": "llama-7d4", "controller": True}],
    }
    for pod in (
        own,
        running(namespace="elsewhere"),
        running("dynamo", "other", namespace="models"),
        running("deployment", "one", namespace="models"),
    ):
        rounds.cluster.put(pod)
    await rounds.observer.look()
    assert rounds.series("observed_pods") == [
        'vllm_operator_observed_pods{state="followed"} 1.0',
        'vllm_operator_observed_pods{state="left_out"} 0.0',
    ]
    assert {request.pod for request in rounds.cluster.log_requests} <= {"one"}


async def test_pods_beyond_the_limit_are_counted(begin: Begin) -> None:
    rounds = begin(observe_pods=2)
    for number in range(5):
        rounds.cluster.put(running(name=f"p{number}", ready=-4000))
    await rounds.observer.look()
    assert rounds.series("observed_pods") == [
        'vllm_operator_observed_pods{state="followed"} 2.0',
        'vllm_operator_observed_pods{state="left_out"} 3.0',
    ]


async def test_a_pod_that_cannot_be_read_costs_only_itself_and_what_is_gone_leaves_nothing(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = begin()
    broken = running(name="broken")
    broken["status"]["containerStatuses"][0]["restartCount"] = "many"
    rounds.cluster.put(broken)
    rounds.log(b"\x1b[31m\x00" * 1000, RUNNING_LINE, LOADING, TOO_LONG)
    rounds.cluster.put(running(**ended()))
    await rounds.until(lambda: rounds.events)
    assert {event["involvedObject"]["name"] for event in rounds.events} == {"p"}
    assert rounds.events[0]["message"].isprintable()
    assert "Pod default/broken cannot be observed now" in caplog.text
    rounds.cluster.remove(POD, "default", "p")
    await rounds.observer.look()
    assert rounds.series("observed_problem") == []


async def test_a_round_writes_a_limited_number_of_events_and_the_next_one_goes_on(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_pods, "ROUND_WRITES", 2)
    rounds = begin()
    for number in range(5):
        rounds.log(RUNNING_LINE, LOADING, TOO_LONG, pod=f"p{number}")
        rounds.cluster.put(running(name=f"p{number}", **ended()))
    most, before = 0, 0
    async with asyncio.timeout(10):
        while before < 5:
            await rounds.observer.look()
            most, before = max(most, len(rounds.events) - before), len(rounds.events)
            await asyncio.sleep(0.02)
    assert most <= 2


async def test_without_permission_it_waits_and_says_so(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = begin()
    rounds.cluster.fail("find", POD, Forbidden("pods is forbidden"), times=1000)
    task = asyncio.create_task(rounds.observer.run())
    async with asyncio.timeout(10):
        while "cannot be observed: pods is forbidden" not in caplog.text:  # noqa: ASYNC110 - a log
            await asyncio.sleep(0.01)
    task.cancel()
    assert not rounds.events


@pytest.mark.parametrize(
    ("given", "want"),
    [("app=vllm, tier=prod", ("app=vllm", "tier=prod")), ("app", None), ("=x", None), ("a!=b", None), ("a==b", None), ("", ())],
)
def test_labels_are_pairs(given: str, want: tuple[str, ...] | None) -> None:
    try:
        found = Settings.from_environment({"VLLM_OPERATOR_OBSERVE_LABELS": given}).observe_labels
    except SettingsError:
        found = None
    assert found == want


async def test_an_event_that_cannot_be_written_now_is_written_in_a_later_round_and_others_do_not_wait(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = begin()
    for name in ("p1", "p2"):
        rounds.log(RUNNING_LINE, LOADING, TOO_LONG, pod=name)
        rounds.cluster.put(running(name=name, **ended()))
    rounds.cluster.fail("create", EVENT, Unavailable("the webhook of events failed"))
    await rounds.until(lambda: len(rounds.events) == 2)
    assert "cannot be observed now: the webhook of events failed" in caplog.text
    assert "Traceback" not in caplog.text
