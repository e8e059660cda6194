"""Finding the root cause among everything that a failing engine writes.

A failing engine reports one error many times: the worker that hit it, its parent, the API server that waited, each
with a traceback. And good engines write errors that they survive. So lines are only collected as evidence, and a
crash is declared when the log shows that a process has failed: a text that says so, or an uncaught exception.

Of the evidence the most specific signature wins, the first line among equals; a signature that only echoes wins
over nothing but silence; a log record of a warning counts only where no error explains the crash. If the start
goes on to a later stage before a failure was seen, or becomes ready, what was collected was survived and is
forgotten. Once ready, only the death of the engine is a crash, and not if it was told to stop.
"""

from collections import deque
from dataclasses import replace

from vllm_operator.catalog.signatures import Severity, Signature
from vllm_operator.startup.crash.evidence import DEVICE, FIELD, LINE_LIMIT, PANIC, PYDANTIC, QUOTING, TITLE, Evidence, best, to_crash
from vllm_operator.startup.crash.findings import TERMINATED, Findings
from vllm_operator.startup.crash.matching import Recognizer
from vllm_operator.startup.crash.tracebacks import BEGINNING, GROUPED, NATIVE_FRAME, Part, Tracebacks
from vllm_operator.startup.crash.unrelated import (
    ASIDE,
    BYSTANDERS,
    CLIENTS,
    is_headed_by_a_request,
    is_no_report,
    is_of_a_request,
    is_source,
    without_names,
)
from vllm_operator.startup.lines.framing import WARNING, plain
from vllm_operator.startup.state import Crash

EXCERPT_FRAMES = 6
_SERVING_WINDOW = 2000
_SHUTDOWN_WINDOW = 80
_WRAPS = 3
"""Lines over which the message of an exception may have been wrapped."""
_LAST_STAGE = "ServerStart"
_ELSEWHERE = ("SystemExit", "asyncio.exceptions.CancelledError", "openai.", "litellm.", "vllm.exceptions.", "java.")
"""Exceptions of a process that ends as it should, of a client, and of a server in Java around the engine."""


