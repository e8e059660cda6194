"""The picture at the top of the README: the four situations of the demo on one frame, which its stages grow into.

It is drawn from recorded starts and from the objects of a run of the demo. It moves by CSS alone: a viewer that does not animate, or is
asked for reduced motion, shows the last frame.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from vllm_operator.cli.diagnose import STAGE_NAMES
from vllm_operator.logs.state import Stage, StartupState
from vllm_operator.text.wording import duration

WIDTH, ROW, TOP = 960, 68, 22
LEFT, BAR, BAR_HEIGHT = 232, 520, 26
"""Where bars begin, and the width of the longest."""
SECONDS = 6.0
"""How long the longest bar grows, in seconds of the picture."""
BEGINS = 0.6
COLOURS = {
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
STYLE = """\
text { font: 15px system-ui, sans-serif; fill: #1f2328 }
.paper { fill: #ffffff; stroke: #d1d9e0 }
.name { font-weight: 600; font-size: 17px }
.faint { fill: #59636e; font-size: 13px }
.good { fill: #1a7f37; font-weight: 600 }
.bad { fill: #cf222e; font-weight: 600 }
.stage { font-size: 12px; fill: #1f2328; text-anchor: middle }
.track { stroke: #d1d9e0 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .paper { fill: #0d1117; stroke: #3d444d }
  .faint { fill: #9198a1 }
  .good { fill: #3fb950 }
  .bad { fill: #f85149 }
  .track { stroke: #3d444d }
}
@media (prefers-reduced-motion: no-preference) {
  .grows { animation: grow linear backwards; transform-box: fill-box; transform-origin: left }
  .comes { animation: come .5s backwards }
}
@keyframes grow { from { transform: scaleX(0) } }
@keyframes come { from { opacity: 0 } }"""


Start = Sequence[tuple[Stage, float]]
"""A start that became ready: its stages with their seconds, in their order."""


def start_of_log(state: StartupState) -> Start:
    """Return the start in a log. All its lines have times."""
    ends = [*(since for _, since in state.entered[1:]), state.last_line_at]
    pairs = zip(state.entered, ends, strict=True)
    return [(stage, (end - since).total_seconds()) for (stage, since), end in pairs if since and end and stage is not Stage.READY]


def seconds_of(start: Start) -> float:
    return sum(seconds for _, seconds in start)


def draw_picture(objects: Sequence[Mapping[str, Any]], cold: Start, warm: Start) -> str:
    """Draw the last frame of the demo's objects `deepseek`, `deepseek-again`, `tinyllama` and `llama`, with how it came about."""
    by_name = {each["metadata"]["name"]: each for each in objects}
    scale = BAR / seconds_of(cold)
    warm_begins = BEGINS + SECONDS + 0.6
    remedy = _advice(by_name["tinyllama"], "Crashed", r"What to do: ([^.]+?)(?:, which|\.)")
    way_out = _advice(by_name["llama"], "Planned", r"(Add [^.]+? to spec[\w.]+\w)")
    rows = [
        _started(0, "deepseek", f"first start, {_gpu(by_name['deepseek'])}", cold, scale, BEGINS),
        _started(1, "deepseek-again", "second start, warm caches", warm, scale, warm_begins),
        _failed(2, by_name["tinyllama"], remedy, BEGINS + 31 * SECONDS / seconds_of(cold)),
        _failed(3, by_name["llama"], way_out, BEGINS),
    ]
    height = TOP + ROW * len(rows)
    first, second = (duration(seconds_of(start)) for start in (cold, warm))
    title = (
        f"Four VLLMDeployments: a first start that takes {first}, a second one that takes {second}, "
        "a crash with its name and remedy, and a plan without a matching GPU"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        *(line for row in rows for line in row),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _started(row: int, name: str, note: str, start: Start, scale: float, begins: float) -> Iterator[str]:
    y = TOP + ROW * row
    yield from _names(y, name, note)
    speed = SECONDS / BAR
    x = float(LEFT)
    for stage, seconds in start:
        width = seconds * scale
        if width < 0.05:
            continue
        timing = f"animation-delay:{begins + (x - LEFT) * speed:.2f}s;animation-duration:{max(width * speed, 0.01):.2f}s"
        place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}"'
        yield f'<rect class="grows" style="{timing}" {place} fill="{COLOURS[stage]}"/>'
        label = STAGE_NAMES[stage]
        if len(label) * 6.5 + 8 < width:
            shown = begins + (x - LEFT + width / 2) * speed
            # on a light colour in both schemes
            yield _text(x + width / 2, y + 17, label, "stage comes", shown, extra=' fill="#1f2328" style="fill:#1f2328;{}"')
        x += width
    done = begins + (x - LEFT) * speed
    yield _text(x + 12, y + 18, f"{duration(seconds_of(start))}  ✔ serves", "good comes", done)


def _failed(row: int, resource: Mapping[str, Any], advice: str, begins: float) -> Iterator[str]:
    y = TOP + ROW * row
    yield from _names(
        y, resource["metadata"]["name"], _gpu(resource) or "asks for " + ", ".join(resource["spec"]["accelerator"]["architectures"])
    )
    yield _text(LEFT, y + 12, f"✘ {_condition(resource, 'Ready')['reason']}", "bad comes", begins)
    yield _text(LEFT, y + 33, advice, "comes", begins + 0.3)


def _names(y: int, name: str, note: str) -> Iterator[str]:
    if y > TOP:
        yield f'<line class="track" x1="20" y1="{y - 17.5}" x2="{WIDTH - 20}" y2="{y - 17.5}"/>'
    yield _text(20, y + 12, name, "name")
    yield _text(20, y + 33, note, "faint")


def _text(x: float, y: float, text: str, style: str, begins: float | None = None, *, extra: str = "") -> str:
    delay = "" if begins is None else f"animation-delay:{begins:.2f}s"
    given = extra.format(delay) if extra else f' style="{delay}"' if delay else ""
    return f'<text class="{style}" x="{x:.1f}" y="{y}"{given}>{escape(text)}</text>'


def _condition(resource: Mapping[str, Any], type: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(each for each in resource["status"]["conditions"] if each["type"] == type)
    return found


def _gpu(resource: Mapping[str, Any]) -> str:
    """The chosen GPU, as the condition Planned names it; empty without a plan."""
    found = re.search(r"Planned for ([^(,]+?) \(", _condition(resource, "Planned")["message"])
    return found[1] if found else ""


def _advice(resource: Mapping[str, Any], type: str, pattern: str) -> str:
    """What a condition says to do: the part of its message that the pattern has as a group."""
    found = re.search(pattern, _condition(resource, type)["message"])
    return f"What to do: {found[1]}." if found else ""
