"""Finding the root cause in the log of a failing engine.

A failing engine reports one error many times: the worker that hit it, its parent, and the API server that waited, each with a traceback. A
healthy engine logs errors that it survives. So lines are only collected as evidence, and a crash is reported when the log shows that a
process has failed: by a text that says so, or by an uncaught exception.

The most specific signature is the root cause, and the first line among several. A signature that only reports a failure elsewhere counts if
there is no other evidence, a warning if no error explains the crash. If the start enters a later stage before a process has failed, or
becomes ready, the engine survived the evidence, and it is forgotten. Once ready, only the death of the engine is a crash, unless the engine
was told to stop.
"""

from collections import deque
from dataclasses import replace

from vllm_operator.catalog.signatures import Severity, Signature
from vllm_operator.logs.crash.evidence import (
    DEVICE,
    FIELD,
    LINE_LIMIT,
    PANIC,
    PYDANTIC,
    QUOTING,
    TERMINATED,
    TITLE,
    Evidence,
    Findings,
    best,
    to_crash,
)
from vllm_operator.logs.crash.matching import Recognizer
from vllm_operator.logs.crash.tracebacks import BEGINNING, GROUPED, NATIVE_FRAME, Part, Tracebacks
from vllm_operator.logs.crash.unrelated import (
    ASIDE,
    BYSTANDERS,
    CLIENTS,
    is_headed_by_a_request,
    is_no_report,
    is_of_a_request,
    is_source,
    without_names,
)
from vllm_operator.logs.lines.framing import WARNING, plain
from vllm_operator.logs.state import Crash

EXCERPT_FRAMES = 6
_SERVING_WINDOW = 2000
_SHUTDOWN_WINDOW = 80
_WRAPS = 3
"""Lines to which the message of an exception may be wrapped."""
_LAST_STAGE = "ServerStart"
_ELSEWHERE = ("SystemExit", "asyncio.exceptions.CancelledError", "openai.", "litellm.", "vllm.exceptions.", "java.")
"""Exceptions of a process that ends normally, of a client, and of a Java server around the engine."""


