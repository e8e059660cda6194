"""Revisions that fail: the last one that served runs again, and what does not count against a revision."""

import random
import sys
from typing import Any

import pytest

from support import observations
from support.upgrades import NEW, NEWER, OLD, Fate, Run, Upgrades
from vllm_operator.api.labels import FAILED_ANNOTATION, REPLAN_ANNOTATION, REQUEST_ANNOTATION, ROLLBACK_ANNOTATION, SERVED_ANNOTATION
from vllm_operator.planning.pinning import rollback_request
from vllm_operator.rendering.revision import last_served, render_revision

FAULTS = {
    "rejects its command line": Fate([Run(5, fails=True, crash="UnknownCliArgument")]),
    "runs out of memory while it starts": Fate([Run(30, fails=True, crash="CudaOomGraphCapture")]),
    "ends at each start, and nobody knows why": Fate([Run(20, fails=True)]),
    "crashes in compiled code at each start": Fate([Run(20, fails=True, crash="NativeCodeCrash", exit_code=139)]),
    "misses the deadline of its start": Fate([Run(300, fails=True, crash="StartupProbeFailed", exit_code=137)]),
    "has an image that does not exist": Fate([Run(phase='ErrImagePull:"v0.24.0": not found')]),
    "cannot be started by the container runtime": Fate([Run(phase="RunContainerError:no such device", lasts=15)]),
    "crashes under load": Fate([Run(lasts=120, crash="IllegalMemoryAccess")]),
    "crashes after five minutes": Fate([Run(lasts=300)]),
    "hangs after a minute": Fate([Run(lasts=60, crash="EngineHung")]),
    "runs out of memory under load": Fate([Run(lasts=200, crash="CudaOutOfMemory")]),
    "ends without an error under load": Fate([Run(lasts=90, exit_code=0)]),
}
DURING_START = [name for name, fate in FAULTS.items() if fate.runs[0].fails or fate.runs[0].phase]
HARMLESS = {
    "nothing": Fate(),
    "a slow start": Fate([Run(1200)]),
    "the hub is unreachable": Fate([*[Run(30, fails=True, crash="HfOfflineOrUnreachable")] * 6, Run()]),
    "the hub limits requests": Fate([*[Run(30, fails=True, crash="HfRateLimited")] * 6, Run()]),
    "the storage fails": Fate([*[Run(30, fails=True, crash="StorageUnreadable")] * 5, Run()]),
    "the volume is full": Fate([*[Run(30, fails=True, crash="DiskFull")] * 5, Run()]),
    "no artifact can be fetched": Fate([*[Run(3, fails=True, crash="CacheArtifactRequired")] * 6, Run()]),
    "another process uses the GPU": Fate([*[Run(30, fails=True, crash="GpuMemoryInUse")] * 5, Run()]),
    "a GPU is broken": Fate([*[Run(30, fails=True, crash="GpuHardwareFault")] * 4, Run()]),
    "a GPU breaks while it serves": Fate([Run(lasts=100, crash="GpuHardwareFault"), Run()]),
    "the registry does not answer": Fate([Run(phase="ImagePullBackOff:503 Service Unavailable", lasts=1500), Run()]),
    "an eviction": Fate([Run(60, phase="Evicted")], once=True),
    "a signal from outside": Fate([Run(lasts=100, exit_code=143), Run()]),
    "two starts end, and nobody knows why": Fate([Run(20, fails=True), Run(20, fails=True), Run()]),
    "a damaged cache": Fate([Run(20, fails=True, crash="TritonKernelImageInvalid"), Run()]),
    "a cache is damaged while it serves": Fate([Run(lasts=100, crash="TritonKernelImageInvalid"), Run()]),
    "a crash after it has proved itself": Fate([Run(lasts=1500, crash="CudaOutOfMemory"), Run()]),
}


async def fail(fate: str = "crashes after five minutes", **options: Any) -> Upgrades:
    made = Upgrades({NEW: FAULTS[fate]}, **options)
    await made.create()
    await made.upgrade(until=2400)
    return made