class CrashTracker:
    """Collects evidence and decides which crash it is, if it is one."""

    def __init__(self, recognizer: Recognizer, recent: deque[str]) -> None:
        """Begin with no evidence. `recent`: the latest lines of the log; whoever reads the lines adds them."""
        self._recognizer = recognizer
        self.tracebacks = Tracebacks(recent)
        self.notices: dict[str, Evidence] = {}
        self.stage = ""
        """The stage that the start is in; whoever reads the lines says so."""
        self.records = 0
        """Log records so far that are no errors; whoever reads them counts."""
        self._ready = False
        self._stopping = False
        self.settings: dict[str, str] = {}
        """What the engine was asked for, as far as texts speak of it; whoever reads the lines adds it."""
        self._reset()

    def _reset(self, findings: Findings | None = None) -> None:
        self._found = findings or Findings()
        self._told: int | None = None
        self._wrapped: tuple[str, str, int, int] | None = None
        self._only_death = False

    @property
    def failed(self) -> bool:
        """Whether the log shows that a process has failed."""
        return self._found.failed

    def advanced(self, stage: str, *, ready: bool) -> None:
        """The start has reached a later stage: errors before it were survived, unless a process has failed."""
        self.stage = stage
        if ready:
            self._ready = True
            self._reset()
            self.tracebacks.forget()
        elif not self._found.failed:
            self._reset(self._found.fresh())

    def stopping(self, number: int) -> None:
        """The engine was told to stop. What it wrote on its way out is no crash, unless it gave a reason before."""
        if not self._ready:
            return
        orderly = self._only_death and number - self._found.failed_at <= _SHUTDOWN_WINDOW and not self._found.root(self.records)
        if orderly or not self._found.failed:
            self._stopping = True
            self._reset()

    def record(self, level: int, text: str, number: int) -> None:
        """A log record that is no error."""
        for match in self._recognizer.find(text):
            if match.signature.severity is not Severity.FATAL and match.signature.id != TERMINATED:
                self._notice(self._seen(None, match.signature, text, number, match.captures))
            elif level == WARNING and not (self._stopping or match.pattern.errors_only):
                self._collect(None, self._seen(None, match.signature, text, number, match.captures, warned=True))
        if self._ready and level == WARNING and not self._stopping:
            # The server only warns when the engine has died under it, and says later that it shuts down, as if it had been told to.
            self._look_for_failure("", text, number)

    def error(self, process: str, level: int | None, text: str, number: int) -> None:
        """A line of an error record, or raw output. It is the latest of `tracebacks.recent`."""
        text = self.tracebacks.ungrouped(text) if text.startswith(GROUPED) else text
        part = self.tracebacks.take(process, text, number, raw=level is None)
        if self._stopping and (failure := self._recognizer.failure(text)) is not None and failure.unbidden:
            self._stopping = False  # the others were told to stop because this one was gone
        if self._stopping or (part is Part.FRAME and not text.startswith(NATIVE_FRAME)):
            if len(text) > len(BEGINNING) and text.startswith(BEGINNING):
                # Whoever copied the log lost the ends of lines.
                self.error(process, level, text.replace(BEGINNING, "").lstrip(": >"), number)
            return
        if part is Part.OTHER and self._wrapped is None and self._says_nothing(text):
            return
        harmless = part is not Part.OTHER and self.tracebacks.is_harmless(process)
        traceback = self.tracebacks.close(process) if part is Part.EXCEPTION else None
        beside = part is Part.EXCEPTION and self.tracebacks.mention(BYSTANDERS)
        if (harmless or (beside and is_of_a_request(self.tracebacks.frames(process)))) and self._recognizer.failure(text) is None:
            if harmless and DEVICE.search(text):
                self._match(process, text, number, weak=True)  # whoever met it survived, but the engine needs the GPU as well
            return
        if (level is None and is_no_report(text, self.tracebacks.recent)) or (beside and self._is_aside(process, text, number)):
            return
        if self._is_farewell(text) or (level is not None and self._is_of_a_request(text)):
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
        # Most lines that are no log records, and this is known at once.
        return not (
            self._recognizer.is_known(text) or "with error '" in text or "method" in text or PANIC.match(text) or PYDANTIC.match(text)
        )

    def _is_source(self, process: str, text: str) -> bool:
        return is_source(text) and not (PYDANTIC.match(text) or self.tracebacks.follows_frames(process))

    def _with_field(self, text: str) -> str:
        # Before what is wrong with a field of the configuration stands its name, on a line of its own.
        recent = self.tracebacks.recent
        before = plain(recent[-2])[1].strip() if PYDANTIC.match(text) and len(recent) > 1 else ""
        return f"{before} - {text.strip()}" if FIELD.fullmatch(before) else text

    def _continue(self, process: str, text: str) -> None:
        # A terminal or a browser may have wrapped the message of an exception.
        assert self._wrapped is not None
        writer, begun, number, lines = self._wrapped
        if process not in (writer, ""):
            return
        if any(self._match(writer, begun + space + text.lstrip(), number) for space in (" ", "")):
            self._wrapped = None
        else:
            # A panic, and an exception that has no word on its own line, say what it is on the next one.
            bare = PANIC.match(begun) or begun.rstrip().endswith("Error:")
            if not lines and bare and self._found.unknown is not None and self._found.unknown.number == number:
                self._found.unknown = replace(self._found.unknown, text=f"{begun.rstrip()} {text.strip()}"[: 2 * LINE_LIMIT])
            self._wrapped = (writer, f"{begun} {text.lstrip()}"[: 2 * LINE_LIMIT], number, lines + 1) if lines < _WRAPS else None

    def _panic(self, process: str, text: str, number: int) -> None:
        self._found.unknown = self._found.unknown or self._seen(process, None, text, number, ())
        self._wrapped = (process, text, number, 0)

    def _is_farewell(self, text: str) -> bool:
        # A program that uses the engine as a library ends like this.
        failure = self._recognizer.failure(text) if self._ready or self.stage == _LAST_STAGE else None
        return failure is not None and failure.death and not failure.serving

    def _is_of_a_request(self, text: str) -> bool:
        # What vLLM's serving modules log is the fault of a request, unless the engine is dead.
        recent = self.tracebacks.recent
        return bool(recent) and is_headed_by_a_request(recent[-1]) and self._recognizer.failure(text) is None

    def _look_for_failure(self, process: str, text: str, number: int, *, sure: bool = True) -> None:
        failure = self._recognizer.failure(text)
        if failure is None or (self._ready and not failure.serving):
            return
        if failure.native and not self._recognizer.is_echo(text):
            self._found.unknown = self._found.unknown or self._native(process, text, number)
        if sure:
            self._told = self._told or number
        self._fail(number, death=failure.death)

    def _native(self, process: str, text: str, number: int) -> Evidence:
        # It takes the place of an exception. The catalog may have a name for its kind, which explains less than any other name.
        match = next((each for each in self._recognizer.find(text) if each.pattern.weak), None)
        return self._seen(process, match.signature, text, number, match.captures) if match else self._seen(process, None, text, number, ())

    def _fail(self, number: int, *, death: bool = False) -> None:
        if not self._found.failed:
            self._found.fail(number, self.records)
            self._only_death = death
            if self._ready:
                self._found.keep(lambda each: number - each.number < _SERVING_WINDOW)
        elif not death:
            self._only_death = False

    def _match(self, process: str, text: str, number: int, *, provisional: bool = False, weak: bool = False, sure: bool = True) -> bool:
        known = False
        for match in self._recognizer.find(text, lambda: (*self.tracebacks.frames(process), text, self._standing())):
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

    def _standing(self) -> str:
        return f"stage {self.stage} after {' '.join(self._found.evidence)}"

    def _is_aside(self, process: str, text: str, number: int) -> bool:
        recent = self.tracebacks.recent
        frames = self.tracebacks.frames(process)
        if any(ASIDE in frame for frame in frames):
            # It imports vLLM, and shows what keeps that from being imported. That vLLM is not installed where it runs tells nothing.
            for match in self._recognizer.find(text) if "No module named 'vllm'" not in text else ():
                self._found.beside = self._found.beside or self._seen(process, match.signature, text, number, match.captures)
            return True
        # Whoever shortens a traceback leaves the command before it.
        return len(recent) > 1 + len(frames) and ASIDE in recent[-2 - len(frames)]

    def _match_assertion(self, process: str, number: int) -> bool:
        frames = self.tracebacks.frames(process, 1)
        return bool(frames) and self._match(process, frames[-1].strip(), number)

    def _exception(self, process: str, text: str, number: int, *, known: bool, uncaught: bool) -> None:
        if text.startswith("KeyboardInterrupt"):
            if self._ready:
                self.stopping(number)
            # Whoever interrupts a start sees its processes end.
            self._found.keep(lambda each: not each.text.startswith("Process EngineCore"))
        if text.startswith(("KeyboardInterrupt", *_ELSEWHERE)):
            self._told = None
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
        """The crash, if the log shows one. `ended`: the process is known to have ended where the log ends."""
        if not self._found.failed and (self._ready or not ended or self._stopping or self.tracebacks.mention(CLIENTS)):
            return None
        chosen = self._found.cause(self.records, self._titled() if ended else None)
        return to_crash(chosen, self._facts()) if chosen is not None else None

    def asked(self, raw: str) -> Crash | None:
        """What a source line tells that was given alone. In a log it explains a frame at most; here somebody asks what it means."""
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
        """The line which says that a process failed, where the log ends before it says with what error. None if there is none."""
        if self._ready or self._stopping or self.tracebacks.mention((*CLIENTS, ASIDE)):
            return None
        broken = (each.number for process, each in self.tracebacks.broken_off() if not is_of_a_request(self.tracebacks.frames(process)))
        return next(broken, self._told)

    def notices_beside(self, crash: Crash | None) -> tuple[Crash, ...]:
        """What is worth knowing beside this crash, or where there is none, in the order in which it was seen."""
        name = crash.signature if crash is not None else None
        told = (each for each in self.notices.values() if each.signature is not None and each.signature.is_told_beside(name))
        return tuple(to_crash(each, self._facts()) for each in told)

    def _facts(self) -> dict[str, str]:
        return {**self.settings, "stage": self.stage}

    def _titled(self) -> Evidence | None:
        # The log stops within the traceback of the error with which the engine ended: what is left is how it was announced.
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
        evidence = Evidence(signature, text[: 2 * LINE_LIMIT], number, (), bounded, weak, warned, provisional, self.records)
        return self._with_frames(process, evidence)

    def _with_frames(self, process: str | None, evidence: Evidence) -> Evidence:
        """The evidence with the last frames of the traceback that the process wrote; without a process there are none."""
        frames = self.tracebacks.frames(process, EXCERPT_FRAMES) if process is not None else ()
        return replace(evidence, frames=frames) if frames else evidence
