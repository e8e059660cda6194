"""What may explain a crash, and how it is put into words."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vllm_operator.catalog.signatures import Signature
from vllm_operator.catalog.templates import fill_in
from vllm_operator.startup.state import Crash
from vllm_operator.text.redaction import present

LINE_LIMIT = 400
EXCERPT_LIMIT = 800
UNKNOWN = "Unknown"
"""The signature of a crash that no signature matches."""
_UNKNOWN_CAUSE = "The engine failed with an error that is not known by name"
_UNKNOWN_REMEDY = (
    "Look at the lines around this one in the log. If vLLM itself is at fault, report it at https://github.com/vllm-project/vllm/issues."
)
_REFUSED_CAUSE = "vLLM refused its configuration with an error that is not known by name"
REFUSED_REMEDY = (
    "Correct the argument, the environment variable or the file of the model that the message is about: nothing was loaded yet."
)
_REFUSED = re.compile(
    r"(?m)^(?:ValueError: |[\w.]{1,81} - )?"
    r"(?:Value error, |Assertion failed, |Input should |Unexpected keyword |Field required|Extra inputs|Invalid value '.{0,120}' for VLLM_)"
    r'|File "[^"\n]{1,200}/vllm/(?:config/|engine/arg_utils|entrypoints/\S{0,40}cli_args)[^\n]{1,120}(?:\n {4}[^\n]{0,200}){0,3}\n\S'
)
"""The message of a failure that the user's configuration caused, or the last frame before it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line that may explain the crash. `signature` is None for an exception that no signature matches.

    `weak`: explains only what nothing else does; `warned`: a log record of a warning, which alone says nothing;
    `provisional`: a source line of a traceback, whose exception tells more. `records` is how many records that are
    no errors came before it. `overrules`: it says that what these signatures report was ended from outside.
    """

    signature: Signature | None
    text: str
    number: int
    frames: tuple[str, ...] = ()
    captures: tuple[tuple[str, str], ...] = ()
    weak: bool = False
    warned: bool = False
    provisional: bool = False
    records: int = 0
    overrules: tuple[str, ...] = ()

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Sorts the best explanation first."""
        signature = self.signature
        return (signature is not None and signature.follows_others, -signature.priority if signature else 0, self.number)

    @property
    def quality(self) -> tuple[bool, bool, bool, int]:
        """Of two lines of one signature the better one is shown, the first if they are equal."""
        return (bool(self.overrules), not (self.weak or self.warned), not self.provisional, len(self.captures))


def to_crash(evidence: Evidence, facts: Mapping[str, str]) -> Crash:
    """Put evidence into words, fit to be shown. `facts`: what texts may use besides what was captured."""
    signature = evidence.signature
    line = present(evidence.text.strip(), LINE_LIMIT)
    excerpt = "\n".join((*(present(frame, LINE_LIMIT // 2) for frame in evidence.frames), line))[-EXCERPT_LIMIT:]
    if signature is None:
        refused = _REFUSED.search(excerpt) is not None
        return Crash(
            signature=UNKNOWN,
            cause=f"{_REFUSED_CAUSE if refused else _UNKNOWN_CAUSE}: {line}",
            remedy=REFUSED_REMEDY if refused else _UNKNOWN_REMEDY,
            reference=None,
            line=line,
            line_number=evidence.number,
            excerpt=excerpt,
        )
    captures = tuple((name, present(value, LINE_LIMIT)) for name, value in evidence.captures)
    known = (*facts.items(), *captures)
    return Crash(
        signature=signature.id,
        cause=fill_in(signature.cause, known),
        remedy=fill_in(signature.remedy, known),
        reference=signature.reference,
        line=line,
        line_number=evidence.number,
        excerpt=excerpt,
        captures=captures,
        retryable=signature.retryable,
        auto_safe=signature.auto_safe,
    )


def best(evidence: Iterable[Evidence]) -> Evidence | None:
    """The best explanation."""
    return min(evidence, key=lambda each: each.rank, default=None)


PYDANTIC = re.compile(
    r" {2,4}(?:Value error|Assertion failed), "
    r"| {0,4}(?:Value error, |Assertion failed, |Input should|Unexpected keyword|Field required|Extra inputs)[^\n]{0,1000}\[type="
)
"""What a validation of the configuration says was wrong. Requests are validated too, but that is no end of a process."""
FIELD = re.compile(r"[a-z_][\w.]{0,80}")
"""The name of a field of the configuration, which stands on the line before what is wrong with it."""
TITLE = re.compile(r"^Exception in worker \w{1,40} while processing method \w{1,60}(?:: |\.?$)")
"""What stands before the message of an exception in the record that announces it."""
PANIC = re.compile(r"thread '[^'\n]{0,80}'(?: \(\d{1,9}\))? panicked at ")
"""How Rust reports what Python calls an exception. The message is in the next line, in older versions in the same."""
QUOTING = re.compile(r"Worker failed with error '(?!'(?:,|$)|cancelled)|while processing method \w{1,60}: (?!,|Traceback)\S")
"""An error that reports what failed elsewhere, and repeats its message."""
DEVICE = re.compile(r"\b(?:CUDA|HIP)(?: driver)? error\b")
"""What says that the GPU cannot be used, to whatever needed it first."""