@pytest.mark.parametrize("fate", FAULTS)
async def test_the_last_revision_that_served_runs_again(fate: str) -> None:
    made = await fail(fate)
    assert (made.version, made.serving, made.images) == (OLD, [OLD], [OLD, NEW, OLD])
    assert made.condition("RolledBack") == ("True", "RevisionFailed")
    assert made.condition("Ready") == ("False", "RolledBack")
    assert made.condition("Stalled") == ("True", "RolledBack")
    assert made.condition("Available") == ("True", "Serving")
    assert made.events().count("RolledBack") == 1
    assert made.bench.resource()["spec"]["engine"]["version"] == NEW, "the spec is the user's"
    rollback = made.bench.status().rollback
    assert rollback is not None
    assert (rollback.failed_number, rollback.number) == (2, 1)
    assert rollback.back_seconds is not None
    assert [FAILED_ANNOTATION in each["metadata"].get("annotations", {}) for each in made.revisions()] == [False, True]
    writes = len(made.cluster.writes)
    await made.wait(7200)
    assert len(made.cluster.writes) == writes, "it writes nothing while nothing changes"


async def test_the_message_says_from_where_to_where_why_and_what_to_do() -> None:
    made = await fail("rejects its command line")
    assert made.message("RolledBack") == (
        "Revision 2 failed, so the operator went back to revision 1. The way back took 1 s. The spec "
        "differs from revision 1 in engine.version 0.20.1 → 0.24.0. The engine broke. To stay with revision 1, undo the change: that "
        "restarts nothing. Any other change begins a rollout; revision 1 serves until it is ready. For the next try: mend it."
    )
    assert made.message("Ready") == "Revision 1 serves, because revision 2, the requested one, failed. See condition RolledBack."


async def test_without_a_spare_gpu_it_says_how_long_both_starts_took() -> None:
    made = await fail("crashes under load", surge=False)
    assert made.serving == [OLD]
    assert "The way back took 41 s." in made.message("RolledBack")


@pytest.mark.parametrize("harm", HARMLESS)
async def test_what_is_not_the_fault_of_a_revision_does_not_give_it_up(harm: str) -> None:
    made = Upgrades({NEW: HARMLESS[harm]}, replicas=2)
    await made.create()
    await made.upgrade(until=7200)
    assert (made.version, made.serving, made.images) == (NEW, [NEW, NEW], [OLD, NEW])
    assert made.condition("RolledBack") is None


@pytest.mark.parametrize("fate", ["runs out of memory while it starts", "runs out of memory under load"])
async def test_with_hold_it_is_only_reported(fate: str) -> None:
    made = Upgrades({NEW: FAULTS[fate]}, rollout={"onFailure": "Hold"})
    await made.create()
    await made.upgrade(until=245)
    assert (made.version, made.condition("RolledBack")) == (NEW, None)
    assert made.message("Ready").endswith(
        " Revision 2 failed. The operator does not go back, because spec.rollout.onFailure is Hold. To "
        "go back, run `kubectl vllm rollback llama -n default`."
    )
    assert made.events().count("RevisionFailed") == 1
    made.change(rollout={"onFailure": "RollBack"})
    await made.wait(1200)
    assert (made.version, made.condition("RolledBack")) == (OLD, ("True", "RevisionFailed"))


async def test_a_first_revision_has_nothing_to_go_back_to() -> None:
    made = Upgrades({OLD: FAULTS["rejects its command line"]})
    await made.create()
    assert made.condition("RolledBack") is None
    assert "Revision 1 failed, and it is the first one, so there is none to go back to." in made.message("Ready")
    assert made.events().count("RevisionFailed") == 1
    made.change(engine={"version": NEW})
    await made.wait(600)
    assert (made.serving, made.condition("RolledBack")) == ([NEW], None)


