"""How the demo looks: a table that is redrawn on a terminal, lines elsewhere."""

import re
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from demo.history import History

BAR_WIDTH = 20
COLOURS = {"True": "green", "False": "yellow", "Unknown": "dim"}
SHOWN_BACKENDS = 4


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def bar(completed: int, total: int) -> Text:
    """A progress bar."""
    filled = BAR_WIDTH * completed // total
    return Text.assemble(("█" * filled, "cyan"), ("░" * (BAR_WIDTH - filled), "dim"), f" {100 * completed // total} %")


def draw(histories: Sequence[History], *, now: float, speed: float, title: str) -> RenderableType:
    """The table at this moment."""
    table = Table(box=SIMPLE_HEAD, expand=True, pad_edge=False, padding=(0, 1, 1, 0))
    table.add_column("VLLMDeployment", ratio=3)
    table.add_column("GPU and backends", ratio=4)
    table.add_column("Start", ratio=5)
    table.add_column("Time", no_wrap=True, justify="right")
    table.add_column("Ready", ratio=3)
    for history in histories:
        table.add_row(_model(history), _plan(history), _start(history), _time(history, now, speed), _ready(history))
    return Group(Text(title, style="bold"), table, _story(histories))


def _model(history: History) -> RenderableType:
    name = Text(history.name, style="bold")
    uri = history.spec.get("model", {}).get("uri", "")
    return Group(name, Text(uri.rpartition("/")[2], style="dim", overflow="ellipsis", no_wrap=True))


def _plan(history: History) -> RenderableType:
    plan = history.status.get("pinnedPlan")
    if not plan:
        asked = ", ".join(history.spec.get("accelerator", {}).get("architectures", []))
        return Text(f"asks for {asked}" if asked else "", style="dim")
    planned = str(history.condition("Planned").get("message", ""))
    gpu = re.search(r"Planned for ([^,]+)", planned)
    backends = [name for names in re.findall(r"(?:Backends|vLLM defaults): ([^.]+)\.", planned) for name in names.split(", ")]
    lines = [Text(gpu[1] if gpu else plan.get("architecture", "unknown"), style="magenta")]
    return Group(*lines, *(Text(backend, style="dim") for backend in backends[:SHOWN_BACKENDS]))


def _start(history: History) -> RenderableType:
    crashed = history.condition("Crashed")
    if crashed.get("status") == "True":
        remedy = re.search(r"What to do: (.+?)(?: The command is | \(See |$)", crashed["message"])
        return Group(Text(f"✘ {crashed['reason']}", style="bold red"), Text(remedy[1] if remedy else crashed["message"], style="red"))
    if history.condition("Ready").get("status") == "True":
        return Group(Text("✔ serves", style="bold green"), Text(" → ".join(history.stages), style="dim"))
    startup = history.status.get("startup") or {}
    if not startup.get("stage"):
        return Text("")
    lines: list[RenderableType] = [Text(startup["stage"], style="bold cyan")]
    if startup.get("total"):
        lines.append(bar(startup.get("completed", 0), startup["total"]))
    if startup.get("message"):
        lines.append(Text(startup["message"], style="dim"))
    return Group(*lines)


def _time(history: History, now: float, speed: float) -> RenderableType:
    lines = [Text(clock(history.elapsed(now)))]
    replayed = history.replayed(now, speed)
    if replayed is not None:
        lines.append(Text(f"{clock(replayed)} real", style="dim"))
    return Group(*lines)


def _ready(history: History) -> RenderableType:
    ready = history.condition("Ready")
    if not ready:
        return Text("")
    cache = history.status.get("cache") or {}
    lines = [Text(ready["reason"], style=COLOURS[ready["status"]])]
    if cache.get("state"):
        lines.append(Text(f"cache {cache['state']}", style="green" if cache["state"] == "Warm" else "dim"))
    return Group(*lines)


def _story(histories: Sequence[History]) -> RenderableType:
    """What `kubectl get` would show as the message of those that do not serve."""
    lines = Text()
    for history in histories:
        ready = history.condition("Ready")
        if ready and ready["status"] != "True":
            lines.append(f"{history.name}: ", style="bold")
            lines.append(f"{ready['message']}\n")
    return lines


class Lines:
    """One line for each change worth reading, for logs of continuous integration."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, str] = {}

    def show(self, histories: Sequence[History], *, now: float) -> None:
        """Print what is new."""
        for history in histories:
            topic, line = self._describe(history)
            if topic and self._said.get(history.name) != topic:
                self._said[history.name] = topic
                self._console.print(f"{now:6.1f} s  {history.name:<15} {line}", markup=False, highlight=False, soft_wrap=True)

    def _describe(self, history: History) -> tuple[str, str]:
        """What the line is about (said once), and the line."""
        ready = history.condition("Ready")
        if history.is_settled and ready:
            return ready["reason"], f"{ready['reason']}: {ready['message']}"
        startup = history.status.get("startup") or {}
        if not startup.get("stage"):
            return (ready["reason"],) * 2 if ready else ("", "")
        total, completed = startup.get("total"), startup.get("completed", 0)
        return (f"{startup['stage']} {10 * (10 * completed // total)} % of {total}" if total else str(startup["stage"]),) * 2
