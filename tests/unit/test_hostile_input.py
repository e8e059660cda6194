"""Commands end with a sentence, whatever a file holds and whatever a terminal can show."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.engine_logs import HEALTHY_START, engine_failure
from vllm_operator.__main__ import main
from vllm_operator.cli.documents import read_objects
from vllm_operator.cli.inputs import InputError
from vllm_operator.kube.connection import context_namespace

LAUGHS = "\n".join(f"a{each}: &a{each} [{', '.join([f'*a{each - 1}' if each else 'x'] * 9)}]" for each in range(12))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("[" * 100_000, "nested deeper", id="lists in lists"),
        pytest.param("- " * 100_000 + "a", "nested deeper", id="lists on a line"),
        pytest.param("{a: " * 100_000, "nested deeper", id="mappings in mappings"),
        pytest.param("&a [*a]", "is within", id="a list that holds itself"),
        pytest.param("kind: List\nitems: &a [{kind: List, items: *a}]", "is within", id="a List that holds itself"),
        pytest.param("kind: VLLMDeployment\nspec: &a {podTemplate: *a}", "is within", id="a spec that holds itself"),
        pytest.param(LAUGHS, "more than", id="aliases that multiply"),
    ],
)
def test_a_file_that_would_never_end_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "objects.yaml"
    path.write_text(text, "utf-8")

    with pytest.raises(InputError, match=says):
        read_objects(str(path))
    assert main(["plan", "-f", str(path)]) == 2


def test_an_alias_that_repeats_something_is_read(tmp_path: Path) -> None:
    path = tmp_path / "objects.yaml"
    path.write_text("kind: A\none: &x {a: 1}\ntwo: *x\n---\n[{kind: B}, {kind: C}]\n", "utf-8")

    assert [each["kind"] for each in read_objects(str(path))] == ["A", "B", "C"]


@pytest.mark.parametrize(
    "config",
    [
        b"[1]",
        b"text",
        b"\xff\xfe\x00",
        b"contexts: 5\ncurrent-context: a",
        b"contexts: [5]\ncurrent-context: a",
        b"current-context: a\ncontexts: [{name: a, context: [1]}]",
        b"- [",
        b"",
    ],
)
def test_a_kubeconfig_that_is_none_names_no_namespace(tmp_path: Path, config: bytes) -> None:
    (tmp_path / "odd").write_bytes(config)
    good = {
        "current-context": "b",
        "contexts": [{"name": "b", "context": {"cluster": "c", "user": "u", "namespace": "models"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example.com"}}],
        "users": [{"name": "u", "user": {}}],
    }
    (tmp_path / "good").write_text(json.dumps(good), "utf-8")

    assert context_namespace({"KUBECONFIG": str(tmp_path / "odd")}) == "default"
    assert context_namespace({"KUBECONFIG": f"{tmp_path}/missing:{tmp_path}/good"}) == "models"


def test_a_terminal_that_knows_few_characters_shows_the_others_in_another_way(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(HEALTHY_START + engine_failure("RuntimeError: das hei\u00dft \u4e0d"), "utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}

    shown = subprocess.run([sys.executable, "-m", "vllm_operator", "diagnose", str(log)], capture_output=True, env=environment, check=False)

    assert shown.returncode == 0, shown.stderr
    assert rb"das hei\xdft \u4e0d" in shown.stdout
