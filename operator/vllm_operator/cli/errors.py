"""The error of all commands, in a module that is quick to import."""

INPUT_ERROR_STATUS = 2
"""Exit status of a command whose input cannot be used."""


class InputError(Exception):
    """A command's input cannot be used: a file, an argument, or what the cluster answers. The message says what and where."""
