"""Logs of Pods without a cluster: Pods as dictionaries, a parser that only counts, a clock."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Crash, Progress, Stage, StartupState

Manifest = dict[str, Any]
RUNNING: Manifest = {"running": {"startedAt": "2026-11-21T12:00:00Z"}}
TERMINATED: Manifest = {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": None, "finishedAt": "2026-11-21T12:01:00Z"}}
BACKING_OFF: Manifest = {"waiting": {"reason": "CrashLoopBackOff"}}
CREATING: Manifest = {"waiting": {"reason": "ContainerCreating"}}


def pod(name: str = "p", *, state: Manifest, restarts: int = 0, last: Manifest | None = None, ready: bool = False) -> Manifest:
    status = {"name": "vllm", "state": state, "lastState": last or {}, "restartCount": restarts, "ready": ready}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-of-{name}"},
        "status": {"phase": "Running", "conditions": conditions, "containerStatuses": [status]},
    }


def line(number: int, text: str) -> bytes:
    return f"2026-11-21T12:{number // 60:02d}:{number % 60:02d}.{number:09d}Z {text}\n".encode()


class PlainParser(StartupParser):
    """Remembers lines; understands `stage X`, `progress N/M` and `crash`."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ended = False
        self._state = StartupState()

    def feed(self, data: bytes | str, timestamp: datetime | None = None) -> None:
        assert isinstance(data, bytes)
        text = data.decode("utf-8", "replace").rstrip("\n")
        self.texts.append(text)
        word, _, rest = text.partition(" ")
        self._state = replace(self._state, lines=self._state.lines + 1, last_line_at=timestamp)
        if word == "stage":
            self._state = replace(self._state, stage=Stage(rest), progress=None)
        elif word == "progress":
            completed, _, total = rest.partition("/")
            self._state = replace(self._state, progress=Progress(int(completed), int(total), "things"))
        elif word == "crash":
            self._state = replace(self._state, crash=Crash(rest, "cause", None, None, text))

    def end(self) -> None:
        self.ended = True

    @property
    def state(self) -> StartupState:
        return self._state

    @property
    def final_state(self) -> StartupState:
        return self._state
