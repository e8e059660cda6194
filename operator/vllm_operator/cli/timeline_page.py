"""Starts stage by stage, side by side: as text, as JSON, and as a picture (SVG)."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from vllm_operator.cli.diagnosis_page import STAGE_NAMES
from vllm_operator.cli.screen import BOLD, CYAN, DIM, Line, Span, line
from vllm_operator.cli.terminal import show
from vllm_operator.startup.state import Stage, StartupState
from vllm_operator.text.wording import clean, duration

OTHER = "other"
"""The time of a start that none of its known stages took."""
_TITLE_LENGTH = 60
_BAR = 30

_WIDTH, _MARGIN, _LEFT, _ROW, _BAR_HEIGHT = 960, 20, 180, 44, 26
_BOLD_CHARACTER = 10
"""Width of a character of a summary, at most."""
_TICKS = 8
"""Maximum number of steps on the axis."""
_LEGEND, _LEGEND_LEFT, _COLUMN = 24, 340, 150
_INK, _FAINT, _PAPER = "#1f2328", "#59636e", "#ffffff"
_COLOURS = {
    Stage.PROCESS_START: "#9aa5b1",
    Stage.CONFIGURATION: "#c3cad2",
    Stage.DISTRIBUTED_INIT: "#76b7b2",
    Stage.WEIGHT_DOWNLOAD: "#4e79a7",
    Stage.WEIGHT_LOAD: "#7fa8d1",
    Stage.TORCH_COMPILE: "#f28e2b",
    Stage.MEMORY_PROFILING: "#edc948",
    Stage.KERNEL_WARMUP: "#e15759",
    Stage.AUTOTUNE: "#b07aa1",
    Stage.FLASHINFER_WARMUP: "#ff9da7",
    Stage.CUDA_GRAPH_CAPTURE: "#59a14f",
    Stage.SERVER_START: "#9c755f",
}
_OTHER_COLOUR = "#dfe3e8"


@dataclass(frozen=True, slots=True)
class Start:
    """One start: its title, and its stages with their seconds in their order. `failure`: how it ended, if it did not become ready."""

    title: str
    stages: tuple[tuple[str, float], ...]
    failure: str = ""

    @property
    def seconds(self) -> float:
        """The whole duration."""
        return sum(seconds for _, seconds in self.stages)

    @property
    def summary(self) -> str:
        """The duration, and how it ended if it did not become ready."""
        return duration(self.seconds) + (f", {self.failure}" if self.failure else "")


def start_of_log(title: str, state: StartupState) -> Start | None:
    """The start in a log; None if the log has no start or no times."""
    timed = [(stage, since) for stage, since in state.entered if since is not None]
    if not timed or not state.has_start or state.last_line_at is None:
        return None
    ends = [since for _, since in timed[1:]] + [state.last_line_at]
    stages = tuple(
        (stage.value, max(0.0, (until - since).total_seconds()))
        for (stage, since), until in zip(timed, ends, strict=True)
        if stage is not Stage.READY
    )
    failure = "" if state.stage is Stage.READY else "crashed" if state.crash is not None else "not ready"
    return Start(clean(title, _TITLE_LENGTH), stages, failure)


def print_starts(starts: Sequence[Start], title: str, form: str | None) -> None:
    """Print starts as a picture (`svg`), as JSON (`json`), or as text."""
    if form == "svg":
        print(timeline_svg(starts, title), end="")
    elif form == "json":
        print(json.dumps(timeline_json(starts), indent=2))
    else:
        show(timeline_page(starts))


def timeline_page(starts: Sequence[Start]) -> list[Line]:
    """The starts as text: a row for each stage, with a bar and the duration for each start."""
    stages = _stages(starts)
    longest = max((seconds for start in starts for _, seconds in start.stages), default=0.0)
    name_width = max(len(_name(stage)) for stage in (*stages, OTHER))
    heads = [f"{start.title}: {start.summary}" for start in starts]
    widths = [max(len(head), _BAR + 13) for head in heads]
    lines = [line(Span(" " * (name_width + 2)), *(Span(f"{head:<{width}}  ", BOLD) for head, width in zip(heads, widths, strict=True)))]
    for stage in stages:
        spans = [Span(f"{_name(stage):<{name_width}}  ")]
        for start, width in zip(starts, widths, strict=True):
            seconds = dict(start.stages).get(stage)
            bar = "" if seconds is None or seconds < 0.5 or longest <= 0 else "█" * max(1, round(_BAR * seconds / longest))
            took = "-" if seconds is None else duration(seconds)
            spans += [Span(f"{took:>11}  ", "" if seconds else DIM), Span(f"{bar:<{width - 13}}  ", CYAN)]
        lines.append(tuple(spans))
    return lines


def timeline_json(starts: Iterable[Start]) -> list[dict[str, Any]]:
    """The starts as JSON."""
    return [
        {
            "start": start.title,
            "ready": not start.failure,
            "seconds": round(start.seconds),
            "stages": [{"stage": stage, "seconds": round(seconds)} for stage, seconds in start.stages],
        }
        for start in starts
    ]


def timeline_svg(starts: Sequence[Start], title: str) -> str:
    """The starts as a picture: one bar each on a common axis, and a legend with the durations of all stages."""
    stages = _stages(starts)
    longest = max((start.seconds for start in starts), default=0.0) or 1.0
    width = max(_WIDTH, _LEGEND_LEFT + _COLUMN * len(starts))
    scale = (width - _LEFT - _MARGIN - _BOLD_CHARACTER * max((len(start.summary) for start in starts), default=0)) / longest
    top = 56
    axis = top + _ROW * len(starts)
    legend = axis + 56
    height = legend + _LEGEND * len(stages) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="14" fill="{_INK}">',
        f"<title>{_escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{_PAPER}"/>',
        _text(_MARGIN, 32, title, extra=' font-size="17" font-weight="600"'),
    ]
    parts += _axis(longest, scale, top, axis)
    for number, start in enumerate(starts):
        parts += _row(start, scale, top + _ROW * number)
    parts += _legend(starts, stages, legend)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axis(longest: float, scale: float, top: int, bottom: int) -> list[str]:
    step = _step(longest)
    parts = []
    for tick in range(int(longest // step) + 1):
        x = _LEFT + tick * step * scale
        parts.append(f'<line x1="{x:.1f}" y1="{top - 8}" x2="{x:.1f}" y2="{bottom}" stroke="#d8dee4"/>')
        parts.append(_text(x, bottom + 18, duration(tick * step), fill=_FAINT, anchor="middle", size=12))
    return parts


def _row(start: Start, scale: float, y: int) -> list[str]:
    middle = y + _BAR_HEIGHT / 2 + 5
    parts = [_text(_LEFT - 12, middle, _short(start.title, 24), anchor="end")]
    x = float(_LEFT)
    for stage, seconds in start.stages:
        width = seconds * scale
        if width < 0.05:
            continue
        label = f"{_name(stage)}, {duration(seconds)}"
        place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR_HEIGHT}"'
        parts.append(f'<rect {place} fill="{colour_of(stage)}"><title>{_escape(label)}</title></rect>')
        if len(_name(stage)) * 7.5 + 8 < width:
            parts.append(_text(x + width / 2, middle, _name(stage), anchor="middle", size=12))
        x += width
    return [*parts, _text(x + 8, middle, start.summary, extra=' font-weight="600"')]


def _legend(starts: Sequence[Start], stages: Sequence[str], top: int) -> list[str]:
    columns = [_LEGEND_LEFT + _COLUMN * number for number in range(len(starts))]
    parts = [_text(x, top, _short(start.title, 18), fill=_FAINT, anchor="end", size=12) for x, start in zip(columns, starts, strict=True)]
    for number, stage in enumerate(stages, 1):
        y = top + _LEGEND * number
        parts.append(f'<rect x="{_MARGIN}" y="{y - 12}" width="14" height="14" rx="2" fill="{colour_of(stage)}"/>')
        parts.append(_text(_MARGIN + 24, y, _name(stage)))
        for x, start in zip(columns, starts, strict=True):
            seconds = dict(start.stages).get(stage)
            parts.append(_text(x, y, "-" if seconds is None else duration(seconds), anchor="end"))
    return parts


def _text(x: float, y: float, text: str, *, fill: str = "", anchor: str = "", size: int = 0, extra: str = "") -> str:
    attributes = (("fill", fill), ("text-anchor", anchor), ("font-size", str(size) if size else ""))
    given = "".join(f' {name}="{value}"' for name, value in attributes if value)
    return f'<text x="{x:.1f}" y="{y:.1f}"{given}{extra}>{_escape(text)}</text>'


def _stages(starts: Sequence[Start]) -> list[str]:
    """All stages of the starts, in the order of a start."""
    return sorted({stage for start in starts for stage, _ in start.stages}, key=lambda stage: (rank(stage), stage))


def rank(stage: str) -> int:
    """The position of a stage in a start; unknown stages come last."""
    order = [each.value for each in Stage]
    return order.index(stage) if stage in order else len(order)


def _name(stage: str) -> str:
    known = next((each for each in Stage if each.value == stage), None)
    return "other stages" if stage == OTHER else STAGE_NAMES.get(known, stage) if known is not None else stage


def colour_of(stage: str) -> str:
    """The colour of a stage in pictures."""
    return next((colour for each, colour in _COLOURS.items() if each.value == stage), _OTHER_COLOUR)


def _step(longest: float) -> int:
    """The distance of ticks in seconds, so that there are few."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
    return next((step for step in steps if longest / step <= _TICKS), 7200 * (1 + int(longest / 7200 / _TICKS)))


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _escape(text: str) -> str:
    return escape(clean(text))
