"""What a remedy says follows from the log, for all signatures and families: sizes, volumes, refused backends, and the device."""

import re
from collections.abc import Iterable
from functools import cache
from itertools import product

import pytest

from support.crash_messages import said, says_the_whole_remedy
from support.pasted import read_pasted
from vllm_operator.catalog.startup import FACTS, FailureKind, Sample, Severity, Signature, load_signature_samples, load_startup
from vllm_operator.catalog.templates import fill_in
from vllm_operator.logs.crash import describe
from vllm_operator.logs.state import Crash

KNOWLEDGE = load_startup()
BY_ID = {signature.id: signature for signature in KNOWLEDGE.signatures}
VARIATIONS: dict[str, tuple[str, ...]] = {
    "device": ("", "cuda", "cpu", "xpu"),
    "platform": ("", "rocm"),
    "version": ("", "0.30.0"),
    "eager": ("", "True"),
    "nccl": ("", "True"),
    "cached": ("", "True"),
    "gemm": ("", "CutlassFP8ScaledMMLinearKernel"),
    "given": ("", "{'model': '/m', 'linear_backend': 'marlin'}"),
    "survived": ("", "CudaOutOfMemory"),
    "fusions": ("", "allreduce_rms"),
    "qwix": ("", "True"),
    "built": ("", "module_top_k"),
    "fixed": ("", "Explicitly"),
    "aborted": ("", "cmpl-1"),
    "asleep": ("", "fall asleep", "wake up tags ['weights']", "wake up"),
    "devices": ("", "CpuDevice"),
    "pool": ("", "75497472000"),
    "unlinked": ("", "libcuda.so.1"),
    "plugin": ("", "odd"),
    "aligned": ("", "Mamba cache mode is set to 'align'"),
    "advised": ("", "0.93"),
    "candidates": ("", "['TRITON_ATTN', 'FLEX_ATTENTION']"),
    "drafter": ("", "/odd/draft"),
    "launched": ("", "bash -c /start.sh"),
    "unset": ("", "NODE_RANK"),
    "recreated": ("", "home-vllm-1"),
    "usersite": ("", "/home/user/.local/lib/python3.12/site-packages"),
    "assigned": ("", "GLOO_SOCKET_IFNAME=ib7 NCCL_SOCKET_IFNAME=eth1 NCCL_IB_GID_INDEX=3"),
    "linked": ("", "/models/odd -> /mnt/odd"),
    "reserved": ("", "2.0"),
    "cast": ("", "bfloat16 to torch.float16"),
    "uncompiled": ("", "AVX512"),
    "counted": ("", "XPU"),
    "wsl": ("", "WSL"),
    "paging": ("", "PAGESIZE"),
    "pages": ("", "65536"),
    "tritons": ("", "pytorch-triton-rocm 3.4.0  triton 3.7.1"),
    "quantized": ("", "compressed-tensors"),
    "customized": ("", "usercustomize"),
    "unified": ("", "GB10"),
    "filled": ("", "99.6"),
    "placeholders": ("", "-1, -1, -1"),
    "invariant": ("", "VLLM_BATCH_INVARIANT=1"),
    "jitted": ("", "odd_kernel"),
    "profiled": ("", "1 image"),
    "unfused": ("", "CUDA error 801 (operation not supported)"),
    "runner": ("", "V2"),
    "architecture": ("", "LlamaForCausalLM"),
    "offloader": ("", "UVAOffloader"),
    "switch": ("", "USE_MOE_EP_KERNEL"),
    "notices": ("", "PackagesReplaced", "ExpandableSegments IpcModeLegacy"),
    "stage": ("", "WeightLoad", "MemoryProfiling", "Ready"),
    "utilization": ("", "0.3", "0.92"),
    "chosen": ("", "FLASHINFER"),
    "step": ("", "512", "65536"),
    "graphs": ("", "0.7", "20.88"),
    "spare": ("", "-3.2", "40.1"),
    "positions": ("", "40960"),
    "loopback": ("", "127.0.0.1"),
    "looped": ("", "127.0.0.1"),
    "speculated": ("", "spec-decode"),
    "proposing": ("", "Spec"),
    "apart": ("", "without --enable-lora"),
    "limit": ("", "none", "64Gi"),
    "moe": ("", "FLASHINFER_CUTLASS (NvFp4)"),
    "attention": ("", "FLASHINFER_MLA"),
    "options": ("", "--enable-lora, --kv-cache-dtype"),
    "traceback": (
        "",
        'File "triton/runtime/cache.py", line 1, in put',
        "flashinfer/comm/mnnvl.py",
        "deep_gemm/__init__.py",
        ", in load_model",
    ),
}
START = (
    "(EngineCore pid=40) INFO 10-01 10:00:00 [core.py:9] Initializing a V1 LLM engine (v0.30.0) with config:"
    " model='/m', device_config={device}\n"
)
NO_RAM = (
    "ValueError: Available memory on node 0 (149.11/692.65 GiB) on kv cache allocation is less than requested memory for kv"
    " (206.54/207.8 GiB)."
)
FAILED = "(EngineCore pid=40) ERROR 10-01 10:01:10 [core.py:13] "
OF_CUDA = re.compile(r"--gpu-memory-utilization|PYTORCH_CUDA|NCCL_|CUDA_|nvidia|GPU memory utilization|larger GPU|more GPUs")
BACKENDS = (
    "FLASH_ATTN",
    "FLASHINFER",
    "TRITON_ATTN",
    "FLEX_ATTENTION",
    "TRITON_MLA",
    "FLASHMLA",
    "CUTLASS_MLA",
    "FLASHINFER_MLA",
    "FLASH_ATTN_MLA",
)
WHERE = "flashinfer/comm/moe/vit_attn cutlass_scaled_mm xet sampling attention FileNotFoundError shape of the kv buffer"
MOE_BACKENDS = ("triton", "marlin", "deep_gemm", "flashinfer_cutlass", "flashinfer_trtllm", "cutlass")


