"""Input of commands, the options and the output that they share, and the error for invalid input. Quick to import."""

import argparse
import json
import sys
from collections.abc import Iterable
from typing import Any

import yaml

from vllm_operator.api.labels import SHORT_NAME

INPUT_ERROR_STATUS = 2
STANDARD_INPUT = "-"
SIZE_LIMIT = 256 * 1024 * 1024
"""Maximum bytes of a file. The nodes of a very large cluster and the log of any start fit; an endless file does not."""


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add kubectl's options for the cluster."""
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig (default: that of the variable KUBECONFIG, else ~/.kube/config)")


def add_namespace(parser: argparse.ArgumentParser, *, lists: bool = False) -> None:
    """Add kubectl's options for the cluster and the namespace, with `lists` also for all namespaces."""
    add_connection(parser)
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("-n", "--namespace", metavar="NAMESPACE", help="namespace (default: that of the context)")
    if lists:
        scope.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces")


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add the name of a VLLMDeployment, with the options for its namespace and the cluster."""
    parser.add_argument("name", metavar="NAME", type=object_name, help="name of the VLLMDeployment")
    add_namespace(parser)


def add_output(parser: argparse.ArgumentParser, *more: str) -> None:
    """Add the option for output that programs read, and `more` formats."""
    parser.add_argument("-o", "--output", choices=("json", "yaml", *more), help="print in this format")


def print_as(content: Any, form: str) -> None:
    """Print a value as `json` or `yaml`."""
    if form == "json":
        print(json.dumps(content, indent=2))
    else:
        print(yaml.safe_dump(content, sort_keys=False, width=140, allow_unicode=True), end="")


def object_name(given: str) -> str:
    """Return the name of a VLLMDeployment from NAME or, as in output of kubectl, vllm/NAME: a type of argparse."""
    return given.removeprefix(f"{SHORT_NAME}/")


class InputError(Exception):
    """Invalid input of a command: a file, an argument, or an answer of the cluster. The message names the input and the problem."""


def name_of_file(path: str) -> str:
    """Return the name of a file for a message; `-` is standard input."""
    return "standard input" if path == STANDARD_INPUT else path


def read_input(path: str) -> bytes:
    """Read a file; `-` is standard input. Raises InputError if the file cannot be read, or is too large."""
    try:
        if path == STANDARD_INPUT:
            data = sys.stdin.buffer.read(SIZE_LIMIT + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise InputError(f"{name_of_file(path)} cannot be read: {error.strerror or error}") from error
    if len(data) > SIZE_LIMIT:
        raise InputError(f"{name_of_file(path)} is larger than {SIZE_LIMIT // (1024 * 1024)} MiB")
    return data


def read_text(path: str) -> str:
    """Read a file as `read_input`. Raises InputError, too, if it is not UTF-8."""
    try:
        return read_input(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name_of_file(path)} is not a text file (byte {error.start} is not UTF-8)") from error


def invalid(claim: str, problems: Iterable[object]) -> InputError:
    """Return the error for an object that is invalid, with one line for each problem."""
    return InputError("\n".join((f"{claim} invalid:", *(f"  {problem}" for problem in problems))))
