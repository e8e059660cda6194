"""What a run did and what it found wrong, with times: enough to repeat the run."""

import time
from dataclasses import dataclass, field


@dataclass
class Journal:
    """The record of one run. Times are seconds since it began."""

    seed: int
    began: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def note(self, text: str) -> None:
        self.lines.append(f"{self.elapsed():8.2f}  {text}")

    def violate(self, *texts: str) -> None:
        """Records what must not be; the same finding counts once."""
        for text in texts:
            if text not in self.violations:
                self.violations.append(text)
                self.note(f"VIOLATION {text}")

    def report(self) -> str:
        found = "\n".join(f"  - {text}" for text in self.violations)
        acts = "\n".join(self.lines)
        return f"{len(self.violations)} violations with seed {self.seed}:\n{found}\nWhat happened, by seconds:\n{acts}"
