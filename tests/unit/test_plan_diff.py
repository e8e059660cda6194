"""`vllm-operator plan --diff`: only what would be otherwise today, and why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.gpus import inventory_of, real_node
from support.plans import known
from vllm_operator.__main__ import main
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.planning.planner import plan
from vllm_operator.rendering.revision import render_revision

Run = Callable[..., tuple[int, str]]


def live(*, generation: int = 1, **changes: Any) -> dict[str, Any]:
    """An object with a plan that was made for an H200, as `plan`; `changes` are to that plan."""
    manifest: dict[str, Any] = {
        "apiVersion": "vllm-operator.dev/v1alpha1",
        "kind": "VLLMDeployment",
        "metadata": {"name": "demo", "namespace": "models", "uid": "u", "generation": 1},
        "spec": {"model": {"uri": "hf://deepseek-ai/DeepSeek-V3"}, "engine": {"version": "0.20.1"}, "parallelism": {"tensor": 8}},
    }
    made = plan(VLLMDeployment.parse(manifest), inventory_of(real_node("h200")), known()).plan
    assert made is not None
    manifest["plan"] = {**made.to_json(), **changes}
    manifest["metadata"]["generation"] = generation
    return manifest


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(resource: dict[str, Any], *options: str, node: str = "h200") -> tuple[int, str]:
        objects = [real_node(node)]
        if "plan" in resource:
            pinned = Plan.model_validate(resource.pop("plan"))
            objects.append(revision := render_revision(VLLMDeployment.parse(resource), pinned, 1))
            resource["status"] = {"revision": revision["metadata"]["name"]}
        (tmp_path / "cr.yaml").write_text(yaml.safe_dump(resource), "utf-8")
        (tmp_path / "nodes.yaml").write_text(yaml.safe_dump_all(objects), "utf-8")
        status = main(["plan", "-f", str(tmp_path / "cr.yaml"), "--nodes", str(tmp_path / "nodes.yaml"), "--diff", *options])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return call


def test_the_same_catalog_and_nodes_differ_in_nothing(run: Run) -> None:
    status, out = run(live())
    assert (status, "A new plan would be the same" in out) == (0, True)
    assert "kubectl annotate" not in out


def test_a_backend_of_an_older_catalog_is_shown_with_both_reasons(run: Run) -> None:
    choice = {"component": "MLADecode", "backend": "TRITON_MLA", "chosenBy": "Rule", "reason": "It was the best one known."}
    others = [entry for entry in live()["plan"]["backends"] if entry["component"] != "MLADecode"]
    status, out = run(live(backends=[choice, *others], catalogVersion="0.0.9+aaaaaaaa"))
    assert status == 1
    assert "with catalog 0.0.9+aaaaaaaa" in out
    shown = out[out.index("backend of MLADecode") :]
    assert shown.index("TRITON_MLA") < shown.index("It was the best one known.") < shown.index("FLASH_ATTN_MLA")
    assert "vLLM uses FlashAttention MLA on Hopper by default." in shown
    assert out.count("backend of") == 1
    assert "kubectl annotate vllm demo -n models --overwrite vllm-operator.dev/replan=" in out


def test_settings_that_came_or_went_are_shown(run: Run) -> None:
    kept = [entry for entry in live()["plan"]["args"] if entry["name"] != "--tensor-parallel-size"]
    args = [*kept, {"name": "--gone", "value": "1", "reason": "An old rule."}]
    content = json.loads(run(live(args=args), "-o", "json")[1])
    assert [(entry["subject"], entry["inForce"], entry["today"], entry["reasonInForce"]) for entry in content["differences"]] == [
        ("The flag --gone", "1", None, "An old rule."),
        ("The flag --tensor-parallel-size", None, "8", None),
    ]


def test_a_changed_spec_is_applied_without_being_asked(run: Run) -> None:
    changed = live(generation=2)
    changed["spec"]["parallelism"] = {"tensor": 8, "expert": "Enabled"}
    status, out = run(changed)
    assert status == 1
    assert "flag --enable-expert-parallel" in out
    assert "The operator applies the new plan" in out


def test_nodes_that_are_gone_leave_the_plan_in_force(run: Run) -> None:
    status, out = run(live(), node="l40s")
    assert status == 1
    assert "No new plan is possible" in out
    assert "Running Pods are not affected" in out


def test_an_object_without_a_plan_has_nothing_to_compare_with(run: Run) -> None:
    resource = live()
    del resource["plan"]
    status, out = run(resource)
    assert (status, "has no current plan" in out) == (2, True)


@pytest.mark.parametrize("arguments", [["plan"], ["plan", "--diff"], ["plan", "-n", "models"]], ids=" ".join)
def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 2
    assert "no VLLMDeployment was given. Name one of the cluster (plan NAME -n NAMESPACE)" in capsys.readouterr().err


def test_without_a_cluster_a_name_says_what_to_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main(["plan", "--diff", "demo"]) == 2
    assert "Set KUBECONFIG" in capsys.readouterr().err