def crash_of(error: str, *, device: str = "cuda") -> Crash:
    log = START.format(device=device) + "".join(f"{FAILED}{line}\n" for line in ("EngineCore failed to start.", *error.splitlines()))
    crash = read_pasted(log).final_state.crash
    assert crash is not None
    return crash


def reads_well(text: str, *, quoted: Iterable[str] = ()) -> bool:
    for each in filter(None, (each.rstrip(".") for each in quoted)):
        text = text.replace(each, "word")
    return text.endswith(".") and re.search(r"\{\{|\{%|\bNone\b|  | \.", text) is None


def texts(signature: Signature, known: dict[str, str]) -> tuple[str, str]:
    crash = describe(signature, "line", tuple(known.items()))
    if signature.severity is Severity.FATAL:
        assert is_shown_whole(signature.id, crash.cause, crash.remedy or ""), said(crash)
    return crash.cause, crash.remedy or ""


@cache
def is_shown_whole(name: str, cause: str, remedy: str) -> bool:
    return says_the_whole_remedy(Crash(name, cause, remedy, reference=None, line=""))


@pytest.mark.parametrize("sample", load_signature_samples(), ids=lambda each: each.signature)
def test_the_texts_of_a_signature_are_sentences_for_every_device_stage_and_setting(sample: Sample) -> None:
    signature = BY_ID[sample.signature]
    captures: dict[str, str] = {}
    for line, pattern in product(sample.text.splitlines(), signature.patterns):
        if (found := re.search(pattern.regex, line)) is not None:
            captures |= {name: value.strip() for name, value in found.groupdict().items() if value}
    assert set(VARIATIONS) == set(FACTS)
    everything = {name: values[-1] for name, values in VARIATIONS.items()}
    for others, name in product(({}, everything), VARIATIONS):
        for value in VARIATIONS[name]:
            known = {each: text for each, text in {**others, name: value, **captures}.items() if text}
            cause, remedy = texts(signature, known)
            is_shown = bool(cause) or signature.severity is Severity.FATAL  # a notice without a cause is not shown
            for text in (cause, remedy) if is_shown else ():
                assert reads_well(text, quoted=captures.values()), text