async def test_a_changed_spec_is_tried_again_and_a_revision_that_was_given_up_is_never_the_target() -> None:
    made = await fail()
    made.fates = {**made.fates, NEWER: FAULTS["rejects its command line"]}
    made.change(engine={"version": NEWER})
    await made.wait(600)
    assert (made.images, made.serving) == ([OLD, NEW, OLD, NEWER, OLD], [OLD]), "version 0.24.0 has served, but was given up"
    made.fates = {}
    made.annotate(REPLAN_ANNOTATION, "1")
    await made.wait(600)
    assert (made.serving, made.condition("RolledBack"), made.condition("Ready")) == ([NEWER], None, ("True", "Serving"))


async def test_a_revert_of_the_spec_restarts_nothing() -> None:
    made = await fail()
    pods = [pod["metadata"]["uid"] for pod in made.pods()]
    made.change(engine={"version": OLD})
    await made.wait(600)
    assert [pod["metadata"]["uid"] for pod in made.pods()] == pods
    assert (made.condition("RolledBack"), made.condition("Ready")) == (None, ("True", "Serving"))


async def test_an_edit_in_the_middle_of_a_failing_rollout_counts_for_the_new_spec() -> None:
    made = Upgrades({NEW: FAULTS["ends at each start, and nobody knows why"]}, replicas=2)
    await made.create()
    await made.upgrade(until=45)
    made.change(engine={"version": NEWER})
    await made.wait(600)
    assert (made.serving, made.condition("RolledBack"), made.fewest) == ([NEWER, NEWER], None, 2)


async def test_scaling_and_settings_of_the_rollout_follow_the_spec_while_an_earlier_revision_runs() -> None:
    made = await fail(replicas=2)
    made.change(replicas=3, rollout={"onFailure": "Hold", "proveSeconds": 60})
    await made.wait(600)
    assert (made.serving, made.condition("RolledBack")) == ([OLD] * 3, ("True", "RevisionFailed"))


async def test_the_rollback_of_a_user_wins() -> None:
    made = Upgrades({NEWER: FAULTS["crashes after five minutes"]})
    await made.create()
    await made.upgrade(NEW, until=900)
    await made.upgrade(NEWER, until=1500)
    assert made.serving == [NEW]
    first, _, last = (each["metadata"]["name"] for each in made.revisions())
    made.annotate(ROLLBACK_ANNOTATION, rollback_request(first, last))
    await made.wait(600)
    assert (made.serving, made.condition("RolledBack"), made.condition("PlanDrifted")) == ([OLD], None, ("True", "RolledBack"))


async def test_an_earlier_revision_that_fails_too_stays() -> None:
    made = await fail()
    made.fates = {OLD: FAULTS["rejects its command line"], NEW: Fate()}
    for pod in made.pods():
        made._remove(pod)
    await made.wait(3600)
    assert (made.version, made.images) == (OLD, [OLD, NEW, OLD])


@pytest.mark.parametrize(("requests", "target"), [(("a", "b", "b"), 1), (("a", "a", "b"), 2), (("b", "b", "b"), None), (("", "", ""), 2)])
def test_a_plan_that_differs_only_in_its_cache_is_no_other_revision_to_go_back_to(requests: tuple[str, ...], target: int | None) -> None:
    """A damaged cache is replaced, which makes a revision for the same spec."""
    annotations = [{SERVED_ANNOTATION: "2026-11-21T12:00:00Z", REQUEST_ANNOTATION: each} for each in requests]
    revisions = [{"metadata": {"name": f"r{n}", "annotations": each}, "revision": n} for n, each in enumerate(annotations, 1)]
    found = last_served(revisions, instead_of=revisions[-1])
    assert (found["revision"] if found is not None else None) == target


def test_plans_for_the_same_request_have_the_same_record() -> None:
    resource, plan = observations.resource(), observations.plan(spec_digest="0123")
    others = (plan.model_copy(update=change) for change in ({}, {"cache_key": "other"}, {"replan_token": "1"}, {"spec_digest": "4567"}))
    records = [render_revision(resource, each, 1)["metadata"]["annotations"][REQUEST_ANNOTATION] for each in (plan, *others)]
    assert [record == records[0] for record in records] == [True, True, True, False, False]


