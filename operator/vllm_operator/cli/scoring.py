"""`vllm-operator diagnose --score FOLDER`: how often the diagnosis of labeled logs is right.

The folder has logs and `labels.yaml`, a list with one entry for each log. docs/accuracy.md describes the format and the rules.
"""

import argparse
from collections import Counter
from collections.abc import Collection, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import yaml
from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from vllm_operator.catalog.entry import explain
from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.cli.inputs import InputError, invalid, print_as, read_input, read_text
from vllm_operator.cli.pasted_logs import read_logs
from vllm_operator.logs.crash import UNKNOWN
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Crash

LABELS = "labels.yaml"
NO_NAME = "none"  # the label of a failure for which no signature exists


class Verdict(StrEnum):
    """How right a diagnosis is."""

    RIGHT = "right"
    PARTLY = "partly"
    WRONG = "wrong"
    UNKNOWN = "unknown"


class Label(BaseModel):
    """What is known about a log. Further fields are for readers."""

    file: str
    date: Annotated[str, BeforeValidator(str)] = ""  # YAML reads an unquoted day as a date
    signature: str
    accept: tuple[str, ...] = ()
    must: tuple[str, ...] = ()
    healthy: bool = False


class Scored(NamedTuple):
    """A log with its label, its diagnosis and the verdict."""

    label: Label
    crash: Crash | None
    verdict: Verdict


def judge(label: Label, crash: Crash | None, general: Collection[str] = ()) -> Verdict:
    """Return how right the diagnosis is, by the rules in docs/accuracy.md. `general`: families that say no more than a type."""
    if label.healthy:
        return Verdict.RIGHT if crash is None else Verdict.WRONG
    if crash is None:
        return Verdict.UNKNOWN
    headline = f"{crash.cause} {crash.line}".casefold()
    is_told = all(word.casefold() in headline for word in label.must)
    names = {label.signature, *label.accept}
    if crash.signature != UNKNOWN:
        if crash.signature not in names:
            return Verdict.WRONG
        return Verdict.RIGHT if is_told else Verdict.PARTLY
    if not is_told:
        return Verdict.UNKNOWN
    return Verdict.RIGHT if crash.family and crash.family not in general and NO_NAME in names else Verdict.PARTLY


def read_labels(folder: Path, since: str = "", before: str = "") -> tuple[Label, ...]:
    """Read the labels of logs dated from `since` on and before `before` (`2026-07`; empty: any). Raises InputError for a mistake."""
    path = folder / LABELS
    try:
        labels = TypeAdapter(tuple[Label, ...]).validate_python(yaml.load(read_text(str(path)), Loader=yaml.CSafeLoader))
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {error}") from None
    except ValidationError as error:
        raise invalid(f"{path} is", [explain(error)]) from None
    for label in labels:
        if not (folder / label.file).resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{path} names {label.file}, which is outside its folder")
    return tuple(each for each in labels if each.date >= since and (not before or each.date < before))


def score(folder: Path, labels: Iterable[Label], knowledge: StartupKnowledge) -> tuple[Scored, ...]:
    """Diagnose each log as `diagnose` does. Raises InputError if one cannot be read."""
    scored, general = [], {kind.id for kind in knowledge.kinds if kind.general}
    for label in labels:
        (_, parser), *_ = read_logs(read_input(str(folder / label.file)), lambda: StartupParser(knowledge))
        crash = parser.final_state.crash
        if crash is None:  # a notice may say it
            crash = next((each for each in parser.notices_beside(None) if each.signature in (label.signature, *label.accept)), None)
        scored.append(Scored(label, crash, judge(label, crash, general)))
    return tuple(scored)


def run_score(arguments: argparse.Namespace, knowledge: StartupKnowledge) -> int:
    """Print the verdict about each log, and the totals. Return 0."""
    folder = Path(arguments.score)
    scored = score(folder, read_labels(folder, arguments.since, arguments.before), knowledge)
    totals = Counter(each.verdict for each in scored)
    if arguments.output:
        reports = [
            {"file": each.label.file, "verdict": each.verdict.value, "expected": each.label.signature, "found": _found(each.crash)}
            for each in scored
        ]
        print_as({"reports": reports, "totals": {verdict.value: totals[verdict] for verdict in Verdict}}, arguments.output)
        return 0
    for each in scored:
        print(f"{each.verdict:8} {each.label.file}: {_found(each.crash)}, label {each.label.signature}")
    shares = (f"{verdict} {totals[verdict]} ({100 * totals[verdict] / max(1, len(scored)):.0f} %)" for verdict in Verdict)
    print(f"{len(scored)} reports: {', '.join(shares)}")
    return 0


def _found(crash: Crash | None) -> str:
    if crash is None:
        return "no crash"
    return f"{crash.signature} ({crash.family})" if crash.family else crash.signature
