"""Rollbacks: an earlier plan runs with the spec of its time, until the spec changes or a new plan is requested."""

from typing import Any

import pytest

from support.fleet import Fleet
from support.operators import Bench, llama
from vllm_operator.api.labels import REPLAN_ANNOTATION, ROLLBACK_ANNOTATION, SERVED_ANNOTATION
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cli.inputs import InputError
from vllm_operator.cli.plan import revisions_of
from vllm_operator.cli.revisions import find_rollback, history
from vllm_operator.kube.client import EVENT, PRESET, REVISION, VLLM_DEPLOYMENT
from vllm_operator.planning.pinning import changed_fields, rollback_request

OLD, NEW = "0.20.1", "0.24.0"


def annotate(bench: Bench, **values: str) -> None:
    names = {"rollback": ROLLBACK_ANNOTATION, "replan": REPLAN_ANNOTATION}
    annotations = {names[name]: value for name, value in values.items()}
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": annotations}})


def revisions(bench: Bench) -> list[Any]:
    return revisions_of(VLLMDeployment.parse(bench.resource()), bench.cluster.all(REVISION))


def names(bench: Bench) -> list[str]:
    return [str(each["metadata"]["name"]) for each in revisions(bench)]


def version(bench: Bench) -> str:
    return str(bench.container()["image"]).partition(":v")[2].partition("-")[0]


async def roll_back(bench: Bench, to: int = 0) -> None:
    annotate(bench, rollback=rollback_request(names(bench)[to], names(bench)[-1]))
    await bench.settle()


@pytest.fixture
async def updated(bench: Bench, fleet: Fleet) -> Bench:
    """An object that was moved from one version of vLLM to another, with a variable that came with the second one."""
    await fleet.serve(engine={"version": OLD}, cache={"priming": "Never"})
    await fleet.change(engine={"version": NEW, "env": [{"name": "NEW", "value": "1"}]})
    assert version(bench) == NEW
    return bench


async def test_the_earlier_plan_runs_with_the_spec_of_its_time(updated: Bench) -> None:
    await roll_back(updated)
    assert version(updated) == OLD
    assert "NEW" not in {each["name"] for each in updated.container()["env"]}
    planned = updated.plan_verdict()
    assert (planned.status, planned.reason) == ("True", "RolledBack")
    assert "revision 1" in planned.message
    assert ROLLBACK_ANNOTATION in planned.message
    assert updated.resource()["spec"]["engine"]["version"] == NEW
    assert "RolledBack" in {event["reason"] for event in updated.cluster.all(EVENT)}
    assert len(names(updated)) == 2


async def test_it_lasts_after_a_restart_and_writes_nothing(updated: Bench) -> None:
    await roll_back(updated)
    updated.restart()
    before = len(updated.cluster.writes)
    await updated.settle()
    assert version(updated) == OLD
    assert updated.cluster.writes[before:] == []


async def test_scaling_and_what_no_plan_depends_on_follow_the_spec(updated: Bench, fleet: Fleet) -> None:
    await roll_back(updated)
    await fleet.change(replicas=3)
    assert (version(updated), fleet.replicas()) == (OLD, 3)
    assert updated.plan_verdict().reason == "RolledBack"


async def test_a_change_of_the_spec_ends_it(updated: Bench, fleet: Fleet) -> None:
    await roll_back(updated)
    await fleet.change(engine={"version": "0.26.0"})
    assert version(updated) == "0.26.0"
    assert updated.plan_verdict().reason != "RolledBack"


async def test_a_request_for_a_new_plan_ends_it(updated: Bench) -> None:
    await roll_back(updated)
    annotate(updated, replan="now")
    await updated.settle()
    assert version(updated) == NEW
    assert updated.plan_verdict().reason != "RolledBack"


async def test_without_the_annotation_the_spec_is_planned_again(updated: Bench) -> None:
    await roll_back(updated)
    path = "/metadata/annotations/" + ROLLBACK_ANNOTATION.replace("/", "~1")
    await updated.cluster.patch(VLLM_DEPLOYMENT, "llama", "default", [{"op": "remove", "path": path}], manager="kubectl")
    await updated.settle()
    assert version(updated) == NEW


