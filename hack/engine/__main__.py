"""Starts like vLLM 0.20.1: pays for each cache that is missing, fills it, and dies of what a real engine dies of.

    ENGINE_SCALE   seconds of this program for a second of the real one (0.001)
    ENGINE_REPORT  file for what was paid, as JSON: seconds of the real engine by cache
    ENGINE_QUOTA   bytes that fit on the volume of the caches; more is "No space left on device"

It serves nothing. It ends with 0 where a real one would begin to serve, and with 1 where it would crash.
"""

import errno
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.caches import CACHES, WARM_SECONDS, Cache

CONTENT = b"\x7fELF" + b"k" * 1020
BATON = "lock"


class EngineCrashError(Exception):
    """The engine dies; the text is the last line of its traceback."""


class Engine:
    """One start."""

    def __init__(self) -> None:
        self._scale = float(os.environ.get("ENGINE_SCALE", "0.001"))
        self._quota = int(os.environ.get("ENGINE_QUOTA", "0"))
        self._paid = {cache.name: 0.0 for cache in CACHES}

    def start(self) -> int:
        """Start; return the exit status."""
        try:
            for _ in self._stages():
                self._report()
        except (EngineCrashError, OSError) as error:
            self._report()
            text = str(error) if isinstance(error, EngineCrashError) else f"{type(error).__name__}: {error}"
            print(f"(EngineCore pid=91) ERROR {_now()} [core.py:1136] EngineCore failed to start.", flush=True)
            print("(EngineCore pid=91) Traceback (most recent call last):", flush=True)
            print('(EngineCore pid=91)   File "/site/vllm/v1/engine/core.py", line 1110, in run_engine_core', flush=True)
            print(f"(EngineCore pid=91) {text}", flush=True)
            print(
                "(APIServer pid=30) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
                flush=True,
            )
            return 1
        return 0

    def _stages(self) -> Iterator[None]:
        self._say("APIServer pid=30", "utils.py:299", "version 0.20.1")
        self._log("core.py:109", "Initializing a V1 LLM engine (v0.20.1) with config: model='/models/dsv3-fp8'")
        self._log("gpu_model_runner.py:4777", "Starting to load model /models/dsv3-fp8...")
        time.sleep(WARM_SECONDS * self._scale)
        yield
        for cache in CACHES:
            self._fill(cache)
            yield
        self._log("core.py:299", "init engine (profile, create kv cache, warmup model) took 30.00 s (compilation: 10.17 s)")
        print("(APIServer pid=30) INFO:     Application startup complete.", flush=True)

    def _fill(self, cache: Cache) -> None:
        directory = cache.directory(os.environ)
        hits = 0
        for unit in range(cache.units):
            path = None if directory is None else directory / cache.file.format(unit=unit)
            if path is not None and path.exists() and self._loads(cache, path):
                hits += 1
                continue
            self._compile(cache, path, unit)
        if cache.name == "torch.compile":
            how = "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 1.214 s"
            self._log("backends.py:376", how if hits == cache.units else "Cache the graph of compile range (1, 8192) for later use")
        if cache.name == "FlashInfer" and directory is not None:
            with (directory.parent / "flashinfer_jit.log").open("a") as log:  # opened for writing at every start
                log.write("loaded\n")

    def _loads(self, cache: Cache, path: Path) -> bool:
        """Whether a file can be used; False where it is built anew. Raises EngineCrashError where the real one does."""
        if cache.name == "DeepGEMM" and not (path.parent / "kernel.cu").exists():
            raise EngineCrashError(
                f"RuntimeError: Corrupted JIT cache directory (missing kernel.cu or kernel.cubin): {path.parent}, "
                f"please run `rm -rf {path.parent}` and restart your task."
            )
        whole = path.read_bytes() == CONTENT
        if whole:
            return True
        if cache.name == "torch.compile":
            self._log(
                "decorators.py:340", f"Compiling model again due to a load failure from {path}, reason: Compile cache file corrupted."
            )
            return False
        if cache.name == "Triton":
            raise EngineCrashError("RuntimeError: Triton Error [CUDA]: device kernel image is invalid")
        if path.suffix == ".cubin":
            raise EngineCrashError("RuntimeError: CUDA driver error (jit/handle.hpp:141): 200 (CUDA_ERROR_INVALID_IMAGE)")
        return False

    def _compile(self, cache: Cache, path: Path | None, unit: int) -> None:
        if cache.name == "C++ extensions" and path is not None:
            self._wait_for_baton(path.parent)
        seconds = cache.seconds / cache.units
        time.sleep(seconds * self._scale)
        self._paid[cache.name] += seconds
        if cache.name == "DeepGEMM":
            done = f"{100 * (unit + 1) // cache.units:3d}%"
            print(f"(EngineCore pid=91) DeepGEMM warmup: {done}|##########| {unit + 1}/{cache.units} [00:01<00:01, 10.00it/s]", flush=True)
        if path is not None:
            if cache.name == "DeepGEMM":  # the real one renames a directory: the source is never missing for a kernel
                self._write(path.parent / "kernel.cu")
            self._write(path)
        self._report()

    def _wait_for_baton(self, folder: Path) -> None:
        if (folder / BATON).exists():
            print(f"(EngineCore pid=91) [aiter] waiting for baton release at {folder / BATON}", flush=True)
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

    def _log(self, place: str, text: str) -> None:
        self._say("EngineCore pid=91", f"{place}", text)

    def _say(self, process: str, place: str, text: str) -> None:
        print(f"({process}) INFO {_now()} [{place}] {text}", flush=True)


def _now() -> str:
    return time.strftime("%m-%d %H:%M:%S")


def _used(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(Engine().start())
