"""What an error says about the settings: those whose code its traceback passes, and those whose value its message has."""

import pytest

from support.pasted import read_pasted
from vllm_operator.logs.state import Crash
from vllm_operator.logs.suspects import avoid_code, find_quoted, read_arguments

PACKAGES = "/usr/local/lib/python3.12/dist-packages/"
ARGUMENTS = (
    "non-default args: {'model': '/m/odd', 'enable_lora': True, 'enable_eplb': False, 'kv_cache_dtype': 'odd4', 'max_num_seqs': 8, "
    "'speculative_config': {'method': 'mtp', 'model': '/drafts/odd', 'num_speculative_tokens': 3}, 'lora_modules': ['a=/adapters/a'], "
    "'kv_transfer_config': KVTransferConfig(kv_connector='OddConnector', kv_role='kv_both'), 'tool_call_parser': 'hermes'}"
)
LOADS = "(EngineCore pid=40) INFO 10-01 10:00:05 [gpu_model_runner.py:1] Starting to load model /m/odd...\n"
STAGES = {
    "WeightLoad": LOADS,
    "AfterTorchCompile": f"{LOADS}(EngineCore pid=40) INFO 10-01 10:00:09 [backends.py:1] torch.compile took 33.08 s in total\n",
    "CUDAGraphCapture": "Capturing CUDA graphs (decode, FULL):   3%|▎         | 1/35 [00:01<00:40,  1.19s/it]\n",
    "Ready": "(APIServer pid=7) INFO:     Application startup complete.\n",
}


def crash_of(files: list[str], error: str, *, stage: str = "WeightLoad", given: str = "", logged: str = "") -> Crash:
    lines = [
        f"(APIServer pid=7) INFO 10-01 10:00:00 [utils.py:253] non-default args: {{'model': '/m/odd'{given}}}\n",
        STAGES[stage],
        logged,
    ]
    frames = [part for file in files for part in (f'  File "{PACKAGES}{file}", line 10, in call', "    x = y()")]
    header = "(EngineCore pid=40) ERROR 10-01 10:01:10 [core.py:1366] "
    title = "EngineCore encountered a fatal error." if stage == "Ready" else "EngineCore failed to start."
    said = (title, "Traceback (most recent call last):", *frames, error)
    crash = read_pasted("".join((*lines, *(f"{header}{line}\n" for line in said)))).final_state.crash
    assert crash is not None
    return crash


def test_arguments_are_read_with_their_nested_values_and_without_what_is_off() -> None:
    arguments = read_arguments(ARGUMENTS)
    assert list(arguments) == [
        *("model", "enable_lora", "kv_cache_dtype", "max_num_seqs"),
        *("speculative_config", "lora_modules", "kv_transfer_config", "tool_call_parser"),
    ]
    assert arguments["speculative_config"].startswith("{'method': 'mtp'")
    assert arguments["kv_transfer_config"].endswith("kv_role='kv_both')")
    assert read_arguments("") == read_arguments("no arguments: {") == {}


@pytest.mark.parametrize(
    ("frame", "apart"),
    [
        ('File "/p/vllm/lora/layers/base.py", line 1, in forward', "without --enable-lora"),
        ('File "/p/vllm/v1/spec_decode/odd.py", line 1, in propose', "without --speculative-config"),
        ('File "/p/vllm/distributed/kv_transfer/odd.py", line 1, in save', "without --kv-transfer-config"),
        ('File "/p/vllm/distributed/eplb/state.py", line 1, in step', ""),
        ('File "/p/vllm/utils/deep_gemm.py", line 1, in fp8_odd_mqa_logits', ""),
        ('File "/p/deep_gemm/odd.py", line 1, in fp8_gemm_nt', "with VLLM_USE_DEEP_GEMM=0"),
        ('File "/p/vllm/model_executor/layers/linear.py", line 1, in forward', ""),
    ],
)
def test_the_feature_whose_code_the_frames_pass_can_be_left_out_if_it_is_on(frame: str, apart: str) -> None:
    assert avoid_code(read_arguments(ARGUMENTS), frame, "") == apart


def test_a_variable_that_is_already_set_is_not_advised() -> None:
    assert avoid_code({}, "/deep_gemm/odd.py", "VLLM_USE_DEEP_GEMM=0 HOME=/root") == ""


@pytest.mark.parametrize(
    ("message", "quoted"),
    [
        ("AttributeError: module 'torch' has no attribute 'odd4'", {"--kv-cache-dtype": "odd4"}),
        ("ValueError: OddConnector needs one rank", {"--kv-transfer-config": "OddConnector"}),
        ("FileNotFoundError: /drafts/odd has no config.json", {"--speculative-config": "/drafts/odd"}),
        ("FileNotFoundError: /drafts/odd/config.json", {}),
        ("ValueError: odd4_packed is unknown", {}),
        ("ValueError: hermes found no tool call in /m/odd", {}),
    ],
)
def test_a_value_in_the_message_names_the_flag_that_has_it(message: str, quoted: dict[str, str]) -> None:
    assert find_quoted(read_arguments(ARGUMENTS), message) == quoted


def test_a_usual_word_counts_only_in_quotation_marks_and_a_value_of_two_flags_never() -> None:
    assert find_quoted({"moe_backend": "'triton'"}, "Triton error: triton kernel failed") == {}
    assert find_quoted({"moe_backend": "'triton'"}, "Unknown backend 'triton'") == {"--moe-backend": "triton"}
    assert find_quoted({"moe_backend": "'odd4'", "linear_backend": "'odd4'"}, "Unknown backend 'odd4'") == {}


