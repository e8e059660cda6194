"""`vllm-operator plan`: exit status, what programs get, what people read, and bad input."""

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.gpus import real_node
from vllm_operator.__main__ import main

SPEC = {"model": {"uri": "hf://deepseek-ai/DeepSeek-V3"}, "engine": {"version": "0.20.1"}, "parallelism": {"tensor": 8}}


def manifest(name: str = "demo", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMDeployment", "metadata": {"name": name}, "spec": {**SPEC, **spec}}


@pytest.fixture
def files(tmp_path: Path) -> Any:
    """Write objects to files; the function returns the path."""

    def write(name: str, *objects: Any) -> str:
        path = tmp_path / name
        path.write_text(objects[0] if isinstance(objects[0], str) else yaml.safe_dump_all(objects), "utf-8")
        return str(path)

    return write


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["plan", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_programs_get_plan_result_and_manifests(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "-f", files("cr.yaml", manifest()), "--nodes", files("nodes.yaml", real_node("h200")), "-o", "json")
    content = json.loads(out)
    assert (status, err, list(content)) == (0, "", ["plan", "result", "manifests"])
    assert content["plan"]["architecture"] == "sm_90"
    assert content["result"]["reason"] == "Planned"
    assert content["result"]["message"].startswith("Planned for NVIDIA H200")
    assert [m["kind"] for m in content["manifests"]] == ["PersistentVolumeClaim", "PersistentVolumeClaim", "Service", "Deployment"]


def test_yaml_says_the_same_as_json(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("-f", files("cr.yaml", manifest()), "--nodes", files("nodes.yaml", real_node("h200")), "-o")
    assert json.loads(run(capsys, *arguments, "json")[1]) == yaml.safe_load(run(capsys, *arguments, "yaml")[1])


def test_a_refusal_has_no_plan_and_says_why(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "-f", files("cr.yaml", manifest()), "--nodes", files("nodes.yaml", real_node("l40s")), "-o", "json")
    content = json.loads(out)
    assert (status, content["plan"], content["manifests"]) == (1, None, [])
    assert content["result"]["reason"] == "NoMatchingGPU"


def test_without_nodes_no_gpu_is_known(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "-f", files("cr.yaml", manifest()))
    assert status == 1
    assert "Not planned: NoMatchingGPU" in out
    assert "No nodes were given" in out
    assert (
        "No nodes were given" not in run(capsys, "-f", files("cr.yaml", manifest()), "--nodes", files("nodes.yaml", real_node("l40s")))[1]
    )


def test_people_get_a_page(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = files("nodes.yaml", real_node("h200"), real_node("nfd-only"))
    status, out, _ = run(capsys, "-f", files("cr.yaml", manifest()), "--nodes", nodes)
    assert status == 0
    for part in (
        "NVIDIA H200 141GB (sm_90)",
        "COMPONENT",
        "Source:",
        "--tensor-parallel-size 8",
        "VLLM_CACHE_ROOT=",
        "Inputs of the cache key",
    ):
        assert part in out
    assert all(len(line) <= 140 for line in out.splitlines())


def test_the_page_has_the_command_of_the_engine_as_a_shell_takes_it(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [{"name": "--max-model-len", "value": "4096"}, {"name": "--override-generation-config", "value": '{"temperature": 0}'}]
    path = files("cr.yaml", manifest(engine={"version": "0.20.1", "args": arguments}))
    nodes = files("nodes.yaml", real_node("h200"))
    page = run(capsys, "-f", path, "--nodes", nodes)[1]
    command = page.partition("\nCommand:\n")[2].partition("\n\n")[0]
    assert command.lstrip().startswith("vllm serve deepseek-ai/DeepSeek-V3 \\\n    --")

    manifests = json.loads(run(capsys, "-f", path, "--nodes", nodes, "-o", "json")[1])["manifests"]
    container = manifests[-1]["spec"]["template"]["spec"]["containers"][0]
    assert shlex.split(command.replace("\\\n", " ")) == [*container["command"], *container["args"]]


def test_rules_whose_data_is_no_object_are_named(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rules = files("rules.yaml", {"kind": "ConfigMap", "metadata": 5, "data": 7})
    status, _, err = run(capsys, "-f", files("cr.yaml", manifest()), "--rules", rules)
    assert (status, "data of a ConfigMap" in err) == (2, True)


def test_the_config_of_an_unknown_model_tells_what_it_is(files: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "new", "num_attention_heads": 16, "kv_lora_rank": 512}), "utf-8")
    unknown = manifest(model={"uri": "hf://someone/unheard-of"})
    arguments = ("-f", files("cr.yaml", unknown), "--nodes", files("nodes.yaml", real_node("h200")))
    assert "attention = MLA  (config.json)" in run(capsys, *arguments, "--model-config", str(config))[1]
    assert "MLA" not in run(capsys, *arguments)[1]
    config.write_text("[]", "utf-8")
    assert run(capsys, *arguments, "--model-config", str(config))[0] == 2


def test_rules_of_the_cluster_are_followed_and_broken_ones_named(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rule = {
        "component": "MoE",
        "kind": "choice",
        "backend": "DEEPGEMM",
        "because": "We measured.",
        "source": "us",
        "when": {"versions": ">=0.20"},
    }
    text = yaml.safe_dump([{"id": "ours", **rule}, {"id": "half"}])
    rules = files("rules.yaml", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rules"}, "data": {"a": text}})
    arguments = ("-f", files("cr.yaml", manifest()), "--nodes", files("nodes.yaml", real_node("h200")))
    status, out, err = run(capsys, *arguments, "--rules", rules, "-o", "json")
    moe = next(choice for choice in json.loads(out)["plan"]["backends"] if choice["component"] == "MoE")
    assert (status, moe["backend"], moe["source"]) == (0, "DEEPGEMM", "ours: us")
    assert err == "Warning: rule half: component is missing. The rule is ignored.\n"
    assert "neither a ConfigMap nor a list of rules" in run(capsys, *arguments, "--rules", files("none.yaml", manifest()))[2]


def test_the_page_of_a_refusal_names_what_there_is(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "-f", files("cr.yaml", manifest()), "--nodes", files("nodes.yaml", real_node("l40s")))
    assert status == 1
    assert "1 node with 4x NVIDIA L40S (sm_89)" in out


@pytest.mark.parametrize("wrap", ["List", "NodeList", "documents", "json"])
def test_nodes_come_in_every_form_that_kubectl_writes(files: Any, capsys: pytest.CaptureFixture[str], wrap: str) -> None:
    node = real_node("h200")
    forms: dict[str, list[Any]] = {
        "List": [{"apiVersion": "v1", "kind": "List", "items": [{"kind": "StorageClass", "metadata": {"name": "x"}}, node]}],
        "NodeList": [
            {"apiVersion": "v1", "kind": "NodeList", "items": [{k: v for k, v in node.items() if k not in ("kind", "apiVersion")}]}
        ],
        "documents": [node, None, {"kind": "Pod", "metadata": {"name": "x"}}],
        "json": [json.dumps({"apiVersion": "v1", "kind": "List", "items": [node]})],
    }
    status, out, _ = run(capsys, "-f", files("cr.yaml", manifest()), "--nodes", files("nodes.yaml", *forms[wrap]), "-o", "json")
    assert (status, json.loads(out)["plan"]["product"]) == (0, "NVIDIA-H200")


def test_standard_input_is_a_dash(files: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO(yaml.safe_dump(manifest()).encode())

    monkeypatch.setattr(sys, "stdin", Input())
    assert run(capsys, "-f", "-", "--nodes", files("nodes.yaml", real_node("h200")))[0] == 0


def test_one_of_several_is_chosen_by_name(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path, nodes = files("cr.yaml", manifest("one"), manifest("two")), files("nodes.yaml", real_node("h200"))
    status, _, err = run(capsys, "-f", path, "--nodes", nodes)
    assert status == 2
    assert "one, two" in err
    assert "Add the name of one of them" in err
    assert run(capsys, "-f", path, "--nodes", nodes, "two")[0] == 0
    assert "only one, two" in run(capsys, "-f", path, "--nodes", nodes, "three")[2]


@pytest.mark.parametrize(
    ("content", "want"),
    [
        ("a: b: c", "line 1, column 5: this is not valid YAML"),
        ("kind: Pod", "contains no VLLMDeployment"),
        ("just words", "is a string, not a Kubernetes object"),
        ("", "contains no VLLMDeployment"),
        ("\0", "not valid YAML"),
        (yaml.safe_dump(manifest(acelerator={})), "did you mean accelerator?"),
        (yaml.safe_dump(manifest(accelerator={"uuids": ["GPU-1"], "allocation": "DevicePlugin"})), "only with DRA"),
        (yaml.safe_dump(manifest(cache={"claimName": "a", "volume": {}})), "not both"),
        (yaml.safe_dump(manifest(replicas="two")), "spec.replicas"),
        (yaml.safe_dump({**manifest(), "apiVersion": "vllm-operator.dev/v2"}), "must be vllm-operator.dev/v1alpha1"),
        (yaml.safe_dump({**manifest(), "metadata": {"name": "demo", "labels": ["a"]}}), "metadata.labels: "),
        (yaml.safe_dump({**manifest(), "status": {"url": 5}}), "status.url: "),
    ],
)
def test_bad_input_is_named(files: Any, capsys: pytest.CaptureFixture[str], content: str, want: str) -> None:
    status, out, err = run(capsys, "-f", files("cr.yaml", content))
    assert (status, out) == (2, "")
    assert want in err
    assert "Traceback" not in err


def test_files_that_are_not_there_or_not_text(files: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "-f", str(tmp_path / "none.yaml"))
    assert (status, "No such file" in err) == (2, True)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not a text file" in run(capsys, "-f", str(binary))[2]
    assert "Is a directory" in run(capsys, "-f", files("cr.yaml", manifest()), "--nodes", str(tmp_path))[2]


def test_a_reader_that_goes_away_is_no_error(files: Any) -> None:
    command = [
        sys.executable,
        "-m",
        "vllm_operator",
        "plan",
        "-f",
        files("cr.yaml", manifest()),
        "--nodes",
        files("n.yaml", real_node("h200")),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_only_one_file_can_be_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO(yaml.safe_dump(manifest()).encode())

    monkeypatch.setattr(sys, "stdin", Input())
    status, _, err = run(capsys, "-f", "-", "--nodes", "-")
    assert (status, "only one of" in err) == (2, True)
