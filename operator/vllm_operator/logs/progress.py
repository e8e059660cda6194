"""Progress bars, also of several processes that draw at the same time, and the interpretation of silence.

A bar looks like `DeepGEMM warmup:  12%|█▏        | 361/3000 [00:41<05:02,  8.73it/s]`, with or without the drawing between the strokes. The
weight loader writes `25% Completed | 41/163 [..]`. In a terminal without a width (`tty: true`) there are no strokes.

FlashInfer compiles kernels for minutes without a line in the log. This can only be inferred: the engine chose a backend with this behavior,
is in a stage with such compilation, and logs nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from itertools import count

from vllm_operator.catalog.startup import Bar, StartupKnowledge
from vllm_operator.logs.state import Progress, Stage, StartupState

_NUMBER = r"(\d{1,9}(?:\.\d{1,3})?)([kMGTP]?)i?B?"
_CLOCK = r"\d{1,9}(?::\d\d){1,2}"
_BAR = re.compile(
    rf"(\d{{1,3}})%(?: Completed)?\s{{0,2}}(?:\|(?:[^|\n]{{0,200}}\|)?)?\s{{0,20}}{_NUMBER}/{_NUMBER}\s{{0,4}}\[({_CLOCK})<(\?|{_CLOCK})"
)
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_FILE = re.compile(r"[\w.-]{1,120}\.(?:safetensors|bin|json|gguf|pt|model|txt)$")
_BARS_LIMIT = 64


def read_bar(bars: Iterable[Bar], text: str) -> tuple[Stage, Progress | None, str] | None:
    """Return the stage of a bar, its progress, and the text after it; None if it is none of these bars, of which the first match counts.

    A bar that did not finish has no line end, so the next line follows it.
    """
    percent = text.find("%")
    found = _BAR.search(text, max(0, percent - 3)) if percent > 0 else None
    if found is None:
        return None
    label = text[: found.start()].strip(" :\t(")
    fallback = (Stage.WEIGHT_DOWNLOAD, "Downloading files") if _FILE.search(label) else None
    kind = next(((Stage(bar.stage), bar.label) for bar in bars if label.startswith(bar.prefix)), fallback)
    if kind is None:
        return None
    stage, name = kind
    rest = text[found.end() :].partition("]")[2]
    if stage is Stage.READY:
        return stage, None, rest
    completed, total = (round(float(number) * _SCALE[unit]) for number, unit in (found.group(2, 3), found.group(4, 5)))
    parts = found[7].split(":")  # such as 05:02 or 1:05:02
    remaining = None if found[7] == "?" else reduce(lambda seconds, part: seconds * 60 + int(part), parts, 0)
    return stage, Progress(min(completed, total), total, name or label, remaining), rest


@dataclass(slots=True)
class _Bar:
    progress: Progress
    is_of_earlier_stage: bool
    first: tuple[datetime, Progress] | None = None
    """The first update, from which the remaining time is estimated if the bar does not contain it."""

    def update(self, progress: Progress, now: datetime | None, *, is_of_earlier_stage: bool) -> None:
        first, self.is_of_earlier_stage = self.first, is_of_earlier_stage
        if now is not None and (first is None or first[1].label != progress.label or progress.completed < first[1].completed):
            self.first = now, progress
        elif now is not None and first is not None and progress.eta_seconds is None:
            elapsed, done = (now - first[0]).total_seconds(), progress.completed - first[1].completed
            if elapsed > 0 and done > 0:
                progress = replace(progress, eta_seconds=round(elapsed / done * (progress.total - progress.completed)))
        self.progress = progress

    def rank(self) -> tuple[bool, float]:
        """Return a sort key: bars of the current stage first, then least progress first."""
        return self.is_of_earlier_stage, self.progress.completed / (self.progress.total or 1)


class Counts:
    """Progress of the processes in one stage. The process with the least progress counts, first of those that draw bars of this stage."""

    def __init__(self) -> None:
        self._bars: dict[str, _Bar] = {}
        self._numbers = count(1)
        self._are_several = False  # several processes draw unnamed bars

    def update(self, process: str, progress: Progress, time: datetime | None, *, is_of_earlier_stage: bool) -> Progress | None:
        """Update the bar of a process (empty if unknown). Return the least progress, if any."""
        if process:
            self._bars.pop("", None)  # it belonged to this process, or to one whose next update has a name
        name = process or self._name(progress)
        bar = self._bars.get(name) or _Bar(progress, is_of_earlier_stage)
        bar.update(progress, time, is_of_earlier_stage=is_of_earlier_stage)
        if is_of_earlier_stage and progress.completed >= progress.total:
            self._bars.pop(name, None)
        elif name in self._bars or len(self._bars) < _BARS_LIMIT:
            self._bars[name] = bar
        slowest = min(self._bars.values(), key=_Bar.rank, default=None)
        return slowest.progress if slowest is not None else None

    def _name(self, progress: Progress) -> str:
        """Return the name of the bar to which an update without a process belongs.

        If only one process draws such a bar, it is that one. A bar that goes back shows that there are several. Then it is the bar with the
        least progress that is not ahead of the update, so that no bar stays behind because its updates were assigned to another one.
        """
        kind = progress.label, progress.total
        alike = {name: bar.progress.completed for name, bar in self._bars.items() if (bar.progress.label, bar.progress.total) == kind}
        if len(alike) == 1 and (name := next(iter(alike))) and not name.startswith("#"):
            return name
        unnamed = {name: completed for name, completed in alike.items() if name == "" or name.startswith("#")}
        self._are_several = self._are_several or progress.completed < unnamed.get("", 0)
        if not self._are_several:
            return ""
        behind = [name for name, completed in unnamed.items() if completed <= progress.completed]
        if behind:
            return min(behind, key=unnamed.__getitem__)
        for name in [name for name, completed in unnamed.items() if completed >= progress.total]:
            del self._bars[name]
        return f"#{next(self._numbers)}"


def allowed_silence_seconds(stage: Stage, knowledge: StartupKnowledge) -> int | None:
    """Return the seconds for which a healthy start may log nothing in this stage; None if unknown."""
    known = knowledge.stages.silence.get(stage.value)
    return known.seconds if known is not None else None


def infer_silence(state: StartupState, now: datetime, knowledge: StartupKnowledge) -> StartupState:
    """Return the state with `silent_stage_inferred` set if the engine probably compiles kernels."""
    stages = knowledge.stages
    is_silent = (
        state.crash is None
        and state.stage.value in stages.silent_stages
        and state.last_line_at is not None
        and (now - state.last_line_at).total_seconds() >= stages.silent_after_seconds
        and any(part in backend.casefold() for _, backend in state.observed_backends for part in stages.silent_backends)
    )
    return replace(state, silent_stage_inferred=is_silent)
