"""A recorded first start, taken apart: what every start prints, and what is printed only while a cache is built."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.caches import CACHES, WARM_SECONDS, Cache
from testenv.replay import Output, read_recording

_HERE = Path(__file__).resolve().parent
# in the image they are beside this file
_CORPUS = _HERE.parent.parent / "tests" / "corpus"
FOLDERS = (_HERE / "recordings", _CORPUS / "h200", _CORPUS / "nodes")
FIRST_START = "dsv3-fp8-cold-full-newline-bars"


@dataclass(frozen=True)
class Recording:
    """`lines` are printed at every start, each so many seconds after the one before; `told` by cache, while it is built."""

    lines: Sequence[Output]
    told: Mapping[str, Sequence[bytes]]


def find_recording(name: str) -> Path:
    """The file of a recording. Raises FileNotFoundError if there is none of this name."""
    found = (folder / f"{name}.log" for folder in FOLDERS)
    if path := next((path for path in found if path.exists()), None):
        return path
    known = sorted(path.stem for folder in FOLDERS if folder.exists() for path in folder.glob("*.log"))
    raise FileNotFoundError(f"There is no recording {name}; there are: {', '.join(known)}")


def read_first_start() -> Recording:
    """Read the recorded first start. What is left without the caches takes as long as a warm start."""
    told: dict[str, list[bytes]] = {cache.name: [] for cache in CACHES}
    kept: list[Output] = []
    for output in read_recording(find_recording(FIRST_START)):
        cache = _cache_of(output.data)
        if cache is None:
            kept.append(output)
        else:
            told[cache.name].append(output.data if output.data.endswith(b"\n") else output.data + b"\n")
    before, pauses = 0.0, []
    for output in kept:
        paid = sum(cache.seconds for cache in CACHES if cache.before.encode() in output.data)
        pauses.append(max(0.0, output.seconds - before - paid))
        before = output.seconds
    share = WARM_SECONDS / sum(pauses)
    return Recording([Output(pause * share, output.data) for pause, output in zip(pauses, kept, strict=True)], told)


def _cache_of(line: bytes) -> Cache | None:
    return next((cache for cache in CACHES if any(words.encode() in line for words in cache.told)), None)
