"""Deployments as other tools write them become VLLMDeployments that can be planned; what was done with each setting is told."""

import asyncio
import json
from collections.abc import Callable
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


def storm_service(*roles: dict[str, Any]) -> dict[str, Any]:
    template = deployment("vllm", "serve", "a/b")["spec"]["template"]
    return {
        "kind": "StormService",
        "metadata": {"name": "s"},
        "spec": {"template": {"spec": {"roles": [{"template": template, **each} for each in roles]}}},
    }


def dynamo_graph(services: dict[str, dict[str, Any]], *words: str) -> dict[str, Any]:
    main = {"mainContainer": {"command": ["sh", "-c", " ".join(("exec python3 -m dynamo.vllm --model a/b", *words))]}}
    services = {name: {"extraPodSpec": main, **each} for name, each in services.items()}
    return {"kind": "DynamoGraphDeployment", "metadata": {"name": "d"}, "spec": {"services": services}}


GPU = {"limits": {"nvidia.com/gpu": "1"}}
PLATFORMS = (
    *(("VLLMRuntime", "a"), ("StormService", "a"), ("DynamoGraphDeployment", "a"), ("Model", "kubeai.org")),
    *(("Workspace", "kaito.sh"), ("InferenceSet", "kaito.sh")),
)
SECRET = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "chat"}}}


