"""`plan --revision` and `plan --diff`: which plans there were, and what changed between them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.operators import Bench, llama
from vllm_operator.__main__ import kubectl_plugin, main
from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.api.plan import Plan
from vllm_operator.cli.plan import causes
from vllm_operator.kube.client import REVISION, VLLM_DEPLOYMENT

Run = Callable[..., tuple[int, str]]


@pytest.fixture
async def objects() -> list[dict[str, Any]]:
    """An object whose image was changed, for which then a new plan was requested, with its revisions."""
    bench = Bench()
    bench.cluster.put(llama())
    await bench.settle()
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"engine": {"version": "0.24.0"}}})
    await bench.settle()
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {REPLAN_ANNOTATION: "now"}}})
    await bench.settle()
    return [bench.resource(), *sorted(bench.cluster.all(REVISION), key=lambda revision: int(revision["revision"]))]


@pytest.fixture
def run(objects: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str, without: str = "") -> tuple[int, str]:
        given = [item for item in objects if item["kind"] != without]
        (tmp_path / "objects.yaml").write_text(yaml.safe_dump({"kind": "List", "items": given}), "utf-8")
        status = kubectl_plugin([*arguments, "-f", str(tmp_path / "objects.yaml")])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return call


def test_a_revision_says_what_changed_and_why(run: Run) -> None:
    page = run("plan", "llama", "--revision", "2")[1].partition("Changes since the previous revision:")[2]
    assert "The spec changed (generation 1 to 2)." in page
    assert "The cache directory changed because of: image, version." in page
    assert "before:     vllm/vllm-openai:v0.20.1" in page
    page = run("plan", "llama", "--revision")[1].partition("Changes since the previous revision:")[2]
    assert "A new plan was requested." in page
    assert "stay the same" in page
    assert "Changes" not in run("plan", "llama", "--revision", "1")[1]


def test_an_annotation_that_was_removed_is_no_cause_of_the_next_plan(objects: list[dict[str, Any]]) -> None:
    requested = Plan.model_validate(objects[-1]["data"])
    assert requested.replan_token == "now"
    made = requested.model_copy(update={"replan_token": None, "spec_digest": "another", "observed_generation": 3})
    assert list(causes(requested, made)) == ["The spec changed (generation 2 to 3)."]


def test_a_revision_for_programs(run: Run) -> None:
    content = json.loads(run("plan", "llama", "--revision", "2", "-o", "json")[1])
    assert content["plan"]["engineVersion"] == "0.24.0"
    assert content["causes"][0] == "The spec changed (generation 1 to 2)."
    assert "The image" in {difference["subject"] for difference in content["differences"]}
    assert yaml.safe_load(run("plan", "llama", "--revision", "2", "-o", "yaml")[1]) == content


def test_a_plan_is_shown_by_the_number_of_its_revision(run: Run) -> None:
    status, page = run("plan", "llama", "--revision", "1")
    assert status == 0
    assert page.startswith("default/llama, revision 1, ")
    assert "earlier" in page.splitlines()[0]
    assert "vLLM 0.20.1" in page
    assert "current" in run("plan", "llama", "--revision", "3")[1].splitlines()[0]


def test_the_plan_in_force_is_compared_with_todays(run: Run, objects: list[dict[str, Any]]) -> None:
    status, page = run("plan", "llama", "--diff")
    assert status == 1  # there are no nodes in the file
    assert "Running Pods are not affected" in page
    named = objects[0]["status"]["revision"]
    status, page = run("plan", "llama", "--diff", without="ControllerRevision")
    assert (status, f"ControllerRevision {named}, which contains the plan of llama, is missing" in " ".join(page.split())) == (2, True)


def test_a_revision_of_another_object_is_not_read(run: Run, objects: list[dict[str, Any]]) -> None:
    for owner in objects[3]["metadata"]["ownerReferences"]:
        owner["uid"] = "of-another"
    assert "has no revision 3; it has 1, 2" in run("plan", "llama", "--revision", "3")[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "llama", "--revision", "9"), "has no revision 9; it has 1, 2, 3"),
        (("plan", "--revision", "1"), "--revision needs the name"),
        (("plan", "other", "--revision", "1"), "no VLLMDeployments with the name other"),
    ],
)
def test_what_cannot_be_shown_is_said(arguments: tuple[str, ...], said: str, run: Run) -> None:
    status, page = run(*arguments)
    assert (status, said in page) == (2, True), page


def test_a_revision_that_somebody_has_changed_is_named_and_not_shown(run: Run, objects: list[dict[str, Any]]) -> None:
    objects[3]["data"]["image"] = "evil/miner:latest"
    status, page = run("plan", "llama", "--revision", str(objects[3]["revision"]))
    assert status == 2
    assert "has content that does not match the digest in its name" in page
    assert "evil" not in page


def test_an_object_without_revisions_has_none_to_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(llama()), "utf-8")
    assert main(["plan", "llama", "--revision", "1", "-f", str(tmp_path / "one.yaml")]) == 2
    assert "it has none" in capsys.readouterr().err
