"""The examples fit the API types, and each can be read without the others."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.gpus import KINDS, machines_of_the_examples, real_node
from support.plans import planned
from vllm_operator.api.labels import API_VERSION, KIND
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.loader import load_catalog

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
NO_WHOLE_GPU = ("cpu", "nfd-only", "h100-mig-single", "h100-mig-mixed", "h100-mig-invalid", "h100-time-sliced", "h100-sxm-old-driver")
WHOLE_GPUS = [kind for kind in KINDS if kind not in NO_WHOLE_GPU]
FILES = [pytest.param(path, id=path.stem) for path in sorted(EXAMPLES.glob("*.yaml"))]


def deployments(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document["kind"] == KIND]


ALL = [manifest for path in sorted(EXAMPLES.glob("*.yaml")) for manifest in deployments(path)]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a manifest with its path; what the schema leaves unchecked counts as one value."""
    if isinstance(value, dict) and path != "podTemplate":
        for key, child in value.items():
            yield from leaves(child, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from leaves(child, f"{path}[{index}]")
    else:
        yield path, value


@pytest.mark.parametrize("manifest", ALL, ids=lambda manifest: manifest["metadata"]["name"])
def test_every_field_of_an_example_is_a_field_of_the_api(manifest: dict[str, Any]) -> None:
    assert manifest["apiVersion"] == API_VERSION
    understood = dict(leaves(VLLMDeployment.parse(manifest).spec.to_json()))
    assert {path: understood.get(path) for path, _ in leaves(manifest["spec"])} == dict(leaves(manifest["spec"]))


@pytest.mark.parametrize("path", FILES)
def test_an_example_starts_by_saying_what_it_is_for(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert all(len(line) <= 120 for line in lines)


@pytest.mark.parametrize("path", FILES)
def test_an_example_uses_the_newest_version_or_says_why_not(path: Path) -> None:
    for version, why in re.findall(r"^    version: (\S+) *#? *(.*)$", path.read_text("utf-8"), re.MULTILINE):
        assert version == load_catalog().versions.newest.version or why


@pytest.mark.parametrize("manifest", ALL, ids=lambda manifest: manifest["metadata"]["name"])
def test_every_example_has_a_plan_where_its_gpus_are(manifest: dict[str, Any]) -> None:
    outcome = planned(VLLMDeployment.parse(manifest), *machines_of_the_examples())
    if "uuids:" in yaml.safe_dump(manifest["spec"].get("accelerator", {})):
        assert "Install the NVIDIA DRA driver" in outcome.planned.message  # no node here publishes devices
    else:
        assert outcome.plan is not None, (outcome.accepted.message, outcome.planned.message)


def test_every_example_is_in_the_list_of_examples() -> None:
    listed = re.findall(r"\]\(([^)]*\.yaml)\)", (EXAMPLES / "README.md").read_text("utf-8"))
    assert set(listed) == {path.name for path in EXAMPLES.glob("*.yaml")}


def test_no_two_examples_have_the_same_name() -> None:
    names = [manifest["metadata"]["name"] for manifest in ALL]
    assert len(names) == len(set(names))


def test_the_first_model_is_the_same_everywhere_and_needs_no_token() -> None:
    first = yaml.safe_load((EXAMPLES / "minimal.yaml").read_text("utf-8"))
    assert "tokenSecretRef" not in first["spec"]["model"]
    notes = (ROOT / "charts/vllm-operator/templates/NOTES.txt").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    for text, begin, end in ((notes, "<<EOF\n", "EOF\n"), (readme, "```yaml\n", "```\n")):
        assert yaml.safe_load(text.split(begin)[1].split(end)[0]) == first


@pytest.mark.parametrize("kind", WHOLE_GPUS)
def test_the_first_model_is_planned_on_every_gpu(kind: str) -> None:
    first = VLLMDeployment.parse(yaml.safe_load((EXAMPLES / "minimal.yaml").read_text("utf-8")))
    outcome = planned(first, real_node(kind))
    assert outcome.plan is not None, outcome.refusal
    assert outcome.plan.count == 1


def test_the_smallest_example_needs_no_more_than_ten_lines() -> None:
    lines = (EXAMPLES / "minimal.yaml").read_text("utf-8").splitlines()
    assert len([line for line in lines if not line.startswith("#")]) <= 10


GUIDES = sorted((Path(__file__).parents[2] / "docs" / "guides").glob("*.md"))


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_every_vllmdeployment_in_a_guide_is_one(page: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for manifest in (manifest for block in blocks for manifest in yaml.safe_load_all(block)):
        if manifest.get("kind") == "VLLMDeployment":
            VLLMDeployment.parse(manifest)
