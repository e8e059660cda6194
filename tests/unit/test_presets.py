"""Presets of VLLMDeployments on a cluster in memory: merged before planning, pinned with the plan, followed once one is named."""

from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.operators import KEY, Bench, llama
from vllm_operator.api.labels import API_VERSION, REPLAN_ANNOTATION
from vllm_operator.controller.object_cache import ObjectCache
from vllm_operator.kube.client import CLUSTER_PRESET, DEPLOYMENT, PRESET, VLLM_DEPLOYMENT, Forbidden, Manifest, Unavailable

TOLERATION = {"key": "team", "operator": "Exists"}
DEFAULTS: dict[str, Any] = {
    "engine": {"args": [{"name": "seed", "value": "7"}]},
    "podTemplate": {"spec": {"tolerations": [TOLERATION]}},
}


def preset(name: str = "gpu-defaults", kind: str = "VLLMPreset", **spec: Any) -> Manifest:
    metadata = {"name": name} | ({"namespace": "default"} if kind == "VLLMPreset" else {})
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec or DEFAULTS}


def with_preset(name: str = "gpu-defaults", **spec: Any) -> Manifest:
    return llama(presetRef={"name": name}, **spec)


def seeds(bench: Bench) -> list[str]:
    """The values of `--seed` in the Deployment."""
    arguments = bench.container()["args"]
    return [arguments[index + 1] for index, word in enumerate(arguments) if word == "--seed"]


def template(bench: Bench) -> Manifest:
    return dict(bench.deployment()["spec"]["template"])


async def served(bench: Bench) -> None:
    """An object with a preset whose plan is pinned; `bench` has nothing left to write."""
    bench.cluster.put(preset())
    bench.cluster.put(with_preset())
    await bench.settle()


async def test_a_preset_is_merged_before_planning_and_pinned_with_its_origin(bench: Bench) -> None:
    await served(bench)
    assert seeds(bench) == ["7"]
    assert TOLERATION in template(bench)["spec"]["tolerations"]
    assert "with VLLMPreset gpu-defaults" in bench.plan_verdict().message
    pinned = bench.plan().preset
    assert pinned is not None
    assert (str(pinned), pinned.spec) == ("VLLMPreset gpu-defaults", DEFAULTS)
    assert pinned.fields == ["engine.args.seed", "podTemplate.spec.tolerations"]


async def test_a_preset_for_all_namespaces(bench: Bench) -> None:
    bench.cluster.put(preset(kind="ClusterVLLMPreset"))
    bench.cluster.put(llama(presetRef={"kind": "ClusterVLLMPreset", "name": "gpu-defaults"}))
    await bench.settle()
    assert seeds(bench) == ["7"]
    assert "with ClusterVLLMPreset gpu-defaults" in bench.plan_verdict().message


async def test_an_edit_of_the_preset_rolls_nothing_until_a_new_plan_is_requested(bench: Bench) -> None:
    await served(bench)
    before, plan = template(bench), bench.plan()
    bench.cluster.put(preset(engine={"args": [{"name": "seed", "value": "8"}]}))
    await bench.settle()
    assert template(bench) == before
    assert bench.plan() == plan
    assert bench.plan_verdict().reason == "PlanDrifted"
    assert "VLLMPreset gpu-defaults has changed in engine.args, podTemplate." in bench.plan_verdict().message
    assert REPLAN_ANNOTATION in bench.plan_verdict().message
    bench.cluster.edit(VLLM_DEPLOYMENT, *KEY, {"metadata": {"annotations": {REPLAN_ANNOTATION: "1"}}})
    await bench.settle()
    assert seeds(bench) == ["8"]
    assert TOLERATION not in template(bench)["spec"].get("tolerations", [])
    assert bench.plan_verdict().reason == "Planned"


async def test_an_edit_that_makes_no_difference_to_the_object_is_not_mentioned(bench: Bench) -> None:
    bench.cluster.put(preset())
    bench.cluster.put(with_preset(engine={"version": "0.20.1", "args": [{"name": "seed", "value": "1"}]}))
    await bench.settle()
    writes = list(bench.cluster.writes)
    bench.cluster.put(preset(**{**DEFAULTS, "engine": {"args": [{"name": "seed", "value": "9"}]}}))
    await bench.reconciler.reconcile(KEY)
    assert bench.cluster.writes == writes


async def test_a_change_of_the_object_takes_the_preset_as_it_is_now(bench: Bench) -> None:
    await served(bench)
    bench.cluster.put(preset(engine={"args": [{"name": "seed", "value": "8"}]}))
    bench.cluster.edit(VLLM_DEPLOYMENT, *KEY, {"spec": {"rollout": {"drainSeconds": 5}}})
    await bench.settle()
    assert seeds(bench) == ["8"]


async def test_scaling_keeps_the_preset_of_the_plan(bench: Bench) -> None:
    await served(bench)
    before, plan = template(bench), bench.plan()
    bench.cluster.put(preset(engine={"args": [{"name": "seed", "value": "8"}]}))
    bench.cluster.edit(VLLM_DEPLOYMENT, *KEY, {"spec": {"replicas": 0}})
    await bench.settle()
    assert bench.deployment()["spec"]["replicas"] == 0
    assert (template(bench), bench.plan()) == (before, plan)


async def test_a_restart_writes_nothing(bench: Bench) -> None:
    await served(bench)
    writes = list(bench.cluster.writes)
    bench.restart()
    await bench.reconciler.reconcile(KEY)
    assert bench.cluster.writes == writes


