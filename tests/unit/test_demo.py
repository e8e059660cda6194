"""The parts of the demo that need no cluster: when recorded lines were written, what is shown, what is complained about."""

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from demo.history import History
from demo.pods import BEFORE_FIRST_LINE, FIGURES, Player, Role, role_of
from demo.screen import Lines, draw
from demo.situations import COLD, MIG_UUID, NO_MEMORY, RECORDINGS, SITUATIONS, WARM, failures
from support.gpus import real_node
from support.plans import made
from testenv.api import ApiClient, ApiError
from testenv.replay import read_recording
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import MeasuredMemory, Stage
from vllm_operator.rendering.manifests import render

BY_NAME = {situation.name: situation for situation in SITUATIONS}


def deployment(status: dict[str, Any], *, name: str = "deepseek") -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load(BY_NAME[name].manifest.read_text("utf-8"))
    return manifest | {"status": status}


def condition(type: str, status: str, reason: str, message: str = "because") -> dict[str, Any]:
    return {"type": type, "status": status, "reason": reason, "message": message}


def starting(stage: str, completed: int, total: int) -> dict[str, Any]:
    return {"startup": {"stage": stage, "completed": completed, "total": total}, "conditions": [condition("Ready", "False", "Starting")]}


COMPILING = {
    "gpu": "NVIDIA-H200",
    "plan": "Planned for NVIDIA H200 (sm_90), 1 GPU per replica. Backends: MoE DEEPGEMM.",
    "startup": {"stage": "KernelWarmup", "completed": 1436, "total": 1735, "message": "DeepGEMM warm-up 1436/1735, about 2 min left"},
    "conditions": [condition("Ready", "False", "Starting", "DeepGEMM warm-up 1436/1735, about 2 min left.")],
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


@pytest.mark.parametrize(("path", "want_seconds"), [(COLD, 458.8), (WARM, 34.9)], ids=["cold", "warm"])
def test_a_start_takes_as_long_as_was_measured(path: Path, want_seconds: float) -> None:
    assert BEFORE_FIRST_LINE + read_recording(path)[-1].seconds == pytest.approx(want_seconds, abs=1)


def pod_of(name: str, *, filled: bool = False, **spec: Any) -> tuple[dict[str, Any], set[str]]:
    """A Pod of a situation, with changes of its spec, and the directories of caches that are filled: its own, or none."""
    manifest = yaml.safe_load(BY_NAME[name].manifest.read_text("utf-8"))
    resource = VLLMDeployment.parse(manifest | {"spec": manifest["spec"] | spec})
    plan = made(resource, real_node("h200"))
    [rendered] = [each for each in render(resource, plan) if each["kind"] == "Deployment"]
    return rendered["spec"]["template"], {f"{name}-cache/{plan.cache_key}"} if filled else set()


QWEN: dict[str, Any] = {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "accelerator": None}
SMALL_COLD, SMALL_WARM = (Role(RECORDINGS / f"llama-bf16-{kind}.log", with_figures=False) for kind in ("cold", "warm"))
ENOUGH = {"version": "0.20.1", "args": [{"name": "gpu-memory-utilization", "value": "0.95"}]}
NUMBER = {"version": "0.20.1", "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}
ROLES = {
    "the recorded model, cold": (pod_of("deepseek"), Role(COLD)),
    "the recorded model, on filled caches": (pod_of("deepseek", filled=True), Role(WARM)),
    "a MIG UUID": (pod_of("tinyllama"), Role(MIG_UUID, crashes=True)),
    "a number instead of it, as the remedy says": (pod_of("tinyllama", engine=NUMBER), SMALL_COLD),
    "too small a share of the GPU": (pod_of("mistral", accelerator=None), Role(NO_MEMORY, crashes=True)),
    "a larger one, as the remedy says": (pod_of("mistral", accelerator=None, engine=ENOUGH), SMALL_COLD),
    "no such variable": (pod_of("tinyllama", engine={"version": "0.20.1"}), SMALL_COLD),
    "another model under the same name": (pod_of("deepseek", **QWEN), SMALL_COLD),
    "another model, on filled caches": (pod_of("deepseek", filled=True, **QWEN), SMALL_WARM),
}


@pytest.mark.parametrize("name", ROLES)
def test_an_engine_starts_as_its_spec_says(name: str) -> None:
    (pod, filled), role = ROLES[name]
    assert role_of(pod, filled) == role


def test_a_model_that_was_not_recorded_gets_the_stages_of_a_start_and_no_figures() -> None:
    knowledge = load_startup()
    for role in (SMALL_COLD, SMALL_WARM):
        parser = StartupParser(knowledge)
        for output in role.outputs():
            parser.feed(output.data.decode())
        parser.end()
        state = parser.final_state
        assert state.stage is Stage.READY
        assert len(state.entered) >= 6
        assert (state.memory, state.observed_backends) == (MeasuredMemory(), ())
        assert (bool(state.cache.hits), bool(state.cache.misses)) == (role is SMALL_WARM, role is SMALL_COLD)
    assert any(FIGURES.search(output.data) for output in Role(SMALL_COLD.recording).outputs())


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
    histories["llama"].update(deployment({"conditions": [condition("Ready", "True", "Serving")]}, name="llama"), 0.0)
    complaints = "\n".join(failures(histories))
    assert "llama: the condition Ready is 'True' and should be 'False'" in complaints
    assert "llama: the reason of Ready is 'Serving' and should be 'NoMatchingGPU'" in complaints


def shown(history: History) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(draw([history], title="demo", width=160))
    return console.export_text()


def test_the_screen_shows_progress_and_why_it_does_not_serve_yet() -> None:
    history = History("deepseek")
    history.update(deployment(COMPILING), 1.0)
    for words in ("deepseek", "NVIDIA-H200", "KernelWarmup", "1436/1735", "DeepGEMM warm-up 1436/1735, about 2 min left."):
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


async def test_a_pod_in_another_namespace_says_that_it_is_not_simulated(tmp_path: Path) -> None:
    class Client(ApiClient):
        def __init__(self) -> None:
            """Has no server."""

    player = Player(Client(), tmp_path, namespace="demo", speed=1000.0)
    pod = {"metadata": {"namespace": "other", "name": "a", "uid": "1", "labels": {}}}
    role = await player._prepare(pod)
    assert role is None
    await player._play_run(pod, {"name": "vllm", "restartCount": 0}, role)
    log = (tmp_path / "other" / "a" / "vllm" / "0.log").read_text("utf-8")
    assert "The demo simulates engines in namespace demo only" in log