def imported(run: Run, folder: Path, *manifests: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The spec that is written, and the report in one line."""
    (folder / "a.yaml").write_text(yaml.safe_dump_all(manifests), "utf-8")
    status, out, report = run(folder / "a.yaml")
    assert status == 0, report
    return yaml.safe_load(out)["spec"], " ".join(report.split())


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


def test_no_secret_is_in_what_is_written(run: Run) -> None:
    assert len(SOURCES) == 27
    for source in SOURCES:
        assert "plain-text" not in "".join(run(source)[1:])


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([{"kind": "Service"}], "no engine was found"),
        ([{**deployment("vllm", "serve", "a/b"), "kind": "DaemonSet"}], "vLLM runs in DaemonSet a, which this command does not read"),
        ([{"kind": "RayService", "metadata": {"name": "r"}, "spec": {"groups": [{"containers": [{"image": "vllm"}]}]}}], "RayService r"),
        ([{"kind": "HelmRelease", "metadata": {"name": "h"}}], "Render HelmRelease h first"),
        ([deployment("text-generation-launcher", image="text-generation-inference", resources=GPU)], "No vLLM was found in Deployment a"),
        ([{"kind": "LLMInferenceService", "apiVersion": "inference.llm-d.ai/v1"}], "No vLLM was found in LLMInferenceService"),
        ([{"services": {"chat": {"image": "vllm/vllm-openai"}}}], "vLLM runs in a Compose file"),
        ([{"run": "vllm serve a/b"}], "vLLM runs in a SkyPilot task"),
        ([{"kind": "Workspace", "metadata": {"name": "w"}}], "No vLLM was found in Workspace w. A Deployment that runs in the cluster"),
        ([{"kind": "Model", "apiVersion": "kubeai.org/v1", "spec": {"engine": "OLlama"}}], "has the engine OLlama, not VLLM"),
        (
            [{"kind": "Workspace", "apiVersion": "kaito.sh/v1beta1", "inference": {"preset": {"name": "own-phi"}}}],
            "the model is at own-phi",
        ),
        ([{"modelArtifacts": {"uri": "hf://a/b"}, "decode": {"accelerator": {"type": "amd"}}}], "of the type amd"),
        ([deployment("vllm", "serve", "a/b", "--seed", "$(S)", env=[SECRET])], "uses the variable S"),
        ([deployment("vllm", "serve", "/data/model")], "Add --model hf://"),
        ([deployment("vllm", "serve", "--port", "1")], "names no model"),
        ([deployment("vllm", "serve", "a/b", image="${IMAGE}")], "fill in the variables of this template first (envsubst)"),
        ([deployment("sh", "-c", "vllm serve a/b -tp $(nvidia-smi -L | wc -l) --seed 1")], "uses the variable $(nvidia-smi-L|wc-l)"),
        ([deployment("sh", "-c", "vllm serve a/b -tp $(( COUNT * 2 ))")], "uses the variable $((COUNT*2))"),
        ([deployment("vllm", "serve", "a/b", "--seed", "$(SEED)")], "uses the variable SEED"),
        ([deployment("sh", "-c", "echo vllm; sleep 1", image="vllm/vllm-openai")], "does not start vLLM with one command"),
        ([deployment("sh", "-c", "vllm serve 'a/b")], "cannot be split into words"),
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
                    "spec": {"predictor": {"model": {"storageUri": "https://a/b"}}},
                }
            ],
            "the model is at https://a/b",
        ),
    ],
)
def test_what_cannot_be_imported_says_why(objects: list[dict[str, Any]], said: str, tmp_path: Path, run: Run) -> None:
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(objects), "utf-8")
    status, out, err = run(tmp_path / "objects.yaml")
    assert (status, out) == (2, "")
    assert said in err


def test_engines_that_only_prefill_are_not_imported(tmp_path: Path, run: Run) -> None:
    _, report = imported(run, tmp_path, storm_service({"name": "prefill"}, {"name": "decode"}))
    assert "so the role prefill is not imported" in report
    spec, report = imported(run, tmp_path, dynamo_graph({"Decode": {}, "First": {"subComponentType": "prefill"}}, "--max-model-len 4096"))
    assert spec["engine"]["args"] == [{"name": "max-model-len", "value": "4096"}]
    assert "so the service First is not imported" in report


def test_each_engine_of_an_object_has_a_name_of_its_own() -> None:
    graph, storm = dynamo_graph({"Chat": {}, "Code": {}}), storm_service({"name": "chat", "replicas": 3}, {"name": "code"})
    assert [engine.name for engine in find_engines([graph, storm])] == ["d-Chat", "d-Code", "s-chat", "s-code"]


def test_a_model_that_the_operator_cannot_read_can_be_given(tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(deployment("vllm", "serve", "/data/model")), "utf-8")
    model = yaml.safe_load(run(tmp_path / "a.yaml", "--model", "pvc://models/llama")[1])["spec"]["model"]
    assert model == {"uri": "pvc://models/llama", "servedName": "/data/model"}


def test_a_deployment_of_the_cluster_is_imported_without_what_the_api_server_adds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    added = {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30}
    live = deployment("vllm", "serve", "a/b", pod=added, imagePullPolicy="IfNotPresent")
    cluster = FakeCluster()
    cluster.put({**live, "apiVersion": "apps/v1", "metadata": {"name": "a", "namespace": "models"}})
    monkeypatch.setattr("vllm_operator.cli.live.with_client", lambda _arguments, _what, use: asyncio.run(use(cluster)))
    status, out, report = run("deployment/a", "-n", "models")
    assert status == 0
    assert yaml.safe_load(out)["metadata"] == {"name": "a", "namespace": "models"}
    assert set(yaml.safe_load(out)["spec"]) == {"model", "engine"}
    assert "grace period" not in report


def test_an_object_store_and_a_key_from_a_secret_are_kept(tmp_path: Path, run: Run) -> None:
    model: dict[str, Any] = {
        "modelFormat": {"name": "huggingface"},
        "storageUri": "s3://bucket/models/qwen",
        "args": ["--api-key", "$(KEY)"],
    }
    model |= {"env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api"}}}]}
    model |= {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    service = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "qwen"}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({**service, "spec": {"predictor": {"model": model}}}), "utf-8")
    status, out, _ = run(tmp_path / "a.yaml")
    spec = yaml.safe_load(out)["spec"]
    assert (status, spec["model"], spec["auth"]) == (
        0,
        {"uri": "s3://bucket/models/qwen"},
        {"apiKeySecretRef": {"name": "keys", "key": "api"}},
    )


def test_a_key_of_a_variable_in_a_script_is_kept(tmp_path: Path, run: Run) -> None:
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api"}}}
    written = deployment("sh", "-c", "vllm serve a/b --api-key $KEY", env=[key])
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(written), "utf-8")
    assert yaml.safe_load(run(tmp_path / "a.yaml")[1])["spec"]["auth"] == {"apiKeySecretRef": {"name": "keys", "key": "api"}}


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


def test_all_names_of_the_model_are_kept(tmp_path: Path, run: Run) -> None:
    spec, report = imported(
        run, tmp_path, deployment("vllm", "serve", "a/b", "--served-model-name", "x", "y", "--served-model-name", "p", "q")
    )
    assert (spec["model"]["servedName"], spec["model"]["aliases"]) == ("p", ["q"])
    assert "The other name q of the model is spec.model.aliases." in report


@pytest.mark.parametrize("flag", ["--api-key", "--hf-token"])
def test_a_secret_for_a_flag_is_named_and_its_value_is_not_written(flag: str, tmp_path: Path, run: Run) -> None:
    spec, _ = imported(run, tmp_path, deployment("vllm", "serve", "a/b", flag, "$(S)", env=[SECRET]))
    found = spec["auth"]["apiKeySecretRef"] if flag == "--api-key" else spec["model"]["tokenSecretRef"]
    assert found == {"name": "keys", "key": "chat"}
    assert "env" not in spec["engine"]
    spec, report = imported(run, tmp_path, deployment("vllm", "serve", "a/b", f"{flag}=plain-text"))
    assert "plain-text" not in f"{spec}{report}"
    assert "into a Secret" in report


def test_further_keys_are_reported(tmp_path: Path, run: Run) -> None:
    spec, report = imported(run, tmp_path, deployment("vllm", "serve", "a/b", "--api-key", "$(S)", "other-key", env=[SECRET]))
    assert spec["auth"]["apiKeySecretRef"]["name"] == "keys"
    assert "--api-key: the values after the first." in report
    assert "other-key" not in f"{spec}{report}"


def test_a_key_in_a_variable_is_not_written(tmp_path: Path, run: Run) -> None:
    spec, report = imported(run, tmp_path, deployment("vllm", "serve", "a/b", env=[{"name": "VLLM_API_KEY", "value": "plain-text"}]))
    assert "plain-text" not in f"{spec}{report}"
    assert "VLLM_API_KEY: its value does not belong in a manifest" in report


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_model_in_an_object_store_is_kept(scheme: str, tmp_path: Path, run: Run) -> None:
    spec, report = imported(run, tmp_path, deployment("vllm", "serve", f"{scheme}://bucket/model", "--served-model-name=m"))
    assert spec["model"] == {"uri": f"{scheme}://bucket/model", "servedName": "m"}
    assert "spec.model.facts.weightSize" in report


def test_adapters_on_the_command_line(tmp_path: Path, run: Run) -> None:
    pod = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "models"}}]}
    mount = [{"name": "v", "mountPath": "/models"}]
    modules = ["sql=acme/sql-lora", '{"name": "law", "path": "/models/law"}']
    words = ["vllm", "serve", "/models/base", "--enable-lora", "--max-loras=2", "--lora-modules"]
    spec, report = imported(run, tmp_path, deployment(*words, *modules, pod=pod, volumeMounts=mount))
    assert spec["adapters"] == [{"name": "sql", "uri": "hf://acme/sql-lora"}, {"name": "law", "uri": "pvc://models/law"}]
    assert spec["model"]["uri"] == "pvc://models/base"
    assert spec["engine"]["args"] == [{"name": "max-loras", "value": "2"}]
    assert "podTemplate" not in spec
    assert "--lora-modules is spec.adapters" in report
    spec, _ = imported(run, tmp_path, deployment(*words, *modules, "--chat-template=/models/chat.jinja", pod=pod, volumeMounts=mount))
    assert spec["podTemplate"]["spec"] == {"containers": [{"name": "vllm", "volumeMounts": [{"name": "model", "mountPath": "/models"}]}]}
    words = ["vllm", "serve", "a/b", "--chat-template=/models/chat.jinja", "--lora-modules", "law=/models/law"]
    _, report = imported(run, tmp_path, deployment(*words, pod=pod, volumeMounts=mount))
    assert "is no longer mounted at /models. Change /models/chat.jinja." in report
    spec, _ = imported(run, tmp_path, deployment("vllm", "serve", "a/b", "--enable-lora", "--lora-modules", "x=/elsewhere"))
    assert "adapters" not in spec
    assert {"name": "lora-modules", "value": "x=/elsewhere"} in spec["engine"]["args"]


def test_variables_of_a_script_are_split_into_words(tmp_path: Path, run: Run) -> None:
    more = [{"name": "MORE", "value": "--max-model-len 4096 --override '{\"a\": 1}'"}]
    words = ["bash", "-c", "exec vllm serve a/b $MORE"]
    spec, _ = imported(run, tmp_path, deployment(*words, env=more, image="vllm/vllm-openai:latest"))
    assert {"name": "max-model-len", "value": "4096"} in spec["engine"]["args"]


def test_what_a_pod_says_is_kept_in_the_pod_template(tmp_path: Path, run: Run) -> None:
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": True,
        "hostPID": True,
        "nodeName": "gpu-1",
        "initContainers": [{"name": "proxy", "image": "p", "restartPolicy": "Always"}, {"name": "download", "image": "d"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}],
    }
    manifest = deployment("vllm", "serve", "a/b", pod=pod, volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}])
    manifest["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    manifest["spec"] |= {"selector": {"matchLabels": {"app": "a"}}}
    manifest["spec"]["template"]["metadata"] = {"labels": {"app": "a", "app.kubernetes.io/name": "a", "team": "b"}}
    spec, report = imported(run, tmp_path, manifest, {"kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}})
    template = spec["podTemplate"]
    assert template["metadata"] == {"labels": {"kueue.x-k8s.io/queue-name": "team", "team": "b"}}
    assert template["spec"] == {
        "automountServiceAccountToken": False,
        "hostPID": True,
        "nodeName": "gpu-1",
        "initContainers": [pod["initContainers"][0]],
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}],
    }
    assert "Labels of selectors (app, app.kubernetes.io/name)" in report
    assert "The init container download" in report
    assert "Not imported: HorizontalPodAutoscaler h." in report


def test_a_volume_does_not_replace_one_of_the_operator(tmp_path: Path, run: Run) -> None:
    proxy = {"name": "proxy", "image": "p", "volumeMounts": [{"name": "cache", "mountPath": "/c"}]}
    manifest = deployment("vllm", "serve", "a/b", volumeMounts=[{"name": "cache", "mountPath": "/data"}])
    manifest["spec"]["template"]["spec"] |= {"volumes": [{"name": "cache", "emptyDir": {}}]}
    manifest["spec"]["template"]["spec"]["containers"].append(proxy)
    template = imported(run, tmp_path, manifest)[0]["podTemplate"]["spec"]
    assert template["volumes"] == [{"name": "imported-cache", "emptyDir": {}}]
    assert [each["volumeMounts"][0]["name"] for each in template["containers"]] == ["imported-cache", "imported-cache"]


def test_the_service_and_the_rollout_of_a_deployment_are_kept(tmp_path: Path, run: Run) -> None:
    manifest = deployment("vllm", "serve", "a/b")
    manifest["spec"]["template"]["metadata"] = {"labels": {"app": "a"}}
    manifest["spec"] |= {
        "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "minReadySeconds": 5,
    }
    metadata = {"name": "a", "annotations": {"example.com/internal": "true"}}
    service = {
        "kind": "Service",
        "metadata": metadata,
        "spec": {"type": "LoadBalancer", "selector": {"app": "a"}, "loadBalancerClass": "x/y"},
    }
    spec, report = imported(run, tmp_path, manifest, service)
    assert spec["rollout"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["service"] == {"type": "LoadBalancer", "annotations": {"example.com/internal": "true"}, "loadBalancerClass": "x/y"}
    assert "spec.minReadySeconds: a Pod counts as available once it is ready" in report
    manifest["spec"]["strategy"] = {"type": "Recreate"}
    assert imported(run, tmp_path, manifest)[0]["rollout"] == {"strategy": "Recreate"}


def test_what_kserve_passes_on_to_its_pods(tmp_path: Path, run: Run) -> None:
    lora = {"maxRank": 32, "maxAdapters": 2, "adapters": [{"name": "law", "uri": "hf://a/law:v2"}, {"name": "tax", "uri": "s3://a/tax"}]}
    annotations = {"prometheus.io/scrape": "true", "example.com/owner": "x"}
    metadata = {"name": "n", "labels": {"kueue.x-k8s.io/queue-name": "q", "team": "t"}, "annotations": annotations}
    spec = {"model": {"uri": "hf://a/b:v1", "lora": lora}, "labels": {"tier": "web"}, "template": {"containers": [{"name": "main"}]}}
    found, report = imported(
        run, tmp_path, {"kind": "LLMInferenceService", "apiVersion": "serving.kserve.io/v1alpha2", "metadata": metadata, "spec": spec}
    )
    assert found["podTemplate"]["metadata"] == {
        "labels": {"kueue.x-k8s.io/queue-name": "q", "tier": "web"},
        "annotations": {"prometheus.io/scrape": "true"},
    }
    assert found["model"] == {"uri": "hf://a/b", "revision": "v1", "servedName": "n"}
    assert found["adapters"] == [{"name": "law", "uri": "hf://a/law", "revision": "v2"}]
    assert [each["name"] for each in found["engine"]["args"]] == ["max-lora-rank", "max-loras"]
    assert "The adapter tax at s3://a/tax" in report
    spec["template"] = {"containers": [{"name": "main", "env": [{**SECRET, "name": "VLLM_ADDITIONAL_ARGS"}]}]}
    (tmp_path / "a.yaml").write_text(
        yaml.safe_dump({"kind": "LLMInferenceService", "apiVersion": "serving.kserve.io/v1alpha2", "metadata": metadata, "spec": spec}),
        "utf-8",
    )
    assert "its value is not in the manifest" in " ".join(run(tmp_path / "a.yaml")[2].split())


def test_the_pod_of_a_serving_runtime_is_merged_with_that_of_the_predictor(tmp_path: Path, run: Run) -> None:
    mount, own_mount = {"name": "templates", "mountPath": "/templates"}, {"name": "own", "mountPath": "/own"}
    engine = {"name": "kserve-container", "image": "vllm/vllm-openai:v0.20.1", "args": ["--model=/mnt/models"], "volumeMounts": [mount]}
    runtime = {
        "containers": [engine, {"name": "proxy", "image": "p"}],
        "annotations": {"a/b": "c"},
        "nodeSelector": {"pool": "h100"},
        "tolerations": [{"key": "gpu"}],
        "volumes": [{"name": "templates", "configMap": {"name": "t"}}],
    }
    predictor = {
        "model": {"runtime": "rt", "storageUri": "hf://a/b", "volumeMounts": [own_mount]},
        "nodeSelector": {"zone": "a"},
        "volumes": [{"name": "own", "emptyDir": {}}],
    }
    service = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "a"}}
    manifests = {"kind": "ServingRuntime", "metadata": {"name": "rt"}, "spec": runtime}, {**service, "spec": {"predictor": predictor}}
    spec, report = imported(run, tmp_path, *manifests)
    assert spec["podTemplate"] == {
        "metadata": {"annotations": {"a/b": "c"}},
        "spec": {
            "nodeSelector": {"pool": "h100", "zone": "a"},
            "tolerations": [{"key": "gpu"}],
            "volumes": [{"name": "templates", "configMap": {"name": "t"}}, {"name": "own", "emptyDir": {}}],
            "containers": [{"name": "vllm", "volumeMounts": [mount, own_mount]}, {"name": "proxy", "image": "p"}],
        },
    }
    assert "Unread" not in report


def test_a_service_with_another_name_is_told(tmp_path: Path, run: Run) -> None:
    manifest = deployment("vllm", "serve", "a/b")
    manifest["spec"]["template"]["metadata"] = {"labels": {"app": "a"}}
    service = {"kind": "Service", "metadata": {"name": "chat"}, "spec": {"selector": {"app": "a"}}}
    report = imported(run, tmp_path, manifest, service)[1]
    assert "Clients used the Service chat. The new one has the name of the VLLMDeployment, a." in report


def test_fields_that_nothing_reads_are_told(tmp_path: Path, run: Run) -> None:
    manifest = deployment("vllm", "serve", "a/b", livenessProbe={"httpGet": {"path": "/health"}}, readinessProbe={"periodSeconds": 5})
    manifest["metadata"] |= {"labels": {"team": "x"}, "uid": "1", "annotations": {"deployment.kubernetes.io/revision": "1"}}
    manifest["spec"] |= {"future": "x", "revisionHistoryLimit": 10}
    templates = {"kind": "ConfigMap", "metadata": {"name": "templates"}, "data": {"a": "b"}}
    report = imported(run, tmp_path, manifest, templates)[1]
    assert "Unread: Deployment a: metadata.labels, spec.future." in report
    assert "Not imported: ConfigMap templates. Keep what the engine uses." in report
    lora = {"adapters": [{"name": "law", "uri": "hf://a/law", "memory": "1Gi"}]}
    engine = {"name": "main", "image": "vllm/vllm-openai:v0.30.0", "stdin": True}
    resources = {"limits": {"nvidia.com/gpu": 1}}
    template = {"containers": [{**engine, "resources": resources, "lora": {"a": {"b": 1}}}]}
    llm = {"model": {"uri": "hf://a/b", "lora": lora}, "template": template}
    report = imported(
        run, tmp_path, {"kind": "LLMInferenceService", "apiVersion": "serving.kserve.io/v1alpha2", "metadata": {"name": "n"}, "spec": llm}
    )[1]
    assert "LLMInferenceService n: spec.model.lora.adapters[law].memory, spec.template.containers[main].lora. Advice" in report
    stack = {"servingEngineSpec": {"modelSpec": [{"name": "m", "modelURL": "a/b", "hf_token": {"secretName": "s", "future": "x"}}]}}
    assert "values: servingEngineSpec.modelSpec[m].hf_token.future. Advice" in imported(run, tmp_path, stack)[1]


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


VALUES = st.dictionaries(
    st.sampled_from(
        [
            *("vllmConfig", "env", "resources", "requestGPU", "nodeSelectorTerms", "affinity", "tolerations", "extraVolumes", "shmSize"),
            *("extraVolumeMounts", "initContainer", "enableLoRA", "hf_token", "podAnnotations", "pvcStorage", "pvcAccessMode", "modelURL"),
            *(
                "deploymentConfig",
                "services",
                "engine",
                "url",
                "inference",
                "decode",
                "replicas",
                "containers",
                "image",
                "acceleratorTypes",
            ),
            *("vllmApiKey", "configs", "labels", "containerSecurityContext", "template", "lora", "model", "adapters", "parallelism"),
        ]
    ),
    JSON,
)


@given(VALUES, VALUES)
def test_any_values_and_objects_of_other_tools_are_imported_or_refused(values: dict[str, Any], more: dict[str, Any]) -> None:
    stack = {"servingEngineSpec": {**more, "modelSpec": [{"name": "a", **values}]}, "loraAdapters": [{"adapterSource": more}]}
    llm = {"kind": "LLMInferenceService", "apiVersion": "serving.kserve.io/v1alpha2", "metadata": more, "spec": values}
    predictor = {"kind": "InferenceService", "apiVersion": "serving.kserve.io/v1", "metadata": more, "spec": {"predictor": values}}
    others: list[dict[str, Any]] = [{"kind": kind, "apiVersion": f"{group}/v1", "spec": values} for kind, group in PLATFORMS]
    others += [stack, llm, predictor, {"kind": "StatefulSet", "spec": values}, {**values, "modelArtifacts": values}]
    for manifest in others:
        try:
            for engine in find_engines([manifest]):
                translate(engine, load_catalog(), model="hf://a/b")
        except ImportRefusedError:
            pass


@pytest.mark.parametrize(
    ("image", "devices"),
    [("vllm/vllm-openai-rocm:v0.28.0", "AMD GPUs"), ("rocm/vllm:latest", "AMD GPUs"), ("vllm/vllm-openai-cpu:v0.28.0", "CPUs")],
)
def test_an_image_for_other_devices_is_refused(image: str, devices: str, tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(deployment("vllm", "serve", "Qwen/Qwen3-8B", image=image)), "utf-8")
    status, out, report = run(tmp_path / "a.yaml")
    assert (status, out) == (2, "")
    assert f"the image {image} is for {devices}. The operator supports NVIDIA GPUs only" in report


def test_the_cache_that_kserve_offloads_and_its_traces_become_flags(tmp_path: Path, run: Run) -> None:
    spec = {
        "model": {"uri": "hf://a/b"},
        "kvCacheOffloading": {"cpu": "8Gi", "evictionPolicy": "lru", "secondary": [{"fileSystem": {"emptyDir": {"size": "1Gi"}}}]},
        "tracing": {"exporterEndpoint": "http://collector:4317", "sampler": "always_on"},
        "rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1},
        "template": {"containers": [{"name": "main", "image": "vllm/vllm-openai:v0.33.0"}]},
    }
    found, report = imported(
        run, tmp_path, {"kind": "LLMInferenceService", "apiVersion": "serving.kserve.io/v1alpha2", "metadata": {"name": "n"}, "spec": spec}
    )
    flags = {each["name"]: each.get("value") for each in found["engine"]["args"]}
    offloading = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8 << 30, "eviction_policy": "lru"}
    assert json.loads(flags["kv-transfer-config"])["kv_connector_extra_config"] == offloading
    assert (flags["otlp-traces-endpoint"], flags["collect-detailed-traces"]) == ("http://collector:4317", "all")
    assert found["rollout"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert "spec.kvCacheOffloading.secondary: mount the volume with spec.podTemplate" in report
    assert "spec.tracing.sampler: set the variable OTEL_TRACES_SAMPLER in spec.engine.env" in report


def test_what_llmkube_sets_for_vllm_is_kept(tmp_path: Path, run: Run) -> None:
    spec = {
        "runtime": "vllm",
        "modelRef": "m",
        "image": "vllm/vllm-openai:v0.25.1",
        "parallelSlots": 8,
        "contextSize": 4096,
        "podLabels": {"team": "a"},
        "extraVolumes": [{"name": "templates", "configMap": {"name": "templates"}}],
        "extraVolumeMounts": [{"name": "templates", "mountPath": "/templates"}],
        "vllmConfig": {"kvCacheCustomDtype": "fp8_e5m2", "speculative": {"enabled": True, "model": "a/draft"}},
    }
    model: dict[str, Any] = {
        "kind": "Model",
        "metadata": {"name": "m"},
        "spec": {"source": "a/b", "hardware": {"gpu": {"resourceName": "nvidia.com/mig-1g.10gb"}}},
    }
    engine = {"kind": "InferenceService", "apiVersion": "inference.llmkube.dev/v1alpha1", "metadata": {"name": "n"}, "spec": spec}
    found, report = imported(run, tmp_path, engine, model)
    flags = {each["name"]: each.get("value") for each in found["engine"]["args"]}
    assert (flags["max-num-seqs"], flags["kv-cache-dtype"]) == ("8", "fp8_e5m2")
    assert json.loads(flags["speculative-config"]) == {"model": "a/draft"}
    assert found["podTemplate"]["metadata"]["labels"] == {"team": "a"}
    assert found["podTemplate"]["spec"]["volumes"] == spec["extraVolumes"]
    assert found["accelerator"]["mig"] == {"profile": "1g.10gb"}
    assert "Dropped" not in report
    assert "Unread" not in report
    model["spec"]["hardware"]["gpu"] = {"vendor": "amd"}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([engine, model]), "utf-8")
    assert "the GPUs are of the type amd. The operator supports NVIDIA GPUs only" in run(tmp_path / "a.yaml")[2]


def test_settings_of_newer_charts_of_the_production_stack(tmp_path: Path, run: Run) -> None:
    model = {
        "name": "m",
        "repository": "lmcache/vllm-openai",
        "tag": "v0.4.2",
        "modelURL": "a/b",
        "modelRevision": "v2",
        "podLabels": {"team": "a"},
        "pvcExistingClaimName": "weights",
        "pvcStorage": "50Gi",
        "lmcacheConfig": {"enabled": True, "cpuOffloadingBufferSize": 20, "kvRole": "kv_producer", "enablePD": True},
    }
    found, report = imported(run, tmp_path, {"servingEngineSpec": {"env": [{"name": "A", "value": "b"}], "modelSpec": [model]}})
    assert found["model"] == {"uri": "hf://a/b", "revision": "v2"}
    assert found["weights"] == {"claimName": "weights"}
    assert found["podTemplate"]["metadata"]["labels"] == {"team": "a"}
    assert {each["name"]: each["value"] for each in found["engine"]["env"]} == {
        "A": "b",
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "20",
    }
    assert '"kv_role": "kv_producer"' in found["engine"]["args"][0]["value"]
    assert "lmcacheConfig.enablePD: an engine does both prefill and decode here" in report
    assert "offloads its KV cache with LMCache" in report


def with_kind(kind: str, group: str, manifest: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """The Deployment as another object with a Pod template."""
    return {**manifest, "kind": kind, "apiVersion": f"{group}/v1", "spec": {**manifest["spec"], **spec}}


POD = deployment("vllm", "serve", "a/b", "--seed=7", resources=GPU)["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    "manifest",
    [
        with_kind("StatefulSet", "apps", deployment("vllm", "serve", "a/b", "--seed=7", resources=GPU)),
        with_kind("Service", "serving.knative.dev", deployment("vllm", "serve", "a/b", "--seed=7", resources=GPU)),
        {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": POD},
        {"kind": "LeaderWorkerSet", "metadata": {"name": "a"}, "spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": POD}}}},
    ],
    ids=lambda manifest: manifest["kind"],
)
def test_an_engine_of_another_workload(manifest: dict[str, Any], tmp_path: Path, run: Run) -> None:
    spec, report = imported(run, tmp_path, manifest)
    assert (spec["model"], spec["accelerator"]) == ({"uri": "hf://a/b"}, {"count": 1})
    assert spec["engine"]["args"] == [{"name": "seed", "value": "7"}]
    assert "Unread" not in report


def test_the_first_volume_of_a_stateful_set_is_mounted(tmp_path: Path, run: Run) -> None:
    mounted = deployment("vllm", "serve", "/models/base", volumeMounts=[{"name": "data", "mountPath": "/models"}])
    claims = [{"metadata": {"name": "data"}}]
    spec, _ = imported(run, tmp_path, with_kind("StatefulSet", "apps", mounted, volumeClaimTemplates=claims))
    assert spec["model"] == {"uri": "pvc://data-a-0/base", "servedName": "/models/base"}


def test_a_group_of_pods_is_an_engine_on_several_nodes(tmp_path: Path, run: Run) -> None:
    words = [
        "vllm",
        "serve",
        "a/b",
        "-tp=8",
        "--pipeline-parallel-size=2",
        "--nnodes=2",
        "--node-rank=0",
        "--master-addr=$(LWS_LEADER_ADDRESS)",
    ]
    leader = deployment(*words, resources={"limits": {"nvidia.com/gpu": 8}})["spec"]["template"]
    group = {"size": 2, "leaderTemplate": {"metadata": {"labels": {"role": "leader"}}, **leader}, "workerTemplate": {"spec": {}}}
    manifest = {"kind": "LeaderWorkerSet", "metadata": {"name": "big"}, "spec": {"replicas": 3, "leaderWorkerTemplate": group}}
    selector = {"leaderworkerset.sigs.k8s.io/name": "big", "role": "leader"}
    service = {"kind": "Service", "metadata": {"name": "big"}, "spec": {"selector": selector, "ports": [{"port": 80}]}}
    spec, report = imported(run, tmp_path, manifest, service)
    assert spec["parallelism"] == {"tensor": 8, "pipeline": 2, "nodes": 2}
    assert (spec["replicas"], spec["service"]) == (3, {"port": 80})
    assert "--master-addr: the operator starts the engine on each node itself" in report
    assert "parallel sizes need" not in report
    script = "bash /vllm-workspace/multi-node-serving.sh leader --ray_cluster_size=$(LWS_GROUP_SIZE); vllm serve a/b"
    leader["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    assert imported(run, tmp_path, manifest)[0]["parallelism"] == {"tensor": 8, "nodes": 2}


def test_variables_that_only_a_pod_or_a_secret_knows(tmp_path: Path, run: Run) -> None:
    env = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    words = ["vllm", "serve", "a/b", "--api-key=$(KEY)", '--kv-events-config={"topic": "kv@${POD_IP}"}']
    spec, _ = imported(run, tmp_path, deployment(*words, env=env, envFrom=[{"secretRef": {"name": "keys"}}]))
    assert spec["auth"] == {"apiKeySecretRef": {"name": "keys", "key": "KEY"}}
    assert spec["engine"]["args"] == [{"name": "kv-events-config", "value": '{"topic": "kv@$(POD_IP)"}'}]


def test_a_model_on_a_volume_of_another_kind(tmp_path: Path, run: Run) -> None:
    mount = [{"name": "data", "mountPath": "/data"}]
    filling = {"name": "download", "image": "d", "volumeMounts": [{"name": "data", "mountPath": "/to"}]}
    pod: dict[str, Any] = {"volumes": [{"name": "data", "hostPath": {"path": "/srv"}}], "initContainers": [filling]}
    spec, report = imported(run, tmp_path, deployment("vllm", "serve", "/data/m", volumeMounts=mount, pod=pod))
    template = spec["podTemplate"]["spec"]
    assert spec["model"]["uri"] == "pvc://data/m"
    assert template["volumes"] == [{"name": "model", "hostPath": {"path": "/srv"}}]
    assert template["initContainers"] == [{**filling, "volumeMounts": [{"name": "model", "mountPath": "/to"}]}]
    assert "the init container download, which fills a volume of the engine" in report
    pod = {"volumes": [{"name": "data", "emptyDir": {}}]}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(deployment("vllm", "serve", "/data/m", volumeMounts=mount, pod=pod)), "utf-8")
    assert "the model is at /data/m" in run(tmp_path / "a.yaml")[2]


@pytest.mark.parametrize(
    ("script", "pod"),
    [
        ("hf download a/b --local-dir /m && vllm serve /m", {}),
        ("vllm serve /m", {"initContainers": [{"command": ["sh", "-c", "huggingface-cli download --quiet a/b"]}]}),
        ("vllm serve /m", {"initContainers": [{"args": ["python", "-c", "snapshot_download('a/b', local_dir='/m')"]}]}),
    ],
)
def test_a_model_that_a_container_downloads_is_that_of_the_hub(script: str, pod: dict[str, Any], tmp_path: Path, run: Run) -> None:
    spec, report = imported(run, tmp_path, deployment("sh", "-c", script, pod=pod))
    assert spec["model"] == {"uri": "hf://a/b", "servedName": "/m"}
    assert "The model at /m is a/b of the hub" in report


@pytest.mark.parametrize(
    ("uri", "word", "found"),
    [
        ("pvc://claim", "/mnt/models/llama/8b", "pvc://claim/llama/8b"),
        ("s3://bucket/llama", "/mnt/models", "s3://bucket/llama"),
        ("hf://a/b", "/mnt/models/x", "hf://a/b"),
        ("oci://registry.example/llama:8b", "/mnt/models", "pvc://image/models"),
    ],
)
def test_where_kserve_mounts_a_model(uri: str, word: str, found: str, tmp_path: Path, run: Run) -> None:
    model = {"storageUri": uri, "image": "vllm/vllm-openai:v0.30.0", "args": [f"--model={word}"]}
    service = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "a"}}
    spec, _ = imported(run, tmp_path, {**service, "spec": {"predictor": {"model": model}}})
    assert spec["model"]["uri"] == found
    images = [{"name": "model", "image": {"reference": "registry.example/llama:8b"}}]
    assert spec.get("podTemplate", {}).get("spec", {}).get("volumes", images) == images


def test_ports_that_are_not_imported_are_told(tmp_path: Path, run: Run) -> None:
    proxy = {"name": "proxy", "image": "p", "ports": [{"containerPort": 8000}]}
    manifest = deployment("vllm", "serve", "a/b", "--port=8200")
    manifest["spec"]["template"]["metadata"] = {"labels": {"app": "a"}}
    manifest["spec"]["template"]["spec"]["containers"].append(proxy)
    ports = [{"port": 80, "nodePort": 30080}, {"name": "metrics", "port": 9090}]
    service = {"kind": "Service", "metadata": {"name": "a"}, "spec": {"selector": {"app": "a"}, "ports": ports}}
    spec, report = imported(run, tmp_path, manifest, service)
    assert spec["service"] == {"port": 80}
    assert "Service a: spec.ports.nodePort: Kubernetes chooses the port of the node." in report
    assert "Service a: the ports metrics 9090." in report
    assert "The container proxy listens on port 8000, which is the engine's port" in report


def test_a_volume_with_a_directory_of_caches_is_not_needed(tmp_path: Path, run: Run) -> None:
    pod = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "models"}}]}
    env = [{"name": "HF_HOME", "value": "/models/hub"}, {"name": "HF_HUB_OFFLINE", "value": "1"}]
    words, mount = ["vllm", "serve", "a/b", "--download-dir=/models/x"], [{"name": "v", "mountPath": "/models"}]
    spec, report = imported(run, tmp_path, deployment(*words, env=env, pod=pod, volumeMounts=mount))
    assert "podTemplate" not in spec
    assert "env" not in spec["engine"]
    assert "HF_HUB_OFFLINE: the engine downloads the model to a volume of the operator" in report
    assert "set spec.weights.claimName to models" in report
    words += ["--chat-template=/models/chat.jinja"]
    assert "podTemplate" in imported(run, tmp_path, deployment(*words, env=env, pod=pod, volumeMounts=mount))[0]


def test_what_kserve_fills_in_is_not_passed_on(tmp_path: Path, run: Run) -> None:
    value = '--seed 7 --kv-events-config \'{"endpoint": "tcp://{{ ChildName .ObjectMeta.Name `-epp` }}:5557"}\''
    template = {"containers": [{"name": "main", "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": value}]}]}
    metadata, spec = {"name": "n"}, {"model": {"uri": "hf://a/b"}, "template": template}
    llm = {"kind": "LLMInferenceService", "apiVersion": "serving.kserve.io/v1alpha2", "metadata": metadata, "spec": spec}
    found, report = imported(run, tmp_path, llm)
    assert found["engine"]["args"] == [{"name": "seed", "value": "7"}]
    assert "--kv-events-config: KServe fills in the {{ }} of its value" in report


def test_components_of_newer_versions_of_dynamo(tmp_path: Path, run: Run) -> None:
    worker = {"name": "main", "image": "runtime:1.6.0", "command": ["python3", "-m", "dynamo.vllm"], "args": ["--model", "a/b"]}
    front = {"name": "main", "image": "runtime:1.6.0", "command": ["python3", "-m", "dynamo.frontend"]}
    components = [
        {"name": "Frontend", "podTemplate": {"spec": {"containers": [front]}}},
        {
            "name": "Worker",
            "replicas": 2,
            "sharedMemorySize": "8Gi",
            "podTemplate": {"spec": {"containers": [{**worker, "resources": GPU}]}},
        },
        {"name": "First", "type": "prefill", "podTemplate": {"spec": {"containers": [worker]}}},
    ]
    spec, report = imported(run, tmp_path, {"kind": "DynamoGraphDeployment", "metadata": {"name": "d"}, "spec": {"components": components}})
    assert (spec["model"]["uri"], spec["replicas"], spec["accelerator"]) == ("hf://a/b", 2, {"count": 1})
    assert "spec.components.Worker.sharedMemorySize: the operator mounts shared memory of its own" in report
    assert "so the service First is not imported" in report
    assert "The service Frontend: it does not run vLLM" in report


def test_a_preset_of_kaito_is_a_model_of_the_hub(tmp_path: Path, run: Run) -> None:
    inference = {"preset": {"name": "phi-4"}, "config": "settings"}
    workspace = {"kind": "Workspace", "apiVersion": "kaito.sh/v1beta1", "metadata": {"name": "w"}, "inference": inference}
    spec, report = imported(run, tmp_path, workspace)
    assert spec["model"] == {"uri": "hf://microsoft/phi-4", "servedName": "phi-4"}
    assert "The settings under vllm in the ConfigMap settings are not in the file" in report
    settings = {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"inference_config.yaml": "vllm: {max-model-len: 4096}"}}
    spec, report = imported(run, tmp_path, workspace, settings)
    assert spec["engine"]["args"] == [{"name": "max-model-len", "value": "4096"}]
    assert "The settings under vllm in the ConfigMap settings are flags" in report
    broken = {**settings, "data": {"inference_config.yaml": "vllm: ["}}
    with pytest.raises(ImportRefusedError, match="ConfigMap settings is not valid YAML"):
        find_engines([workspace, broken])


def test_variables_have_the_values_of_config_maps_in_the_file(tmp_path: Path, run: Run) -> None:
    settings = {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"MODEL": "a/b", "LENGTH": "4096"}}
    env = [{"name": name, "valueFrom": {"configMapKeyRef": {"name": "settings", "key": name}}} for name in ("MODEL", "LENGTH")]
    spec, report = imported(run, tmp_path, deployment("vllm", "serve", "$(MODEL)", "--max-model-len=$(LENGTH)", env=env), settings)
    assert spec["model"] == {"uri": "hf://a/b"}
    assert spec["engine"]["args"] == [{"name": "max-model-len", "value": "4096"}]
    assert spec["engine"]["env"] == [{"name": "MODEL", "value": "a/b"}, {"name": "LENGTH", "value": "4096"}]
    assert "Variables with values of the ConfigMap settings have the values that it has in the file" in report
    assert "Not imported" not in report


def test_a_runtime_of_kserve_that_is_not_in_the_file_is_asked_for(tmp_path: Path, run: Run) -> None:
    annotations = {"autoscaling.knative.dev/maxScale": "4", "serving.kserve.io/secretName": "keys"}
    predictor = {
        "model": {"runtime": "r", "storageUri": "s3://bucket/m", "resources": GPU},
        "containers": [{"name": "kserve-container", "env": [{"name": "EXTRA", "value": "1"}]}],
    }
    service = {
        "kind": "InferenceService",
        "apiVersion": "serving.kserve.io/v1beta1",
        "metadata": {"name": "i", "annotations": annotations},
        "spec": {"predictor": predictor},
    }
    _, report = imported(run, tmp_path, service)
    assert "The ServingRuntime r has the image of the engine" in report
    assert "The annotation autoscaling.knative.dev/maxScale (4): set spec.autoscaling to scale" in report
    assert "The annotation serving.kserve.io/secretName (keys): the operator does not read it" in report
    container = {"name": "kserve-container", "image": "vllm/vllm-openai:v0.20.1"}
    runtime = {"kind": "ServingRuntime", "metadata": {"name": "r"}, "spec": {"containers": [container]}}
    spec, report = imported(run, tmp_path, service, runtime)
    assert spec["engine"]["env"] == [{"name": "EXTRA", "value": "1"}]
    assert "The ServingRuntime r has" not in report
    with pytest.raises(ImportRefusedError, match="ServingRuntime r has no model: add the InferenceService"):
        find_engines([runtime])


def test_ranks_of_kserve_on_several_nodes(tmp_path: Path, run: Run) -> None:
    template = {"containers": [{"name": "main", "image": "vllm/vllm-openai:v0.20.1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
    spec = {"model": {"uri": "hf://a/b"}, "parallelism": {"data": 16, "dataLocal": 8}, "template": template, "worker": template}
    llm = {"kind": "LLMInferenceService", "apiVersion": "serving.kserve.io/v1alpha2", "metadata": {"name": "n"}, "spec": spec}
    assert imported(run, tmp_path, llm)[0]["parallelism"] == {"data": 16, "nodes": 2}


def test_pods_that_only_prefill_are_not_engines_of_their_own(tmp_path: Path, run: Run) -> None:
    served, first = deployment("vllm", "serve", "a/b"), deployment("vllm", "serve", "a/b")
    first["metadata"] = {"name": "first"}
    first["spec"]["template"]["metadata"] = {"labels": {"llm-d.ai/role": "prefill"}}
    _, report = imported(run, tmp_path, first, served)
    assert "so Deployment first is not imported" in report


def test_requests_of_a_worker_of_dynamo_are_kept(tmp_path: Path, run: Run) -> None:
    resources = {"requests": {"cpu": "10", "memory": "20Gi", "gpu": "1"}}
    spec, _ = imported(run, tmp_path, dynamo_graph({"Worker": {"resources": resources}}))
    assert spec["podTemplate"]["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "10", "memory": "20Gi"}}
    assert spec["accelerator"] == {"count": 1}


def test_values_of_switches_are_their_two_forms(tmp_path: Path, run: Run) -> None:
    words = ("vllm", "serve", "a/b", "--enable-chunked-prefill=false", "--enable-prefix-caching=True")
    spec, report = imported(run, tmp_path, deployment(*words))
    assert spec["engine"]["args"] == [{"name": "no-enable-chunked-prefill"}, {"name": "enable-prefix-caching"}]
    assert "--enable-chunked-prefill=false is --no-enable-chunked-prefill" in report


def test_the_first_engine_of_vllm_stays_chosen_in_the_production_stack(tmp_path: Path, run: Run) -> None:
    model = {"name": "m", "modelURL": "a/b", "repository": "vllm/vllm-openai", "tag": "v0.8.5", "vllmConfig": {"v0": 1}}
    spec, _ = imported(run, tmp_path, {"servingEngineSpec": {"modelSpec": [model]}})
    assert spec["engine"]["env"] == [{"name": "VLLM_USE_V1", "value": "0"}]


@pytest.mark.parametrize(
    "manifest",
    [
        storm_service({"name": "decode", "podGroupSize": 2}),
        dynamo_graph({"Worker": {"multinode": {"nodeCount": 2}}}),
        {"modelArtifacts": {"uri": "hf://a/b", "name": "a/b"}, "multinode": True, "decode": {"parallelism": {"workers": 2}}},
        {"kind": "Workspace", "apiVersion": "kaito.sh/v1", "resource": {"count": 2}, "inference": {"preset": {"name": "a/b"}}},
    ],
    ids=["StormService", "DynamoGraphDeployment", "llm-d", "KAITO"],
)
def test_an_engine_of_a_platform_on_several_nodes(manifest: dict[str, Any], tmp_path: Path, run: Run) -> None:
    assert imported(run, tmp_path, manifest)[0]["parallelism"]["nodes"] == 2


# What manifests that nobody here had seen contained.


def test_variables_that_a_script_sets_are_kept_and_what_it_does_with_the_output_is_told(tmp_path: Path, run: Run) -> None:
    script = """ulimit -l unlimited
    export MODEL=b NCCL_DEBUG=INFO
    export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH
    VLLM_LOGGING_LEVEL=DEBUG exec vllm serve a/$MODEL --seed ${SEED:-7} --max-model-len 8192 2>&1 | tee /tmp/log"""
    found, report = imported(run, tmp_path, deployment("sh", "-c", script, resources=GPU))
    assert found["model"]["uri"] == "hf://a/b"
    assert found["engine"]["args"] == [{"name": "seed", "value": "7"}, {"name": "max-model-len", "value": "8192"}]
    variables = {each["name"]: each["value"] for each in found["engine"]["env"]}
    assert variables == {"MODEL": "b", "NCCL_DEBUG": "INFO", "VLLM_LOGGING_LEVEL": "DEBUG"}
    for lost in ("ulimit -l unlimited", "LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH", "2>&1 | tee /tmp/log"):
        assert f"The command in the container's script: {lost}" in report


def test_a_parallel_size_of_one_stays_although_the_pod_has_more_gpus(tmp_path: Path, run: Run) -> None:
    two = {"limits": {"nvidia.com/gpu": "2"}}
    found, report = imported(run, tmp_path, deployment("vllm", "serve", "a/b", "--tensor-parallel-size=1", resources=two))
    assert found["parallelism"] == {"tensor": 1}
    assert "The manifest requests 2 GPUs, but its parallel sizes need 1" in report


def test_variables_of_a_whole_config_map_in_the_file_are_read(tmp_path: Path, run: Run) -> None:
    sources = [{"configMapRef": {"name": "settings"}, "prefix": "MY_"}, {"configMapRef": {"name": "elsewhere"}}]
    engine = deployment("vllm", "serve", "$(MY_MODEL)", resources=GPU, envFrom=sources, env=[{"name": "MY_SEED", "value": "7"}])
    settings = {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"MODEL": "a/b", "SEED": "1"}}
    found, report = imported(run, tmp_path, engine, settings)
    assert found["model"]["uri"] == "hf://a/b"
    assert {each["name"]: each["value"] for each in found["engine"]["env"]} == {"MY_MODEL": "a/b", "MY_SEED": "7"}
    assert found["podTemplate"]["spec"]["containers"][0]["envFrom"] == sources[1:]
    assert "Variables with values of the ConfigMap settings" in report


def kserve(model: dict[str, Any], container: dict[str, Any], **annotations: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """An InferenceService as OpenShift AI writes it, whose model has an empty name, and its ServingRuntime."""
    predictor = {"model": {"runtime": "r", "name": "", "resources": GPU, **model}}
    service = {"kind": "InferenceService", "apiVersion": "serving.kserve.io/v1beta1", "metadata": {"name": "a"}}
    runtime = {"kind": "ServingRuntime", "metadata": {"name": "r", "annotations": annotations}, "spec": {"containers": [container]}}
    return runtime, {**service, "spec": {"predictor": predictor}}


def test_the_engine_of_a_serving_runtime_is_there_once_and_has_the_version_that_openshift_ai_says(tmp_path: Path, run: Run) -> None:
    container = {"name": "kserve-container", "image": "r.example/vllm@sha256:0", "args": ["--model=/mnt/models", "--seed=7"]}
    manifests = kserve({"storageUri": "hf://a/b"}, container, **{"opendatahub.io/runtime-version": "v0.13.0.0"})
    found, report = imported(run, tmp_path, *manifests)
    assert "podTemplate" not in found
    assert found["engine"] == {"version": "0.13.0", "image": container["image"], "args": [{"name": "seed", "value": "7"}]}
    assert "The image of the engine has vLLM 0.13.0" in report


def test_the_version_in_the_image_of_kserve_is_that_of_the_engine(tmp_path: Path, run: Run) -> None:
    container = {"name": "kserve-container", "image": "kserve/huggingfaceserver:v0.17.0-gpu", "args": ["--backend=vllm"]}
    found, _ = imported(run, tmp_path, *kserve({"storageUri": "hf://a/b"}, container))
    assert found["engine"] == {"version": "0.15.1"}


def test_a_data_connection_of_kserve_says_where_the_model_is(tmp_path: Path, run: Run) -> None:
    container = {"name": "kserve-container", "image": "vllm/vllm-openai:v0.20.1", "args": ["--model=/mnt/models"]}
    manifests = kserve({"storage": {"key": "models", "path": "granite"}}, container)
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all(manifests), "utf-8")
    assert "the model is at granite of the data connection models" in run(tmp_path / "a.yaml")[2]


def test_a_proxy_that_routes_to_pods_for_prefill_is_left_out(tmp_path: Path, run: Run) -> None:
    proxy = {"name": "proxy", "image": "ghcr.io/llm-d/llm-d-routing-sidecar:v0.4.0", "ports": [{"containerPort": 8000}]}
    for part in ("initContainers", "containers"):
        manifest = deployment("vllm", "serve", "a/b", "--port=8200", resources=GPU)
        pod = manifest["spec"]["template"]["spec"]
        pod[part] = [*pod.get(part, []), {**proxy, "restartPolicy": "Always"}]
        found, report = imported(run, tmp_path, manifest)
        assert "podTemplate" not in found
        assert "The container proxy: it sends requests to Pods for prefill" in report


def test_a_worker_of_dynamo_has_the_vllm_of_its_image_and_its_other_resources(tmp_path: Path, run: Run) -> None:
    main = {
        "image": "nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.8.1",
        "workingDir": "/workspace",
        "args": ["python3 -m dynamo.vllm --model a/b"],
    }
    main["command"] = ["sh", "-c"]
    worker = {"resources": {"limits": {"gpu": "1", "cpu": "8", "custom": {"rdma/ib": "1"}}}, "extraPodSpec": {"mainContainer": main}}
    graph = {"kind": "DynamoGraphDeployment", "metadata": {"name": "a"}, "spec": {"services": {"Worker": worker}}}
    found, report = imported(run, tmp_path, graph)
    assert found["engine"] == {"version": "0.12.0"}
    assert found["podTemplate"]["spec"]["containers"] == [{"name": "vllm", "resources": {"limits": {"cpu": "8", "rdma/ib": "1"}}}]
    assert "mainContainer.workingDir: it is a directory of Dynamo's image" in report


def test_a_quoted_name_in_values_of_llm_d_is_the_name(tmp_path: Path, run: Run) -> None:
    values = {
        "modelArtifacts": {"name": "a/b", "uri": 'hf://"{{ .Values.modelArtifacts.name }}"'},
        "decode": {"containers": [{"name": "vllm"}]},
    }
    assert imported(run, tmp_path, values)[0]["model"] == {"uri": "hf://a/b"}


def test_a_token_without_a_value_is_no_token(tmp_path: Path, run: Run) -> None:
    found, report = imported(run, tmp_path, deployment("vllm", "serve", "a/b", resources=GPU, env=[{"name": "HF_TOKEN", "value": ""}]))
    assert "env" not in found["engine"]
    assert "HF_TOKEN" not in report


def test_an_init_container_that_fills_a_volume_of_the_engine_is_kept(tmp_path: Path, run: Run) -> None:
    mount = [{"name": "adapters", "mountPath": "/adapters"}]
    first = [{"name": "pull", "image": "g", "volumeMounts": mount}, {"name": "wait", "image": "w"}]
    engine = deployment("vllm", "serve", "a/b", "--enable-lora", "--lora-modules", "x=/adapters/x", volumeMounts=mount, resources=GPU)
    engine["spec"]["template"]["spec"] |= {"initContainers": first, "volumes": [{"name": "adapters", "emptyDir": {}}]}
    found, report = imported(run, tmp_path, engine)
    assert found["podTemplate"]["spec"]["initContainers"] == first[:1]
    assert "the init container pull, which fills a volume of the engine" in report
    assert "The init container wait" in report


def test_a_script_is_read_as_a_shell_reads_it(tmp_path: Path, run: Run) -> None:
    script = """
        # vllm serve is started below
        SIZE=2; export SEED=7 # not 8
        echo "ready; steady" && vllm serve a/b --tensor-parallel-size $((SIZE*2)) --seed $SEED --override-generation-config '{"a": 1,
          "b": "x; y"}' --port ${PORT:-80#80}
    """
    found, report = imported(run, tmp_path, deployment("bash", "-c", script, resources={"limits": {"nvidia.com/gpu": 4}}))
    assert found["parallelism"] == {"tensor": 4}
    assert found["engine"]["env"] == [{"name": "SEED", "value": "7"}]
    assert json.loads(found["engine"]["args"][1]["value"]) == {"a": 1, "b": "x; y"}
    assert 'The command in the container\'s script: echo "ready; steady"' in report


def test_a_file_in_a_folder_with_the_name_of_a_kind_is_a_file(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy/vllm.yaml").write_text(yaml.safe_dump(deployment("vllm", "serve", "a/b")), "utf-8")
    monkeypatch.chdir(tmp_path)
    assert run("deploy/vllm.yaml")[0] == 0


def test_a_container_of_kserve_is_the_engine_although_its_runtime_is_not_in_the_file(tmp_path: Path, run: Run) -> None:
    more = [{"name": "kserve-container", "env": [{"name": "EXTRA_ARGS", "value": "--seed 7"}]}]
    manifest = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "a"},
        "spec": {"predictor": {"model": {"runtime": "elsewhere", "storageUri": "hf://a/b"}, "containers": more}},
    }
    found, report = imported(run, tmp_path, manifest)
    assert "podTemplate" not in found
    assert found["engine"]["env"] == more[0]["env"]
    assert "It is not in the file" in report
