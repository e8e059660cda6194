"""Texts that are no log of a failed start: nothing in them is an alarm, and none of them is a start that goes on."""

import re
from pathlib import Path

import pytest
import yaml

from support.pasted import KNOWLEDGE, read_either_way
from vllm_operator.catalog.startup import Signature, load_signature_samples
from vllm_operator.logs.state import Stage, StartupState

ROOT = Path(__file__).parents[2]


def read(text: str) -> StartupState:
    return read_either_way(text).final_state


TEXTS = {
    "a help text": """\
usage: vllm serve [model_tag] [options]

  --tensor-parallel-size TENSOR_PARALLEL_SIZE, -tp TENSOR_PARALLEL_SIZE
                        Number of tensor parallel groups. The number of attention heads must be divisible by it. (default: 1)
  --trust-remote-code, --no-trust-remote-code
                        Trust remote code (e.g., from HuggingFace) when downloading the model and tokenizer. (default: False)
  --kv-cache-dtype {auto,bfloat16,fp8,fp8_e4m3,fp8_e5m2}
                        Data type for kv cache storage. Some models default to fp8, set this to bfloat16 instead. (default: auto)
  --disable-custom-all-reduce
                        Disable the custom all-reduce kernel and fall back to NCCL. (default: False)
""",
    "an environment": """\
Collecting environment information...
Traceback (most recent call last):
  File "/workspace/collect_env.py", line 17, in <module>
    from vllm.envs import environment_variables
ModuleNotFoundError: No module named 'vllm'
==============================
        System Info
==============================
OS                           : Ubuntu 22.04.5 LTS (x86_64)
GCC version                  : Could not collect
==============================
       CUDA / GPU Info
==============================
Is CUDA available            : False
Nvidia driver version        : Could not collect
HIP runtime version          : N/A
[pip3] flashinfer-python==0.6.8
[conda] Could not collect
vLLM Version                 : N/A (dev)
NCCL_CUMEM_ENABLE=0
""",
    "a sitecustomize that Python survives": """\
Error in sitecustomize; set PYTHONVERBOSE for traceback:
ModuleNotFoundError: No module named 'wrapt'
2026-10-01T22:40:55.123456789Z Error in usercustomize; set PYTHONVERBOSE for traceback:
2026-10-01T22:40:55.123456999Z OSError: [Errno 28] No space left on device
""",
    "what pip prints": """\
Collecting vllm
  Downloading vllm-0.20.1-cp38-abi3-manylinux_2_35_x86_64.whl (244.4 MB)
     ---------------------------------------- 244.4/244.4 MB 11.2 MB/s eta 0:00:00
ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.
xformers 0.0.30 requires torch==2.7.0, but you have torch 2.11.0 which is incompatible.
Successfully installed vllm-0.20.1
WARNING: Running pip as the 'root' user can result in broken permissions and conflicting behaviour with the system package manager
""",
    "what apt prints": """\
Reading package lists... Done
The following packages have unmet dependencies:
 libnccl2 : Depends: libc6 (>= 2.38) but 2.35 is to be installed
E: Unable to correct problems, you have held broken packages.
W: Failed to fetch http://archive.ubuntu.com/ubuntu/dists/jammy/InRelease  Temporary failure resolving 'archive.ubuntu.com'
""",
    "nvidia-smi": """\
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA H200                    On  |   00000000:1B:00.0 Off |                    0 |
| N/A   31C    P0             76W /  700W |       0MiB / 143771MiB |      0%      Default |
|  No running processes found                                                             |
""",
    "nccl-tests": """\
# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
           8             2     float     sum      -1    21.32    0.00    0.00      0    21.05    0.00    0.00      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 142.511
""",
    "a manifest": """\
apiVersion: v1
kind: Pod
metadata: {name: llama, annotations: {note: "restart it when it says EngineDeadError or OOMKilled"}}
spec:
  containers:
    - name: vllm
      args: ["--model", "meta-llama/Llama-3.1-8B", "--trust-remote-code", "--max-model-len=8192"]
      startupProbe: {httpGet: {path: /health, port: 8000}, failureThreshold: 360}
      terminationMessagePolicy: FallbackToLogsOnError
""",
    "metrics": """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:request_success_total{engine="0",finished_reason="error",model_name="m"} 0.0
process_open_fds 127.0
http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 2.0
""",
    "a model card": """\
# Llama 3.1 8B FP8

## Usage
If you see `torch.cuda.OutOfMemoryError` lower the context; a `KeyError` for your model type means that Transformers is too old.
`GatedRepoError` tells that you have to accept the licence, ncclInvalidUsage that versions are mixed.

| error | means |
|---|---|
| EADDRINUSE | another server listens |
| SIGILL | the CPU is too old |
""",
    "a change log": """\
* [Bugfix] Fix EngineDeadError on abort in #31337
* [Misc] Remove the check that heads are divisible by TP size for replicated layers in #3131
* Fix RepositoryNotFoundError when offline, cudaErrorNoKernelImageForDevice on sm_120 and BackendCompilerFailed with nightly
* handle SIGILL and SIGBUS in the launcher, spurious EADDRINUSE in a test
""",
    "a program": '''\
import torch
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError


class Linear(torch.nn.Module):
    """Raises an error if the size is not divisible."""

    def __init__(self, tp_size: int) -> None:
        assert self.num_heads % tp_size == 0
        assert param_data.shape == loaded_weight.shape
        if tp_size < 1:
            # torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped
            raise ValueError("The number of attention heads must be divisible by tensor parallel size")
        try:
            self.load()
        except torch.cuda.OutOfMemoryError:
            raise RuntimeError("No available memory for the cache blocks. "
                "Try increasing `gpu_memory_utilization` when initializing the engine.")
        logger.exception("EngineCore failed to start.")
''',
    "prompts": """\
(APIServer pid=1) INFO 11-21 09:33:11 [logger.py:42] Received request cmpl-1: prompt: 'Why do I get RuntimeError: CUDA out of memory? \
Engine core initialization failed. OSError: [Errno 28] No space left on device', params: SamplingParams(n=1)
(APIServer pid=1) INFO 11-21 09:33:11 [async_llm.py:261] Added request cmpl-1.
""",
    "a configuration": """\
(EngineCore pid=77) INFO 11-21 09:33:11 [utils.py:233] non-default args: {'model': 'm', 'chat_template': "{{ raise_exception('ValueError: \
Conversation roles must alternate') }}", 'tensor_parallel_size': 3, 'trust_remote_code': False}
{"compilation_config": {"level": 3, "cudagraph_mode": "FULL", "cache_dir": ""}, "error": null, "quantization": "fp8"}
""",
}

