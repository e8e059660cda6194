"""`vllm-operator diagnose LOGFILE|-`: the stage of a start, why it crashed, what to do. Needs no cluster."""

import argparse
import json
import sys
from collections.abc import Iterable
from typing import BinaryIO

from vllm_operator.cli.diagnosis_page import as_json, page, page_of_several
from vllm_operator.cli.paste.log import PastedLogs
from vllm_operator.cli.user_signatures import USER_SIGNATURES_HELP, UserSignaturesError, known_crashes
from vllm_operator.startup.parser import StartupParser
from vllm_operator.startup.state import StartupState

CRASHED = 3
"""Exit status for a crash. 2 is for input that cannot be read, 1 for an error in the command itself."""
EXIT_CODE_HELP = f"exit with {CRASHED} if the log contains a crash. Without this flag, the exit status is 0 if the log could be read"
_CHUNK = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("log", metavar="LOGFILE", help="log of a vLLM start, from kubectl logs or any other source (- is standard input)")
    parser.add_argument("--signatures", metavar="FILE", action="append", default=[], help=USER_SIGNATURES_HELP)
    parser.add_argument("-o", "--output", choices=("json",), help="print a JSON object")
    parser.add_argument("--exit-code", action="store_true", help=EXIT_CODE_HELP)


def run(arguments: argparse.Namespace) -> int:
    """Print the diagnosis of a log. Return 0, 2 if it cannot be read, or 3 with `--exit-code` if it contains a crash."""
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
    if not size:
        print(
            f"vllm-operator diagnose: {'standard input' if arguments.log == '-' else arguments.log} is empty",
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
        sys.stderr.close()  # the reader closed the pipe; Python would report an error at exit
    return exit_code(parser.final_state) if arguments.exit_code else 0


def exit_code(state: StartupState) -> int:
    """Return the exit status for `--exit-code`: 3 if the engine failed, else 0."""
    return CRASHED if state.crash is not None or state.cut_off_at is not None else 0


def _read(logs: PastedLogs, file: BinaryIO) -> int:
    size = 0
    chunks: Iterable[bytes] = iter(lambda: file.read(_CHUNK), b"")
    for chunk in chunks:
        size += len(chunk)
        logs.feed(chunk)
    return size