async def test_a_deleted_preset_keeps_serving(bench: Bench) -> None:
    await served(bench)
    before = template(bench)
    bench.cluster.remove(PRESET, "default", "gpu-defaults")
    await bench.settle()
    assert template(bench) == before
    assert "VLLMPreset gpu-defaults no longer exists. A new plan is not possible until it exists again" in bench.plan_verdict().message
    assert "replan" not in bench.plan_verdict().message, "that would end in PresetMissing"
    bench.cluster.edit(VLLM_DEPLOYMENT, *KEY, {"metadata": {"annotations": {REPLAN_ANNOTATION: "1"}}})
    await bench.settle()
    assert bench.plan_verdict().reason == "PresetMissing"
    assert template(bench) == before


async def test_a_missing_preset_is_named_with_those_that_exist(bench: Bench) -> None:
    bench.cluster.put(preset("small"))
    bench.cluster.put(preset("large"))
    bench.cluster.put(preset("for-all", kind="ClusterVLLMPreset"))
    bench.cluster.put(with_preset("gpu-default"))
    await bench.settle()
    assert (bench.plan_verdict().status, bench.plan_verdict().reason) == ("False", "PresetMissing")
    assert bench.plan_verdict().message.startswith(
        "VLLMPreset gpu-default does not exist in the namespace default. Existing presets of this kind: large, small."
    )
    assert bench.cluster.all(DEPLOYMENT) == []


@pytest.mark.parametrize(
    ("content", "own", "says"),
    [
        ({"rollout": {"drainSeconds": "soon"}}, {}, "spec.rollout.drainSeconds"),
        ({"podTemplate": {"spec": {"containers": [{"image": "nameless"}]}}}, {}, "podTemplate.spec.containers[0] needs a name"),
        (
            {"cache": {"volume": {"accessMode": "ReadWriteOncePod"}}},
            {"replicas": 2},
            "only one replica can use a PersistentVolumeClaim with access mode ReadWriteOncePod",
        ),
    ],
)
async def test_a_preset_that_cannot_be_used_is_refused(bench: Bench, content: Manifest, own: Manifest, says: str) -> None:
    bench.cluster.put(preset(**content))
    bench.cluster.put(with_preset(**own))
    await bench.settle()
    assert bench.plan_verdict().reason == "PresetInvalid"
    assert says in bench.plan_verdict().message
    assert bench.cluster.all(DEPLOYMENT) == []


async def test_without_the_crd_the_condition_says_how_to_install_it_and_others_are_served(bench: Bench) -> None:
    bench.cluster.absent.update((PRESET, CLUSTER_PRESET))
    bench.cluster.put(with_preset())
    bench.cluster.put(llama("other"))
    await bench.settle()
    await bench.settle(("default", "other"))
    assert bench.plan_verdict().reason == "KindNotInstalled"
    assert "The CRD vllmpresets.vllm-operator.dev" in bench.plan_verdict().message
    assert "kubectl apply -f crds/" in bench.plan_verdict().message
    assert bench.plan_verdict("other").reason == "Planned"


async def test_without_permission_the_plan_in_force_keeps_serving(bench: Bench) -> None:
    await served(bench)
    before, writes = template(bench), list(bench.cluster.writes)
    bench.restart()
    bench.cluster.fail("find", PRESET, Forbidden("no", verb="list", resource="vllmpresets"))
    await bench.settle()
    assert template(bench) == before
    assert bench.cluster.writes == writes


async def test_while_presets_cannot_be_read_the_plan_in_force_is_kept_and_a_new_one_waits(bench: Bench) -> None:
    await served(bench)
    before, writes = template(bench), list(bench.cluster.writes)
    bench.restart()
    bench.cluster.fail("find", PRESET, Unavailable("down"), times=99)
    await bench.settle()
    assert (template(bench), bench.cluster.writes) == (before, writes)
    bench.cluster.edit(VLLM_DEPLOYMENT, *KEY, {"metadata": {"annotations": {REPLAN_ANNOTATION: "1"}}})
    with pytest.raises(Unavailable):
        await bench.reconciler.reconcile(KEY)
    assert template(bench) == before


async def test_objects_without_a_preset_ask_for_none(bench: Bench) -> None:
    bench.cluster.fail("find", PRESET, Unavailable("down"), times=99)
    bench.cluster.put(llama())
    await bench.settle()
    assert bench.plan_verdict().reason == "Planned"


# which objects a change of a preset affects


async def test_the_objects_that_name_a_preset_are_its_users_until_they_are_gone() -> None:
    cluster = FakeCluster()
    for name, preset_ref in (("a", "gpu-defaults"), ("b", "gpu-defaults"), ("c", "other")):
        cluster.put(llama(name, presetRef={"name": preset_ref}))
    cluster.put(llama("d"))
    cluster.put(llama("e", presetRef={"kind": "ClusterVLLMPreset", "name": "gpu-defaults"}))
    cache = ObjectCache(cluster)
    await cache.refresh(VLLM_DEPLOYMENT)
    assert set(cache.users_of(PRESET, ("default", "gpu-defaults"))) == {("default", "a"), ("default", "b")}
    assert set(cache.users_of(PRESET, ("default", "other"))) == {("default", "c")}, "it is missing, and may be created later"
    assert set(cache.users_of(CLUSTER_PRESET, ("", "gpu-defaults"))) == {("default", "e")}
    cluster.remove(VLLM_DEPLOYMENT, "default", "a")
    cluster.put(llama("b"))
    await cache.refresh(VLLM_DEPLOYMENT)
    assert set(cache.users_of(PRESET, ("default", "gpu-defaults"))) == set()
