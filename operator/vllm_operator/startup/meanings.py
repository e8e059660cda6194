"""Finding what a log record means by the first word of its message.

Most records say nothing about a start, and their first word tells that; regular expressions are tried only on the others.
"""

import re
from collections.abc import Iterable
from functools import cache

from vllm_operator.catalog.startup import LineMeaning


class Meanings:
    """All that the catalog knows of what log records mean."""

    def __init__(self, meanings: Iterable[LineMeaning]) -> None:
        """Prepare to look for it. Of two that fit the first wins."""
        by_word: dict[str, list[tuple[str, LineMeaning]]] = {}
        for meaning in meanings:
            for word in meaning.words:
                by_word.setdefault(word, []).append((meaning.anchor, meaning))
        self._by_word = {word: tuple(each) for word, each in by_word.items()}

    @property
    def words(self) -> frozenset[str]:
        """First words of the messages that mean something."""
        return frozenset(self._by_word)

    def find(self, word: str, text: str) -> tuple[LineMeaning, re.Match[str]] | None:
        """What the message `text` means, whose first word is `word`, and what was captured; None if it means nothing."""
        for anchor, meaning in self._by_word.get(word, ()):
            if anchor in text:
                found = _compiled(meaning.regex).search(text)
                if found is not None:
                    return meaning, found
        return None


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    # Compiled when it is first needed: that keeps the command line quick.
    return re.compile(regex)