async def test_pods_that_the_new_plan_has_not_replaced_do_not_count_against_it() -> None:
    made = Upgrades({OLD: Fate([Run(lasts=2000, crash="CudaOutOfMemory")])})
    await made.create()
    made.annotate(REPLAN_ANNOTATION, "1")
    await made.wait(3600)
    assert (len(made.revisions()), made.condition("RolledBack")) == (2, None)


@pytest.mark.parametrize("fate", DURING_START)
async def test_with_a_spare_gpu_no_replica_is_lost(fate: str) -> None:
    made = await fail(fate, replicas=3)
    assert (made.serving, made.fewest) == ([OLD] * 3, 3)


@pytest.mark.parametrize("fate", FAULTS)
async def test_with_a_spare_gpu_and_time_to_prove_itself_no_replica_is_lost_after_it_has_served(fate: str) -> None:
    made = await fail(fate, replicas=2, rollout={"proveSeconds": 600})
    assert (made.serving, made.fewest, made.condition("RolledBack")) == ([OLD] * 2, 2, ("True", "RevisionFailed"))


async def test_an_upgrade_that_has_to_prove_itself_replaces_one_pod_after_the_other() -> None:
    made = Upgrades(replicas=2, rollout={"proveSeconds": 600})
    await made.create()
    await made.upgrade(until=900)
    assert made.serving == [OLD, NEW, NEW]
    assert made.condition("Ready") == ("False", "RollingOut")
    await made.wait(900)
    assert (made.serving, made.condition("Ready")) == ([NEW, NEW], ("True", "Serving"))


async def test_an_operator_that_is_killed_after_any_write_goes_back_all_the_same() -> None:
    for number in range(1, 12):
        made = Upgrades({NEW: FAULTS["crashes after five minutes"]}, replicas=2)
        await made.create()
        made.cluster.writes_left = number
        await made.upgrade(until=1500)
        assert (made.kills, made.serving, made.images) == (1, [OLD, OLD], [OLD, NEW, OLD]), number
        assert made.events().count("RolledBack") == 1


@pytest.mark.parametrize(
    ("seed", "upgrades"),
    [
        (7, 8),
        pytest.param(1, 100, marks=(pytest.mark.extended, pytest.mark.timeout(1800))),
        pytest.param(2, 100, marks=(pytest.mark.exhaustive, pytest.mark.timeout(1800))),
    ],
)
async def test_all_of_many_failed_upgrades_come_back_and_no_harmless_one_does(
    seed: int, upgrades: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen, back, kept, lost, kills = random.Random(seed), 0, 0, 0, 0
    for number in range(2 * upgrades):
        fates = FAULTS if number % 2 else HARMLESS
        name = chosen.choice(sorted(fates))
        rollout, replicas, then = chosen.choice(({}, {"proveSeconds": 600})), chosen.choice((1, 1, 2, 3)), chosen.choice((1, 2, 3, 4))
        made = Upgrades({NEW: fates[name]}, replicas=replicas, surge=chosen.random() < 0.7, rollout=rollout)
        await made.create(until=700)
        made.cluster.writes_left = chosen.choice((-1, chosen.randint(1, 30)))
        meanwhile = chosen.choice(("nothing", "nothing", "an autoscaler", "another edit"))
        await made.upgrade(until=chosen.uniform(1, 900))
        if meanwhile == "an autoscaler":
            made.change(replicas=then)
        elif meanwhile == "another edit":
            made.change(engine={"version": NEWER})
        await made.wait(chosen.uniform(5000, 8000))
        version = NEWER if meanwhile == "another edit" else OLD if number % 2 else NEW
        count = then if meanwhile == "an autoscaler" else replicas
        assert made.serving == [version] * count, (name, meanwhile, replicas, made.surge, rollout, made.images)
        back, kept = back + (version == OLD), kept + (1 - number % 2)
        kills += made.kills
        proves = name in DURING_START or (fates is FAULTS and rollout and meanwhile != "another edit")
        lost += made.surge and bool(proves) and made.fewest < min(replicas, count)
    with capsys.disabled():
        sys.stdout.write(f"\n{back} failed upgrades came back, {kept} harmless ones stayed, {lost} lost a replica, {kills} kills\n")
    assert not lost
