"""`vllm-operator fit`: which GPUs a model fits on, and engines estimated from lines of JSON."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

import generate_sizing_doc as page
from vllm_operator.__main__ import main

CASE = {"id": "a", "model": "Qwen/Qwen3-8B", "vllm_version": "0.20.0", "gpu": "H100 80GB", "gpu_memory_gib": 79.18, "tp": 1}
KEYS = ["id", "weightsGiB", "kvCacheGiB", "kvCacheTokens", "maxConcurrency", "outcome", "limit"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["fit", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def answers(capsys: pytest.CaptureFixture[str], path: Path, *lines: Any) -> list[dict[str, Any]]:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    status, out, _ = run(capsys, "--cases", str(path))
    assert status == 0
    return [json.loads(line) for line in out.splitlines()]


def fitting(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[tuple[str, int], str]:
    made = json.loads(run(capsys, *arguments, "-o", "json")[1])
    return {(size["gpu"], size["count"]): size["outcome"] for size in made["sizes"]}


def test_each_gpu_has_a_line_with_the_smallest_number_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "Qwen/Qwen3-32B")
    rows = {line[:26].strip(): line[26:].split() for line in out.splitlines() if line.startswith(("H200 141GB", "L40S", "T4"))}
    assert status == 0
    assert (rows["H200 141GB"][:2], rows["L40S"][:2], rows["T4"][:2]) == (["1", "yes"], ["2", "yes"], ["8", "yes"])


def test_deepseek_v3_does_not_fit_on_one_dgx_spark(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "deepseek-ai/DeepSeek-V3", "--gpu", "GB10")
    assert status == 1
    assert "The weights take 628.8 GiB per device of 121.6 GiB." in out


@pytest.mark.parametrize(
    ("model", "gpu", "count", "outcome"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "H100", 1, "oom"),
        ("meta-llama/Llama-3.3-70B-Instruct", "H100", 4, "started"),
        ("meta-llama/Llama-3.1-8B-Instruct", "T4", 1, "oom"),
        ("deepseek-ai/DeepSeek-V3", "H100", 8, "oom"),
        ("deepseek-ai/DeepSeek-V3", "H200", 8, "started"),
        ("Qwen/Qwen3-0.6B", "L40S", 1, "started"),
    ],
)
def test_what_compares_weights_with_memory_was_wrong_about(
    capsys: pytest.CaptureFixture[str], model: str, gpu: str, count: int, outcome: str
) -> None:
    found = fitting(capsys, model, "--gpu", gpu)
    assert next(made for (_, number), made in found.items() if number == count) == outcome


def test_a_model_that_fits_on_no_node_gets_several_with_nvlink(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "deepseek-ai/DeepSeek-R1", "--gpu", "H100", "H200", "L40S")
    rows = [" ".join(line.split()) for line in out.splitlines() if " yes " in line]
    assert status == 0
    assert [row.partition(" yes")[0] for row in rows] == ["H100 80GB 2 nodes x 8", "H200 141GB 8"]
    made = json.loads(run(capsys, "deepseek-ai/DeepSeek-R1", "--gpu", "H100", "-o", "json")[1])
    assert [(size["count"], size["nodes"]) for size in made["sizes"] if size["fits"]] == [(16, 2)]


def test_a_size_that_vllm_refuses_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    made = json.loads(run(capsys, "Qwen/Qwen3-235B-A22B", "--quantization", "fp8_block", "--gpu", "H200", "-o", "json")[1])
    assert [size["count"] for size in made["sizes"] if size["expertParallel"]] == [8]


def test_a_shorter_context_fits_where_the_models_own_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(fitting(capsys, "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "RTX 4090").values()) >= {"started"}
    assert fitting(capsys, "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "RTX 4090")[("NVIDIA-GeForce-RTX-4090", 1)] == "refused"
    short = fitting(capsys, "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "RTX 4090", "--context", "8192")
    assert short[("NVIDIA-GeForce-RTX-4090", 1)] == "started"


def test_more_requests_at_a_time_need_more_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(run(capsys, "Qwen/Qwen3-32B", "--gpu", "H100", "--concurrency", "20", "-o", "json")[1])["sizes"]
    assert [row["count"] for row in rows if row["fits"]] == [4, 8]


def test_every_gpu_of_known_memory_is_listed_also_with_unified_memory(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "Qwen/Qwen3-8B")[1]
    assert "\nGB10 " in out
    assert "Thor" not in out


def test_a_gpu_that_vllm_does_not_support_does_not_count_as_fitting(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(fitting(capsys, "Qwen/Qwen3-8B", "--gpu", "V100", "--version", "0.33.0").values()) == {"refused"}
    assert "started" in fitting(capsys, "Qwen/Qwen3-8B", "--gpu", "V100", "--version", "0.19.0").values()
    status, out, _ = run(capsys, "Qwen/Qwen3-8B", "--gpu", "V100", "T4", "--version", "0.33.0")
    assert status == 0
    assert "\nV100 16GB: vLLM 0.33.0 is built with PyTorch 2.11" in out
    assert "annotation" not in out


def test_the_rules_consider_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("Qwen/Qwen3-8B", "--gpu", "T4", "--version", "0.12.0")
    assert "started" in fitting(capsys, *arguments, "--quantization", "awq").values()
    assert set(fitting(capsys, *arguments, "--quantization", "fp8").values()) == {"refused"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("deepseek-ai/DeepSeek-V3", "--gpu", "L40S"), "(--quantization awq or nvfp4), or see larger GPUs without --gpu."),
        (("meta-llama/Llama-3.3-70B-Instruct", "--gpu", "T4"), "(--quantization fp8, awq or nvfp4), or see larger"),
        (("Qwen/Qwen3-8B", "--gpu", "L4", "--concurrency", "640"), "Lower --concurrency or --context, set --kv-cache-dtype fp8"),
        (("meta-llama/Llama-4-Scout-17B-16E-Instruct", "--gpu", "H100"), "8 H100 80GB have room for --context "),
    ],
)
def test_where_nothing_fits_the_page_says_what_to_do(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    status, out, _ = run(capsys, *arguments)
    assert status == 1
    assert said in " ".join(out.split())


def test_a_models_own_config_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 22, "hidden_size": 2048, "intermediate_size": 5632}
    config |= {"num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048}
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = json.loads(run(capsys, "acme/new", "--model-config", str(tmp_path / "config.json"), "--gpu", "L4", "-o", "json")[1])
    assert (made["source"], made["parameters"]) == ("config.json", 1_100_046_336)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("acme/unknown",), "the sizes of the model acme/unknown are unknown"),
        (("Qwen/Qwen3-8B", "--gpu", "Voodoo"), "the catalog has no GPU Voodoo"),
        (("Qwen/Qwen3-8B", "--version", "new"), "new is not a release of vLLM that the catalog knows"),
        (("Qwen/Qwen3-8B", "--version", "0.99"), "write all three numbers, for example 0."),
        (("Qwen/Qwen3-8B", "--context", "0"), "--context must be a positive number"),
        (("Qwen/Qwen3-8B", "--quantization", "exl2"), "exl2 is not a format of weights; use bf16, fp8"),
        ((), "give a model"),
        (("--cases", "no-such-file"), "no-such-file cannot be read"),
    ],
)
def test_what_cannot_be_estimated_is_said(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert said in err


def test_a_case_has_an_answer_with_every_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (made,) = answers(capsys, tmp_path / "cases", CASE)
    assert list(made) == KEYS
    assert (made["id"], made["outcome"], made["weightsGiB"]) == ("a", "started", pytest.approx(15.27, abs=0.02))


@pytest.mark.parametrize(
    "line",
    [
        "not JSON",
        "[]",
        "[" * 100_000,
        '{"id": "b"}',
        '{"id": 7, "model": ["x"], "tp": "many", "gpu": {}, "vllm_version": 4}',
        {**CASE, "tp": 10**30, "max_model_len": -5, "gpu_memory_gib": float("inf")},
        {**CASE, "config": {"num_hidden_layers": 10**9}, "model": "acme/x"},
        {**CASE, "model": "acme/x", "config": {"text_config": 3}},
    ],
    ids=lambda line: str(line)[:20],
)
def test_one_bad_line_costs_that_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, line: Any) -> None:
    made = answers(capsys, tmp_path / "cases", CASE, line, CASE)
    assert len(made) == 3
    assert [made[0]["outcome"], made[2]["outcome"]] == ["started", "started"]
    assert list(made[1]) == KEYS
    assert made[1]["outcome"] in ("unknown", "started", "oom", "refused", "tight")


def test_cases_come_from_standard_input_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(CASE)))
    assert json.loads(run(capsys, "--cases", "-")[1])["id"] == "a"


def test_a_gpu_or_model_that_is_unknown_never_counts_as_fitting(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    unknown_gpu = {**CASE, "gpu": "unknown", "gpu_memory_gib": None}
    made = answers(capsys, tmp_path / "cases", unknown_gpu, {**CASE, "model": "acme/secret"})
    assert [each["outcome"] for each in made] == ["unknown", "unknown"]


def test_no_recorded_engine_that_failed_is_said_to_start() -> None:
    wrong = [case["id"] for case, made in page.pairs() if made["outcome"] == "started" and case["measured"]["outcome"] != "started"]
    assert wrong == []


def test_recorded_engines_are_estimated_closely() -> None:
    weights = page.errors(page.pairs(), "weightsGiB", "weights_gib", relative=True)
    cache = page.errors(page.pairs(), "kvCacheGiB", "kv_gib", relative=False)
    assert page.percentile(weights, 0.5) < 0.5
    assert page.percentile(weights, 0.9) < 3
    assert page.percentile(cache, 0.5) < 0.6
