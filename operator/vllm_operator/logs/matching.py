"""Matching a line against the signatures of the catalog, without trying hundreds of regular expressions.

Each pattern of a signature has an anchor, a string that its lines contain. One pass searches a line for all anchors, and for the strings
that say that a process has failed or that an exception reports a failure elsewhere. A regular expression is tried only if its anchor was
found, and compiled on first use, so that the command line starts quickly.

`is_no_report` recognizes lines that only mention an error.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from vllm_operator.catalog.error_forms import load_error_forms
from vllm_operator.catalog.startup import Failure, FailureKind, LinePattern, Signature, Stages
from vllm_operator.logs.lines import Line
from vllm_operator.text.patterns import compile_linear

_NAME = re.compile(r"[\w.]+")
_IDEOGRAPHS = ("\u4e00", "\u9fff")
_CLOSING = "\"'`*)\u201d\u2019\u300d\u300f"
_CLOSING_KEPT = 4
_QUOTES = frozenset("`\"'")
_MEMORY_BYTES = 8 << 20
"""Limit for the automaton. It grows as lines need it, to less than 2 MiB for real logs."""
_MEMORY_BYTES_EACH = 128
"""Added for each byte of the strings, so that any number of them fits."""


class Literals:
    """Finds which of hundreds of strings a text contains, in one pass of an automaton of RE2."""

    def __init__(self, texts: Iterable[str]) -> None:
        import re2  # imported only if logs are read

        self._texts = tuple(dict.fromkeys(texts))
        encoded = [text.encode() for text in self._texts]
        options = re2.Options()
        options.literal = True
        options.log_errors = False
        options.encoding = re2.Options.Encoding.LATIN1  # compare bytes
        options.max_mem = _MEMORY_BYTES + _MEMORY_BYTES_EACH * sum(map(len, encoded))
        self._automaton = re2.Set.SearchSet(options)
        for each in encoded:
            self._automaton.Add(each)
        self._automaton.Compile()

    def find(self, text: str) -> list[str]:
        """Return the strings that `text` contains, in the order in which they were given."""
        found = self._automaton.Match(text.encode("utf-8", "surrogatepass"))
        return [self._texts[each] for each in sorted(found)] if found else []


class Match(NamedTuple):
    """A line matches a pattern of a signature."""

    signature: Signature
    captures: tuple[tuple[str, str], ...]  # named groups that matched
    pattern: LinePattern
    name: str = ""  # the matched text if it is one word
    after: str = ""  # character after the matched text and after closing quotation marks

    def is_reported_by(self, text: str) -> bool:
        """Whether the line reports the error. A text about errors mentions their names within sentences."""
        if _IDEOGRAPHS[0] <= self.after <= _IDEOGRAPHS[1]:
            return False  # a sentence in Chinese that mentions the error
        if not self.name:
            return True
        name = re.escape(self.name)  # after `:`, `(`, `[`, `=` or a rank such as 0/4, or before `:`, `)`, `]` or `>`, or the whole line
        return re.search(rf"(?:[:(\[]|(?<!=)=|\d/\d) *[\"']?[\w.:<]*{name}|{name}(?:\(\w+\))?[]:)>]|^[\w.]*{name}$", text) is not None


def _match(signature: Signature, pattern: LinePattern, text: str, context: Callable[[], Iterable[str]]) -> Match | None:
    prepare = compile_linear if signature.is_user_defined else compiled
    if (found := prepare(pattern.regex).search(text)) is None:
        return None
    if pattern.context is not None:
        frame = prepare(pattern.context)
        if not any(frame.search(line.rstrip()) for line in context()):
            return None
    captures = tuple((name, _tidy(value)) for name, value in found.groupdict().items() if value)
    name = found[0] if _NAME.fullmatch(found[0]) else ""
    after = text[found.end() : found.end() + _CLOSING_KEPT].lstrip(_CLOSING)
    return Match(signature, captures, pattern, name, after[:1])


def _tidy(value: str) -> str:
    """Remove the end of the sentence from a capture, a quotation mark without its counterpart, and what pydantic says of its input."""
    value = value.partition(" [type=")[0].strip()
    value = value[:-1] if value[-1:] in _QUOTES and value.count(value[-1]) == 1 else value
    return value.removesuffix(".") if " " not in value else value


class Seen(NamedTuple):
    """What a line may be about, according to its strings."""

    failure: Failure | None = None  # a process has failed
    is_echo: bool = False  # an exception only reports a failure elsewhere
    patterns: tuple[int, ...] = ()  # that it may match, by their positions in the catalog


class Recognizer:
    """Recognizes lines that may be about a crash. The result for the latest line is kept, because a line is asked about several times."""

    def __init__(self, signatures: Iterable[Signature], stages: Stages, kinds: Iterable[FailureKind] = ()) -> None:
        self._patterns = [(signature, pattern) for signature in signatures for pattern in signature.patterns]
        self._anchors: dict[str, list[int]] = {}
        for position, (_, pattern) in enumerate(self._patterns):
            self._anchors.setdefault(pattern.anchor, []).append(position)
        self._failures = {failure.text: failure for failure in stages.failures}
        self._echoes = frozenset(stages.echoes)
        self._literals = Literals((*self._failures, *self._echoes, *self._anchors))
        self._kinds, self._circumstances = tuple(kinds), stages.circumstances
        self._latest = "", Seen()

    def look(self, text: str) -> Seen:
        """Return what the line may be about."""
        if self._latest[0] != text:
            found = self._literals.find(text)
            failures = [each for each in found if each in self._failures]
            failure = self._failures[min(failures, key=text.find)] if failures else None
            patterns = sorted(position for each in found for position in self._anchors.get(each, ()))
            echoes = (each for each in self._echoes.intersection(found) if each != "SystemExit" or each in text.partition(": ")[0])
            self._latest = text, Seen(failure, any(echoes), tuple(patterns))
        return self._latest[1]

    def find(self, text: str, context: Callable[[], Iterable[str]] = tuple) -> Iterator[Match]:
        """Return the signatures that the line matches, each once. `context` returns the frames of the traceback that the line ends."""
        found_before: set[str] = set()
        for signature, pattern in map(self._patterns.__getitem__, self.look(text).patterns):
            if signature.id not in found_before and (match := _match(signature, pattern, text, context)) is not None:
                found_before.add(signature.id)
                yield match

    def kind(self, text: str, where: str, frames: Sequence[str]) -> FailureKind | None:
        """Return the kind of failure of an exception that matches no signature, or None.

        A message that leaves no doubt decides, then the innermost frame that tells a kind, then the message, then what says little.
        `where`: the function that raised it.
        """
        fitting = [kind for kind in self._kinds if kind.message is None or compiled(kind.message).search(f"{text} {where}")]
        lines = [each for each in reversed(frames) if each.lstrip().startswith("File ")]
        found = [kind for line in lines for kind in fitting if kind.frames and compiled(kind.frames).search(line)]
        of_words = [kind for kind in self._kinds if kind.words is not None and compiled(kind.words).search(text)]
        of_message = [kind for kind in fitting if kind.frames is None and kind.message is not None]
        return min((*found, *of_words, *of_message), key=lambda kind: (not kind.first, kind.general), default=None)

    def adapted(self, remedy: str, shown: str) -> str:
        """Return a remedy without what does not suit the device or the settings. `shown`: what the log shows of them."""
        for each in (one for one in self._circumstances if compiled(one.seen).search(shown)):
            for word, other in each.replaced.items():
                remedy = remedy.replace(word, other)
            kept = (part for part in _SENTENCES.split(remedy) if not compiled(each.omitted).search(part))
            remedy = " ".join(kept) or remedy
        given = _GIVEN.search(shown)
        if given is not None:
            told = " ".join(part for part in _SENTENCES.split(remedy) if _fits(part, given[1]))
            remedy = _TAKEN_AWAY.sub(lambda found: _only_given(found, given[1]), told or remedy)
        return remedy[:1].upper() + remedy[1:] if (remedy := remedy.removeprefix("Otherwise ")) else remedy


def _only_given(found: re.Match[str], given: str) -> str:
    """Return a list of flags to start without as those of them that the arguments have, if they have any."""
    flags = re.findall(r"--[a-z0-9-]+", found["flags"])
    kept = [flag for flag in flags if flag[2:].replace("-", "_") in given] or flags
    return found[0] if kept == flags else f"{found['before']}{' and '.join(kept)}"


def _fits(sentence: str, given: str) -> bool:
    """Return whether a sentence does more than take flags away of which the arguments have none."""
    found = _ONLY_TAKES_AWAY.fullmatch(sentence)
    return found is None or any(flag.replace("-", "_") in given for flag in re.findall(r"--([a-z0-9-]+)", found[1]))


@cache
def compiled(regex: str) -> re.Pattern[str]:
    """Return a regular expression of the catalog. It is compiled on first use, so that the command line starts quickly."""
    return re.compile(regex)


_GIVEN = re.compile(r"(?m)^given=(.*)")
_SENTENCES = re.compile(r"(?<=[.:]) (?=[A-Z])")
_ONLY_TAKES_AWAY = re.compile(r"(?:Remove|Start(?: once)? without) ((?:--[a-z0-9-]+(?:, | and | or )?)+)(?:\.|: [^:]*)")
_TAKEN_AWAY = re.compile(r"(?P<before>[Ww]ithout |[Rr]emove )(?P<flags>--[a-z][a-z0-9-]+(?:(?:, | and | or )--[a-z][a-z0-9-]+)+)")
_SURVEY = "Collecting environment information..."  # output of `collect_env.py` before it imports vLLM
_CUSTOMIZE = "customize; set PYTHONVERBOSE for traceback:"
"""Heading of an error in sitecustomize or usercustomize. The error is on the next line, and Python starts nevertheless."""


def is_no_report(text: str, recent: Sequence[Line]) -> bool:
    """Whether raw output contains no error: trace output, or of a program before vLLM. `recent`: the latest lines of the log."""
    before = recent[-2].text if len(recent) > 1 else ""
    is_heading = before.startswith(_SURVEY) or before.rstrip().endswith(_CUSTOMIZE)
    return is_heading or load_error_forms().trace_output.search(text) is not None
