"""`vllm-operator diagnose LOGFILE...|-`: the stage of a start, the cause of a crash, and the fix. Needs no cluster.

An engine on several nodes writes a log on each of them. A rank is that of a node.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from pydantic.alias_generators import to_camel

from vllm_operator.api.reading import stamp
from vllm_operator.catalog.startup import StartupKnowledge, load_startup
from vllm_operator.cli.inputs import InputError, name_of_file, print_as, read_input, read_text
from vllm_operator.cli.pasted_logs import read_logs, severity
from vllm_operator.cli.terminal import paragraph
from vllm_operator.logs.crash import KV_TRANSFERS, STALL, STILL, TERMINATED, TOLD_TO_STOP
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.ranks import GroupDiagnosis, GroupState, Rank, diagnose_ranks
from vllm_operator.logs.state import Crash, Progress, Stage, StartupState
from vllm_operator.text.wording import count

CRASHED = 3
"""Exit status for a crash. Status 2 means invalid input, 1 an error in the command itself."""
STAGE_NAMES = {stage: stage.name.lower().replace("_", " ") for stage in Stage} | {
    Stage.DISTRIBUTED_INIT: "engine start",
    Stage.TORCH_COMPILE: "torch.compile",
    Stage.KERNEL_WARMUP: "kernel warm-up",
    Stage.FLASHINFER_WARMUP: "FlashInfer warm-up",
    Stage.CUDA_GRAPH_CAPTURE: "CUDA graph capture",
}
_OF_CRASH = ("signature", "family", "cause", "remedy", "reference", "line", "line_number")
_WHOLE = (
    "Read the complete log of this start (after a restart, that of the previous container)."
    " Line {line} says that a process failed. The error is below it, at the end of the traceback."
)


def run(arguments: argparse.Namespace) -> int:
    """Print the diagnosis of a log. Return 0, or 3 with `--exit-code` if it contains a crash."""
    knowledge = known_crashes(arguments.signatures)
    if arguments.score is not None:
        from vllm_operator.cli.scoring import run_score

        return run_score(arguments, knowledge)
    if not arguments.logs:
        raise InputError("give a log (- is standard input), or a folder with --score")
    found = [log for file in arguments.logs for log in _read(file, knowledge, several=len(arguments.logs) > 1)]
    found.sort(key=lambda log: severity(log[1].final_state))
    group = find_group(found, knowledge)
    name, parser = found[0]
    state = parser.final_state
    if group is not None and not group.is_told_by_one_log:
        parser, state = root_cause(group, parser)
    if arguments.output:
        told = as_json(state) | ({"container": name} if len(found) > 1 and group is None else {})
        print_as(told | (json_of_group(group) if group is not None else {}), arguments.output)
    elif group is not None and not group.is_told_by_one_log:
        headlines = {it.number: headline(it.state) for it in group.ranks if it.state is not None}
        print(page_of_group(group, headlines, parser, state))
    else:
        print(page_of_several(found, colours=sys.stdout.isatty()))
    return exit_code(state, arguments)


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
        is_elsewhere = found.state is GroupState.WAITING or (
            found.state is GroupState.CRASHED and (found.rank, found.crash) != (only.number, only.crash)
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


def page_of_group(group: Group, headlines: dict[int, str], parser: StartupParser, state: StartupState) -> str:
    """Return the page about an engine on several nodes. `headlines`: a line about each rank; the log and the state: of `root_cause`."""
    found, is_logged = group.diagnosis, state.crash is not None and state.crash == parser.final_state.crash
    body = page(parser, state, colours=False).partition("\n\n")[2] if is_logged else ""
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


def json_of_group(group: Group) -> dict[str, Any]:
    """Return the part of the JSON about all ranks."""
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
    return {"group": {"standing": found.state.value, "rank": found.rank, "crash": _crash(found.crash), "ranks": ranks}}


def _headline(group: Group) -> str:
    found = group.diagnosis
    what = _name(found.crash) if found.crash is not None else ""
    has_served = any(it.stage is Stage.READY for it in group.ranks)
    match found.state:
        case GroupState.CRASHED:
            return f"Crashed{' while serving' if has_served else ''}: {what}, {group.where(found.rank)}"
        case GroupState.WAITING:
            return f"Waiting for {group.where(found.rank)}: {what}" if found.rank is not None else f"Waiting: {what}"
        case GroupState.SERVING:
            return "Started: the server is ready"
    return f"Not ready and not crashed: {group.where(found.rank)} has made the least progress"


def _name(crash: Crash) -> str:
    """Return the signature, or what failed for an error without one."""
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


def root_cause(group: Group, parser: StartupParser) -> tuple[StartupParser, StartupState]:
    """Return the log of the rank with the root cause, else `parser`, and its state with this cause."""
    found = group.diagnosis
    parser = group.parsers.get(-1 if found.rank is None else found.rank, parser)
    return parser, replace(parser.final_state, crash=found.crash if found.state is GroupState.CRASHED else None)


def _read(file: str, knowledge: StartupKnowledge, *, several: bool) -> list[tuple[str, StartupParser]]:
    """Return the logs in a file, by container; the name is that of the file if there are `several` files and one container."""
    data = read_input(file)
    if not data:
        raise InputError(f"{name_of_file(file)} is empty")
    found = read_logs(data, lambda: StartupParser(knowledge))
    return [(name or (name_of_file(file) if several else ""), parser) for name, parser in found]


def exit_code(state: StartupState, arguments: argparse.Namespace) -> int:
    """Return 3 with `--exit-code` if the engine failed, else 0."""
    return CRASHED if arguments.exit_code and (state.crash is not None or state.cut_off_at is not None) else 0


def known_crashes(files: Sequence[str]) -> StartupKnowledge:
    """Load the built-in signatures and those in files. Raises InputError if one is invalid; the operator ignores it."""
    shipped = load_startup()
    if not files:
        return shipped
    from vllm_operator.catalog.user_entries import with_user_signatures  # slow to import

    known, read = with_user_signatures(shipped, {file: read_text(file) for file in files})
    if read.problems:
        raise InputError("\n".join(problem.removesuffix(" The signature is ignored.") for problem in read.problems))
    return known


def page(parser: StartupParser, state: StartupState, *, colours: bool) -> str:
    """Return the page about one log: headline, stages, crash, notices."""
    bold, red, green, plain = ("\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[0m") if colours else ("", "", "", "")
    sections = {"Stages": _timeline(state) if state.has_start else ""}
    if crash := state.crash:
        sections |= {
            "What happened": paragraph(crash.cause),
            "What to do": paragraph(crash.remedy or ""),
            "Read more": f"  {crash.reference}" if crash.reference else "",
            f"Log (line {crash.line_number})" if crash.line_number else "Log": "\n".join(
                f"  | {line}" for line in (crash.excerpt or crash.line).splitlines()
            ),
        }
    elif state.cut_off_at is not None:
        sections["What to do"] = paragraph(_WHOLE.format(line=state.cut_off_at))
    elif state.has_start and state.stage is not Stage.READY:
        stages = load_startup().stages
        sections["Last line"] = f"  | {parser.last_line}"
        sections["If the log ends here"] = paragraph(f"{stages.silence[state.stage.value].advice} {stages.ended}".strip())
    after = parser.consequences(crash) if crash is not None else ()
    sections["Consequences"] = "\n".join(paragraph(f"{each.signature}, line {each.line_number}: {each.line[:120]}") for each in after)
    notices = [paragraph(f"{each.signature}: {each.cause} {each.remedy or ''}") for each in parser.notices_beside(crash)]
    sections["Also in the log"] = "\n".join(notices)
    parts = [f"{bold}{title}{plain}\n{body}" for title, body in sections.items() if body]
    return "\n\n".join((f"{bold}{headline(state, red, green)}{plain}", _facts(state), *parts))


def page_of_several(logs: list[tuple[str, StartupParser]], *, colours: bool) -> str:
    """Return the page about the most severe log, with its name and one line about each other log if there are several."""
    (name, worst), *others = logs
    worst_page = page(worst, worst.final_state, colours=colours)
    if not others:
        return worst_page
    title = "Other logs" if name and not name.startswith("pod/") else "Other containers"
    return "\n\n".join((name, worst_page, "\n".join((title, *(f"  {each}: {headline(log.final_state)}" for each, log in others)))))


def as_json(state: StartupState) -> dict[str, Any]:
    """Return the diagnosis as JSON. Times are RFC 3339 in UTC. In a log without years, the year of its times is 2000."""
    progress, crash, memory = state.progress, state.crash, state.memory
    stages = _stages(state) if state.has_start else []
    return {
        "engineVersion": state.engine_version,
        "stage": state.stage.value,
        "progress": None if progress is None else {"completed": progress.completed, "total": progress.total},
        "stages": [{"stage": stage.value, "enteredAt": stamp(since), "seconds": seconds} for stage, since, seconds in stages],
        "backends": [{"component": component, "backend": backend} for component, backend in state.observed_backends],
        "cache": {"loaded": state.cache.hits, "built": state.cache.misses, "failedToLoad": state.cache.load_failures},
        "memory": {
            "weightsGiB": memory.weights_gib,
            "kvCacheGiB": memory.kv_cache_gib,
            "kvCacheTokens": memory.kv_cache_tokens,
            "maxConcurrency": memory.concurrency,
        },
        "crash": _crash(crash),
        "cutOffAtLine": state.cut_off_at,
    }


def _crash(crash: Crash | None) -> dict[str, Any] | None:
    return None if crash is None else {to_camel(name): getattr(crash, name) for name in _OF_CRASH}


def headline(state: StartupState, red: str = "", green: str = "") -> str:
    """Return a line about a log."""
    name = f"{'after' if state.is_stage_over else 'during'} {STAGE_NAMES[state.stage]}"
    if state.crash is not None:
        when = "" if not state.has_start else " while serving" if state.stage is Stage.READY else f" {name}"
        what = "Terminated" if state.crash.signature == TERMINATED else "Crashed"
        return f"{red}{what}{when}: {_name(state.crash)}"
    if state.stage is Stage.READY:
        if TOLD_TO_STOP in state.notices:
            return "Stopped: the server was ready, and was told to stop"
        if KV_TRANSFERS in state.notices:
            return f"{red}Started, but transfers of KV cache fail, and so do requests"
        return f"{red}Stands still: requests run without output" if STILL in state.notices else f"{green}Started: the server is ready"
    if state.cut_off_at is not None:
        return f"{red}Failed{f' {name}' if state.has_start else ''}, and the log ends before the error"
    if not state.has_start:
        return "A process of the engine does not respond" if STALL in state.notices else "No crash and no vLLM start in this log"
    progress = f", {_progress(state.progress)}" if state.progress is not None else ""
    return f"Not ready and not crashed: the log ends {name}{progress}"


def _facts(state: StartupState) -> str:
    version = f"vLLM {state.engine_version}, " if state.engine_version else ""
    lines = f"{version}{count(state.lines, 'line')}"
    if state.has_start:
        return paragraph(lines)
    if state.crash is not None or state.cut_off_at is not None:
        return paragraph(f"{lines}. The log does not show a start of vLLM.")
    return paragraph(
        f"{lines}. Is this the complete log of a vLLM server? With kubectl logs, do not use --tail, select the container of the engine with"
        " -c, and add --previous after a restart."
    )


def _timeline(state: StartupState) -> str:
    rows = []
    stages = _stages(state)
    for number, (stage, since, seconds) in enumerate(stages, 1):
        note = f"  {_progress(state.progress)}" if number == len(stages) and state.progress is not None and stage is not Stage.READY else ""
        clock = "" if since is None else since.strftime("%H:%M:%S")
        took = "" if seconds is None else _seconds(seconds)
        rows.append(f"  {clock:8}  {STAGE_NAMES[stage]:18} {took:>9}{note}".rstrip())
    cache = state.cache
    if cache.hits or cache.misses or cache.load_failures:
        failures = f", {cache.load_failures} failed to load" if cache.load_failures else ""
        rows.append(f"  compile cache: {cache.hits} loaded, {cache.misses} built{failures}")
    if state.observed_backends:
        rows.append(paragraph("backends: " + ", ".join(f"{component} {backend}" for component, backend in state.observed_backends)))
    return "\n".join(rows)


def _progress(progress: Progress) -> str:
    left = f", about {_seconds(progress.eta_seconds)} left" if progress.eta_seconds and progress.completed < progress.total else ""
    return f"{progress.label} {progress.completed}/{progress.total}{left}"


def _stages(state: StartupState) -> list[tuple[Stage, datetime | None, int | None]]:
    """Return the stages with the time and the seconds since when they last; None if unknown, or for a server that is ready."""
    ends = [since for _, since in state.entered[1:]] + [state.last_line_at]
    return [
        (stage, since, None if stage is Stage.READY or since is None or until is None else max(0, round((until - since).total_seconds())))
        for (stage, since), until in zip(state.entered, ends, strict=True)
    ]


def _seconds(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
