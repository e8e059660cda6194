"""Manifests of many situations, each next to the VLLMDeployment and the plan that they follow from.

A difference here is a rollout of every such deployment when the operator is upgraded: mean it.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.manifests import CASES, MAX_TEMPLATE_BYTES, read_case
from vllm_operator.rendering.manifests import render


class BlockDumper(yaml.SafeDumper):
    """YAML as people write it: lists indented, nothing shared."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_manifests_are_as_recorded(folder: Path, golden: Callable[[Path, str], None]) -> None:
    manifests = list(render(*read_case(folder)))
    golden(folder / "manifests.yaml", yaml.dump_all(manifests, Dumper=BlockDumper, sort_keys=False, width=120))


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_equal_input_gives_equal_manifests(folder: Path) -> None:
    assert render(*read_case(folder)) == render(*read_case(folder))


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_manifests_are_plain_json_without_nulls(folder: Path) -> None:
    for path, value in walk(render(*read_case(folder))):
        assert type(value) in (dict, list, str, int, bool), f"{path} is {value!r}"


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_pod_templates_are_small(folder: Path) -> None:
    for manifest in render(*read_case(folder)):
        assert len(json.dumps(manifest.get("spec", {}).get("template"))) < MAX_TEMPLATE_BYTES


@pytest.mark.parametrize("replicas", [0, 3])
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_scaling_leaves_the_pod_template_byte_equal(folder: Path, replicas: int) -> None:
    resource, plan = read_case(folder)
    scaled = resource.model_copy(update={"spec": resource.spec.model_copy(update={"replicas": replicas})})
    before, after = (
        [json.dumps(each["spec"]["template"]) for each in render(it, plan) if each["kind"] == "Deployment"] for it in (resource, scaled)
    )
    assert before == after


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, value
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        yield from walk(entry, f"{path}/{name}")
