"""`vllm-operator signatures [NAME]`: the crashes that are known by name. Needs no cluster."""

import argparse
import difflib
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_operator.catalog.signatures import Change, Remedy, Signature, load_remedies, load_signature_samples
from vllm_operator.catalog.templates import fill_in
from vllm_operator.cli.user_signatures import USER_SIGNATURES_HELP, UserSignaturesError, known_crashes

_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="show one signature in full; all in short if absent")
    parser.add_argument("--signatures", metavar="FILE", action="append", default=[], help=USER_SIGNATURES_HELP)
    parser.add_argument("-o", "--output", choices=("json",), help="print JSON instead of a page for people")


def run(arguments: argparse.Namespace) -> int:
    """Print them; 0, or 2 if there is no signature of that name or a file of the user cannot be used."""
    try:
        known = known_crashes(arguments.signatures)
    except UserSignaturesError as error:
        print(f"vllm-operator signatures: {error}", file=sys.stderr)
        return 2
    signatures = {signature.id: signature for signature in known.signatures}
    remedies = load_remedies()
    if arguments.name is None:
        chosen = list(signatures.values())
    elif (found := {name.casefold(): one for name, one in signatures.items()}.get(arguments.name.casefold())) is not None:
        chosen = [found]
    else:
        near = difflib.get_close_matches(arguments.name, signatures, n=3, cutoff=0.4)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        print(f"vllm-operator signatures: no crash of the name {arguments.name} is known.{hint}", file=sys.stderr)
        return 2
    if arguments.output == "json":
        listed = [as_json(signature, remedies.get(signature.id)) for signature in chosen]
        print(json.dumps(listed if arguments.name is None else listed[0]))
    elif arguments.name is None:
        print("\n".join(_line(example) for example in examples(chosen)))
    else:
        print(page(examples([chosen[0]])[0], remedies.get(chosen[0].id)))
    return 0


@dataclass(frozen=True, slots=True)
class Example:
    """A signature with its texts as they read for a line that was seen; `line` is None where none is recorded."""

    signature: Signature
    cause: str
    remedy: str
    line: str | None = None


def examples(signatures: Iterable[Signature]) -> list[Example]:
    """Put the texts of signatures into words by their recorded lines."""
    samples = load_signature_samples()
    return [_example(signature, [sample.text for sample in samples if sample.signature == signature.id]) for signature in signatures]


def _example(signature: Signature, texts: Sequence[str]) -> Example:
    """The recorded line that says most."""
    best: tuple[int, str | None, dict[str, str]] = (-1, None, {})
    for line in (line for text in texts for line in text.splitlines()):
        for pattern in signature.patterns:
            found = re.search(pattern.regex, line)
            captures = {name: value for name, value in found.groupdict().items() if value} if found else {}
            if found and len(captures) > best[0]:
                best = (len(captures), line.strip(), captures)
    captured = best[2].items()
    return Example(signature, fill_in(signature.cause, captured), fill_in(signature.remedy, captured), best[1])


def as_json(signature: Signature, remedy: Remedy | None) -> Mapping[str, Any]:
    """What `-o json` prints."""
    return {
        "name": signature.id,
        "severity": signature.severity.value,
        "versions": signature.versions,
        "architectures": signature.architectures,
        "cause": signature.cause,
        "remedy": signature.remedy,
        "arguments": [change_in_words(change) for change in signature.arguments],
        "environment": [change_in_words(change) for change in signature.environment],
        "retryable": signature.retryable,
        "automatic": None if remedy is None else {"changes": remedy.changes, "versions": remedy.versions, "costs": remedy.costs},
        "patterns": [pattern.regex for pattern in signature.patterns],
        "references": signature.references,
    }


def page(example: Example, remedy: Remedy | None) -> str:
    """Everything about one signature. Numbers and names are those of the example."""
    signature = example.signature
    changes = [change_in_words(change) for change in (*signature.arguments, *signature.environment)]
    parts = [
        f"{signature.id} ({signature.severity.value})",
        _filled(f"vLLM {signature.versions}; GPUs: {signature.architectures}."),
        "What happened\n" + _filled(example.cause),
        "What to do\n" + _filled(example.remedy),
        "Changes\n" + "\n".join(f"  {change}" for change in changes) if changes else "",
        "Applied without asking\n" + _filled(automatic(remedy)),
        "A line of a log\n" + f"  {example.line}" if example.line else "",
        "Patterns\n" + "\n".join(f"  {pattern.regex}" for pattern in signature.patterns),
        "Read more\n" + "\n".join(f"  {reference}" for reference in signature.references) if signature.references else "",
    ]
    return "\n\n".join(part for part in parts if part)


def automatic(remedy: Remedy | None) -> str:
    """Whether and where the operator applies the remedy by itself."""
    if remedy is None:
        return "Never."
    return (
        f"With spec.remediation.mode Auto: {', '.join(remedy.changes)}; vLLM {remedy.versions}; "
        f"GPUs: {', '.join(remedy.architectures)}. It costs: {remedy.costs}."
    )


def change_in_words(change: Change) -> str:
    """`--flag value`, `VARIABLE=value`, or what is to be removed."""
    known = f" (vLLM {change.versions})" if change.versions else ""
    if change.remove:
        return f"remove {change.name}{known}"
    if change.value is None:
        return f"{change.name}{known}"
    return f"{change.name}{' ' if change.name.startswith('-') else '='}{change.value}{known}"


def _line(example: Example) -> str:
    signature = example.signature
    return f"{signature.id:38} {signature.severity.value:9} {textwrap.shorten(example.cause, _WIDTH, placeholder=' ...')}"


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