async def test_a_plan_that_was_only_requested_can_be_left_too(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    annotate(bench, replan="now")
    await bench.settle()
    assert len(names(bench)) == 2
    await roll_back(bench)
    assert bench.plan_verdict().reason == "RolledBack"
    assert bench.status().revision == names(bench)[0]


async def test_the_preset_of_that_time_counts(bench: Bench, fleet: Fleet) -> None:
    preset = {"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMPreset", "metadata": {"name": "p", "namespace": "default"}}
    bench.cluster.put({**preset, "spec": {"engine": {"version": OLD}}})
    own = {**llama()["spec"], "engine": None, "presetRef": {"name": "p"}}
    await fleet.serve(**own)
    bench.cluster.edit(PRESET, "default", "p", {"spec": {"engine": {"version": NEW}}})
    annotate(bench, replan="now")
    await bench.settle()
    assert version(bench) == NEW
    await roll_back(bench)
    assert version(bench) == OLD
    bench.cluster.edit(PRESET, "default", "p", {"spec": {"engine": {"version": "0.26.0"}}})
    await bench.settle()
    assert (version(bench), bench.plan_verdict().reason) == (OLD, "RolledBack")


async def test_a_revision_that_is_gone_changes_nothing_and_is_named(updated: Bench) -> None:
    annotate(updated, rollback=rollback_request("llama-0123456789", names(updated)[-1]))
    await updated.settle()
    planned = updated.plan_verdict()
    assert (planned.status, planned.reason) == ("False", "RevisionUnusable")
    assert "llama-0123456789 does not exist. Nothing is changed." in planned.message
    assert version(updated) == NEW


@pytest.mark.parametrize(
    "value", ["", "nonsense", "llama-0000000000 instead of llama-1111111111", "../x instead of ../y", "a instead of b instead of c"]
)
async def test_an_annotation_of_another_object_has_no_effect(updated: Bench, value: str) -> None:
    annotate(updated, rollback=value)
    await updated.settle()
    assert version(updated) == NEW
    assert updated.plan_verdict().reason != "RolledBack"


async def test_both_revisions_outlast_the_history(updated: Bench, fleet: Fleet) -> None:
    kept = names(updated)
    await roll_back(updated)
    for number in range(12):
        manifest = {**revisions(updated)[0], "revision": 100 + number}
        manifest["metadata"] = {**manifest["metadata"], "name": f"llama-{number:010x}", "uid": f"uid-{number}"}
        updated.cluster.put(manifest)
    await fleet.change(replicas=2)
    assert set(kept) <= {each["metadata"]["name"] for each in updated.cluster.all(REVISION)}


def parsed(bench: Bench) -> VLLMDeployment:
    return VLLMDeployment.parse(bench.resource())


def numbers(bench: Bench, number: int | None = None) -> list[int]:
    return [int(each["revision"]) for each in find_rollback(parsed(bench), revisions(bench), number)]


def record_served(bench: Bench, *served: int) -> None:
    for each in revisions(bench):
        if each["revision"] in served:
            change = {"metadata": {"annotations": {SERVED_ANNOTATION: "2026-11-21T12:00:00Z"}}}
            bench.cluster.edit(REVISION, "default", each["metadata"]["name"], change)


async def test_the_command_goes_back_step_by_step(updated: Bench, fleet: Fleet) -> None:
    await fleet.change(engine={"version": "0.26.0"})
    record_served(updated, 1, 2)
    assert numbers(updated) == [2, 3, 3]
    assert numbers(updated, 1) == [1, 3, 3]
    target, _, replaced = find_rollback(parsed(updated), revisions(updated), None)
    annotate(updated, rollback=rollback_request(target["metadata"]["name"], replaced["metadata"]["name"]))
    await updated.settle()
    assert version(updated) == NEW
    assert numbers(updated) == [1, 2, 3]
    rows = history(parsed(updated), revisions(updated), updated.now)
    assert [(row["revision"], row["state"], row["version"]) for row in rows] == [
        (1, "served", OLD),
        (2, "served", NEW),
        (3, "rolled back", "0.26.0"),
    ]
    assert "The spec changed" in rows[1]["why"]


async def test_by_default_it_goes_back_to_what_has_served(updated: Bench, fleet: Fleet) -> None:
    await fleet.change(engine={"version": "0.26.0"})
    with pytest.raises(InputError, match=r"no earlier revision that is known to have served\. Name one\. It has 1, 2, 3,"):
        numbers(updated)
    record_served(updated, 1)
    assert numbers(updated) == [1, 3, 3]


@pytest.mark.parametrize(("number", "said"), [(7, "has no revision 7. It has 1, 2"), (2, "revision 2 is the current one")])
async def test_the_command_says_what_there_is(updated: Bench, number: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        numbers(updated, number)


async def test_to_return_is_to_end_the_rollback(updated: Bench) -> None:
    await roll_back(updated)
    with pytest.raises(InputError, match=f"kubectl annotate vllm llama -n default {ROLLBACK_ANNOTATION}-"):
        numbers(updated, 2)
    with pytest.raises(InputError, match="has no earlier revision"):
        numbers(updated)


async def test_a_spec_without_a_plan_needs_no_rollback(updated: Bench, fleet: Fleet) -> None:
    await fleet.change(accelerator={"products": ["NVIDIA-B200"]})
    with pytest.raises(InputError, match="has no plan that it could be rolled back from"):
        numbers(updated)
    updated.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"accelerator": None}})
    with pytest.raises(InputError, match="has not processed the requested spec"):
        numbers(updated)


def test_what_the_specs_differ_in_has_no_value_that_may_be_a_secret() -> None:
    def spec(value: str) -> dict[str, Any]:
        pod = {"spec": {"containers": [{"name": "vllm", "env": [{"name": "CREDENTIAL", "value": value}]}]}}
        args = [{"name": "--api-key", "value": value}, {"name": "--max-num-seqs", "value": str(len(value))}]
        env = [{"name": "MY_PASSWORD", "value": value}, {"name": "PLAIN", "value": value}]
        return {"engine": {"args": args, "env": env, "extraArgs": ["--api-key", value]}, "podTemplate": pod}

    found = list(changed_fields(spec("swordfish"), spec("hunter2-new")))
    assert [text for text in found if "swordfish" in text or "hunter2" in text] == []
    assert "engine.args --max-num-seqs 9 → 11" in found
    assert {"engine.args --api-key", "engine.env MY_PASSWORD", "engine.env PLAIN", "engine.extraArgs"} <= set(found)
    assert any(text.startswith("podTemplate.") for text in found)
