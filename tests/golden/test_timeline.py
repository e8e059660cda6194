"""Starts side by side: of recorded logs, of a status, as text, JSON and a picture."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.__main__ import main
from vllm_operator.cli.screen import plain
from vllm_operator.cli.timeline import starts_of_status
from vllm_operator.cli.timeline_page import Start, timeline_json, timeline_page, timeline_svg

Golden = Callable[[Path, str], None]

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "screens"
COLD = ROOT / "tests" / "corpus" / "h200" / "dsv3-fp8-cold-full.log"
WARM = ROOT / "hack" / "demo" / "recordings" / "dsv3-fp8-warm.log"
CRASHED = ROOT / "tests" / "corpus" / "h200" / "gpu-util-too-low.log"
STATUS: dict[str, Any] = {
    "status": {
        "cache": {
            "coldStartSeconds": 459,
            "coldStages": "CUDAGraphCapture=77,KernelWarmup=292,NewStage=3",
            "warmStartSeconds": 35,
            "warmStages": "ProcessStart=12,WeightLoad=14,TorchCompile=9",
        }
    }
}
SVG = "{http://www.w3.org/2000/svg}"


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["diagnose", "--timeline", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_two_recorded_starts_side_by_side(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    golden(FOLDER / "timeline.txt", diagnosed(capsys, COLD, WARM))
    golden(ROOT / "docs" / "images" / "timeline.svg", diagnosed(capsys, COLD, WARM, "-o", "svg"))


def test_a_start_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    (start,) = json.loads(diagnosed(capsys, CRASHED, "-o", "json"))
    assert (start["start"], start["ready"], start["seconds"]) == ("gpu-util-too-low", False, 48)
    assert {"stage": "MemoryProfiling", "seconds": 8} in start["stages"]
    assert "gpu-util-too-low: 48 s, crashed" in diagnosed(capsys, CRASHED)


def test_a_status_has_a_cold_and_a_warm_start(golden: Golden) -> None:
    starts = starts_of_status(STATUS)
    golden(FOLDER / "timeline-of-a-status.txt", plain(timeline_page(starts)) + "\n")
    assert [(each["start"], each["seconds"]) for each in timeline_json(starts)] == [("cold start", 459), ("warm start", 35)]
    assert dict(starts[0].stages) == {"KernelWarmup": 292, "CUDAGraphCapture": 77, "NewStage": 3, "other": 87}
    assert starts_of_status({"status": {}}) == []


def test_a_log_without_times_and_several_logs_without_a_timeline_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").write_text("no log\n", "utf-8")
    assert main(["diagnose", "--timeline", str(tmp_path / "notes")]) == 2
    assert main(["diagnose", str(COLD), str(WARM)]) == 2
    assert main(["diagnose", str(COLD), "-o", "svg"]) == 2
    assert "has no vLLM start with times" in capsys.readouterr().err


def test_bars_of_a_picture_have_the_widths_of_their_stages() -> None:
    starts = [Start("a", (("WeightLoad", 30.0), ("TorchCompile", 60.0))), Start("b", (("WeightLoad", 30.0),), "crashed")]
    picture = ElementTree.fromstring(timeline_svg(starts, "t"))
    bars = [float(rect.get("width", "0")) for rect in picture.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert bars[1] == pytest.approx(2 * bars[0], abs=0.2)
    assert bars[2] == bars[0]
    assert "30 s, crashed" in [text.text for text in picture.iter(f"{SVG}text")]


NAMES = st.text(max_size=40)


@given(st.lists(st.builds(Start, NAMES, st.lists(st.tuples(NAMES, st.floats(0, 1e9))).map(tuple), NAMES), max_size=6), NAMES)
def test_any_starts_make_a_picture_that_is_xml(starts: list[Start], title: str) -> None:
    ElementTree.fromstring(timeline_svg(starts, title))
    if starts:
        timeline_page(starts)


FIELDS = st.sampled_from(["coldStartSeconds", "coldStages", "warmStages"])


@given(st.dictionaries(FIELDS, st.integers() | st.text() | st.just("A=1,B=99999999")))
def test_any_status_has_starts_or_none(cache: dict[str, Any]) -> None:
    timeline_svg(starts_of_status({"status": {"cache": cache}}), "t")
