"""Backends race on a cluster in memory: the runs, the result, and what ends, delays or repeats a race."""

import json
import random
from itertools import pairwise
from typing import Any

import pytest
import yaml

from support import speeds
from support.fleet import READY, Fleet
from support.operators import Bench, known_catalog
from vllm_operator.api import reading
from vllm_operator.api.labels import MEASURER, RACE_ANNOTATION, RUN_ANNOTATION
from vllm_operator.caches.measurement import RaceRecord, read_race
from vllm_operator.catalog.user_entries import with_user_rules
from vllm_operator.cli.requests import export_rules
from vllm_operator.kube.client import DEPLOYMENT, EVENT, NODE, POD, REVISION, VLLM_DEPLOYMENT, Unavailable

TUNED: dict[str, Any] = {"backends": {"tuning": "Measure"}, "cache": {"volume": {"accessMode": "ReadWriteMany"}}}


class Course:
    """A replica serves, and its backends race. Engines have the speed of their attention backend."""

    def __init__(self, bench: Bench, fleet: Fleet) -> None:
        self.bench, self.fleet, self._chosen = bench, fleet, random.Random(1)
        self.ran = list[str]()

    async def begin(self, **spec: Any) -> None:
        await self.fleet.serve(**{**TUNED, **spec})
        self.serving = self.fleet.start()
        self.fleet.ready(self.serving)
        self.complete()
        await self.settle()

    def complete(self) -> None:
        """The Deployment's controller has seen the Deployment, and all its Pods are ready."""
        generation = (self.fleet.deployment() or {})["metadata"].get("generation")
        numbers = {"observedGeneration": generation, "updatedReplicas": 1, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1}
        self.bench.cluster.edit(DEPLOYMENT, "default", "llama", {"status": numbers})

    async def settle(self) -> None:
        await self.fleet.settle()
        self.bench.pass_time(2)
        await self.fleet.settle()

    def primer(self) -> dict[str, Any]:
        return reading.mapping(self.fleet.deployment("llama.primer"), "spec", "template")  # type: ignore[return-value]  # it is a dict

    def run(self) -> str:
        """The run that the primer measures; empty without one."""
        return reading.text(self.primer(), "metadata", "annotations", RUN_ANNOTATION).rpartition("/")[2]

    def backend(self) -> str:
        """The attention backend of the engine that runs in the primer, which is the default if no flag sets it."""
        engine = reading.named(reading.mapping(self.primer(), "spec"), "vllm", "containers", key="name")
        words = [*(engine.get("command") or []), *(engine.get("args") or [])]
        return next((after for word, after in pairwise(words) if word == "--attention-backend"), "default")

    async def measured(self, **speeds_of: float) -> None:
        """The primer becomes ready and is measured."""
        found = speeds.run(self._chosen, noise=0.01, speed=speeds_of.get(self.backend(), 1.0)).to_json()
        await self.ended({"result": "Measured", **found})

    async def ended(self, report: dict[str, Any]) -> None:
        """The primer becomes ready, and the container that measures ends with this report."""
        self.ran.append(self.backend())
        pod = self.fleet.start("llama.primer")
        self.fleet.show(pod, READY)
        ended = {"exitCode": 0, "message": json.dumps(report)}
        statuses = next(it for it in self.bench.cluster.all(POD) if it["metadata"]["name"] == pod)["status"]["containerStatuses"]
        told = [*statuses, {"name": MEASURER, "restartCount": 0, "state": {"terminated": ended}}]
        self.bench.cluster.edit(POD, "default", pod, {"status": {"containerStatuses": told}})
        await self.settle()
        self.fleet.gone(pod)
        await self.settle()

    async def to_the_end(self, **speeds_of: float) -> None:
        """Measure until the race is over and its result is rolled out."""
        while self.run():
            assert len(self.ran) < 12
            await self.measured(**speeds_of)
        self.complete()
        await self.settle()

    def records(self) -> list[RaceRecord]:
        return [record for it in self.bench.cluster.all(REVISION) if (record := read_race(it)) is not None]

    def said(self) -> str:
        return self.bench.status().race or ""

    def event(self) -> str:
        return next((str(event["message"]) for event in self.bench.cluster.all(EVENT) if event["reason"] == "Raced"), "")

    async def request(self, token: str) -> None:
        """A user requests a race."""
        self.bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {RACE_ANNOTATION: token}}})
        await self.settle()

    def backends(self) -> dict[str, str]:
        return {choice.component: choice.backend for choice in self.bench.plan().backends}


@pytest.fixture
def course(bench: Bench, fleet: Fleet) -> Course:
    return Course(bench, fleet)


async def test_the_fastest_backend_is_rolled_out_although_the_operator_forgets_everything_after_each_run(course: Course) -> None:
    await course.begin()
    while course.run() and len(course.ran) < 9:
        assert course.run() == f"race-{len(course.ran)}"
        await course.measured(FLASHINFER=1.8)
        course.bench.restart()
        await course.settle()
    assert course.ran == ["default", "FLASHINFER", "TRITON_ATTN", "default", "FLASHINFER"]
    assert course.backends()["Attention"] == "FLASHINFER"
    assert "FLASHINFER is the fastest. FLASHINFER: 2," in course.event()
    choice = next(choice for choice in course.bench.plan().backends if choice.component == "Attention")
    assert choice.chosen_by == "Rule"
    assert "Measured: 1." in choice.reason


