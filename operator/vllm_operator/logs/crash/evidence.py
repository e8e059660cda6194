"""Evidence for the cause of a crash, the choice of the root cause, and its description."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vllm_operator.catalog.signatures import Severity, Signature
from vllm_operator.catalog.templates import fill_in
from vllm_operator.logs.state import Crash
from vllm_operator.text.redaction import present

TERMINATED = "TerminatedDuringStartup"
_ENGINE_CORE = "EngineCoreInitFailed"
_RECORDS_AFTER = 12
"""An error that the engine survived by more records than these explains nothing."""
_KEPT = 16
LINE_LIMIT = 400
EXCERPT_LIMIT = 800
UNKNOWN = "Unknown"
"""Signature of a crash that matches no signature of the catalog."""
_UNKNOWN_CAUSE = "The engine failed with an error that matches no known signature"
_UNKNOWN_REMEDY = (
    "Read the lines around this one in the log. If it is a bug in vLLM, report it at https://github.com/vllm-project/vllm/issues."
)
_REFUSED_CAUSE = "vLLM refused its configuration with an error that matches no known signature"
REFUSED_REMEDY = "Correct the flag, environment variable or model file that the message names. Nothing was loaded yet."
_REFUSED = re.compile(
    r"(?m)^(?:ValueError: |[\w.]{1,81} - )?"
    r"(?:Value error, |Assertion failed, |Input should |Unexpected keyword |Field required|Extra inputs|Invalid value '.{0,120}' for VLLM_)"
    r'|File "[^"\n]{1,200}/vllm/(?:config/|engine/arg_utils|entrypoints/\S{0,40}cli_args)[^\n]{1,120}(?:\n {4}[^\n]{0,200}){0,3}\n\S'
)
"""A failure that the configuration caused: its message, or the last frame before it."""
PYDANTIC = re.compile(
    r" {2,4}(?:Value error|Assertion failed), "
    r"| {0,4}(?:Value error, |Assertion failed, |Input should|Unexpected keyword|Field required|Extra inputs)[^\n]{0,1000}\[type="
)
"""An error in the validation of the configuration. Requests are validated too, but do not end a process."""
FIELD = re.compile(r"[a-z_][\w.]{0,80}")
"""Name of a field of the configuration, on the line before its error."""
TITLE = re.compile(r"^Exception in worker \w{1,40} while processing method \w{1,60}(?:: |\.?$)")
"""Text before the message of an exception in the record that announces it."""
PANIC = re.compile(r"thread '[^'\n]{0,80}'(?: \(\d{1,9}\))? panicked at ")
"""A panic in Rust. Its message is on the next line, in older versions on the same line."""
QUOTING = re.compile(r"Worker failed with error '(?!'(?:,|$)|cancelled)|while processing method \w{1,60}: (?!,|Traceback)\S")
"""An error that reports a failure in another process and quotes its message."""
DEVICE = re.compile(r"\b(?:CUDA|HIP)(?: driver)? error\b")
"""An error that the GPU cannot be used, raised by its first user."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line that may explain the crash. `signature` is None for an exception that matches no signature.

    `weak`: explains the crash only if nothing else does. `warned`: a warning, which is no explanation alone. `provisional`: a source line
    of a traceback, whose exception says more. `records`: the number of records below ERROR before it. `overrules`: signatures whose
    crashes were ended from outside, according to this line.
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
        """The line of a signature with the highest quality is shown, the first of several."""
        return (bool(self.overrules), not (self.weak or self.warned), not self.provisional, len(self.captures))


def to_crash(evidence: Evidence, facts: Mapping[str, str]) -> Crash:
    """Describe evidence, fit for display. `facts`: values for the texts besides the captures."""
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
    """Return the best explanation, or None."""
    return min(evidence, key=lambda each: each.rank, default=None)


