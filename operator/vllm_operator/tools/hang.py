"""What the readiness probe (`check_engine.py`) does about an engine that hangs or may do so: reasons, evidence, restart."""

import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

from vllm_operator.tools import progress

COMPILERS = frozenset(
    {"nvcc", "cicc", "ptxas", "nvlink", "fatbinary", "cudafe++", "ninja", "cc1plus", "cc1", "gcc", "g++", "clang", "hipcc"}
)
COMPILED_SECONDS = 2 * progress.PERIOD_SECONDS
"""Age of a new file in the cache that shows that kernels are being compiled."""
WALK_SECONDS = 1.0
"""Maximum time to look for new files. The volume of the caches may be slow."""
MAX_HANGS = 5
"""Hangs whose evidence is kept."""
MAX_EVIDENCE = 512 * 1024
"""Maximum size of a file with evidence, in characters."""
TERMINATION_MESSAGE = "/dev/termination-log"
WRITE_SECONDS = 3.0
"""Maximum time for processes to write their stacks after SIGABRT."""
EXIT_SECONDS, KILL_SECONDS = 3.0, 1.5
"""Maximum times for a server to answer its clients and exit when its engine has ended (vLLM 0.32 takes a second), and to be ended."""
GPU_SECONDS = 4.0
"""Maximum time for `nvidia-smi` to say how busy the GPUs are."""
PROCESS_SECONDS, PREPARING_SECONDS = 1.0, 0.5
"""For how long the use of a CPU is measured."""
PREPARING_PERCENT, BUSY_PERCENT, STARVED_PERCENT = 80, 50, 5
"""Use of a CPU or a GPU that is no wait; the first of a server, the last of a process that runs: others may leave it little."""
_NO_CORE = 1
"""Limit of core files in bytes. A limit of 0 does not keep a program that receives them from writing them (man 5 core)."""


def record(folder: str, stacks: str, what: str, metrics: str) -> str:
    """Keep the evidence of a hang. Return what hangs and which processes do, in one line.

    `stacks` is the folder into which the engine has written its stacks, if it can.
    """
    processes, gpus = read_processes(), read_gpus()
    description = f"{what}. {explain(processes, gpus)}"
    states = "\n".join([describe(processes), *(f"GPU {number}: {use} % busy" for number, use in enumerate(gpus))])
    with suppress(OSError):
        keep(folder, {"what": description, "metrics": metrics, "processes": states, "stacks": read_stacks(stacks)})
    return description


def is_compiling(folder: str) -> bool:
    """Return whether a compiler runs in this container, or a file was added to the caches around `folder` a moment ago."""
    for number in _numbers():
        with suppress(OSError), open(f"/proc/{number}/comm") as file:
            if file.read().strip() in COMPILERS:
                return True
    newest, end = 0.0, time.monotonic() + WALK_SECONDS
    for top, folders, _ in os.walk(os.path.dirname(folder)):
        folders[:] = [name for name in folders if os.path.join(top, name) != folder]
        with suppress(OSError):
            newest = max(newest, os.stat(top).st_mtime) if top != os.path.dirname(folder) else newest
        if time.monotonic() > end:
            break
    return abs(time.time() - newest) < COMPILED_SECONDS


def is_preparing() -> bool:
    """Return whether a request may be before the engine for long: the server waits for a tool, or prepares a video, which needs CPU."""
    has_tools = any(word.startswith(b"--tool-server") for _, words in _servers() for word in words)
    return has_tools or any(each.cpu >= PREPARING_PERCENT for each in read_processes(PREPARING_SECONDS, engine=False))


def _servers() -> Iterator[tuple[int, list[bytes]]]:
    for number in _numbers():
        with suppress(OSError), open(f"/proc/{number}/cmdline", "rb") as file:
            words = file.read(65536).split(b"\0")
            if b"serve" in words and any(word.endswith(b"vllm") for word in words):
                yield number, words


class Process:
    """A process of the engine: its number, its title, its state as in `ps`, the percentage of a CPU that it uses, and its parent."""

    __slots__ = ("cpu", "number", "parent", "state", "title")

    def __init__(self, number: int, title: str, state: str, cpu: int, parent: int = 0) -> None:
        self.number, self.title, self.state, self.cpu, self.parent = number, title, state, cpu, parent


def _numbers() -> Iterator[int]:
    """Yield the processes of this container. With `hostPID` there are those of the whole node."""
    own = _mounts_of("self")
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and _mounts_of(name) == own)


def _mounts_of(number: str) -> str:
    with suppress(OSError):  # it has ended, or belongs to somebody else
        return os.readlink(f"/proc/{number}/ns/mnt")
    return ""


def _read_process(number: int) -> tuple[str, str, int, int]:
    """Return title, state, used ticks and parent of a process. Raises OSError or ValueError if it has ended."""
    with open(f"/proc/{number}/cmdline", "rb") as file:
        title = file.read(128).split(b"\0")[0].decode("ascii", "replace")
    with open(f"/proc/{number}/stat") as stat:
        fields = stat.read().rpartition(") ")[2].split()
    return title, fields[0], int(fields[11]) + int(fields[12]), int(fields[1])


def _runs(number: int) -> bool:
    with suppress(OSError, ValueError, IndexError):
        return _read_process(number)[1] not in "XZ"
    return False


