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
from vllm_operator.cli.inputs import INPUT_ERROR_STATUS, InputError

COMMANDS = {
    "run": ("controller.app", "add_arguments", "run the operator"),
    "plan": ("cli.plan", "add_arguments", "show the plan for a VLLMDeployment, with reasons"),
    "status": ("cli.status", "add_status_arguments", "show a VLLMDeployment on one screen: state, GPU, start, caches, crash, events"),
    "top": ("cli.status", "add_top_arguments", "show all VLLMDeployments, with the progress of their starts"),
    "gpus": ("cli.gpus", "add_arguments", "list the GPUs and MIG slices of the cluster: how many are free, and who uses the others"),
    "caches": ("cli.status", "add_caches_arguments", "list the caches: where they are, what they save, what was fetched and published"),
    "history": ("cli.revisions", "add_history_arguments", "list the plans of a VLLMDeployment, and why each was made"),
    "rollback": ("cli.revisions", "add_rollback_arguments", "go back to an earlier plan of a VLLMDeployment"),
    "replan": ("cli.requests", "add_replan_arguments", "request new plans, in waves if wanted, or list those that would differ"),
    "create": ("cli.create", "add_create_arguments", "create a VLLMDeployment of a model, or print it"),
    "check": ("cli.check", "add_arguments", "check whether the cluster is ready: CRDs, operator, storage, GPU nodes, integrations"),
    "prime": (
        "cli.requests",
        "add_prime_arguments",
        "fill the caches of a VLLMDeployment before it gets traffic, and wait until they are filled",
    ),
    "import": ("cli.create", "add_import_arguments", "write how another tool deploys vLLM as a VLLMDeployment"),
    "catalog": ("cli.catalog", "add_arguments", "list the vLLM versions, GPUs, models, rules and crashes in the catalog"),
    "fit": ("cli.fit", "add_arguments", "estimate the GPU memory of a model: on which GPUs it fits, on how many, with how long a context"),
    "diagnose": ("cli.diagnose", "add_arguments", "read the log of a vLLM start: its progress, the cause of a crash, the remedy"),
    "diagnose-pod": ("cli.diagnose_pod", "add_arguments", "diagnose a Pod of the cluster by its log and status"),
}
"""For each command its module, the function that declares its arguments and the default `run`, and a summary."""

PLUGIN_COMMANDS = {
    "diagnose": COMMANDS["diagnose-pod"],
    **{name: command for name, command in COMMANDS.items() if name not in ("run", "diagnose", "diagnose-pod")},
}
"""The commands of `kubectl vllm`. Its `diagnose` takes a Pod instead of a file."""

INTERRUPTED_STATUS, PIPE_CLOSED_STATUS = 130, 141
"""Exit status of a process that SIGINT or SIGPIPE ended."""


def add_arguments(parser: argparse.ArgumentParser, module: str, function: str) -> None:
    """Declare the arguments of a command of `COMMANDS`."""
    getattr(importlib.import_module(f"vllm_operator.{module}"), function)(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    return _run(argv, "vllm-operator", COMMANDS)


def kubectl_plugin(argv: Sequence[str] | None = None) -> int:
    """Run one command as `kubectl vllm COMMAND`; return its exit status."""
    return _run(argv, "kubectl vllm", PLUGIN_COMMANDS)


def _run(argv: Sequence[str] | None, program: str, known: Mapping[str, tuple[str, str, str]]) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog=program, description="Run vLLM on Kubernetes with the right kernels and warm caches.")
    parser.add_argument("--version", action="version", version=f"vllm-operator {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, (module, declare, summary) in known.items():
        subparser = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            add_arguments(subparser, module, declare)
    parsed = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not have all characters of a log or file
    try:
        status: int = parsed.run(parsed)
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
