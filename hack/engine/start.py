"""Starts like vLLM 0.20.1: prints what a recorded start printed, pays for each cache that is missing, fills it, and dies of
what a real engine dies of.

    ENGINE_SPEED    how many times faster than the real one (20)
    ENGINE_REPORT   file for what was paid, as JSON: seconds of the real engine by cache
    ENGINE_QUOTA    bytes that fit on the volume of the caches, ENGINE_VOLUME; more is "No space left on device"
    ENGINE_CHATTER  KiB of debugging messages between two stages
"""

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.caches import BYTECODE, CACHES, Cache
from engine.recording import read_first_start

CONTENT = b"\x7fELF" + b"k" * 1020
BATON = "lock"
CHATTERS_AT = b"GPU KV cache size"


class EngineCrashError(Exception):
    """The engine dies; the text is the last line of its traceback."""


class Engine:
    """One start. `reached` is called with each line before it is printed; it may end the process."""

    def __init__(self, reached: Callable[[bytes], None] = lambda line: None) -> None:
        self._speed = float(os.environ.get("ENGINE_SPEED", "20"))
        self._quota = int(os.environ.get("ENGINE_QUOTA", "0"))
        self._paid = {cache.name: 0.0 for cache in CACHES}
        self._recording = read_first_start()
        self._reached = reached
        self._due = time.monotonic()

    def start(self) -> int:
        """Start; return the exit status: 0 where a real one would begin to serve, 1 where it would crash."""
        self._report()
        try:
            for line in self._recording.lines:
                for cache in CACHES:
                    if cache.before.encode() in line.data:
                        self._fill(cache)
                self._pass(line.seconds)
                if CHATTERS_AT in line.data:
                    chatter(int(os.environ.get("ENGINE_CHATTER", "0")))
                self._reached(line.data)
                write(line.data)
        except (EngineCrashError, OSError) as error:
            write(last_words(str(error) if isinstance(error, EngineCrashError) else f"{type(error).__name__}: {error}"))
            return 1
        finally:
            self._report()
        return 0

    def _fill(self, cache: Cache) -> None:
        directory = cache.directory(os.environ)
        hits = 0
        for unit in range(cache.units):
            path = None if directory is None else directory / cache.file.format(unit=unit)
            if path is not None and path.exists() and self._loads(cache, path):
                hits += 1
            else:
                self._compile(cache, path, unit)
        if cache.name == "torch.compile" and hits == cache.units:
            log("backends.py:290", "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 0.471 s")
            log("decorators.py:305", f"Directly load AOT compilation from path {directory}")
        if cache.name == "FlashInfer" and directory is not None:
            with (directory.parent / "flashinfer_jit.log").open("a") as file:  # opened for writing at every start
                file.write("loaded\n")

    def _loads(self, cache: Cache, path: Path) -> bool:
        """Whether a file can be used; False where it is built anew. Raises EngineCrashError where the real one does."""
        if cache.name == "DeepGEMM" and not (path.parent / "kernel.cu").exists():
            raise EngineCrashError(
                f"RuntimeError: Corrupted JIT cache directory (missing kernel.cu or kernel.cubin): {path.parent}, "
                f"please run `rm -rf {path.parent}` and restart your task."
            )
        content = path.read_bytes()
        if content == CONTENT:
            return True
        if cache.name == BYTECODE and content:  # Python compiles a module again only where the header of the file is not valid
            raise EngineCrashError("EOFError: marshal data too short")
        if cache.name == "torch.compile":
            log("decorators.py:340", f"Compiling model again due to a load failure from {path}, reason: Compile cache file corrupted.")
            return False
        if cache.name == "Triton":
            raise EngineCrashError("RuntimeError: Triton Error [CUDA]: device kernel image is invalid")
        if path.suffix == ".cubin":
            raise EngineCrashError("RuntimeError: CUDA driver error (jit/handle.hpp:141): 200 (CUDA_ERROR_INVALID_IMAGE)")
        return False

    def _compile(self, cache: Cache, path: Path | None, unit: int) -> None:
        if cache.name == "C++ extensions" and path is not None:
            self._wait_for_baton(path.parent)
        lines = _share(self._recording.told[cache.name], unit, cache.units)
        seconds = cache.seconds / cache.units
        for line in lines:
            self._pass(seconds / len(lines))
            write(line)
        if not lines:
            self._pass(seconds)
        self._paid[cache.name] += seconds
        if cache.name == BYTECODE:
            self._write_bytecode(path)
        elif path is not None:
            if cache.name == "DeepGEMM":  # the real one renames a directory: the source is never missing for a kernel
                self._write(path.parent / "kernel.cu")
            self._write(path)
        self._report()

    def _write_bytecode(self, path: Path | None) -> None:
        """Write as Python does: not at all if it is told so, and a failure is none."""
        if path is not None and not os.environ.get("PYTHONDONTWRITEBYTECODE"):
            with contextlib.suppress(OSError):
                self._write(path)

    def _wait_for_baton(self, folder: Path) -> None:
        if (folder / BATON).exists():
            write(f"(EngineCore pid=1072) [aiter] waiting for baton release at {folder / BATON}\n".encode())
        while (folder / BATON).exists():  # PyTorch waits for ever for a process that is gone
            time.sleep(0.05)

    def _write(self, path: Path) -> None:
        """Write as the real ones do: to another name first, so that a kill leaves no half of a file."""
        root = os.environ.get("ENGINE_VOLUME")
        if self._quota and root and _used(Path(root)) + len(CONTENT) > self._quota:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(CONTENT)
        temporary.replace(path)

    def _report(self) -> None:
        if os.environ.get("ENGINE_REPORT"):
            report = Path(os.environ["ENGINE_REPORT"])
            # a kill may come at any moment: the reader must never meet half a file
            unfinished = report.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(self._paid))
            unfinished.replace(report)

    def _pass(self, seconds: float) -> None:
        self._due += seconds / self._speed
        time.sleep(max(0.0, self._due - time.monotonic()))


def last_words(error: str) -> bytes:
    core, failed = "(EngineCore pid=1072)", "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    lines = [
        f"{core} ERROR {_now()} [core.py:1136] EngineCore failed to start.",
        f"{core} Traceback (most recent call last):",
        f'{core}   File "/site/vllm/v1/engine/core.py", line 1110, in run_engine_core',
        *(f"{core} {line}" for line in error.splitlines()),
        f"(APIServer pid=954) RuntimeError: {failed}",
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def chatter(kibibytes: int) -> None:
    text = "Initializing a tensor of which nobody wants to know. " * 4
    for number in range(kibibytes * 1024 // 256):
        write(f"(EngineCore pid=1072) DEBUG {_now()} [gpu_model_runner.py:1] {number} {text}\n".encode())


def log(place: str, text: str) -> None:
    write(f"(EngineCore pid=1072) INFO {_now()} [{place}] {text}\n".encode())


def write(data: bytes) -> None:
    """Print at once, whatever the bytes are."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _now() -> str:
    return time.strftime("%m-%d %H:%M:%S")


def _share(lines: Sequence[bytes], unit: int, units: int) -> Sequence[bytes]:
    return lines[len(lines) * unit // units : len(lines) * (unit + 1) // units]


def _used(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
