"""How errors look in logs, beside the signatures and the kinds of failures: the content of `errors.yaml`, which explains the fields."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated

from pydantic import BeforeValidator

from vllm_operator.catalog.entry import Entry, loader
from vllm_operator.catalog.templates import join

Alternatives = Annotated[re.Pattern[str], BeforeValidator(lambda written: "|".join(written))]
"""A regular expression, written as a list of its alternatives."""
Texts = tuple[str, ...]


class TracebackForms(Entry):
    """What belongs to a traceback, and what says where it comes from."""

    exception: Alternatives
    process_frame: Alternatives
    engine_frame: Alternatives
    of_cell: Texts
    harmless: Texts
    logging: Texts
    logged: Texts
    answering: Texts
    answers: Alternatives
    clients: Texts
    libraries: Texts
    middleware: Texts
    request_header: Alternatives

    @cached_property
    def marks(self) -> Texts:
        """Beginnings of lines that announce a traceback, or follow one."""
        return (*self.harmless, *self.logging, *self.logged)

    @cached_property
    def of_requests(self) -> Texts:
        """Parts of frames of a request that is sent or answered."""
        return (*self.answering, *self.clients, *self.libraries)

    @cached_property
    def bystanders(self) -> Texts:
        """If the lines contain none of these, an exception is neither of a request nor of another program."""
        return (ASIDE, *self.of_requests, "/serving", "_serving", "api_router.py", *self.middleware)


ASIDE = "collect_env.py"
"""A program whose output people paste beside the log. Its errors are not vLLM's."""


class ErrorForms(Entry):
    """What the messages of errors, and lines beside them, say."""

    tracebacks: TracebackForms
    refused: Alternatives
    validation: Alternatives
    title: Alternatives
    panic: Alternatives
    unfinished: Alternatives
    quoting: Alternatives
    advice: Alternatives
    condition: Alternatives
    lacking: Alternatives
    defect: Alternatives
    setting: Alternatives
    optional: Alternatives
    features: Mapping[str, re.Pattern[str]]
    switches: Mapping[str, re.Pattern[str]]
    not_quoted: Alternatives
    usual: Alternatives
    sizes: Mapping[str, str]
    native: Alternatives
    device: Alternatives
    frame: Alternatives
    foreign_file: Alternatives
    unfolds: Alternatives
    between: Alternatives
    elsewhere: Texts
    header: Alternatives
    shown: Alternatives
    wrapping: Alternatives
    trace_output: Alternatives
    source_line: Alternatives
    texts: Mapping[str, str]
    lead: Annotated[str, BeforeValidator(join)]


load_error_forms = loader(ErrorForms, "errors.yaml")
"""Reads the forms that ship with the operator."""
