"""Every line that means something to a start is recognised, with the sample that the catalog gives."""

from datetime import UTC, datetime, timedelta

import pytest

from vllm_operator.catalog.startup import LineMeaning, load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.progress import allowed_silence_seconds, infer_silence
from vllm_operator.logs.state import Stage, StartupState

KNOWLEDGE = load_startup()
SAMPLES = [(meaning, sample) for meaning in KNOWLEDGE.stages.lines for sample in meaning.samples]


def parsed(text: str) -> StartupParser:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(text + "\n")
    parser.end()
    return parser


@pytest.mark.parametrize(("meaning", "sample"), [pytest.param(m, s, id=f"{m.id}-{n}") for n, (m, s) in enumerate(SAMPLES)])
def test_a_line_means_what_the_catalog_says(meaning: LineMeaning, sample: str) -> None:
    state = parsed(sample).state

    if meaning.stage is not None:
        assert state.stage.value == meaning.stage
    if meaning.cache is not None:
        assert {"hit": state.cache.hits, "miss": state.cache.misses, "failure": state.cache.load_failures}[meaning.cache] == 1
    if meaning.component is not None:
        assert meaning.component in dict(state.observed_backends)
    if meaning.banner or meaning.engine:
        assert state.engine_version or "(?P<version>" not in meaning.regex or "with config" in sample
    assert state.crash is None


TILELANG = """\
(Worker pid=9) INFO 11-21 09:30:00 [monitor.py:81] torch.compile took 13.01 s in total
(Worker pid=9) 2025-11-21 09:30:21  [TileLang:tilelang.jit.kernel:INFO]: TileLang begins to compile kernel `hc_head` with `out_idx=None`
(Worker pid=9) 2025-11-21 09:30:23  [TileLang:tilelang.jit.kernel:INFO]: TileLang completes to compile kernel `hc_head`
(Worker pid=9) INFO 11-21 09:30:23 [monitor.py:81] Initial profiling/warmup run took 23.05 s
(Worker pid=9) Warning: T.vectorized loop over `i` with extent 4 is lowered as a serial loop: TileLang found no valid plan.
(Worker pid=9) INFO 11-21 09:30:30 [gpu_worker.py:359] Available KV cache memory: 41.72 GiB
(Worker pid=9) INFO 11-21 09:30:31 [deepseek_v4_mhc_warmup.py:197] Warming up DeepSeek V4 mHC TileLang kernels for token sizes: [1, 2]
(Worker pid=9) 2025-11-21 09:30:32  [TileLang:tilelang.jit.kernel:INFO]: TileLang begins to compile kernel `mhc_pre` with `out_idx=None`
(Worker pid=9) INFO 11-21 09:31:01 [breakable_cudagraph.py:294] Breakable CUDA graph enabled
(Worker pid=9) \rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|#         | 2/20 [00:01<00:09,  2.0it/s]
(Worker pid=9) INFO 11-21 09:31:11 [gpu_model_runner.py:6516] Graph capturing finished in 10 secs, took 1.87 GiB"""


def test_kernels_of_tilelang_are_compiled_while_memory_is_profiled_and_in_the_warm_up() -> None:
    state = parsed(TILELANG).state
    stages = [(stage.value, since and since.strftime("%M:%S")) for stage, since in state.entered[1:]]
    assert stages == [
        ("TorchCompile", "30:00"),
        ("MemoryProfiling", "30:00"),
        ("KernelWarmup", "30:31"),
        ("CUDAGraphCapture", "31:01"),
    ]
    assert state.crash is None


def test_words_with_which_many_lines_begin_have_anchors() -> None:
    by_word: dict[str, list[LineMeaning]] = {}
    for meaning in KNOWLEDGE.stages.lines:
        for word in meaning.words:
            by_word.setdefault(word, []).append(meaning)

    assert [each.id for meanings in by_word.values() if len(meanings) > 4 for each in meanings if not each.anchor] == []


@pytest.mark.parametrize(
    "stage", sorted({meaning.stage for meaning in KNOWLEDGE.stages.lines if meaning.stage} | set(KNOWLEDGE.stages.silence))
)
def test_stages_of_the_catalog_exist(stage: str) -> None:
    assert Stage(stage).value == stage


