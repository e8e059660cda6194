"""The command line. `run` is the operator, `prime` and `diagnose-pod` need a cluster, and the other commands run anywhere.

Each command is a module of `vllm_operator.cli` (`app` for `run`). It is imported only when it is used, because the Kubernetes client takes
longer to import than `diagnose` needs.
"""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from vllm_operator import __version__
from vllm_operator.cli.inputs import INPUT_ERROR_STATUS, InputError


class Command(Protocol):
    """What a command's module provides."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return the exit status."""


COMMANDS = {
    "run": ("vllm_operator.controller.app", "run the operator"),
    "plan": ("vllm_operator.cli.plan", "show the plan for a VLLMDeployment, with reasons"),
    "status": ("vllm_operator.cli.status", "show a VLLMDeployment on one screen: state, GPU, start, caches, crash, events"),
    "top": ("vllm_operator.cli.top", "show all VLLMDeployments, with the progress of their starts"),
    "gpus": ("vllm_operator.cli.gpus", "list the GPUs and MIG slices of the cluster: how many are free, and who uses the others"),
    "caches": ("vllm_operator.cli.caches", "list the caches: where they are, what they save, what was fetched and published"),
    "prime": ("vllm_operator.cli.prime", "fill the caches of a VLLMDeployment before it gets traffic, and wait until they are filled"),
    "import": ("vllm_operator.cli.importing", "write how another tool deploys vLLM as a VLLMDeployment"),
    "catalog": ("vllm_operator.cli.catalog", "list the vLLM versions, GPUs, models and rules in the catalog"),
    "fit": ("vllm_operator.cli.fit", "estimate the GPU memory of a model: on which GPUs it fits, on how many, with how long a context"),
    "diagnose": ("vllm_operator.cli.diagnose", "read the log of a vLLM start: its progress, the cause of a crash, the remedy"),
    "diagnose-pod": ("vllm_operator.cli.diagnose_pod", "diagnose a Pod of the cluster by its log and status"),
    "signatures": ("vllm_operator.cli.signatures", "list the known crashes, or show one"),
}

PLUGIN_COMMANDS = {
    "diagnose": COMMANDS["diagnose-pod"],
    **{name: COMMANDS[name] for name in ("status", "top", "gpus", "plan", "prime", "caches")},
    **{name: COMMANDS[name] for name in ("import", "fit", "signatures", "catalog")},
}
"""The commands of `kubectl vllm`. Its `diagnose` takes a Pod instead of a file."""

INTERRUPTED_STATUS, PIPE_CLOSED_STATUS = 130, 141
"""Exit status of a process that SIGINT or SIGPIPE ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    return _run(argv, "vllm-operator", COMMANDS)


def kubectl_plugin(argv: Sequence[str] | None = None) -> int:
    """Run one command as `kubectl vllm COMMAND`; return its exit status."""
    return _run(argv, "kubectl vllm", PLUGIN_COMMANDS)


def _run(argv: Sequence[str] | None, program: str, known: Mapping[str, tuple[str, str]]) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog=program, description="Run vLLM on Kubernetes with the right kernels and warm caches.")
    parser.add_argument("--version", action="version", version=f"vllm-operator {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    command: Command | None = None
    for name, (module, summary) in known.items():
        subparser = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            command = cast(Command, importlib.import_module(module))
            command.add_arguments(subparser)
    parsed = parser.parse_args(arguments)
    assert command is not None  # argparse refuses anything else
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not have all characters of a log or file
    try:
        status = command.run(parsed)
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
