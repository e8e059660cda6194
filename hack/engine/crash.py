"""The ways in which an engine ends, on command.

ENGINE_CRASH        how it ends:
    RECORDING           a recorded crash from beginning to end: `no-c-compiler`
    SIGNATURE           an ordinary start, then the words of a known crash: `HfGatedRepo`
    exit:STATUS         without a word; 139 is what a segmentation fault leaves
    memory              takes memory until something ends it
    silence             says nothing more, and lives on
ENGINE_CRASH_AT     words of the line that it does not get beyond ("Starting to load model"), or `serving`
ENGINE_CRASH_TIMES  it ends so many times, counted in its home; later it starts well (always)
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.recording import find_recording
from engine.start import last_words, write
from testenv.replay import read_recording

SAMPLES = Path(__file__).resolve().parent / "samples"
SERVED_SECONDS = 8.0
"""How long it serves before it ends, if it is to end while serving: long enough for a readiness probe."""


@dataclass(frozen=True)
class Crash:
    """An end to come. `at`: words of the line before which it comes."""

    how: str
    at: str

    def comes_before(self, line: bytes) -> None:
        if self.how and self.at.encode() in line:
            self.end()

    def comes_while_serving(self) -> None:
        if self.how and self.at == "serving":
            threading.Timer(SERVED_SECONDS, self.end).start()

    def end(self) -> None:
        """End; with `silence`, never return."""
        kind, _, value = self.how.partition(":")
        ends: dict[str, Callable[[], object]] = {
            "exit": lambda: os._exit(int(value)),
            "memory": _take_memory,
            "silence": lambda: time.sleep(1e6),
        }
        ends.get(kind, lambda: _fail(self.how))()

    @property
    def recording(self) -> Path | None:
        if not self.how or ":" in self.how or (SAMPLES / f"{self.how}.txt").exists() or self.how in ("memory", "silence"):
            return None
        return find_recording(self.how)


def read_crash() -> Crash:
    """What the environment asks for; counts this run if there is a limit."""
    how = os.environ.get("ENGINE_CRASH", "")
    if how and (limit := os.environ.get("ENGINE_CRASH_TIMES")):
        count = Path(os.environ.get("HOME", "/tmp")) / "crashes"
        crashed = int(count.read_text()) if count.exists() else 0
        if crashed >= int(limit):
            how = ""
        count.parent.mkdir(parents=True, exist_ok=True)
        count.write_text(str(crashed + 1))
    return Crash(how, os.environ.get("ENGINE_CRASH_AT", "Starting to load model"))


def replay(path: Path, speed: float) -> None:
    begun = time.monotonic()
    for output in read_recording(path):
        time.sleep(max(0.0, begun + output.seconds / speed - time.monotonic()))
        write(output.data)


def _fail(name: str) -> None:
    write(last_words((SAMPLES / f"{name}.txt").read_text()))
    os._exit(1)


def _take_memory() -> None:
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1 << 20) * 16))
