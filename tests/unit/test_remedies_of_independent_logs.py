"""What the diagnosis of a log that somebody else labeled advises, and what it does not: no setting of another part of the engine."""

from pathlib import Path

import pytest

from support.pasted import read_pasted

LOGS = Path(__file__).parents[1] / "corpus/independent"
CASES = {
    "cache-stale-handle": ("TRITON_CACHE_DIR", "CSI driver"),
    "config-chunked-mm": ("--disable-chunked-mm-input", "--block-size"),
    "cpu-kv-space": ("VLLM_CPU_KVCACHE_SPACE to at least 5", "--gpu-memory-utilization"),
    "cuda-dispatch-scaled-mm": ("VLLM_USE_DEEP_GEMM=0", "--kv-cache-dtype"),
    "death-ecc-start": ("ECC", "or its driver"),
    "dp-coordinator-ulimit": ("limit of open files", "slow"),
    "ep-dbo-backend": ("--enable-dbo", "vLLM chooses"),
    "hang-p2p-xid43": ("NCCL_P2P_DISABLE=1", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
    "hub-xet-retries": ("HF_HUB_DISABLE_XET=1", "revision"),
    "import-nccl-symbol": ("ncclCommWindowRegister", "another PyTorch"),
    "jit-flashinfer-kwarg": ("FlashInfer of the vLLM image", "--kv-cache-dtype"),
    "k8s-admission-shared-gpu": ("Request nvidia.com/gpu: 1", "unhealthy"),
    "k8s-evicted-ephemeral": ("node ran low on disk", "volume of the Pod is full"),
    "k8s-image-manifest": ("does not have the image", "pull Secret"),
    "k8s-startup-probe-kill": ("startup probe failed", "rollout"),
    "mem-load-oom": ("weights do not fit", "expandable_segments"),
    "mm-cu-seqlens": ("--mm-encoder-attn-backend", "--kv-cache-dtype"),
    "net-zmq-hybrid-lb": ("port 43817", "sidecar"),
    "pp-duplicate-gpu": ("fuse_allreduce_rms", "CUDA_VISIBLE_DEVICES"),
    "ray-node-no-gpu": ("74.10.28.47", "--tensor-parallel-size"),
    "rocm-memory-fault": ("--enforce-eager", "Xid"),
    "spec-mtp-pp": ("Remove --speculative-config", "for this model"),
    "spec-vocab-size": ("151936 and 152064", "num_speculative_tokens"),
    "weights-gguf-arch": ("safetensors", "--model-impl"),
}


@pytest.mark.parametrize(("name", "said", "not_said"), [(name, *texts) for name, texts in CASES.items()])
def test_a_text_advises_what_the_log_supports_and_nothing_else(name: str, said: str, not_said: str) -> None:
    crash = read_pasted((LOGS / f"{name}.log").read_text()).final_state.crash

    assert crash is not None
    text = f"{crash.cause} {crash.remedy}"
    assert said in text
    assert not_said not in text


@pytest.mark.parametrize("name", ["chat-template-missing", "reasoning-parser-think-tokens"])
def test_a_server_that_refuses_every_chat_request_is_remarked_on(name: str) -> None:
    parser = read_pasted((LOGS / f"{name}.log").read_text())

    assert parser.final_state.crash is None
    assert [each.signature for each in parser.notices_beside(None)] == ["ChatRequestsRefused"]
