"""A log tells the same however it was obtained."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from support.engine_logs import HEALTHY_START, READY, engine_failure
from support.pasted import KNOWLEDGE, read_delivered, read_pasted
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Stage, StartupState

FAILED = HEALTHY_START + engine_failure("ValueError: No available memory for the cache blocks.")
GOOD = HEALTHY_START + READY


def read(data: str | bytes) -> StartupState:
    return read_delivered(data).final_state


def each_line(log: str, form: str) -> str:
    return "".join(form.replace("LINE", line) + "\n" for line in log.splitlines())


def docker(log: str) -> str:
    return "".join(
        json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-21T09:21:01.5Z"}) + "\n" for line in log.splitlines()
    )


def cri_in_parts(log: str) -> str:
    lines = []
    for line in log.splitlines():
        cuts = [line[start : start + 40] for start in range(0, len(line), 40)] or [""]
        lines += [f"2026-11-21T09:21:01.71406252Z stderr {'F' if part is cuts[-1] else 'P'} {part}" for part in cuts]
    return "\n".join(lines) + "\n"


HEADER = re.compile(r"^((?:\(\S+ pid=\d+\) )?)([A-Z]+) (\d\d-\d\d \d\d:\d\d:\d\d) \[(\w+)\.py:\d+\] ", re.MULTILINE)


def configured(form: str) -> Callable[[str], str]:
    """Every record as a format of the user's own writes it."""

    def header(found: re.Match[str]) -> str:
        return found[1] + form.format(level=found[2], time=f"2026-{found[3]},123", name=f"vllm.v1.{found[4]}")

    return lambda log: HEADER.sub(header, log)


FORMS: dict[str, Callable[[str], str | bytes]] = {
    "as it is": lambda log: log,
    "from Windows": lambda log: log.replace("\n", "\r\n"),
    "kubectl logs --timestamps": lambda log: each_line(log, "2026-11-21T09:21:01.71406252Z LINE"),
    "docker's own file": docker,
    "a CRI file": lambda log: each_line(log, "2026-11-21T09:21:01.71406252+01:00 stdout F LINE"),
    "a CRI file with parts of lines": cri_in_parts,
    "torchrun": lambda log: each_line(log, "[rank0]: LINE"),
    "a build robot": lambda log: each_line(log, "[2025-06-26T16:27:15Z] LINE"),
    "without seconds": lambda log: log.replace("09:21:01 [", "09:21 ["),
    "a format of one's own": configured("{time} {level:8} 2422 {name} "),
    "a format of one's own with bars": configured("{time} | {level} | {name}:42 | "),
    "a format of one's own without the logger": configured("{time} | {level} | "),
    "the format of loguru": configured("{time} | {level:8} | vllm.v1.core:run:42 - "),
    "a format of one's own in brackets": configured("[{time}] [{level}] [{name}] "),
    "the format of Python": configured("{level}:{name}:"),
    "a format that names the logger first": configured("{time} {name} {level} "),
    "in columns": lambda log: each_line(log, "LINE" + " " * 60),
    "in colours": lambda log: log.replace("(EngineCore pid=7)", "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m"),
    "in colours that lost their escapes": lambda log: log.replace("(EngineCore pid=7)", "[1;36m(EngineCore pid=7)[0;0m"),
    "with NUL and invalid UTF-8": lambda log: log.replace("EngineCore failed", "\x00EngineCore failed").encode() + b"\xff\xfe\x80\n",
    "of an older vLLM": lambda log: log.replace("[core.py:1136]", "core.py:1136]").replace("(EngineCore pid=7) ", ""),
}