class CrashTracker:
    """Collects evidence and decides whether there is a crash, and which."""

    def __init__(self, recognizer: Recognizer, recent: deque[str]) -> None:
        """Create it without evidence. `recent`: the latest lines of the log, which the caller adds."""
        self._recognizer = recognizer
        self.tracebacks = Tracebacks(recent)
        self.notices: dict[str, Evidence] = {}
        self.stage = ""
        """Stage of the start, which the caller sets."""
        self._ready = False
        self._stopping = False
        self.settings: dict[str, str] = {}
        """Settings of the engine that texts of signatures use. The caller adds them."""
        self._found = Findings()
        self._reset()

    def _reset(self, findings: Findings | None = None) -> None:
        self._found = findings or Findings(records=self._found.records)
        self._failure_at: int | None = None
        self._wrapped: tuple[str, str, int, int] | None = None
        self._only_death = False

    def count(self, records: int) -> None:
        """Note the number of records below ERROR so far."""
        self._found.records = records

    @property
    def failed(self) -> bool:
        """Whether the log shows that a process has failed."""
        return self._found.failed

    def advanced(self, stage: str, *, ready: bool) -> None:
        """Note a later stage: the engine survived the errors before it, unless a process has failed."""
        self.stage = stage
        if ready:
            self._ready = True
            self._reset()
            self.tracebacks.forget()
        elif not self._found.failed:
            self._reset(self._found.fresh())

    def stopping(self, number: int) -> None:
        """Note that the engine was told to stop. What it logs then is no crash, unless an error came before."""
        if not self._ready:
            return
        orderly = self._only_death and number - self._found.failed_at <= _SHUTDOWN_WINDOW and not self._found.root()
        if orderly or not self._found.failed:
            self._stopping = True
            self._reset()

    def record(self, level: int, text: str, number: int) -> None:
        """Read a record below ERROR."""
        for match in self._recognizer.find(text):
            if match.signature.severity is not Severity.FATAL and match.signature.id != TERMINATED:
                self._notice(self._seen(None, match.signature, text, number, match.captures))
            elif level == WARNING and not (self._stopping or match.pattern.errors_only):
                self._collect(None, self._seen(None, match.signature, text, number, match.captures, warned=True))
        if self._ready and level == WARNING and not self._stopping:
            # When the engine has died, the server only logs a warning, and later that it shuts down, as if it had been told to.
            self._look_for_failure("", text, number)

    def error(self, process: str, level: int | None, text: str, number: int) -> None:  # noqa: C901 - one case for each kind of line
        """Read a line of an error record, or raw output. It is the last of `tracebacks.recent`."""
        text = self.tracebacks.ungrouped(text) if text.startswith(GROUPED) else text
        part = self.tracebacks.take(process, text, number, raw=level is None)
        if self._stopping and (failure := self._recognizer.failure(text)) is not None and failure.unbidden:
            self._stopping = False  # the other processes were told to stop because this one had died
        if self._stopping or (part is Part.FRAME and not text.startswith(NATIVE_FRAME)):
            if len(text) > len(BEGINNING) and text.startswith(BEGINNING):
                # The line ends of a copied log were lost.
                self.error(process, level, text.replace(BEGINNING, "").lstrip(": >"), number)
            return
        if part is Part.OTHER and self._wrapped is None and self._says_nothing(text):
            return
        harmless = part is not Part.OTHER and self.tracebacks.is_harmless(process)
        traceback = self.tracebacks.close(process) if part is Part.EXCEPTION else None
        beside = part is Part.EXCEPTION and self.tracebacks.mention(BYSTANDERS)
        if (harmless or (beside and is_of_a_request(self.tracebacks.frames(process)))) and self._recognizer.failure(text) is None:
            if harmless and DEVICE.search(text):
                self._match(process, text, number, weak=True)  # this process survived it, but the engine needs the GPU too
            return
        if (level is None and is_no_report(text, self.tracebacks.recent)) or (beside and self._is_aside(process, text, number)):
            return
        if self._is_end_of_library_use(text) or (level is not None and self._is_of_a_request(text)):
            return
        if level is None and part is not Part.EXCEPTION and self._is_source(process, text):
            if self._wrapped is not None:
                self._continue(process, text)
            return
        text = without_names(text) if level is None else text
        sure = level is not None or part is not Part.OTHER
        self._look_for_failure(process, text, number, sure=sure or text.startswith("Process "))
        known = self._match(process, text, number, provisional=part is Part.CODE, sure=sure)
        if part is Part.EXCEPTION and not known and text.startswith("AssertionError"):
            known = self._match_assertion(process, number)
        if part is Part.OTHER and not known and self._wrapped is not None:
            self._continue(process, text)
        if not known and ("with error '" in text or "method" in text) and QUOTING.search(text):
            self._found.quoted = self._found.quoted or self._seen(process, None, text, number, ())
        if part is Part.EXCEPTION:
            self._wrapped = None if known else (process, text, number, 0)
        elif not known and PANIC.match(text):
            self._panic(process, text, number)
        if part is Part.EXCEPTION or PYDANTIC.match(text):
            self._exception(process, self._with_field(text), number, known=known, uncaught=traceback is not None and traceback.uncaught)

    def _says_nothing(self, text: str) -> bool:
        # True for most lines that are no records, and cheap.
        return not (
            self._recognizer.is_known(text) or "with error '" in text or "method" in text or PANIC.match(text) or PYDANTIC.match(text)
        )

    def _is_source(self, process: str, text: str) -> bool:
        return is_source(text) and not (PYDANTIC.match(text) or self.tracebacks.follows_frames(process))

    def _with_field(self, text: str) -> str:
        # The name of a field of the configuration is on the line before its error.
        recent = self.tracebacks.recent
        before = plain(recent[-2])[1].strip() if PYDANTIC.match(text) and len(recent) > 1 else ""
        return f"{before} - {text.strip()}" if FIELD.fullmatch(before) else text

    def _continue(self, process: str, text: str) -> None:
        # A terminal or browser may have wrapped the message of an exception.
        assert self._wrapped is not None
        writer, begun, number, lines = self._wrapped
        if process not in (writer, ""):
            return
        if any(self._match(writer, begun + space + text.lstrip(), number) for space in (" ", "")):
            self._wrapped = None
        else:
            # The message of a panic, and of an exception without text on its own line, is on the next line.
            bare = PANIC.match(begun) or begun.rstrip().endswith("Error:")
            if not lines and bare and self._found.unknown is not None and self._found.unknown.number == number:
                self._found.unknown = replace(self._found.unknown, text=f"{begun.rstrip()} {text.strip()}"[: 2 * LINE_LIMIT])
            self._wrapped = (writer, f"{begun} {text.lstrip()}"[: 2 * LINE_LIMIT], number, lines + 1) if lines < _WRAPS else None

    def _panic(self, process: str, text: str, number: int) -> None:
        self._found.unknown = self._found.unknown or self._seen(process, None, text, number, ())
        self._wrapped = (process, text, number, 0)

    def _is_end_of_library_use(self, text: str) -> bool:
        # This is how a program ends that uses the engine as a library.
        failure = self._recognizer.failure(text) if self._ready or self.stage == _LAST_STAGE else None
        return failure is not None and failure.death and not failure.serving

    def _is_of_a_request(self, text: str) -> bool:
        # Errors of vLLM's serving modules are caused by requests, unless the engine is dead.
        recent = self.tracebacks.recent
        return bool(recent) and is_headed_by_a_request(recent[-1]) and self._recognizer.failure(text) is None

    def _look_for_failure(self, process: str, text: str, number: int, *, sure: bool = True) -> None:
        failure = self._recognizer.failure(text)
        if failure is None or (self._ready and not failure.serving):
            return
        if failure.native and not self._recognizer.is_echo(text):
            self._found.unknown = self._found.unknown or self._native(process, text, number)
        if sure:
            self._failure_at = self._failure_at or number
        self._fail(number, death=failure.death)

    def _native(self, process: str, text: str, number: int) -> Evidence:
        # It replaces an exception. A weak signature may match it, which explains less than any other signature.
        match = next((each for each in self._recognizer.find(text) if each.pattern.weak), None)
        return self._seen(process, match.signature, text, number, match.captures) if match else self._seen(process, None, text, number, ())

    def _fail(self, number: int, *, death: bool = False) -> None:
        if not self._found.failed:
            self._found.fail(number)
            self._only_death = death
            if self._ready:
                self._found.keep(lambda each: number - each.number < _SERVING_WINDOW)
        elif not death:
            self._only_death = False

    def _match(self, process: str, text: str, number: int, *, provisional: bool = False, weak: bool = False, sure: bool = True) -> bool:
        known = False
        for match in self._recognizer.find(text, lambda: (*self.tracebacks.frames(process), text, self._context())):
            if not (sure or match.is_reported_by(text)):
                continue
            signature = match.signature
            evidence = self._seen(None, signature, text, number, match.captures, weak=weak or match.pattern.weak, provisional=provisional)
            if match.pattern.overrules:
                evidence = replace(evidence, overrules=match.pattern.overrules)
            if signature.severity is Severity.FATAL or signature.id == TERMINATED:
                self._collect(process, evidence)
                known = known or not (signature.is_echo or provisional)
            else:
                self._notice(self._with_frames(process, evidence))
        return known

    def _context(self) -> str:
        return f"stage {self.stage} after {' '.join(self._found.evidence)}"

    def _is_aside(self, process: str, text: str, number: int) -> bool:
        recent = self.tracebacks.recent
        frames = self.tracebacks.frames(process)
        if any(ASIDE in frame for frame in frames):
            # It imports vLLM and reports errors of the import. That vLLM is not installed means nothing.
            for match in self._recognizer.find(text) if "No module named 'vllm'" not in text else ():
                self._found.beside = self._found.beside or self._seen(process, match.signature, text, number, match.captures)
            return True
        # In a shortened traceback, the command before it remains.
        return len(recent) > 1 + len(frames) and ASIDE in recent[-2 - len(frames)]

    def _match_assertion(self, process: str, number: int) -> bool:
        frames = self.tracebacks.frames(process, 1)
        return bool(frames) and self._match(process, frames[-1].strip(), number)

    def _exception(self, process: str, text: str, number: int, *, known: bool, uncaught: bool) -> None:
        if text.startswith("KeyboardInterrupt"):
            if self._ready:
                self.stopping(number)
            # After an interrupt, the processes end too.
            self._found.keep(lambda each: not each.text.startswith("Process EngineCore"))
        if text.startswith(("KeyboardInterrupt", *_ELSEWHERE)):
            self._failure_at = None
            return
        if not known and self._recognizer.is_echo(text):
            self._found.echoed = self._found.echoed or self._seen(process, None, text, number, ())
        elif not known:
            self._found.unknown = self._found.unknown or self._seen(process, None, text, number, ())
        if uncaught and not self._ready:
            self._fail(number)

    def _notice(self, evidence: Evidence) -> None:
        assert evidence.signature is not None
        self.notices.setdefault(evidence.signature.id, evidence)

    def _collect(self, process: str | None, evidence: Evidence) -> None:
        if self._found.is_news(evidence):
            self._found.add(self._with_frames(process, evidence))

    def crash(self, *, ended: bool) -> Crash | None:
        """Return the crash, if the log shows one. `ended`: the process ended where the log ends."""
        if not self._found.failed and (self._ready or not ended or self._stopping or self.tracebacks.mention(CLIENTS)):
            return None
        chosen = self._found.cause(self._titled() if ended else None)
        return to_crash(chosen, self._facts()) if chosen is not None else None

    def of_source_line(self, raw: str) -> Crash | None:
        """Return the crash for a text that is a single source line. In a log, such a line would be part of a traceback."""
        text = plain(raw)[1]
        found = self._recognizer.find(text) if is_source(text) else ()
        chosen = best(
            self._seen(None, each.signature, text, 1, each.captures, weak=each.pattern.weak)
            for each in found
            if each.signature.severity is Severity.FATAL
        )
        return to_crash(chosen, {}) if chosen is not None else None

    @property
    def cut_off_at(self) -> int | None:
        """Line that says that a process failed, if the log ends before the error; else None."""
        if self._ready or self._stopping or self.tracebacks.mention((*CLIENTS, ASIDE)):
            return None
        broken = (each.number for process, each in self.tracebacks.broken_off() if not is_of_a_request(self.tracebacks.frames(process)))
        return next(broken, self._failure_at)

    def notices_beside(self, crash: Crash | None) -> tuple[Crash, ...]:
        """Return notices that matter beside this crash, or without a crash, in the order of the log."""
        name = crash.signature if crash is not None else None
        shown = (each for each in self.notices.values() if each.signature is not None and each.signature.is_shown_beside(name))
        return tuple(to_crash(each, self._facts()) for each in shown)

    def _facts(self) -> dict[str, str]:
        return {**self.settings, "stage": self.stage}

    def _titled(self) -> Evidence | None:
        # The log ends within the traceback of the error that ended the engine. Only the record that announces it is left.
        for traceback in self.tracebacks.unfinished():
            text = TITLE.sub("", traceback.title, count=1)
            if any(map(str.isalnum, text)) and self._recognizer.failure(text) is None:
                return self._seen(None, None, text, traceback.number, ())
        return None

    def _seen(
        self,
        process: str | None,
        signature: Signature | None,
        text: str,
        number: int,
        captures: tuple[tuple[str, str], ...],
        *,
        weak: bool = False,
        warned: bool = False,
        provisional: bool = False,
    ) -> Evidence:
        bounded = tuple((name, value[:LINE_LIMIT]) for name, value in captures)
        evidence = Evidence(signature, text[: 2 * LINE_LIMIT], number, (), bounded, weak, warned, provisional, self._found.records)
        return self._with_frames(process, evidence)

    def _with_frames(self, process: str | None, evidence: Evidence) -> Evidence:
        """Add the last frames of the traceback of the process. Without a process there are none."""
        frames = self.tracebacks.frames(process, EXCERPT_FRAMES) if process is not None else ()
        return replace(evidence, frames=frames) if frames else evidence
