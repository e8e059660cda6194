"""`vllm-operator catalog`: what is known, for people and for programs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.plans import known
from vllm_operator.__main__ import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["catalog", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("section", "row"),
    [
        ("versions", ("0.20.1", "13.0", "2.11.0", "0.6.8.post1")),
        ("gpus", ("NVIDIA-H200", "sm_90 Hopper", "143771 MiB")),
        ("gpus", ("sm_110", "Blackwell")),
        ("models", ("deepseek-v3.2", "SparseMLA", "256", "FP8Block", "685 B")),
        ("rules", ("mig-batch-defaults", "Engine", "quirk", "--max-num-seqs 256")),
        ("signatures", ("CudaForkReinit", "fatal", "The parent process used CUDA before vLLM forked its workers.")),
    ],
)
def test_people_get_a_table(capsys: pytest.CaptureFixture[str], section: str, row: tuple[str, ...]) -> None:
    status, out, _ = run(capsys, section)
    line = next(line for line in out.splitlines() if all(part in line for part in row))
    assert (status, line.split()[0]) == (0, row[0])
    assert f"Catalog {known().version}" in out


@pytest.mark.parametrize("section", ["versions", "gpus", "models", "rules", "signatures"])
def test_every_entry_of_a_list_can_be_asked_for(capsys: pytest.CaptureFixture[str], section: str) -> None:
    listed = json.loads(run(capsys, section, "-o", "json")[1])
    assert len(listed) > 10
    for name in list(listed)[:: max(1, len(listed) // 5)]:
        status, out, _ = run(capsys, section, name, "-o", "json")
        assert status == 0
        assert yaml.safe_load(run(capsys, section, name)[1]) == json.loads(out)


def test_every_rule_is_listed_once_and_in_order_of_precedence(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(json.loads(run(capsys, "rules", "-o", "json")[1])) == [rule.id for rule in known().rules.rules]


OWN = [
    {
        "id": "our-experts",
        "component": "MoE",
        "kind": "choice",
        "when": {"versions": ">=0.20"},
        "backend": "TRITON",
        "because": "It is.",
        "source": "us",
    },
    {"id": "broken", "component": "Nothing", "kind": "choice", "because": "-", "source": "-"},
]


@pytest.mark.parametrize("form", ["a ConfigMap", "a list of rules"])
def test_the_rules_of_the_cluster_are_listed_where_they_stand_and_broken_ones_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str
) -> None:
    content: Any = OWN
    if form == "a ConfigMap":
        content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rules"}, "data": {"rules.yaml": yaml.safe_dump(OWN)}}
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(content))
    status, out, err = run(capsys, "rules", "--rules", str(file))
    first_choice = next(line for line in out.splitlines() if " choice " in line)
    assert status == 0
    assert first_choice.split()[:4] == ["our-experts", "cluster", "MoE", "choice"]
    assert "rule broken" in err
    assert json.loads(run(capsys, "rules", "our-experts", "--rules", str(file), "-o", "json")[1])["because"] == "It is."


def test_a_file_without_rules_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("{apiVersion: v1, kind: Pod}")
    assert run(capsys, "rules", "--rules", str(file)) == (2, "", f"Error: {file} contains neither a ConfigMap nor a list of rules\n")


def test_a_version_says_what_it_changed(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(run(capsys, "versions", "0.17.0", "-o", "json")[1])
    assert "--moe-backend" in content["since0.16.0"]["newFlags"]
    assert "--moe-backend" in content["flags"]


def test_a_version_that_is_not_known_says_which_one_stands_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "treats it like 0.20.2" in run(capsys, "versions", "0.20.3")[1]
    assert "older than" in run(capsys, "versions", "0.6.0")[1]


def test_a_model_is_found_by_the_name_of_its_repository(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(run(capsys, "models", "nvidia/DeepSeek-R1-0528-NVFP4", "-o", "json")[1])
    assert (content["family"], content["attention"], content["quantization"]) == ("deepseek-v3", "MLA", "NVFP4")


def test_an_architecture_lists_its_products_and_backends(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(run(capsys, "gpus", "sm_121", "-o", "json")[1])
    assert content["products"] == ["NVIDIA-GB10"]
    assert "FLASHMLA" not in content["backends"]["MLADecode"]


NOT_KNOWN = [("versions", "latest"), ("gpus", "sm_999"), ("models", "nobody/knows-it"), ("models", "no-family"), ("rules", "x")]


@pytest.mark.parametrize(("section", "name"), NOT_KNOWN)
def test_what_is_not_known_is_said(capsys: pytest.CaptureFixture[str], section: str, name: str) -> None:
    status, out, err = run(capsys, section, name)
    assert (status, out) == (2, "")
    assert f"the catalog has no entry {name}" in err


SIMILAR = [("models", "qwen", "qwen3"), ("models", "deepsek-v3", "deepseek-v3"), ("gpus", "H100", "NVIDIA-H100-80GB-HBM3")]


@pytest.mark.parametrize(("section", "name", "suggestion"), SIMILAR)
def test_similar_entries_are_suggested(capsys: pytest.CaptureFixture[str], section: str, name: str, suggestion: str) -> None:
    status, _, err = run(capsys, section, name)
    assert status == 2
    assert suggestion in err.partition("Did you mean ")[2]
