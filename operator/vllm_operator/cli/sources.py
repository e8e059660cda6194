"""The logs of several containers in one text, as `kubectl logs --prefix` writes them: each is the log of a start of its own."""

import re
from collections.abc import Callable, Iterator

from vllm_operator.cli.paste.log import PastedLog
from vllm_operator.startup.parser import StartupParser
from vllm_operator.startup.state import Stage, StartupState

_PREFIX = re.compile(rb"(?m)^\[(pod/[^\]\s]{1,330})\]")
_MOST = 64
"""Containers that are told apart; the lines of further ones belong to the one before them."""
_LINE_LIMIT = 1 << 20
"""Bytes of a line that is not given to its parser before it ends."""


class Sources:
    """Gives each container's lines to a parser of its own. A text that does not begin with such prefixes is one log."""

    def __init__(self, make: Callable[[], StartupParser]) -> None:
        """Begin with no log. `make`: makes a parser."""
        self._make = make
        self._logs: dict[str, PastedLog] = {}
        self._latest = ""
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Take the next part of the text."""
        if not self._logs:
            first = _PREFIX.search(data)
            self._latest = _name(first) if first is not None else ""
            self._logs[self._latest] = PastedLog(self._make())
        if "" in self._logs:
            self._logs[""].feed(data)
            return
        complete, end, self._tail = (self._tail + data).rpartition(b"\n")
        self._share_out(complete + end)
        if len(self._tail) > _LINE_LIMIT:
            self._logs[self._latest].feed(self._tail)
            self._tail = b""

    def end(self) -> list[tuple[str, StartupParser]]:
        """All that was read: the name of each container, and its log; the worst first."""
        self._share_out(self._tail)
        for log in self._logs.values():
            log.end()
        parsers = [(name, log.parser) for name, log in self._logs.items()]
        return sorted(parsers, key=lambda each: _rank(each[1].final_state))

    def _share_out(self, lines: bytes) -> None:
        shares: dict[str, list[bytes]] = {}
        for line in lines.splitlines(keepends=True):
            found = _PREFIX.match(line)
            name = _name(found) if found is not None else self._latest
            if name not in self._logs and len(self._logs) < _MOST:
                self._logs[name] = PastedLog(self._make())
            self._latest = name if name in self._logs else self._latest
            shares.setdefault(self._latest, []).append(line)
        for name, share in shares.items():
            self._logs[name].feed(b"".join(share))


def _name(found: re.Match[bytes]) -> str:
    return found[1].decode("utf-8", "replace")


def tells_no_start(state: StartupState) -> bool:
    """Whether no line belongs to a stage of a start: the tail of a log, an excerpt, or the log of something else."""
    return state.stage is Stage.PROCESS_START and state.engine_version is None and not state.observed_backends


def _rank(state: StartupState) -> int:
    checks: Iterator[bool] = iter(
        (
            state.crash is not None and not (state.crash.signature == "Unknown" and tells_no_start(state)),
            state.cut_off_at is not None,
            not tells_no_start(state) and state.stage is not Stage.READY,
            state.stage is Stage.READY,
            state.crash is not None,  # of what stands beside the engine: a proxy, a collector of metrics
        )
    )
    return next((rank for rank, holds in enumerate(checks) if holds), 5)
