"""The bars that the processes of one start draw at the same time: the one that is furthest behind counts."""

from dataclasses import dataclass, field, replace
from datetime import datetime

from vllm_operator.startup.progress import Rate
from vllm_operator.startup.state import Progress

_MOST_BARS = 64


@dataclass(slots=True)
class _Bar:
    progress: Progress
    is_of_earlier_stage: bool
    rate: Rate = field(default_factory=Rate)


def _rank(bar: _Bar) -> tuple[bool, float]:
    """Sorts the bar that counts first."""
    return bar.is_of_earlier_stage, bar.progress.completed / (bar.progress.total or 1)


class Counts:
    """Counts of one stage, by process.

    A process of an engine with data parallelism may still draw the bar of an earlier stage: that counts while the
    stage has no count of its own.
    """

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self._bars: dict[str, _Bar] = {}
        self._tracks = 0
        self.are_several = False
        """Whether bars without the name of a process are drawn by several: one has gone back."""

    def update(self, process: str, progress: Progress, time: datetime | None, *, is_of_earlier_stage: bool) -> Progress | None:
        """A bar has moved; `process` is empty where it is not known. Return the count that is furthest behind, if there is one."""
        if process:
            self._bars.pop("", None)  # was this one's, or another's that will tell its name: it must not stay behind for ever
        name = process or self._only_named(progress) or (self._track(progress) if self.are_several else "")
        bar = self._bars.get(name)
        if bar is None:
            bar = _Bar(progress, is_of_earlier_stage)
            if len(self._bars) < _MOST_BARS:
                self._bars[name] = bar
        left = bar.rate.left(progress, time)
        if progress.eta_seconds is None and left is not None:
            progress = replace(progress, eta_seconds=left)
        bar.progress, bar.is_of_earlier_stage = progress, is_of_earlier_stage
        if is_of_earlier_stage and progress.completed >= progress.total:
            self._bars.pop(name, None)
        elif len(self._bars) == 1:
            return progress
        return self._slowest()

    def _only_named(self, progress: Progress) -> str:
        """Whose bar this is although it does not say so: the only one that draws such a bar under its name; empty if there are others."""
        alike = [name for name, bar in self._bars.items() if (bar.progress.label, bar.progress.total) == (progress.label, progress.total)]
        return alike[0] if len(alike) == 1 and not alike[0].startswith("#") else ""

    def _slowest(self) -> Progress | None:
        slowest = min(self._bars.values(), key=_rank, default=None)
        return slowest.progress if slowest is not None else None

    def _track(self, progress: Progress) -> str:
        """Which of several bars without a name this is taken for: the one that is furthest behind, of those that it can have come from.

        Whose it is cannot be known; like this no count stays behind for ever because its updates were taken for another's.
        """
        known = {name: bar.progress for name, bar in self._bars.items() if name == "" or name.startswith("#")}
        same = (name for name, each in known.items() if (each.label, each.total) == (progress.label, progress.total))
        found = min((name for name in same if known[name].completed <= progress.completed), key=lambda n: known[n].completed, default=None)
        if found is not None:
            return found
        for name in [name for name, each in known.items() if each.completed >= each.total]:
            del self._bars[name]
        self._tracks += 1
        return f"#{self._tracks}"
