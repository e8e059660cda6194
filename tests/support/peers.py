"""Pods that run vLLM, as other tools make them: names of containers, images, commands and labels are those of their public templates.

KServe: config/runtimes/kserve-huggingfaceserver.yaml and config/llmisvcconfig; llm-d: charts/llm-d-modelservice; production stack:
helm/templates/deployment-vllm-multi.yaml; Dynamo: deploy/cloud/operator and examples/backends/vllm/deploy; KAITO:
pkg/model and presets/workspace/inference/vllm.
"""

from typing import Any

Manifest = dict[str, Any]

COMPLETE = b"INFO:     Application startup complete.\n"
STILL = (
    b"INFO 11-21 12:05:00 [shm_broadcast.py:501] No available shared memory broadcast block found in 60 seconds. This typically happens"
    b" when some processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization).\n"
    b"INFO 11-21 12:05:10 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s,"
    b" Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.2%, Prefix cache hit rate: 0.0%\n"
)
"""Lines of an engine that stands still although it has requests."""
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}


def _pod(*containers: Manifest, labels: dict[str, str], first: tuple[Manifest, ...] = ()) -> Manifest:
    spec: Manifest = {"containers": list(containers), **({"initContainers": list(first)} if first else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}, "spec": spec}


PEERS: dict[str, tuple[str, Manifest]] = {
    "kserve": (
        "kserve-container",
        _pod(
            {"name": "istio-proxy", "image": "docker.io/istio/proxyv2:1.27.0", "args": ["proxy", "sidecar"]},
            {
                "name": "kserve-container",
                "image": "kserve/huggingfaceserver:v0.15.2-gpu",
                "args": ["--model_name=llama3", f"--model_id={LLAMA}"],
                **GPU,
            },
            labels={"serving.kserve.io/inferenceservice": "llama3", "component": "predictor"},
        ),
    ),
    "kserve-llm": (
        "main",
        _pod(
            {
                "name": "main",
                "image": "ghcr.io/llm-d/llm-d-cuda:v0.3.0",
                "command": ["/bin/bash", "-c"],
                "args": [f'eval "vllm serve /mnt/models --served-model-name {LLAMA} --port 8000 ${{VLLM_ADDITIONAL_ARGS}}"'],
                **GPU,
            },
            labels={"app.kubernetes.io/part-of": "llminferenceservice", "kserve.io/component": "workload"},
        ),
    ),
    "llm-d": (
        "vllm",
        _pod(
            {
                "name": "vllm",
                "image": "ghcr.io/llm-d/llm-d-cuda:v0.3.0",
                "command": ["vllm", "serve"],
                "args": [LLAMA, "--port", "8200", "--served-model-name", LLAMA],
                **GPU,
            },
            labels={"llm-d.ai/inferenceServing": "true", "llm-d.ai/model": "llama", "llm-d.ai/role": "decode"},
        ),
    ),
    "production-stack": (
        "vllm",
        _pod(
            {
                "name": "vllm",
                "image": "lmcache/vllm-openai:v0.3.7",
                "command": ["/opt/venv/bin/vllm", "serve", LLAMA, "--host", "0.0.0.0", "--port", "8000"],
                **GPU,
            },
            labels={"app.kubernetes.io/component": "serving-engine", "model": "llama3", "helm-release-name": "vllm"},
        ),
    ),
    "dynamo": (
        "main",
        _pod(
            {
                "name": "main",
                "image": "nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.6.1",
                "command": ["python3", "-m", "dynamo.vllm"],
                "args": ["--model", LLAMA, "--is-decode-worker"],
                **GPU,
            },
            labels={"nvidia.com/dynamo-component": "VllmDecodeWorker", "nvidia.com/dynamo-component-type": "worker"},
        ),
    ),
    "kaito": (
        "workspace-llama",
        _pod(
            {
                "name": "workspace-llama",
                "image": "mcr.microsoft.com/aks/kaito/kaito-base:0.0.8",
                "command": ["/bin/sh", "-c", f"python3 /workspace/vllm/inference_api.py --model={LLAMA} --tensor-parallel-size=1"],
                **GPU,
            },
            labels={"kaito.sh/workspace": "workspace-llama"},
        ),
    ),
    "deployment": (
        "server",
        _pod(
            {"name": "server", "image": "vllm/vllm-openai:v0.20.1", "args": ["--model", LLAMA], **GPU},
            labels={"app": "llama"},
        ),
    ),
}
"""The container with vLLM, and the Pod without a name, by tool."""

OTHERS: dict[str, Manifest] = {
    "the frontend of Dynamo, of the image of its workers": _pod(
        {
            "name": "main",
            "image": "nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.6.1",
            "command": ["python3", "-m", "dynamo.frontend"],
        },
        labels={"nvidia.com/dynamo-component-type": "frontend"},
    ),
    "the router of the production stack": _pod(
        {"name": "router-container", "image": "lmcache/lmstack-router:latest", "args": ["--port", "8000"]}, labels={}
    ),
    "a cache server, of the image of engines": _pod(
        {"name": "lmcache-server", "image": "lmcache/vllm-openai:v0.3.7", "command": ["lmcache_server", "0.0.0.0", "8080"]}, labels={}
    ),
    "this operator": _pod({"name": "operator", "image": "ghcr.io/vllm-operator/vllm-operator:0.1.0", "args": ["run"]}, labels={}),
    "a Pod of anybody": _pod({"name": "nginx", "image": "nginx"}, labels={}),
    "a Pod without containers": {"metadata": {}, "spec": {"containers": None}},
}
"""Pods that do not run vLLM."""
