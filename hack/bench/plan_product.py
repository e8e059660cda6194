"""Choose backends for the whole product of versions, GPUs, models, goals and shapes; print a table.

    python hack/bench/plan_product.py

Exit status 1 if a decision raises, sets what its version does not know, or chooses what does not work there.
"""

import statistics
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "operator"), str(ROOT / "tests")]

from support.product import cases, faults  # noqa: E402  # the paths come first


def main() -> int:
    """Go through the product; return the exit status."""
    wrong: Counter[str] = Counter()
    durations: list[float] = []
    settings = refused = 0
    for case in cases():
        started = time.process_time()
        try:
            decision = case.decide()
        except Exception as error:  # whatever it is, it is what this script looks for
            wrong[f"{type(error).__name__}: {error}"] += 1
            continue
        durations.append(time.process_time() - started)
        settings += len(decision.env) + len(decision.args)
        refused += decision.refusal is not None
        wrong.update(f"{fault} ({case.version} {case.architecture} {case.model} {case.shape})" for fault in faults(case, decision))
    rows = {
        "decisions": len(durations),
        "variables and flags emitted": settings,
        "refused": refused,
        "wrong": wrong.total(),
        "CPU seconds in all": round(sum(durations), 1),
        "median milliseconds": round(statistics.median(durations) * 1000, 2),
        "p99 milliseconds": round(statistics.quantiles(durations, n=100)[98] * 1000, 2),
    }
    for name, value in rows.items():
        print(f"{name:<30}{value:>10}")
    for message, count in wrong.most_common(20):
        print(f"{count:>6}  {message}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
