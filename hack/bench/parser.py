"""Measure the speed and the memory of the log parser on the recorded starts.

python hack/bench/parser.py [LOG...]
"""

import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from vllm_operator.catalog.startup import StartupKnowledge, load_startup
from vllm_operator.startup.parser import StartupParser

CORPUS = Path(__file__).parent.parent.parent / "tests" / "corpus" / "h200"
SECONDS = 1.0
CHUNK = 64 * 1024


def measure(parser_of: Callable[[], StartupParser], data: bytes, *, by_line: bool) -> float:
    """Return the CPU time for a log in seconds: the minimum of many runs, because other work of the machine only slows a run down."""
    parts = data.splitlines(keepends=True) if by_line else [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        parser = parser_of()
        since = time.process_time()
        for part in parts:
            parser.feed(part)
        best = min(best, time.process_time() - since)
    return best


def main(paths: list[Path]) -> None:
    begun = time.perf_counter()
    knowledge = load_startup()
    print(f"knowledge read in {(time.perf_counter() - begun) * 1000:.0f} ms\n")
    print(f"{'log':38} {'lines':>6} {'lines/s':>10} {'line by line':>13} {'kept':>9}")
    lines, quick, slow = 0, 0.0, 0.0
    logs = {path.stem: path.read_bytes() for path in paths}
    for name, data in logs.items():
        in_chunks, by_line = row(name, knowledge, data)
        lines, quick, slow = lines + data.count(b"\n"), quick + in_chunks, slow + by_line
    print(f"{'all of them, a parser each':38} {lines:6} {lines / quick:10,.0f} {lines / slow:13,.0f}")
    more = fourfold(knowledge)
    quick = sum(measure(lambda: StartupParser(more), data, by_line=False) for data in logs.values())
    slow = sum(measure(lambda: StartupParser(more), data, by_line=True) for data in logs.values())
    print(f"{'the same with 4 times the signatures':38} {lines:6} {lines / quick:10,.0f} {lines / slow:13,.0f}")


def fourfold(knowledge: StartupKnowledge) -> StartupKnowledge:
    """Return the knowledge with three more variants of each signature, whose anchors match no line."""
    ways: tuple[Callable[[str], str], ...] = (lambda text: text[::-1], str.swapcase, lambda text: " ".join(reversed(text.split(" "))) + "~")
    others = (
        signature.model_copy(
            update={
                "id": f"{signature.id}{number}",
                "patterns": tuple(each.model_copy(update={"anchor": way(each.anchor)}) for each in signature.patterns),
            }
        )
        for number, way in enumerate(ways)
        for signature in knowledge.signatures
    )
    return StartupKnowledge(knowledge.stages, (*knowledge.signatures, *others))


def row(name: str, knowledge: StartupKnowledge, data: bytes) -> tuple[float, float]:
    """Print the figures of a log; return its seconds in chunks and line by line."""

    def parser_of() -> StartupParser:
        return StartupParser(knowledge)

    quick, slow = measure(parser_of, data, by_line=False), measure(parser_of, data, by_line=True)
    tracemalloc.start()
    parser = parser_of()
    before = tracemalloc.get_traced_memory()[0]
    parser.feed(data)
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    lines = data.count(b"\n")
    print(f"{name:38} {lines:6} {lines / quick:10,.0f} {lines / slow:13,.0f} {kept / 1024:7.1f} K")
    return quick, slow


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]] or sorted(CORPUS.glob("*.log")))
