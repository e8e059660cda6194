"""`vllm-operator diagnose --score`: how often the diagnosis of labeled logs is right, as a number."""

import json
from pathlib import Path

import pytest

from support.engine_logs import HEALTHY_START, engine_failure
from vllm_operator.__main__ import main
from vllm_operator.cli.scoring import Label, Verdict, judge
from vllm_operator.logs.state import Crash

LABELS = """
- {file: memory.log, date: 2026-05, signature: NoKvCacheMemory, accept: [], must: [memory]}
- {file: later.log, date: 2026-07-03, signature: none, accept: [], must: [odd]}
"""


def folder_of(tmp_path: Path, labels: str = LABELS) -> Path:
    (tmp_path / "labels.yaml").write_text(labels)
    (tmp_path / "memory.log").write_text(HEALTHY_START + engine_failure("ValueError: No available memory for the cache blocks."))
    (tmp_path / "later.log").write_text(HEALTHY_START + engine_failure("RuntimeError: odd"))
    return tmp_path


def found(signature: str, cause: str = "Memory is short.", family: str = "") -> Crash:
    return Crash(signature, cause, "Do this.", None, "ValueError: odd", family=family)


@pytest.mark.parametrize(
    ("signature", "accept", "crash", "verdict"),
    [
        pytest.param("NoMemory", (), found("NoMemory"), Verdict.RIGHT, id="the name of the label"),
        pytest.param("Other", ("NoMemory",), found("NoMemory"), Verdict.RIGHT, id="a name that fits as well"),
        pytest.param("NoMemory", (), found("NoMemory", "It failed."), Verdict.PARTLY, id="the name, without the word that matters"),
        pytest.param("none", (), found("NoMemory"), Verdict.WRONG, id="a name where none fits"),
        pytest.param("Other", (), found("NoMemory"), Verdict.WRONG, id="another name"),
        pytest.param("none", (), found("Unknown", family="KvPart"), Verdict.RIGHT, id="no name, and the part that failed"),
        pytest.param("none", (), found("Unknown", family="AnyError"), Verdict.PARTLY, id="no name, and only the type of the error"),
        pytest.param("none", (), found("Unknown"), Verdict.PARTLY, id="no name, and nothing but the message"),
        pytest.param("Other", (), found("Unknown", family="KvPart"), Verdict.PARTLY, id="no name where one fits"),
        pytest.param("none", (), found("Unknown", "It failed.", "KvPart"), Verdict.UNKNOWN, id="not the line that matters"),
        pytest.param("Other", (), None, Verdict.UNKNOWN, id="no crash found"),
    ],
)
def test_a_diagnosis_is_judged_by_its_name_and_by_words_of_its_headline(
    signature: str, accept: tuple[str, ...], crash: Crash | None, verdict: Verdict
) -> None:
    label = Label(file="a.log", signature=signature, accept=accept, must=("memory",))
    assert judge(label, crash, {"AnyError"}) is verdict


@pytest.mark.parametrize(("crash", "verdict"), [(None, Verdict.RIGHT), (found("NoMemory"), Verdict.WRONG)])
def test_in_a_healthy_log_only_no_crash_is_right(crash: Crash | None, verdict: Verdict) -> None:
    assert judge(Label(file="a.log", signature="none", healthy=True), crash) is verdict


def test_each_log_of_a_folder_and_the_totals_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--score", str(folder_of(tmp_path))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "right    memory.log: NoKvCacheMemory, label NoKvCacheMemory"
    assert lines[1] == "partly   later.log: Unknown (EngineLoopFailed), label none"
    assert lines[2] == "2 reports: right 1 (50 %), partly 1 (50 %), wrong 0 (0 %), unknown 0 (0 %)"


@pytest.mark.parametrize(("option", "file"), [("--before", "memory.log"), ("--since", "later.log")])
def test_a_folder_can_be_scored_in_parts_by_date(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, file: str) -> None:
    assert main(["diagnose", "--score", str(folder_of(tmp_path)), option, "2026-07", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["file"] for each in told["reports"]] == [file]
    assert sum(told["totals"].values()) == 1


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("- {file: a.log}", "signature is missing"),
        ("- {file: ../a.log, signature: none}", "outside its folder"),
        ("- {file: absent.log, signature: none}", "cannot be read"),
        ("[", "is not valid YAML"),
    ],
)
def test_a_mistake_in_the_labels_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], labels: str, message: str) -> None:
    assert main(["diagnose", "--score", str(folder_of(tmp_path, labels))]) == 2
    assert message in capsys.readouterr().err


def test_a_log_or_a_folder_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose"]) == 2
    assert "a folder with --score" in capsys.readouterr().err
