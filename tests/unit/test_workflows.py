"""The workflows of CI: what they run exists, and what others made is pinned to a commit."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testenv.binaries import KUBERNETES, kubernetes_versions

ROOT = Path(__file__).parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def steps(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each step with its job."""
    for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values():
        for step in job["steps"]:
            yield job, step


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_pinned_to_a_commit_and_says_which_version_that_is(path: Path) -> None:
    uses = [line.strip(" -") for line in path.read_text("utf-8").splitlines() if "uses:" in line]
    assert uses
    assert [line for line in uses if not re.fullmatch(r"uses: [\w./-]+@[0-9a-f]{40} # v[\d.]+", line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_target_of_make_exists(path: Path) -> None:
    text = path.read_text("utf-8")
    targets = set(re.findall(r"make ([a-z][a-z-]+)", text))
    targets |= {target for job, _ in steps(path) for target in job.get("strategy", {}).get("matrix", {}).get("target", [])}
    assert targets or path.stem == "scorecard"  # it runs nothing of this repository
    assert targets <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_may_read_only_and_ends_by_itself(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 90 for job in workflow["jobs"].values())
    writing = {name for name, job in workflow["jobs"].items() if "write" in str(job.get("permissions", ""))}
    # a release publishes, and Scorecard proves with an identity token which repository its result is of
    assert writing == (set(workflow["jobs"]) if path.stem in ("release", "scorecard") else set())


def test_all_tiers_of_tests_run_in_ci() -> None:
    text = " ".join(path.read_text("utf-8") for path in WORKFLOWS)
    for target in ("check", "docs", "audit", "test", "test-extended", "test-exhaustive", "test-node", "kind-up"):
        assert re.search(rf"\b{target}\b", text), target


def test_every_kubernetes_that_tests_can_run_on_is_tested_in_ci() -> None:
    """The usual one with each change, the others each night."""
    [(job, _), *_] = steps(ROOT / ".github" / "workflows" / "kubernetes.yaml")
    nightly = [version for version, module in kubernetes_versions().items() if module != KUBERNETES]
    assert job["strategy"]["matrix"]["version"] == [version.rpartition(".")[0] for version in nightly]


SCRIPTS = [*sorted(ROOT.glob("hack/*.sh")), ROOT / ".ci" / "run"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_one_that_the_shell_can_read(path: Path) -> None:
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert path.stat().st_mode & 0o111, f"{path.name} cannot be executed"
    text = path.read_text("utf-8")
    # the gate goes on after a failure
    assert ("set -uo pipefail" if path.name == "run" else "set -euo pipefail") in text
    # it closes the pipe at the first match, and what still writes into it fails: with pipefail that is "no match"
    assert not re.search(r"\| *grep -\w*q", text)
