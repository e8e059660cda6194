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
    "bad-marshal-data-corrupt-pyc": ("__pycache__", "vllm/_aiter_ops"),
    "boolean-flag-with-explicit-true": ("takes no value", "Correct the value"),
    "dynamo-multinode-marlin-gemm-torch-abi": ("does not say why", "GPU memory ran out"),
    "engine-sigsegv-uv-sync-downgrade": ("without the step that replaces its packages", "HAMi"),
    "flashinfer-fused-moe-sm120-no-supported-arch": ("--moe-backend", "--attention-backend"),
    "gemma4-unified-transformers-too-old": ("within the range", "Do not upgrade"),
    "kimi-vit-fa4-only-sm10x-assert": ("--mm-encoder-attn-backend", "vLLM choose"),
    "kv-connector-expandable-segments-refused": ("Remove expandable_segments", "remove --kv-transfer-config"),
    "orphaned-tp-workers-hold-gpu-memory": ("VLLM::Worker", "--max-num-seqs"),
    "ray-stale-placement-group-no-gpu": ("placement group", "nvidia-smi"),
    "rocm-aiter-fp8-gemm-passmanager-failed": ("VLLM_ROCM_USE_AITER_LINEAR=0", "--dtype"),
    "rocm-failed-to-infer-device-type": ("VLLM_LOGGING_LEVEL=DEBUG", "CUDA_VISIBLE_DEVICES"),
    "stale-torch-compile-cache-keyerror": ("VLLM_DISABLE_COMPILE_CACHE=1", "weights"),
    "torchaudio-cuda-12-with-torch-cuda-13": ("remove it", "--limit-mm-per-prompt"),
    "triton-mla-spec-decode-decode-only-assert": ("TRITON_MLA takes one token", "--max-cudagraph-capture-size"),
    "two-node-rank-flags-differ-deadlock": ("--speculative-config", "first error"),
    "xpu-dual-b70-level-zero-v2-unknown": ("ZE_AFFINITY_MASK=0", "Xid"),
    "xpu-neo-linear-stream-abort-mtp-graph": ("--enforce-eager", "/dev/shm"),
    "ascend-mooncake-connect-timeout": ("10.2.0.24:20033", "Failed to disconnect"),
    "bge-m3-model-runner-v2-pooling-task": ("VLLM_USE_V2_MODEL_RUNNER=0", "--enforce-eager"),
    "b200-flashinfer-bf16-moe-autotune-coredump": ("--no-enable-flashinfer-autotune", "Retry once"),
    "compile-cache-baked-into-image-stale-path": ("another path", "damaged"),
    "cudagraph-estimate-118gib-no-kv-cache": ("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0", "Raise --gpu-memory-utilization"),
    "deepgemm-nvcc-too-old": ("CUDA_HOME", "does not support"),
    "dflash-negative-max-num-scheduled-tokens": ("Raise --max-num-batched-tokens", "Correct the flag"),
    "eagle3-num-speculative-tokens-missing": ("Add num_speculative_tokens", "does not fit"),
    "kv-offload-confidential-computing": ("Start without --kv-offloading-size", "CUDA_LAUNCH_BLOCKING"),
    "lmcache-mp-server-unreachable": ("lmcache.mp.host", "matching"),
    "lora-gemma4-moe-get-expert-mapping": ("merge the adapter", "--max-lora-rank"),
    "numa-membind-blocked-in-container": ("Start without --numa-bind", "OOMKilled"),
    "omni-unknown-quantization-gguf": ("vllm-gguf-plugin", "--quantization"),
    "parallel-import-generationconfig": ("half imported", "another version of the package"),
    "qwen35-ray-two-nodes-linear-attn-keyerror": ("20.linear_attn", "free GPUs"),
    "torch211-cuda-init-eats-vram": ("before the engine loaded any weights", "--max-num-seqs"),
    "weights-gguf-arch": ("safetensors", "--model-impl"),
    "ascend-minimax-m3-indexer-out-of-bounds": ("not of a client", "value of a flag"),
    "autotune-cuda-driver-device-not-ready": ("is not ready", "another backend"),
    "dspark-draft-fc-size-mismatch": ("start without --speculative-config", "another export"),
    "dspark-draft-inherits-fp8-ds-mla": ('"kv_cache_dtype": "auto" in --speculative-config', "set it to fp8"),
    "encoder-cudagraph-empty-buffer-size-mismatch": ("encoder for images", "Set --enforce-eager for one start"),
    "gb10-cu129-fp4-gemm-no-kernel-image": ("--linear-backend marlin", "newer image (Blackwell"),
    "gb10-cutlass-fp8-gemm-caller-error-internal": ("--linear-backend", "new directory"),
    "gb10-scaledmm-fp8-marlin-not-forced": ("Set VLLM_TEST_FORCE_FP8_MARLIN=1", "next lines"),
    "gh200-fused-allreduce-rms-illegal": ("fuse_allreduce_rms", "newer image"),
    "glm52-deepgemm-mqa-metadata-unsupported-arch-sm120": ("get_paged_mqa_logits_metadata", "VLLM_USE_DEEP_GEMM=0"),
    "h200-fp16-with-fp8-kv-fa3-dtype": ("--dtype bfloat16", "LoRA"),
    "kaggle-flashinfer-link-lcuda": ("LIBRARY_PATH", "ran out of memory"),
    "kaito-mimo-mtp-runai-streamer": ("Remove --load-format runai_streamer", "Complete the download"),
    "lora-cudagraph-capture-out-of-memory": ("0.85 GiB are left", "Lower --gpu-memory-utilization"),
    "mi355x-aiter-top-k-renorm-memory-fault": ("VLLM_ROCM_USE_AITER=0", "speculative decoding"),
    "neuron-execution-out-of-bounds": ("Execution Out-Of-Bounds Memory Access", "version of the package"),
    "no-available-memory-for-cache-blocks-0251": ("was set to 0.0 GiB", "Give the Pod more memory"),
    "r9700-aiter-unified-attn-gpu-hang-autotune": ("Start once with another --attention-backend", "out of service"),
    "r9700-rocm10-image-old-host-driver-invalid-argument": ("AMD_SERIALIZE_KERNEL=3", "Xid"),
    "rayon-thread-pool-would-block": ("limit of processes and threads", "tokenizer.json"),
    "slurm-home-quota-inductor-cache": ("VLLM_CACHE_ROOT", "The volume"),
    "spark-cicc-oom-silent": ("MAX_JOBS=1", "limits.memory"),
    "spark-triton-load-during-capture-not-permitted": ("cudagraph_mode to PIECEWISE", "systemd"),
    "tpu-qwix-int8-concrete-hbm": ("already quantized", "memory limit of the container"),
    "tpu-util-095-program-does-not-fit": ("now 0.95", "--max-model-len"),
    "util-015-second-engine-negative-kv-memory": ("more than 6.54 GiB divided by", "to 0.95"),
    "weights-visual-not-in-checkpoint-kat-coder": ("--language-model-only", "another export"),
    "abort-during-kv-transfer": ("chatcmpl-51f0", "other side runs"),
    "aiter-gfx1151-arch": ("Unset VLLM_ROCM_USE_AITER", "sampling"),
    "audio-tower-quantized": ("encoder is not quantized", "page names"),
    "cooperative-topk-sm120": ("newer vLLM", "--attention-backend"),
    "cudnn-sm120-illegal-access": ("CUDA_LAUNCH_BLOCKING=1", "out of service"),
    "cutlass-dsl-quack-thrmma": ("nvidia-cutlass-dsl", "Python, PyTorch"),
    "deepgemm-no-sm121-header": ("another GPU or model", "DG_JIT_CACHE_DIR"),
    "deepgemm-paged-mqa-metadata-oob": ("cudagraph_mode to PIECEWISE", "Set VLLM_USE_DEEP_GEMM=0"),
    "dspark-dflash-proposer-assert": ("without --speculative-config", "check that the draft model"),
    "dspark-sm120-topk256": ("Start without --speculative-config", "--kv-cache-dtype"),
    "dsv4-0731-mtp-is-dspark": ("--speculative-config to dspark", "another export"),
    "experts-not-divisible-by-ep": ("256 experts", "pipeline"),
    "flashinfer-too-old-swa-topk-lens": ("newer FlashInfer", "--attention-backend"),
    "fp8-moe-lora-triton-dot": ("without --enable-lora", "--speculative-config"),
    "gguf-needs-plugin-0-24": ("Install vllm-gguf-plugin", "--trust-remote-code"),
    "gloo-barrier-same-node-deadlock": ("barrier (Gloo)", "restart all of them"),
    "lmcache-nixl-backend-device": ("nixl_buffer_device", "Correct what"),
    "lmcache-nixl-pool-oomkill": ("Set nixl_pool_size", "10 GiB per process"),
    "mamba-align-external-kv": ("remove --kv-offloading-size", "--kv-transfer-config"),
    "multinode-mp-semlock": ("--distributed-executor-backend ray", "ConfigMap"),
    "nightly-pytest-via-cupy": ("image of a release", "Use the official vLLM image"),
    "nvfp4-moe-half-dtype": ("Set --dtype bfloat16", "--moe-backend"),
    "offload-abort-queued-request": ("chatcmpl-8c41", "AIBrix"),
    "offloading-update-state-assert": ("lost track of a request", "AIBrix"),
    "qwen3-omni-lora-3d-moe": ("newer vllm-omni", "To see whether"),
    "spark25-plugin-missing": ("a plugin that the page names", "Use a newer vLLM image, or an older"),
    "tiering-offload-keyerror": ("tiered offloading", "AIBrix"),
    "tpu-mesh-found-1-device": ("only CpuDevice", "plugin"),
    "tpu-v5p-tp8-four-devices": ("--tensor-parallel-size to 4", "plugin"),
    "tpu-worker-hostnames-env": ("Unset TPU_WORKER_HOSTNAMES", "is attached"),
    "trtllm-bf16-lora-nongated": ("--moe-backend triton", "lacks the kernel"),
    "zentorch-inductor-freezing": ("Unset TORCHINDUCTOR_FREEZING", "--enforce-eager"),
    "a100-fp8e4nv-jit-warmup": ('"enable_jit_warmup": false', "--kv-cache-dtype"),
    "coresident-cumulative-util": ("its share of the whole GPU", "--max-model-len"),
    "dsv4-dspark-swa-kv-shape": ("Use a newer build", "another --attention-backend"),
    "dsv4pro-tp16-block-k": ("Lower --tensor-parallel-size", "avoids splitting"),
    "dynamo-cache-group-metadata": ("Install the vLLM version that the program", "--block-size"),
    "ep16-util-098": ("Lower --gpu-memory-utilization to at most 0.97", "earlier engine left"),
    "flag-one-dash": ("two hyphens: --language-model-only", "entrypoint"),
    "gemma4-mtp-025-shape": ("another one, newer or older", "VLLM_USE_V2_MODEL_RUNNER"),
    "gke-ld-library-path": ("LD_LIBRARY_PATH (GKE: /usr/local/nvidia/lib64)", "vendor"),
    "glm52-flashmla-sparse-profile": ("Start without --kv-cache-dtype", "--block-size"),
    "gptoss-rdna-mfma": ("Use a GPU with CDNA", "VLLM_CACHE_ROOT"),
    "kimi-eagle3-xgrammar-fsm": ("start without --speculative-config", "If speculative decoding"),
    "libcudart13-cu129-host": ("in its build for CUDA 12", "site-packages"),
    "llmd-no-lmcache": ("take another connector", "--trust-remote-code"),
    "lmcache-m3-register-shape": ("newer LMCache", "AIBrix"),
    "m3-nvfp4-deepep": ("Set --all2all-backend to allgather_reducescatter", "another GPU"),
    "m3-swiglu-clamp-cutlass": ("use another quantization", "lists valid values"),
    "minimax-m3-warmup-py310": ("Use Python 3.12", "TRITON_CACHE_DIR"),
    "moe-lora-rank-256": ("at most 128", "without weights for the experts"),
    "ngram-gpu-O0": ("Set --optimization-level to 1", "Set --enforce-eager"),
    "nixl-peer-restart-segv": ("newer NIXL and UCX", "--tensor-parallel-size"),
    "nvcc-compress-mode": ("12.8 or later", "--attention-backend"),
    "qwen36-text-config": ("complete config.json of its base model", "--limit-mm-per-prompt"),
    "removed-flags-swap-space": ("Pin the version", "entrypoint"),
    "runpod-dns-hf": ("/etc/resolv.conf", "HF_HUB_OFFLINE"),
    "runpod-transformers5-tokenizer": ("below 5", "ships with"),
    "simple-offload-hit-tokens": ("newer vLLM", "AIBrix"),
    "spark-nvfp4-kv-dflash": ("such as mtp", "set it to fp8"),
    "suffix-arctic-missing": ("Add the package to your own image", "Use the official vLLM image"),
    "cccl-nvcc-13.4": ("The environment has parts of several CUDA versions", "The image has"),
    "path-pasted-twice": ("Give the model once", "its name in this version"),
    "compilation-config-start-command": ("start command) of the container empty", "Correct the JSON"),
    "diffusion-config-braces": ("also in the other JSON arguments", "Quote it once more"),
    "node-rank-empty": ("Set NODE_RANK", "begins with a hyphen"),
    "draft-host-path": ("Correct `model` in --speculative-config", "spec.model"),
    "kv-recreate-race": ("Start again first", "is not set"),
    "prefix-align-kv": ("--no-enable-prefix-caching", "(now 0.957)"),
    "cudagraph-memory-kv": ("Raise --gpu-memory-utilization to 0.9229", "(now 0.9)"),
    "native-context-l40s": ("Set --max-model-len to at most 231328", "Lower"),
    "ds4-cpu-offload-ignored-v2": ("keeps all weights on the GPU", "at most"),
    "rtx2060-shared-memory": ("Use a GPU with more shared memory", "--dtype half"),
    "no-runtimeclass": ("Check that the Pod requests a GPU", "vendor"),
    "undefined-symbol-user-site": ("PYTHONNOUSERSITE=1", "official"),
    "sparse-mla-sm120": ("sparse MLA (head_size 192)", "First remove"),
    "transformers-backend-shape": ("Remove --model-impl transformers", "another --attention-backend"),
    "mistral-common-old": ("pip install -U mistral_common", "without installing others"),
    "plugin-bias-not-initialized": ("the plugin topk", "page names"),
    "text-only-override": ("Start without architectures in --hf-overrides", "page names"),
    "aibrix-pdreuse-unsupported-connector": ("kv_connector_module_path", "Correct what the message is about"),
    "arc-a770-fp64": ("TRITON_ATTN", "Correct or remove the setting"),
    "ds4-offloading-block-size-256": ("or without --block-size", "AIBrix"),
    "ds41-simplecpu-hash-block": ("(SimpleCPUOffloadConnector)", "Remove --block-size"),
    "dynamo-epd-encode-worker": ("VLLM_USE_V2_MODEL_RUNNER=0", "sleep mode"),
    "fs-backend-gemma4-group-idx": ("newer llmd_fs_backend", "AIBrix"),
    "gemma4-audio-placeholder-mismatch": ("--mm-processor-cache-gb 0", "--mm-processor-kwargs"),
    "l40s-mtp-k4-piecewise": ("here with speculative decoding", "Retry once"),
    "lora-qwen35-slices": ("packed_modules_mapping", "base_model_name_or_path"),
    "mooncake-store-missing-block-table": ("bug of vLLM", "the other side"),
    "mtp-encoder-cache-miss": ("start without --speculative-config", "--no-async-scheduling"),
    "omni-minicpmo-audio-batch-shapes": ("--max-num-seqs 1", "AIBrix"),
    "pd-offload-store-jobs": ("out of the MultiConnector", "NixlConnector"),
    "qwen3-mamba-align-not-hybrid": ("Remove --mamba-cache-mode", "--enforce-eager"),
    "rocm-aiter-ipc-expandable": ("expandable_segments", "Xid"),
    "rocm-r9700-ipc-legacy": ("HSA_ENABLE_IPC_MODE_LEGACY", "NCCL_DEBUG"),
    "spark-tp2-mtp-gdn-misaligned": ("misaligned address", "Retry once"),
    "sparkrun-master-addr-loopback": ("Set --master-addr on all nodes", "NetworkPolicy"),
    "tpu-qwen3vl-deepstack": ("serve the model on GPUs", "model's recipe"),
    "tpu-v6e-gemma4-elem": ("MODEL_IMPL_TYPE=flax_nnx", "model's recipe"),
    "tpu7x-moe-decode-kernel-halt": ("Set USE_MOE_TP_DECODE_KERNEL=0", "Ray"),
    "ucx-avx-vm-cpu": ("host-passthrough", "VLLM_CACHE_ROOT"),
    "vast-unspecified-launch-failure": ("Xid", "speculative decoding"),
    "xpu-arc-tp2-ipc": ("CCL_SYCL_ALLREDUCE_SIMPLE_THRESHOLD", "another PyTorch"),
    "bnb-operator-registered-twice": ("Remove vllm-bnb-plugin", "Python, PyTorch or CUDA"),
    "compose-long-vision-kv-cache": ("Set --kv-cache-dtype to fp8", "that the message"),
    "dies-under-load-at-full-cache": ("--no-async-scheduling", "--speculative-config"),
    "dynamo-worker-increment-coord": ("Reinstall all its parts in one version", "driver"),
    "glm52-dcp8-first-long-prompt": ("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE to 2684354560", "--kv-cache-dtype"),
    "gptq-hybrid-page-size": ("Use a newer vLLM", "--block-size"),
    "graph-capture-buffer-overflow": ("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE to 1073741824", "--max-model-len"),
    "import-arch-cutlass-base-dsl": ("quack-kernels 0.4.1", "driver"),
    "isvc-terminated-mid-start": ("else a startup probe", "memory"),
    "nemotron-shape-mismatch-in-serving": ("Remove --mamba-block-size", "--enforce-eager"),
    "nvfp4-mtp-crash-under-traffic": ("--no-async-scheduling", "NCCL_P2P_DISABLE"),
    "prefill-decode-nixl-no-plugins": ("Remove NIXL_PLUGIN_DIR", "--kv-transfer-config"),
    "qwen36-35b-nvfp4-5090-profile-run": ("another --moe-backend", "expandable_segments"),
    "qwen36-with-cache-connector": ("OffloadingConnector", "--no-disable-hybrid-kv-cache-manager"),
    "ray-worker-bare-assertion": ("VLLM_USE_V2_MODEL_RUNNER=0 (or 1)", "--enforce-eager"),
    "serve-dies-at-import-layerrepository": ("the version of kernels that this transformers requires", "PyTorch"),
    "spark-cold-start-negative-cache": ("--kv-cache-memory-bytes", "set it to 0.9"),
    "two-spark-killed-while-converting": ("gives memory back", "spec.podTemplate"),
    "wide-ep-decode-create-ah": ("another NVSHMEM", "reboot"),
    "decode-pool-dies-some-prompts": ("the same prompt to prefill and decode", "--no-enable-prefix-caching"),
    "dynamo-nemotron-decode-second-turn": ("--no-enable-prefix-caching", "can be reached"),
    "glm52-dcp8-h200-refused": ("No other --attention-backend helps", "what the message says"),
    "glm53-flash-on-eight-4090": ("No flag helps", "Remove --attention-backend"),
    "gpt-oss-120b-triton-on-spark": (".tile::scatter4", "TRITON_PTXAS_PATH"),
    "nemotron-tool-plugin-after-bump": ("vllm.entrypoints.openai.protocol", "Check the spelling"),
    "nightly-image-dies-after-warmup": ("of two versions", "plugin requires"),
    "b12x-moe-two-dp-5090": ("--moe-backend", "lacks the kernel"),
    "external-lb-four-ranks-two-nodes": ("nnodes 2", "that the message is about"),
    "minimax-m3-fast-loader": ("Start without --load-format", "compare their sizes"),
    "qwen38-two-ranks-exit-before-serve": ("for which the patches were written", "ConfigMap"),
    "spark-instanttensor-start": ("does not know copy", "mounted over"),
    "v4-flash-0731-half-hour": ("go back to 0.25.0", "Start once with another"),
    "single-3090-180k-recipe": ("111456", "--kv-cache-dtype"),
    "ascend-lora-embed-tokens": ("release of the plugin", "train it for"),
    "glm41v-limit-mm-refused": ("use a newer vLLM", "but the model accepts"),
    "granite-lora-on-cpu-first-request": ("without --enable-lora", "adapter_config.json"),
    "qwen25vl-image-and-video-in-one": ("one kind (images or a video)", "--max-model-len"),
    "rollout-woken-with-weights-only": ("only its weights were woken up", "CUDA_LAUNCH_BLOCKING"),
    "qwen3-reranker-score-without-overrides": ("--hf-overrides", "newer or older"),
    "llama4-fp8-expert-parallel-index-cpu": ("without --enable-expert-parallel", "recipe"),
    "omni-stage-zero-token-request": ("vLLM-Omni", "--enforce-eager"),
    "lmcache-assert-new-tokens": ("without --kv-transfer-config", "--no-async-scheduling"),
    "qwen3vl-reranker-no-score": ("another vLLM, newer or older", "download"),
    "spec-config-object-has-no-get": ("SpeculativeConfig.get, which does not exist", "transformers"),
    "awq-moe-logger-typo": ("Logger.warning_one, which does not exist", "--linear-backend"),
    "otlp-endpoint-on-cpu": ("--otlp-traces-endpoint", "nvidia-smi"),
    "completion-while-asleep": ("POST /wake_up", "CUDA_LAUNCH_BLOCKING"),
    "gemma4-cpu-offload-segfault": ("without --kv-offloading-size", "TRITON_CACHE_DIR"),
    "mi300x-aiter-sampler-segfault": ("VLLM_ROCM_USE_AITER=0", "TRITON_CACHE_DIR"),
    "ryzen-7940hs-warmup-segfault": ("ONEDNN_MAX_CPU_ISA", "TRITON_CACHE_DIR"),
    "offload-memcpy-batch-invalid-value": ("KV offloading", "--attention-backend"),
    "pp3-offload-async-assert": ("--no-async-scheduling", "--enforce-eager"),
    "embeddings-keyerror-under-load": ("does not know a request", "--enforce-eager"),
    "v4-pro-dp-ep-topk-long-int": ("without --enable-expert-parallel", "with --dtype auto"),
    "nixl-decode-block-count-differs": ("--num-gpu-blocks-override", "lost track"),
    "ascend-response-format-text": ("response_format", "--structured-outputs-config"),
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