def test_the_remedy_begins_with_the_flag_whose_value_the_message_has() -> None:
    crash = crash_of(["vllm/v1/worker/gpu_worker.py"], "AttributeError: module 'torch' has no attribute 'oddq'", given=", 'dtype': 'oddq'")
    assert (crash.remedy or "").startswith("First change what the message is about: --dtype (oddq). ")


@pytest.mark.parametrize("stage", ["WeightLoad", "Ready"])
def test_the_remedy_leaves_out_the_feature_whose_code_failed(stage: str) -> None:
    files = ["vllm/lora/layers/odd.py", "vllm/model_executor/layers/linear.py", "vllm/model_executor/models/odd.py"]
    crash = crash_of(files, "RuntimeError: odd", stage=stage, given=", 'enable_lora': True, 'block_size': 64")
    assert "tart once without --enable-lora, " in (crash.remedy or "") or "start without --enable-lora, which" in (crash.remedy or "")
    assert "--enable-lora" not in (crash_of(files, "RuntimeError: odd", stage=stage).remedy or "")


def test_an_error_while_graphs_are_captured_is_tried_with_fewer_graphs_first() -> None:
    files = ["vllm/v1/worker/gpu/model_runner.py", "vllm/v1/attention/backends/odd.py"]
    crash = crash_of(files, "AssertionError: odd rows", stage="CUDAGraphCapture")
    assert (crash.remedy or "").startswith("Set cudagraph_mode to PIECEWISE in --compilation-config. If that fails, use --enforce-eager,")
    assert "VLLM_USE_V2_MODEL_RUNNER=0, which selects the other model runner" in (crash.remedy or "")
    eager = crash_of(files, "AssertionError: odd rows", stage="CUDAGraphCapture", given=", 'enforce_eager': True")
    assert "cudagraph_mode" not in (eager.remedy or "")


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: Unsupported odd size 512",
        "NotImplementedError: odd=True is not supported with wide logits",
        "RuntimeError: this kernel only supports odd rows",
    ],
)
def test_no_restart_is_advised_for_what_vllm_cannot_do_at_the_start(error: str) -> None:
    crash = crash_of(["vllm/v1/attention/backends/odd.py"], error)
    assert (crash.remedy or "").startswith("This vLLM cannot do what the message says, so a restart does not help. ")
    served = crash_of(["vllm/v1/attention/backends/odd.py"], error, stage="Ready").remedy or ""
    assert "restart does not help" not in served
    assert "usually a kind of request, the load or a bug of this version led to it. Let it restart" in served


@pytest.mark.parametrize(
    ("file", "is_named"),
    [
        ("vllm/v1/attention/backends/mla/flashinfer_mla.py", True),
        ("vllm/vllm_flash_attn/cute/interface.py", False),
        ("vllm/model_executor/layers/attention/mla_attention.py", False),
        ("vllm/v1/attention/backends/mla/flashmla.py", False),
    ],
)
def test_the_backend_in_use_is_named_only_if_its_code_failed(file: str, is_named: bool) -> None:
    backend = (
        "(EngineCore pid=40) INFO 10-01 10:00:06 [cuda.py:1] Using FLASHINFER_MLA attention backend out of potential backends: ['A'].\n"
    )
    crash = crash_of(["vllm/v1/worker/gpu_worker.py", file], "RuntimeError: odd", stage="WeightLoad", logged=backend)
    assert ("than FLASHINFER_MLA" in (crash.remedy or "")) == is_named
    assert ("another --attention-backend" in (crash.remedy or "")) == ("/layers/" not in file)


def test_an_error_of_vllms_own_code_after_the_weights_is_called_a_bug() -> None:
    files = ["vllm/model_executor/layers/mamba/odd.py"]
    assert "a bug of this vLLM" in (crash_of(files, "TypeError: odd", stage="AfterTorchCompile").remedy or "")
    assert "a bug of this vLLM" not in (crash_of(files, "RuntimeError: odd", stage="AfterTorchCompile").remedy or "")


@pytest.mark.parametrize(
    ("error", "cause", "remedy"),
    [
        (
            "ValueError: There is no module or parameter named 'layers.3.odd_proj.weight_scale' in OddForCausalLM",
            "has that layer without quantization",
            "quantization_config",
        ),
        (
            "ValueError: Following weights were not initialized from checkpoint: {'layers.3.odd_proj.weight_packed'}",
            "vLLM built a quantized layer",
            "quantization_config",
        ),
        ("ValueError: There is no module or parameter named 'base_model.model.layers' in OddForCausalLM", "a training program", "Merge"),
        ("KeyError: 'layers.0.odd_proj.base_layer.weight'", "a training program", "Merge"),
        (
            "ValueError: There is no module or parameter named 'vision_tower' in OddForCausalLM",
            "an encoder for images, and vLLM loads it as OddForCausalLM",
            "architectures",
        ),
        (
            "ValueError: There is no module or parameter named 'layers.0.attn.k_scale' in OddForCausalLM",
            "has no parameter",
            "another export",
        ),
    ],
)
def test_the_name_of_a_weight_says_what_does_not_fit(error: str, cause: str, remedy: str) -> None:
    files = ["vllm/model_executor/model_loader/default_loader.py", "vllm/model_executor/models/odd.py:load_weights"]
    crash = crash_of([file.partition(":")[0] for file in files], error)
    assert (crash.signature, cause in crash.cause, remedy in (crash.remedy or "")) == ("WeightNameOrShapeMismatch", True, True), crash
