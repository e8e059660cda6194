"""`vllm-operator signatures [NAME]`: the known crashes. Needs no cluster."""

import argparse
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.catalog.signatures import Change, Remedy, Signature, load_remedies, load_signature_samples
from vllm_operator.catalog.templates import fill_in, fill_in_exactly
from vllm_operator.cli.diagnose import add_signatures_option, known_crashes
from vllm_operator.cli.inputs import InputError
from vllm_operator.text.wording import listed, similar

_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="show everything about one signature. Without it, all are listed")
    add_signatures_option(parser)
    parser.add_argument("-o", "--output", choices=("json",), help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the signatures. Return the exit status."""
    signatures = {signature.id: signature for signature in known_crashes(arguments.signatures).signatures}
    remedies = load_remedies()
    chosen = list(signatures.values())
    if arguments.name is not None:
        found = {name.casefold(): one for name, one in signatures.items()}.get(arguments.name.casefold())
        if found is None:
            near = similar(arguments.name, signatures, most=3)
            hint = f" Did you mean {listed(near, 'or')}?" if near else ""
            raise InputError(f"there is no signature {arguments.name}.{hint}")
        chosen = [found]
    if arguments.output == "json":
        entries = [as_json(signature, remedies.get(signature.id)) for signature in chosen]
        print(json.dumps(entries if arguments.name is None else entries[0]))
    elif arguments.name is None:
        print("\n".join(_line(example) for example in examples(chosen)))
    else:
        print(page(examples([chosen[0]])[0], remedies.get(chosen[0].id)))
    return 0


@dataclass(frozen=True, slots=True)
class Example:
    """A signature with its texts filled in from a recorded line. Without one, `line` is None and `captures` is empty."""

    signature: Signature
    cause: str
    remedy: str
    line: str | None = None
    captures: Mapping[str, str] = field(default_factory=dict)


def examples(signatures: Iterable[Signature]) -> list[Example]:
    """Return the signatures with texts filled in from their recorded lines."""
    samples = load_signature_samples()
    return [_example(signature, [sample.text for sample in samples if sample.signature == signature.id]) for signature in signatures]


def _example(signature: Signature, texts: Sequence[str]) -> Example:
    """Return the example from the recorded line with the most captures."""
    best: tuple[int, str | None, dict[str, str]] = (-1, None, {})
    for line in (line for text in texts for line in text.splitlines()):
        for pattern in signature.patterns:
            found = re.search(pattern.regex, line)
            captures = {name: value for name, value in found.groupdict().items() if value} if found else {}
            if found and len(captures) > best[0]:
                best = (len(captures), line.strip(), captures)
    captured = best[2].items()
    return Example(signature, fill_in(signature.cause, captured), fill_in(signature.remedy, captured), best[1], best[2])


def as_json(signature: Signature, remedy: Remedy | None) -> Mapping[str, Any]:
    """Return a signature as JSON."""
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
    """Return the page of one signature. Numbers and names in its texts come from the example."""
    signature = example.signature
    changes = [change_in_words(change, example.captures) for change in (*signature.arguments, *signature.environment)]
    parts = [
        f"{signature.id} ({signature.severity.value})",
        _filled(f"vLLM versions: {signature.versions}. GPUs: {signature.architectures}."),
        "What happened\n" + _filled(example.cause),
        "What to do\n" + _filled(example.remedy),
        "Changes\n" + "\n".join(f"  {change}" for change in changes) if changes else "",
        "Applied automatically\n" + _filled(automatic(remedy)),
        "Example\n" + f"  {example.line}" if example.line else "",
        "Patterns\n" + "\n".join(f"  {pattern.regex}" for pattern in signature.patterns),
        "Read more\n" + "\n".join(f"  {reference}" for reference in signature.references) if signature.references else "",
    ]
    return "\n\n".join(part for part in parts if part)


def automatic(remedy: Remedy | None) -> str:
    """Describe when the operator applies the remedy automatically."""
    if remedy is None:
        return "Never."
    return (
        f"With spec.remediation.mode Auto: {', '.join(remedy.changes)}; vLLM {remedy.versions}; "
        f"GPUs: {', '.join(remedy.architectures)}. Cost: {remedy.costs}."
    )


def change_in_words(change: Change, captures: Mapping[str, str] | None = None) -> str:
    """Return `--flag value`, `VARIABLE=value`, or the item to remove. With `captures`, the value is filled in."""
    known = f" (vLLM {change.versions})" if change.versions else ""
    if change.remove:
        return f"remove {change.name}{known}"
    if change.value is None:
        return f"{change.name}{known}"
    value = change.value if captures is None else fill_in_exactly(change.value, captures) or "<value>"
    return f"{change.name}{' ' if change.name.startswith('-') else '='}{value}{known}"


def _line(example: Example) -> str:
    signature = example.signature
    return f"{signature.id:38} {signature.severity.value:9} {textwrap.shorten(example.cause, _WIDTH, placeholder=' ...')}"


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
