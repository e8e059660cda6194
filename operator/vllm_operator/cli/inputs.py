"""Input of commands, the options and the output that they share, and the error for invalid input. Quick to import."""

import json
import sys
from collections.abc import Iterable
from typing import Any

import yaml

INPUT_ERROR_STATUS = 2
STANDARD_INPUT = "-"
SIZE_LIMIT = 256 * 1024 * 1024
"""Maximum bytes of a file. The nodes of a very large cluster and the log of any start fit; an endless file does not."""


def print_as(content: Any, form: str) -> None:
    """Print a value as `json` or `yaml`."""
    if form == "json":
        print(json.dumps(content, indent=2))
    else:
        print(yaml.safe_dump(content, sort_keys=False, width=140, allow_unicode=True), end="")


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
