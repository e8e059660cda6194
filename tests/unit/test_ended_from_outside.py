"""What was ended from outside did not fail by itself, and what failed by itself was not ended from outside."""

import pytest

from support import observations as o
from support.engine_logs import API_SERVER_GIVES_UP, HEALTHY_START, READY, engine_failure
from vllm_operator.catalog.startup import load_startup
from vllm_operator.cli.diagnose import headline
from vllm_operator.logs.parser import StartupParser
from vllm_operator.status.knowledge import load_knowledge
from vllm_operator.status.terminations import diagnose_termination

KNOWLEDGE = load_startup()
INTERRUPTED = "ninja: build stopped: interrupted by user.\n"
FAILED = "ninja: build stopped: subcommand failed.\n"
COMPILER_KILLED = (
    "[3/40] /usr/local/cuda/bin/nvcc -c a.cu -o a.cuda.o\nFAILED: [code=137] a.cuda.o \n/usr/local/cuda/bin/nvcc -c a.cu\nKilled\n"
)
BUILD = "RuntimeError: Ninja build failed. Ninja output:\nninja: Entering directory `/root/.cache/flashinfer'\n[1/5] nvcc -c a.cu\n"
OUT_OF_GPU_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.19 GiB"


def parsed(log: str) -> StartupParser:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(log)
    parser.end()
    return parser


def named(log: str) -> str | None:
    crash = parsed(log).final_state.crash
    return crash.signature if crash else None


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param("Killed\n" + INTERRUPTED, id="the shell reports it first"),
        pytest.param(INTERRUPTED + "Killed\n", id="the shell reports it last"),
        pytest.param(
            "/bin/sh: line 1:    37 Killed                  nvcc -x cu a.cu\n" + INTERRUPTED, id="in the words of a shell with a number"
        ),
        pytest.param(INTERRUPTED, id="only ninja reports it"),
        pytest.param("(EngineCore pid=7) Killed\n(EngineCore pid=7) " + INTERRUPTED, id="under the name of a process"),
        pytest.param(COMPILER_KILLED + INTERRUPTED, id="the compiler was killed as well"),
        pytest.param(engine_failure(BUILD + "Killed\n" + INTERRUPTED), id="the engine reports that its build was stopped"),
        pytest.param("Killed\n" + INTERRUPTED + engine_failure("OSError: [Errno 5] Input/output error"), id="what it met on its way out"),
        pytest.param("Terminated\n", id="only the shell reports it"),
        pytest.param("/bin/bash: line 1:    12 Terminated              vllm serve m\n", id="only a shell with a number reports it"),
    ],
)
def test_a_build_that_was_interrupted_tells_of_an_end_from_outside(ending: str) -> None:
    assert named(HEALTHY_START + ending) == "TerminatedDuringStartup"
    assert headline(parsed(HEALTHY_START + ending).final_state).startswith("Terminated ")


@pytest.mark.parametrize(
    ("ending", "signature"),
    [
        pytest.param("Killed\n", "OOMKilled", id="killed, and nothing more"),
        pytest.param(COMPILER_KILLED + FAILED, "CompilerOutOfMemory", id="a compiler killed for its memory"),
        pytest.param(
            engine_failure(BUILD + COMPILER_KILLED + FAILED), "CompilerOutOfMemory", id="a compiler killed, as the engine reports it"
        ),
        pytest.param(engine_failure(BUILD + FAILED), "FlashInferJitBuildFailed", id="a build that failed"),
        pytest.param(engine_failure(OUT_OF_GPU_MEMORY) + "Killed\n" + INTERRUPTED, "CudaOutOfMemory", id="the engine failed before"),
        pytest.param(
            "[1234.5] Memory cgroup out of memory: Killed process 4711 (cicc)\nKilled\n" + INTERRUPTED,
            "OOMKilled",
            id="the kernel says why",
        ),
        pytest.param(API_SERVER_GIVES_UP, "EngineCoreInitFailed", id="nobody says why"),
    ],
)
def test_what_failed_by_itself_keeps_its_name(ending: str, signature: str) -> None:
    assert named(HEALTHY_START + ending) == signature


def test_an_interrupted_build_that_was_survived_is_forgotten() -> None:
    assert named(HEALTHY_START + INTERRUPTED + READY) is None
    assert parsed(HEALTHY_START + "Killed\n" + INTERRUPTED).state.crash is None


def test_what_the_kubelet_calls_out_of_memory_was() -> None:
    log_crash = parsed(HEALTHY_START + "Killed\n" + INTERRUPTED).final_state.crash

    ended = diagnose_termination(load_knowledge(), o.termination(137, reason="OOMKilled"), log_crash=log_crash)

    assert ended is not None
    assert ended.signature == "OOMKilled"
