"""What decides is often far from the error: in the arguments, in an earlier figure, in another program's lines, or in what is not there."""

import pytest

from support.pasted import read_pasted

UP = "(APIServer pid=1) INFO:     Application startup complete.\n"
CORE = "(EngineCore pid=40) "
LOADING = f"{CORE}INFO 10-01 10:00:10 [gpu_model_runner.py:5355] Starting to load model /m...\n"
ARGUMENTS = "(APIServer pid=1) INFO 10-01 10:00:00 [utils.py:233] non-default args: {{'model': '/m', {}}}\n"
GRAPHS = f"{CORE}INFO 10-01 10:00:20 [gpu_model_runner.py:6806] Estimated CUDA graph memory: {{}} GiB total\n"
FAILED = f"{CORE}ERROR 10-01 10:01:10 [core.py:13] "
TOO_LONG = (
    f"{FAILED}ValueError: To serve at least one request with the model's max seq len (131072), (6.8 GiB KV cache is needed, which is larger"
    " than the available KV cache memory (4.3 GiB). Based on the available memory, the estimated maximum model length is 65000.\n"
)
FREE = "Free memory on device cuda:0 ({} GiB) on startup is less than desired GPU memory utilization (0.9, {} GiB)."


def listener(file: str, function: str, message: str) -> str:
    lines = ["Exception in thread Thread-7:", "Traceback (most recent call last):", f'  File "/opt/vllm/{file}", line 4, in {function}']
    return LOADING + "".join(f"{CORE}{line}\n" for line in (*lines, "    socket.bind(path)", f"zmq.error.ZMQError: {message}"))


CRASHES = {
    "listener-port": (listener("kv_transfer/nixl/scheduler.py", "listen", "Address already in use (addr='tcp://10.0.0.7:5601')"), "5601"),
    "listener-address": (listener("mooncake.py", "serve", "Cannot assign requested address (addr='tcp://10.0.0.9:1')"), "10.0.0.9"),
    "graphs-take-much": (GRAPHS.format("9.5") + TOO_LONG, "--max-cudagraph-capture-size"),
    "backend-in-the-arguments": (ARGUMENTS.format("'attention_backend': 'TRITON_ATTN'") + TOO_LONG, "TRITON_ATTN"),
    "orphan-in-a-table": (
        f"{FAILED}ValueError: {FREE.format('2.0/79.1', '71.2')}\n|    0   N/A  N/A     4123      C   python3        75210MiB |\n",
        "pid 4123",
    ),
    "shared-memory-of-cpu-and-gpu": (f"{FAILED}ValueError: {FREE.format('40.1/119.7', '107.7')}\n", "drop_caches"),
    "no-ray": ("/start.sh: line 7: ray: command not found\ngiving up\n", "Use an image that has Ray"),
    "no-torchrun": ("./run: line 12: torchrun: command not found\n", "torchrun"),
    "node-without-memory": (LOADING + "MemAvailable:      91232 kB\n", "ran out of memory"),
    "node-in-gib": (LOADING + "[watch] MemAvailable 0.1 GiB\n", "--max-num-batched-tokens"),
    "first-collective": (
        f"{FAILED}Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=BROADCAST, NumelIn=1)\n",
        "NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce",
    ),
    "later-collective": (
        f"{FAILED}Watchdog caught collective operation timeout: WorkNCCL(SeqNum=90210, OpType=ALLREDUCE, NumelIn=1)\n",
        "VLLM_NCCL_SO_PATH",
    ),
    "escaped-json": (
        'vllm serve: error: argument --hf-overrides: Value {\\"rope\\": 1} cannot be converted to <function loads at 0x1>.\n',
        "without backslashes",
    ),
    "quoted-json": (
        "vllm serve: error: argument --compilation-config: Value '{\"level\": 3}' cannot be converted to <function loads at 0x1>.\n",
        "single quotation marks of a shell",
    ),
    "other-json": (
        "vllm serve: error: argument --hf-overrides: Value {rope: 1} cannot be converted to <function loads at 0x1>.\n",
        "Quote it once more",
    ),
}


@pytest.mark.parametrize(("log", "said"), CRASHES.values(), ids=CRASHES)
def test_what_the_log_shows_elsewhere_decides(log: str, said: str) -> None:
    crash = read_pasted(log).final_state.crash

    assert crash is not None
    assert said in f"{crash.cause} {crash.remedy}"


@pytest.mark.parametrize("before", ["", GRAPHS.format("0.7")], ids=["unknown", "little"])
def test_graphs_that_take_little_memory_are_not_blamed(before: str) -> None:
    crash = read_pasted(before + TOO_LONG).final_state.crash

    assert crash is not None
    assert "graph" not in f"{crash.cause} {crash.remedy}"


REQUEST = "(APIServer pid=1) ERROR 10-01 10:02:00 [serving.py:321] "
FRAME = (
    'Traceback (most recent call last):\n{0}  File "/opt/vllm/entrypoints/openai/chat/serving.py", line 3, in create_chat_completion\n{0}'
)
NOTES = {
    "audio": (f"{REQUEST}{FRAME.format(REQUEST)}ImportError: Please install vllm[audio] for audio support\n", "RequestsNeedPackage"),
    "video": (f"{REQUEST}{FRAME.format(REQUEST)}ModuleNotFoundError: No module named 'decord'\n", "RequestsNeedPackage"),
    "handshake": (f"{FAILED}NIXL transfer failure: handshake_failed\n", "KvTransfersFail"),
    "transfer": (f"{FAILED}NIXL transfer failure: transfer_setup_failed | Context: {{}}\n", "KvTransfersFail"),
    "stopped": ("(APIServer pid=1) INFO 10-01 10:02:00 [launcher.py:124] Shutting down FastAPI HTTP server.\n", "ServerToldToStop"),
}


@pytest.mark.parametrize(("log", "note"), NOTES.values(), ids=NOTES)
def test_a_ready_server_that_does_not_serve_is_remarked_on(log: str, note: str) -> None:
    parser = read_pasted(UP + log)

    assert parser.final_state.crash is None
    assert [each.signature for each in parser.notices_beside(None)] == [note]
