"""Container log files as a container runtime writes them: `TIMESTAMP STREAM F|P TEXT`.

F is a record that a newline ended, P a piece of a longer line. A runtime reads the container's output in blocks of 4 KiB
and writes a record when a newline comes, or when 20 KiB have gathered without one: then the first 16 KiB of it. Nothing
else makes text visible, so a progress bar drawn with carriage returns stays unseen until it ends. What is left when the
container exits is written as a P record.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

Stream = Literal["stdout", "stderr"]

_RECORD = re.compile(rb"(\d{4}-\d\d-\d\dT[^ ]+) (stdout|stderr) ([FP])[^ ]* (.*)", re.DOTALL)
_MOST_IN_A_RECORD = 16_384
_GATHERED_BEFORE_A_PIECE = 20_480


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log file."""

    timestamp: str
    stream: str
    partial: bool
    text: bytes

    @property
    def time(self) -> datetime:
        """The timestamp, to the microsecond."""
        whole, _, rest = self.timestamp.partition(".")
        fraction, zone = re.match(r"(\d*)(.*)", rest).groups() if rest else ("", whole[19:])  # type: ignore[union-attr]  # any text fits
        return datetime.fromisoformat(f"{whole[:19]}.{fraction[:6].ljust(6, '0')}{zone.replace('Z', '+00:00')}")


def parse_record(line: bytes) -> Record | None:
    """Reads one line of a log file; None if it is not a record."""
    found = _RECORD.match(line)
    return Record(found[1].decode(), found[2].decode(), found[3] == b"P", found[4]) if found else None


class LogWriter:
    """Writes what a container prints to a stream into its log file, as a runtime would."""

    def __init__(self, path: Path, *, stream: Stream = "stderr") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        path.touch()
        self._stream = stream
        self._gathered = b""

    def write(self, output: bytes, *, at: datetime | None = None) -> None:
        """Takes output; what it makes visible is in the file when this returns, stamped `at` (now, if not given)."""
        *lines, self._gathered = (self._gathered + output).split(b"\n")
        records = [record for line in lines for record in self._pieces(line, "F")]
        if len(self._gathered) >= _GATHERED_BEFORE_A_PIECE:
            piece, self._gathered = self._gathered[:_MOST_IN_A_RECORD], self._gathered[_MOST_IN_A_RECORD:]
            records.append((piece, "P"))
        self._put(records, at)

    def exit(self, *, at: datetime | None = None) -> None:
        """The container ends: writes what is left, and marks the run as over, so that followers see the end of the stream."""
        self._put([(self._gathered, "P")] if self._gathered else [], at)
        self._gathered = b""
        self._path.with_suffix(".exit").touch()

    @staticmethod
    def _pieces(line: bytes, last: str) -> list[tuple[bytes, str]]:
        cuts = range(0, max(len(line), 1), _MOST_IN_A_RECORD)
        return [(line[cut : cut + _MOST_IN_A_RECORD], last if cut == cuts[-1] else "P") for cut in cuts]

    def _put(self, records: list[tuple[bytes, str]], at: datetime | None) -> None:
        if records:
            stamp = (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            lines = b"".join(f"{stamp} {self._stream} {tag} ".encode() + text + b"\n" for text, tag in records)
            # opened anew each time: the file may have been rotated, and nobody has to close it
            with self._path.open("ab") as file:
                file.write(lines)
