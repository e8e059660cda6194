"""The parts of the demo that need no cluster: when recorded lines were written, what is shown, what is complained about."""

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from demo.history import History
from demo.pods import BEFORE_FIRST_LINE, Player
from demo.screen import Lines, draw
from demo.situations import SITUATIONS, failures
from testenv.api import ApiClient, ApiError
from testenv.replay import read_recording
from vllm_operator.api.resource import VLLMDeployment

BY_NAME = {situation.name: situation for situation in SITUATIONS}


def deployment(status: dict[str, Any], *, name: str = "deepseek") -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load(BY_NAME[name].manifest.read_text("utf-8"))
    return manifest | {"status": status}


def condition(type: str, status: str, reason: str, message: str = "because") -> dict[str, Any]:
    return {"type": type, "status": status, "reason": reason, "message": message}


def starting(stage: str, completed: int, total: int) -> dict[str, Any]:
    return {"startup": {"stage": stage, "completed": completed, "total": total}, "conditions": [condition("Ready", "False", "Starting")]}


COMPILING = {
    "pinnedPlan": {"architecture": "sm_90", "image": "vllm/vllm-openai:v0.20.1"},
    "startup": {"stage": "KernelWarmup", "completed": 1436, "total": 1735, "message": "DeepGEMM warm-up 1436/1735, about 2 min left"},
    "conditions": [
        condition("Ready", "False", "Starting", "DeepGEMM warm-up 1436/1735, about 2 min left."),
        condition("Planned", "True", "Resolved", "Planned for NVIDIA H200 (sm_90), 1 GPU per replica. Backends: MoE DEEPGEMM."),
    ],
    "cache": {"state": "Cold"},
}


def test_every_situation_is_a_valid_deployment() -> None:
    for situation in SITUATIONS:
        parsed = VLLMDeployment.parse(yaml.safe_load(situation.manifest.read_text("utf-8")))
        assert parsed.metadata.name == situation.name


def test_the_two_starts_of_the_same_model_differ_only_in_their_cache() -> None:
    first, second = (VLLMDeployment.parse(deployment({}, name=name)).spec for name in ("deepseek", "deepseek-again"))
    assert first.model_copy(update={"cache": None}) == second.model_copy(update={"cache": None})
    assert second.cache is not None
    assert second.cache.claim_name == "deepseek-cache"


@pytest.mark.parametrize(("name", "want_seconds"), [("deepseek", 458.8), ("deepseek-again", 34.9)])
def test_a_start_takes_as_long_as_was_measured(name: str, want_seconds: float) -> None:
    path = BY_NAME[name].recording
    assert path is not None
    assert BEFORE_FIRST_LINE + read_recording(path)[-1].seconds == pytest.approx(want_seconds, abs=1)


def test_a_history_keeps_each_stage_once_and_each_step() -> None:
    history = History("deepseek")
    for now, status in enumerate([{}, starting("KernelWarmup", 0, 10), starting("KernelWarmup", 5, 10), starting("ServerStart", 0, 0)]):
        history.update(deployment(status), now)
    assert history.stages == ["KernelWarmup", "ServerStart"]
    assert history.progress == {"KernelWarmup": [(0, 10), (5, 10)]}
    assert history.applied_at == 0
    assert history.settled_at is None


def test_a_history_stops_its_clock_when_the_deployment_serves() -> None:
    history = History("deepseek")
    history.update(deployment({}), 3.0)
    history.update(deployment({"conditions": [condition("Ready", "True", "Serving")]}), 8.0)
    assert history.elapsed(100.0) == 5.0


def test_a_demo_that_shows_nothing_fails_for_every_situation() -> None:
    complaints = failures({name: History(name) for name in BY_NAME})
    assert {complaint.partition(":")[0] for complaint in complaints} == set(BY_NAME)


def test_a_wrong_reason_is_reported_with_the_right_one() -> None:
    histories = {name: History(name) for name in BY_NAME}
    histories["llama"].update(deployment({"conditions": [condition("Planned", "True", "Resolved")]}, name="llama"), 0.0)
    complaints = "\n".join(failures(histories))
    assert "llama: the condition Planned is 'True' and should be 'False'" in complaints
    assert "llama: the reason of Planned is 'Resolved' and should be 'NoMatchingGPU'" in complaints


def shown(history: History) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(draw([history], title="demo", width=160))
    return console.export_text()


def test_the_screen_shows_progress_and_why_it_does_not_serve_yet() -> None:
    history = History("deepseek")
    history.update(deployment(COMPILING), 1.0)
    for words in ("deepseek", "sm_90", "KernelWarmup", "1436/1735", "DeepGEMM warm-up 1436/1735, about 2 min left."):
        assert words in shown(history)


def test_the_screen_shows_a_crash() -> None:
    history = History("tinyllama")
    crashed = [
        condition("Ready", "False", "MigUuidNotInteger", "See condition Crashed."),
        condition("Crashed", "True", "MigUuidNotInteger"),
    ]
    history.update(deployment({"conditions": crashed}, name="tinyllama"), 1.0)
    assert "tinyllama: See condition Crashed." in shown(history)


def test_without_a_terminal_each_tenth_of_a_stage_is_one_line() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    lines = Lines(console)
    history = History("deepseek")
    for step in range(100):
        history.update(deployment(starting("KernelWarmup", step, 100)), float(step))
        lines.show([history], now=float(step))
    assert len(console.export_text().splitlines()) == 10


@pytest.mark.parametrize(("last", "asked"), [(None, 3), (ApiError(404, "not found"), 3)], ids=["it answers again", "the Pod is gone"])
async def test_what_a_pod_is_asked_survives_an_outage_of_the_api_server(last: Exception | None, asked: int, tmp_path: Path) -> None:
    answers = [ConnectionError("it went away"), TimeoutError("timed out"), last]
    seen: list[str] = []

    class Client(ApiClient):
        def __init__(self) -> None:
            """Has no server."""

        def request(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> Any:
            seen.append(f"{method} {path}")
            if (answer := answers.pop(0)) is not None:
                raise answer

    player = Player(Client(), tmp_path, namespace="demo", speed=1000.0)
    await player._annotate({"metadata": {"name": "a"}}, {"load": "0"})
    assert seen == ["PATCH /api/v1/namespaces/demo/pods/a"] * asked
