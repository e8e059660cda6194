"""`vllm-operator diagnose LOGFILE|-`: the stage of a start, why it crashed, what to do. Needs no cluster.

`--timeline` shows the stages of the start instead, of several logs side by side.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import BinaryIO

from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.cli.diagnosis_page import as_json, page, page_of_several
from vllm_operator.cli.paste.log import PastedLogs
from vllm_operator.cli.timeline_page import print_starts, start_of_log
from vllm_operator.cli.user_signatures import USER_SIGNATURES_HELP, UserSignaturesError, known_crashes
from vllm_operator.startup.parser import StartupParser
from vllm_operator.startup.state import StartupState

CRASHED = 3
"""Exit status for a crash. 2 is for input that cannot be read, 1 for an error in the command itself."""
EXIT_CODE_HELP = f"exit with {CRASHED} if the log contains a crash. Without this flag, the exit status is 0 if the log could be read"
_CHUNK = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "logs", metavar="LOGFILE", nargs="+", help="log of a vLLM start, from kubectl logs or any other source (- is standard input)"
    )
    parser.add_argument("--timeline", action="store_true", help="show how long each stage took, of several logs side by side")
    parser.add_argument("--signatures", metavar="FILE", action="append", default=[], help=USER_SIGNATURES_HELP)
    parser.add_argument("-o", "--output", choices=("json", "svg"), help="print JSON, or with --timeline a picture (svg)")
    parser.add_argument("--exit-code", action="store_true", help=EXIT_CODE_HELP)


def run(arguments: argparse.Namespace) -> int:
    """Print the diagnosis of a log. Return 0, 2 if it cannot be read, or 3 with `--exit-code` if it contains a crash."""
    try:
        knowledge = known_crashes(arguments.signatures)
    except UserSignaturesError as error:
        print(f"vllm-operator diagnose: {error}", file=sys.stderr)
        return 2
    if not arguments.timeline and (len(arguments.logs) > 1 or arguments.output == "svg"):
        print("vllm-operator diagnose: several logs and pictures need --timeline", file=sys.stderr)
        return 2
    try:
        read = {path: _diagnosed(path, knowledge) for path in arguments.logs}
    except _UnreadableError as error:
        print(f"vllm-operator diagnose: {error}", file=sys.stderr)
        return 2
    if arguments.timeline:
        return _show_timeline(read, arguments.output)
    found = read[arguments.logs[0]]
    name, parser = found[0]
    try:
        if arguments.output == "json":
            print(json.dumps(as_json(parser.final_state) | ({"container": name} if len(found) > 1 else {})))
        elif len(found) > 1:
            print(page_of_several(found, colours=sys.stdout.isatty()))
        else:
            print(page(parser, parser.final_state, colours=sys.stdout.isatty()))
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stderr.close()  # the reader closed the pipe; Python would report an error at exit
    return exit_code(parser.final_state) if arguments.exit_code else 0


def exit_code(state: StartupState) -> int:
    """Return the exit status for `--exit-code`: 3 if the engine failed, else 0."""
    return CRASHED if state.crash is not None or state.cut_off_at is not None else 0


class _UnreadableError(Exception):
    """A log cannot be read, or is empty."""


def _diagnosed(path: str, knowledge: StartupKnowledge) -> list[tuple[str, StartupParser]]:
    """Read the containers of a log, the one with the most severe problem first."""
    logs = PastedLogs(lambda: StartupParser(knowledge))
    try:
        if path == "-":
            size = _read(logs, sys.stdin.buffer)
        else:
            with open(path, "rb") as file:
                size = _read(logs, file)
    except OSError as error:
        raise _UnreadableError(f"{path} cannot be read: {error.strerror or error}") from error
    if not size:
        raise _UnreadableError(f"{'standard input' if path == '-' else path} is empty")
    return logs.end()


def _show_timeline(read: Mapping[str, list[tuple[str, StartupParser]]], form: str | None) -> int:
    starts = []
    for path, found in read.items():
        title = "standard input" if path == "-" else PurePath(path).stem
        start = start_of_log(title, found[0][1].final_state)
        if start is None:
            print(f"vllm-operator diagnose: {path} has no vLLM start with times", file=sys.stderr)
            return 2
        starts.append(start)
    print_starts(starts, "Starts of vLLM" if len(starts) > 1 else f"Start of vLLM: {starts[0].title}", form)
    return 0


def _read(logs: PastedLogs, file: BinaryIO) -> int:
    size = 0
    chunks: Iterable[bytes] = iter(lambda: file.read(_CHUNK), b"")
    for chunk in chunks:
        size += len(chunk)
        logs.feed(chunk)
    return size
