"""The command line: `vllm-operator run` in the cluster, `prime` on one that can be reached, `plan`, `catalog` and `diagnose` anywhere.

Each command is a module of `vllm_operator.cli` (or `app` for `run`) that is imported only when it is used:
`diagnose` must not pay for the Kubernetes client.
"""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from vllm_operator import __version__


class Command(Protocol):
    """What a command's module provides."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; return the exit status."""


COMMANDS = {
    "run": ("vllm_operator.app", "run the operator"),
    "plan": ("vllm_operator.cli.plan", "show what would be planned for a VLLMDeployment, and why"),
    "history": ("vllm_operator.cli.history", "list the plans of a VLLMDeployment, and what changed between them"),
    "prime": ("vllm_operator.cli.prime", "fill the caches of a VLLMDeployment ahead of traffic, and wait until they are filled"),
    "catalog": ("vllm_operator.cli.catalog", "list what is known of vLLM versions, GPUs, models and rules"),
    "diagnose": ("vllm_operator.cli.diagnose", "read the log of a vLLM start: how far it came, why it crashed, what to do"),
    "diagnose-pod": ("vllm_operator.cli.diagnose_pod", "the same for a Pod of the cluster: read its log and its status"),
    "signatures": ("vllm_operator.cli.signatures", "list the crashes that are known by name, or show one"),
}

PLUGIN_COMMANDS = {
    "diagnose": COMMANDS["diagnose-pod"],
    **{name: COMMANDS[name] for name in ("plan", "history", "signatures", "catalog")},
}
"""What `kubectl vllm` knows, which is about things in a cluster: there `diagnose` names a Pod."""

PIPE_CLOSED_STATUS = 141
"""As of a process that SIGPIPE has ended."""


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
    assert command is not None  # argparse has refused anything else
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not know all characters of a log or of a file
    try:
        status = command.run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (`... | head`). What is left goes nowhere, without another error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = PIPE_CLOSED_STATUS
    return status


if __name__ == "__main__":
    sys.exit(main())
