"""Input of commands, and the error for input that cannot be used. Quick to import."""

import sys

INPUT_ERROR_STATUS = 2
"""Exit status of a command whose input cannot be used."""
STANDARD_INPUT = "-"
SIZE_LIMIT = 256 * 1024 * 1024
"""Bytes of a file. The nodes of a very large cluster and the log of any start fit; an endless file does not."""


class InputError(Exception):
    """A command's input cannot be used: a file, an argument, or what the cluster answers. The message says what and where."""


def name_of_file(path: str) -> str:
    """Return the name of a file for a message; `-` is standard input."""
    return "standard input" if path == STANDARD_INPUT else path


def read_input(path: str) -> bytes:
    """Read a file; `-` is standard input.

    Raises:
        InputError: The file cannot be read, or is too large.
    """
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
