"""Backends race on a cluster in memory: the runs, the result, and what ends, delays or repeats a race."""

import pytest
import yaml

from support.fleet import Fleet
from support.measured_runs import Course
from support.operators import Bench, known_catalog
from vllm_operator.catalog.user_entries import with_user_rules
from vllm_operator.cli.requests import export_rules
from vllm_operator.kube.client import DEPLOYMENT, NODE, POD, REVISION, Unavailable


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
    assert "FLASHINFER is the fastest backend measured, so the plan uses it (spec.backends.tuning). FLASHINFER: 2," in course.event()
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
