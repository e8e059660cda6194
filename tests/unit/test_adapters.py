"""LoRA adapters of a spec: the flags for the engine, what the plan says about them, and the Pod that fetches them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.estimates import engine
from support.fleet import Fleet
from support.gpus import real_node
from support.operators import Bench, known_crashes
from support.plans import known
from support.plans import made as made_plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AdapterSpec
from vllm_operator.catalog.versions import VersionTable
from vllm_operator.kube.client import POD
from vllm_operator.logs.parser import StartupParser
from vllm_operator.planning.engine.adapters import adapter_path, check_adapters, plan_adapters
from vllm_operator.planning.pod_template import SpecError
from vllm_operator.rendering import pod as rendering
from vllm_operator.sizing.model_facts import ModelFiles
from vllm_operator.sizing.parallelism import ParallelShape
from vllm_operator.sizing.resolve import resolve_model
from vllm_operator.sizing.weights import adapter_bytes
from vllm_operator.tools import hub

LLAMA = "hf://unsloth/Meta-Llama-3.1-8B-Instruct"
BASE = {"base_model_name_or_path": "meta-llama/Meta-Llama-3.1-8B-Instruct"}
SQL = {"name": "sql", "uri": "hf://acme/sql-lora"}
SUPPORT = {"name": "support", "uri": "pvc://adapters/support/v3"}


def resource(*adapters: dict[str, Any], **model: Any) -> VLLMDeployment:
    spec = {"model": {"uri": LLAMA, **model}, "adapters": list(adapters) or None, "engine": {"version": "0.26.0"}}
    return VLLMDeployment.parse({"metadata": {"name": "llama", "namespace": "models"}, "spec": spec})


def table(version: str = "0.26.0") -> VersionTable:
    [found] = [each for each in known().versions.tables if each.version == version]
    return found


def path_of(adapter: dict[str, Any]) -> str:
    return adapter_path(AdapterSpec.model_validate(adapter))


def flags(*adapters: dict[str, Any], files: dict[str, ModelFiles] | None = None) -> dict[str, str | None]:
    planned = plan_adapters(resource(*adapters).spec, files or {}, table(), None)
    return {each.name: each.text for each in planned.arguments}


def test_a_spec_without_adapters_gets_no_flags() -> None:
    spec = VLLMDeployment.parse({"metadata": {"name": "llama"}, "spec": {"model": {"uri": LLAMA}}}).spec
    assert plan_adapters(spec, {}, table(), None).arguments == ()


def test_adapters_are_passed_in_the_order_of_their_names_whatever_the_order_in_the_spec() -> None:
    assert flags(SUPPORT, SQL) == flags(SQL, SUPPORT)
    planned = plan_adapters(resource(SUPPORT, SQL).spec, {}, table(), None)
    [modules] = [each.values for each in planned.arguments if each.name == "--lora-modules"]
    assert [json.loads(module) for module in modules or ()] == [
        {"name": "sql", "path": path_of(SQL)},
        {"name": "support", "path": "/adapters/adapters/support/v3"},
    ]


@pytest.mark.parametrize(
    ("ranks", "limit"),
    [((8,), "8"), ((4,), "8"), ((16, 8), "16"), ((17,), "32"), ((64, None), "64"), ((None,), "16"), ((8, None), "16"), ((512,), "512")],
)
def test_the_limit_of_ranks_is_the_smallest_that_vllm_accepts_and_an_unknown_rank_counts_as_its_default(
    ranks: tuple[int | None, ...], limit: str
) -> None:
    given = [{**SQL, "name": f"a{number}", **({"rank": rank} if rank else {})} for number, rank in enumerate(ranks)]
    assert flags(*given)["--max-lora-rank"] == limit


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"r": 64}, "64"),
        ({"r": 8, "rank_pattern": {"q_proj": 32}}, "32"),
        ({"r": "64"}, "64"),
        ({"r": -5}, "16"),
        ({"r": True, "rank_pattern": ["x"]}, "16"),
        ({"r": 10**30}, "16"),
        ({}, "16"),
    ],
)
def test_the_rank_comes_from_the_file_of_the_adapter_whatever_it_contains(config: dict[str, Any], limit: str) -> None:
    assert flags(SQL, files={"sql": ModelFiles(config)})["--max-lora-rank"] == limit


def test_more_adapters_than_a_batch_may_use_wait_in_the_memory_of_the_host() -> None:
    many = [{**SQL, "name": f"a{number}"} for number in range(10)]
    found = flags(*many)
    assert (found["--max-loras"], found["--max-cpu-loras"]) == ("8", "10")
    assert "--max-cpu-loras" not in flags(SQL, SUPPORT)


def test_a_plan_in_force_keeps_its_limit_because_no_files_are_read_for_it() -> None:
    spec = resource(SQL).spec
    made = plan_adapters(spec, {"sql": ModelFiles({"r": 128})}, table(), None)
    in_force = made_plan(resource(), real_node("h100-sxm")).model_copy(update={"args": list(made.arguments)})
    again = plan_adapters(spec, {}, table(), in_force)
    assert again.arguments == made.arguments
    assert again.notes == ()


@pytest.mark.parametrize(
    ("adapter", "files", "words"),
    [
        (SQL, ModelFiles({"r": 8, **BASE}), []),
        (SQL, ModelFiles(), ["The rank of the adapter sql is unknown. The engine accepts up to 16."]),
        (SQL, ModelFiles({"r": 8, "use_dora": True, **BASE}), ["The adapter sql uses DoRA, which vLLM does not support."]),
        (SQL, ModelFiles({"r": 8, "modules_to_save": ["lm_head"], **BASE}), ["The adapter sql replaces whole modules"]),
        (SQL, ModelFiles({"r": 1024, **BASE}), ["The adapter sql has rank 1024, but vLLM accepts up to 512."]),
        (SQL, ModelFiles({"r": 8, "base_model_name_or_path": "org/other"}), ["was trained for org/other, but the model is unsloth/"]),
        (
            {**SQL, "rank": 8},
            ModelFiles(trouble="adapter_config.json of acme/sql-lora cannot be read.", refused=True),
            ["Adapter sql: adapter_config.json of acme/sql-lora cannot be read."],
        ),
    ],
)
def test_the_plan_names_what_is_wrong_with_an_adapter(adapter: dict[str, Any], files: ModelFiles, words: list[str]) -> None:
    notes = plan_adapters(resource(adapter).spec, {"sql": files}, table(), None).notes
    assert len(notes) == len(words), notes
    for note, expected in zip(notes, words, strict=True):
        assert expected in note.text


@pytest.mark.parametrize("changed", [{"uri": "hf://acme/other"}, {"revision": "v2"}, {"name": "sql2"}])
def test_another_source_has_another_path_so_that_a_change_replaces_the_pods(changed: dict[str, str]) -> None:
    assert path_of(SQL) != path_of({**SQL, **changed})


def test_an_adapter_with_the_name_of_the_model_is_refused() -> None:
    with pytest.raises(SpecError, match=r"The adapter llama in spec\.adapters has a name of the model\."):
        check_adapters(resource({**SQL, "name": "llama"}, servedName="llama").spec)
    with pytest.raises(SpecError, match=r"change spec\.model\.aliases"):
        check_adapters(resource({**SQL, "name": "llama"}, servedName="chat", aliases=["llama"]).spec)


def test_adapters_take_more_memory_with_each_slot_and_rank_and_less_with_more_gpus() -> None:
    model = resolve_model("meta-llama/Llama-3.1-8B-Instruct", known().shapes)
    assert model is not None
    one = adapter_bytes(engine(model.shape, adapters=1, adapter_rank=16))
    # 32 layers; q, o: 4096 + 4096, k, v: 4096 + 1024, gate, up, down: 4096 + 14336; two bytes
    assert one == 2 * 16 * 32 * (2 * 8192 + 2 * 5120 + 3 * 18432)
    assert adapter_bytes(engine(model.shape, adapters=4, adapter_rank=32)) == 8 * one
    assert one / 2 < adapter_bytes(engine(model.shape, parallel=ParallelShape(tensor=2), adapters=1, adapter_rank=16)) < one


ENGINE = {
    "name": "vllm",
    "image": "vllm/vllm-openai:v0.26.0",
    "securityContext": {"allowPrivilegeEscalation": False},
    "env": [{"name": "HF_HOME", "value": "/weights"}, {"name": "VLLM_API_KEY", "value": "x"}, {"name": "HTTPS_PROXY", "value": "http://p"}],
    "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"cpu": "4"}},
    "volumeMounts": [
        {"name": "cache", "mountPath": "/cache"},
        {"name": "weights", "mountPath": "/weights", "subPath": "models"},
        {"name": "temporary", "mountPath": "/tmp"},
    ],
}


def test_the_init_container_has_the_volume_of_the_weights_and_the_tokens_of_adapters_but_no_gpu_and_no_other_secret() -> None:
    own = {**SQL, "revision": "v2", "tokenSecretRef": {"name": "acme-hub-token"}}
    template = {"spec": {"containers": [ENGINE], "volumes": [{"name": "weights"}]}}
    pod = rendering.PodBuilder(template["spec"], "tools:1")
    rendering.add_adapter_fetcher(pod, resource(own, SUPPORT))
    made = pod.spec
    tools, container = made["initContainers"]
    assert (tools["name"], tools["image"], container["image"]) == ("copy-tools", "tools:1", ENGINE["image"])
    assert container["name"] == rendering.ADAPTER_CONTAINER
    assert container["resources"] == {"requests": {"cpu": "4"}}
    assert [entry["name"] for entry in container["env"]] == ["ADAPTERS", "HF_HOME", "HTTPS_PROXY"]
    [settings] = json.loads(container["env"][0]["value"])
    assert (settings["repository"], settings["revision"]) == ("acme/sql-lora", "v2")
    assert settings["token"] == "/etc/vllm-operator/adapters/sql/token"
    [*_, token, programs] = container["volumeMounts"]
    assert programs == {"name": "operator-tools", "mountPath": "/tools", "readOnly": True}
    assert token == {"name": made["volumes"][-2]["name"], "mountPath": "/etc/vllm-operator/adapters/sql", "readOnly": True}
    assert made["volumes"][-2]["secret"] == {"secretName": "acme-hub-token", "items": [{"key": "token", "path": "token"}]}
    assert [mount["mountPath"] for mount in container["volumeMounts"]][:-2] == ["/weights", "/tmp"]


def test_adapters_on_volumes_need_no_init_container() -> None:
    template = {"spec": {"containers": [ENGINE]}}
    pod = rendering.PodBuilder(template["spec"], "tools:1")
    rendering.add_adapter_fetcher(pod, resource(SUPPORT))
    assert pod.spec == template["spec"]


def test_a_link_that_a_killed_container_left_behind_is_replaced_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, files, replace = tmp_path / "adapters" / "sql-1", tmp_path / "files", os.replace
    files.mkdir()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        hub.link(str(files), str(path))
    assert len(list(path.parent.iterdir())) == 1
    monkeypatch.setattr(os, "replace", replace)
    hub.link(str(files), str(path))
    assert [(entry.name, entry.readlink()) for entry in path.parent.iterdir()] == [("sql-1", files)]


async def test_an_adapter_that_cannot_be_fetched_is_named_in_the_condition(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(model={"uri": LLAMA}, adapters=[SQL], cache={"storage": "EmptyDir"})
    pod = fleet.start()
    message = "Adapter sql (hf://acme/sql-lora) cannot be fetched: RepositoryNotFoundError: 404 Client Error. Repository Not Found"
    ended = {"exitCode": 1, "message": message, "finishedAt": fleet.time(), "reason": "Error"}
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    failed = {"name": rendering.ADAPTER_CONTAINER, "state": waits, "lastState": {"terminated": ended}, "restartCount": 1, "ready": False}
    engine = {"name": "vllm", "state": {"waiting": {"reason": "PodInitializing"}}, "ready": False, "restartCount": 0}
    status = {"phase": "Pending", "initContainerStatuses": [failed], "containerStatuses": [engine]}
    bench.cluster.edit(POD, "default", pod, {"status": status})
    await fleet.settle()
    bench.pass_time(120)
    await fleet.settle()
    crashed = bench.condition("Crashed")
    assert crashed.reason == "AdapterNotFetched"
    assert "The LoRA adapter sql of hf://acme/sql-lora could not be downloaded (RepositoryNotFoundError" in crashed.message
    assert "spec.adapters" in crashed.message


STARTED = (
    "INFO 11-21 12:00:00 [core.py:97] Initializing a V1 LLM engine (v0.20.1) with config\n",
    "INFO 11-21 12:00:01 [serving.py:200] Loaded new LoRA adapter: name 'sql', path '/weights/adapters/sql-1'\n",
    "INFO:     Application startup complete.\n",
)


async def serve_with_log(fleet: Fleet, bench: Bench, *lines: str) -> None:
    """Two adapters are asked for, and the engine serves with this log."""
    await fleet.serve(model={"uri": LLAMA}, adapters=[SQL, SUPPORT])
    pod = fleet.start()
    parser = StartupParser(known_crashes().reporting.startup)
    for each in lines:
        parser.feed(each.encode(), bench.now)
    bench.logs.told = {(fleet.uid(pod), 0): parser.state}
    fleet.ready(pod)
    await fleet.settle()


async def test_an_adapter_that_the_log_of_a_serving_engine_does_not_name_is_reported(fleet: Fleet, bench: Bench) -> None:
    await serve_with_log(fleet, bench, *STARTED)
    assert "The engine has not loaded support of spec.adapters, so requests for it fail." in bench.plan_verdict().message
    bench.logs.told = {}
    bench.restart()
    await fleet.settle()
    assert "has not loaded support" in bench.plan_verdict().message, "a new operator does not read the log of a Pod that serves"
    await fleet.change(adapters=[SQL])
    assert "has not loaded" not in bench.plan_verdict().message


@pytest.mark.parametrize(
    "lines",
    [
        (STARTED[0], STARTED[1], STARTED[1].replace("sql", "support"), STARTED[2]),
        STARTED[:2],
        STARTED[2:],
        (),
    ],
    ids=["all are loaded", "it is starting", "it logs only warnings", "no log"],
)
async def test_nothing_is_said_of_adapters_that_are_loaded_or_of_which_nothing_is_known(
    fleet: Fleet, bench: Bench, lines: tuple[str, ...]
) -> None:
    await serve_with_log(fleet, bench, *lines)
    assert "has not loaded" not in bench.plan_verdict().message
    assert bench.status().engine is None