@pytest.mark.parametrize("kind", KNOWLEDGE.kinds, ids=lambda each: each.id)
def test_the_texts_of_a_family_are_sentences_with_and_without_what_the_log_shows(kind: FailureKind) -> None:
    for known in (
        (),
        (("options", "--enable-lora"),),
        (("traceback", WHERE),),
        (("module", "triton"),),
        (("library", "libfoo.so.1"),),
        (("mps", "MPS"),),
        (("aborted", "cmpl-1"), ("devices", "CpuDevice"), ("notices", "TpuEnvironmentInvalid"), ("given", "{'omni': 'dspark'}")),
        (("notices", "ExpandableSegments"), ("switch", "USE_MOE_EP_KERNEL"), ("stage", "Ready"), ("runner", "V2")),
        (
            ("notices", "IpcModeLegacy"),
            ("given", "kv_connector='MultiConnector'"),
            ("traceback", "simple_kv_offload inconsistent fake_tensor"),
        ),
    ):
        assert reads_well(f"{fill_in(kind.cause, known)}.")
        assert reads_well(fill_in(kind.remedy, known))


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: No available memory for the cache blocks.",
        NO_RAM,
        "ValueError: To serve at least one request with the model's max seq len (8192), 5.0 GiB KV cache is needed, which is larger"
        " than the available KV cache memory (3.0 GiB). Based on the available memory, the estimated maximum model length is 4900.",
        "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (95).",
        "RuntimeError: [enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 34359738368 bytes.",
        "RuntimeError: odd",
    ],
)
def test_nothing_of_a_gpu_is_recommended_for_a_cpu(error: str) -> None:
    crash = crash_of(error, device="cpu")
    assert OF_CUDA.search(crash.remedy or "") is None, crash.remedy


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "message",
    [
        "ValueError: Selected backend AttentionBackendEnum.{0} is not valid for this configuration. Reason: ['head size not supported']",
        "ValueError: Selected backend {0} is not valid for this configuration. Reason: ['kv_cache_dtype not supported']",
    ],
)
def test_an_attention_backend_that_the_log_refuses_is_not_recommended(backend: str, message: str) -> None:
    remedy = crash_of(message.format(backend)).remedy or ""
    assert re.search(rf"(?<![\w-]){backend}\b", remedy) is None, remedy


@pytest.mark.parametrize("backend", MOE_BACKENDS)
@pytest.mark.parametrize("quantization", ["FP8", "NvFP4", "MXFP4", "WNA16"])
def test_a_moe_backend_that_the_log_refuses_is_not_recommended(backend: str, quantization: str) -> None:
    remedy = crash_of(f"ValueError: moe_backend='{backend}' is not supported for {quantization} MoE.").remedy or ""
    assert re.search(rf"(?<![\w-]){backend}\b", remedy) is None, remedy


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("RuntimeError: Insufficient space in /dev/shm for 2 queues: 20300 MiB required, 64 MiB free.", "at least 20 GiB at /dev/shm"),
        ("ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (95).", "at most 95"),
        (
            "[2026-03-25 05:44:29 E 39 39] (raylet) store_runner.cc:83: System memory request exceeds memory available in /dev/shm. The"
            " request is for 10200547328 bytes, and the amount available is 9663676416 bytes.",
            "at least 11 GiB at /dev/shm",
        ),
        (NO_RAM, "VLLM_CPU_KVCACHE_SPACE to at most 141"),
        (
            "ValueError: Free memory on device cuda:0 (30.0/80.0 GiB) on startup is less than desired GPU memory utilization"
            " (0.9, 72.0 GiB).",
            "to at most 0.36",
        ),
    ],
)
def test_sizes_in_a_remedy_are_those_of_the_log(error: str, words: str) -> None:
    assert words in (crash_of(error).remedy or "")


@pytest.mark.parametrize("name", [each.id for each in KNOWLEDGE.signatures if "EFA" in each.cause or each.id.startswith("Efa")])
def test_no_setting_for_infiniband_is_recommended_for_efa(name: str) -> None:
    assert "NCCL_IB" not in fill_in(BY_ID[name].remedy, (("efa", "libfabric"), ("problem", "no EFA device")))