def read_processes(seconds: float = PROCESS_SECONDS, *, engine: bool = True) -> list[Process]:
    """Return the processes of the engine (vLLM 0.11 and later name them `VLLM::EngineCore` and `VLLM::Worker`), or all others."""
    first = {}
    for number in _numbers():
        with suppress(OSError, ValueError, IndexError):
            title, _, ticks, _ = _read_process(number)
            if ("::EngineCore" in title or "::Worker" in title) == engine:
                first[number] = ticks
    time.sleep(seconds)
    found = []
    for number, before in first.items():
        with suppress(OSError, ValueError, IndexError):
            title, state, ticks, parent = _read_process(number)
            found.append(Process(number, title, state, round(100 * (ticks - before) / os.sysconf("SC_CLK_TCK") / seconds), parent))
    return found


def describe(processes: list[Process]) -> str:
    """Return one line for each process."""
    return "\n".join(f"{each.title} (pid {each.number}): state {each.state}, {each.cpu} % of a CPU" for each in processes)


def read_gpus() -> list[int]:
    """Return for how many percent of the last second each GPU of this container was busy; nothing if `nvidia-smi` does not say so."""
    words = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return []
    try:
        return [int(line) for line in asked.communicate(timeout=GPU_SECONDS)[0].split("\n") if line.isdigit()]
    except subprocess.TimeoutExpired:
        asked.kill()
        with suppress(subprocess.TimeoutExpired):  # while it waits for the driver, it does not end
            asked.communicate(timeout=1)
        return []


def explain(processes: list[Process], gpus: list[int]) -> str:
    """Say which processes seem to hang, from what they and the GPUs do. A process that waits for a GPU may use a CPU or not."""
    for states, what in (("Tt", "suspended"), ("D", "in an uninterruptible wait, for a driver or a disk"), ("Z", "dead")):
        if names := [each.title for each in processes if each.state in states]:
            return f"{', '.join(names)}: {what}."
    if not processes:
        return "No process of the engine was found."
    runs = [each for each in processes if each.state == "R" and each.cpu >= STARVED_PERCENT]
    busy = [each.title for each in processes if each.cpu >= BUSY_PERCENT or each in runs]
    said = f"{', '.join(busy)}: busy" if busy else "No process of the engine uses a CPU"
    if any(use >= BUSY_PERCENT for use in gpus):
        return f"{said}, and a GPU is busy without finishing a step: a kernel does not end, or GPUs wait for each other (NCCL)."
    if any("::Worker" in title for title in busy):
        return f"{said} without finishing a step, as when GPUs wait for each other (NCCL)."
    if busy:
        return f"{said} without giving work to a GPU."
    return f"{said}: they wait for each other{'' if gpus else ' or for a GPU'}."


def read_stacks(folder: str) -> str:
    """Return the stacks that the engine has written into a folder."""
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        with suppress(OSError), open(os.path.join(folder, name), errors="replace") as file:
            found.append(f"{name}\n{file.read()[-MAX_EVIDENCE // 8 :]}")
    return "\n".join(found)


def keep(folder: str, evidence: dict[str, str]) -> None:
    """Write the evidence of a hang into a new folder, and remove that of the oldest. Raises OSError."""
    os.makedirs(folder, exist_ok=True)
    for name in sorted(os.listdir(folder))[: -(MAX_HANGS - 1)]:
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    target = os.path.join(folder, f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.uname().nodename}")
    os.mkdir(target)
    for name, text in evidence.items():
        if text:
            with open(os.path.join(target, f"{name}.txt"), "w") as opened:
                opened.write(text[:MAX_EVIDENCE])


def end_engine(why: str) -> None:
    """End the processes of the engine, which write their stacks first if they can, and then its server, unless that exits by itself.

    `why` becomes the container's termination message.
    """
    with suppress(OSError), open(TERMINATION_MESSAGE, "w") as file:
        file.write(why)
    processes, own = read_processes(0.1), set(_numbers())
    for each in processes:
        with suppress(OSError, ValueError):  # it has ended, or its maximum is 0
            resource.prlimit(each.number, resource.RLIMIT_CORE, (_NO_CORE, resource.prlimit(each.number, resource.RLIMIT_CORE)[1]))
        with suppress(OSError):
            os.kill(each.number, signal.SIGABRT)
    engine = {each.number for each in processes}
    _await_end(engine, WRITE_SECONDS)
    for number in engine:
        with suppress(OSError):
            os.kill(number, signal.SIGKILL)
    servers = {each.parent for each in processes if each.parent in own} - engine
    _await_end(servers, EXIT_SECONDS)
    end_servers(servers)


def end_abandoned_server() -> None:
    """End a server without an engine that listens no longer: it waits for clients, which nobody answers any more."""
    servers = {number for number, _ in _servers()}
    if not read_processes(0.1):
        end_servers(servers)


def _await_end(numbers: set[int], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(_runs(number) for number in numbers):
        time.sleep(0.1)


def end_servers(numbers: set[int]) -> None:
    """End processes, also the first one of this container, for which the kernel ignores a SIGKILL from inside (man pid_namespaces).

    The kernel itself ends any process that runs when it has used more CPU time than its limit (man getrlimit). A server has used much
    more than a second, and signals with a handler make it run.
    """
    for number in numbers:
        with suppress(OSError, ValueError):  # it has ended, or may not be ended
            os.kill(number, signal.SIGKILL)
            resource.prlimit(number, resource.RLIMIT_CPU, (1, 1))
    end = time.monotonic() + KILL_SECONDS
    while time.monotonic() < end and any(_runs(number) for number in numbers):
        for number in numbers:
            with suppress(OSError):
                os.kill(number, signal.SIGTERM)