async def test_equal_backends_change_nothing_and_the_message_says_so(course: Course) -> None:
    await course.begin()
    before = course.bench.plan()
    await course.to_the_end()
    assert course.bench.plan() == before
    assert course.fleet.deployment("llama.primer") is None
    assert "nothing changes" in course.said()
    assert "nothing changes" in course.event()


async def test_a_result_is_remembered_until_another_race_is_requested(course: Course) -> None:
    await course.begin()
    await course.to_the_end(FLASHINFER=1.8)
    course.bench.restart()
    await course.fleet.change(service={"port": 8001})
    course.complete()
    await course.settle()
    assert (course.run(), course.backends()["Attention"]) == ("", "FLASHINFER"), "another spec, and the same model, GPU and load"
    await course.request("1")
    assert course.run() == "race-0"
    await course.to_the_end()
    assert len(course.records()) == 2
    assert course.backends()["Attention"] == "FLASHINFER", "nothing was faster than it"


async def test_a_race_can_be_requested_without_the_field(course: Course) -> None:
    await course.begin(backends=None)
    assert course.run() == ""
    await course.request("1")
    await course.to_the_end(FLASHINFER=1.8)
    assert course.backends()["Attention"] == "FLASHINFER"
    course.bench.restart()
    await course.settle()
    assert (course.run(), len(course.records())) == ("", 1), "one request is one race"


async def test_a_backend_that_fails_is_out_and_the_race_goes_on(course: Course) -> None:
    await course.begin()
    await course.measured()
    await course.ended({"result": "Failed", "message": "The engine broke off a request: CUDA out of memory"})
    await course.to_the_end()
    assert "FLASHINFER is out: The engine broke off a request: CUDA out of memory." in course.said()
    assert course.backends()["Attention"] == "FLASH_ATTN"


async def test_a_backend_that_crashes_is_out_with_its_diagnosis(course: Course) -> None:
    await course.begin()
    await course.measured()
    pod = course.fleet.start("llama.primer")
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": course.fleet.time()}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    course.fleet.show(pod, state=waiting, restarts=1)
    container = {"name": "vllm", "state": waiting, "lastState": {"terminated": ended}, "restartCount": 1}
    course.bench.cluster.edit(POD, "default", pod, {"status": {"containerStatuses": [container]}})
    await course.settle()
    course.bench.pass_time(20)
    await course.settle()
    await course.settle()
    course.fleet.gone(pod)
    await course.settle()
    [record] = course.records()
    assert record.entrants[1].failure.startswith(f"Pod {pod} "), "the diagnosis of the condition Crashed"
    assert course.bench.condition("Ready").status == "True", "the replica serves"
    await course.to_the_end()
    assert course.backends()["Attention"] == "FLASH_ATTN"


async def test_without_a_free_gpu_it_waits_visibly_and_then_gives_up(course: Course) -> None:
    await course.begin()
    course.fleet.unschedulable(course.fleet.start("llama.primer"))
    await course.settle()
    assert "Insufficient nvidia.com/gpu" in course.said()
    course.bench.pass_time(3700)
    await course.settle()
    assert "found no GPU" in course.said()
    assert course.fleet.deployment("llama.primer") is None


async def test_a_restart_while_no_node_can_be_read_repeats_no_run(course: Course) -> None:
    await course.begin()
    await course.measured()
    before = course.fleet.deployment("llama.primer")
    course.bench.restart()
    course.bench.cluster.fail("find", NODE, Unavailable("the API server starts"), times=100)
    await course.settle()
    assert course.fleet.deployment("llama.primer") == before
    assert "waits" in course.said()
    course.bench.cluster.heal()
    course.bench.pass_time(60)
    await course.settle()
    assert course.fleet.deployment("llama.primer") == before


async def test_a_replica_that_waits_for_a_gpu_gets_that_of_the_race(course: Course) -> None:
    await course.begin()
    course.fleet.gone(course.serving)
    course.fleet.unschedulable(course.fleet.start())
    course.bench.cluster.edit(DEPLOYMENT, "default", "llama", {"status": {"readyReplicas": 0, "availableReplicas": 0}})
    await course.settle()
    assert course.fleet.deployment("llama.primer") is None


async def test_a_changed_spec_ends_a_race(course: Course) -> None:
    await course.begin()
    await course.measured()
    await course.fleet.change(engine={"version": "0.24.0"})
    assert not course.run()


async def test_the_fields_of_a_race_make_no_new_plan(course: Course) -> None:
    await course.begin(backends=None)
    before = course.bench.plan()
    await course.fleet.change(backends={"tuning": "Measure", "maxCandidates": 2})
    await course.settle()
    assert course.bench.plan() == before
    [record] = course.records()
    assert len(record.entrants) == 2


async def test_winners_are_exported_as_rules_that_the_operator_accepts(course: Course) -> None:
    await course.begin()
    await course.to_the_end(FLASHINFER=1.8)
    rules = export_rules(course.bench.cluster.all(REVISION))
    _, read = with_user_rules(known_catalog().shipped, {"rules": yaml.safe_dump(rules)})
    assert not read.problems
    assert [rule["backend"] for rule in rules] == ["FLASHINFER"]
    assert read.added == (rules[0]["id"],)


async def test_a_request_of_any_length_is_one_race(course: Course) -> None:
    await course.begin(backends=None)
    await course.request("x" * 5000)
    await course.to_the_end()
    await course.settle()
    assert (course.run(), len(course.records())) == ("", 1)
