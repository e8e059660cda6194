"""How the demo looks: the screen of `kubectl vllm top` on a terminal, lines elsewhere."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.text import Text

from demo.history import History
from vllm_operator.cli.status import top_page
from vllm_operator.cli.terminal import as_rich_text


def draw(histories: Sequence[History], *, title: str, width: int) -> RenderableType:
    """The screen at this moment, and why some do not serve."""
    rows = as_rich_text(top_page([history.resource for history in histories if history.resource], datetime.now(UTC), width=width))
    lines = Text("\n")
    for history in histories:
        ready = history.condition("Ready")
        if ready and ready["status"] != "True":
            lines.append(f"{history.name}: ", style="bold")
            lines.append(f"{ready['message']}\n")
    return Group(Text(title, style="bold"), rows, lines)


class Lines:
    """One line for each change worth reading, for logs of continuous integration."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, str] = {}

    def show(self, histories: Sequence[History], *, now: float) -> None:
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
