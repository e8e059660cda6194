"""The options that all commands share are those of kubectl: namespace, context, kubeconfig, output."""

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.claims import in_dra_mode
from support.gpus import inventory_of, real_node
from support.operators import controlled_by_deployment
from vllm_operator.__main__ import kubectl_plugin
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.cli.catalog import INGEST, SECTIONS
from vllm_operator.cli.commands import add_arguments, read_commands
from vllm_operator.cli.gpus import gpus_page, rows_of, waiting_of
from vllm_operator.cli.terminal import plain
from vllm_operator.kube.connection import context_namespace, load_configuration

OFFLINE = {"fit", "catalog"}
WITHOUT_NAMESPACE = {*OFFLINE, "gpus"}
LISTS = {"top", "caches", "replan"}
WITHOUT_OUTPUT = {"prime", "import", "rollback", "replan", "race"}


def actions_of(name: str) -> dict[str, argparse.Action]:
    parser = argparse.ArgumentParser()
    add_arguments(parser, read_commands(plugin=True)[name])
    return {option: action for action in parser._actions for option in action.option_strings}


@pytest.mark.parametrize("name", read_commands(plugin=True))
def test_each_command_has_the_options_of_kubectl_that_it_needs(name: str) -> None:
    options = actions_of(name)
    assert ({"--context", "--kubeconfig"} <= options.keys()) is (name not in OFFLINE)
    assert ({"-n", "--namespace"} <= options.keys()) is (name not in WITHOUT_NAMESPACE)
    assert ({"-A", "--all-namespaces"} <= options.keys()) is (name in LISTS)
    assert ("-o" in options) is (name not in WITHOUT_OUTPUT)
    if "-n" in options:
        assert options["-n"].default is None, "the context says it"
    if "-o" in options:
        assert {"json", "yaml"} <= set(options["-o"].choices or ())


@pytest.mark.parametrize("name", read_commands())
def test_each_command_has_a_function(name: str) -> None:
    module, _, function = read_commands()[name]["runs"].partition(":")
    assert callable(getattr(import_module(f"vllm_operator.{module}"), function))


def test_each_part_of_the_catalog_can_be_chosen() -> None:
    (section, *_) = read_commands()["catalog"]["arguments"]
    assert section["section"]["choices"] == [*SECTIONS, INGEST]


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    contexts = [
        {"name": "one", "context": {"cluster": "c1", "user": "u"}},
        {"name": "two", "context": {"cluster": "c2", "user": "u", "namespace": "models"}},
    ]
    clusters = [{"name": f"c{number}", "cluster": {"server": f"https://{number}.example.com"}} for number in (1, 2)]
    users = [{"name": "u", "user": {"token": "t"}}]
    content = {"apiVersion": "v1", "kind": "Config", "current-context": "one", "contexts": contexts, "clusters": clusters, "users": users}
    path = tmp_path / ".kube" / "config"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(content), "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("context", "host", "namespace"), [(None, "https://1.example.com", "default"), ("two", "https://2.example.com", "models")]
)
async def test_a_context_says_the_cluster_and_the_namespace(kubeconfig: str, context: str | None, host: str, namespace: str) -> None:
    environment = {"KUBECONFIG": kubeconfig, "HOME": "/nowhere"}
    assert (await load_configuration(environment, context=context)).host == host
    assert context_namespace(environment, context=context) == namespace


async def test_a_context_is_that_of_the_kubeconfig_within_a_pod_too(kubeconfig: str) -> None:
    environment = {"HOME": str(Path(kubeconfig).parent.parent), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert (await load_configuration(environment, context="two")).host == "https://2.example.com"


@pytest.mark.parametrize("arguments", [["--kubeconfig", "/nowhere/config"], ["--context", "three"]])
def test_an_unknown_context_or_file_is_named(
    kubeconfig: str, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    assert kubectl_plugin(["status", "llama", *arguments]) == 2
    assert arguments[1] in capsys.readouterr().err


LABELS = {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": "llama", "app.kubernetes.io/component": "engine"}


def pod(name: str, *, node: str = "", gpus: int = 1, owned: bool = False, why: str = "") -> dict[str, Any]:
    of_llama = controlled_by_deployment("llama", LABELS) if owned else {}
    metadata: dict[str, Any] = {"namespace": "lab", "name": name, **of_llama}
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}] if why else []
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [container]}, "status": {"conditions": conditions}}


NOT_READY = [{"type": "Ready", "status": "Unknown"}]
GPUS = load_catalog().gpus


