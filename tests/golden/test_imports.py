"""Ten deployments as other tools write them become VLLMDeployments that can be planned; what was done with each setting is told."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.fake_cluster import FakeCluster
from support.gpus import machines_of_the_examples
from support.plans import planned
from vllm_operator.__main__ import main
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.cli.imports.engine import ImportRefusedError, read_command_line
from vllm_operator.cli.imports.sources import find_engines
from vllm_operator.cli.imports.translation import translate

FOLDER = Path(__file__).parent / "imports"
SOURCES = sorted(path for path in FOLDER.glob("*.yaml"))
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str | Path) -> tuple[int, str, str]:
        status = main(["import", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def deployment(*words: str, pod: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    engine = {"name": "vllm", "image": "vllm/vllm-openai:v0.20.1", "command": list(words), **container}
    return {"kind": "Deployment", "metadata": {"name": "a"}, "spec": {"template": {"spec": {"containers": [engine], **(pod or {})}}}}


def outcome_of(manifest: dict[str, Any]) -> str:
    """What planning says, on one node of each kind."""
    nodes = machines_of_the_examples()
    for node in nodes:
        node["metadata"]["labels"]["pool"] = "gpu"
    outcome = planned(VLLMDeployment.parse({**manifest, "metadata": {**manifest["metadata"], "generation": 1}}), *nodes)
    notes = outcome.plan.notes if outcome.plan is not None else [outcome.refusal.message if outcome.refusal else ""]
    return "\n".join([f"{manifest['metadata']['name']}: {outcome.planned.reason}", *(f"  {note}" for note in notes)])


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_deployment_of_another_tool(source: Path, run: Run, golden: Callable[[Path, str], None]) -> None:
    status, out, report = run(source)
    assert status == 0
    plans = "\n".join(map(outcome_of, yaml.safe_load_all(out)))
    golden(FOLDER / f"{source.stem}.txt", f"{out}\n{report}\n{plans}\n")


def test_there_are_ten_sources_and_no_secret_in_what_is_written(run: Run) -> None:
    assert len(SOURCES) == 10
    for source in SOURCES:
        assert "plain-text" not in "".join(run(source)[1:])


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([{"kind": "Service"}], "no engine was found"),
        ([deployment("vllm", "serve", "/data/model")], "Add --model hf://"),
        ([deployment("vllm", "serve", "--port", "1")], "names no model"),
        ([deployment("vllm", "serve", "a/b", "--seed", "$(SEED)")], "uses the variable SEED"),
        ([deployment("sh", "-c", "echo vllm; sleep 1", image="vllm/vllm-openai")], "does not start vLLM with one command"),
        ([deployment("sh", "-c", "vllm serve 'a/b")], "cannot be read"),
        ([deployment("vllm", "serve", "a/b", resources={"limits": {"amd.com/gpu": 1}})], "NVIDIA GPUs only"),
        ([{"kind": "InferenceService", "apiVersion": "inference.llmkube.dev/v1alpha1", "metadata": {"name": "x"}}], "llamacpp, not vllm"),
        (
            [{"kind": "InferenceService", "apiVersion": "inference.llmkube.dev/v1", "spec": {"runtime": "vllm", "modelRef": "m"}}],
            "Add it to the file",
        ),
        (
            [
                {
                    "kind": "InferenceService",
                    "apiVersion": "serving.kserve.io/v1beta1",
                    "spec": {"predictor": {"model": {"storageUri": "s3://a/b"}}},
                }
            ],
            "the model is at s3://a/b",
        ),
    ],
)
def test_what_cannot_be_imported_says_why(objects: list[dict[str, Any]], said: str, tmp_path: Path, run: Run) -> None:
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(objects), "utf-8")
    status, out, err = run(tmp_path / "objects.yaml")
    assert (status, out) == (2, "")
    assert said in err


def test_a_model_that_the_operator_cannot_read_can_be_given(tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(deployment("vllm", "serve", "/data/model")), "utf-8")
    model = yaml.safe_load(run(tmp_path / "a.yaml", "--model", "pvc://models/llama")[1])["spec"]["model"]
    assert model == {"uri": "pvc://models/llama", "servedName": "/data/model"}


def test_a_deployment_of_the_cluster_is_imported_without_what_the_api_server_adds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    added = {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30}
    live = deployment("vllm", "serve", "a/b", pod=added, imagePullPolicy="IfNotPresent")
    cluster = FakeCluster()
    cluster.put({**live, "apiVersion": "apps/v1", "metadata": {"name": "a", "namespace": "models"}})

    @asynccontextmanager
    async def connected(what: str) -> AsyncIterator[FakeCluster]:
        yield cluster

    monkeypatch.setattr("vllm_operator.cli.live.connected", connected)
    status, out, report = run("deployment/a", "-n", "models")
    assert status == 0
    assert yaml.safe_load(out)["metadata"] == {"name": "a", "namespace": "models"}
    assert set(yaml.safe_load(out)["spec"]) == {"model", "engine"}
    assert "grace period" not in report


def test_an_engine_without_a_gpu_is_told_that_it_gets_one(tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(deployment("vllm", "serve", "a/b")), "utf-8")
    status, out, report = run(tmp_path / "a.yaml")
    assert status == 0
    assert "accelerator" not in yaml.safe_load(out)["spec"]
    assert "The manifest requests no GPU." in report


@pytest.mark.parametrize(
    ("words", "model", "flags"),
    [
        (["vllm", "serve", "a/b", "--seed", "7"], "a/b", {"--seed": ("7",)}),
        (["/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server", "--model=a/b"], None, {"--model": ("a/b",)}),
        (
            ["--model", "a/b", "--max_model_len=8", "--trust-remote-code"],
            None,
            {"--model": ("a/b",), "--max-model-len": ("8",), "--trust-remote-code": ()},
        ),
        (["bash", "-lc", "set -e; vllm serve a/b \\\n  --lora-modules x=/x y=/y"], "a/b", {"--lora-modules": ("x=/x", "y=/y")}),
        (["vllm", "serve", "a/b", "--x", '{"a": "$(no)"}', "-1"], "a/b", {"--x": ('{"a": "$(no)"}', "-1")}),
    ],
)
def test_command_lines_in_their_forms(words: list[str], model: str | None, flags: dict[str, tuple[str, ...]]) -> None:
    line = read_command_line(words, {})
    assert (line.model, dict(line.flags)) == (model, flags)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
FIELDS = st.sampled_from(["command", "args", "env", "resources", "volumeMounts", "name", "image", "limits", "nvidia.com/gpu"])


@given(st.dictionaries(FIELDS, JSON), st.dictionaries(st.sampled_from(["volumes", "nodeSelector", "tolerations", "initContainers"]), JSON))
def test_any_deployment_is_imported_or_refused(container: dict[str, Any], pod: dict[str, Any]) -> None:
    manifest = {"kind": "Deployment", "metadata": {"name": "a"}, "spec": {"template": {"spec": {**pod, "containers": [container]}}}}
    try:
        for engine in find_engines([manifest]):
            translate(engine, load_catalog(), model="hf://a/b")
    except ImportRefusedError:
        pass
