"""The diagnosis of an engine on several nodes, from the logs of its ranks. A rank is that of a node."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.cli.terminal import paragraph
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.ranks import GroupDiagnosis, GroupStanding, Rank, diagnose_ranks
from vllm_operator.logs.state import Crash, Stage
from vllm_operator.text.wording import count

_NUMBER = re.compile(r"(?:rank|node|worker)[-_ ]?(\d{1,4})|^pod/\S*-\d{1,4}-(\d{1,4})(?:/|$)", re.IGNORECASE)
"""The rank in the name of a file, or in that of a follower's Pod of a LeaderWorkerSet."""


class Group(NamedTuple):
    """The ranks of an engine whose logs were given, and the diagnosis of all."""

    ranks: tuple[Rank, ...]
    parsers: dict[int, StartupParser]
    diagnosis: GroupDiagnosis
    absent: str = "no log given"  # about other ranks

    @property
    def is_told_by_one_log(self) -> bool:
        """Whether the only log that was given says everything."""
        (only, *others), found = self.ranks, self.diagnosis
        is_elsewhere = found.standing is GroupStanding.WAITING or (
            found.standing is GroupStanding.CRASHED and (found.rank, found.crash) != (only.number, only.crash)
        )
        return not others and not is_elsewhere

    def where(self, number: int | None) -> str:
        """Return the rank in words, with the name of its log."""
        rank = next((it for it in self.ranks if it.number == number), None)
        if number is None:
            return "a rank"
        return f"rank {number} ({rank.name or 'this log'})" if rank is not None else f"rank {number} ({self.absent})"


def find_group(logs: Sequence[tuple[str, StartupParser]], knowledge: StartupKnowledge) -> Group | None:
    """Return the engine on several nodes that wrote these logs; None if no log says that there are several."""
    states = [(name, parser, parser.final_state) for name, parser in logs]
    if all(state.membership is None for _, _, state in states):
        return None
    numbers: list[int | None] = []
    for name, _, state in states:
        found = _NUMBER.search(name)
        logged = state.membership.node if state.membership is not None else None
        number = logged if logged is not None else int(found[1] or found[2]) if found is not None else None
        numbers.append(number if number not in numbers else None)
    free = iter(number for number in range(len(states)) if number not in numbers)
    ranks, parsers = [], {}
    for (name, parser, state), number in zip(states, numbers, strict=True):
        place = number if number is not None else next(free)
        crash = state.crash if parser.state.crash is not None or not (state.membership and state.membership.is_waiting) else None
        ranks.append(Rank(number=place, name=name, state=state if crash is not None else parser.state, crash=crash))
        parsers[place] = parser
    ranks.sort(key=lambda rank: rank.number)
    return Group(tuple(ranks), parsers, diagnose_ranks(ranks, knowledge))


def describe_group(group: Group, headlines: dict[int, str], body: str) -> str:
    """Return the page about a group. `headlines`: a line about each log; `body`: the page about the root cause, empty without one."""
    found = group.diagnosis
    nodes = max(2, *(max(it.place.nodes or 0, it.number + 1) for it in group.ranks))
    missing = [number for number in range(nodes) if number not in headlines]
    is_ready = any(it.stage is Stage.READY for it in group.ranks)
    rows = [f"  rank {it.number}  {it.name or 'this log'}: {_row(it, headlines[it.number], is_ready=is_ready)}" for it in group.ranks]
    rows += [f"  rank {number}  {group.absent}" for number in missing]
    sections = {"Ranks": "\n".join(rows)}
    if not body and found.crash is not None:
        sections |= {"What happened": paragraph(found.crash.cause), "What to do": paragraph(found.crash.remedy or "")}
    lost = [f"rank {number}: {crash.signature}: {crash.line[:120]}" for number, crash in found.consequences]
    sections["What other ranks report"] = "\n".join(map(paragraph, lost))
    parts = [f"{title}\n{text}" for title, text in sections.items() if text]
    return "\n\n".join(filter(None, (_headline(group), f"  An engine on {count(nodes, 'node')}", *parts, body)))


def group_as_json(group: Group, crash: dict[str, Any] | None) -> dict[str, Any]:
    """Return the diagnosis of a group as JSON. `crash`: its root cause."""
    found = group.diagnosis
    ranks = [
        {
            "rank": it.number,
            "log": it.name,
            "stage": it.stage.value,
            "isWaiting": it.place.is_waiting,
            "signature": it.crash.signature if it.crash is not None else None,
        }
        for it in group.ranks
    ]
    return {"standing": found.standing.value, "rank": found.rank, "crash": crash, "ranks": ranks}


def _headline(group: Group) -> str:
    found = group.diagnosis
    what = _name(found.crash) if found.crash is not None else ""
    has_served = any(it.stage is Stage.READY for it in group.ranks)
    match found.standing:
        case GroupStanding.CRASHED:
            return f"Crashed{' while serving' if has_served else ''}: {what}, {group.where(found.rank)}"
        case GroupStanding.WAITING:
            return f"Waiting for {group.where(found.rank)}: {what}" if found.rank is not None else f"Waiting: {what}"
        case GroupStanding.SERVING:
            return "Started: the server is ready"
    return f"Not ready and not crashed: {group.where(found.rank)} has made the least progress"


def _name(crash: Crash) -> str:
    return crash.cause.partition(": ")[0] if crash.family else crash.signature


def _row(rank: Rank, headline: str, *, is_ready: bool) -> str:
    if rank.crash is not None:
        return headline
    if rank.place.is_unanswered:
        return "Served, and then did not get an answer from a process"
    if rank.place.is_stopping:
        return "Stopped on request"
    if is_ready and rank.stage is not Stage.READY:
        return "Started, and no error"
    return f"{headline}, where it waits for the other ranks" if rank.place.is_waiting else headline
