"""Finding the root cause in the log of a failing engine.

A failing engine reports one error many times: the worker that hit it, its parent, and the API server that waited, each with a traceback. A
healthy engine logs errors that it survives. So lines are only collected as evidence, and a crash is reported when the log shows that a
process has failed: by a text that says so, or by an uncaught exception.

The most specific signature is the root cause, and the first line among several. A signature that only reports a failure elsewhere counts if
there is no other evidence, a warning if no error explains the crash. If the start enters a later stage before a process has failed, or
becomes ready, the engine survived the evidence, and it is forgotten. Once ready, only the death of the engine is a crash, unless the engine
was told to stop.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any

from vllm_operator.catalog.error_forms import ASIDE, load_error_forms
from vllm_operator.catalog.startup import FailureKind, Severity, Signature
from vllm_operator.catalog.templates import fill_in
from vllm_operator.catalog.versions import load_versions, normalize_flag
from vllm_operator.logs import tracebacks
from vllm_operator.logs.lines import INFO, WARNING, Line, LogClock
from vllm_operator.logs.matching import Match, Recognizer, compiled, is_no_report
from vllm_operator.logs.state import Crash
from vllm_operator.logs.suspects import avoid_code, find_quoted, read_arguments
from vllm_operator.logs.tracebacks import Part, Traceback, Tracebacks, is_of_a_request, ungrouped
from vllm_operator.text.wording import present

TERMINATED = "TerminatedDuringStartup"
MISSING = "RankMissing"
STILL = "EngineStandsStill"
TOLD_TO_STOP = "ServerToldToStop"
KV_TRANSFERS = "KvTransfersFail"
_SHUTS_DOWN = "Shutting down FastAPI HTTP server."
STALL = "SharedMemoryBroadcastStall"
_ENGINE_CORE = "EngineCoreInitFailed"
_STILL_RECORDS = 7  # records of the throughput that say the same, one every 10 s, after which the engine stands still
_RECORDS_AFTER = 12  # an error that the engine survived by more records than these explains nothing
_KEPT = 16
SHOWN_LIMIT = 400
EXCERPT_LIMIT = 800
UNKNOWN = "Unknown"  # signature of a crash that matches no signature of the catalog
REFUSED = "ConfigurationRefused"  # family of an error that matches no signature
_FIELD = re.compile(r"[a-z_][\w.]{0,80}")  # name of a field of the configuration, on the line before its error
_QUOTED = frozenset(("problem", "reason", "reasons"))
"""Groups of signatures that quote the message, which knows more than they do."""
_WARNED = "before it, a warning: "
_NEAR = 8  # lines between a traceback and a line that may say why it happened, and of a traceback that tell where it happened
_BARE = re.compile(r"[\w.]+:?|KeyError: \S{1,40}")  # an exception without a message
_EXCERPT_FRAMES = 6
_KIND_FRAMES = 60  # lines of a traceback in which the kind of a failure is looked for
_SERVING_WINDOW = 2000
_SHUTDOWN_WINDOW = 80
_WRAPS = 3  # lines to which the message of an exception may be wrapped
_UNFOLDED, _UNFOLDS_WITHIN = 3, 60  # number of lines after a message that say why, and where they are looked for
_BEGINNING = 80  # characters of a remedy that hold what to do first
_LAST_STAGE = "ServerStart"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line that may explain the crash."""

    signature: Signature | None  # None for an exception that matches no signature
    text: str
    number: int
    process: str = ""
    frames: tuple[str, ...] = ()  # the end of its traceback
    captures: tuple[tuple[str, str], ...] = ()
    weak: bool = False  # explains the crash only if nothing else does
    warned: bool = False  # a warning, which is no explanation alone
    provisional: bool = False  # a source line of a traceback, whose exception says more
    records: int = 0  # number of records below ERROR before it
    overrules: tuple[str, ...] = ()  # signatures whose crashes were ended from outside, according to this line
    time: datetime | None = None
    because: str = ""  # why: the first exception of a chain whose last one is `text`, or the error record before one without a message
    more: list[str] = field(default_factory=list)  # the next lines, if the message announces them

    @property
    def order(self) -> tuple[bool, int, int]:
        """Sorts the best explanation first."""
        signature = self.signature
        return (signature is not None and signature.follows_others, -signature.priority if signature else 0, self.number)

    @property
    def quality(self) -> tuple[bool, bool, bool, int]:
        """The line of a signature with the highest quality is shown, the first of several."""
        return (bool(self.overrules), not self.is_doubtful, not self.provisional, len(self.captures))

    @property
    def is_error(self) -> bool:
        """Whether it matches the signature of an error, rather than one of a notice or of a failure elsewhere."""
        return self.signature is not None and self.signature.severity is Severity.FATAL and not self.signature.is_echo

    @property
    def is_doubtful(self) -> bool:
        """Whether it explains a crash only if nothing else does."""
        return self.weak or self.warned


def describe(signature: Signature, line: str, known: Sequence[tuple[str, str]], **details: Any) -> Crash:
    """Return the crash of a signature. `known`: values for its texts; `details`: further fields of the crash."""
    return Crash(
        signature=signature.id,
        cause=fill_in(signature.cause, known),
        remedy=fill_in(signature.remedy, known),
        reference=signature.reference,
        line=line,
        **details,
    )


