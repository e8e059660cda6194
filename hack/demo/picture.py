"""The picture at the top of the README: the five situations of the demo on one frame, which its stages grow into.

It is drawn from recorded starts and from the objects of a run of the demo. It moves by CSS alone. It begins with the last frame, which a
preview, a print and a viewer that does not animate show; after a moment, it shows how that came about.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
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
SHOWN, BEGINS = 2.0, 2.6  # until when it shows the last frame, and when the first bar begins to grow
STYLE = Path(__file__).with_name("picture.css").read_text("utf-8").strip()
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
    """Draw the last frame of the demo's objects, with how it came about. What serves after a failed upgrade is `mistral`."""
    by_name = {each["metadata"]["name"]: each for each in objects}
    scale = BAR / seconds_of(cold)
    warm_begins = BEGINS + SECONDS + 0.6
    remedy = _advice(by_name["tinyllama"], "Crashed", r"What to do: ([^.]+?)(?:, which|:|\.)")
    way_out = _advice(by_name["llama"], "Ready", r"(Add [^.]+? to spec[\w.]+\w)")
    upgraded = by_name["mistral"]["status"]
    came_back = f"{upgraded['lastCrash']['signature']} after an upgrade: revision {upgraded['rollback']['number']} serves again by itself."
    rows = [
        _started(0, "deepseek", f"first start, {_gpu(by_name['deepseek'])}", cold, scale, BEGINS),
        _started(1, "deepseek-again", "second start, warm caches", warm, scale, warm_begins),
        _failed(2, by_name["tinyllama"], remedy, BEGINS + 31 * SECONDS / seconds_of(cold)),
        _failed(3, by_name["llama"], way_out, BEGINS),
        _failed(4, by_name["mistral"], came_back, BEGINS + SECONDS),
    ]
    height = TOP + ROW * len(rows)
    first, second = (duration(seconds_of(start)) for start in (cold, warm))
    title = (
        f"Five VLLMDeployments: a first start that takes {first}, a second one that takes {second}, "
        "a crash with its name and remedy, a plan without a matching GPU, and an upgrade that fails and comes back by itself"
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
        timing = _moves(begins + (x - LEFT) * speed, width * speed)
        place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}"'
        yield f'<rect class="grows {stage}" style="{timing}" {place}/>'
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
    note = _gpu(resource) or "asks for " + ", ".join(resource["spec"]["accelerator"]["architectures"])
    yield from _names(y, resource["metadata"]["name"], note)
    yield _text(LEFT, y + 12, f"✘ {_condition(resource, 'Ready')['reason']}", "bad comes", begins)
    yield _text(LEFT, y + 33, advice, "comes", begins + 0.3)


def _names(y: int, name: str, note: str) -> Iterator[str]:
    if y > TOP:
        yield f'<line class="track" x1="20" y1="{y - 17.5}" x2="{WIDTH - 20}" y2="{y - 17.5}"/>'
    yield _text(20, y + 12, name, "name")
    yield _text(20, y + 33, note, "faint")


def _text(x: float, y: float, text: str, style: str, begins: float | None = None, *, extra: str = "") -> str:
    delay = "" if begins is None else _moves(begins, 0.5)
    given = extra.format(delay) if extra else f' style="{delay}"' if delay else ""
    return f'<text class="{style}" x="{x:.1f}" y="{y}"{given}>{escape(text)}</text>'


def _moves(begins: float, seconds: float) -> str:
    """The style of an element that is dim after the first frame, and comes back in so many seconds."""
    return f"animation-delay:{SHOWN}s,{begins:.2f}s;animation-duration:{begins - SHOWN:.2f}s,{max(seconds, 0.01):.2f}s"


def _condition(resource: Mapping[str, Any], type: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(each for each in resource["status"]["conditions"] if each["type"] == type)
    return found


def _gpu(resource: Mapping[str, Any]) -> str:
    """The chosen GPU, as the plan names it; empty without a plan."""
    found = re.search(r"Planned for ([^(,]+?) \(", resource["status"].get("plan", ""))
    return found[1] if found else ""


def _advice(resource: Mapping[str, Any], type: str, pattern: str) -> str:
    """What a condition says to do: the part of its message that the pattern has as a group."""
    found = re.search(pattern, _condition(resource, type)["message"])
    return f"What to do: {found[1]}." if found else ""