def test_devices_of_nodes_that_take_no_pods_are_not_free() -> None:
    inventory = inventory_of(real_node("h200", conditions=NOT_READY), real_node("l40s", cordoned=True), real_node("h100-sxm"))
    rows = {row["node"]: row for row in rows_of(inventory, [pod("a", node="h200-0", gpus=2)], GPUS)}
    assert {name: row["free"] for name, row in rows.items()} == {"h200-0": 0, "l40s-0": 0, "h100-sxm-0": 8}
    assert (rows["h200-0"]["used"], rows["h200-0"]["unavailable"]) == (2, ["it is not ready"])
    page = plain(gpus_page(inventory, [], GPUS, width=100))
    assert "NVIDIA H200 141GB (sm_90): 0 of 8 free, 8 unavailable" in page
    assert "Unavailable: h200-0 (it is not ready). See `kubectl describe node h200-0`." in page
    assert "Unavailable: l40s-0 (it is cordoned). Ask who did it, and why. If it is healthy:" in page


def test_the_users_of_claimed_devices_are_named() -> None:
    node, published = in_dra_mode(real_node("h100-sxm"))
    inventory, mine = inventory_of(node, slices=(published,)), pod("llama-1", owned=True, gpus=0)
    mine["metadata"]["uid"] = "uid-1"
    claimed = {"uid-1": frozenset({"h100-sxm-0/gpu-0", "h100-sxm-0/gpu-1"}), "": frozenset({"h100-sxm-0/gpu-5"})}
    [row] = rows_of(inventory, [mine], GPUS, claimed)
    assert (row["used"], row["free"], row["usedBy"]) == (3, 5, {"lab/llama": 2, "a ResourceClaim": 1})
    assert "NVIDIA H100 80GB (sm_90): 5 of 8 free" in plain(gpus_page(inventory, [mine], GPUS, claimed, width=100))
    assert "no permission to list the ResourceClaims" in plain(gpus_page(inventory, [mine], GPUS, width=100))


def test_all_users_are_named_where_that_is_asked_for() -> None:
    pods = [pod(f"p{number}", node="h100-sxm-0") for number in range(6)]
    page = plain(gpus_page(inventory_of(real_node("h100-sxm")), pods, GPUS, width=100))
    assert "2 more" in page
    wide = plain(gpus_page(inventory_of(real_node("h100-sxm")), pods, GPUS, width=100, shown=None))
    assert "2 more" not in wide
    assert "Pod lab/p5 (1)" in wide


def test_an_owner_waits_once_and_a_pod_that_waits_for_a_volume_does_not_wait_for_a_node() -> None:
    own = [pod(f"llama-abc-{number}", owned=True, why="0/3 nodes: Insufficient nvidia.com/gpu.") for number in range(3)]
    volume = pod("v", why='0/3 nodes are available: persistentvolumeclaim "v-cache" not found.')
    unbound = pod("w", why="0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
    waiting = waiting_of([*own, volume, unbound, pod("x", gpus=2)])
    assert {user: len(asked) for user, asked in waiting.items()} == {"lab/llama": 3, "Pod lab/x": 1}
    page = plain(gpus_page(inventory_of(real_node("h100-sxm")), [*own, volume], GPUS, width=100))
    assert page.count("Waiting for a node") == 1
    assert "Waiting for a node: lab/llama (3 Pods, 3 nvidia.com/gpu)." in page


def test_a_manifest_of_a_model_has_only_what_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl_plugin(["create", "Qwen/Qwen3-8B", "--dry-run"]) == 0
    manifest = yaml.safe_load(capsys.readouterr().out)
    assert (manifest["metadata"], manifest["spec"]) == ({"name": "qwen3-8b"}, {"model": {"uri": "hf://Qwen/Qwen3-8B"}})
    options = [
        "--name",
        "chat",
        "-n",
        "models",
        "--gpu",
        "H200",
        "B200",
        "--context-length",
        "8192",
        "--concurrency",
        "4",
        "--replicas",
        "0",
    ]
    assert kubectl_plugin(["create", "s3://bucket/models/qwen", *options, "--dry-run", "-o", "json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["metadata"] == {"name": "chat", "namespace": "models"}
    assert manifest["spec"] == {
        "model": {"uri": "s3://bucket/models/qwen"},
        "replicas": 0,
        "accelerator": {"products": ["NVIDIA-H200", "NVIDIA-B200"]},
        "sizing": {"contextLength": 8192, "concurrency": 4},
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Qwen/Qwen3-8B", "--gpu", "H300"], "the catalog has no GPU H300"),
        (["Qwen", "--name", "Chat"], "the VLLMDeployment Chat would be invalid"),
    ],
)
def test_an_invalid_object_is_not_sent(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl_plugin(["create", *arguments]) == 2
    assert said in capsys.readouterr().err
