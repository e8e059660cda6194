"""The command line. `run` is the operator, `prime` and `diagnose-pod` need a cluster, and the other commands run anywhere.

The module of a command is imported only when it is used, because the Kubernetes client takes longer to import than `diagnose` needs.
"""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence

from vllm_operator import __version__
from vllm_operator.cli.commands import Command, add_arguments, read_commands
from vllm_operator.cli.inputs import INPUT_ERROR_STATUS, InputError

INTERRUPTED_STATUS, PIPE_CLOSED_STATUS = 130, 141
"""Exit status of a process that SIGINT or SIGPIPE ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    return _run(argv, "vllm-operator", read_commands())


def kubectl_plugin(argv: Sequence[str] | None = None) -> int:
    """Run one command as `kubectl vllm COMMAND`; return its exit status."""
    return _run(argv, "kubectl vllm", read_commands(plugin=True))


def _run(argv: Sequence[str] | None, program: str, known: Mapping[str, Command]) -> int:
    parser = argparse.ArgumentParser(prog=program, description="Run vLLM on Kubernetes with the right kernels and warm caches.")
    parser.add_argument("--version", action="version", version=f"vllm-operator {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in known.items():
        add_arguments(commands.add_parser(name, help=command["summary"], description=command["summary"]), command)
    parsed = parser.parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not have all characters of a log or file
    try:
        module, _, function = known[parsed.command]["runs"].partition(":")
        status: int = getattr(importlib.import_module(f"vllm_operator.{module}"), function)(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does. Discard the rest, without another error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = PIPE_CLOSED_STATUS
    except InputError as error:
        sys.stderr.write(f"Error: {error}\n")
        status = INPUT_ERROR_STATUS
    except KeyboardInterrupt:
        status = INTERRUPTED_STATUS
    return status


if __name__ == "__main__":
    sys.exit(main())
