"""Presets on the command line: `plan` merges them from files, and `plan`, `plan --diff` and `plan --revision` say what comes from one."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.gpus import real_node
from support.operators import KEY, Bench, llama
from vllm_operator.__main__ import kubectl_plugin, main
from vllm_operator.api.labels import API_VERSION, REPLAN_ANNOTATION
from vllm_operator.kube.client import REVISION, VLLM_DEPLOYMENT, Manifest

OBJECT = llama(presetRef={"name": "gpu-defaults"})


def preset(seed: str = "7", namespace: str = "default", **spec: Any) -> Manifest:
    metadata = {"name": "gpu-defaults", "namespace": namespace}
    content = {"engine": {"args": [{"name": "seed", "value": seed}]}, **spec}
    return {"apiVersion": API_VERSION, "kind": "VLLMPreset", "metadata": metadata, "spec": content}


@pytest.fixture
def files(tmp_path: Path) -> Any:
    """Write objects to files; the function returns the path."""

    def write(name: str, *objects: Manifest) -> str:
        path = tmp_path / name
        path.write_text(yaml.safe_dump_all(objects), "utf-8")
        return str(path)

    return write


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["plan", *arguments])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_a_plan_from_files_lists_what_comes_from_the_preset(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = files("nodes.yaml", real_node("h100-sxm"))
    status, page = run(capsys, "-f", files("object.yaml", OBJECT), "-f", files("preset.yaml", preset()), "--nodes", nodes)
    assert status == 0
    assert "From VLLMPreset gpu-defaults:\n  engine.args.seed\n" in page
    assert "--seed 7" in page
    together = run(capsys, "-f", files("both.yaml", preset(), OBJECT), "--nodes", nodes)
    assert together == (status, page)
    plan = json.loads(run(capsys, "-f", files("both.yaml", preset(), OBJECT), "--nodes", nodes, "-o", "json")[1])["plan"]
    assert plan["preset"]["fields"] == ["engine.args.seed"]


@pytest.mark.parametrize("given", [[], [preset(namespace="other")]])
def test_a_preset_that_is_not_in_the_files_is_named(given: list[Manifest], files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, page = run(capsys, "-f", files("object.yaml", OBJECT, *given), "--nodes", files("nodes.yaml", real_node("h100-sxm")))
    assert status == 1
    assert "Not planned: PresetMissing" in page
    assert "VLLMPreset gpu-defaults does not exist in the namespace default" in page


def test_an_invalid_preset_is_refused_as_the_api_server_does(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = preset(rollout={"drainSecond": 5}, replicas=3)
    status, page = run(capsys, "-f", files("object.yaml", OBJECT, wrong))
    assert status == 2
    assert "the VLLMPreset gpu-defaults is invalid" in page
    assert 'unknown field "spec.rollout.drainSecond"; did you mean drainSeconds?' in page
    assert 'unknown field "spec.replicas"' in page


async def test_differences_and_revisions_name_the_preset(bench: Bench, files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench.cluster.put(preset())
    bench.cluster.put(OBJECT)
    await bench.settle()
    nodes = files("nodes.yaml", real_node("h100-sxm"))

    def stored() -> list[Manifest]:
        return [bench.resource(), bench.deployment(), *({**it, "kind": REVISION.kind} for it in bench.cluster.all(REVISION))]

    same = run(capsys, "-f", files("stored.yaml", *stored(), preset()), "--nodes", nodes, "--diff")
    assert (same[0], "A new plan would be the same." in same[1]) == (0, True)
    changed = run(capsys, "-f", files("stored.yaml", *stored(), preset("8")), "--nodes", nodes, "--diff")
    assert changed[0] == 1
    assert "VLLMPreset gpu-defaults, changed in engine.args" in " ".join(changed[1].split())
    assert "kubectl annotate vllm llama" in changed[1]
    gone = run(capsys, "-f", files("stored.yaml", *stored()), "--nodes", nodes, "--diff")
    assert gone[0] == 1
    assert "does not exist" in gone[1]

    bench.cluster.put(preset("8"))
    bench.cluster.edit(VLLM_DEPLOYMENT, *KEY, {"metadata": {"annotations": {REPLAN_ANNOTATION: "1"}}})
    await bench.settle()
    assert kubectl_plugin(["plan", "llama", "--revision", "-f", files("stored.yaml", *stored())]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "From VLLMPreset gpu-defaults: engine.args" in page
    assert "before: VLLMPreset gpu-defaults after: VLLMPreset gpu-defaults, changed in engine.args" in page
