"""One text with the logs of several containers, as `kubectl logs --prefix` gives it for a selector."""

import pytest

from vllm_operator.catalog.startup import load_startup
from vllm_operator.cli.diagnose import page_of_several
from vllm_operator.cli.pasted_logs import read_logs
from vllm_operator.logs.parser import StartupParser

KNOWLEDGE = load_startup()

SERVES = "[pod/a/vllm] INFO:     Application startup complete.\n"
HEALTHY = '[pod/a/vllm] INFO:     10.244.0.1:40001 - "GET /health HTTP/1.1" 200 OK\n'
BEGINS = "[pod/b/vllm] INFO 11-21 09:20:40 [api_server.py:1977] vLLM API server version 0.11.2\n"
FAILS = "[pod/b/vllm] (EngineCore_DP0 pid=7) ERROR 11-21 09:21:40 [core.py:700] ValueError: No available memory for the cache blocks.\n"
PROXY = "[pod/b/proxy] Traceback (most recent call last):\n[pod/b/proxy] ValueError: no upstream\n"


def read(text: str | bytes) -> list[tuple[str, StartupParser]]:
    return read_logs(text.encode() if isinstance(text, str) else text, lambda: StartupParser(KNOWLEDGE))


def signatures(logs: list[tuple[str, StartupParser]]) -> dict[str, str | None]:
    states = {name: parser.final_state for name, parser in logs}
    return {name: state.crash.signature if state.crash is not None else None for name, state in states.items()}


def test_the_health_of_one_container_hides_no_crash_of_another() -> None:
    assert list(signatures(read(SERVES + HEALTHY + BEGINS + HEALTHY + FAILS + HEALTHY)).items()) == [
        ("pod/b/vllm", "NoKvCacheMemory"),
        ("pod/a/vllm", None),
    ]


def test_what_stands_beside_an_engine_counts_last() -> None:
    assert [name for name, _ in read(PROXY + SERVES + BEGINS)] == ["pod/b/vllm", "pod/a/vllm", "pod/b/proxy"]


def test_the_page_tells_the_worst_and_names_the_others() -> None:
    page = page_of_several(read(SERVES + BEGINS + FAILS), colours=False)

    assert page.startswith("pod/b/vllm\n\nCrashed during process start: NoKvCacheMemory\n")
    assert page.endswith("Other containers\n  pod/a/vllm: Started: the server is ready")


@pytest.mark.parametrize("text", ['{"log": "[pod/a/vllm] x"}\n', "ValueError: No available memory for the cache blocks.\n", "\n"])
def test_any_other_text_is_one_log(text: str) -> None:
    assert [name for name, _ in read(text)] == [""]


def test_lines_without_a_name_belong_to_the_container_before_them() -> None:
    logs = read(f"$ kubectl logs --prefix\n{BEGINS}ValueError: No available memory for the cache blocks.\n{SERVES}")

    assert signatures(logs)["pod/b/vllm"] == "NoKvCacheMemory"


def test_many_containers_and_endless_lines_are_bounded() -> None:
    many = "".join(f"[pod/{number}/vllm] x\n" for number in range(100))

    assert len(read(many)) == 64
    assert [name for name, _ in read(b"[pod/a/vllm] \xff" + b"x" * (3 << 20))] == ["pod/a/vllm"]
