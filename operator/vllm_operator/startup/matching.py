"""Finding the signatures that a line may belong to, without trying hundreds of regular expressions on it.

Every pattern has an anchor, a piece of text that its lines contain. The longest word of the anchor is the key of
an index: the words of a line select the few patterns that are tried. Regular expressions are compiled when they
are first needed, which keeps the command line quick.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from vllm_operator.catalog.linear_patterns import compile_linear
from vllm_operator.catalog.signatures import LinePattern, Signature

_WORD = re.compile(r"[A-Za-z]{2,}")
_NAME = re.compile(r"[\w.]+")


@dataclass(frozen=True, slots=True)
class Match:
    """A line belongs to `signature`. `captures` are the named groups that took part; `name` is what was found, if it is one word."""

    signature: Signature
    captures: tuple[tuple[str, str], ...]
    weak: bool
    name: str = ""

    def is_reported_by(self, text: str) -> bool:
        """Whether the line says that it happened. A text about errors has their names too, but they stand in its sentences."""
        if not self.name:
            return True
        name = re.escape(self.name)
        return re.search(rf"(?:[:(\[]|(?<!=)=|\d/\d) *[\"']?[\w.:<]*{name}|{name}(?:\(\w+\))?[]:)>]|^[\w.]*{name}$", text) is not None


class SignatureIndex:
    """All patterns of all signatures, by the longest word of their anchors."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        """Index the patterns."""
        self._by_word: dict[str, list[tuple[int, Signature, LinePattern]]] = {}
        order = 0
        for signature in signatures:
            for pattern in signature.patterns:
                self._by_word.setdefault(_key(signature, pattern.anchor), []).append((order, signature, pattern))
                order += 1
        self._words = frozenset(self._by_word)

    def find(self, text: str, context: Callable[[], Iterable[str]] = tuple) -> Iterator[Match]:
        """All signatures that `text` belongs to, each once. `context`: gives the frames of the traceback that it ends."""
        words = self._words.intersection(_WORD.findall(text))
        entries = [entry for word in words for entry in self._by_word[word] if entry[2].anchor in text]
        seen: set[str] = set()
        for _, signature, pattern in sorted(entries):  # no two have the same number, so nothing else is compared
            if signature.id in seen:
                continue
            prepare = compile_linear if signature.is_foreign else compiled
            found = prepare(pattern.regex).search(text)
            if found is None or (pattern.context is not None and not _in_context(prepare(pattern.context), context())):
                continue
            seen.add(signature.id)
            captures = tuple((name, value.strip()) for name, value in found.groupdict().items() if value)
            yield Match(signature, captures, pattern.weak, found[0] if _NAME.fullmatch(found[0]) else "")


def _key(signature: Signature, anchor: str) -> str:
    words = list(_WORD.finditer(anchor))
    if not words:
        raise ValueError(f"signature {signature.id}: anchor {anchor!r} contains no word")
    # A word at an end of the anchor may be a part of a longer one in the line.
    whole = [word for word in words if word.start() > 0 and word.end() < len(anchor)]
    return max((word[0] for word in whole or words), key=len)


@lru_cache(maxsize=1024)
def compiled(regex: str) -> re.Pattern[str]:
    """Compile a regular expression of the catalog, once."""
    return re.compile(regex)


def _in_context(regex: re.Pattern[str], context: Iterable[str]) -> bool:
    return any(regex.search(line.rstrip()) for line in context)
