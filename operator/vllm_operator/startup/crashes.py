"""Finding the root cause among everything that a failing engine writes.

A failing engine reports one error many times: the worker that hit it, its parent, the API server that waited, each
with a traceback. And good engines write errors that they survive. So lines are only collected as evidence, and a
crash is declared when the log shows that a process has failed: a text that says so, or an uncaught exception.

Of the evidence the most specific signature wins, the first line among equals; a signature that only echoes wins
over nothing but silence; a log record of a warning counts only where no error explains the crash. If the start
goes on to a later stage before a failure was seen, or becomes ready, what was collected was survived and is
forgotten. Once ready, only the death of the engine is a crash, and not if it was told to stop.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vllm_operator.catalog.signatures import Severity, Signature
from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.startup.framing import ERROR, WARNING
from vllm_operator.startup.matching import SignatureIndex
from vllm_operator.startup.redaction import present
from vllm_operator.startup.state import Crash
from vllm_operator.startup.tracebacks import Part, Traceback, Tracebacks
from vllm_operator.startup.wording import render

LINE_LIMIT = 400
EXCERPT_LIMIT = 800
EXCERPT_FRAMES = 6
UNKNOWN = "Unknown"
"""The signature of a crash that no signature matches."""
_TERMINATED = "TerminatedDuringStartup"
_EVIDENCE_KEPT = 16
_SERVING_WINDOW = 2000
_SHUTDOWN_WINDOW = 80
_PYDANTIC = re.compile(r"  (?:Value error|Assertion failed), ")
_BULK = ("NCCL INFO", "UCX  DEBUG", "DEBUG:")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line that may explain the crash. `signature` is None for an exception that no signature matches.

    `provisional`: a source line of a traceback, whose exception tells more.
    """

    signature: Signature | None
    line: str
    number: int
    excerpt: str
    captures: tuple[tuple[str, str], ...] = ()
    weak: bool = False
    provisional: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts the best explanation first."""
        return (-self.signature.priority if self.signature else 0, self.number)

    @property
    def quality(self) -> tuple[bool, bool, int]:
        """Of two lines of one signature the better one is shown, the first if they are equal."""
        return (not self.weak, not self.provisional, len(self.captures))


class CrashTracker:
    """Collects evidence and decides which crash it is, if it is one."""

    def __init__(self, knowledge: StartupKnowledge, index: SignatureIndex) -> None:
        """Begin with no evidence."""
        stages = knowledge.stages
        self._index = index
        self._failures = {failure.text: failure for failure in stages.failures}
        self._failure = re.compile("|".join(re.escape(text) for text in self._failures)) if self._failures else None
        self._echo = re.compile("|".join(re.escape(text) for text in stages.echoes)) if stages.echoes else None
        self._tracebacks = Tracebacks()
        self.notices: dict[str, Evidence] = {}
        self._ready = False
        self._stopping = False
        self._reset()

    def _reset(self) -> None:
        self._evidence: dict[str, Evidence] = {}
        self._unknown: Evidence | None = None
        self._echoed: Evidence | None = None
        self._failed = False
        self._only_death = False
        self._failed_at = 0

    @property
    def failed(self) -> bool:
        """Whether the log shows that a process has failed."""
        return self._failed

    def advanced(self, *, ready: bool) -> None:
        """The start has reached a later stage: errors before it were survived, unless a process has failed."""
        if ready:
            self._ready = True
            self._reset()
            self._tracebacks.forget()
        elif not self._failed:
            self._reset()

    def stopping(self, number: int) -> None:
        """The engine was told to stop. What it wrote on its way out is no crash, unless it gave a reason before."""
        if not self._ready:
            return
        orderly = self._only_death and number - self._failed_at <= _SHUTDOWN_WINDOW and not self._root()
        if orderly or not self._failed:
            self._stopping = True
            self._reset()

    def record(self, level: int, text: str, number: int) -> None:
        """A log record that is no error."""
        for match in self._index.find(text):
            if match.signature.severity is not Severity.FATAL:
                self.notices.setdefault(match.signature.id, self._seen(match.signature, text, number, None, match.captures))
            elif level == WARNING and not self._stopping:
                self._collect(self._seen(match.signature, text, number, None, match.captures, weak=True))

    def error(self, process: str, level: int | None, text: str, number: int) -> None:
        """A line of an error record, or raw output."""
        part = self._tracebacks.take(process, text, raw=level is None)
        if part is Part.FRAME or part is Part.START or self._stopping:
            return
        if part is Part.CODE and not text.lstrip().startswith(("raise ", "assert ")):
            return
        traceback = self._tracebacks.of(process)
        if traceback is not None and traceback.harmless and part is not Part.OTHER:
            return
        if level is None and any(word in text for word in _BULK):
            return
        self._look_for_failure(text, number)
        matched = self._match(text, number, traceback, part)
        if part is Part.EXCEPTION or (level == ERROR and part is Part.OTHER and _PYDANTIC.match(text)) or _PYDANTIC.match(text):
            self._exception(text, number, traceback, known=matched)

    def _look_for_failure(self, text: str, number: int) -> None:
        found = self._failure.search(text) if self._failure else None
        if found is not None:
            failure = self._failures[found[0]]
            if failure.serving or not self._ready:
                self._fail(number, death=failure.death)

    def _fail(self, number: int, *, death: bool = False) -> None:
        if not self._failed:
            self._failed, self._failed_at, self._only_death = True, number, death
            if self._ready:
                self._evidence = {name: each for name, each in self._evidence.items() if number - each.number < _SERVING_WINDOW}
        elif not death:
            self._only_death = False

    def _match(self, text: str, number: int, traceback: Traceback | None, part: Part) -> bool:
        frames = traceback.frames if traceback is not None else ()
        known = False
        for match in self._index.find(text, (*frames, text)):
            evidence = self._seen(match.signature, text, number, traceback, match.captures, weak=match.weak, provisional=part is Part.CODE)
            if match.signature.severity is Severity.FATAL:
                self._collect(evidence)
                known = known or not match.signature.is_echo
            elif match.signature.id == _TERMINATED:
                self._collect(evidence)
            else:
                self.notices.setdefault(match.signature.id, evidence)
        return known and part is not Part.CODE

    def _exception(self, text: str, number: int, traceback: Traceback | None, *, known: bool) -> None:
        if text.startswith("KeyboardInterrupt"):
            if self._ready:
                self.stopping(number)
            return
        if text.startswith(("SystemExit", "asyncio.exceptions.CancelledError")):
            return
        if not known:
            evidence = self._seen(None, text, number, traceback, ())
            if self._echo is not None and self._echo.search(text):
                self._echoed = self._echoed or evidence
            else:
                self._unknown = self._unknown or evidence
        if traceback is not None and traceback.uncaught and not self._ready:
            self._fail(number)

    def _collect(self, evidence: Evidence) -> None:
        assert evidence.signature is not None
        before = self._evidence.get(evidence.signature.id)
        if before is not None and before.quality >= evidence.quality:
            return
        self._evidence[evidence.signature.id] = evidence
        if len(self._evidence) > _EVIDENCE_KEPT:
            worst = max(self._evidence.values(), key=lambda each: each.rank)
            del self._evidence[worst.signature.id if worst.signature else ""]

    def crash(self, *, ended: bool) -> Crash | None:
        """The crash, if the log shows one. `ended`: the process is known to have ended where the log ends."""
        if not self._failed and (self._ready or not ended or self._stopping):
            return None
        chosen = self._root() or self._weak() or self._fallback()
        return to_crash(chosen) if chosen is not None else None

    def presented_notices(self) -> tuple[Crash, ...]:
        """What is worth knowing and no crash, in the order in which it was seen."""
        return tuple(to_crash(each) for each in self.notices.values())

    def _root(self) -> Evidence | None:
        return _best(each for each in self._evidence.values() if not each.weak and _explains(each)) or self._unknown

    def _weak(self) -> Evidence | None:
        return _best(each for each in self._evidence.values() if each.weak and _explains(each))

    def _fallback(self) -> Evidence | None:
        echo = _best(each for each in self._evidence.values() if each.signature is not None and each.signature.is_echo)
        other = _best(each for each in self._evidence.values() if each.signature is not None and each.signature.id == _TERMINATED)
        return echo or other or (self._echoed if self._failed else None)

    def _seen(
        self,
        signature: Signature | None,
        text: str,
        number: int,
        traceback: Traceback | None,
        captures: tuple[tuple[str, str], ...],
        *,
        weak: bool = False,
        provisional: bool = False,
    ) -> Evidence:
        line = present(text.strip(), LINE_LIMIT)
        frames = traceback.frames[-EXCERPT_FRAMES:] if traceback is not None else []
        excerpt = "\n".join((*(present(frame, LINE_LIMIT // 2) for frame in frames), line))
        bounded = tuple((name, present(value, LINE_LIMIT)) for name, value in captures)
        return Evidence(signature, line, number, excerpt[-EXCERPT_LIMIT:], bounded, weak, provisional)


def to_crash(evidence: Evidence) -> Crash:
    """Put evidence into words."""
    signature = evidence.signature
    if signature is None:
        return Crash(
            signature=UNKNOWN,
            cause=f"The engine failed with an error that is not known by name: {evidence.line}",
            remedy="Look at the lines around this one in the log. If vLLM itself is at fault, report it at https://github.com/vllm-project/vllm/issues.",
            reference=None,
            line=evidence.line,
            line_number=evidence.number,
            excerpt=evidence.excerpt,
        )
    return Crash(
        signature=signature.id,
        cause=render(signature.cause, evidence.captures),
        remedy=render(signature.remedy, evidence.captures),
        reference=signature.reference,
        line=evidence.line,
        line_number=evidence.number,
        excerpt=evidence.excerpt,
        captures=evidence.captures,
        retryable=signature.retryable,
        auto_safe=signature.auto_safe,
    )


def _explains(evidence: Evidence) -> bool:
    return evidence.signature is not None and evidence.signature.severity is Severity.FATAL and not evidence.signature.is_echo


def _best(evidence: Iterable[Evidence]) -> Evidence | None:
    return min(evidence, key=lambda each: each.rank, default=None)
