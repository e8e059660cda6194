"""Draw the dashboards of the chart with the data of a Prometheus, as docs/images/dashboard-fleet.svg and dashboard-engine.svg.

    python hack/dashboard_pictures.py http://127.0.0.1:9090 --start 1764540000 --end 1764541800 --namespace models --name llama

Titles, places, units and queries are those that Grafana gets. Colours and fonts are not Grafana's.
"""

import argparse
import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import generate_dashboards

FOLDER = Path(__file__).parent.parent / "docs" / "images"
COLUMN, ROW, GAP = 50, 27, 8
"""Pixels of a column and a row of Grafana's grid, and between two panels."""
POINTS = 180
LEGENDS = 4
COLOURS = ("#56a64b", "#e0b400", "#3274d9", "#ff780a", "#e02f44", "#8f3bb8", "#37872d", "#1f60c4")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600;font-size:13px}.faint{fill:#656d76;font-size:11px}"
    ".number{font-size:34px;font-weight:600;text-anchor:middle}.page{fill:#f6f8fa}.panel{fill:#fff;stroke:#d0d7de}.grid{stroke:#eaeef2}"
)
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Range:
    """Where the data is, the span that is drawn in seconds since 1970, and the values of the dashboards' variables."""

    url: str
    start: float
    end: float
    variables: Mapping[str, str]

    def series(self, target: Mapping[str, Any]) -> Iterator[tuple[str, list[Point]]]:
        """Yield legend and points of each series of a query."""
        expression = re.sub(r"\$\w+", lambda found: self.variables[found[0]], target["expr"])
        asked = {"query": expression, "start": self.start, "end": self.end, "step": (self.end - self.start) / POINTS}
        with urllib.request.urlopen(f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(asked)}", timeout=30) as answer:
            result = json.load(answer)["data"]["result"]
        for each in result:
            legend = target["legendFormat"]
            for label, value in each["metric"].items():
                legend = legend.replace(f"{{{{{label}}}}}", value)
            points = [(float(at), float(value)) for at, value in each["values"] if value != "NaN"]
            if points:
                yield legend, points


def draw(uid: str, data: Range) -> str:
    """Return a dashboard as SVG."""
    board = generate_dashboards.dashboard(uid)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    width, height = 24 * COLUMN, rows * ROW + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        f"<title>{escape(board['title'])}</title><style>{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
        _text(16, 26, board["title"], "title"),
    ]
    for panel in board["panels"]:
        place = panel["gridPos"]
        x, y = place["x"] * COLUMN + GAP / 2, place["y"] * ROW + 40
        wide, high = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
        lines += [
            f'<g transform="translate({x} {y})">',
            f'<rect class="panel" width="{wide}" height="{high}" rx="3"/>',
            _text(10, 20, panel["title"], "title"),
            *_content(panel, [each for target in panel["targets"] for each in data.series(target)], data, wide, high),
            "</g>",
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _content(panel: Mapping[str, Any], found: Sequence[tuple[str, list[Point]]], data: Range, wide: int, high: int) -> Iterator[str]:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if not found:
        yield _text(wide / 2, high / 2, "No data", "faint", "middle")
    elif panel["type"] == "stat":
        yield _text(wide / 2, high / 2 + 20, _number(found[0][1][-1][1], unit), "number")
    elif panel["type"] == "table":
        now = [legend for legend, points in found if points[-1][0] > data.end - 60 and points[-1][1]]
        for row, legend in enumerate(sorted(now)[: (high - 40) // 18]):
            yield _text(10, 44 + 18 * row, legend)
    else:
        yield from _graph(found, unit, data, wide, high)


def _graph(found: Sequence[tuple[str, list[Point]]], unit: str, data: Range, wide: int, high: int) -> Iterator[str]:
    left, right, top, bottom = 58, wide - 12, 34, high - 44
    most = max((value for _, points in found for _, value in points), default=0) or 1

    def place(at: float, value: float) -> tuple[float, float]:
        return left + (right - left) * (at - data.start) / (data.end - data.start), bottom - (bottom - top) * value / most

    for share in (0, 0.5, 1):
        y = place(data.start, most * share)[1]
        yield f'<path class="grid" d="M{left} {y:.1f}H{right}"/>' + _text(left - 6, y + 4, _number(most * share, unit), "faint", "end")
    for share in (0.1, 0.5, 0.9):
        at = data.start + (data.end - data.start) * share
        yield _text(place(at, 0)[0], bottom + 15, f"{datetime.fromtimestamp(at, UTC):%H:%M}", "faint", "middle")
    step = (data.end - data.start) / POINTS
    x = 10.0
    for index, (legend, points) in enumerate(found):
        colour = COLOURS[index % len(COLOURS)]
        before, path = data.start - 2 * step, ""
        for at, value in points:
            path += "{}{:.1f} {:.1f}".format("M" if at - before > 1.5 * step else "L", *place(at, value))
            before = at
        yield f'<path fill="none" stroke="{colour}" stroke-width="1.5" stroke-linecap="round" d="{path}"/>'
        if index < LEGENDS and x + 7 * len(legend) < wide:
            yield f'<rect x="{x}" y="{high - 18}" width="12" height="4" fill="{colour}"/>' + _text(x + 17, high - 12, legend, "faint")
            x += 30 + 6 * len(legend)


def _number(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"
    if unit == "s" and 0 < value < 1:
        return f"{value * 1000:.3g} ms"
    return (f"{value:.0f}" if value >= 100 else f"{value:.3g}") + {"s": " s", "reqps": "/s"}.get(unit, "")


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}"{where}>{escape(text)}</text>'


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="where Prometheus answers")
    parser.add_argument("--start", type=float, required=True, help="seconds since 1970")
    parser.add_argument("--end", type=float, required=True, help="seconds since 1970")
    parser.add_argument("--namespace", required=True, help="namespace of the VLLMDeployment that dashboard-engine.svg shows")
    parser.add_argument("--name", required=True, help="its name")
    asked = parser.parse_args(arguments)
    engine = {"$namespace": asked.namespace, "$name": asked.name, "$__rate_interval": "1m", "$__range": "1h"}
    for uid, variables in (("vllm-fleet", engine | {"$namespace": ".*"}), ("vllm-engine", engine)):
        data = Range(asked.url, asked.start, asked.end, variables)
        (FOLDER / f"dashboard-{uid.partition('-')[2]}.svg").write_text(draw(uid, data))


if __name__ == "__main__":
    main()
