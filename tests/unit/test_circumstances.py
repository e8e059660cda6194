"""Remedies advise only what suits the device and the settings that the log shows."""

import pytest

from support.engine_logs import failed
from support.pasted import read_pasted
from vllm_operator.catalog.startup import load_startup
from vllm_operator.cli.diagnose import page

ENGINE = "(EngineCore pid=7) "
ARGUMENTS = "(APIServer pid=1) INFO 11-02 14:02:19 [startup.py:96] non-default args: {'model_tag': 'org/m'%s}\n"


def platform(name: str) -> str:
    return f"INFO 11-02 14:02:11 [__init__.py:216] Automatically detected platform {name}.\n"


STALL = (
    f"{ENGINE}INFO 11-02 14:10:10 [shm_broadcast.py:705] No available shared memory broadcast block found in 60 seconds. This typically "
    "happens when some processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization).\n"
)
GPU_ERROR = "RuntimeError: %s error: unknown error"
LEVEL_ZERO = "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"
# what the log shows, what the remedy says, and what it does not
CASES = {
    "nvidia": (platform("cuda") + failed(GPU_ERROR % "CUDA", "vllm/v1/worker/gpu_worker.py"), ["Xid", "CUDA_LAUNCH_BLOCKING"], ["AMD_"]),
    "unknown": (failed(GPU_ERROR % "CUDA", "vllm/v1/worker/gpu_worker.py"), ["Xid", "CUDA_LAUNCH_BLOCKING"], ["AMD_"]),
    "amd by its platform": (platform("rocm") + failed("RuntimeError: CUDA error: odd"), ["AMD_SERIALIZE_KERNEL=3"], ["Xid", "CUDA_LAUNCH"]),
    "amd by the message": (failed(GPU_ERROR % "HIP"), ["AMD_SERIALIZE_KERNEL=3", "amdgpu"], ["Xid", "CUDA_LAUNCH"]),
    "amd by a frame": (failed("RuntimeError: CUDA error: odd", "aiter/ops/gemm.py"), [], ["Xid", "CUDA_LAUNCH"]),
    "intel by the message": (failed(LEVEL_ZERO, "torch/xpu/__init__.py"), [], ["Xid", "CUDA", "NCCL"]),
    "intel by its platform": (platform("xpu") + failed("RuntimeError: CUDA error: odd"), [], ["Xid", "CUDA", "NCCL"]),
    "vLLM imports AITER on every GPU": (platform("cuda") + failed(GPU_ERROR % "CUDA", "vllm/_aiter_ops.py"), [], ["AMD_"]),
    "flags that are not set are not taken away": (
        ARGUMENTS % ", 'max_num_seqs': 8" + failed("NotImplementedError: The page size of the layer is not divisible"),
        ["Use a newer vLLM"],
        ["--kv-cache-dtype", "--block-size", "--speculative-config"],
    ),
    "a flag that is set is taken away": (
        ARGUMENTS % ", 'block_size': 48" + failed("NotImplementedError: The page size of the layer is not divisible"),
        ["Remove --block-size: such a setting", "Otherwise use a newer vLLM"],
        ["--kv-cache-dtype"],
    ),
    "graphs": (platform("cuda") + ARGUMENTS % "" + failed(GPU_ERROR % "CUDA"), ["--enforce-eager"], []),
    "no graphs already": (
        platform("cuda") + ARGUMENTS % ", 'enforce_eager': True" + failed(GPU_ERROR % "CUDA"),
        ["without optional features", "newer vLLM"],
        ["--enforce-eager"],
    ),
}


@pytest.mark.parametrize(("log", "said", "not_said"), CASES.values(), ids=CASES)
def test_a_remedy_suits_the_device_and_the_settings(log: str, said: list[str], not_said: list[str]) -> None:
    crash = read_pasted(log).final_state.crash

    assert crash is not None
    assert crash.remedy
    assert [text for text in said if text not in crash.remedy] == []
    assert [text for text in not_said if text in crash.remedy] == []


@pytest.mark.parametrize(
    ("device", "arguments", "said", "not_said"),
    [
        ("cuda", "", ["NCCL_P2P_DISABLE=1", "--enforce-eager", "--disable-custom-all-reduce"], []),
        ("rocm", "", ["NCCL_P2P_DISABLE=1", "--enforce-eager"], []),
        ("xpu", "", ["--enforce-eager"], ["NCCL_"]),
        ("npu", ", 'enforce_eager': True", ["--disable-custom-all-reduce"], ["NCCL_", "--enforce-eager"]),
        ("cpu", "", ["--enforce-eager"], ["NCCL_", "--disable-custom-all-reduce"]),
        ("cuda", ", 'disable_custom_all_reduce': True", ["NCCL_P2P_DISABLE=1", "--enforce-eager"], ["--disable-custom-all-reduce"]),
    ],
)
def test_a_notice_suits_the_device_and_the_settings(device: str, arguments: str, said: list[str], not_said: list[str]) -> None:
    (notice,) = read_pasted(platform(device) + ARGUMENTS % arguments + STALL).notices_beside(None)

    assert notice.remedy
    assert [text for text in said if text not in notice.remedy] == []
    assert [text for text in not_said if text in notice.remedy] == []


@pytest.mark.parametrize(
    ("log", "headline", "facts"),
    [
        (platform("cuda") + ARGUMENTS % "", "Not ready and not crashed: the log ends during process start", "2 lines"),
        (
            f"(APIServer pid=1) INFO 11-02 14:02:19 [api_utils.py:345]  version 0.28.0\n{failed('RuntimeError: odd')}",
            "Crashed during process start: ",
            "vLLM 0.28.0, ",
        ),
        (
            f"{ENGINE}INFO 11-02 14:02:20 [gpu_model_runner.py:5132] Model loading took 34.91 GiB memory and 301.118 seconds\n"
            f"{failed('RuntimeError: odd')}",
            "Crashed after weight load: ",
            "4 lines",
        ),
        (
            f"{ENGINE}INFO 11-02 14:02:20 [default_loader.py:397] Loading weights took 30.1 seconds\n{failed('RuntimeError: odd')}",
            "Crashed during weight load: ",
            "4 lines",
        ),
        (
            "(APIServer pid=1) INFO 11-02 14:02:19 [tool.py:3] version of the plugin is 3\n" + failed("RuntimeError: odd"),
            "Crashed: ",
            "4 lines. The log does not show a start of vLLM.",
        ),
    ],
)
def test_what_a_log_contains_of_the_start(log: str, headline: str, facts: str) -> None:
    parser = read_pasted(log)
    shown = page(parser, parser.final_state, colours=False).splitlines()

    assert shown[0].startswith(headline)
    assert shown[2].strip().startswith(facts)
    assert "does not show a start of vLLM" in facts or "does not show a start of vLLM" not in shown[2]


def test_a_notice_suits_the_device_of_the_error_beside_it() -> None:
    parser = read_pasted(STALL + failed(LEVEL_ZERO, "torch/xpu/__init__.py"))
    (notice,) = parser.notices_beside(parser.final_state.crash)

    assert "NCCL_" not in (notice.remedy or "")


def test_what_is_replaced_occurs_in_a_remedy() -> None:
    known = load_startup()
    texts = "\n".join((*(each.remedy for each in known.signatures), *(each.remedy for each in known.kinds)))

    assert [word for each in known.stages.circumstances for word in each.replaced if word not in texts] == []