PASTED: dict[str, Callable[[str], str | bytes]] = {
    "kubectl logs --prefix": lambda log: each_line(log, "[pod/vllm-7d9c/vllm] LINE"),
    "kubectl logs --prefix --timestamps": lambda log: each_line(log, "[pod/vllm-7d9c/vllm] 2026-11-21T09:21:01Z LINE"),
    "docker compose": lambda log: each_line(log, "vllm-1  | LINE"),
    "the journal": lambda log: each_line(log, "Feb 22 06:35:27 node-7 vllm[2827]: LINE"),
    "quoted in an issue": lambda log: each_line(log, "> LINE"),
    "a list in an issue": lambda log: each_line(log, "- 2024-06-22T20:17:30.186+00:00 LINE"),
    "a shell script": lambda log: each_line(log, "LINE").replace("(EngineCore", "'(EngineCore"),
    **FORMS,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_failure_is_found_in_every_form_that_a_container_writes(form: str) -> None:
    state = read(FORMS[form](FAILED))

    assert state.crash is not None
    assert state.crash.signature == "NoKvCacheMemory"
    assert state.stage is Stage.WEIGHT_LOAD


@pytest.mark.parametrize("form", PASTED)
def test_a_failure_is_found_in_every_form_that_is_pasted(form: str) -> None:
    state = read_pasted(PASTED[form](FAILED)).final_state

    assert state.crash is not None
    assert state.crash.signature == "NoKvCacheMemory"
    assert state.stage is Stage.WEIGHT_LOAD


@pytest.mark.parametrize("form", PASTED)
def test_a_good_start_is_good_in_every_form(form: str) -> None:
    state = read_pasted(PASTED[form](GOOD)).final_state

    assert state.crash is None
    assert state.stage is Stage.READY


def test_the_json_of_vllm_is_read_with_its_tracebacks() -> None:
    records = [
        {
            "asctime": "2026-11-21 09:20:38,123",
            "levelname": "INFO",
            "message": "Initializing a V1 LLM engine (v0.33.0) with config: ",
        },
        {"asctime": "2026-11-21 09:20:41,001", "levelname": "INFO", "message": "Starting to load model m..."},
        {
            "asctime": "2026-11-21 09:21:01,000",
            "levelname": "ERROR",
            "message": "EngineCore failed to start.",
            "vllm_process_name": "EngineCore",
            "exc_info": 'Traceback (most recent call last):\n  File "core.py"\nValueError: No available memory for the cache blocks',
        },
    ]
    state = read("".join("(EngineCore pid=7) " + json.dumps(record) + "\n" for record in records))

    assert state.engine_version == "0.33.0"
    assert state.stage is Stage.WEIGHT_LOAD
    assert state.crash is not None
    assert state.crash.signature == "NoKvCacheMemory"


def test_times_come_from_the_wrapping_if_there_is_one() -> None:
    state = read(FORMS["kubectl logs --timestamps"](GOOD))

    assert state.started_at == datetime(2026, 11, 21, 9, 21, 1, 714062, tzinfo=UTC)


def test_times_without_a_year_are_right_in_their_differences() -> None:
    parser = StartupParser(KNOWLEDGE)
    parser.feed("INFO 12-31 23:59:50 [core.py:77] Initializing a V1 LLM engine (v0.12.0) with config: model='m'\n")
    parser.feed("INFO 01-01 00:00:20 [gpu_model_runner.py:2602] Starting to load model m...\n")
    (_, begun), (_, engine), (_, load) = parser.state.entered

    assert begun == engine
    assert engine is not None
    assert load is not None
    assert (load - engine).total_seconds() == 30


def test_a_time_that_is_given_wins() -> None:
    parser = StartupParser(KNOWLEDGE)
    given = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    parser.feed(b"INFO 11-21 09:20:38 [core.py:77] Initializing a V1 LLM engine (v0.12.0) with config: model='m'\n", given)

    assert parser.state.stage_since == given
    assert parser.state.last_line_at == given


def test_lines_are_counted_as_an_editor_counts_them() -> None:
    lines = [
        "one",
        "\rDeepGEMM warmup:   0%|          | 0/9 [00:00<?, ?it/s]\rDeepGEMM warmup:  11%|█         | 1/9 [00:01<00:08,  1.0it/s]",
        "",
    ]
    crash = read("\n".join([*lines, "vllm serve: error: unrecognized arguments: --moon"])).crash

    assert crash is not None
    assert crash.line_number == 4


def test_half_a_character_in_json_is_no_text_that_cannot_be_sent_on() -> None:
    state = read('{"levelname": "ERROR", "message": "ValueError: No available memory for the cache blocks \\ud83d."}\n')

    assert state.crash is not None
    assert state.crash.line.encode() == b"ValueError: No available memory for the cache blocks ?."


def test_a_bar_that_never_ends_a_line_is_followed_and_counts_as_no_line() -> None:
    parser = StartupParser(KNOWLEDGE)
    for done in range(1735):
        parser.feed(f"\rDeepGEMM warmup:  {done * 100 // 1735}%|    | {done}/1735 [00:41<05:02,  8.73it/s]")

    progress = parser.state.progress
    assert progress is not None
    assert progress.completed == 1733  # whether the last one is complete is not known
    assert parser.state.lines == 0
