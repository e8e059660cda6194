"""What listings and security tools read about the project: the chart's metadata, the security files, the support matrix."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import PresetSpec

ROOT = Path(__file__).parent.parent.parent
ARTIFACT_HUB = "artifacthub.io/"


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def test_artifact_hub_is_told_each_crd_and_a_valid_example_of_it() -> None:
    annotations = load("charts/vllm-operator/Chart.yaml")["annotations"]
    listed = yaml.safe_load(annotations[f"{ARTIFACT_HUB}crds"])
    definitions = [yaml.safe_load(file.read_text("utf-8")) for file in (ROOT / "crds").glob("*.yaml")]
    assert {(crd["kind"], crd["name"], crd["version"]) for crd in listed} == {
        (crd["spec"]["names"]["kind"], crd["metadata"]["name"], crd["spec"]["versions"][-1]["name"]) for crd in definitions
    }
    examples = yaml.safe_load(annotations[f"{ARTIFACT_HUB}crdsExamples"])
    assert [example["kind"] for example in examples] == [crd["kind"] for crd in listed]
    deployment, *presets = examples
    assert VLLMDeployment.model_validate(deployment).spec.model.uri == "hf://Qwen/Qwen3-0.6B"
    assert [PresetSpec.model_validate(preset["spec"]).rollout is None for preset in presets] == [False, False]


def test_the_security_files_name_pages_that_exist() -> None:
    insights = (ROOT / "SECURITY-INSIGHTS.yml").read_text("utf-8")
    paths = re.findall(r"vllm-operator/vllm-operator/blob/main/([\w./-]+)", insights)
    paths += re.findall(r"\]\((docs/[\w./-]+)", (ROOT / "SECURITY.md").read_text("utf-8"))
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert yaml.safe_load(insights)["header"]["schema-version"] == "2.0.0"


def test_the_support_matrix_has_each_version_of_vllm_and_no_older_kubernetes_than_the_chart() -> None:
    matrix = json.loads((ROOT / "docs" / "support-matrix.json").read_text("utf-8"))
    tables = {file.stem for file in (ROOT / "operator/vllm_operator/catalog/data/versions").glob("*.json")}
    assert set(matrix["vllm"]) == tables
    assert load("charts/vllm-operator/Chart.yaml")["kubeVersion"] == f">={matrix['kubernetes']['oldest']}-0"


def test_the_checks_of_a_platform_team_are_forty_and_each_has_an_answer() -> None:
    rows = [line for line in (ROOT / "docs" / "platform-checks.md").read_text("utf-8").splitlines() if line.startswith("| ")]
    checks = [row.strip("| ").split(" | ", 1) for row in rows if not row.startswith("| check")]
    assert len(checks) == 40
    assert all(len(check) == 2 and check[1] for check in checks)
