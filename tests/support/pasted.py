"""Logs read by the parser alone, as the operator does, or after what undoes pasting, as `vllm-operator diagnose` does."""

from vllm_operator.catalog.startup import load_startup
from vllm_operator.cli.pasted_logs import read_logs
from vllm_operator.logs.parser import StartupParser

KNOWLEDGE = load_startup()


def read_pasted(*chunks: bytes | str) -> StartupParser:
    """The log of the only container in a text, as the command line reads it."""
    text = b"".join(chunk.encode("utf-8", "replace") if isinstance(chunk, str) else chunk for chunk in chunks)
    ((_, parser),) = read_logs(text, lambda: StartupParser(KNOWLEDGE))
    return parser


def read_delivered(*chunks: bytes | str) -> StartupParser:
    """A log as the operator reads it."""
    parser = StartupParser(KNOWLEDGE)
    for chunk in chunks:
        parser.feed(chunk)
    parser.end()
    return parser


def read_either_way(*chunks: bytes | str) -> StartupParser:
    """What a container wrote, which says the same to both."""
    parser = read_delivered(*chunks)
    assert read_pasted(*chunks).final_state == parser.final_state
    return parser
