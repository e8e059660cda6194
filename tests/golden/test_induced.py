"""Real starts that were broken on purpose, one way each, and some that were not: each by its name, no alarm where there is none."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.pasted import KNOWLEDGE, read_either_way
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Progress, Stage

H200 = Path(__file__).parent.parent / "corpus" / "h200"
INDUCED = Path(__file__).parent.parent / "corpus" / "induced"
LABELS: dict[str, dict[str, Any]] = yaml.safe_load((INDUCED / "labels.yaml").read_text("utf-8"))
SERVED = sorted(name for name, label in LABELS.items() if name.startswith("good-") and label["stage"] == "Ready")


def read(name: str) -> StartupParser:
    return read_either_way((INDUCED / f"{name}.log").read_bytes())


def test_every_recording_has_a_label() -> None:
    assert {path.stem for path in INDUCED.glob("*.log")} == set(LABELS)


@pytest.mark.parametrize("name", sorted(LABELS))
def test_a_broken_start_is_named_by_what_broke_it(name: str) -> None:
    state = read(name).final_state

    assert (state.crash and state.crash.signature) == LABELS[name]["signature"]
    assert state.stage == LABELS[name]["stage"]


@pytest.mark.parametrize("name", sorted(name for name, label in LABELS.items() if label["signature"] is None))
def test_a_good_start_raises_no_alarm_on_its_way(name: str) -> None:
    parser = StartupParser(KNOWLEDGE)
    for line in (INDUCED / f"{name}.log").read_bytes().splitlines(keepends=True):
        parser.feed(line)
        assert parser.state.crash is None


@pytest.mark.parametrize("name", SERVED)
def test_the_stages_of_a_good_start_follow_each_other(name: str) -> None:
    state = read(name).final_state

    stages = [stage for stage, _ in state.entered]
    others = [stage for stage in stages if stage is not Stage.KERNEL_WARMUP]  # engines may also prepare kernels after they captured graphs
    times = [time for _, time in state.entered if time is not None]
    assert others == sorted(others, key=list(Stage).index)
    assert times == sorted(times)
    assert {Stage.CONFIGURATION, Stage.WEIGHT_LOAD, Stage.SERVER_START} <= set(stages)
    assert state.engine_version == LABELS[name].get("version", "0.20.1")
    assert {component for component, _ in state.observed_backends} & {"Attention", "MLADecode", "LinearAttention"}


@pytest.mark.parametrize("path", [*sorted(H200.glob("*.log")), *(INDUCED / f"{name}.log" for name in SERVED)], ids=lambda path: path.stem)
def test_every_bar_is_followed_to_its_end(path: Path) -> None:
    parser = StartupParser(KNOWLEDGE)
    last: dict[tuple[Stage, str], Progress] = {}
    for line in path.read_bytes().splitlines(keepends=True):
        parser.feed(line)
        if progress := parser.state.progress:
            last[parser.state.stage, progress.label] = progress
    assert [progress for progress in last.values() if progress.completed < progress.total] == []


def test_what_compiles_in_silence_before_the_graphs_is_not_taken_for_their_capture() -> None:
    # The bar of the capture has no time of its own; the engine says afterwards how long it took.
    entered = dict(read("good-flashinfer").final_state.entered)

    begun, over = entered[Stage.CUDA_GRAPH_CAPTURE], entered[Stage.SERVER_START]
    assert begun is not None
    assert over is not None
    assert (over - begun).total_seconds() == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kv-offload-huge-v023", "the node's memory"),
        ("endpoint-bad-v026", "HF_ENDPOINT"),
        ("index-more-v026", "It lacks /models/index-more/model-00004-of-00004.safetensors."),
        ("dcp-v026", "tp_size=1 must be divisible by dcp_size=2"),
        ("tf-config-v026", "PretrainedConfig could not be imported from transformers. Each version has it, so the package is incomplete"),
        ("torchlogs-v023", "Invalid log settings: everything_please"),
        ("token-401-v026", "spec.model.tokenSecretRef"),
        ("triton-cache-proc-v026", "/proc/1/triton cannot be created"),
        ("tp2-stale-file", "/mnt/models/model-00001-of-00003.safetensors returned an I/O error (Stale file handle)"),
        ("env-choice", "vLLM rejected the value ultra of VLLM_FLOAT32_MATMUL_PRECISION (allowed: 'highest', 'high', 'medium')"),
        ("tp2-config-type", "Field 'num_hidden_layers' expected int"),
        ("pp2-worker-segv", "PYTHONFAULTHANDLER=1"),
        ("dp2-two-balancers", "both external and hybrid data parallel load balancing modes"),
    ],
)
def test_what_is_said_leads_to_what_was_broken(name: str, said: str) -> None:
    crash = read(name).final_state.crash

    assert crash is not None
    assert said in f"{crash.cause} {crash.remedy}"
