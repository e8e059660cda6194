"""The operator's own log: one line for each record, whatever its text contains."""

import json
import logging

import pytest

from vllm_operator.catalog.user_entries import collect
from vllm_operator.controller.log_output import JsonFormatter, TextFormatter


@pytest.mark.parametrize(
    "text", ["a\n2026-01-01T00:00:00.000Z ERROR forged", "a\rb", "\x1b[2J\x1b[31mred", "a\u2028b\x85c", "\ud800", "\u202eolleh"]
)
def test_text_from_outside_stays_within_its_line(text: str) -> None:
    record = logging.LogRecord("a", logging.WARNING, "f.py", 1, "signature %s: it is refused", (text,), None)
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record)
        assert len(line.splitlines()) == 1
        assert "\x1b" not in line
        assert "\u202e" not in line
        line.encode("utf-8")
    assert json.loads(JsonFormatter().format(record))["message"].endswith(": it is refused")


def test_a_traceback_has_lines_of_its_own() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        record = logging.LogRecord("a", logging.ERROR, "f.py", 1, "it failed: größer ✓", (), (type(error), error, error.__traceback__))
    line, *traceback = TextFormatter().format(record).splitlines()
    assert line.endswith("it failed: größer ✓")
    assert traceback[0].startswith("Traceback")


def test_the_name_of_an_entry_cannot_break_a_message() -> None:
    texts = {"a.yaml": '[{id: "Fine\\nWarning Forged: you must act \\u202e"}]'}

    def refuse(document: object, before: object) -> None:
        raise AssertionError

    [problem] = collect(texts, "signature", refuse, taken=(), count_expressions=lambda _: 0).problems  # type: ignore[type-var]  # never read
    assert problem.isprintable()
