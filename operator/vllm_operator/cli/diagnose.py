"""`vllm-operator diagnose LOGFILE|-`: how far a start came, why it crashed, what to do. Needs no cluster."""

import argparse
import json
import sys
from collections.abc import Iterable
from typing import Any, BinaryIO

from vllm_operator.cli.diagnosis_page import page, page_of_several
from vllm_operator.cli.paste.log import PastedLogs
from vllm_operator.cli.user_signatures import USER_SIGNATURES_HELP, UserSignaturesError, known_crashes
from vllm_operator.startup.parser import StartupParser
from vllm_operator.startup.state import StartupState

CRASHED = 3
"""The exit status of a crash. 2 is that of input that cannot be read, and 1 that of an error in the command itself."""
EXIT_CODE_HELP = f"exit with {CRASHED} if the log shows a crash; without this flag a log that could be read ends with 0, whatever it shows"
_CHUNK = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "log", metavar="LOGFILE", help="the log of one vLLM start, from kubectl logs or anywhere else; - reads standard input"
    )
    parser.add_argument("--signatures", metavar="FILE", action="append", default=[], help=USER_SIGNATURES_HELP)
    parser.add_argument("-o", "--output", choices=("json",), help="print one JSON object instead of a page for people")
    parser.add_argument("--exit-code", action="store_true", help=EXIT_CODE_HELP)


def run(arguments: argparse.Namespace) -> int:
    """Read the log and print what it tells; 0 if it could be read, 2 if not, 3 if a crash is to be told by it and the log shows one."""
    try:
        knowledge = known_crashes(arguments.signatures)
    except UserSignaturesError as error:
        print(f"vllm-operator diagnose: {error}", file=sys.stderr)
        return 2
    logs = PastedLogs(lambda: StartupParser(knowledge))
    try:
        if arguments.log == "-":
            size = _read(logs, sys.stdin.buffer)
        else:
            with open(arguments.log, "rb") as file:
                size = _read(logs, file)
    except OSError as error:
        print(f"vllm-operator diagnose: {arguments.log} cannot be read: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if not size:
        print(
            f"vllm-operator diagnose: {'standard input' if arguments.log == '-' else arguments.log} is empty: there is no log to read",
            file=sys.stderr,
        )
        return 2
    found = logs.end()
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
        sys.stderr.close()  # whoever read it has seen enough; Python would complain at exit
    return exit_code(parser.final_state) if arguments.exit_code else 0


def exit_code(state: StartupState) -> int:
    """What `--exit-code` ends with: 3 if the log shows that the engine failed, 0 if not."""
    return CRASHED if state.crash is not None or state.cut_off_at is not None else 0


def as_json(state: StartupState) -> dict[str, Any]:
    """What `-o json` prints."""
    progress, crash = state.progress, state.crash
    return {
        "engineVersion": state.engine_version,
        "stage": state.stage.value,
        "progress": None if progress is None else {"completed": progress.completed, "total": progress.total},
        "crash": None
        if crash is None
        else {"signature": crash.signature, "cause": crash.cause, "remedy": crash.remedy, "reference": crash.reference, "line": crash.line},
        "cutOffAtLine": state.cut_off_at,
    }


def _read(logs: PastedLogs, file: BinaryIO) -> int:
    size = 0
    chunks: Iterable[bytes] = iter(lambda: file.read(_CHUNK), b"")
    for chunk in chunks:
        size += len(chunk)
        logs.feed(chunk)
    return size