def _to_crash(evidence: Evidence, facts: Mapping[str, str], recognizer: Recognizer) -> Crash:
    """Describe evidence, fit for display. `facts`: values for the texts in addition to the captures."""
    forms, message = load_error_forms(), " ".join((evidence.text.strip(), *evidence.more))
    line = present(message, SHOWN_LIMIT)
    frames = (present(frame, SHOWN_LIMIT // 2) for frame in evidence.frames[-_EXCERPT_FRAMES:])
    excerpt = "\n".join((*frames, line))[-EXCERPT_LIMIT:]
    arguments, shown = read_arguments(facts.get("given", "")), "\n".join((*evidence.frames, message))
    apart = avoid_code(arguments, shown, facts.get("assigned", ""))
    traceback = "\n".join((*(present(frame, SHOWN_LIMIT // 2) for frame in evidence.frames[-_NEAR:]), line))
    options = [name for name in arguments if forms.optional.fullmatch(name)] or ["speculative_config"] * ("drafts" in facts)
    facts = {**facts, "traceback": traceback, "apart": apart, "options": ", ".join(map(normalize_flag, options))}
    if evidence.signature is not None:
        return _describe_known(evidence, evidence.signature, line, excerpt, facts)
    code, where = (present(each, SHOWN_LIMIT // 2) for each in (_code_of(evidence), _function_of(evidence.frames)))
    kind = recognizer.kind(f"{message}{code}", where, evidence.frames)
    if evidence.because and _WARNED not in evidence.because and (kind is None or not kind.first):
        before = recognizer.kind(evidence.because, "", ())
        kind = before if before is not None and before.first else kind  # it says why
    says = {"lacking": forms.lacking.search(line), "defect": forms.defect.search(line), "second": "/v1/worker/gpu/" in shown}
    facts |= {"where": where} | {name: "yes" for name, found in says.items() if found}
    if forms.refused.search(excerpt) is not None and (kind is None or not kind.first or "[type=" in line):
        cause, remedy, family = forms.texts["refusedCause"], _remedy_of_refusal(evidence, line, facts), REFUSED
    elif kind is not None:
        found = compiled(kind.message).search(f"{line}{code} {where} {evidence.because}") if kind.message is not None else None
        known = (*facts.items(), *((found.groupdict() if found is not None else {}).items()))
        remedy = _remedy_of_kind(kind, fill_in(kind.remedy, known), line, facts, find_quoted(arguments, line))
        cause, family = fill_in(kind.cause, known), kind.id
    else:
        cause, remedy, family = forms.texts["unknownCause"], _with_advice(forms.texts["unknownRemedy"], line), ""
    because = f" ({present(evidence.because, SHOWN_LIMIT // 2)})" if evidence.because else ""
    place, quoted = f"{code}{', in ' if where else ''}{where}", _without_input(line)
    shown = f"{cause}: {quoted.rstrip('.:') if place else quoted}{place}{because}"
    return Crash(UNKNOWN, shown, remedy, None, line, line_number=evidence.number, excerpt=excerpt, family=family, time=evidence.time)


def _describe_known(evidence: Evidence, signature: Signature, line: str, excerpt: str, facts: Mapping[str, str]) -> Crash:
    captures = tuple((name, present(value, SHOWN_LIMIT)) for name, value in evidence.captures)
    known = (*((name, value) for name, value in facts.items() if name != "traceback"), *captures)  # values of changes may depend on all
    details = {"line_number": evidence.number, "excerpt": excerpt, "captures": known, "time": evidence.time}
    crash = describe(signature, line, (*facts.items(), *captures), **details)
    if not _QUOTED.isdisjoint(dict(captures)) and "choices" not in dict(captures):
        crash = replace(crash, remedy=_with_advice(crash.remedy or "", line))
    return replace(crash, cause=f"{crash.cause} {present(evidence.because, SHOWN_LIMIT)}") if evidence.because else crash


def _remedy_of_refusal(evidence: Evidence, line: str, facts: Mapping[str, str]) -> str:
    """Return the remedy for settings that vLLM refuses, with the settings of the failed check, unless the message names them."""
    forms = load_error_forms()
    remedy = _with_advice(forms.texts["refusedRemedy"], line)
    check = evidence.frames[-1] if evidence.frames and evidence.frames[-1].lstrip().startswith(("assert ", "if ")) else ""
    about = [name for name in _settings(check) or _settings(_without_input(line)) if name not in line]
    if not about:
        return remedy
    given = facts.get("given")
    is_set = given is None or any(name.startswith("VLLM_") or name[2:].replace("-", "_") in given for name in about)
    return f"The check is about {', '.join(about)}{'' if is_set else forms.texts['derived']}. {remedy}"


def _remedy_of_kind(kind: FailureKind, remedy: str, line: str, facts: Mapping[str, str], quoted: Mapping[str, str]) -> str:
    """Return the remedy of a kind of failures with what the message advises or is about, and with the engine's optional features."""
    forms = load_error_forms()
    about = {flag: f"{flag} ({value})" for flag, value in quoted.items()}
    if forms.condition.search(line) is not None:
        about |= {flag: flag for flag in _settings(line) if flag not in about}
    if (advised := _with_advice(remedy, line)) != remedy:
        remedy = advised
    elif named := [shown for flag, shown in about.items() if flag not in remedy[:40]]:
        remedy = f"First change what the message is about: {', '.join(named)}. If that does not help: {remedy}"
    elif not kind.first:
        is_stated = facts["apart"] in remedy or any(word in remedy[:_BEGINNING] for word in facts["apart"].split(" ")[1:2])
        remedy = fill_in(forms.lead, {**facts, "remedy": remedy, "apart": "" if is_stated else facts["apart"]}.items())
    options = [flag for flag in facts.get("options", "").split(", ") if flag]
    if named := [flag for flag in options if flag in remedy]:
        remedy += f" This engine has {' and '.join(named)}."
    elif options and not kind.first:
        remedy += f" To see whether an optional feature is the cause, start once without {', '.join(options)}."
    return remedy


def _with_advice(remedy: str, line: str) -> str:
    """Return a remedy that begins with what the message tells to do."""
    found = load_error_forms().advice.search(_without_input(line))
    advice = re.sub("^(us|set)(?:t?ing) ", lambda verb: "use " if verb[1] == "us" else "set ", found[1].rstrip(". ")) if found else ""
    return f"Do first what the message says: {advice}. If that does not help: {remedy}" if advice and advice not in remedy else remedy


def _without_input(line: str) -> str:
    """Return a message of pydantic without the dump of its input."""
    return line.partition(" [type=")[0]


def _settings(message: str) -> tuple[str, ...]:
    """Return the flags and variables of vLLM that a message names."""
    forms, known = load_error_forms(), load_versions().newest.knows_flag
    names = forms.setting.findall(message)
    flags = (forms.sizes.get(name) or (name if name[0] in "-V" else f"--{name.replace('_', '-')}") for name in names)
    return tuple(dict.fromkeys(flag for flag in flags if flag.startswith("VLLM_") or known(flag)))


def _code_of(evidence: Evidence) -> str:
    """Return the source line of an exception without a message, because its name says nothing; empty if it has a message."""
    frames, is_bare = evidence.frames, _BARE.fullmatch(evidence.text.strip()) is not None
    has_code = is_bare and bool(frames) and not frames[-1].lstrip().startswith("File ")
    return f" at `{frames[-1].strip()}`" if has_code else ""


def _function_of(frames: Sequence[str]) -> str:
    """Return the function that raised an exception, with its file; empty without a frame."""
    forms = load_error_forms()
    found = [found for each in frames if (found := forms.frame.search(each)) is not None]
    ours = [each for each in found if forms.foreign_file.search(each["file"]) is None] or found
    return f"{ours[-1]['function']} ({ours[-1]['file']})" if ours else ""


def _best(evidence: Iterable[Evidence]) -> Evidence | None:
    return min(evidence, key=lambda each: each.order, default=None)


@dataclass(frozen=True, slots=True)
class _Message:
    """A message that later lines may continue or explain."""

    process: str
    text: str
    number: int  # its line
    is_raw: bool = False
    wraps: int = 0  # number of lines that continued it
    reasons: list[str] = field(default_factory=list)  # the lines that it announces


@dataclass(slots=True)
class _Findings:
    """Evidence since the current stage began or the server became ready."""

    records: int = 0  # number of records below ERROR so far
    evidence: dict[str, Evidence] = field(default_factory=dict)  # by signature
    unknown: Evidence | None = None  # the first exception that matches no signature
    echoed: Evidence | None = None  # the first of them that only reports a failure elsewhere
    quoted: Evidence | None = None  # the first record that quotes the message of one
    beside: Evidence | None = None  # an error of a program beside the engine
    survived: dict[str, Evidence] = field(default_factory=dict)  # evidence of earlier stages
    survived_unknown: Evidence | None = None
    failed: bool = False  # a process has failed
    failed_at: int = 0  # line that says so
    failed_records: int = 0  # number of records below ERROR before it
    failure_at: int | None = None  # line that surely says so
    only_death: bool = False  # so far, the failure only reports the death of another process
    wrapped: _Message | None = None  # latest exception, which may go on
    chained: Evidence | None = None  # exception from whose handler the next one comes

    def keep(self, is_kept: Callable[[Evidence], bool]) -> None:
        """Forget all other evidence."""
        self.evidence = {name: each for name, each in self.evidence.items() if is_kept(each)}

    def add(self, name: str, evidence: Evidence) -> None:
        """Add evidence for a signature, unless there is better evidence for it. Only the best few signatures are kept."""
        before = self.evidence.get(name)
        if before is not None and not evidence.frames and before.process == evidence.process and evidence.number - before.number <= _NEAR:
            evidence = replace(evidence, frames=before.frames)  # a later line of the same message
        longer = before is not None and before.number == evidence.number and evidence.text.startswith(before.text)
        longer = longer or (before is not None and not before.process and before.text in evidence.text)  # a record of raw output
        if before is None or before.quality < evidence.quality or longer:
            self.evidence[name] = evidence
        elif evidence.warned and evidence.weak:
            self.evidence[name] = replace(before, records=evidence.records)  # the engine has not survived it: it is repeated
        if len(self.evidence) > _KEPT:
            del self.evidence[max(self.evidence, key=lambda each: self.evidence[each].order)]

    def root(self) -> Evidence | None:
        """Return the error itself, if the log contains it."""
        unknown = self.unknown
        if unknown is not None and unknown.signature is not None:
            later = self.evidence.get(unknown.signature.id, unknown)  # it may say more: more of the same message, or where it was
            unknown = later if later.number == unknown.number or later.text.startswith(tracebacks.NATIVE_FRAME) else unknown
        counts = unknown is not None and self._counts(unknown) and not self._is_overruled(unknown)
        best = _best(each for each in self._explaining() if not each.is_doubtful)
        if unknown is None or not counts:
            return best
        # Processes of the engine report that another one has ended. The error that it ended with came before.
        follows = best is not None and best.signature is not None and best.signature.follows_others
        # Another worker may log the error a moment later.
        is_first = best is None or unknown.number < best.number or (unknown.process != best.process and "Worker" in unknown.process)
        return unknown if best is None or (follows and is_first) else best

    def cause(self, titled: Evidence | None) -> Evidence | None:
        """Return the best explanation. `titled`: the record that announces an error which the log does not contain."""
        return (
            self.root()
            or _best(each for each in self._explaining() if each.weak or (each.warned and self.failed))
            or self._ended_from_outside()
            or self._just_before()
            or titled
            or self.quoted
            or self._fallback()
        )

    def _explaining(self) -> list[Evidence]:
        return [each for each in self.evidence.values() if each.is_error and self._counts(each) and not self._is_overruled(each)]

    def _counts(self, evidence: Evidence) -> bool:
        # Without a failure, an error that the engine survived by some records explains nothing.
        return self.failed or self.records - evidence.records <= _RECORDS_AFTER

    def _ended_from_outside(self) -> Evidence | None:
        return next((each for each in self.evidence.values() if each.overrules and self._counts(each)), None)

    def _is_overruled(self, evidence: Evidence) -> bool:
        line = self._ended_from_outside()
        if line is None or evidence is line:
            return False
        is_named = evidence.signature is not None and evidence.signature.id in line.overrules
        return evidence.weak or is_named or evidence.number > line.number

    def _just_before(self) -> Evidence | None:
        # Another process may log for a moment, so that the engine seems to have survived an error right before the failure.
        end = self.failed_records if self.failed else self.records
        errors = [each for each in self.survived.values() if each.is_error and end - each.records <= _RECORDS_AFTER]
        unknown = self.survived_unknown
        is_recent = unknown is not None and self.failed and end - unknown.records <= _RECORDS_AFTER
        sure = _best(each for each in errors if not each.is_doubtful) or (unknown if is_recent else None)
        return sure or _best(each for each in errors if self.failed and each.weak and not each.warned)

    def _fallback(self) -> Evidence | None:
        echo = _best(each for each in self.evidence.values() if each.signature is not None and each.signature.is_echo)
        stop = self.evidence.get(TERMINATED)
        # If all processes are told to stop at once, a worker fails because another one has ended. If one had died by itself, the engine
        # core would have ended the others and logged it.
        by_worker = echo is not None and dict(echo.captures).get("begun") is not None and _ENGINE_CORE not in self.evidence
        if by_worker and stop is not None and stop.number < self.failed_at:
            return stop
        return echo or stop or (self.echoed if self.failed else self.beside)


class CrashTracker:
    """Collects evidence and decides whether there is a crash, and which. `recent`: the latest lines of the log, which the caller adds."""

    def __init__(self, recognizer: Recognizer, recent: deque[Line], clock: LogClock) -> None:
        self._recognizer, self._clock, self._forms = recognizer, clock, load_error_forms()
        self.tracebacks = Tracebacks(recent)
        self.notices: dict[str, Evidence] = {}  # for signatures of notices, by signature
        self.stage = ""  # of the start
        self.settings: dict[str, str] = {}  # of the engine, for the texts of signatures; the caller adds them
        self._ready = False
        self._stopping = False
        self._leaving = False
        self._found = _Findings()
        self._said = _Message("", "", 0)  # latest error record that is no part of a traceback
        self._unfolding: _Message | None = None  # latest message that announces lines
        self._throughput = ("", 0)  # latest record of it, and how often it was repeated
        self._survived_error: Crash | None = None  # before the engine was told to stop

    def count_record(self) -> None:
        """Count a record below ERROR."""
        self._found.records += 1

    @property
    def failed(self) -> bool:
        """Whether the log shows that a process has failed."""
        return self._found.failed

    @property
    def is_stopping(self) -> bool:
        """Whether the engine was told to stop, after it was ready or as a follower."""
        return self._stopping or (self._leaving and not self._found.failed)

    def note_stage(self, stage: str, *, ready: bool) -> None:
        """Note a later stage: the engine survived the errors before it, unless a process has failed."""
        self.stage = stage
        found = self._found
        if ready:
            self._ready, self._said = True, _Message("", "", 0)
            self.notices.pop(STALL, None)  # it loaded or compiled
            self._found = _Findings(found.records)
            self.tracebacks.forget()
        elif not found.failed:
            survived, unknown = found.evidence or found.survived, found.unknown or found.survived_unknown
            self._found = _Findings(found.records, survived=survived, survived_unknown=unknown)

    def note_leaving(self, number: int) -> None:
        """Note that a follower on another node than the leader ends its processes: it was told to stop, unless it logs an error.

        That the leader is gone is an error only if it came much earlier.
        """
        if not self._found.failed and all(number - each.number <= _SHUTDOWN_WINDOW for each in self._found.evidence.values()):
            self._leaving = True
            self._found = _Findings(self._found.records)

    def note_stop(self, number: int) -> None:
        """Note that the engine was told to stop. What it logs then is no crash, unless an error came before."""
        if not self._ready:
            return
        unknown = self._found.unknown
        if unknown is not None and self._forms.panic.match(unknown.text) and number - unknown.number <= _SHUTDOWN_WINDOW:
            self._fail(unknown.number)  # its process ended with it, and then stopped the others
        orderly = self._found.only_death and number - self._found.failed_at <= _SHUTDOWN_WINDOW and not self._found.root()
        if orderly or not self._found.failed:
            if not (orderly or self._stopping) and (survived := self._find_survived_error()) is not None:
                self._survived_error, self.settings["survived"] = survived, survived.signature
            self._stopping = True
            self._found = _Findings(self._found.records)
            self.record(INFO, _SHUTS_DOWN, number)

    def record(self, level: int, text: str, number: int) -> None:
        """Read a record below ERROR."""
        # A notice may be one only if it is repeated: its patterns then see how many groups it has so far.
        for match in self._recognizer.find(text, lambda: (f"{name}{len(each.captures)}" for name, each in self.notices.items())):
            self.settings |= {name: value.lower() for name, value in match.captures if name == "device"}
            is_notice = match.signature.severity is not Severity.FATAL and match.signature.id != TERMINATED
            if is_notice or (level == WARNING and not (self.is_stopping or match.pattern.evidence == "error")):
                is_weak = match.pattern.evidence == "warning"
                self._collect(match.signature, self._seen(None, text, number, match, warned=True, weak=is_weak))
        if self._ready and level == WARNING and not self._stopping:
            # When the engine has died, the server only logs a warning, and later that it shuts down, as if it had been told to.
            self._look_for_failure("", text, number)

    def throughput(self, text: str, number: int) -> None:
        """Read a record about the throughput: the engine stands still if requests run without output, and a process stalls, or it lasts."""
        self.notices.pop(STILL, None)
        repeated = self._throughput[1] + 1 if text == self._throughput[0] else 1
        self._throughput = (text, repeated)
        if STALL in self.notices or repeated >= _STILL_RECORDS:
            self.record(INFO, text, number)

    def error(self, process: str, level: int | None, text: str, number: int) -> None:
        """Read a line of an error record, or raw output. It is the last of `tracebacks.recent`."""
        text = ungrouped(text)
        part = self.tracebacks.take(process, text, number, raw=level is None)
        self._unfold(process, level, part, text, number)
        if self._stopping and (failure := self._recognizer.look(text).failure) is not None and failure.unbidden:
            self._stopping = False  # the other processes were told to stop because this one had died
            self.notices.pop(TOLD_TO_STOP, None)
        if self._stopping or (part is Part.FRAME and not text.startswith(tracebacks.NATIVE_FRAME)):
            if len(text) > len(tracebacks.BEGINNING) and text.startswith(tracebacks.BEGINNING):
                # The line ends of a copied log were lost.
                self.error(process, level, text.replace(tracebacks.BEGINNING, "").lstrip(": >"), number)
            return
        if part is Part.OTHER and level is not None and text.strip() and self._recognizer.look(text).failure is None:
            self._said = _Message(process, text, number)
        if part is Part.OTHER and self._found.wrapped is None and not self._may_matter(text):
            return
        harmless = part is not Part.OTHER and self.tracebacks.is_harmless(process)
        closed = self.tracebacks.close(process) if part is Part.EXCEPTION else None
        if self._is_unrelated(process, level, part, text, number, harmless=harmless):
            return
        is_code = level is None and part is not Part.EXCEPTION and self._forms.source_line.match(text) is not None
        if is_code and not (self._forms.validation.match(text) or self.tracebacks.follows_frames(process)):
            self._continue(process, text)
            return
        self._explain(process, level, part, text, number, closed)

    def _unfold(self, process: str, level: int | None, part: Part, text: str, number: int) -> None:
        """Collect the lines after a message that ends with "Reasons:" or "Ninja output:", because they say why."""
        known = self._unfolding
        is_next = known is not None and known.is_raw is (level is None) and number - known.number <= _UNFOLDS_WITHIN
        if known is not None and known.process == process and is_next and not text.startswith(tracebacks.BEGINNING):
            tells = part in (Part.OTHER, Part.EXCEPTION) and text and text not in known.text and not self._forms.between.match(text)
            if tells and len(known.reasons) < _UNFOLDED and ("CUDA error" not in known.text or "hip" in text):
                known.reasons.append(text.strip())
        elif part is Part.EXCEPTION and self._forms.unfolds.search(text):
            self._unfolding = _Message(process, text, number, is_raw=level is None)
        elif known is not None and known.process == process:
            self._unfolding = None

    def _may_matter(self, text: str) -> bool:
        """Return whether a line outside of tracebacks may say something about a crash. This is cheap, and False for most lines."""
        seen = self._recognizer.look(text)
        is_known = seen.patterns or seen.failure or "with error '" in text or "method" in text
        return bool(is_known or self._forms.panic.match(text) or self._forms.validation.match(text))

    def _is_unrelated(self, process: str, level: int | None, part: Part, text: str, number: int, *, harmless: bool) -> bool:
        """Return whether the line reports an error that does not belong to the start. Collect what may explain a later failure."""
        recent = self.tracebacks.recent
        beside = part is Part.EXCEPTION and self.tracebacks.mention(self._forms.tracebacks.bystanders)
        failure = self._recognizer.look(text).failure
        if failure is None and harmless:
            if self._forms.device.search(text):
                self._match(process, text, number, weak=True)  # this process survived it, but the engine needs it too
            return True
        if (level is None and is_no_report(text, recent)) or (beside and self._is_aside(process, text, number)):
            return True
        if failure is not None:
            # This is how a program ends that uses the engine as a library.
            return (self._ready or self.stage == _LAST_STAGE) and failure.death and not failure.serving
        # Errors of vLLM's serving modules are caused by requests, unless the engine is dead.
        is_of_request = level is not None and bool(recent) and self._forms.tracebacks.request_header.search(recent[-1].header) is not None
        is_of_request = is_of_request or (beside and is_of_a_request(self.tracebacks.frames(process)))
        for match in self._recognizer.find(text, lambda: self.tracebacks.frames(process)) if is_of_request else ():
            if match.signature.severity is Severity.DEGRADED and match.signature.id != TERMINATED:
                self._collect(match.signature, self._seen(process, text, number, match))  # no request can be answered
        return is_of_request

    def _is_aside(self, process: str, text: str, number: int) -> bool:
        """Return whether an exception is one of a program beside the engine, which imports vLLM and reports errors of the import."""
        recent, frames = self.tracebacks.recent, self.tracebacks.frames(process)
        if any(ASIDE in frame for frame in frames):
            # That vLLM is not installed where this program runs means nothing.
            for match in self._recognizer.find(text) if "No module named 'vllm'" not in text else ():
                self._found.beside = self._found.beside or self._seen(process, text, number, match)
            return True
        # In a shortened traceback, the command before it remains.
        return len(recent) > 1 + len(frames) and ASIDE in recent[-2 - len(frames)].text

    def _explain(self, process: str, level: int | None, part: Part, text: str, number: int, closed: Traceback | None) -> None:
        """Collect what the line says about a crash."""
        sure = level is not None or part is not Part.OTHER
        self._look_for_failure(process, text, number, sure=sure or text.startswith("Process "))
        known = self._match(process, text, number, provisional=part is Part.CODE, sure=sure)
        if part is Part.EXCEPTION and not known and text.startswith("AssertionError"):
            frames = self.tracebacks.frames(process, 1)
            known = bool(frames) and self._match(process, frames[-1].strip(), number)
        if part is Part.OTHER and not known:
            self._continue(process, text)
        if not known and ("with error '" in text or "method" in text) and self._forms.quoting.search(text):
            self._found.quoted = self._found.quoted or self._seen(process, text, number)
        if part is Part.EXCEPTION:
            self._found.wrapped = None if known else _Message(process, text, number)
        elif self._forms.unfinished.search(text):
            self._found.wrapped = _Message(process, text, number, wraps=_WRAPS)
        elif not known and self._forms.panic.match(text):
            self._found.unknown = self._found.unknown or self._seen(process, text, number)
            self._found.wrapped = _Message(process, text, number)
        unknown = self._found.unknown
        if text.startswith(tracebacks.CHAINED) and unknown is not None and unknown.process == process:
            # Of a chain, the last exception says what failed, and the first one why. A handler may have failed by itself, but an exception
            # without a message says nothing alone.
            self._found.chained = unknown if text.startswith(tracebacks.CHAINED[0]) or ":" not in unknown.text else None
        recent, is_field = self.tracebacks.recent, self._forms.validation.match(text) is not None
        # The name of a field of the configuration is on the line before its error.
        if is_field and len(recent) > 1 and _FIELD.fullmatch(name := recent[-2].text.strip()):
            text = f"{name} - {text.strip()}"
        if part is Part.EXCEPTION or is_field:
            self._exception(process, text, number, closed, known=known)

    def _continue(self, process: str, text: str) -> None:
        """Read a line as the next part of the latest exception, whose message a terminal or browser may have wrapped."""
        message, more = self._found.wrapped, text.lstrip()
        if message is None or process not in (message.process, ""):
            return
        number, begun = message.number, message.text
        if any(self._match(message.process, begun + space + more, number) for space in (" ", "")):
            self._found.wrapped = None
            return
        # The message of a panic, and of an exception without text on its own line, is on the next line.
        bare = self._forms.panic.match(begun) or begun.rstrip().endswith("Error:")
        if not message.wraps and bare and self._found.unknown is not None and self._found.unknown.number == number:
            self._found.unknown = replace(self._found.unknown, text=f"{begun.rstrip()} {text.strip()}"[: 2 * SHOWN_LIMIT])
        longer = replace(message, text=f"{begun} {more}"[: 2 * SHOWN_LIMIT], wraps=message.wraps + 1)
        self._found.wrapped = longer if message.wraps < _WRAPS else None

    def _look_for_failure(self, process: str, text: str, number: int, *, sure: bool = True) -> None:
        failure = self._recognizer.look(text).failure
        if failure is None or (self._ready and not failure.serving):
            return
        if failure.native and not self._recognizer.look(text).is_echo and self._found.unknown is None:
            # It replaces an exception. A weak signature may match it, which explains less than any other signature.
            weak = next((each for each in self._recognizer.find(text) if each.pattern.evidence == "weak"), None)
            seen = self._seen(process, text, number, weak)
            before = self._found.evidence.get(weak.signature.id) if weak is not None else None
            self._found.unknown = seen if before is None or len(before.captures) <= len(seen.captures) else before
        if sure:
            self._found.failure_at = self._found.failure_at or number
        self._fail(number, death=failure.death)

    def _fail(self, number: int, *, death: bool = False) -> None:
        if not self._found.failed:
            self._found.failed, self._found.failed_at, self._found.failed_records = True, number, self._found.records
            self._found.only_death = death
            if self._ready:
                self._found.keep(lambda each: number - each.number < _SERVING_WINDOW)
        elif not death:
            self._found.only_death = False

    def _match(self, process: str, text: str, number: int, *, provisional: bool = False, weak: bool = False, sure: bool = True) -> bool:
        """Collect the signatures that the line matches. Return whether one of them explains the crash."""
        known = False
        stage = f"stage {self.stage} after {self.settings.get('looped', '')} "
        for match in self._recognizer.find(text, lambda: (*self.tracebacks.frames(process), text, stage + " ".join(self._found.evidence))):
            if not (sure or match.is_reported_by(text)):
                continue
            is_weak, overrules = weak or match.pattern.evidence in ("weak", "warning"), match.pattern.overrules or ()
            seen = self._seen(process, text, number, match, weak=is_weak, provisional=provisional, overrules=overrules)
            is_evidence = self._collect(match.signature, seen)
            known = known or (is_evidence and not (match.signature.is_echo or provisional))
        return known

    def _exception(self, process: str, text: str, number: int, closed: Traceback | None, *, known: bool) -> None:
        if text.startswith("KeyboardInterrupt"):
            self.note_stop(number)
            # After an interrupt, the processes end too.
            self._found.keep(lambda each: not each.text.startswith("Process EngineCore"))
        # A request that is refused ends no engine, unless the engine says so.
        ended_it = self._found.failed and process.startswith("EngineCore") and text.startswith("vllm.")
        if text.startswith(("KeyboardInterrupt", *self._forms.elsewhere)) and not ended_it:
            self._found.failure_at = None
            return
        if not known and self._recognizer.look(text).is_echo:
            self._found.echoed = self._found.echoed or self._seen(process, text, number)
        elif not known:
            first = self._found.chained
            if first is not None and first is self._found.unknown and first.process == process:
                self._found.unknown = replace(self._seen(process, text, number), because=first.because or f"caused by {first.text}")
            if self._found.unknown is None:
                self._found.unknown = self._seen(process, text, number, because=self._before(process, text, number, closed))
        if self._found.chained is not None and self._found.chained.process == process:
            self._found.chained = None
        if closed is not None and closed.uncaught and not self._ready:
            self._fail(number)

    def _before(self, process: str, text: str, number: int, closed: Traceback | None) -> str:
        """Return what the log says right before an error that may be why it happened."""
        said = self._said
        is_recent = said.text and said.process == process and number - said.number <= tracebacks.LINES_KEPT
        if is_recent and _BARE.fullmatch(text.strip()) is not None:
            return f"after {said.text.strip()}"
        if closed is None:
            return ""
        start = number - closed.number + 1
        lines = islice(reversed(self.tracebacks.recent), start, start + _NEAR)
        near = [each for each in lines if each.process in ("", process)]
        near = [each for each in near if each.level in (None, WARNING) or each.text[1:5].isdigit()]  # a record of glog (E0824)
        near = [each for each in near if self._forms.native.match(each.text[:SHOWN_LIMIT]) and not any(self._recognizer.find(each.text))]
        if near:  # of several lines of raw output, the first one says why
            why = ([each for each in near if each.level != WARNING] or near[:1])[-1]
            return f"{_WARNED if why.level == WARNING else 'before it: '}{why.text.strip()}"
        title = self._forms.title.sub("", closed.title, count=1)
        is_empty = title.endswith(" failed to start.") or self._recognizer.look(title).failure is not None
        return f"after {title}" if not is_empty and text.partition(": ")[2] not in title and any(map(str.isalpha, title)) else ""

    def _collect(self, signature: Signature, evidence: Evidence) -> bool:
        """Add evidence for this signature. Return whether it may explain a crash, and is no notice."""
        if signature.severity is not Severity.FATAL and signature.id != TERMINATED:
            before = self.notices.get(signature.id, evidence)
            self.notices[signature.id] = evidence if len(before.captures) < len(evidence.captures) else before
            return False
        self._found.add(signature.id, evidence)
        return True

    def crash(self, *, ended: bool) -> Crash | None:
        """Return the crash, if the log shows one. `ended`: the process ended where the log ends."""
        is_quiet = self._ready or not ended or self._stopping
        if not self._found.failed and (is_quiet or self.tracebacks.mention(self._forms.tracebacks.clients)):
            return None
        chosen = self._found.cause(self._titled() if ended else None)
        if chosen is not None and chosen.signature is not None and chosen.signature.is_echo and ended:
            chosen = replace(chosen, because=self._cut_off_in(chosen.process))
        return self._described(chosen) if chosen is not None else None

    def _cut_off_in(self, process: str) -> str:
        """Return how far the traceback goes in which the log ends."""
        is_open = any(each == process for each, _ in self.tracebacks.unfinished())
        where = _function_of(self.tracebacks.frames(process)) if is_open else ""
        return f"Its traceback was cut off in {where}." if where else ""

    def of_source_line(self, text: str) -> Crash | None:
        """Return the crash for a text that is a single source line. In a log, such a line would be part of a traceback."""
        found = self._recognizer.find(text) if self._forms.source_line.match(text) is not None else ()
        chosen = _best(self._seen(None, text, 1, each) for each in found if each.signature.severity is Severity.FATAL)
        return _to_crash(chosen, {}, self._recognizer) if chosen is not None else None

    @property
    def cut_off_at(self) -> int | None:
        """Line that says that a process failed, if the log ends before the error; else None."""
        if self._ready or self._stopping or self.tracebacks.mention((*self._forms.tracebacks.clients, ASIDE)):
            return None
        broken = (each.number for process, each in self.tracebacks.broken_off() if not is_of_a_request(self.tracebacks.frames(process)))
        return next(broken, self._found.failure_at)

    def notices_beside(self, crash: Crash | None) -> tuple[Crash, ...]:
        """Return notices that matter beside this crash, or without a crash, in the order of the log."""
        name = crash.signature if crash is not None else None
        beside = (self._described(each) for each in self.notices.values() if each.signature and each.signature.is_shown_beside(name))
        shown = [each for each in beside if each.cause]  # a template may find that it says nothing here
        if crash is None and self._ready:
            survived = self._survived_error if self._stopping else self._find_survived_error()
            shown += [survived] if survived is not None else []
        return tuple(sorted(shown, key=lambda each: each.line_number or 0))

    def _find_survived_error(self) -> Crash | None:
        """Return the error that a process of the engine logged after the start and that did not end it; None without one."""
        errors = (each for each in self._found.evidence.values() if each.is_error and not each.is_doubtful)
        said = self._said
        found = self._found.unknown or _best(errors) or Evidence(None, said.text, said.number, said.process)
        if not found.process.startswith(("EngineCore", "Worker")) or KV_TRANSFERS in self.notices:
            return None
        known, texts = self._described(found, alive="yes"), self._forms.texts
        cause = texts["goesOn"] + known.cause.removeprefix(f"{texts['unknownCause']}: ")
        return replace(known, signature=known.family or known.signature, cause=cause)

    def consequences(self, crash: Crash) -> tuple[Crash, ...]:
        """Return errors of known kinds after the one that is the crash, in the order of the log."""
        later = (each for each in self._found.evidence.values() if each.number > (crash.line_number or 0) and each.is_error)
        known = (each for each in later if each.signature is not None and each.signature.id != crash.signature)
        return tuple(map(self._described, sorted(known, key=lambda each: each.number)))

    def _described(self, evidence: Evidence, **more: str) -> Crash:
        facts = {**self.settings, "stage": self.stage, "notices": " ".join(self.notices), **more}
        crash = _to_crash(evidence, facts, self._recognizer)
        near = [each for each in (evidence, *self._found.evidence.values(), self._found.unknown) if each is not None]
        lines = (line for each in near for line in (*each.frames, each.text, *each.more))
        shown = "\n".join((*(f"{name}={value}" for name, value in self.settings.items()), *lines))
        is_users = evidence.signature is not None and evidence.signature.is_user_defined
        return crash if is_users else replace(crash, remedy=self._recognizer.adapted(crash.remedy or "", shown))

    def _titled(self) -> Evidence | None:
        """Return the record that announces the error that ended the engine, if the log ends within its traceback; None otherwise."""
        for _, traceback in self.tracebacks.broken_off():
            text = self._forms.title.sub("", traceback.title, count=1)
            if traceback.ends_engine and any(map(str.isalnum, text)) and self._recognizer.look(text).failure is None:
                return self._seen(None, text, traceback.number)
        return None

    def _seen(self, process: str | None, text: str, number: int, match: Match | None = None, **marks: Any) -> Evidence:
        """Return evidence with the last frames of the process; without a process there are none. `marks` are fields of the evidence."""
        signature = match.signature if match is not None else None
        captures = tuple((name, value[:SHOWN_LIMIT]) for name, value in match.captures) if match is not None else ()
        frames = self.tracebacks.frames(process, _KIND_FRAMES) if process is not None else ()
        more = self._unfolding.reasons if self._unfolding is not None and self._unfolding.number == number else []
        marks |= {"records": self._found.records, "time": self._clock.now(), "more": more}
        return Evidence(signature, text[: 2 * SHOWN_LIMIT], number, process or "", frames, captures, **marks)
