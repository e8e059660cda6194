"""Recognising what the catalog knows in a line, without trying hundreds of regular expressions on it.

Every pattern of a signature has an anchor, a piece of text that its lines contain. These, and the texts that say that a
process has failed or that an exception is an echo, are looked for in one pass; a regular expression is tried only where
its anchor stands, and compiled when it first is, which keeps the command line quick.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from vllm_operator.catalog.signatures import LinePattern, Signature
from vllm_operator.catalog.startup import Failure, Stages
from vllm_operator.catalog.user_texts import compile_linear
from vllm_operator.startup.literals import Literals

_NAME = re.compile(r"[\w.]+")
_IDEOGRAPHS = ("\u4e00", "\u9fff")
_CLOSING = "\"'`*)\u201d\u2019\u300d\u300f"
_CLOSING_KEPT = 4
_QUOTES = frozenset("`\"'")


class Match(NamedTuple):
    """A line belongs to `signature`, by `pattern`. `captures` are the named groups that took part.

    `name` is what was found, if it is one word. `after` is the character behind what was found, and behind the marks that close a
    quotation.
    """

    signature: Signature
    captures: tuple[tuple[str, str], ...]
    pattern: LinePattern
    name: str = ""
    after: str = ""

    def is_reported_by(self, text: str) -> bool:
        """Whether the line says that it happened. A text about errors has their names too, but they stand in its sentences."""
        if _IDEOGRAPHS[0] <= self.after <= _IDEOGRAPHS[1]:
            return False  # A message ends at a mark or a space; what goes on like this is a sentence that mentions it.
        if not self.name:
            return True
        name = re.escape(self.name)
        return re.search(rf"(?:[:(\[]|(?<!=)=|\d/\d) *[\"']?[\w.:<]*{name}|{name}(?:\(\w+\))?[]:)>]|^[\w.]*{name}$", text) is not None


def _tidy(value: str) -> str:
    """What was captured without what ends the sentence that it stood in, or a quotation which began before it."""
    value = value.strip()
    value = value[:-1] if value[-1:] in _QUOTES and value.count(value[-1]) == 1 else value
    return value.removesuffix(".") if " " not in value else value


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A pattern of a signature; `order` is its place among all of them."""

    order: int
    signature: Signature
    pattern: LinePattern

    def search(self, text: str, context: Callable[[], Iterable[str]]) -> re.Match[str] | None:
        prepare = compile_linear if self.signature.is_user_defined else _compiled
        found = prepare(self.pattern.regex).search(text)
        if found is None or self.pattern.context is None:
            return found
        frame = prepare(self.pattern.context)
        return found if any(frame.search(line.rstrip()) for line in context()) else None


class _Seen(NamedTuple):
    """What is known of a line: the texts of the catalog that stand in it."""

    failure: Failure | None = None
    is_echo: bool = False
    patterns: tuple[_Pattern, ...] = ()


_NOTHING = _Seen()


class Recognizer:
    """All that the catalog knows of lines that may tell of a crash. A line that is asked about several times is looked at once."""

    def __init__(self, signatures: Iterable[Signature], stages: Stages) -> None:
        """Prepare to look for it."""
        numbered = enumerate((signature, pattern) for signature in signatures for pattern in signature.patterns)
        patterns: dict[str, list[_Pattern]] = {}
        for order, (signature, pattern) in numbered:
            patterns.setdefault(pattern.anchor, []).append(_Pattern(order, signature, pattern))
        self._patterns = {anchor: tuple(each) for anchor, each in patterns.items()}
        self._failures = {failure.text: failure for failure in stages.failures}
        self._echoes = frozenset(stages.echoes)
        self._literals = Literals((*self._failures, *self._echoes, *self._patterns))
        self._latest: tuple[str, _Seen] = ("", _NOTHING)

    def failure(self, text: str) -> Failure | None:
        """What the line says of a process that has failed, if it does."""
        return self._look(text).failure

    def is_echo(self, text: str) -> bool:
        """Whether an exception only reports what failed elsewhere."""
        return self._look(text).is_echo

    def is_known(self, text: str) -> bool:
        """Whether the line may tell of a crash, or of a process that has failed."""
        seen = self._look(text)
        return bool(seen.patterns) or seen.failure is not None

    def find(self, text: str, context: Callable[[], Iterable[str]] = tuple) -> Iterator[Match]:
        """All signatures that the line belongs to, each once. `context`: gives the frames of the traceback that it ends."""
        found_before: set[str] = set()
        for each in self._look(text).patterns:
            signature = each.signature
            if signature.id in found_before:
                continue
            found = each.search(text, context)
            if found is not None:
                found_before.add(signature.id)
                captures = tuple((name, _tidy(value)) for name, value in found.groupdict().items() if value)
                name = found[0] if _NAME.fullmatch(found[0]) else ""
                after = text[found.end() : found.end() + _CLOSING_KEPT].lstrip(_CLOSING)
                yield Match(signature, captures, each.pattern, name, after[:1])

    def _look(self, text: str) -> _Seen:
        latest, seen = self._latest
        if latest != text:
            seen = self._seen(text)
            self._latest = text, seen
        return seen

    def _seen(self, text: str) -> _Seen:
        found = self._literals.find(text)
        if not found:
            return _NOTHING
        if len(found) == 1:
            only = found[0]
            return _Seen(self._failures.get(only), only in self._echoes, self._patterns.get(only, ()))
        failures = [each for each in found if each in self._failures]
        patterns = [pattern for each in found for pattern in self._patterns.get(each, ())]
        return _Seen(
            self._failures[min(failures, key=text.find)] if failures else None,
            not self._echoes.isdisjoint(found),
            tuple(sorted(patterns, key=attrgetter("order"))),
        )


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex)