@pytest.mark.parametrize(
    ("name", "notice", "said", "not_said"),
    [
        ("lora-nemotron-expert-adapter-500", "LoraExpertsRefused", "without weights for the experts", "--max-lora-rank"),
        ("mooncake-nvlink-address-not-found", "KvTransfersFail", "/dev/infiniband", "--tensor-parallel-size"),
        ("lmcache-mp-idle-worker-reaped", "KvTransfersFail", "worker_registration_grace_seconds", "VLLM_NIXL"),
    ],
)
def test_an_error_that_the_engine_survived_is_remarked_on(name: str, notice: str, said: str, not_said: str) -> None:
    parser = read_pasted((LOGS / f"{name}.log").read_text())

    assert parser.final_state.crash is None
    (found,) = parser.notices_beside(None)
    assert (found.signature, said in (found.remedy or ""), not_said in (found.remedy or "")) == (notice, True, False)


@pytest.mark.parametrize("name", ["l4-wna16-no-kernel-gemma4-w4a8", "gb10-scaledmm-fp8-marlin-not-forced", "kaggle-flashinfer-link-lcuda"])
def test_the_next_lines_of_a_message_that_announces_them_are_shown(name: str) -> None:
    crash = read_pasted((LOGS / f"{name}.log").read_text()).final_state.crash

    assert crash is not None
    assert any(reason in crash.line for reason in ("requires capability 90", "please set VLLM_TEST_FORCE", "cannot find -lcuda"))


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("good-gh200-sigterm-enginedead", "SharedMemoryBroadcastStall"),
        ("nemotron-nano-nvfp4-no-kernel-image", "Nvfp4MoeMarlinFallbackOrCrash"),
    ],
    ids=["a stall while it loaded", "a kernel that was requested"],
)
def test_what_was_expected_is_not_remarked_on(name: str, hidden: str) -> None:
    parser = read_pasted((LOGS / f"{name}.log").read_text())

    assert hidden not in {each.signature for each in parser.notices_beside(parser.final_state.crash)}


def test_an_error_before_a_stop_is_remarked_on_before_it() -> None:
    parser = read_pasted((LOGS / "sleep-wake-up-out-of-memory-shared-gpu.log").read_text())

    assert parser.final_state.crash is None
    error, stop = parser.notices_beside(None)
    assert (error.signature, stop.signature) == ("CudaOutOfMemory", "ServerToldToStop")
    assert "no error before" not in stop.cause
