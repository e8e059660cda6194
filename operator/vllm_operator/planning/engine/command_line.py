"""The user's flags: `spec.engine.args`, and the words in `spec.engine.extraArgs`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_operator.api.spec import EngineArgument, EngineSpec
from vllm_operator.catalog.versions import normalize_flag

_FLAG = re.compile(r"--?[A-Za-z]")
"""The beginning of a flag. All other words are values, including negative numbers."""


@dataclass(frozen=True, slots=True)
class Words:
    """A flag in `extraArgs` and its words: from index `start` to before index `end`."""

    argument: EngineArgument
    start: int
    end: int


def read_words(words: Sequence[str]) -> tuple[Words, ...]:
    """Group the words of a command line by flag, like argparse. Words before the first flag are dropped, because the API refuses them."""
    starts = [index for index, word in enumerate(words) if _FLAG.match(word)]
    ends = [*starts[1:], len(words)]
    return tuple(Words(_argument(words[start:end]), start, end) for start, end in zip(starts, ends, strict=False))


def given_arguments(engine: EngineSpec | None) -> tuple[EngineArgument, ...]:
    """Return all flags of the user in their order: `args`, then `extraArgs`."""
    if engine is None:
        return ()
    return (*(engine.args or ()), *(words.argument for words in read_words(engine.extra_args or ())))


def replace_words(extra: Sequence[str], given: Words, instead: Sequence[str]) -> list[dict[str, str]]:
    """Return JSON patch operations (RFC 6902) that replace a flag and its values. With several flags, apply the last one first."""
    path, places = "/spec/engine/extraArgs", range(given.start, given.end)
    return [
        *({"op": "test", "path": f"{path}/{index}", "value": extra[index]} for index in places),
        *({"op": "remove", "path": f"{path}/{index}"} for index in reversed(places)),
        *({"op": "add", "path": f"{path}/{given.start + offset}", "value": word} for offset, word in enumerate(instead)),
    ]


class ArgumentError(ValueError):
    """The flags of the user contradict each other."""


def check_arguments(engine: EngineSpec | None) -> None:
    """Refuse a flag that is given twice. The API server compares only exact words of `extraArgs`.

    Raises:
        ArgumentError: The message names the flag.
    """
    seen = set[str]()
    if engine is None or not engine.extra_args:
        return
    for argument in given_arguments(engine):
        flag = normalize_flag(argument.name)
        if flag in seen:
            raise ArgumentError(f"spec.engine sets the flag {flag[:128]} twice, in args or extraArgs; keep one of them")
        seen.add(flag)


def _argument(words: Sequence[str]) -> EngineArgument:
    """Return a flag with its values. Not validated: `extraArgs` allows words that `args` does not."""
    name, equals, value = words[0].partition("=")
    values = [*([value] if equals else []), *words[1:]]
    one = values[0] if len(values) == 1 else None
    return EngineArgument.model_construct(name=name, value=one, values=values if len(values) > 1 else None)