ANSWERS = """\
INFO:     10.0.0.1:33122 - "GET /..%2f..%2fetc/passwd HTTP/1.1" 404 Not Found
INFO:     10.0.0.1:33122 - "POST /v1/completions?x=RuntimeError:%20CUDA%20out%20of%20memory HTTP/1.1" 400 Bad Request
INFO:     10.0.0.1:33122 - "POST /sdk/EngineDeadError HTTP/1.1" 404 Not Found
INFO:     10.0.0.1:33122 - "GET /robots.txt HTTP/1.1" 405 Method Not Allowed
"""


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in TEXTS.items()])
def test_a_text_that_is_no_log_of_a_failure_is_no_alarm(text: str) -> None:
    state = read(text)

    assert state.crash is None
    takes_requests = "Added request" in text
    assert state.stage in ((Stage.READY,) if takes_requests else (Stage.PROCESS_START, Stage.CONFIGURATION))


def test_a_server_that_refuses_is_up() -> None:
    assert read(ANSWERS).stage is Stage.READY
    assert read(ANSWERS).crash is None


CUTS_AN_ERROR = ROOT / "operator" / "vllm_operator" / "status" / "knowledge.py"
"""Has the beginning of what container runtimes say of an image, to cut it off."""
FINDS_AN_ERROR = ROOT / "operator" / "vllm_operator" / "logs" / "crash.py"
"""Has what the C++ runtime says, to find it in a log."""
WRITES_AN_ERROR = ROOT / "operator" / "vllm_operator" / "tools" / "artifact.py"
"""Writes the line of a crash itself."""
ENDS_AN_ENGINE = ROOT / "operator" / "vllm_operator" / "tools" / "hang.py"
"""Names the signal that it sends."""
NO_MODULES = {CUTS_AN_ERROR, FINDS_AN_ERROR, WRITES_AN_ERROR, ENDS_AN_ENGINE}
MODULES = sorted(set((ROOT / "operator" / "vllm_operator").rglob("*.py")) - NO_MODULES)[::6]
MANIFESTS = sorted((ROOT / "examples").glob("*.yaml")) + sorted((ROOT / "crds").glob("*.yaml"))


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in (*MODULES, *MANIFESTS)])
def test_a_program_or_a_manifest_is_no_log(path: Path) -> None:
    state = read(path.read_text())

    assert state.crash is None
    assert state.stage is Stage.PROCESS_START


NAMES = [
    pytest.param(signature, pattern.anchor, id=f"{signature.id}-{pattern.anchor}")
    for signature in KNOWLEDGE.signatures
    for pattern in signature.patterns
    if re.fullmatch(r"[\w.]+", pattern.anchor) and not pattern.context
]


@pytest.mark.parametrize(("signature", "name"), NAMES)
def test_a_name_in_a_sentence_is_no_crash(signature: Signature, name: str) -> None:
    crash = read(f"The new release handles {name} and other things better, see `{name}` in the notes.\n").crash

    assert crash is None, f"{signature.id} is told by the bare word {name}"


QUOTED: dict[str, list[str]] = {}
for sample in load_signature_samples():
    QUOTED.setdefault(sample.signature, []).append(sample.text)
for name, rows in yaml.safe_load((ROOT / "tests" / "corpus" / "messages.yaml").read_text("utf-8"))["raised"].items():
    QUOTED.setdefault(name, []).extend(row["text"] for row in rows)


def cut_words(regex: str, line: str) -> str | None:
    """The word of the line in whose middle a pattern begins or ends. The end of any `...Error: ` is a beginning by intent."""
    found = re.search(regex, line)
    if found is None or not found[0]:
        return None
    begin, end = found.span()
    begins = found[0][0].isalpha() and line[begin - 1 : begin].isalpha() and not found[0].startswith("Error: ")
    ends = found[0][-1].isalpha() and line[end : end + 1].isalpha()
    return line[max(begin - 12, 0) : end + 12] if begins or ends else None


@pytest.mark.parametrize("signature", [pytest.param(each, id=each.id) for each in KNOWLEDGE.signatures])
def test_a_pattern_begins_and_ends_at_the_ends_of_words(signature: Signature) -> None:
    cut = [
        (pattern.regex, words)
        for pattern in signature.patterns
        for line in QUOTED.get(signature.id, ())
        if (words := cut_words(pattern.regex, line)) is not None
    ]

    assert not cut, "these patterns match in the middle of a word: let them begin and end with one"
