"""`vllm-operator diagnose`: any log, from anywhere, without a cluster."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.engine_logs import HEALTHY_START, READY, engine_failure
from vllm_operator.__main__ import main
from vllm_operator.text.wording import redact

FAILED = HEALTHY_START + engine_failure("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`")
WARMING = HEALTHY_START + "\rDeepGEMM warmup:  83%|████████▎ | 1436/1735 [04:04<02:01,  2.46it/s]"


def diagnosed(tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str | bytes, *options: str, status: int = 0) -> str:
    path = tmp_path / "engine.log"
    path.write_bytes(log.encode() if isinstance(log, str) else log)
    assert main(["diagnose", str(path), *options]) == status
    return capsys.readouterr().out


def test_a_crash_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(diagnosed(tmp_path, capsys, FAILED, "-o", "json"))

    assert set(told) == {"engineVersion", "stage", "progress", "stages", "backends", "cache", "memory", "crash", "cutOffAtLine"}
    assert told["engineVersion"] == "0.20.1"
    assert told["stage"] == "WeightLoad"
    assert told["progress"] is None
    assert set(told["crash"]) == {"signature", "family", "cause", "remedy", "reference", "line", "lineNumber"}
    assert told["crash"]["signature"] == "NoKvCacheMemory"
    assert told["crash"]["line"].startswith("ValueError: No available memory")


def test_progress_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(diagnosed(tmp_path, capsys, WARMING, "-o", "json"))

    assert told["engineVersion"] == "0.20.1"
    assert told["stage"] == "KernelWarmup"
    assert told["progress"] == {"completed": 1436, "total": 1735}
    assert told["crash"] is None
    assert told["cutOffAtLine"] is None


def test_stages_backends_and_caches_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = (Path(__file__).parents[1] / "corpus" / "h200" / "llama-bf16-warm.log").read_bytes()
    told = json.loads(diagnosed(tmp_path, capsys, log, "-o", "json"))

    assert told["backends"] == [{"component": "Attention", "backend": "FLASH_ATTN"}]
    assert told["cache"] == {"loaded": 2, "built": 0, "failedToLoad": 0}
    assert [entry["stage"] for entry in told["stages"]][-1] == "Ready"
    assert all(entry["enteredAt"].endswith("Z") for entry in told["stages"])
    assert sum(entry["seconds"] for entry in told["stages"][:-1]) > 10
    assert told["stages"][-1]["seconds"] is None


def test_the_measured_memory_as_json_has_the_names_of_the_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = (Path(__file__).parents[1] / "corpus" / "h200" / "llama-bf16-warm.log").read_bytes()
    told = json.loads(diagnosed(tmp_path, capsys, log, "-o", "json"))
    assert told["memory"] == {"weightsGiB": 2.05, "kvCacheGiB": 13.96, "kvCacheTokens": 665408, "maxConcurrency": 324.91}


@pytest.mark.parametrize(
    ("lines", "measured"),
    [
        ([], (None, None, None, None)),
        (
            ["kv_cache_planning.py:1147] GPU KV cache size: 640,896 tokens, Maximum concurrency for 163,840 tokens per request: 3.91x"],
            (None, None, 640896, 3.91),
        ),
        # of several processes the fullest counts
        (
            [
                "gpu_model_runner.py:5088] Model loading took 8.5 GiB memory and 5.0 seconds",
                "gpu_model_runner.py:5088] Model loading took 9.25 GiB memory and 5.0 seconds",
                "gpu_worker.py:359] Available KV cache memory: 41.72 GiB",
                "gpu_worker.py:359] Available KV cache memory: 40.5 GiB",
                "kv_cache_utils.py:1087] GPU KV cache size: 640,896 tokens",
                "kv_cache_utils.py:1087] GPU KV cache size: 640,000 tokens",
                "kv_cache_utils.py:1091] Maximum concurrency for 163,840 tokens per request: 3.91x",
            ],
            (9.25, 40.5, 640000, 3.91),
        ),
        (["kv_cache_utils.py:1087] GPU KV cache size: ,,, tokens"], (None, None, None, None)),
    ],
)
def test_memory_is_measured_from_each_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], measured: tuple[float | None, ...]
) -> None:
    written = "".join(f"(EngineCore pid=7) INFO 11-21 09:32:11 [{line}\n" for line in lines)
    told = json.loads(diagnosed(tmp_path, capsys, HEALTHY_START + written, "-o", "json"))
    assert tuple(told["memory"].values()) == measured


def test_an_excerpt_has_no_stages_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(diagnosed(tmp_path, capsys, "ValueError: No available memory for the cache blocks.\n", "-o", "json"))["stages"] == []


@pytest.mark.parametrize("output", [(), ("-o", "json")], ids=["page", "json"])
@pytest.mark.parametrize(
    ("log", "status"),
    [
        pytest.param(FAILED, 3, id="a crash that is known"),
        pytest.param(HEALTHY_START + engine_failure("RuntimeError: odd"), 3, id="a crash that is not known"),
        pytest.param("Process SpawnProcess-1:\nTraceback (most recent call last):\n", 3, id="a crash whose error is cut off"),
        pytest.param(WARMING, 0, id="a start that is under way"),
        pytest.param(HEALTHY_START + READY, 0, id="a start that became ready"),
        pytest.param("hello\n", 0, id="something else"),
    ],
)
def test_the_exit_status_tells_of_a_crash_where_it_is_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str, status: int, output: tuple[str, ...]
) -> None:
    diagnosed(tmp_path, capsys, log, *output)
    diagnosed(tmp_path, capsys, log, *output, "--exit-code", status=status)


def test_a_log_that_does_not_name_its_version_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        json.loads(diagnosed(tmp_path, capsys, "ValueError: No available memory for the cache blocks.\n", "-o", "json"))["engineVersion"]
        is None
    )


def test_a_page_tells_the_story(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = diagnosed(tmp_path, capsys, FAILED)

    order = ["Crashed during weight load: NoKvCacheMemory", "Stages", "What happened", "What to do", "Read more", "Log (line"]
    assert [page.index(part) for part in order] == sorted(page.index(part) for part in order)
    assert "--gpu-memory-utilization" in page
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("log", "headline"),
    [
        (HEALTHY_START + READY, "Started: the server is ready"),
        (WARMING, "the log ends during kernel warm-up, DeepGEMM warm-up 1436/1735, about 2 min 01 s left"),
        ("hello\nworld\n", "no vLLM start in this log 2 lines. Is this the complete log of a vLLM server?"),
        (b"\x00\xff\xfe\x80" * 1000, "1 line. Is this the complete log of a vLLM server?"),
    ],
    ids=["ready", "warming up", "something else", "binary"],
)
def test_what_is_no_crash_is_said_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str | bytes, headline: str) -> None:
    assert headline in " ".join(diagnosed(tmp_path, capsys, log).split())


def test_an_excerpt_does_not_tell_when_it_crashed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = diagnosed(tmp_path, capsys, "ValueError: No available memory for the cache blocks.\n")

    assert page.startswith("Crashed: NoKvCacheMemory\n\n  1 line. The log does not show a start of vLLM.\n\nWhat happened")


def test_a_log_that_ends_before_the_error_is_asked_for_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = "Process SpawnProcess-1:\nTraceback (most recent call last):\n"
    page = diagnosed(tmp_path, capsys, log)

    assert page.startswith("Failed, and the log ends before the error\n\n  2 lines. The log does not show a start of vLLM.\n\nWhat to do")
    assert "Line 1 says that a process failed" in " ".join(page.split())
    assert json.loads(diagnosed(tmp_path, capsys, log, "-o", "json"))["cutOffAtLine"] == 1


def test_standard_input_is_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FAILED.encode())))

    assert main(["diagnose", "-", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["crash"]["signature"] == "NoKvCacheMemory"


def test_what_cannot_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()

    for path, complaint in ((tmp_path / "nothing", "No such file"), (tmp_path, "Is a directory"), (tmp_path / "empty", "is empty")):
        assert main(["diagnose", str(path)]) == 2
        assert complaint in capsys.readouterr().err


def test_it_does_not_load_what_only_the_operator_needs() -> None:
    code = "import sys; import vllm_operator.cli.diagnose; print(sorted({'kopf', 'kubernetes', 'jinja2'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_an_engine_whose_requests_stand_still_is_not_reported_as_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stall = "INFO 05-28 14:44:28 [shm_broadcast.py:681] No available shared memory broadcast block found in 60 seconds.\n"
    figures = (
        "INFO 05-28 14:4{}:00 [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s,"
        " Avg generation throughput: {} tokens/s, Running: 4 reqs\n"
    )
    for minute, produced, headline in ((7, "0.0", "Stands still: requests run without output"), (8, "9.5", "Started: the server is ready")):
        log = tmp_path / f"{minute}.log"
        log.write_text("INFO:     Application startup complete.\n" + stall + figures.format(6, "0.0") + figures.format(minute, produced))
        assert main(["diagnose", str(log)]) == 0
        assert capsys.readouterr().out.startswith(headline)


@pytest.mark.parametrize(
    ("usages", "headline"),
    [
        (["4.1"] * 8, "Stands still: requests run without output"),
        (["4.1"] * 5, "Started: the server is ready"),  # a minute is not over
        ([f"4.{each}" for each in range(8)], "Started: the server is ready"),  # a long prompt fills the KV cache
    ],
)
def test_an_engine_without_a_second_process_stands_still_if_its_figures_do_not_change(
    usages: list[str], headline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = (
        "INFO 09-05 08:05:{:02} [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s,"
        " Avg generation throughput: 0.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: {}%\n"
    )
    log = tmp_path / "a.log"
    log.write_text("INFO:     Application startup complete.\n" + "".join(figures.format(*each) for each in enumerate(usages)))
    assert main(["diagnose", str(log)]) == 0
    assert capsys.readouterr().out.startswith(headline)


def test_an_error_in_the_loop_of_the_engine_is_one_while_serving_also_if_the_log_does_not_show_the_end_of_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text(
        "(EngineCore pid=7) INFO 12-05 01:02:10 [core.py:77] Initializing a V1 LLM engine (v0.12.0) with config: model='/m'\n"
        "(EngineCore pid=7) ERROR 12-05 07:26:46 [core.py:845] EngineCore encountered a fatal error.\n"
        "(EngineCore pid=7) ERROR 12-05 07:26:46 [core.py:845] Traceback (most recent call last):\n"
        '(EngineCore pid=7) ERROR 12-05 07:26:46 [core.py:845]   File "/x/vllm/v1/core/sched/scheduler.py", line 7, in schedule\n'
        "(EngineCore pid=7) ERROR 12-05 07:26:46 [core.py:845]     assert num_new_tokens > 0\n"
        "(EngineCore pid=7) ERROR 12-05 07:26:46 [core.py:845] AssertionError\n"
    )
    assert main(["diagnose", str(log)]) == 0
    assert capsys.readouterr().out.startswith("Crashed while serving: A step of the engine had a request without a token to compute")


def test_without_the_library_of_the_driver_the_reason_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.log"
    log.write_text(
        "DEBUG 07-13 12:00:00 [__init__.py:75] CUDA platform is not available because: NVML Shared Library Not Found\n"
        'Traceback (most recent call last):\n  File "/x/vllm/config/device.py", line 61, in __post_init__\n    raise RuntimeError(\n'
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`\n"
    )
    assert main(["diagnose", str(log)]) == 0
    assert "driver library of NVIDIA (NVML) was not found" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("argument --api-key: expected at least one argument", "argument --api-key: expected at least one argument"),
        ("max_tokens: must be positive", "max_tokens: must be positive"),
        ("api_key: expected-7f3a9", "api_key: ***"),
        ("password: hunter22", "password: ***"),
    ],
)
def test_a_secret_is_hidden_and_a_sentence_about_one_is_not(line: str, shown: str) -> None:
    assert redact(line) == shown
