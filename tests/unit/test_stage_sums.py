"""The durations of the stages agree with the figures that the engine logs itself."""

import re
from pathlib import Path

import pytest
import yaml

from support.pasted import read_pasted
from vllm_operator.cli.diagnose import as_json

CORPUS = Path(__file__).parents[1] / "corpus"
TOTAL = re.compile(r"init engine \(profile, create kv cache, warmup model\) took (\d+(?:\.\d+)?) s")
INNER = {"TorchCompile", "MemoryProfiling", "KernelWarmup", "Autotune", "FlashInferWarmup", "CUDAGraphCapture"}
"""Stages between the end of the weights and the line that says how long the engine took."""
SECONDS_SLACK = 2  # times of lines are whole seconds

LABELS = yaml.load((CORPUS / "independent/labels.yaml").read_text(), Loader=yaml.CSafeLoader)
INVENTED = {CORPUS / "independent" / each["file"] for each in LABELS if each.get("set", 0) >= 3}
"""Their times do not agree with the figures beside them."""
LOGS = sorted(set(CORPUS.rglob("*.log")) - INVENTED)
CAPTURED = re.compile(r"Graph capturing finished in (\d+) secs")
TEXTS = {log: log.read_text("utf-8", "replace") for log in LOGS}
TOTALS = {log: float(said[1]) for log in LOGS if (said := TOTAL.search(TEXTS[log])) is not None and "\n" in TEXTS[log][: said.start()]}
"""By log; an excerpt that begins with this line does not show the stages."""
GRAPHS = {log: int(each[0]) for log in TOTALS if len(each := CAPTURED.findall(TEXTS[log])) == 1}


@pytest.mark.parametrize("log", TOTALS, ids=lambda log: log.stem)
def test_the_stages_of_an_engine_take_as_long_as_it_says(log: Path) -> None:
    stages = as_json(read_pasted(log.read_bytes()).final_state)["stages"]
    total = sum(stage["seconds"] or 0 for stage in stages if stage["stage"] in INNER)
    assert total == pytest.approx(TOTALS[log], rel=0.1, abs=SECONDS_SLACK)


@pytest.mark.parametrize("log", GRAPHS, ids=lambda log: log.stem)
def test_the_capture_of_graphs_takes_as_long_as_the_engine_says(log: Path) -> None:
    seconds = {stage["stage"]: stage["seconds"] for stage in as_json(read_pasted(log.read_bytes()).final_state)["stages"]}
    # Up to 5 s of kernels that are prepared afterwards count as a part of it.
    assert seconds["CUDAGraphCapture"] == pytest.approx(GRAPHS[log], rel=0.1, abs=5 + SECONDS_SLACK)


def test_kernels_that_are_prepared_in_silence_after_a_brief_autotuner_are_a_stage() -> None:
    state = read_pasted((CORPUS / "induced/good-flashinfer-sampler-v026.log").read_bytes()).final_state
    seconds = {stage["stage"]: stage["seconds"] for stage in as_json(state)["stages"]}
    assert "Autotune" not in seconds
    assert seconds["KernelWarmup"] == pytest.approx(117, abs=1)
