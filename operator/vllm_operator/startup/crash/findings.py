"""What a log has shown of a crash so far, and which of it is the root cause."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vllm_operator.catalog.signatures import Severity
from vllm_operator.startup.crash.evidence import Evidence, best

TERMINATED = "TerminatedDuringStartup"
_ENGINE_CORE = "EngineCoreInitFailed"
_RECORDS_AFTER = 12
"""An error that the engine outlived by more log records than these explains nothing."""
_KEPT = 16


@dataclass(slots=True)
class Findings:
    """Evidence of one run, since its present stage began or the server became ready.

    `evidence`: by signature. The first exception that no signature matches is `unknown`; `echoed` if it only reports what
    failed elsewhere, `quoted` if a record repeats its message. `beside`: an error of a program beside the engine. `outlived`
    and `outlived_unknown`: what the stages before had. `failed`: a process has failed, at line `failed_at`, after
    `failed_records` records that are no errors.
    """

    evidence: dict[str, Evidence] = field(default_factory=dict)
    unknown: Evidence | None = None
    echoed: Evidence | None = None
    quoted: Evidence | None = None
    beside: Evidence | None = None
    outlived: dict[str, Evidence] = field(default_factory=dict)
    outlived_unknown: Evidence | None = None
    failed: bool = False
    failed_at: int = 0
    failed_records: int = 0

    def fresh(self) -> "Findings":
        """No evidence yet, in the next stage of the same run."""
        return Findings(outlived=self.evidence or self.outlived, outlived_unknown=self.unknown or self.outlived_unknown)

    def fail(self, number: int, records: int) -> None:
        """A process has failed, at this line and after so many records that are no errors."""
        self.failed, self.failed_at, self.failed_records = True, number, records

    def keep(self, is_kept: Callable[[Evidence], bool]) -> None:
        """Forget all evidence but this."""
        self.evidence = {name: each for name, each in self.evidence.items() if is_kept(each)}

    def add(self, evidence: Evidence) -> None:
        """Keep evidence of a signature, if it is better than what there is. Few signatures are kept, the best."""
        assert evidence.signature is not None
        self.evidence[evidence.signature.id] = evidence
        if len(self.evidence) > _KEPT:
            worst = max(self.evidence.values(), key=lambda each: each.rank)
            del self.evidence[worst.signature.id if worst.signature else ""]

    def is_news(self, evidence: Evidence) -> bool:
        """Whether there is no better evidence of the same signature yet."""
        assert evidence.signature is not None
        before = self.evidence.get(evidence.signature.id)
        return before is None or before.quality < evidence.quality

    def root(self, records: int) -> Evidence | None:
        """The error itself, as far as it is in the log. `records`: how many records that are no errors there are by now."""
        known = best(each for each in self._explaining(records) if not (each.weak or each.warned))
        unknown = self.unknown
        counts = unknown is not None and self._counts(unknown, records) and not self._is_overruled(unknown, records)
        return known or (unknown if counts else None)

    def cause(self, records: int, titled: Evidence | None) -> Evidence | None:
        """The best explanation. `titled`: how an error was announced that the log does not hold."""
        return (
            self.root(records)
            or best(each for each in self._explaining(records) if each.weak or (each.warned and self.failed))
            or self._ended_from_outside(records)
            or self._just_before(records)
            or titled
            or self.quoted
            or self._fallback()
        )

    def _explaining(self, records: int) -> Iterator[Evidence]:
        for each in self.evidence.values():
            fatal = each.signature is not None and each.signature.severity is Severity.FATAL and not each.signature.is_echo
            if fatal and self._counts(each, records) and not self._is_overruled(each, records):
                yield each

    def _counts(self, evidence: Evidence, records: int) -> bool:
        # Without a failure an error that the engine outlived by some lines explains nothing.
        return self.failed or records - evidence.records <= _RECORDS_AFTER

    def _ended_from_outside(self, records: int) -> Evidence | None:
        """The line which says that what failed was ended from outside."""
        return next((each for each in self.evidence.values() if each.overrules and self._counts(each, records)), None)

    def _is_overruled(self, evidence: Evidence, records: int) -> bool:
        told = self._ended_from_outside(records)
        if told is None or evidence is told:
            return False
        is_named = evidence.signature is not None and evidence.signature.id in told.overrules
        return evidence.weak or is_named or evidence.number > told.number

    def _just_before(self, records: int) -> Evidence | None:
        # Another process may go on for a moment, so that an error right before the failure looks as if it was survived.
        known = best(
            each
            for each in self.outlived.values()
            if self._failed_soon_after(each, records)
            and each.signature is not None
            and each.signature.severity is Severity.FATAL
            and not (each.signature.is_echo or each.weak or each.warned)
        )
        unknown = self.outlived_unknown
        return known or (unknown if unknown is not None and self.failed and self._failed_soon_after(unknown, records) else None)

    def _failed_soon_after(self, evidence: Evidence, records: int) -> bool:
        return (self.failed_records if self.failed else records) - evidence.records <= _RECORDS_AFTER

    def _fallback(self) -> Evidence | None:
        echo = best(each for each in self.evidence.values() if each.signature is not None and each.signature.is_echo)
        other = self.evidence.get(TERMINATED)
        if echo is not None and other is not None and self._is_of_a_stop(echo, other):
            return other
        return echo or other or (self.echoed if self.failed else self.beside)

    def _is_of_a_stop(self, echo: Evidence, told: Evidence) -> bool:
        # Where all processes are told to stop at once, a worker fails because another one has ended. Had one died by itself, the engine
        # core would have ended the others and said so.
        by_worker = dict(echo.captures).get("begun") is not None and _ENGINE_CORE not in self.evidence
        return by_worker and told.number < self.failed_at
