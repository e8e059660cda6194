"""The programs for Pods: one file that needs nothing but Python, and the containers that get it."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import build_tools
from support.tools import archive, command
from vllm_operator.pods.tools import operator_container, tool_command, with_tools
from vllm_operator.tools.__main__ import PROGRAMS

ROOT = Path(__file__).parent.parent.parent
IMAGE = "registry.example/vllm-operator:1"
VARIABLES = {
    "fetch-caches": ("CACHE_ARTIFACT", "ARTIFACT_REPORT"),
    "pack-caches": ("PACK_ARTIFACT", "ARTIFACT_REPORT"),
    "publish-caches": ("PUBLISH_ARTIFACT", "ARTIFACT_REPORT"),
    "measure": ("MEASURE", "ARTIFACT_REPORT"),
    "fetch-weights": ("FETCH_WEIGHTS", "FETCH_REPORT"),
}
"""Variables of the programs with their settings, and with the path of their report."""


def test_equal_sources_give_equal_files(tmp_path: Path) -> None:
    first, second = build_tools.build(tmp_path / "first"), build_tools.build(tmp_path / "second")
    assert first.read_bytes() == second.read_bytes()


def test_the_file_has_nothing_but_the_programs() -> None:
    with zipfile.ZipFile(archive()) as opened:
        names = set(opened.namelist())
    modules = {f"vllm_operator/tools/{path.name}" for path in build_tools.PACKAGE.glob("*.py")}
    assert names == {"__main__.py", "vllm_operator/__init__.py", *modules}


@pytest.mark.parametrize("program", VARIABLES)
def test_a_program_needs_no_other_package_and_reports_a_failure(tmp_path: Path, program: str) -> None:
    settings, report = VARIABLES[program]
    without_packages = [sys.executable, "-S", *command(program)[1:]]
    done = subprocess.run(without_packages, env={settings: "{}", report: str(tmp_path / "report")}, capture_output=True, timeout=60)
    assert json.loads((tmp_path / "report").read_text())["result"] == "Failed", done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_name_runs_a_program(program: str) -> None:
    done = subprocess.run([sys.executable, "-S", *command(program)[1:]], env={}, capture_output=True, text=True, timeout=60)
    assert "ADAPTERS" in done.stderr or "CLEAN_ROOT" in done.stderr or program in VARIABLES
    assert "ModuleNotFoundError" not in done.stderr


def test_the_file_copies_and_unpacks_itself_and_the_probe_keeps_its_bytecode(tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    subprocess.run(command("copy", str(folder)), check=True, timeout=60)
    assert (folder / "tools.pyz").read_bytes() == archive().read_bytes()
    words = tool_command("check-engine", "http://127.0.0.1:1", str(tmp_path / "state"), "/nowhere", "/nowhere", "Report", root=str(folder))
    prefix = next(word.partition("=")[2] for word in words if word.startswith("pycache_prefix="))
    words = [word.replace(prefix, str(tmp_path / "bytecode")) for word in words]
    before = set(folder.rglob("*"))
    for _ in range(2):
        done = subprocess.run([sys.executable, *words[1:]], env={}, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout[:29], done.stderr) == (1, "The server cannot be reached:", "")
    kept = {path.name.partition(".")[0] for path in (tmp_path / "bytecode").rglob("*.pyc")}
    assert {"check_engine", "progress"} <= kept
    assert not kept & {"hang", "connections", "ssl", "json", "re", "typing", "dataclasses"}, "what an ordinary probe does not need"
    assert set(folder.rglob("*")) == before, "the volume is read-only"


@pytest.mark.parametrize("arguments", [[], ["unpack"], ["copy"]])
def test_another_name_is_refused(arguments: list[str]) -> None:
    done = subprocess.run([*command("x")[:-1], *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[-1].startswith("usage: ")) == (2, True)


def test_the_path_in_the_image_is_that_of_its_build() -> None:
    target = operator_container({}, IMAGE, "publish-caches")["command"][3]
    assert f"hack/build_tools.py {target}" in (ROOT / "Dockerfile").read_text("utf-8")


@pytest.mark.parametrize(
    ("of_pod", "user"), [({}, None), ({"runAsUser": 1000}, None), ({"runAsUser": 0}, 65532)], ids=["none", "another", "root"]
)
def test_a_container_of_the_operators_image_has_no_rights(of_pod: dict[str, Any], user: int | None) -> None:
    context = operator_container({"securityContext": of_pod}, IMAGE, "copy")["securityContext"]
    assert context.get("runAsUser") == user
    assert (context["runAsNonRoot"], context["capabilities"], context["allowPrivilegeEscalation"]) == (True, {"drop": ["ALL"]}, False)


def test_the_programs_are_copied_first_and_once() -> None:
    spec = {"initContainers": [{"name": "mine"}], "volumes": [{"name": "mine"}]}
    made = with_tools(with_tools(spec, IMAGE), "another:2")
    assert [(container["name"], container.get("image")) for container in made["initContainers"]] == [("copy-tools", IMAGE), ("mine", None)]
    assert made["volumes"] == [{"name": "mine"}, {"name": "operator-tools", "emptyDir": {}}]
    assert spec == {"initContainers": [{"name": "mine"}], "volumes": [{"name": "mine"}]}


def test_only_the_operators_image_gets_the_account_for_pushing() -> None:
    primer = yaml.safe_load((ROOT / "tests" / "golden" / "upkeep" / "primer-that-publishes.yaml").read_text("utf-8"))
    spec = primer["spec"]["template"]["spec"]
    [volume] = [each["name"] for each in spec["volumes"] if each.get("secret", {}).get("secretName") == "caches-write"]
    containers = [*spec["initContainers"], *spec["containers"]]
    images = {each["image"] for each in containers if any(mount["name"] == volume for mount in each["volumeMounts"])}
    assert images == {IMAGE}