BARS = [
    (
        "(EngineCore_DP0 pid=141) \rLoading safetensors checkpoint shards:  25% Completed | 41/163 [00:12<00:37,  3.31it/s]",
        "WeightLoad",
        41,
        163,
        37,
    ),
    ("\rMulti-thread loading shards:   3% Completed | 5/163 [00:01<?, ?it/s]", "WeightLoad", 5, 163, None),
    ("\rLoading safetensors using Runai Model Streamer:  10% Completed | 100/1000 [00:01<00:09, 99.10it/s]", "WeightLoad", 100, 1000, 9),
    ("\rDeepGEMM warmup:  12%|█▏        | 361/3000 [00:41<05:02,  8.73it/s]", "KernelWarmup", 361, 3000, 302),
    ("DeepGEMM warmup:  12% | 361/3000 [00:41<1:05:02,  8.73it/s]", "KernelWarmup", 361, 3000, 3902),
    (
        "\rDeepGemm(fp8_gemm_nt) warmup (W=torch.Size([7168])):  50%|█████     | 38/76 [00:03<00:03, 12.1it/s]",
        "KernelWarmup",
        38,
        76,
        3,
    ),
    ("\rJIT kernel warmup (213 compile keys):  40%|████      | 8/20 [00:11<00:16,  1.4s/kernel]", "KernelWarmup", 8, 20, 16),
    ("\rCompiling CuTeDSL kernels:  33%|███▎      | 4/12 [00:21<00:42,  5.3s/it]", "KernelWarmup", 4, 12, 42),
    ("\r[AutoTuner]: Tuning fp4_gemm:  42%|████▏     | 5/12 [00:02<00:03,  2.20profile/s]", "Autotune", 5, 12, 3),
    ("\rCapturing CUDA graphs (decode, FULL): 100% | 35/35 [00:03<00:00,  9.07it/s]", "CUDAGraphCapture", 35, 35, 0),
    ("Capturing CUDA graph shapes:  40%|████      | 14/35 [00:08<00:12,  1.75it/s]", "CUDAGraphCapture", 14, 35, 12),
    ("model-00003-of-00008.safetensors:  52%|█████▏    | 2.59G/4.98G [00:12<00:11, 212MB/s]", "WeightDownload", 2590000000, 4980000000, 11),
    ("Fetching 12 files:  25%|██▌       | 3/12 [00:05<00:15,  1.7s/it]", "WeightDownload", 3, 12, 15),
]


@pytest.mark.parametrize(("line", "stage", "completed", "total", "eta"), BARS)
def test_a_bar_is_progress(line: str, stage: str, completed: int, total: int, eta: int | None) -> None:
    state = parsed(line).state

    assert state.stage.value == stage
    assert state.progress is not None
    assert (state.progress.completed, state.progress.total, state.progress.eta_seconds) == (completed, total, eta)


@pytest.mark.parametrize(
    "line", ["100%", "GPU KV cache usage: 18.2%| 3/4", "50%|█| [", "7%|" + "█" * 500, "Epoch:  50%|█████     | 1/2 [00:01<00:01]"]
)
def test_other_bars_are_no_progress(line: str) -> None:
    assert parsed(line).state.progress is None


def test_the_time_left_is_estimated_where_the_bar_does_not_say() -> None:
    parser = StartupParser(KNOWLEDGE)
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    parser.feed("Loading pt checkpoint shards:   0% Completed | 0/10 [00:00<?, ?it/s]\n", begun)
    parser.feed("Loading pt checkpoint shards:  20% Completed | 2/10 [00:10<?, ?it/s]\n", begun + timedelta(seconds=10))

    progress = parser.state.progress
    assert progress is not None
    assert progress.eta_seconds == 40


def test_stages_never_go_back() -> None:
    parser = StartupParser(KNOWLEDGE)
    parser.feed("INFO 11-21 09:32:20 [gpu_model_runner.py:6133] Graph capturing finished in 1 secs, took 0.11 GiB\n")
    parser.feed("(Worker_TP1 pid=2) INFO 11-21 09:32:21 [gpu_model_runner.py:4777] Starting to load model m...\n")

    assert parser.state.stage is Stage.CUDA_GRAPH_CAPTURE


NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
COMPILING = StartupState(
    stage=Stage.MEMORY_PROFILING, last_line_at=NOW - timedelta(seconds=100), observed_backends=(("Attention", "FLASHINFER"),)
)


def test_silence_of_an_engine_that_compiles_is_said_to_be_inferred() -> None:
    assert infer_silence(COMPILING, NOW, KNOWLEDGE).silent_stage_inferred


@pytest.mark.parametrize(
    "state",
    [
        StartupState(stage=Stage.MEMORY_PROFILING, last_line_at=NOW, observed_backends=(("MoE", "FLASHINFER_CUTLASS"),)),
        StartupState(stage=Stage.MEMORY_PROFILING, last_line_at=NOW - timedelta(seconds=100), observed_backends=(("MoE", "TRITON"),)),
        StartupState(stage=Stage.READY, last_line_at=NOW - timedelta(seconds=100), observed_backends=(("MoE", "FLASHINFER_CUTLASS"),)),
        StartupState(stage=Stage.MEMORY_PROFILING, observed_backends=(("MoE", "FLASHINFER_CUTLASS"),)),
    ],
    ids=["it just wrote", "nothing that compiles", "ready", "no times"],
)
def test_other_silence_is_not(state: StartupState) -> None:
    assert not infer_silence(state, NOW, KNOWLEDGE).silent_stage_inferred


def test_a_silent_stage_has_a_known_patience() -> None:
    assert (allowed_silence_seconds(Stage.KERNEL_WARMUP, KNOWLEDGE) or 0) >= 300
    assert allowed_silence_seconds(Stage.READY, KNOWLEDGE) is None