@dataclass(slots=True)
class Findings:
    """Evidence since the current stage began or the server became ready.

    `evidence`: by signature. The first exception that matches no signature is `unknown`, `echoed` if it only reports a failure elsewhere,
    or `quoted` if a record quotes its message. `beside`: an error of a program beside the engine. `survived` and `survived_unknown`:
    evidence of earlier stages. `failed`: a process has failed, at line `failed_at`, after `failed_records` records below ERROR.
    `records`: the number of records below ERROR so far.
    """

    evidence: dict[str, Evidence] = field(default_factory=dict)
    unknown: Evidence | None = None
    echoed: Evidence | None = None
    quoted: Evidence | None = None
    beside: Evidence | None = None
    survived: dict[str, Evidence] = field(default_factory=dict)
    survived_unknown: Evidence | None = None
    failed: bool = False
    failed_at: int = 0
    failed_records: int = 0
    records: int = 0

    def fresh(self) -> "Findings":
        """Return findings for the next stage."""
        return Findings(
            survived=self.evidence or self.survived, survived_unknown=self.unknown or self.survived_unknown, records=self.records
        )

    def fail(self, number: int) -> None:
        """Note that a process has failed, at this line."""
        self.failed, self.failed_at, self.failed_records = True, number, self.records

    def keep(self, is_kept: Callable[[Evidence], bool]) -> None:
        """Forget all other evidence."""
        self.evidence = {name: each for name, each in self.evidence.items() if is_kept(each)}

    def add(self, evidence: Evidence) -> None:
        """Add evidence with a signature. Only the best few signatures are kept."""
        assert evidence.signature is not None
        self.evidence[evidence.signature.id] = evidence
        if len(self.evidence) > _KEPT:
            worst = max(self.evidence.values(), key=lambda each: each.rank)
            del self.evidence[worst.signature.id if worst.signature else ""]

    def is_news(self, evidence: Evidence) -> bool:
        """Whether the evidence is better than that of the same signature so far."""
        assert evidence.signature is not None
        before = self.evidence.get(evidence.signature.id)
        return before is None or before.quality < evidence.quality

    def root(self) -> Evidence | None:
        """Return the error itself, if the log contains it."""
        known = best(each for each in self._explaining() if not (each.weak or each.warned))
        unknown = self.unknown
        counts = unknown is not None and self._counts(unknown) and not self._is_overruled(unknown)
        return known or (unknown if counts else None)

    def cause(self, titled: Evidence | None) -> Evidence | None:
        """Return the best explanation. `titled`: the record that announces an error which the log does not contain."""
        return (
            self.root()
            or best(each for each in self._explaining() if each.weak or (each.warned and self.failed))
            or self._ended_from_outside()
            or self._just_before()
            or titled
            or self.quoted
            or self._fallback()
        )

    def _explaining(self) -> Iterator[Evidence]:
        for each in self.evidence.values():
            fatal = each.signature is not None and each.signature.severity is Severity.FATAL and not each.signature.is_echo
            if fatal and self._counts(each) and not self._is_overruled(each):
                yield each

    def _counts(self, evidence: Evidence) -> bool:
        # Without a failure, an error that the engine survived by some records explains nothing.
        return self.failed or self.records - evidence.records <= _RECORDS_AFTER

    def _ended_from_outside(self) -> Evidence | None:
        """Return the line that says that the failed process was ended from outside."""
        return next((each for each in self.evidence.values() if each.overrules and self._counts(each)), None)

    def _is_overruled(self, evidence: Evidence) -> bool:
        line = self._ended_from_outside()
        if line is None or evidence is line:
            return False
        is_named = evidence.signature is not None and evidence.signature.id in line.overrules
        return evidence.weak or is_named or evidence.number > line.number

    def _just_before(self) -> Evidence | None:
        # Another process may log for a moment, so that the engine seems to have survived an error right before the failure.
        known = best(
            each
            for each in self.survived.values()
            if self._failed_soon_after(each)
            and each.signature is not None
            and each.signature.severity is Severity.FATAL
            and not (each.signature.is_echo or each.weak or each.warned)
        )
        unknown = self.survived_unknown
        return known or (unknown if unknown is not None and self.failed and self._failed_soon_after(unknown) else None)

    def _failed_soon_after(self, evidence: Evidence) -> bool:
        return (self.failed_records if self.failed else self.records) - evidence.records <= _RECORDS_AFTER

    def _fallback(self) -> Evidence | None:
        echo = best(each for each in self.evidence.values() if each.signature is not None and each.signature.is_echo)
        other = self.evidence.get(TERMINATED)
        if echo is not None and other is not None and self._is_of_a_stop(echo, other):
            return other
        return echo or other or (self.echoed if self.failed else self.beside)

    def _is_of_a_stop(self, echo: Evidence, stop: Evidence) -> bool:
        # If all processes are told to stop at once, a worker fails because another one has ended. If one had died by itself, the engine
        # core would have ended the others and logged it.
        by_worker = dict(echo.captures).get("begun") is not None and _ENGINE_CORE not in self.evidence
        return by_worker and stop.number < self.failed_at
