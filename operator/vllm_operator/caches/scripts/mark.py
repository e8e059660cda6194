"""Measures what small files cost on the volume of a cache directory. Runs in the init container `mark-cache`, before the engine starts.

A local disk needs some ten microseconds to write and read a small file, and a network file system milliseconds. A warm start reads
thousands of them.
"""

import json
import os
import shutil
import sys
import tempfile
import time

PREFIX = ".vllm-operator-staging-"
PROBES = 15
PROBE_BYTES = 4096
LONGEST_SECONDS = 2.0


def measure_small_files(root: str) -> int:
    """Return the median time to write and read a small file, in microseconds.

    Raises:
        OSError: Nothing can be written.
    """
    where = tempfile.mkdtemp(prefix=PREFIX, dir=root)
    times: list[float] = []
    try:
        for number in range(PROBES):
            path, begun = os.path.join(where, str(number)), time.monotonic()
            with open(path, "xb") as file:
                file.write(bytes(PROBE_BYTES))
            with open(path, "rb") as file:
                file.read()
            times.append(time.monotonic() - begun)
            if sum(times) > LONGEST_SECONDS:
                break
    finally:
        shutil.rmtree(where, ignore_errors=True)
    return int(sorted(times)[len(times) // 2] * 1e6)


def run_measurement() -> int:
    """Report what was measured; return the exit status."""
    with open(os.environ.get("CACHE_REPORT", "/dev/termination-log"), "w") as file:
        json.dump({"fileMicroseconds": measure_small_files(os.path.dirname(sys.argv[1]))}, file)
    return 0
